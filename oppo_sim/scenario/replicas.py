"""How many engines verl starts: its configuration gives GPUs and those of an engine, not their number."""

from collections.abc import Mapping
from typing import Any, Final

_A_NODE: Final = "trainer.n_gpus_per_node"
_NODES: Final = "trainer.nnodes"
_DEGREE: Final = "costs.rollout.tensor_parallel"
_DEFAULT_DEGREE: Final = 2
"""verl's ``tensor_model_parallel_size``."""

Plain = Mapping[str, Any]


def with_replicas(data: Plain, given_as: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Scenario data with the ``rollout.num_replicas`` that verl's GPUs make, and sentences that say so; the
    same where it is given, or the GPUs are not all of one pool that generates and trains.

    ``given_as``: the name by which each field was given (``aliases.Translated``).
    """
    cluster, costs = _section(data, "cluster"), _section(data, "costs")
    of_verl = (
        given_as.get("cluster.num_gpus_per_node") == _A_NODE or given_as.get("cluster.num_gpus") == _NODES
    )
    rollout = data.get("rollout", {})
    no_mapping = not isinstance(rollout, Mapping)  # refused where the scenario is checked
    if not of_verl or no_mapping or "num_replicas" in rollout or not _one_pool(data):
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
