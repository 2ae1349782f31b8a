"""What the terminal shows of a calibration."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from oppo_real.calibrate.contention import Contention
from oppo_real.calibrate.fit import Fit
from oppo_real.calibrate.write import Calibration

if TYPE_CHECKING:
    from rich.table import Table

_SCALES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"), (1e-12, "ps"))


def fit_tables(calibration: Calibration) -> "list[Table]":
    """Coefficients with intervals; errors by regime; what slowed what down."""
    tables = [_coefficients(calibration.fits), _errors(calibration.fits)]
    return [*tables, _contention(calibration.contention)] if calibration.contention else tables


def remarks(calibration: Calibration) -> list[str]:
    """One sentence for each thing that a user of the profile should know."""
    found = [
        f"{one.table}: {one.measured} cells measured, {one.fitted} filled by the fit (no batch of that shape"
        " exists, or none was run)"
        for one in calibration.filled
        if one.fitted
    ]
    tail = calibration.tail_factor
    if tail is not None and tail > 1.05:
        found.append(
            f"decode with a long tail took up to {tail:.2f} times as long as even batches of the same total"
            " KV; the simulator counts the total only"
        )
    noisy = [fit.name for fit in calibration.fits if fit.repeat_spread > 0.1]
    if noisy:
        names = ", ".join(noisy)
        found.append(
            f"repeats of {names} differ by more than 10 %: something else ran on the machine, or more"
            " --repeats are needed"
        )
    factor = calibration.profile.contention_factor
    if factor is not None:
        found.append(
            f"decoding and scoring together take {factor:.2f} times as long as shared demand explains:"
            " scenarios with this profile are slowed so, unless placement.interference says otherwise"
        )
    return found


def _table(title: str, left: Sequence[str], right: Sequence[str]) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for name in left:
        table.add_column(name)
    for name in right:
        table.add_column(name, justify="right")
    return table


def _coefficients(fits: Sequence[Fit]) -> "Table":
    table = _table("fitted costs, with 95 % intervals", ["what", "term"], ["value", "low", "high"])
    for fit in fits:
        for place, one in enumerate(fit.coefficients):
            table.add_row(
                fit.name if not place else "",
                one.name.replace("_", " "),
                *map(_seconds, (one.value, one.low, one.high)),
            )
    return table


def _errors(fits: Sequence[Fit]) -> "Table":
    table = _table(
        "errors; a regime held out is predicted from the others",
        ["what", "regime held out"],
        ["points", "median", "largest"],
    )
    for fit in fits:
        table.add_row(
            fit.name,
            "none (in sample)",
            str(fit.points),
            _percent(fit.median_error),
            _percent(fit.worst[0].error),
        )
        table.add_row("", "spread of repeats", "", _percent(fit.repeat_spread), "")
        for one in fit.held_out:
            name = f"{one.regime}{' (beyond the rest)' if one.extrapolated else ''}"
            table.add_row("", name, str(one.points), _percent(one.median_error), _percent(one.largest_error))
    return table


def _contention(found: Sequence[Contention]) -> "Table":
    table = _table(
        "together on one device", ["first", "second"], ["first slower", "second slower", "shared demand", "f"]
    )
    for one in found:
        slower = (
            f"{slow:.2f} ({low:.2f}-{high:.2f})"
            for slow, low, high in zip(one.slowdown, one.lowest, one.highest, strict=True)
        )
        table.add_row(*one.activities, *slower, f"{one.expected:.2f}", f"{one.factor:.2f}")
    return table


def _seconds(value: float) -> str:
    if value <= 0:
        return "0"
    scale, unit = next(((scale, unit) for scale, unit in _SCALES if value >= scale), _SCALES[-1])
    return f"{value / scale:.3g} {unit}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
