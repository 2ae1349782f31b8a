"""ms-swift's ``logging.jsonl``: a step as ``5/100``, and seconds since the run began instead of a step's."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from oppo_sim.traces.importers.logged_steps import Figures

SECONDS_A_STEP: Final = "seconds_per_step"
"""What is added to a line: seconds of a step, mean of those since the line before."""
_ELAPSED: Final = "elapsed_time"
_AGO: Final = "steps_since_start"
_STEPS: Final = ("global_step/max_steps", "iteration")
_OF: Final = re.compile(r"(\d{1,15})/\d{1,15}")
_UNITS: Final = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0}
_MOST_S: Final = 1e9
_ROUNDED_S: Final = 1.0
"""By so much ``1m 5s`` may be off."""


def running_step(named: Mapping[str, Any]) -> int | None:
    """The step that a line names as one of all; None if none is."""
    given = next((named[name] for name in _STEPS if name in named), None)
    found = _OF.fullmatch(given) if isinstance(given, str) else None
    return None if found is None else int(found[1])


def running_seconds(named: Mapping[str, Any], step: int) -> dict[str, float]:
    """Seconds since the run began, exact: as many steps as the rounded ones say, times the mean of a step."""
    given = named.get(_ELAPSED)
    found = re.findall(r"(\d{1,9})([dhms])\b", given) if isinstance(given, str) else []
    if not found:
        return {}
    rounded = sum(int(number) * _UNITS[unit] for number, unit in found)
    speed, rate = _real(named.get("train_speed(s/it)")), _real(named.get("train_speed(iter/s)"))
    mean = speed or (1.0 / rate if rate else 0.0)
    if mean <= 0.0:
        return {}
    steps = step if abs(step * mean - rounded) <= _ROUNDED_S else round(rounded / mean)
    return {_ELAPSED: steps * mean, _AGO: float(steps)}


def _real(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and 0 < value < _MOST_S else 0.0


def with_seconds_a_step(lines: Iterable[Figures]) -> Iterator[Figures]:
    """Lines with the seconds of a step where they tell the run's. What follows validation counts from its
    end, which is a line of its own; a run that was resumed counts from its beginning."""
    last: tuple[int, float] | None = None
    for step, figures in lines:
        if step is None or _AGO not in figures:
            yield step, figures
            continue
        whole, ago = figures[_ELAPSED], figures.pop(_AGO)
        since, steps = whole, ago
        if last is not None and last[1] <= whole:
            since, steps = whole - last[1], float(step - last[0])
        last = step, whole
        yield step, figures | ({SECONDS_A_STEP: since / steps} if steps > 0 else {})
