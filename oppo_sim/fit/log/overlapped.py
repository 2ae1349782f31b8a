"""Runs that generate while they train: what their trainer waits for is not the seconds of generation."""

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Final, NamedTuple

from oppo_sim.columns import STEP_SAVE_S, STEP_TESTING_S, TIMING_STEP
from oppo_sim.fit.log.names import LogNames, stages_in
from oppo_sim.fit.log.segments import Gathered
from oppo_sim.traces.importers.figures import PREFIXES, first_figure

_LEFT_OUT: Final = "of a run that generates while it trains"
_CARRIED: Final = "of a run whose generation is not of whole batches"
_NOTABLE: Final = 0.2
"""Of a step, that a trainer waits for where generation holds it up."""
_FITTED: Final = "with {} as the scenario's policy, as the run had it, generation is fitted to these steps"
_BESIDE: Final = {TIMING_STEP, STEP_SAVE_S, STEP_TESTING_S}
_APART: Final = 0.02
"""Of a step, that its stages may differ from it by: rounded figures."""


def overlap_metric(lines: Iterable[Mapping[str, float]], names: LogNames) -> str | None:
    """The metric that only such a run logs (``LogNames.beside``); None: there is none."""
    lines = list(lines)
    if any(first_figure(figures, names.in_turns, PREFIXES) is not None for figures in lines):
        return None
    for figures in lines:
        for name, least in names.beside.items():
            found = _beginning(figures, name) if name.endswith("*") else _above(figures, name, least)
            if found is not None:
                return found
    return None


def _above(figures: Mapping[str, float], name: str, least: float) -> str | None:
    value = first_figure(figures, (name,), PREFIXES)
    return name if value is not None and value > least else None


def _beginning(figures: Mapping[str, float], name: str) -> str | None:
    begins = (name[:-1], name[:-1].replace("/", "_"))
    return next((each for each in figures if each.startswith(begins)), None)


def may_be_in_turns(lines: Iterable[Mapping[str, float]], metric: str, names: LogNames) -> bool:
    """Whether a run in turns that carries rollouts over logs ``metric``, too (``LogNames.switches``)."""
    switches = names.switches.get(metric, ())
    return bool(switches) and not any(first_figure(each, switches, PREFIXES) is not None for each in lines)


def leave_out_waits(gathered: Gathered, metric: str, *, in_turns: bool = False) -> None:
    """Without generation, and without whole steps, which hold what is left of it. ``in_turns``: the run may
    be one that carries rollouts over (``may_be_in_turns``)."""
    waited = _waited(gathered)
    gathered.mixed = True
    gathered.held_up = {} if waited is None else waited.steps
    for row in gathered.rows.values():
        for column in [each for each in row if each == TIMING_STEP or _holds_generation(each)]:
            del row[column]
            gathered.left_out[f"{column} {_CARRIED if in_turns else _LEFT_OUT}"] += 1
    if in_turns:
        _say_in_turns(gathered, metric, waited)
        return
    gathered.note(
        f"{metric} is logged by a run that generates while it trains: its seconds of generation are what the"
        " trainer still waited, and its steps hold that, so both are left out; fit a run that generates first"
        " and trains then to know generation"
    )
    if waited is not None:
        gathered.note(
            f"its trainer waits {waited.seconds:.3g} s of a step of {waited.step:.3g} s (medians), so"
            f" generation holds the run up: {_FITTED.format('async, with its max_staleness,')}"
        )


def _say_in_turns(gathered: Gathered, metric: str, waited: "_Waited | None") -> None:
    gathered.note(
        f"{metric} is above 0: the run carries unfinished rollouts over (verl's colocate_async) or generates"
        " while it trains (separate_async), so its seconds of generation are not those of a batch, and its"
        " steps hold them: both are left out; fit a synchronous run to know generation"
    )
    if waited is not None:
        gathered.note(
            f"generation, or the wait for it, takes {waited.seconds:.3g} s of a step of {waited.step:.3g} s"
            f" (medians): {_FITTED.format('inter (colocate_async) or async (separate_async)')}"
        )


def leave_out_locked(gathered: Gathered, names: LogNames) -> None:
    """Without ``LogNames.locked`` and whole steps, if they wait for generation beside them: a step is then
    all its other stages, the wait among them, and generation takes longer than those before it."""
    generation = {timed.column for timed in names.stages if "gen" in timed.covers}
    stages = {timed.column for timed in names.stages} - generation
    known = [row for row in gathered.rows.values() if {*stages, *generation, TIMING_STEP} <= row.keys()]
    known = [row for row in known if row[TIMING_STEP] > 0.0]
    if not names.locked or not known:
        return
    beside = [abs(sum(row[each] for each in stages) / row[TIMING_STEP] - 1.0) for row in known]
    longer = [
        sum(row[each] for each in generation) - sum(row[each] for each in stages - set(names.locked))
        for row in known
    ]
    if median(beside) > _APART or median(longer) <= 0.0:
        return
    for row in gathered.rows.values():
        for column in [each for each in (*names.locked, TIMING_STEP) if each in row]:
            del row[column]
            gathered.left_out[f"{column} {_LEFT_OUT}"] += 1
    waits = " and ".join(names.locked)
    gathered.note(
        f"its steps hold no generation: it generates while it trains. {waits} waits there until generation is"
        " done, and the step holds that, so both are left out; generation is used, it is of the whole batch"
    )


class _Waited(NamedTuple):
    """Medians over the steps, and every step."""

    seconds: float
    step: float
    steps: dict[int, float]


def _waited(gathered: Gathered) -> _Waited | None:
    """Of a trainer that waits for a notable part of a step; None of another. A step that is not logged is the
    wait and the stages that are."""
    known: dict[int, tuple[float, float]] = {}
    for step, row in gathered.rows.items():
        wait = sum(seconds for column, seconds in row.items() if _holds_generation(column))
        stages = {
            column: seconds
            for column, seconds in row.items()
            if column.startswith("timing_s/") and column not in _BESIDE and not _holds_generation(column)
        }
        if wait > 0.0 and stages:
            known[step] = wait, row.get(TIMING_STEP, wait + sum(stages.values()))
    if not known:
        return None
    waits, wholes = zip(*known.values(), strict=True)
    found = _Waited(median(waits), median(wholes), dict(zip(known, wholes, strict=True)))
    return found if found.seconds > _NOTABLE * found.step else None


def _holds_generation(column: str) -> bool:
    return column.startswith("timing_s/") and "gen" in stages_in(column)
