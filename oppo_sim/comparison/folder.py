"""``compare`` into a run folder, keeping every finished run so that an interrupted comparison goes on where
it stopped."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oppo_sim.columns import COMPARED_KV_PEAK_TOKENS, STEP_S
from oppo_sim.comparison.own import own_record
from oppo_sim.comparison.plan import ComparisonPlan, make_cells
from oppo_sim.comparison.published import published_record
from oppo_sim.comparison.result import Comparison, comparison_of
from oppo_sim.comparison.timelines import Timelines, shown_steps, timelines_of
from oppo_sim.costs.terms import write_draws
from oppo_sim.fast.choose import engine_of
from oppo_sim.manifest import provenance
from oppo_sim.policies.registry import BASELINE, source_digest
from oppo_sim.progress import OnProgress
from oppo_sim.rewards import learning_of
from oppo_sim.run_files import JOURNAL, MANIFEST
from oppo_sim.run_folder import RunFolder, beside, open_run_folder
from oppo_sim.run_kinds import COMPARISON
from oppo_sim.runs.execute import Executor
from oppo_sim.runs.kv_room import kv_warnings
from oppo_sim.runs.statistics import ROLLOUTS
from oppo_sim.runs.store import RunStore
from oppo_sim.runs.sync_share import sync_warnings
from oppo_sim.scenario.build import merged_warnings
from oppo_sim.scenario.schema import Scenario
from oppo_sim.taken_folder import refuse_taken

TABLE = "comparison.parquet"
ATTRIBUTION = "attribution.parquet"
CELLS = "cells.parquet"
RESULT = "comparison.json"
MACHINE_RUNS = "machine.parquet"
DRAWS = "draws.csv"


def journal_path(folder: Path) -> Path:
    """Where the runs of an unfinished comparison lie."""
    return beside(folder, ".cells.jsonl")


def left_unfinished(folder: Path) -> bool:
    """A comparison was interrupted while it wrote ``folder``, all its runs done: the same command may write
    it again."""
    return (
        journal_path(folder).is_file() and (folder / JOURNAL).is_file() and not (folder / MANIFEST).exists()
    )


def refuse_other(folder: Path, force: bool) -> None:
    """Raise OppoError, before any work is done, for a folder that the comparison may not write."""
    if not left_unfinished(folder):
        refuse_taken(folder, COMPARISON, force)


def compare_to_folder(
    plan: ComparisonPlan,
    path: Path,
    executor: Executor,
    progress: OnProgress,
    *,
    force: bool = False,
    figures: bool = True,
) -> Comparison:
    """Compare and write a run folder. Runs that an interrupted attempt finished are not simulated again.

    Raises OppoError for anything that cannot run, a folder that is taken and a disk that refuses.
    """
    with RunStore(journal_path(path), "comparison") as store:
        try:
            make_cells(plan, store, executor, progress)
        except BaseException:
            if not len(store):
                store.remove()
            raise
        comparison = comparison_of(plan, store)
        with open_run_folder(path, COMPARISON, force=force or left_unfinished(path)) as folder:
            folder.write_frame(TABLE, comparison.table)
            folder.write_frame(ATTRIBUTION, comparison.attribution)
            folder.write_frame(CELLS, comparison.cells)
            folder.write_json(RESULT, comparison_record(comparison))
            if comparison.ranges is not None:
                folder.write_frame(MACHINE_RUNS, comparison.ranges.runs)
                write_draws(folder.path(DRAWS), comparison.ranges.machine.draws)
            timelines = timelines_of(plan.setups, plan.steps, _shown(plan))
            _write_timelines(folder, timelines, _shown(plan))
            if figures:
                _write_figures(folder, plan, comparison, timelines)
            folder.finish(_manifest(plan, comparison))
        store.remove()
    return comparison


def comparison_record(comparison: Comparison) -> dict[str, Any]:
    """Table, attribution and, where there are draws of the machine, what is behind their columns, as nested
    values."""
    record: dict[str, Any] = {
        "comparison": comparison.table.to_dict(orient="index"),
        "attribution": comparison.attribution.to_dict(orient="index"),
        "best": comparison.best,
        "alike": comparison.alike,
    }
    if comparison.ranges is not None:
        record["machine"] = comparison.ranges.record()
    plan = comparison.plan
    if own := own_record(comparison):
        record["against_own"] = own
    if plan is not None and (held := published_record(plan.scenario.published, comparison.table)):
        record["published"] = held
    return record


def _shown(plan: ComparisonPlan) -> tuple[int, int]:
    return shown_steps(plan.scenario.warmup_steps, plan.steps)


def _write_timelines(folder: RunFolder, timelines: Timelines, steps: tuple[int, int]) -> None:
    from oppo_sim.report.perfetto import started_together, write_trace

    write_trace(started_together(timelines, steps), folder.path("timeline.json"))


def _write_figures(
    folder: RunFolder, plan: ComparisonPlan, comparison: Comparison, timelines: Timelines
) -> None:
    from oppo_sim.report import comparison_figures
    from oppo_sim.report.timeline import compare_gantt

    name = plan.scenario.name
    folder.write_figure("figures/step_time.png", comparison_figures.step_time_figure(comparison.table, name))
    folder.write_figure(
        "figures/speedup.png", comparison_figures.speedup_figure(comparison.table, BASELINE, name)
    )
    if comparison.attribution.notna().any(axis=None):
        folder.write_figure(
            "figures/attribution.png", comparison_figures.attribution_figure(comparison.attribution, name)
        )
    folder.write_figure("figures/gantt.png", compare_gantt(timelines, _shown(plan)))


def _manifest(plan: ComparisonPlan, comparison: Comparison) -> dict[str, Any]:
    scenario = plan.scenario
    setups = {one.label: plan.setups[one.label] for one in plan.policies}
    warnings = [warning for each in setups.values() for warning in each.warnings]
    warnings += sync_warnings(scenario, float(comparison.table[STEP_S].min()))
    warnings += kv_warnings(scenario, float(comparison.cells[COMPARED_KV_PEAK_TOKENS].max()))
    published = published_record(scenario.published, comparison.table)
    own = own_record(comparison)
    return {
        "kind": COMPARISON,
        "policies": [one.label for one in plan.policies],
        "policy_settings": {one.label: dict(one.settings) for one in plan.policies},
        "policy_source_sha256": {
            one.label: source_digest(one.policy, scenario.base_dir) for one in plan.policies
        },
        "baselines": dict(plan.baselines),
        "seeds": list(plan.seeds),
        "steps": plan.steps,
        **({"practical": plan.practical} if plan.practical else {}),
        **({"objective": plan.objective} if plan.objective != ROLLOUTS else {}),
        **({"machine": plan.machine.record()} if plan.machine.sentence else {}),
        **({"against_own": own} if own else {}),
        **({"published": published} if published else {}),
        "to_reward": learning_of(scenario.rewards, plan.steps).record(),
        **provenance(scenario, plan.setups[BASELINE]),
        "engines": {policy: engine_of(each) for policy, each in setups.items()},
        "warnings": merged_warnings(warnings),
    }


def default_policies(scenario: Scenario) -> Sequence[str]:
    """What is compared where nobody says: the baseline, each overlap alone, both, and the scenario's own
    policy."""
    return tuple(dict.fromkeys((BASELINE, "rollout-overlap", "intra", "inter", "oppo", scenario.policy.name)))
