"""How many engines verl starts: its configuration gives GPUs and those of an engine, not their number."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from oppo_sim.errors import OppoError

_A_NODE: Final = "trainer.n_gpus_per_node"
_NODES: Final = "trainer.nnodes"
_DEGREE: Final = "costs.rollout.tensor_parallel"
_DEFAULT_DEGREE: Final = 2
"""verl's ``tensor_model_parallel_size``."""

_NODES_NAMES: Final = frozenset({_NODES, "num_nodes", "cluster.num_nodes", "cluster.n_nodes"})
_GPUS: Final = "cluster.num_gpus"
_GPUS_A_NODE: Final = "cluster.num_gpus_per_node"
_REPLICAS: Final = "rollout.num_replicas"
DECIDED: Final = frozenset({_GPUS, _GPUS_A_NODE, _REPLICAS})
"""Fields of which a scenario remembers the names that they were given by."""

Plain = Mapping[str, Any]


class Engines(NamedTuple):
    """Scenario data with what GPUs of a node and their number decide."""

    data: dict[str, Any]
    given_as: dict[str, str]
    """The name by which each field was given; of replicas that were not, the one that decides them."""
    sentences: list[str]


def with_engines(
    data: Plain, below: Plain, over: Plain, given_as: Mapping[str, str], over_as: Mapping[str, str]
) -> Engines:
    """Scenario data with the ``cluster.num_gpus`` that its nodes have and the ``rollout.num_replicas`` that
    verl's GPUs make; what was derived ``below`` is derived again from what is laid ``over`` it.

    ``given_as``: of ``below`` (``aliases.Translated``), or as a scenario remembers it; ``over_as``: of
    ``over``. Raises OppoError for nodes that the GPUs given below are not whole ones of.
    """
    names = {**given_as, **over_as}
    verl = _of_verl(names)
    if "num_gpus" in _section(over, "cluster") and _GPUS not in over_as:
        names.pop(_GPUS, None)
    by = over_as.get(_GPUS_A_NODE, _GPUS_A_NODE)
    nodes, said = _with_nodes(data, below, over, names, by)
    if "num_replicas" in _section(over, "rollout"):
        names.pop(_REPLICAS, None)
    elif names.pop(_REPLICAS, None) == _A_NODE:
        kept = {name: value for name, value in _section(nodes, "rollout").items() if name != "num_replicas"}
        nodes = {**nodes, "rollout": kept}
    found, engines = _with_replicas(nodes, names) if verl else (dict(nodes), [])
    if engines and _section(nodes, "cluster").get("num_gpus") is None:
        names[_GPUS] = _NODES
    if verl and "num_replicas" not in _section(nodes, "rollout"):
        names[_REPLICAS] = _A_NODE
    return Engines(found, names, [*said, *engines])


def _with_nodes(
    data: Plain, below: Plain, over: Plain, given_as: Mapping[str, str], by: str
) -> tuple[Plain, list[str]]:
    """As many nodes as there were, where others are laid over them, by that name."""
    cluster, before = _section(data, "cluster"), _section(below, "cluster")
    size, total = _section(over, "cluster").get("num_gpus_per_node"), before.get("num_gpus")
    if "num_gpus" in _section(over, "cluster") or type(size) is not int or type(total) is not int or size < 1:
        return data, []
    name, was = given_as.get(_GPUS, ""), before.get("num_gpus_per_node")
    if name in _NODES_NAMES and type(was) is int and was > 0 and total % was == 0:
        nodes = total // was
        said = f"{name} {nodes} with {by} {size} is {_GPUS}: {nodes * size}"
        return {**data, "cluster": {**cluster, "num_gpus": nodes * size}}, [said]
    if given_as.get(_GPUS_A_NODE) == _A_NODE and total % size:
        raise OppoError(
            f"{by} {size} does not divide {_GPUS} {total}, which is given beside it: give {_NODES} or"
            f" {_GPUS} too"
        )
    return data, []


def _with_replicas(data: Plain, given_as: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """The same where replicas are given, or the GPUs are not all of one pool that generates and trains."""
    cluster, costs = _section(data, "cluster"), _section(data, "costs")
    rollout = data.get("rollout", {})
    no_mapping = not isinstance(rollout, Mapping)  # refused where the scenario is checked
    if no_mapping or "num_replicas" in rollout or not _one_pool(data):
        return dict(data), []
    total, degree = cluster.get("num_gpus"), _section(costs, "rollout").get("tensor_parallel", 1)
    said = []
    if total is None:  # verl's own default
        total = cluster.get("num_gpus_per_node")
        said = [f"{_A_NODE} without {_NODES} is one node: cluster.num_gpus: {total}"]
    if type(total) is not int or type(degree) is not int or not 0 < degree <= total or total % degree:
        return dict(data), []
    engine = f"{degree} GPUs" if degree > 1 else "one GPU"
    if _DEGREE not in given_as and "tensor_parallel" not in _section(costs, "rollout"):
        engine += f" ({_DEGREE}; verl's own default is {_DEFAULT_DEGREE})"
    said.append(
        f"{total} GPUs in engines of {engine} are rollout.num_replicas: {total // degree}, as verl starts"
        " them"
    )
    changed = {
        "cluster": {**cluster, "num_gpus": total},
        "rollout": {**rollout, "num_replicas": total // degree},
    }
    return {**data, **changed}, said


def _of_verl(given_as: Mapping[str, str]) -> bool:
    return (
        given_as.get(_GPUS_A_NODE) == _A_NODE
        or given_as.get(_GPUS) == _NODES
        or given_as.get(_REPLICAS) == _A_NODE
    )


def _one_pool(data: Plain) -> bool:
    """Whether the same GPUs generate and train, and none of them only scores."""
    placement, costs = _section(data, "placement"), _section(data, "costs")
    verifies = _section(costs, "reward_model").get("kind") == "verifier"
    streams = _section(data, "training").get("stream_ref") is True
    scores_apart = placement.get("scoring", "separate") == "separate" and (not verifies or streams)
    return (
        costs.get("kind") in ("roofline", "composed")
        and placement.get("training", "rollout") == "rollout"
        and _section(data, "cluster").get("split") is None
        and not scores_apart
    )


def _section(data: Plain, name: str) -> Plain:
    value = data.get(name)
    return value if isinstance(value, Mapping) else {}
