"""``compare`` into a run folder, keeping every finished cell so that an interrupted comparison goes on where
it stopped."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oppo_sim.comparison import Cell, Comparison, Totals, baseline_of, comparison_of, plan_cells, run_cells
from oppo_sim.errors import OppoError
from oppo_sim.fast.choose import engine_of
from oppo_sim.files import make_durable, write_errors
from oppo_sim.manifest import code_digest, versions
from oppo_sim.plain_json import plain
from oppo_sim.policies.registry import BASELINE, source_digest
from oppo_sim.results.sinks import SummarySink
from oppo_sim.results.spans import Marker, Span
from oppo_sim.run_folder import JOURNAL, MANIFEST, RunFolder, open_run_folder
from oppo_sim.scenario.build import build_setup, policy_settings_of
from oppo_sim.scenario.schema import Scenario
from oppo_sim.simulation import run_setup

TABLE = "comparison.parquet"
ATTRIBUTION = "attribution.parquet"
CELLS = "cells.parquet"
RESULT = "comparison.json"


@dataclass(frozen=True)
class CompareRequest:
    """What to compare and what to write."""

    scenario: Scenario
    policies: tuple[str, ...]
    seeds: int
    steps: int
    attribution: bool
    jobs: int
    folder: Path
    force: bool = False
    figures: bool = True


class CellJournal:
    """Finished cells, one JSON line each, appended durably beside the run folder."""

    def __init__(self, path: Path, inputs: str, sources: Mapping[str, str]) -> None:
        """Read what is there. ``inputs`` stands for all that the cells of this comparison share, ``sources``
        holds a digest for each policy of a user's own; cells that others gave are not taken.

        Raises OppoError when the file is damaged, cannot be read, or cannot be written.
        """
        self.path = path
        self._inputs = inputs
        self._sources = sources
        self._done: dict[str, Totals] = {}
        with write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a+b") as file:  # better refused now than after the first hour
                file.seek(0)
                *lines, torn = file.read().split(b"\n")
                if torn:  # a process that was killed leaves half a line
                    file.truncate(file.tell() - len(torn))
        for number, line in enumerate(lines, 1):
            self._take(line, number)

    def _take(self, line: bytes, number: int) -> None:
        try:
            entry = json.loads(line)
            self._done[entry["key"]] = {str(name): float(value) for name, value in entry["totals"].items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise OppoError(
                f"{self.path}, line {number} is no finished run: delete the file to start the comparison anew"
            ) from None

    def known(self, cell: Cell) -> Totals | None:
        """The totals of a cell that an earlier attempt finished."""
        return self._done.get(self._key(cell))

    def add(self, cell: Cell, totals: Totals) -> None:
        """Keep a finished cell. Raises OppoError when the disk refuses."""
        key = self._key(cell)
        self._done[key] = totals
        with write_errors(self.path), self.path.open("ab") as file:
            file.write(json.dumps({"key": key, "totals": totals}).encode() + b"\n")
            make_durable(file)

    def _key(self, cell: Cell) -> str:
        return cell.key(self._inputs + self._sources.get(cell.policy, ""))

    def remove(self, *, only_if_empty: bool = False) -> None:
        """Delete the file."""
        with write_errors(self.path):
            if self.path.is_file() and not (only_if_empty and self.path.stat().st_size):
                self.path.unlink()


def journal_path(folder: Path) -> Path:
    """Where the cells of an unfinished comparison lie."""
    named = folder if folder.name not in ("", "..") else folder.resolve()
    return named.with_name(named.name + ".cells.jsonl")


def left_unfinished(folder: Path) -> bool:
    """A comparison was interrupted while it wrote ``folder``, all its runs done: the same command may write
    it again."""
    return (
        journal_path(folder).is_file() and (folder / JOURNAL).is_file() and not (folder / MANIFEST).exists()
    )


def shared_inputs(scenario: Scenario) -> str:
    """SHA-256 (hex) over everything that all cells of a comparison depend on: the contents of the scenario
    and of the files it names, and this program."""
    setup = build_setup(scenario, policy=BASELINE)
    provenance = plain(setup.costs.provenance)
    content = [scenario.content_hash, setup.replay.content_hash, provenance, versions(), code_digest()]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def compare_to_folder(request: CompareRequest, progress: Callable[[int, int], None]) -> Comparison:
    """Compare and write a run folder. Cells that an interrupted attempt finished are not simulated again.

    Raises OppoError for anything that cannot run, a folder that is taken and a disk that refuses.
    """
    scenario = request.scenario
    cells = plan_cells(scenario, request.policies, request.seeds, request.steps, request.attribution)
    sources = {
        policy: digest
        for policy in request.policies
        if (digest := source_digest(policy, scenario.base_dir)) is not None
    }
    journal = CellJournal(journal_path(request.folder), shared_inputs(scenario), sources)
    totals = {cell: known for cell in cells if (known := journal.known(cell)) is not None}
    progress(len(totals), len(cells))
    try:
        for cell, result in run_cells(scenario, [cell for cell in cells if cell not in totals], request.jobs):
            totals[cell] = result
            journal.add(cell, result)
            progress(len(totals), len(cells))
    except BaseException:
        journal.remove(only_if_empty=True)
        raise
    comparison = comparison_of(scenario, request.policies, {cell: totals[cell] for cell in cells})
    folder = open_run_folder(request.folder, force=request.force or left_unfinished(request.folder))
    folder.write_frame(TABLE, comparison.table)
    folder.write_frame(ATTRIBUTION, comparison.attribution)
    folder.write_frame(CELLS, comparison.cells)
    folder.write_json(RESULT, comparison_record(comparison))
    timelines = _timelines(request)
    _write_timelines(folder, timelines)
    if request.figures:
        _write_figures(folder, request, comparison, timelines)
    folder.finish(_manifest(request))
    journal.remove()
    return comparison


def comparison_record(comparison: Comparison) -> dict[str, Any]:
    """Table and attribution as nested values."""
    return {
        "comparison": comparison.table.to_dict(orient="index"),
        "attribution": comparison.attribution.to_dict(orient="index"),
    }


Timelines = dict[str, tuple[list[Span], list[Marker]]]


def _shown_steps(request: CompareRequest) -> tuple[int, int]:
    first = min(request.scenario.warmup_steps, request.steps - 1)
    return first, min(first + 1, request.steps - 1)


def _timelines(request: CompareRequest) -> Timelines:
    """Two steps of the baseline and of every policy, on the first seed."""
    scenario, (first, last) = request.scenario, _shown_steps(request)
    timelines: Timelines = {}
    for policy in dict.fromkeys((BASELINE, *request.policies)):
        setup = build_setup(scenario, policy=policy, steps=max(last + 1, scenario.warmup_steps + 1))
        timelines[policy] = run_setup(setup, SummarySink(0), timeline=(first, last))
    return timelines


def _write_timelines(folder: RunFolder, timelines: Timelines) -> None:
    from oppo_sim.report.perfetto import write_trace

    write_trace(timelines, folder.path("timeline.json"))


def _write_figures(
    folder: RunFolder, request: CompareRequest, comparison: Comparison, timelines: Timelines
) -> None:
    from oppo_sim.report import comparison_figures
    from oppo_sim.report.timeline import compare_gantt

    name = request.scenario.name
    folder.write_figure("figures/step_time.png", comparison_figures.step_time_figure(comparison.table, name))
    folder.write_figure(
        "figures/speedup.png", comparison_figures.speedup_figure(comparison.table, BASELINE, name)
    )
    if len(comparison.attribution) and request.attribution:
        folder.write_figure(
            "figures/attribution.png", comparison_figures.attribution_figure(comparison.attribution, name)
        )
    folder.write_figure("figures/gantt.png", compare_gantt(timelines, _shown_steps(request)))


def _manifest(request: CompareRequest) -> dict[str, Any]:
    scenario = request.scenario
    setups = [build_setup(scenario, policy=policy, steps=request.steps) for policy in request.policies]
    setup = setups[0]
    return {
        "kind": "simulated comparison",
        "scenario": scenario.name,
        "scenario_sha256": scenario.content_hash,
        "scenario_yaml": scenario.to_yaml(),
        "policies": list(request.policies),
        "policy_settings": {policy: policy_settings_of(scenario, policy) for policy in request.policies},
        "policy_source_sha256": {
            policy: source_digest(policy, scenario.base_dir) for policy in request.policies
        },
        "baselines": {policy: baseline_of(scenario, policy)[0] for policy in request.policies},
        "seeds": list(range(scenario.seed, scenario.seed + request.seeds)),
        "steps": request.steps,
        "warmup_steps": scenario.warmup_steps,
        "trace": dict(setup.replay.provenance),
        "trace_sha256": setup.replay.content_hash,
        "costs": dict(setup.costs.provenance),
        "engines": {policy: engine_of(each) for policy, each in zip(request.policies, setups, strict=True)},
        "versions": versions(),
        "warnings": list(dict.fromkeys(warning for each in setups for warning in each.warnings)),
    }


def default_policies(scenario: Scenario) -> Sequence[str]:
    """What is compared where nobody says: the baseline, each overlap alone, both, and the scenario's own
    policy."""
    return tuple(dict.fromkeys((BASELINE, "rollout-overlap", "intra", "inter", "oppo", scenario.policy.name)))
