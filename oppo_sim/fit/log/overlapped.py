"""Runs that generate while they train: what their trainer waits for is not the seconds of generation."""

from collections.abc import Iterable, Mapping
from typing import Final

from oppo_sim.columns import TIMING_STEP
from oppo_sim.fit.log.segments import Gathered
from oppo_sim.traces.importers.figures import PREFIXES, first_figure

_LEFT_OUT: Final = "of a run that generates while it trains"


def overlap_metric(lines: Iterable[Mapping[str, float]], beside: Mapping[str, float]) -> str | None:
    """The metric that only such a run logs (``LogNames.beside``); None: there is none."""
    for figures in lines:
        for name, least in beside.items():
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


def leave_out_waits(gathered: Gathered, metric: str) -> None:
    """Without generation, and without whole steps, which hold what is left of it."""
    for row in gathered.rows.values():
        for column in [each for each in row if each == TIMING_STEP or _holds_generation(each)]:
            del row[column]
            gathered.left_out[f"{column} {_LEFT_OUT}"] += 1
    gathered.note(
        f"{metric} is logged by a run that generates while it trains: its seconds of generation are what the"
        " trainer still waited, and its steps hold that, so both are left out; fit a run that generates first"
        " and trains then to know generation"
    )


def _holds_generation(column: str) -> bool:
    return column.startswith("timing_s/") and "gen" in column.removeprefix("timing_s/").split("+")
