"""The edges at which a finished sweep's best point lies, with the command that searches beyond each."""

from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any

from oppo_sim import columns as c
from oppo_sim.report.html_parts import sweep_command
from oppo_sim.runs.evaluate import setup_of
from oppo_sim.runs.kv_room import kv_warnings
from oppo_sim.runs.statistics import TO_REWARD
from oppo_sim.runs.sync_share import sync_warnings
from oppo_sim.scenario.cluster import AUTO, SPLIT_NAMES
from oppo_sim.sweep.axes import Axis, GridAxis
from oppo_sim.sweep.edges import Edge, Interval, Searched, edges

if TYPE_CHECKING:
    from oppo_sim.sweep.result import Sweep


def best_edges(sweep: "Sweep") -> tuple[list[Edge], str]:
    """The edges, none where no point is the best; and the command that searches beyond all of them, empty
    where nothing can be widened."""
    plan = sweep.plan
    point = None if sweep.best is None else plan.resolved[sweep.best]
    if sweep.best is None or point is None or isinstance(point, str):
        return [], ""
    best = plan.points[sweep.best]
    fields = [axis for axis in plan.axes if not _idle(sweep, axis.field, best)]
    searched = {axis.field: _searched(sweep, axis, best) for axis in fields}
    auto = any(plan.spec.grid.get(name) == AUTO for name in SPLIT_NAMES)
    scenario = setup_of(point.request).scenario
    found = edges(scenario, searched, best, auto=auto, by_reward=plan.spec.objective == TO_REWARD)
    return found, _command(sweep, {edge.field: edge.values for edge in found if edge.values})


def best_warnings(sweep: "Sweep") -> list[str]:
    """Of the best point, what only its step seconds show."""
    if sweep.best is None:
        return []
    point = sweep.plan.resolved[sweep.best]
    if isinstance(point, str):
        return []
    scenario, row = setup_of(point.request).scenario, sweep.points.iloc[sweep.best]
    found = sync_warnings(scenario, float(row[c.STEP_S]))
    return [*found, *kv_warnings(scenario, float(row[c.COMPARED_KV_PEAK_TOKENS]))]


# ---- inside ------------------------------------------------------------------------------------------------


def _idle(sweep: "Sweep", field: str, best: Any) -> bool:
    """Its values change nothing around the best point, to the last digit."""
    line = [
        float(difference)
        for values, difference in zip(sweep.plan.points, sweep.points[c.DIFFERENCE], strict=True)
        if all(values[other] == best[other] for other in values if other != field) and isfinite(difference)
    ]
    return len(line) > 1 and not any(line)


def _searched(sweep: "Sweep", axis: Axis, best: Any) -> Searched:
    points = list(zip(sweep.plan.points, sweep.points[c.STATUS], sweep.points[c.ERROR], strict=True))
    ran = [values[axis.field] for values, status, _ in points if status != "failed" and axis.field in values]
    refused = {
        values[axis.field]: str(error)
        for values, status, error in points
        if status == "failed"
        and isinstance(values.get(axis.field), int | float | str)
        and all(values[field] == best[field] for field in values if field != axis.field)
    }
    interval = None
    if not isinstance(axis, GridAxis) and not axis.choices:
        interval = Interval(axis.low, axis.high, axis.log, axis.integer)
    return Searched(ran, interval, refused)


def _command(sweep: "Sweep", wider: Mapping[str, str]) -> str:
    if not wider:
        return ""
    spec = sweep.plan.spec.to_plain()
    for field, values in wider.items():
        kind = "random" if field in spec["random"] else "grid"
        spec = {**spec, kind: {**spec[kind], field: values}}
    return sweep_command({"scenario": sweep.plan.scenario.name, "spec": spec})
