"""The worlds that a choice is held against: the scenario as it is, other traces, lengths that drift, costs
that are not known exactly. And runs of settings in them under seeds."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from oppo_sim.errors import OppoError, check_count
from oppo_sim.policies.registry import BASELINE
from oppo_sim.runs.evaluate import parts_of, scenario_of
from oppo_sim.runs.execute import Runner
from oppo_sim.runs.machine import machine_of, on_machine
from oppo_sim.runs.request import RunRequest, RunResult
from oppo_sim.runs.store import RunStore
from oppo_sim.scenario.build import Parts, build_trace
from oppo_sim.scenario.load import scenario_from_plain
from oppo_sim.scenario.schema import Scenario
from oppo_sim.sweep.resolve import POLICY_NAME, Resolved, Resolver
from oppo_sim.tune.space import Setting, machine_overrides

NOMINAL = "as given"
Totals = dict[str, float]


@dataclass(frozen=True)
class World:
    """A scenario that may turn out to be the true one."""

    name: str
    scenario: Scenario
    draw: int | None = None
    """Of the machine, counted from 0; None: it is none."""


@dataclass(frozen=True)
class WorldSpec:
    """Which worlds beside the scenario itself."""

    traces: tuple[str, ...] = ()
    """Shipped traces by name, or trace files."""
    drifts: tuple[float, ...] = ()
    """Factors by which all response lengths may grow in the course of training."""
    cost_worlds: int = 0
    """Draws of what is unknown about the machine (docs/sweep.md), the first so many."""
    cost_profiles: tuple[Path, ...] = field(default=())
    """Measured profiles that may replace the scenario's costs, such as resampled ones."""

    def __post_init__(self) -> None:
        check_count("cost_worlds", self.cost_worlds, 0, 1000)
        for factor in self.drifts:
            if not 0.01 <= factor <= 100 or factor == 1:
                raise OppoError(
                    f"drift {factor} is no change that could be simulated: give a factor on lengths from 0.01"
                    " to 100, not 1"
                )

    def described(self) -> dict[str, Any]:
        """For the record of a search."""
        return {
            "traces": list(self.traces),
            "drifts": list(self.drifts),
            "cost_worlds": self.cost_worlds,
            "cost_profiles": [path.name for path in self.cost_profiles],
        }


def build_worlds(scenario: Scenario, spec: WorldSpec) -> tuple[World, ...]:
    """The scenario first, then one world each.

    Raises OppoError for a trace or a profile that cannot be used, for two worlds of one name, and for draws
    of a machine of which nothing is unknown, or fewer are known.
    """
    worlds = [World(NOMINAL, scenario)]
    worlds += [World(f"trace {name}", _with_trace(scenario, name)) for name in spec.traces]
    worlds += [World(f"lengths × {factor:g}", _with_drift(scenario, factor)) for factor in spec.drifts]
    for path in spec.cost_profiles:
        costs = {"kind": "profile", "path": str(path.resolve())}
        worlds.append(World(f"costs of {path.stem}", _changed(scenario, {"costs": costs})))
    worlds += _drawn(scenario, spec.cost_worlds)
    names = [world.name for world in worlds]
    for name in names:
        if names.count(name) > 1:
            raise OppoError(f"the world '{name}' is there twice: name each trace, profile and drift once")
    return tuple(worlds)


class Need(NamedTuple):
    """A run that is wanted."""

    setting: Setting
    world: int
    seed: int


@dataclass(frozen=True)
class Baseline:
    """The sequential baseline that a policy is compared with, on the same machine."""

    request: RunRequest
    label: str
    factor: float
    """As of ``Resolved``."""


class Bench:
    """Simulates settings in worlds under seeds, each once: earlier runs come from the store."""

    def __init__(
        self, worlds: Sequence[World], resolvers: Sequence[Resolver], store: RunStore, runner: Runner
    ) -> None:
        """``resolvers``: one a world; they know the training steps of every run."""
        self.worlds = worlds
        self.on_run: Callable[[int, int], None] = lambda done, total: None
        """Called after every run that was simulated now: how many of those wanted together are done."""
        self.engines: dict[str, int] = {}
        """Engine → runs, earlier ones included."""
        self._store = store
        self._runner = runner
        self._resolvers = resolvers
        self._resolved: dict[tuple[int, Setting], Resolved | str] = {}
        self._counted: set[str] = set()

    def resolve(self, setting: Setting, world: int) -> Resolved:
        """A setting in a world, checked. Raises OppoError for what cannot run."""
        key = world, setting
        if key not in self._resolved:
            try:
                fields = {POLICY_NAME: setting.policy, **setting.knobs}
                self._resolved[key] = self._resolvers[world].resolve(fields)
            except OppoError as error:
                self._resolved[key] = str(error)
        found = self._resolved[key]
        if isinstance(found, str):
            raise OppoError(found)
        return found

    def parts(self, setting: Setting, world: int) -> Parts:
        """Costs, machine and trace of a setting in a world. Raises OppoError for what cannot run."""
        request = self.resolve(setting, world).request
        return parts_of(scenario_of(request), request)

    def scenario(self, setting: Setting, world: int = 0) -> Scenario:
        """A setting as a scenario, all settings of its policy in it. Raises OppoError for what cannot run."""
        own = self.worlds[world].scenario
        overrides = [
            f"{field}={json.dumps(value, ensure_ascii=False)}" for field, value in machine_overrides(setting)
        ]
        place: Any = {"where": own.source, "base_dir": own.base_dir}
        changed = scenario_from_plain(own.to_plain(), overrides, **place, given_as=own.given_as)
        plain = changed.to_plain()
        settings = json.loads(self.resolve(setting, world).request.settings)
        plain["policy"] = {"name": setting.policy, **settings}
        plain["policies"].pop(setting.policy, None)
        return scenario_from_plain(plain, **place)

    def run(self, needs: Sequence[Need]) -> list[RunResult]:
        """Results in the order of ``needs``; what cannot run has its sentence in ``error``."""
        requests: list[tuple[RunRequest, float] | str] = []
        for need in needs:
            try:
                resolved = self.resolve(need.setting, need.world)
                requests.append((resolved.request.at(need.seed), resolved.factor))
            except OppoError as error:
                requests.append(str(error))
        valid = [each[0] for each in requests if not isinstance(each, str)]
        done = {result.key: result for result in self.results(valid)}
        return [
            RunResult("", None, error=each) if isinstance(each, str) else done[each[0].key].slower(each[1])
            for each in requests
        ]

    def totals(self, setting: Setting, world: int, seeds: Sequence[int]) -> list[Totals]:
        """Totals of a setting, seed by seed. Raises OppoError for what cannot run."""
        return self.totals_of([Need(setting, world, seed) for seed in seeds])

    def totals_of(self, needs: Sequence[Need]) -> list[Totals]:
        """Totals in the order of ``needs``. Raises OppoError for what cannot run."""
        return [_totals(result) for result in self.run(needs)]

    def baseline(self, setting: Setting, world: int) -> Baseline:
        """Sequential, stopping as the setting's policy does, in the same world. Raises OppoError."""
        resolved = self.resolve(setting, world)
        return Baseline(resolved.baseline, resolved.baseline_label, resolved.factor)

    def baseline_totals(self, setting: Setting, world: int, seeds: Sequence[int]) -> list[Totals]:
        """Totals of that baseline, seed by seed. Raises OppoError for what cannot run."""
        base = self.baseline(setting, world)
        results = self.results([base.request.at(seed) for seed in seeds])
        return [_totals(result.slower(base.factor)) for result in results]

    def trains_all(self, setting: Setting, world: int, seeds: Sequence[int]) -> list[Totals]:
        """Of plain sequential on the setting's machine: it trains what it admits, whenever a step stops."""
        plain = Setting(BASELINE, machine_overrides(setting))
        return self.totals(plain, world, seeds)

    def on_draws(
        self, settings: Sequence[Setting], seeds: Sequence[int], count: int
    ) -> list[list[tuple[Totals, Totals]]]:
        """Runs and baselines of settings in the first world on ``count`` draws of the machine, each with one
        of the seeds in turn: a list a setting. Raises OppoError for what cannot run."""
        plans = [self.resolve(setting, 0) for setting in settings]
        # Draw by draw: what runs of one draw share is built once.
        rows = [[plan.on_draw(draw, seeds[draw % len(seeds)]) for plan in plans] for draw in range(count)]
        done = self.results([request for row in rows for pair in row for request in pair])
        by_key = {result.key: result for result in done}

        def totals(plan: Resolved, request: RunRequest, draw: int) -> Totals:
            return _totals(plan.machine.placed(by_key[request.key], draw))

        return [
            [
                (totals(plan, row[number][0], draw), totals(plan, row[number][1], draw))
                for draw, row in enumerate(rows)
            ]
            for number, plan in enumerate(plans)
        ]

    def results(self, requests: Sequence[RunRequest]) -> list[RunResult]:
        """Results in the order of ``requests``, each kept as it comes."""
        missing, done = len(self._store.missing(requests)), 0
        for finished in self._store.run(requests, self._runner):
            done += len(finished)
            self.on_run(done, missing)
        found = []
        for request in requests:
            result = self._store[request.key]
            if result.key not in self._counted and result.engine:
                self._counted.add(result.key)
                self.engines[result.engine] = self.engines.get(result.engine, 0) + 1
            found.append(result)
        return found


# ---- inside ------------------------------------------------------------------------------------------------


def _changed(scenario: Scenario, sections: dict[str, Any]) -> Scenario:
    plain = {**scenario.to_plain(), **sections}
    return scenario_from_plain(
        plain, where=scenario.source, base_dir=scenario.base_dir, given_as=scenario.given_as
    )


def _drawn(scenario: Scenario, count: int) -> list[World]:
    machine = machine_of(scenario, count)
    if len(machine.draws) < count:
        known = f"only {len(machine.draws)} draws are known" if machine.draws else machine.sentence
        raise OppoError(
            f"cost_worlds {count} asks for as many draws of the machine, but {known}: give costs.draws a file"
            " of them, or a smaller number"
        )
    return [
        World(f"machine {number + 1}: {terms}", on_machine(scenario, terms), number)
        for number, terms in enumerate(machine.draws)
    ]


def _with_trace(scenario: Scenario, name: str) -> Scenario:
    from oppo_sim.traces.catalog import list_traces

    own = scenario.trace
    shipped = any(entry.name == name for entry in list_traces())
    if not shipped and not Path(name).exists():
        from oppo_sim.traces.opening import open_trace

        open_trace(name)  # raises, with close names
    place = {"name": name} if shipped else {"path": str(Path(name).resolve())}
    sampling = "resample" if own.sampling == "by_step" else own.sampling
    trace = {**place, "sampling": sampling, "prompt_length": own.prompt_length}
    changed = _changed(scenario, {"trace": trace})
    build_trace(changed)
    return changed


def _with_drift(scenario: Scenario, factor: float) -> Scenario:
    plain = scenario.trace.model_dump(mode="json")
    return _changed(scenario, {"trace": {**plain, "length_factor": plain["length_factor"] * factor}})


def _totals(result: RunResult) -> Totals:
    if result.totals is None:
        raise OppoError(result.error or "the run gave nothing")
    return dict(result.totals)
