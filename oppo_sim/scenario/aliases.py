"""Names that other frameworks give to the fields of a scenario, translated on reading.

A plain alias is accepted at the top of the file and in the section of its target; a dotted one
(``data.train_batch_size``) also as nested mappings. What counts prompts elsewhere is multiplied by
``group_size``; a cap on the whole system is divided by the replicas.
"""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from oppo_sim.errors import OppoError
from oppo_sim.policies.registry import SHIPPED
from oppo_sim.scenario import alias_values as values
from oppo_sim.scenario import engine_names
from oppo_sim.scenario.schema import DEFAULT_POLICY
from oppo_sim.scenario.yaml_text import show_value

Plain = dict[str, Any]


class Alias(NamedTuple):
    """One translation."""

    target: str
    """Canonical field, dotted."""
    convert: values.Convert | None = None
    """None: the same value."""
    meaning: str = ""
    """How the value is converted, for the documentation."""


@dataclass
class Translated:
    """A file or overlay in canonical names."""

    data: Plain
    given_as: dict[str, str] = field(default_factory=dict)
    """Canonical dotted path → the alias it was given as."""
    sentences: list[str] = field(default_factory=list)


def _same(target: str, *names: str) -> dict[str, Alias]:
    return dict.fromkeys(names, Alias(target))


ALIASES: Mapping[str, Alias] = {
    # Order matters: what a conversion queries is translated before it.
    **_same(
        "group_size",
        "n_samples_per_prompt",
        "num_generations",
        "num_generations_per_prompt",
        "grpo.num_generations_per_prompt",
        "num_return_sequences_in_group",
        "gconfig.n_samples",
        "rollout.n",
        "actor_rollout_ref.rollout.n",
    ),
    **dict.fromkeys(
        ("train_batch_size", "batch_size", "consumer_batch_size", "rollout.batch_size"),
        Alias(
            "rollout_batch_size",
            values.of_rollouts_or_prompts,
            "refused with group_size > 1, where it would be ambiguous",
        ),
    ),
    **dict.fromkeys(
        (
            "data.train_batch_size",
            "num_prompts_per_step",
            "grpo.num_prompts_per_step",
            "num_unique_prompts_rollout",
        ),
        Alias("rollout_batch_size", values.of_prompts, "prompts × group_size"),
    ),
    **_same(
        "max_response_length",
        "response_length",
        "max_new_tokens",
        "max_completion_length",
        "data.max_response_length",
    ),
    **_same("max_prompt_length", "data.max_prompt_length"),
    **dict.fromkeys(
        ("over_sampling_batch_size", "vllm_generate_batch_size", "rollout.vllm_generate_batch_size"),
        Alias(
            "policy.overcommit",
            values.over_sampling,
            "B + Δ: rollout_batch_size is subtracted; refused with group_size > 1",
        ),
    ),
    "max_additional_running_prompts": Alias("policy.overcommit", values.of_prompts, "prompts × group_size"),
    **dict.fromkeys(
        ("num_warmup_batches", "trainer.v1.colocate_async.num_warmup_batches"),
        Alias("policy.overcommit", values.batches_ahead, "batches × rollout_batch_size, in whole prompts"),
    ),
    **_same("policy.chunk_size", "stream_interval"),
    **_same(
        "policy.max_staleness",
        "max_staleness_steps",
        "fully_async.max_staleness_steps",
        "max_head_offpolicyness",
        "max_off_policy_steps",
        "max_trajectory_age_steps",
        "grpo.async_grpo.max_trajectory_age_steps",
        "max_staleness_versions",
        "max_lag",
        "async_steps",
    ),
    **dict.fromkeys(
        ("max_off_policy_threshold", "trainer.v1.sampler.max_off_policy_threshold"),
        Alias(
            "policy.max_staleness",
            values.versions,
            "versions that a rollout may span: 1 is taken off; of inter and others policy.max_deferrals",
        ),
    ),
    **dict.fromkeys(
        ("staleness_threshold", "async_training.staleness_threshold", "async_generation_ratio"),
        Alias(
            "policy.max_staleness", values.whole_updates, "a share of a batch elsewhere; whole numbers only"
        ),
    ),
    **dict.fromkeys(
        ("max_staleness_strategy", "max_off_policy_strategy", "trainer.v1.sampler.max_off_policy_strategy"),
        Alias("policy.max_staleness_strategy", values.waits, "wait: the same; drop is refused"),
    ),
    **dict.fromkeys(
        (
            "partial_rollout",
            "partial_rollout_enable",
            "train.partial_rollout_enable",
            "async_training.partial_rollout",
            "in_flight_weight_updates",
            "grpo.async_grpo.in_flight_weight_updates",
            "inflight_updates",
        ),
        Alias(
            "policy.partial_rollout",
            values.carries_unfinished,
            "of async; else a statement, checked against the policy",
        ),
    ),
    **_same(
        "rollout.clear_kv_cache_on_weight_sync",
        "recompute_kv_cache_after_weight_updates",
        "grpo.async_grpo.recompute_kv_cache_after_weight_updates",
        "clear_cache",
        "fully_async.clear_kv_cache_on_weight_sync",
    ),
    **_same(
        "dynamic_sampling.enable",
        "filter_groups.enable",
        "algorithm.filter_groups.enable",
        "grpo.use_dynamic_sampling",
    ),
    "data.gen_batch_size": Alias(
        "dynamic_sampling.gen_batch_size", values.of_prompts, "prompts × group_size"
    ),
    **_same("rollout.enable_prefix_caching", "actor_rollout_ref.rollout.enable_prefix_caching"),
    **_same(
        "rollout.max_num_seqs",
        "max_running_requests",
        "max_num_active_seqs",
        "sglang_server_concurrency",
        "concurrent_samples_per_replica",
        "async_training.concurrent_samples_per_replica",
        "llm_max_rollouts",
        "actor.llm_max_rollouts",
        "actor_rollout_ref.rollout.max_num_seqs",
    ),
    **dict.fromkeys(
        ("max_inflight", "max_concurrent_rollouts", "max_inflight_tasks"),
        Alias(
            "rollout.max_num_seqs",
            values.per_replica,
            "a cap on all replicas: divided by num_replicas, which must divide it",
        ),
    ),
    **_same(
        "training.num_ppo_epochs",
        "ppo_epochs",
        "actor_rollout_ref.actor.ppo_epochs",
        "num_iterations",
        "max_epochs",
        "train.max_epochs",
    ),
    **_same("training.num_mini_batches", "num_steps_per_rollout", "actor.ppo_n_minibatches"),
    **dict.fromkeys(
        ("ppo_mini_batch_size", "actor_rollout_ref.actor.ppo_mini_batch_size"),
        Alias(
            "training.num_mini_batches",
            values.mini_batches,
            "rollout_batch_size / (prompts × group_size), which must divide it",
        ),
    ),
    **_same(
        "cluster.num_gpus_per_node",
        "num_gpus_per_node",
        "gpus_per_node",
        "n_gpus_per_node",
        "cluster.gpus_per_node",
        "cluster.n_gpus_per_node",
        "trainer.n_gpus_per_node",
    ),
    **_same("cluster.num_gpus", "num_gpus"),
    **dict.fromkeys(
        ("num_nodes", "cluster.num_nodes", "cluster.n_nodes", "trainer.nnodes"),
        Alias("cluster.num_gpus", values.of_nodes, "nodes × num_gpus_per_node"),
    ),
    **_same("cluster.split", "split"),
    **_same("rollout.num_replicas", "vllm_num_engines"),
    **_same(engine_names.RANKS, *engine_names.SGLANG_RANKS_NAMES),
    **dict.fromkeys(
        engine_names.VLLM_RANKS_NAMES,
        Alias(engine_names.RANKS, values.ranks_of_engine, "the same; it multiplies the GPUs of an engine"),
    ),
    **dict.fromkeys(
        engine_names.VLLM_DEGREE_NAMES,
        Alias(engine_names.DEGREE, values.gpus_of_engine, "GPUs of a rank × attention_data_parallel"),
    ),
    **{name: Alias(target) for target, names in engine_names.SAME.items() for name in names},
    **dict.fromkeys(
        engine_names.HOST_NAMES, Alias(engine_names.HOST, values.engine_host, "the host preset it stands for")
    ),
    **dict.fromkeys(
        engine_names.CRITIC_NAMES,
        Alias(engine_names.CRITIC, values.critic, "none, but for gae and slime's ppo"),
    ),
    **dict.fromkeys(
        engine_names.DISPATCH_NAMES,
        Alias(engine_names.DISPATCH, values.expert_dispatch, "alltoall: the same; flex: deepep"),
    ),
}
_ORDER = {name: position for position, name in enumerate(ALIASES)}


class _Found(NamedTuple):
    alias: str
    given: str
    """The key as the file has it, dotted."""
    value: Any
    target: tuple[str, ...]


def translate(data: Plain, canonical: frozenset[str], context: Mapping[str, Any] | None = None) -> Translated:
    """``data`` (a file, or an overlay of overrides on ``context``) in canonical names; ``canonical`` are
    those a file may have at its top.

    Raises OppoError for a value that cannot be converted, and for two names of one field that disagree.
    """
    result = Translated(_copied(data))
    found = list(_take_aliases(result.data, canonical, context or {}))
    agreeing: list[str] = []
    for item in sorted(found, key=lambda item: _ORDER[item.alias]):
        alias = ALIASES[item.alias]
        merged = merge(context or {}, result.data)
        value = item.value
        if alias.convert is not None:
            section, inner = item.target[:2] if len(item.target) > 1 else ("", "")
            name = inner if section == "policies" else policy_name(merged)
            value = alias.convert(item.given, item.value, values.Facts(merged, name))
        path = item.target
        if isinstance(value, values.OfField):
            path, value = (*path[:-1], value.field), value.value
        target = ".".join(path)
        if value is values.NOTHING:
            agreeing.append(f"{item.given}: {show_value(item.value)}")
            continue
        if value is values.DEFAULT:
            result.sentences.append(
                f"{item.given}: {show_value(item.value)} is what {target} stands for without it"
            )
            continue
        _put(result, item, path, value)
    if agreeing:
        policy = policy_name(merge(context or {}, result.data))
        verb = "agree" if len(agreeing) > 1 else "agrees"
        result.sentences.append(f"{' and '.join(agreeing)} {verb} with policy '{policy}'")
    result.sentences += _as_rollouts(result, merge(context or {}, result.data))
    return result


_COUNT_PROMPTS = ("n_samples_per_prompt", "num_return_sequences_in_group")
"""Samples a prompt in frameworks whose ``rollout_batch_size`` counts prompts."""


def _as_rollouts(result: Translated, data: Plain) -> list[str]:
    """What to know where samples a prompt have the name of a framework whose ``rollout_batch_size`` is not
    ours."""
    batch, size = data.get("rollout_batch_size"), data.get("group_size")
    named = result.given_as.get("group_size")
    if named not in _COUNT_PROMPTS or "rollout_batch_size" in result.given_as:
        return []
    if not (isinstance(batch, int) and isinstance(size, int)) or size <= 1 or batch % size:
        return []
    return [
        f"rollout_batch_size: {batch} counts rollouts here, {batch // size} prompts of {size}; beside {named}"
        f" it counts prompts in slime, OpenRLHF and ROLL: for {batch} prompts give {batch * size}"
    ]


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Plain:
    """``above`` laid over ``below``: mappings are merged, everything else is replaced."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def policy_name(data: Mapping[str, Any]) -> str:
    """The policy that plain data names; the default if it names none."""
    policy = data.get("policy")
    name = policy.get("name", DEFAULT_POLICY) if isinstance(policy, Mapping) else policy
    return name if isinstance(name, str) else DEFAULT_POLICY


def _copied(data: Plain) -> Plain:
    return {key: _copied(value) if isinstance(value, dict) else value for key, value in data.items()}


def _take_aliases(data: Plain, canonical: frozenset[str], context: Mapping[str, Any]) -> Iterator[_Found]:
    """Remove aliases from ``data`` and yield them."""
    for key in list(data):
        value = data[key]
        if key == "policies" and isinstance(value, dict):
            for name in list(value):
                if name in SHIPPED and isinstance(value[name], dict):
                    yield from _take_from_section(
                        value[name], "policy", ("policies", name), values.settings_of(name)
                    )
        elif key in canonical:
            policy = policy_name(merge(context, data))
            if isinstance(value, dict) and (key != "policy" or policy in SHIPPED):
                own = values.settings_of(policy) if key == "policy" else ()
                yield from _take_from_section(value, key, (key,), own)
        elif key in ALIASES:
            yield _Found(key, key, data.pop(key), tuple(ALIASES[key].target.split(".")))
        elif isinstance(value, dict):
            taken = list(_take_nested(value, key))
            yield from taken
            if taken and not value:
                del data[key]


def _take_from_section(
    section: Plain, name: str, place: tuple[str, ...], own: Container[str]
) -> Iterator[_Found]:
    """``own``: fields that are no aliases there."""
    for key in list(section):
        if key in own:
            continue
        for alias in (f"{name}.{key}", key):
            if alias not in ALIASES:
                continue
            target = tuple(ALIASES[alias].target.split("."))
            if alias == key and target[0] != name:
                continue
            if target == (name, key):  # a short name that is the field's own, in its section
                break
            if place[0] == "policies":
                target = (*place, *target[1:])
            yield _Found(alias, ".".join((*place, key)), section.pop(key), target)
            break


def _take_nested(mapping: Plain, prefix: str) -> Iterator[_Found]:
    for key in list(mapping):
        path = f"{prefix}.{key}"
        if path in ALIASES:
            yield _Found(path, path, mapping.pop(key), tuple(ALIASES[path].target.split(".")))
        elif isinstance(mapping[key], dict):
            taken = list(_take_nested(mapping[key], path))
            yield from taken
            if taken and not mapping[key]:
                del mapping[key]


def _put(result: Translated, item: _Found, path: tuple[str, ...], value: Any) -> None:
    node, target = result.data, ".".join(path)
    for part in path[:-1]:
        child = node.get(part)
        if part == "policy" and isinstance(child, str):
            child = {"name": child}
        if child is None:
            child = {}
        if not isinstance(child, dict):
            raise OppoError(
                f"{part} is {show_value(child)} but must be a mapping, since {item.given} belongs there"
            )
        node[part] = child
        node = child
    last = path[-1]
    if last in node and (type(node[last]), node[last]) != (type(value), value):
        also = f" (given as {result.given_as[target]})" if target in result.given_as else ""
        other = (
            values.of_an_update(item.given, item.value, node[last]) if target == "rollout_batch_size" else ""
        )
        raise OppoError(
            f"{item.given}: {show_value(item.value)} (= {target}: {show_value(value)}) disagrees with "
            f"{target}: {show_value(node[last])}{also}: keep one{f'; {other}' if other else ''}"
        )
    node[last] = value
    result.given_as.setdefault(target, item.given)
    result.sentences.append(
        f"{item.given}: {show_value(item.value)} was read as {target}: {show_value(value)}"
    )
