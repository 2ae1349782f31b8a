"""What is searched: policies, and for each its knobs with ranges that follow from the scenario."""

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

from oppo_sim.errors import OppoError, check_once
from oppo_sim.policies.chunk_control import ChunkControl
from oppo_sim.policies.delta_control import DeltaControl
from oppo_sim.policies.interface import Batch, Policy
from oppo_sim.policies.knobs import Knob
from oppo_sim.policies.refill import overcommit_rollouts
from oppo_sim.policies.registry import SHIPPED, check_settings, make_policy, policy_class
from oppo_sim.report.labels import SHORT_DIGITS, value_label
from oppo_sim.scenario.aliases import ALIASES
from oppo_sim.scenario.build import policy_settings_of
from oppo_sim.scenario.cluster import AUTO, SPLIT_FIELD, Split
from oppo_sim.scenario.load import scenario_from_plain
from oppo_sim.scenario.schema import Scenario
from oppo_sim.scenario.splits import possible_splits
from oppo_sim.scenario.suggest import likely_setting
from oppo_sim.scenario.yaml_text import show_value
from oppo_sim.sweep.axes import grid_axis, sampled_axis, split_assignment
from oppo_sim.tune.frameworks.catalog import Framework

POLICY = "policy."
DEFERRALS = "policy.max_deferrals"


@dataclass(frozen=True, eq=False)
class Setting:
    """One point of the space. One rollout (1) is not one batch (1.0), and values may be mappings: equality is
    that of the JSON."""

    policy: str
    values: tuple[tuple[str, Any], ...] = ()
    """(field, value) of every knob, in the order of the policy's knobs."""

    @cached_property
    def key(self) -> str:
        """Canonical JSON."""
        return json.dumps([self.policy, self.values], sort_keys=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Setting) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def knobs(self) -> dict[str, Any]:
        """Field to value."""
        return dict(self.values)

    def replaced(self, **fields: Any) -> "Setting":
        """The same with some values changed (``replaced(**{"policy.chunk_size": 64})``)."""
        return Setting(self.policy, tuple((field, fields.get(field, value)) for field, value in self.values))

    @property
    def label(self) -> str:
        """``oppo, chunk_size 256, overcommit 8``, for reading: numbers are rounded."""
        return self.named({})

    def named(self, names: Mapping[str, str]) -> str:
        """The same, with a policy as ``names`` has it."""
        values = (f"{field.removeprefix(POLICY)} {_value_text(value)}" for field, value in self.values)
        return ", ".join((names.get(self.policy, self.policy), *values))


@dataclass(frozen=True)
class Space:
    """Policies and their knobs. ``base`` has the settings that no knob changes."""

    knobs: Mapping[str, tuple[Knob, ...]]
    base: Mapping[str, Mapping[str, Any]]
    starts: Mapping[str, Setting]
    """Each policy as the scenario would run it, drawn into the ranges."""
    left_out: Mapping[str, str]
    """Policies that cannot take part, and why."""
    splits: str = ""
    """Which splits of the GPUs there are and how many were left out, where all are searched."""

    @property
    def policies(self) -> tuple[str, ...]:
        return tuple(self.knobs)

    @property
    def fields(self) -> frozenset[str]:
        """Of the scenario, which are searched."""
        return frozenset(knob.field for knobs in self.knobs.values() for knob in knobs)

    def size(self, policy: str) -> float:
        """How many settings of a policy there are."""
        return math.prod(knob.size for knob in self.knobs[policy])

    def settings(self, setting: Setting) -> dict[str, Any]:
        """All settings of the policy at a point."""
        own = [(field, value) for field, value in setting.values if field.startswith(POLICY)]
        return {**self.base[setting.policy], **{field.removeprefix(POLICY): value for field, value in own}}

    def described(self) -> dict[str, Any]:
        """For the record of a search."""
        return {policy: [knob.described() for knob in knobs] for policy, knobs in self.knobs.items()}


def machine_overrides(setting: Setting) -> tuple[tuple[str, Any], ...]:
    """The fields of a point outside ``policy``."""
    return tuple((field, value) for field, value in setting.values if not field.startswith(POLICY))


def parse_knob(text: str) -> Knob:
    """``FIELD=LOW..HIGH[:log]``, ``FIELD=A,B,C`` or one value, which pins it. Raises OppoError for others."""
    return knob_of(*split_assignment(text, "--space"))


def knob_of(field: str, values: Any) -> Knob:
    """Of a field (or a framework's name for it) and its range as ``parse_knob`` takes it, a list of choices,
    or one value. Raises OppoError for others."""
    alias = ALIASES.get(field)
    if alias is not None and alias.convert is None:
        field = alias.target
    if not (isinstance(values, str) and ".." in values):
        return Knob(field, "choice", choices=grid_axis(field, values).values)
    axis = sampled_axis(field, values)
    if axis.choices:
        return Knob(field, "choice", choices=axis.choices)
    if axis.integer:
        return Knob(field, "int", int(axis.low), int(axis.high), axis.log)
    return Knob(field, "float", axis.low, axis.high, axis.log)


def build_space(
    scenario: Scenario,
    policies: Sequence[str] | None,
    changed: Sequence[Knob],
    max_deferrals: int | None,
    framework: Framework | None = None,
) -> Space:
    """The space of a scenario.

    Args:
        policies: those to search; None: the synchronous shipped ones that the scenario can run, and its own
            policy.
        changed: knobs that replace the default of their field, or are added.
        max_deferrals: bound that a policy must be able to keep; those that cannot are left out.
        framework: leave out what it cannot do: policies, and values of their knobs.

    Raises OppoError where nothing is left to search, for a policy that cannot run and was requested, and for
    a knob that no policy has.
    """
    changed, splits = _with_splits(scenario, changed, framework)
    if policies is not None and not policies:
        raise OppoError("there are no policies to search: name at least one")
    fields = [knob.field for knob in changed]
    for field in fields:
        if fields.count(field) > 1:
            raise OppoError(f"the range of {field} is given twice: keep one")
    if policies is not None:
        check_once("policies", policies)
    default = (*_searched_by_default(), scenario.policy.name) if framework is None else framework.policies
    names = dict.fromkeys(default if policies is None else policies)
    machine = [knob for knob in changed if not knob.field.startswith(POLICY)]
    for knob in machine:
        _check_machine_knob(scenario, knob)
    knobs: dict[str, tuple[Knob, ...]] = {}
    base: dict[str, Mapping[str, Any]] = {}
    starts: dict[str, Setting] = {}
    left_out: dict[str, str] = {}
    for name in names:
        own_machine = [_fitting(scenario, name, knob) for knob in machine]
        reason = _why_not(scenario, name, max_deferrals, own_machine)
        if reason is None and framework is not None:
            reason = _beyond(scenario, name, max_deferrals, framework)
        if reason is not None:
            if policies is not None:
                raise OppoError(f"policy '{name}' cannot be tuned here: {reason}")
            left_out[name] = reason
            continue
        settings = policy_settings_of(scenario, name)
        own_knobs = _knobs_of(scenario, name, settings, changed, max_deferrals)
        if framework is not None:
            own_knobs = tuple(_within(framework, knob, changed) for knob in own_knobs)
        knobs[name] = (*own_knobs, *own_machine)
        base[name] = settings
        values = ((knob.field, _start_value(scenario, name, settings, knob)) for knob in knobs[name])
        starts[name] = Setting(name, tuple(values))
    if not knobs:
        reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())
        raise OppoError(f"no policy is left to search: {reasons}")
    _check_used(scenario, knobs, changed)
    return Space(knobs, base, starts, left_out, splits)


# ---- inside ------------------------------------------------------------------------------------------------


def _check_used(scenario: Scenario, knobs: Mapping[str, Sequence[Knob]], changed: Sequence[Knob]) -> None:
    """Refuse a knob that none of the policies has. Raises OppoError."""
    used = {knob.field for each in knobs.values() for knob in each}
    for knob in changed:
        if knob.field not in used:
            hint = likely_setting(
                knob.field, chain.from_iterable(_setting_names(scenario, name) for name in knobs)
            )
            raise OppoError(
                f"none of the policies {', '.join(knobs)} has a setting {knob.field}"
                f"{hint or ': name another field, or other policies'}"
            )


def _with_splits(
    scenario: Scenario, knobs: Sequence[Knob], framework: Framework | None
) -> tuple[list[Knob], str]:
    """``cluster.split=auto`` as a choice between all splits that are possible, and that the framework can be
    told, and what was left out."""
    filled, sentence = list(knobs), ""
    for number, knob in enumerate(knobs):
        if knob.field == SPLIT_FIELD and knob.choices == (AUTO,):
            splits = possible_splits(scenario)
            counted = () if framework is None else framework.counts_nodes
            told = tuple(each for each in splits.possible if _in_whole_nodes(scenario, each, counted))
            sentence = splits.sentence
            if framework is not None and len(told) < len(splits.possible):
                rest = f"{len(splits.possible) - len(told)} of the {len(splits.possible)} that can run"
                sentence += f"; {rest} are no whole nodes, which {framework.name} counts"
            filled[number] = Knob(SPLIT_FIELD, "choice", choices=told or splits.possible)
    return filled, sentence


def _in_whole_nodes(scenario: Scenario, text: str, parts: Collection[str]) -> bool:
    """Whether ``parts`` of a split whose training is apart are whole nodes, or in one."""
    split, node = Split.parse(text), scenario.cluster.num_gpus_per_node
    if node is None or not isinstance(split.training, int):
        return True
    sizes = {"rollout": split.rollout_gpus, "training": split.training}
    return all(sizes[part] <= node or sizes[part] % node == 0 for part in parts)


def _built(scenario: Scenario, name: str, settings: Mapping[str, Any]) -> Policy:
    batch = Batch(scenario.rollout_batch_size, scenario.group_size)
    return make_policy(name, batch, settings, scenario.base_dir)


def _searched_by_default() -> list[str]:
    return [name for name, each in SHIPPED.items() if each.schedule == "synchronous" and not each.oracle]


def _fitting(scenario: Scenario, name: str, knob: Knob) -> Knob:
    """A knob of the machine with the values under which a policy can run: of splits, for one that generates
    during training, those that train apart, if there are any."""
    if knob.field != SPLIT_FIELD or knob.kind != "choice":
        return knob
    policy = _built(scenario, name, policy_settings_of(scenario, name))
    apart = tuple(choice for choice in knob.choices if _trains_apart(choice))
    return replace(knob, choices=apart) if policy.schedule != "synchronous" and apart else knob


def _trains_apart(split: Any) -> bool:
    return isinstance(split, str) and isinstance(Split.parse(split).training, int)


def _why_not(scenario: Scenario, name: str, max_deferrals: int | None, machine: Sequence[Knob]) -> str | None:
    if policy_class(name, scenario.base_dir).oracle:
        return (
            "it knows the lengths beforehand and is a bound, never a recommendation; compare with it by 'oppo"
            " compare'"
        )
    policy = _built(scenario, name, policy_settings_of(scenario, name))
    if policy.schedule != "synchronous":
        splits = [choice for knob in machine if knob.field == SPLIT_FIELD for choice in knob.choices]
        apart = all(map(_trains_apart, splits)) if splits else scenario.placement.training == "separate"
        if not apart:
            return (
                "it generates during training, which needs placement.training: separate, or a search over"
                " --space cluster.split=auto"
            )
        if scenario.rollout.batching == "static":
            return "it needs rollout.batching: continuous"
    if max_deferrals is not None and policy.carries and not _bounds_deferrals(scenario, policy):
        return (
            f"it carries unfinished rollouts and has no max_deferrals, so the bound of {max_deferrals} cannot"
            " be kept"
        )
    return None


def _beyond(scenario: Scenario, name: str, max_deferrals: int | None, framework: Framework) -> str | None:
    """What of a policy a framework cannot do; None: it can do it."""
    if name not in framework.policies:
        return f"{framework.name} cannot do it; it can do {', '.join(framework.policies)}"
    policy = _built(scenario, name, policy_settings_of(scenario, name))
    if policy.stop_check == "chunk":
        return f"{framework.name} stops a response at its end, not between rounds: set stop_check to token"
    if policy.score_granularity == "chunk":
        return f"{framework.name} scores whole responses only: set its score_granularity to rollout or batch"
    if policy.schedule == "synchronous" and policy.score_granularity == "rollout" != framework.scores:
        return f"{framework.name} scores whole batches only: set its score_granularity to batch"
    if policy.carries and max_deferrals is not None and not framework.bounds_deferrals:
        return f"{framework.name} cannot bound how often a rollout is deferred"
    cleared = scenario.rollout.clear_kv_cache_on_weight_sync
    if policy.carries and framework.keeps_kv is not None and framework.keeps_kv is cleared:
        how = "keeps KV over an update" if cleared else "computes KV anew after an update"
        return (
            f"{framework.name} {how}: set rollout.clear_kv_cache_on_weight_sync to {str(not cleared).lower()}"
        )
    return None


def _within(framework: Framework, knob: Knob, changed: Sequence[Knob]) -> Knob:
    """A knob without the values that a framework cannot take. Raises OppoError where those were requested."""
    asked = any(each.field == knob.field for each in changed)
    if knob.field == DEFERRALS and not framework.bounds_deferrals:
        if asked and any(value is not None for value in _ends(knob)):
            raise OppoError(
                f"{framework.name} cannot bound how often a rollout is deferred: leave out {DEFERRALS}"
            )
        return Knob(DEFERRALS, "choice", choices=(None,))
    if knob.field == "policy.max_staleness" and knob.kind == "int" and knob.low < framework.least_staleness:
        if asked:
            raise OppoError(
                f"the least bound on staleness of {framework.name} is {framework.least_staleness}: begin"
                f" {knob.field} there"
            )
        return replace(knob, low=framework.least_staleness)
    return knob


def _bounds_deferrals(scenario: Scenario, policy: Policy) -> bool:
    return policy.schedule == "synchronous" and _has_setting(scenario, policy.name, "max_deferrals")


def _knobs_of(
    scenario: Scenario,
    name: str,
    settings: Mapping[str, Any],
    changed: Sequence[Knob],
    max_deferrals: int | None,
) -> tuple[Knob, ...]:
    policy = _built(scenario, name, settings)
    own = policy.knobs(scenario.max_response_length)
    defaults = {POLICY + knob.field: replace(knob, field=POLICY + knob.field) for knob in own}
    if max_deferrals is not None and policy.carries:
        defaults[DEFERRALS] = Knob(DEFERRALS, "int", 0, max_deferrals)
    for knob in defaults.values():
        for value in _ends(knob):
            _built(scenario, name, {**settings, knob.field.removeprefix(POLICY): value})
    for knob in changed:
        if not knob.field.startswith(POLICY):
            continue
        if knob.field == "policy.name":
            raise OppoError("the policies to search are named by --policies, not by a range of policy.name")
        key = knob.field.removeprefix(POLICY)
        if not _has_setting(scenario, name, key) or (
            key == "chunk_size" and _chunks_idle(scenario, name, settings, changed)
        ):
            continue
        for value in _ends(knob):
            _built(scenario, name, {**settings, key: value})
        if (
            key == "max_deferrals"
            and max_deferrals is not None
            and any(value is None or value > max_deferrals for value in _ends(knob))
        ):
            raise OppoError(
                f"the range of policy.max_deferrals goes beyond --max-deferrals {max_deferrals}: lower it"
            )
        defaults[knob.field] = knob
    return tuple(defaults.values())


def _has_setting(scenario: Scenario, name: str, key: str) -> bool:
    found = policy_class(name, scenario.base_dir)
    return hasattr(found, key) if found.Settings is None else key in found.Settings.model_fields


def _setting_names(scenario: Scenario, name: str) -> Iterable[str]:
    return getattr(policy_class(name, scenario.base_dir).Settings, "model_fields", ())


def _chunks_idle(scenario: Scenario, name: str, settings: Mapping[str, Any], changed: Sequence[Knob]) -> bool:
    """A chunk size would change nothing: pieces are not streamed, and there are no rounds."""
    fields = {knob.field for knob in changed}
    if name not in SHIPPED or fields & {"policy.stop_check", "policy.score_granularity"}:
        return False
    policy = _built(scenario, name, settings)
    return policy.stop_check == "token" and policy.score_granularity != "chunk"


def _ends(knob: Knob) -> Iterable[Any]:
    return knob.choices if knob.kind == "choice" else (knob.nearest(knob.low), knob.nearest(knob.high))


def _check_machine_knob(scenario: Scenario, knob: Knob) -> None:
    if knob.field in ("seed", "steps", "warmup_steps", "policy", "policies", "name", "description", "format"):
        raise OppoError(
            f"{knob.field} is no knob of a training run: name a field such as policy.chunk_size or"
            " rollout.num_replicas"
        )
    plain = scenario.to_plain()
    for value in _ends(knob):
        override = f"{knob.field}={show_value(value, 1000)}"
        try:
            scenario_from_plain(
                plain, [override], where="--space", base_dir=scenario.base_dir, given_as=scenario.given_as
            )
        except OppoError as error:
            raise OppoError(str(error).replace("--set ", "--space ", 1)) from None


def _start_value(scenario: Scenario, name: str, settings: Mapping[str, Any], knob: Knob) -> Any:
    """The scenario's value, or the nearest of the knob; the middle of the range where that is no number."""
    if knob.field.startswith(POLICY):
        value = _setting_value(scenario, name, settings, knob)
    else:
        value = str(scenario.split) if knob.field == SPLIT_FIELD else _machine_value(scenario, knob.field)
    if knob.kind == "choice":
        there = any(value == choice and type(value) is type(choice) for choice in knob.choices)
        if not there and knob.field == SPLIT_FIELD:
            return min(knob.choices, key=lambda choice: _unevenness(scenario, choice))
        return value if there else knob.choices[0]
    if isinstance(value, bool) or not isinstance(value, int | float):
        value = math.sqrt(knob.low * knob.high) if knob.log else (knob.low + knob.high) / 2
    return knob.nearest(value)


def _unevenness(scenario: Scenario, choice: str) -> tuple[int, bool]:
    """How far a split is from half of the GPUs for training, and from the scenario's own degree."""
    split = Split.parse(choice)
    trained = split.training if isinstance(split.training, int) else split.rollout_gpus
    return abs(2 * trained - split.num_gpus), split.tensor_parallel != scenario.split.tensor_parallel


def _machine_value(scenario: Scenario, field: str) -> Any:
    node: Any = scenario.to_plain()
    for part in field.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node


def _setting_value(scenario: Scenario, name: str, settings: Mapping[str, Any], knob: Knob) -> Any:
    key = knob.field.removeprefix(POLICY)
    checked = check_settings(name, settings, scenario.base_dir)
    holder = _built(scenario, name, settings) if isinstance(checked, Mapping) else checked
    value = getattr(holder, key, None)
    batch = Batch(scenario.rollout_batch_size, scenario.group_size)
    if isinstance(value, DeltaControl):
        return batch.whole_groups(batch.rollout_batch_size / 16)  # half of the controller's own default bound
    if isinstance(value, ChunkControl):
        return sorted(value.candidates)[len(value.candidates) // 2]
    if key == "overcommit" and holder is checked and isinstance(value, int | float):
        return overcommit_rollouts(value, batch)
    return value


def _value_text(value: Any) -> str:
    return "none" if value is None else value_label(value, SHORT_DIGITS)
