"""Runs of settings in worlds under seeds, each simulated once: earlier ones come from the journal."""

import json
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from oppo_sim.errors import OppoError
from oppo_sim.policies.registry import BASELINE
from oppo_sim.runs.evaluate import evaluate, parts_of, scenario_of
from oppo_sim.runs.execute import evaluate_all
from oppo_sim.runs.journal import RunJournal
from oppo_sim.runs.request import RunRequest, RunResult
from oppo_sim.scenario.build import Parts
from oppo_sim.scenario.load import scenario_from_plain
from oppo_sim.scenario.schema import Scenario
from oppo_sim.sweep.resolve import POLICY_NAME, Resolved, Resolver
from oppo_sim.tune.space import Setting, machine_overrides
from oppo_sim.tune.worlds import World

WORTH_A_PROCESS_S = 0.3
"""A batch of runs that is shorter is run here: handing it out would cost as much."""

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
    """Simulates settings. Results do not depend on ``jobs``."""

    def __init__(
        self, worlds: Sequence[World], resolvers: Sequence[Resolver], journal: RunJournal, jobs: int
    ) -> None:
        """``resolvers``: one a world; they know the training steps of every run."""
        self.worlds = worlds
        self.on_run: Callable[[int, int], None] = lambda done, total: None
        """Told after every run that was simulated now: how many of those that are wanted together are
        done."""
        self.engines: dict[str, int] = {}
        """Engine → runs, those from the journal included."""
        self._journal = journal
        self._jobs = jobs
        self._resolvers = resolvers
        self._resolved: dict[tuple[int, Setting], Resolved | str] = {}
        self._seconds = 0.0
        self._counted: set[str] = set()

    def resolve(self, setting: Setting, world: int) -> Resolved:
        """A setting in a world, checked. Raises OppoError for what cannot run."""
        key = world, setting
        if key not in self._resolved:
            try:
                self._resolved[key] = self._resolvers[world].resolve(
                    {POLICY_NAME: setting.policy, **setting.knobs}
                )
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
        """The scenario of a setting, all settings of its policy in it. Raises OppoError for what cannot
        run."""
        own = self.worlds[world].scenario
        overrides = [
            f"{field}={json.dumps(value, ensure_ascii=False)}" for field, value in machine_overrides(setting)
        ]
        plain = scenario_from_plain(
            own.to_plain(), overrides, where=own.source, base_dir=own.base_dir
        ).to_plain()
        plain["policy"] = {
            "name": setting.policy,
            **json.loads(self.resolve(setting, world).request.settings),
        }
        plain["policies"] = {
            name: settings for name, settings in plain["policies"].items() if name != setting.policy
        }
        return scenario_from_plain(plain, where=own.source, base_dir=own.base_dir)

    def run(self, needs: Sequence[Need]) -> list[RunResult]:
        """Results in the order of ``needs``; what cannot run has its sentence in ``error``."""
        requests: list[RunRequest | str] = []
        for need in needs:
            try:
                requests.append(self.resolve(need.setting, need.world).request.at(need.seed))
            except OppoError as error:
                requests.append(str(error))
        done = {
            result.key: result
            for result in self.results([each for each in requests if isinstance(each, RunRequest)])
        }
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
        """The sequential policy that stops as the setting's does, in the same world. Raises OppoError for
        what cannot run."""
        resolved = self.resolve(setting, world)
        return Baseline(resolved.baseline, resolved.baseline_label)

    def baseline_totals(self, setting: Setting, world: int, seeds: Sequence[int]) -> list[Totals]:
        """Totals of that baseline, seed by seed. Raises OppoError for what cannot run."""
        request = self.baseline(setting, world).request
        return [_totals(result) for result in self.results([request.at(seed) for seed in seeds])]

    def trains_all(self, setting: Setting, world: int, seeds: Sequence[int]) -> list[Totals]:
        """Totals of plain sequential on the setting's machine: it trains what it admits, whenever a step
        stops."""
        plain = Setting(BASELINE, machine_overrides(setting))
        return self.totals(plain, world, seeds)

    def results(self, requests: Sequence[RunRequest]) -> list[RunResult]:
        """Results in the order of ``requests``, each kept in the journal as it comes."""
        wanted = {request.key: request for request in requests}
        missing = [request for key, request in wanted.items() if key not in self._journal.runs]
        done = 0
        for finished in self._execute(missing):
            self._journal.add(finished)
            done += len(finished)
            self.on_run(done, len(missing))
        found = []
        for request in requests:
            result = self._journal.runs.get(request.key)
            assert result is not None
            if result.key not in self._counted and result.engine:
                self._counted.add(result.key)
                self.engines[result.engine] = self.engines.get(result.engine, 0) + 1
            found.append(result)
        return found

    def _execute(self, requests: Sequence[RunRequest]) -> Iterable[list[tuple[RunRequest, RunResult]]]:
        left = list(requests)
        while left and (self._jobs == 1 or len(left) * self._seconds < WORTH_A_PROCESS_S or len(left) == 1):
            # Also the first of all: it says how long a run takes, and leaves a compiled kernel for the other
            # processes.
            request = left.pop(0)
            result = evaluate(request)
            self._seconds = result.seconds
            yield [(request, result)]
            if self._jobs > 1 and len(left) * self._seconds >= WORTH_A_PROCESS_S:
                break
        if left:
            yield from _in_processes(left, self._jobs)


def _in_processes(requests: Sequence[RunRequest], jobs: int) -> Iterable[list[tuple[RunRequest, RunResult]]]:
    from joblib import Parallel, delayed
    from joblib.externals.loky.process_executor import BrokenProcessPool

    parallel = Parallel(
        n_jobs=jobs,
        backend="loky",
        return_as="generator_unordered",
        batch_size="auto",
        pre_dispatch="2*n_jobs",
    )
    results = parallel(delayed(evaluate_all)([request], os.getpid()) for request in requests)
    try:
        yield from results
    except BrokenProcessPool as error:
        raise OppoError(
            "a process of the search was ended from outside (out of memory?): finished runs are kept, run it"
            " again with fewer jobs"
        ) from error
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # joblib warns of runs that are given up, which is what Ctrl-C asks for
            results.close()


def _totals(result: RunResult) -> Totals:
    if result.totals is None:
        raise OppoError(result.error or "the run gave nothing")
    return dict(result.totals)
