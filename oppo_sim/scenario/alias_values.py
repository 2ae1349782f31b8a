"""Values of other frameworks' settings, converted to what the fields of a scenario count.

A conversion takes the alias, the given value and facts of the scenario; it raises OppoError for a value that
cannot be converted.
"""

from collections.abc import Callable, Container, Mapping
from typing import Any, NamedTuple

from oppo_sim.errors import OppoError
from oppo_sim.policies.registry import SHIPPED
from oppo_sim.scenario import engine_names
from oppo_sim.scenario.yaml_text import show_value

_DEFAULTS = {"group_size": 1, "rollout.num_replicas": 1}


class Facts:
    """What a conversion may query: canonical numbers of the scenario as far as it is read."""

    def __init__(self, data: Mapping[str, Any], policy_name: str) -> None:
        self._data = data
        self.policy_name = policy_name

    def given(self, path: str) -> Any:
        """A value of the scenario; None where it has none."""
        value: Any = self._data
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def whole(self, path: str, needed_by: str) -> int:
        """A positive whole number of the scenario. Raises OppoError if it is missing or something else."""
        value = self.given(path)
        if value is None:
            value = _DEFAULTS.get(path)
        if value is None:
            raise OppoError(f"{needed_by} cannot be translated without {path}: give it too")
        if type(value) is not int or value < 1:
            raise OppoError(
                f"{needed_by} cannot be translated while {path} is {show_value(value)}: make that a whole"
                " number of at least 1"
            )
        return value


Convert = Callable[[str, Any, Facts], Any]
"""(alias, given value, facts) → value of the target."""


class OfField(NamedTuple):
    """Answer of a conversion whose policy has another field of the section for it."""

    field: str
    value: object


NOTHING = object()
"""Answer of a conversion whose alias only states what holds anyway."""
DEFAULT = object()
"""Answer of a conversion whose value is what a scenario says without it."""


def _number(alias: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise OppoError(f"{alias} is {show_value(value)} but must be a whole number of at least 1")
    return value


def of_prompts(alias: str, value: Any, facts: Facts) -> int:
    """Prompts as rollouts."""
    return _number(alias, value) * facts.whole("group_size", alias)


def of_rollouts_or_prompts(alias: str, value: Any, facts: Facts) -> int:
    """As it is, where prompts and rollouts are the same number."""
    size, batch = facts.whole("group_size", alias), facts.given("rollout_batch_size")
    if size > 1:
        other = of_an_update(alias, value, batch)
        raise OppoError(
            f"{alias} counts prompts in some frameworks and rollouts in others, which differ by group_size"
            f" {size}: {other or 'give rollout_batch_size, which counts rollouts'}"
        )
    return _number(alias, value)


def of_an_update(alias: str, value: Any, batch: Any) -> str:
    """What a second size of a batch may be: the rollouts of an update. Empty where it is none."""
    if not alias.endswith("train_batch_size") or type(batch) is not int or type(value) is not int:
        return ""
    if value == batch:
        return "of OpenRLHF's, the rollouts of one update, it is all of rollout_batch_size: remove it"
    if not 0 < value < batch:
        return ""
    parts = "" if batch % value else f": {batch // value}"
    return f"of OpenRLHF's, the rollouts of one update, give training.num_mini_batches{parts} instead"


def over_sampling(alias: str, value: Any, facts: Facts) -> int:
    """What is sampled beyond the batch, rollouts."""
    size, batch = facts.whole("group_size", alias), facts.whole("rollout_batch_size", alias)
    if size > 1:
        raise OppoError(
            f"{alias} counts prompts in some frameworks and rollouts in others, which differ by group_size"
            f" {size}: give policy.overcommit, the rollouts beyond rollout_batch_size"
        )
    total = _number(alias, value)
    if total < batch:
        raise OppoError(
            f"{alias} {total} is below rollout_batch_size {batch}: it counts the batch and what is sampled"
            " beyond it"
        )
    return total - batch


def batches_ahead(alias: str, value: Any, facts: Facts) -> int:
    """Batches as rollouts, in whole prompts."""
    if type(value) not in (int, float) or not 0 <= value < float("inf"):
        raise OppoError(f"{alias} is {show_value(value)} but must be a number of batches from 0 on")
    size = facts.whole("group_size", alias)
    prompts = value * (facts.whole("rollout_batch_size", alias) / size)
    return int(prompts + 1e-9) * size


def versions(alias: str, value: Any, facts: Facts) -> object:
    """Versions that a rollout may span as updates between them, of a synchronous policy as deferrals; one
    where a policy carries nothing."""
    updates, policy = _number(alias, value) - 1, facts.policy_name
    if _carries_nothing(policy):
        return NOTHING
    own = settings_of(policy)
    deferred = "max_deferrals" in own and "max_staleness" not in own
    return OfField("max_deferrals", updates) if deferred else updates


def whole_updates(alias: str, value: Any, facts: Facts) -> int:
    """Staleness in whole updates."""
    if type(value) not in (int, float) or value < 0 or value != int(value):
        raise OppoError(
            f"{alias} is {show_value(value)} but policy.max_staleness counts whole updates: give 0, 1, 2, …"
        )
    return int(value)


def per_replica(alias: str, value: Any, facts: Facts) -> int:
    """A cap on all replicas as one on each."""
    total, replicas = _number(alias, value), facts.whole("rollout.num_replicas", alias)
    if total % replicas:
        raise OppoError(
            f"{alias} {total} bounds all {replicas} replicas together and cannot be shared evenly: give"
            " rollout.max_num_seqs, which is per replica"
        )
    return total // replicas


def mini_batches(alias: str, value: Any, facts: Facts) -> int:
    """Prompts of a mini-batch as the number of mini-batches."""
    rollouts = of_prompts(alias, value, facts)
    batch = facts.whole("rollout_batch_size", alias)
    if batch % rollouts:
        raise OppoError(
            f"{alias} {value} ({rollouts} rollouts) does not divide rollout_batch_size {batch}: make it a"
            " divisor"
        )
    return batch // rollouts


def of_nodes(alias: str, value: Any, facts: Facts) -> int:
    """Nodes as GPUs."""
    return _number(alias, value) * facts.whole("cluster.num_gpus_per_node", alias)


def ranks_of_engine(alias: str, value: Any, facts: Facts) -> int:
    """vLLM's data-parallel ranks of an engine; its GPUs are read after them (``gpus_of_engine``)."""
    ranks, degree = _number(alias, value), facts.given(engine_names.DEGREE)
    if degree is not None and (facts.given(engine_names.RANKS) or 1) != ranks:
        raise OppoError(
            f"{alias} {ranks} multiplies the GPUs of an engine, and {engine_names.DEGREE} is"
            f" {show_value(degree)}, all of them: give both as {engine_names.DEGREE} (all GPUs) and"
            f" {engine_names.RANKS}"
        )
    return ranks


def gpus_of_engine(alias: str, value: Any, facts: Facts) -> int:
    """vLLM's tensor parallelism, which is of one rank of attention, as all GPUs of an engine."""
    ranks = facts.given(engine_names.RANKS)
    return _number(alias, value) * (ranks if type(ranks) is int and ranks > 0 else 1)


def carries_unfinished(alias: str, value: Any, facts: Facts) -> object:
    """A setting of the policy, or a statement that is checked against it."""
    if type(value) is not bool:
        raise OppoError(f"{alias} is {show_value(value)} but must be true or false")
    name = facts.policy_name
    if name not in SHIPPED:
        raise OppoError(
            f"{alias} says nothing to policy '{name}', which decides itself what it carries: remove it"
        )
    if "partial_rollout" in settings_of(name):
        return value
    carries = SHIPPED[name].carries
    fitting = ", ".join(each.name for each in SHIPPED.values() if each.carries == value and not each.oracle)
    if value and not carries:
        raise OppoError(
            f"{alias} is true but policy '{name}' carries nothing over an update: choose {fitting}"
        )
    if not value and carries:
        raise OppoError(
            f"{alias} is false but policy '{name}' carries unfinished rollouts over an update: choose"
            f" {fitting}"
        )
    return NOTHING


def waits(alias: str, value: Any, facts: Facts) -> object:
    """``wait``, which is all that is modelled. Where a policy carries nothing, nothing is dropped either."""
    if value != "wait" and not (value == "drop" and _carries_nothing(facts.policy_name)):
        raise OppoError(
            f'{alias} is {show_value(value)} but only "wait" is modelled: no policy drops what is too old'
        )
    return value if "max_staleness_strategy" in settings_of(facts.policy_name) else NOTHING


def _carries_nothing(policy: str) -> bool:
    return policy in SHIPPED and not SHIPPED[policy].carries


def settings_of(policy: str) -> Container[str]:
    """Names of the settings of a shipped policy."""
    kind = SHIPPED.get(policy)
    return kind.Settings.model_fields if kind is not None and kind.Settings is not None else ()


def engine_host(alias: str, value: Any, facts: Facts) -> object:
    """The host preset of an engine setting."""
    preset = engine_names.host_preset(alias, value)
    return DEFAULT if preset is None else preset


def expert_dispatch(alias: str, value: Any, facts: Facts) -> object:
    """The dispatch of experts by Megatron's name."""
    return engine_names.expert_dispatch(alias, value)


def critic(alias: str, value: Any, facts: Facts) -> object:
    """Whether an estimator of advantages has a critic."""
    return DEFAULT if engine_names.has_critic(alias, value) else "none"
