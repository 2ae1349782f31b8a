"""Simulated runs that are finished: kept as they come, so that none is simulated twice."""

from array import array
from collections.abc import Callable, Iterable, Iterator
from math import isfinite
from pathlib import Path
from typing import Any

from oppo_sim.errors import OppoError
from oppo_sim.runs.execute import Runner
from oppo_sim.runs.journal import Entry, Journal
from oppo_sim.runs.request import Finished, RunRequest, RunResult
from oppo_sim.taken_folder import refuse_begun


class RunStore(Journal):
    """Finished runs by key: of this attempt, and of earlier ones that the file holds. A context manager."""

    def __init__(
        self,
        path: Path | None = None,
        what: str = "search",
        about: Entry | None = None,
        differs: Callable[[Entry], str | None] = lambda head: None,
        *,
        replace: bool = False,
    ) -> None:
        """As ``Journal``; without a path runs are kept in memory only."""
        self._results: dict[str, tuple[array[float] | None, str]] = {}
        self._names: tuple[str, ...] = ()
        super().__init__(path, what, self._take, about, differs, replace=replace)

    def __len__(self) -> int:
        return len(self._results)

    def __contains__(self, key: str) -> bool:
        return key in self._results

    def __getitem__(self, key: str) -> RunResult:
        numbers, text = self._results[key]
        if numbers is None:
            return RunResult(key, None, error=text)
        return RunResult(key, dict(zip(self._names, numbers, strict=True)), text)

    def give_way(self) -> None:
        """Raise OppoError, and leave no file, where a run has begun in the store's folder since it was looked
        at."""
        try:
            refuse_begun(self.path.parent)
        except OppoError:
            with self:
                if not len(self):
                    self.remove()
            raise

    def missing(self, requests: Iterable[RunRequest]) -> list[RunRequest]:
        """Those that are not finished, each once."""
        return list({request.key: request for request in requests if request.key not in self}.values())

    def run(self, requests: Iterable[RunRequest], runner: Runner) -> Iterator[Finished]:
        """Make the runs that are missing and keep each at once; yields them as they finish, in any order."""
        for finished in runner.run(self.missing(requests)):
            for _, result in finished:
                self._keep(result)
            self.append(_entry(request, result) for request, result in finished)
            yield finished

    def _take(self, entry: Entry) -> None:
        key = str(entry["key"])
        if "error" in entry:
            self._keep(RunResult(key, None, error=str(entry["error"])))
        else:
            totals = {str(name): float(value) for name, value in entry["totals"].items()}
            self._keep(RunResult(key, totals, str(entry["engine"])))

    def _keep(self, result: RunResult) -> None:
        if result.totals is None:
            self._results[result.key] = None, result.error or ""
            return
        if not self._names:
            self._names = tuple(result.totals)
        if set(result.totals) != set(self._names):
            raise ValueError("totals with other names than those before")
        # Hundreds of thousands of runs fit into memory as bare numbers.
        self._results[result.key] = array("d", [result.totals[name] for name in self._names]), result.engine


def _entry(request: RunRequest, result: RunResult) -> Entry:
    entry: dict[str, Any] = {"key": result.key, "policy": request.policy, "seed": request.seed}
    if result.totals is None:
        return entry | {"error": result.error}
    # NaN is no JSON.
    totals = {name: value if isfinite(value) else str(value) for name, value in result.totals.items()}
    return entry | {"engine": result.engine, "totals": totals}
