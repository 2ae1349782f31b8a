"""From the values of a point to a run that can be made: checked by the same code as a scenario file."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from oppo_sim.comparison.plan import baseline_of
from oppo_sim.costs.context import CostContext
from oppo_sim.errors import OppoError
from oppo_sim.learning import ONE_STEP, Learning
from oppo_sim.policies.registry import BASELINE, SHIPPED
from oppo_sim.rewards import learning_of
from oppo_sim.runs.evaluate import checked_request
from oppo_sim.runs.machine import EXACT, MachineDraws, machine_of
from oppo_sim.runs.placement import placement_factor
from oppo_sim.runs.request import RunRequest
from oppo_sim.scenario.aliases import ALIASES
from oppo_sim.scenario.build import cost_context, policy_settings_of
from oppo_sim.scenario.cluster import AUTO, SPLIT_NAMES, Split
from oppo_sim.scenario.json_schema import model_schema
from oppo_sim.scenario.load import scenario_from_plain
from oppo_sim.scenario.problems import allowed_fields, unknown_field
from oppo_sim.scenario.schema import Scenario
from oppo_sim.scenario.splits import Splits, possible_splits
from oppo_sim.scenario.suggest import likely_elsewhere, of_other_policies
from oppo_sim.sweep.axes import Axis, GridAxis

POLICY_NAME = "policy.name"
_WHERE = "the point"

_NOT_SWEPT = {
    "format": "it is the version of the file format",
    "name": "it changes no result",
    "description": "it changes no result",
    "published": "it changes no result",
    "real": "it is for real runs",
    "policy": "vary policy.name, or settings such as policy.chunk_size",
}


@dataclass(frozen=True)
class Resolved:
    """A point that can run."""

    request: RunRequest
    """Under the scenario's seed; ``request.at(seed)`` for others."""
    baseline: RunRequest
    """The sequential baseline that stops as the point's policy does, on the same machine and trace."""
    baseline_label: str
    warnings: tuple[str, ...]
    bound_only: bool = False
    """Its policy knows what no real run can: in the tables, never the best."""
    machine: MachineDraws = EXACT
    """What is unknown about its machine."""
    learning: Learning = ONE_STEP
    """How far it has to go to the target reward."""
    factor: float = 1.0
    """Of ``placement`` on all its seconds, where the scenario is itself a draw of the machine."""

    def on_draw(self, number: int, seed: int) -> tuple[RunRequest, RunRequest]:
        """Run and baseline on a draw of the machine; as given where nothing is unknown."""
        run, baseline = self.request.at(seed), self.baseline.at(seed)
        if not self.machine.draws:
            return run, baseline
        terms = self.machine.draws[number % len(self.machine.draws)]
        return run.on(terms), baseline.on(terms)


class Resolver:
    """Resolves the points of one sweep; keeps what they share while it does."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        steps: int | None,
        seeds: int = 1,
        draws: int = 0,
        drawn: int | None = None,
    ) -> None:
        """``steps``: training steps of every run; None: as each point's scenario says. ``seeds``: how many
        each point will have; ``draws``: of its machine, at most; ``drawn``: the scenario is itself this draw
        of a machine, exact. Its costs were given for its own split of the GPUs."""
        self._base = scenario
        self._plain = scenario.to_plain()
        self._steps = steps
        self._seeds = seeds
        self._draws = draws
        self._drawn = drawn
        self._machines: dict[tuple[str, CostContext, Split], MachineDraws] = {}
        self._switched: dict[str, tuple[dict[str, Any], Mapping[str, str]]] = {}

    def resolve(self, values: Mapping[str, Any]) -> Resolved:
        """Check a point: fields and values, trace, costs, memory, the policy and its settings. Raises
        OppoError for what cannot run."""
        scenario = self._scenario(values)
        if scenario.trace.sampling == "in_order" and self._seeds > 1:
            raise OppoError(
                "trace.sampling in_order replays the same rollouts under every seed: use seeds 1, or sampling"
                " resample"
            )
        request, setup = checked_request(scenario, steps=self._steps)
        label, settings = baseline_of(scenario, request.policy)
        baseline = replace(request, policy=BASELINE, settings=json.dumps(settings, sort_keys=True), source="")
        oracle, machine = setup.policy_factory().oracle, self._machine(scenario)
        learning = learning_of(scenario.rewards, setup.steps)
        factor = 1.0
        if self._drawn is not None:
            factor = placement_factor(scenario.split, self._base.split, self._drawn, scenario.seed)
        return Resolved(request, baseline, label, setup.warnings, oracle, machine, learning, factor)

    def _machine(self, scenario: Scenario) -> MachineDraws:
        """Kept by what it depends on: most points of a sweep share it."""
        key = json.dumps(scenario.costs.to_plain()), cost_context(scenario), scenario.split
        if key not in self._machines:
            self._machines[key] = machine_of(scenario, self._draws, self._base.split)
        return self._machines[key]

    def _scenario(self, values: Mapping[str, Any]) -> Scenario:
        """The base scenario with the values in it.

        Another policy than the base's starts, as in a comparison, with the settings that both share and those
        that ``policies`` has for it.
        """
        if not values:
            return self._base
        general = {field: value for field, value in values.items() if not _of_policy(field)}
        own = {field: value for field, value in values.items() if _of_policy(field) and field != POLICY_NAME}
        name = values.get(POLICY_NAME, self._base.policy.name)
        key = json.dumps([general, name], sort_keys=True, default=str)
        if key not in self._switched:
            if len(self._switched) >= 64:
                self._switched.pop(next(iter(self._switched)))
            machine = self._checked(self._plain, self._base.given_as, general)
            self._switched[key] = self._under_policy(machine, name), machine.given_as
        return self._checked(*self._switched[key], own)

    def _under_policy(self, scenario: Scenario, name: Any) -> dict[str, Any]:
        data = scenario.to_plain()
        if name != scenario.policy.name:
            settings = policy_settings_of(scenario, name) if isinstance(name, str) else {}
            data["policy"] = {"name": name, **settings}
            data["policies"] = {other: given for other, given in data["policies"].items() if other != name}
        return data

    def _checked(
        self, data: dict[str, Any], given_as: Mapping[str, str], values: Mapping[str, Any]
    ) -> Scenario:
        # JSON is YAML: a value is read back as it is.
        overrides = [f"{field}={json.dumps(value, ensure_ascii=False)}" for field, value in values.items()]
        try:
            return scenario_from_plain(
                data, overrides, where=_WHERE, base_dir=self._base.base_dir, given_as=given_as
            )
        except OppoError as error:
            # The point's values stand beside the sentence wherever it is shown.
            sentence, together = (
                str(error),
                " ".join((_WHERE, "with", *(f"--set {text}" for text in overrides))),
            )
            for prefix in (*(f"--set {text}" for text in overrides), together, _WHERE):
                sentence = sentence.removeprefix(f"{prefix}: ")
            raise OppoError(sentence) from None


def with_splits(scenario: Scenario, axes: Sequence[GridAxis]) -> tuple[tuple[GridAxis, ...], Splits | None]:
    """The axes with every possible split for ``cluster.split=auto``, and what was looked at for it. Raises
    OppoError as ``possible_splits``."""
    found = None
    for axis in axes:
        if axis.field in SPLIT_NAMES and axis.values == (AUTO,):
            found = possible_splits(scenario)
    if found is None:
        return tuple(axes), None
    possible = found.possible
    return tuple(
        GridAxis(axis.field, possible) if axis.field in SPLIT_NAMES else axis for axis in axes
    ), found


def refuse_unknown(scenario: Scenario, axes: Sequence[Axis]) -> None:
    """Raise OppoError for a field that no scenario or policy of the sweep has, for one that may not be swept,
    and for one given twice."""
    fields = [axis.field for axis in axes]
    for field in fields:
        if fields.count(field) > 1:
            raise OppoError(f"{field} is varied twice: give it once, all values together")
        if field == "seed":
            raise OppoError(
                "seed is not varied as a field: every point runs under the same seeds, --seeds says how many"
            )
        if field in _NOT_SWEPT:
            raise OppoError(f"{field} cannot be varied: {_NOT_SWEPT[field]}")
        path = tuple(field.split("."))
        if field in ALIASES or (len(path) > 1 and path[-1] in ALIASES):
            continue
        if path[0] == "policy":
            _refuse_unknown_setting(path, _policies(scenario, axes))
        else:
            _refuse_unknown_path(path)


def _refuse_unknown_path(path: tuple[str, ...]) -> None:
    for depth, part in enumerate(path):
        names = allowed_fields(model_schema(), path[:depth], None)
        if not names:
            return  # free names, such as parameters of a distribution: each point is checked
        if part not in names:
            known = path[: depth + 1]
            raise OppoError(unknown_field(known, names, hint=likely_elsewhere(known, names)))


def _refuse_unknown_setting(path: tuple[str, ...], policies: Iterable[str]) -> None:
    models = [SHIPPED[policy].Settings if policy in SHIPPED else None for policy in policies]
    known: dict[str, None] = {"name": None}
    for model in models:
        if model is None:
            return  # a policy of a user's own is queried when it is built
        known.update(dict.fromkeys(model.model_fields))
    if path[1] not in known:
        named = list(policies)
        owner = f"policy '{named[0]}'" if len(named) == 1 else f"any of the policies {', '.join(named)}"
        hint = likely_elsewhere(path, list(known))
        if path[0] == "policy" and len(path) == 2:
            hint = hint or of_other_policies(str(path[1]))
        raise OppoError(unknown_field(path, list(known), owner, hint))


def _policies(scenario: Scenario, axes: Sequence[Axis]) -> list[str]:
    for axis in axes:
        if axis.field == POLICY_NAME:
            values = axis.values if isinstance(axis, GridAxis) else axis.choices
            return [str(value) for value in values]
    return [scenario.policy.name]


def _of_policy(field: str) -> bool:
    alias = ALIASES.get(field) or ALIASES.get(field.rpartition(".")[2])
    return field.startswith("policy.") or (alias is not None and alias.target.startswith("policy."))
