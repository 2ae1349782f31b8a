"""Runs of settings in worlds under seeds, each simulated once: earlier ones come from the store."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from oppo_sim.errors import OppoError
from oppo_sim.policies.registry import BASELINE
from oppo_sim.runs.evaluate import parts_of, scenario_of
from oppo_sim.runs.execute import Runner
from oppo_sim.runs.request import RunRequest, RunResult
from oppo_sim.runs.store import RunStore
from oppo_sim.scenario.build import Parts
from oppo_sim.scenario.load import scenario_from_plain
from oppo_sim.scenario.schema import Scenario
from oppo_sim.sweep.resolve import POLICY_NAME, Resolved, Resolver
from oppo_sim.tune.space import Setting, machine_overrides
from oppo_sim.tune.worlds import World

Totals = dict[str, float]


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


class Bench:
    """Simulates settings. Results do not depend on where runs are made."""

    def __init__(
        self, worlds: Sequence[World], resolvers: Sequence[Resolver], store: RunStore, runner: Runner
    ) -> None:
        """``resolvers``: one a world; they know the training steps of every run."""
        self.worlds = worlds
        self.on_run: Callable[[int, int], None] = lambda done, total: None
        """Told after every run that was simulated now: how many of those wanted together are done."""
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
        plain = scenario_from_plain(own.to_plain(), overrides, **place).to_plain()
        settings = json.loads(self.resolve(setting, world).request.settings)
        plain["policy"] = {"name": setting.policy, **settings}
        plain["policies"].pop(setting.policy, None)
        return scenario_from_plain(plain, **place)

    def run(self, needs: Sequence[Need]) -> list[RunResult]:
        """Results in the order of ``needs``; what cannot run has its sentence in ``error``."""
        requests: list[RunRequest | str] = []
        for need in needs:
            try:
                requests.append(self.resolve(need.setting, need.world).request.at(need.seed))
            except OppoError as error:
                requests.append(str(error))
        valid = [each for each in requests if isinstance(each, RunRequest)]
        done = {result.key: result for result in self.results(valid)}
        return [
            RunResult("", None, error=each) if isinstance(each, str) else done[each.key] for each in requests
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
        return Baseline(resolved.baseline, resolved.baseline_label)

    def baseline_totals(self, setting: Setting, world: int, seeds: Sequence[int]) -> list[Totals]:
        """Totals of that baseline, seed by seed. Raises OppoError for what cannot run."""
        request = self.baseline(setting, world).request
        return [_totals(result) for result in self.results([request.at(seed) for seed in seeds])]

    def trains_all(self, setting: Setting, world: int, seeds: Sequence[int]) -> list[Totals]:
        """Of plain sequential on the setting's machine: it trains what it admits, whenever a step stops."""
        plain = Setting(BASELINE, machine_overrides(setting))
        return self.totals(plain, world, seeds)

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


def _totals(result: RunResult) -> Totals:
    if result.totals is None:
        raise OppoError(result.error or "the run gave nothing")
    return dict(result.totals)
