"""What is searched: policies, and for each its knobs with ranges that follow from the scenario."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from oppo_sim.errors import OppoError
from oppo_sim.policies.controllers import ChunkControl, DeltaControl
from oppo_sim.policies.interface import Batch, Policy
from oppo_sim.policies.registry import SHIPPED, make_policy
from oppo_sim.policies.settings import overcommit_rollouts
from oppo_sim.scenario.aliases import ALIASES
from oppo_sim.scenario.build import policy_settings_of
from oppo_sim.scenario.load import scenario_from_plain
from oppo_sim.scenario.schema import Scenario
from oppo_sim.scenario.yaml_text import show_value
from oppo_sim.sweep.axes import grid_axis, sampled_axis, split_assignment

POLICY = "policy."
SMALLEST_CHUNK = 32
"""Tokens; below it every piece costs more than it hides under any cost model that is shipped."""
DEFERRALS: tuple[Any, ...] = (None, 1, 2, 3, 4, 5, 6, 8)
SYNCHRONOUS = (
    "sequential",
    "rollout-overlap",
    "intra",
    "inter",
    "oppo",
    "partial-rollout",
    "april",
    "tail-batching",
)
"""Searched by default. ``oracle`` is a bound and never recommended."""

Kind = Literal["int", "float", "choice"]


@dataclass(frozen=True)
class Knob:
    """A scenario field and the values that it may take."""

    field: str
    """Dotted: ``policy.chunk_size``, ``rollout.num_replicas``."""
    kind: Kind
    low: float = 0
    high: float = 0
    """Inclusive."""
    log: bool = False
    step: int = 1
    """Of whole numbers, from ``low`` on."""
    choices: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        if self.kind == "choice":
            if not self.choices:
                raise OppoError(f"{self.field} has no values to choose from: name at least one")
        elif self.low > self.high:
            raise OppoError(
                f"the range of {self.field} begins at {self.low:g}, above its end {self.high:g}: swap them"
            )
        elif self.log and self.low <= 0:
            raise OppoError(
                f"the range of {self.field} is logarithmic and begins at {self.low:g}: begin above 0, or"
                " leave out :log"
            )

    @property
    def size(self) -> float:
        """How many values; infinite for a real number."""
        if self.kind == "choice":
            return len(self.choices)
        if self.kind == "float":
            return math.inf if self.high > self.low else 1
        return (int(self.high) - int(self.low)) // self.step + 1

    def nearest(self, value: float) -> Any:
        """The value of a range that is nearest to a number."""
        held = min(max(value, self.low), self.high)
        if self.kind == "float":
            return float(held)
        last = int(self.low) + (int(self.size) - 1) * self.step
        return min(int(self.low) + round((held - self.low) / self.step) * self.step, last)

    def grid(self, count: int, around: Any) -> list[Any]:
        """About ``count`` values over the whole range and the neighbours of ``around``, which is among them;
        all of a small range."""
        if self.kind == "choice":
            return list(self.choices)
        if self.size <= count:
            return (
                [self.nearest(self.low + i * self.step) for i in range(int(self.size))]
                if self.kind == "int"
                else [around]
            )
        values = {self.nearest(self._between(i / (count - 1))) for i in range(count)} | {around}
        place = self._share(around)
        values |= {
            self.nearest(self._between(min(1.0, max(0.0, place + side * 0.5 / (count - 1)))))
            for side in (-1, 1)
        }
        return sorted(values)

    def moved(self, value: Any, share: float) -> Any:
        """The value so far along the range (−1 to 1) from another, held at its ends; a choice moves to a
        neighbouring one, and around."""
        if self.kind == "choice":
            place = next(
                (i for i, choice in enumerate(self.choices) if json.dumps(choice) == json.dumps(value)), 0
            )
            step = max(1, round(abs(share) * (len(self.choices) - 1)))
            return self.choices[(place + (step if share > 0 else -step)) % len(self.choices)]
        moved = self.nearest(self._between(min(1.0, max(0.0, self._share(value) + share))))
        if moved == value and self.kind == "int":
            return self.nearest(value + (self.step if share > 0 else -self.step))
        return moved

    def at_end(self, value: Any) -> bool:
        """The value is the first or last of a range with more than two values."""
        return (
            self.kind != "choice"
            and self.size > 2
            and value in (self.nearest(self.low), self.nearest(self.high))
        )

    def _between(self, share: float) -> float:
        if self.log:
            return math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        return self.low + share * (self.high - self.low)

    def _share(self, value: float) -> float:
        if self.high == self.low:
            return 0.0
        if self.log:
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)

    def described(self) -> dict[str, Any]:
        """For the record of a search."""
        if self.kind == "choice":
            return {"field": self.field, "choices": list(self.choices)}
        low, high = (int(self.low), int(self.high)) if self.kind == "int" else (self.low, self.high)
        return {
            "field": self.field,
            "low": low,
            "high": high,
            "log": self.log,
            **({"step": self.step} if self.step > 1 else {}),
        }


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

    def said(self) -> str:
        """``oppo, chunk_size 256, overcommit 8``."""
        return ", ".join(
            (self.policy, *(f"{field.removeprefix(POLICY)} {_said(value)}" for field, value in self.values))
        )


@dataclass(frozen=True)
class Space:
    """Policies and their knobs. ``base`` has the settings that no knob changes."""

    knobs: Mapping[str, tuple[Knob, ...]]
    base: Mapping[str, Mapping[str, Any]]
    starts: Mapping[str, Setting]
    """Each policy as the scenario would run it, drawn into the ranges."""
    left_out: Mapping[str, str]
    """Policies that cannot take part, and why."""

    @property
    def policies(self) -> tuple[str, ...]:
        return tuple(self.knobs)

    def size(self, policy: str) -> float:
        """How many settings of a policy there are."""
        return math.prod(knob.size for knob in self.knobs[policy])

    def settings(self, setting: Setting) -> dict[str, Any]:
        """All settings of the policy at a point."""
        given = {
            field.removeprefix(POLICY): value for field, value in setting.values if field.startswith(POLICY)
        }
        return {**self.base[setting.policy], **given}

    def described(self) -> dict[str, Any]:
        """For the record of a search."""
        return {policy: [knob.described() for knob in knobs] for policy, knobs in self.knobs.items()}


def machine_overrides(setting: Setting) -> tuple[tuple[str, Any], ...]:
    """The fields of a point outside ``policy``."""
    return tuple((field, value) for field, value in setting.values if not field.startswith(POLICY))


def parse_knob(text: str) -> Knob:
    """``FIELD=LOW..HIGH[:log]``, ``FIELD=A,B,C`` or one value, which pins the field. Raises OppoError for
    anything else."""
    field, values = split_assignment(text, "--space")
    alias = ALIASES.get(field)
    if alias is not None and alias.convert is None:
        field = alias.target
    if ".." not in values:
        return Knob(field, "choice", choices=grid_axis(field, values).values)
    axis = sampled_axis(field, values)
    if axis.choices:
        return Knob(field, "choice", choices=axis.choices)
    if axis.integer:
        return Knob(field, "int", int(axis.low), int(axis.high), axis.log)
    return Knob(field, "float", axis.low, axis.high, axis.log)


def build_space(
    scenario: Scenario, policies: Sequence[str] | None, changed: Sequence[Knob], max_deferrals: int | None
) -> Space:
    """The space of a scenario.

    Args:
        policies: those to search; None: the synchronous shipped ones that the scenario can run, and its own
            policy.
        changed: knobs that replace the default of their field, or are added.
        max_deferrals: bound that a policy must be able to keep; those that cannot are left out.

    Raises OppoError where nothing is left to search, for a policy that cannot run and was asked for, and for
    a knob that no policy has.
    """
    if policies is not None and not policies:
        raise OppoError("there are no policies to search: name at least one")
    fields = [knob.field for knob in changed]
    for field in fields:
        if fields.count(field) > 1:
            raise OppoError(f"the range of {field} is given twice: keep one")
    asked = policies is not None
    own = scenario.policy.name
    names = list(dict.fromkeys(policies if policies is not None else (*SYNCHRONOUS, own)))
    machine = [knob for knob in changed if not knob.field.startswith(POLICY)]
    for knob in machine:
        _check_machine_knob(scenario, knob)
    knobs: dict[str, tuple[Knob, ...]] = {}
    base: dict[str, Mapping[str, Any]] = {}
    starts: dict[str, Setting] = {}
    left_out: dict[str, str] = {}
    for name in names:
        reason = _why_not(scenario, name, max_deferrals)
        if reason is not None:
            if asked:
                raise OppoError(f"policy '{name}' cannot be tuned here: {reason}")
            left_out[name] = reason
            continue
        settings = policy_settings_of(scenario, name)
        own_knobs = _knobs_of(scenario, name, settings, changed, max_deferrals)
        knobs[name] = (*own_knobs, *machine)
        base[name] = settings
        starts[name] = Setting(
            name, tuple((knob.field, _start_value(scenario, name, settings, knob)) for knob in knobs[name])
        )
    if not knobs:
        raise OppoError(
            "no policy is left to search: " + "; ".join(f"{name}: {why}" for name, why in left_out.items())
        )
    used = {knob.field for each in knobs.values() for knob in each}
    for knob in changed:
        if knob.field not in used:
            raise OppoError(
                f"none of the policies {', '.join(knobs)} has a setting {knob.field}: name another field, or"
                " other policies"
            )
    return Space(knobs, base, starts, left_out)


# ---- inside ------------------------------------------------------------------------------------------------


def _built(scenario: Scenario, name: str, settings: Mapping[str, Any]) -> Policy:
    return make_policy(
        name, Batch(scenario.rollout_batch_size, scenario.group_size), settings, scenario.base_dir
    )


def _why_not(scenario: Scenario, name: str, max_deferrals: int | None) -> str | None:
    if name in SHIPPED and name == "oracle":
        return (
            "it knows the lengths beforehand and is a bound, never a recommendation; compare with it by 'oppo"
            " compare'"
        )
    policy = _built(scenario, name, policy_settings_of(scenario, name))
    if policy.oracle:
        return "it is an oracle: a bound, never a recommendation"
    if policy.schedule != "synchronous":
        if scenario.placement.training == "rollout":
            return "it generates during training, which needs placement.training: separate"
        if scenario.rollout.batching == "static":
            return "it needs rollout.batching: continuous"
    if max_deferrals is not None and not _keeps_deferrals(name, policy):
        return (
            f"it carries unfinished rollouts and has no max_deferrals, so the bound of {max_deferrals} cannot"
            " be kept"
        )
    return None


def _keeps_deferrals(name: str, policy: Policy) -> bool:
    if name in ("sequential", "intra", "rollout-overlap", "one-step-off", "tail-batching"):
        return True  # they defer nothing: what is not trained in its step is trained in the next, or dropped
    if name in SHIPPED:
        return "max_deferrals" in SHIPPED[name].settings.model_fields
    return policy.schedule == "synchronous"


def _knobs_of(
    scenario: Scenario,
    name: str,
    settings: Mapping[str, Any],
    changed: Sequence[Knob],
    max_deferrals: int | None,
) -> tuple[Knob, ...]:
    defaults = {knob.field: knob for knob in default_knobs(scenario, name, max_deferrals)}
    for knob in changed:
        if not knob.field.startswith(POLICY):
            continue
        if knob.field == "policy.name":
            raise OppoError("the policies to search are named by --policies, not by a range of policy.name")
        key = knob.field.removeprefix(POLICY)
        if not _has_setting(scenario, name, settings, key) or (
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


def _has_setting(scenario: Scenario, name: str, settings: Mapping[str, Any], key: str) -> bool:
    if name in SHIPPED:
        return key in SHIPPED[name].settings.model_fields
    return hasattr(_built(scenario, name, settings), key)


def _chunks_idle(scenario: Scenario, name: str, settings: Mapping[str, Any], changed: Sequence[Knob]) -> bool:
    """A chunk size would change nothing: pieces are not streamed, and there are no rounds."""
    if {"policy.stop_check", "policy.score_granularity"} & {
        knob.field for knob in changed
    } or name not in SHIPPED:
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
        scenario_from_plain(
            plain, [f"{knob.field}={show_value(value, 1000)}"], where="--space", base_dir=scenario.base_dir
        )


def default_knobs(scenario: Scenario, name: str, max_deferrals: int | None = None) -> tuple[Knob, ...]:
    """Knobs of a shipped policy and their ranges in a scenario; none for a policy of one's own."""
    batch, group, longest = scenario.rollout_batch_size, scenario.group_size, scenario.max_response_length
    shortest = min(SMALLEST_CHUNK, max(1, longest // 4))
    chunk = Knob("policy.chunk_size", "int", shortest, longest, log=True)
    rounds = policy_settings_of(scenario, name).get("stop_check") == "chunk" if name in SHIPPED else False
    deferrals = (
        Knob("policy.max_deferrals", "choice", choices=DEFERRALS)
        if max_deferrals is None
        else Knob("policy.max_deferrals", "int", 0, max_deferrals)
    )
    carried = (Knob("policy.overcommit", "int", 0, batch, step=group), deferrals)
    known: dict[str, tuple[Knob, ...]] = {
        "sequential": (),
        "rollout-overlap": (chunk,) if rounds else (),
        "intra": (chunk,),
        "inter": (*((chunk,) if rounds else ()), *carried),
        "oppo": (chunk, *carried),
        "partial-rollout": (Knob("policy.token_budget", "int", shortest, longest, log=True), *carried),
        "april": (
            Knob("policy.overcommit", "int", _groups(batch / 2, group), 2 * batch, step=group),
            deferrals,
        ),
        "tail-batching": (Knob("policy.over_issue", "float", 1.0, 2.0), *((chunk,) if rounds else ())),
        "async": (Knob("policy.max_staleness", "int", 0, 8),),
    }
    return known.get(name, ())


def _groups(rollouts: float, group: int) -> int:
    return -int(-rollouts // group) * group


def _start_value(scenario: Scenario, name: str, settings: Mapping[str, Any], knob: Knob) -> Any:
    """What the scenario would take, or the nearest value of the knob; the middle of the range where that is
    no number."""
    value = (
        _machine_value(scenario, knob.field)
        if not knob.field.startswith(POLICY)
        else _setting_value(scenario, name, settings, knob)
    )
    if knob.kind == "choice":
        return (
            value
            if any(value == choice and type(value) is type(choice) for choice in knob.choices)
            else knob.choices[0]
        )
    if isinstance(value, bool) or not isinstance(value, int | float):
        value = math.sqrt(knob.low * knob.high) if knob.log else (knob.low + knob.high) / 2
    return knob.nearest(value)


def _machine_value(scenario: Scenario, field: str) -> Any:
    node: Any = scenario.to_plain()
    for part in field.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node


def _setting_value(scenario: Scenario, name: str, settings: Mapping[str, Any], knob: Knob) -> Any:
    key = knob.field.removeprefix(POLICY)
    if name not in SHIPPED:
        return getattr(_built(scenario, name, settings), key, None)
    checked = SHIPPED[name].settings.model_validate_json(json.dumps(dict(settings)), strict=True)
    value = getattr(checked, key)
    batch = Batch(scenario.rollout_batch_size, scenario.group_size)
    if isinstance(value, DeltaControl):
        return batch.whole_groups(batch.rollout_batch_size / 16)  # half of the controller's own default bound
    if isinstance(value, ChunkControl):
        return sorted(value.candidates)[len(value.candidates) // 2]
    return overcommit_rollouts(value, batch) if key == "overcommit" else value


def _said(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict) and "control" in value:
        return f"controlled ({value['control']})"
    return value if isinstance(value, str) else show_value(value)
