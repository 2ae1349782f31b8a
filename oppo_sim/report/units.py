"""Numbers for people: a fitting unit, three significant digits, a dash where there is no number."""

import math
from typing import NamedTuple

NOTHING = "–"


class Unit(NamedTuple):
    """A unit of time."""

    seconds: float
    name: str


_UNITS = (Unit(3600.0, "h"), Unit(60.0, "min"), Unit(1.0, "s"), Unit(1e-3, "ms"), Unit(1e-6, "µs"))
_FROM_S = (3 * 3600.0, 180.0, 1.0, 1e-3, 0.0)


def time_unit(seconds: float) -> Unit:
    """The unit in which a duration of ``seconds`` reads best: minutes from three minutes on, hours from three
    hours on."""
    size = abs(seconds)
    if not size or not math.isfinite(size):
        return Unit(1.0, "s")
    return next(unit for unit, start in zip(_UNITS, _FROM_S, strict=True) if size >= start)


def significant(value: float, digits: int = 3) -> str:
    """``value`` without exponent, rounded to ``digits`` significant digits (whole numbers stay whole)."""
    if not math.isfinite(value):
        return NOTHING
    if value == 0:
        return "0"
    # Rounding first: 9.996 has one digit before the point, what is shown has two.
    magnitude = math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}"))))
    return f"{value:,.{max(0, digits - 1 - magnitude)}f}"


def format_seconds(seconds: float, unit: Unit | None = None) -> str:
    """A duration with its unit, e.g. ``4.72 ms``, ``85.2 s``, ``6.31 min``; a fixed ``unit`` makes a column
    comparable."""
    if not math.isfinite(seconds):
        return NOTHING
    chosen = unit or time_unit(seconds)
    return f"{significant(seconds / chosen.seconds)} {chosen.name}"


def format_percent(share: float) -> str:
    """A share of 1 in percent, signless, e.g. ``4.7 %``."""
    return NOTHING if not math.isfinite(share) else f"{share * 100:.1f} %"
