"""From measured points to the tables of a profile: medians where a batch of the cell's shape was run, else
the fit."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from oppo_real.calibrate.fit import Fit, Measured
from oppo_real.calibrate.plan import Point
from oppo_sim.costs.profile import DecodeRow, DecodeTable, PrefillTable, TrainingTable
from oppo_sim.errors import OppoError


@dataclass(frozen=True)
class Filled:
    """How the cells of a table came to their numbers."""

    table: str
    measured: int
    fitted: int
    """No batch of this shape exists or none was run: the fit, scaled to the nearest measured cell."""


def decode_table(data: Sequence[Measured]) -> DecodeTable:
    """Medians of the even batches, by rollouts and KV tokens. Raises OppoError for fewer than two rows of
    two."""
    rows: dict[int, dict[float, float]] = {}
    for one in data:
        if one.point.cell is not None:
            rows.setdefault(one.point.n, {})[one.point.cell[1]] = one.median
    full = [
        DecodeRow(n_running=n, kv_tokens=tuple(sorted(row)), seconds=tuple(row[kv] for kv in sorted(row)))
        for n, row in sorted(rows.items())
        if len(row) > 1
    ]
    if len(full) < 2:
        raise _too_little("decode")
    return DecodeTable(rows=tuple(full))


def forward_table(name: str, data: Sequence[Measured], fit: Fit) -> tuple[PrefillTable, Filled]:
    """Seconds by tokens and mean context. A batch that missed its cell by rounding is moved there by the fit.

    Raises OppoError for fewer than two of either that were measured, or where even the fit gives no time.
    """
    at_cells = {one.point.cell: one for one in data if one.point.cell is not None and one.median > 0}
    tokens = sorted({cell[0] for cell in at_cells})
    contexts = sorted({cell[1] for cell in at_cells})
    if len(tokens) < 2 or len(contexts) < 2:
        lost = [one for one in data if one.point.cell is not None and not one.median > 0]
        raise _lost_in_noise(name, lost[0].point.tokens) if lost else _too_little(name)
    seconds = {cell: _moved(one, cell, fit) for cell, one in at_cells.items()}
    measured = dict(seconds)
    for total in tokens:
        for context in contexts:
            if (total, context) not in measured:
                seconds[total, context] = _from_fit(total, context, measured, fit)
    worst = min(seconds, key=lambda cell: seconds[cell])
    if not seconds[worst] > 0:
        raise _lost_in_noise(name, worst[0])
    table = PrefillTable(
        tokens=tuple(tokens),
        mean_context=tuple(contexts),
        seconds=tuple(tuple(seconds[total, context] for context in contexts) for total in tokens),
    )
    return table, Filled(name, len(measured), len(seconds) - len(measured))


def difference(both: Sequence[Measured], one: Sequence[Measured]) -> list[Measured]:
    """What the second model adds: repeats of ``both`` less the median of the same batch in ``one``; batches
    not in ``one`` are left out."""
    alone = {measured.point.rows: measured.median for measured in one}
    return [
        Measured(measured.point, tuple(seconds - alone[measured.point.rows] for seconds in measured.repeats))
        for measured in both
        if measured.point.rows in alone
    ]


def training_table(stages: dict[str, list[Measured]]) -> TrainingTable:
    """Medians of the even batches by tokens; a stage that never ran is left out. Raises OppoError for fewer
    than two batch sizes."""
    columns: dict[str, tuple[float, ...]] = {}
    tokens: list[float] = []
    for stage, data in stages.items():
        at_cells = {one.point.cell[0]: one.median for one in data if one.point.cell is not None}
        tokens = sorted(at_cells)
        if len(tokens) < 2:
            raise _too_little("training")
        if any(second != 0 for one in data for second in one.repeats):
            columns[stage] = tuple(at_cells[total] for total in tokens)
    return TrainingTable.model_validate({"tokens": tuple(tokens), **columns})


def _moved(one: Measured, cell: tuple[float, float], fit: Fit) -> float:
    """The median, times fitted seconds of the cell over fitted seconds of the batch that was run."""
    fitted = fit.predict(one.point)
    if not fitted > 0:
        return one.median
    by_name = {coefficient.name: coefficient.value for coefficient in fit.coefficients}
    more = by_name["per_token"] * (cell[0] - one.point.tokens) + by_name["per_pair"] * (
        cell[0] * cell[1] - one.point.pairs
    )
    return one.median * max(0.0, fitted + more) / fitted


def _from_fit(total: float, context: float, measured: dict[tuple[float, float], float], fit: Fit) -> float:
    """The fit at a cell, times measured over fitted seconds of the nearest measured cell, so that the table
    has no edge there."""

    def fitted(cell: tuple[float, float]) -> float:
        by_name = {coefficient.name: coefficient.value for coefficient in fit.coefficients}
        seconds = by_name["fixed"] + by_name["per_token"] * cell[0] + by_name["per_pair"] * cell[0] * cell[1]
        return seconds + by_name.get("per_piece", 0.0) * max(1.0, cell[0] / (2.0 * cell[1]))

    def distance(cell: tuple[float, float]) -> tuple[float, float]:
        return abs(log(cell[0] / total)) * 2.0 + abs(log(cell[1] / context)), cell[0]

    nearest = min(measured, key=distance)
    there = fitted(nearest)
    return fitted((total, context)) * (measured[nearest] / there if there > 0 else 1.0)


def _lost_in_noise(table: str, tokens: float) -> OppoError:
    return OppoError(
        f"{table} of {tokens:g} tokens took no time that could be told from noise: calibrate on a quiet"
        " machine, with more --repeats, or with longer rollouts"
    )


def _too_little(table: str) -> OppoError:
    return OppoError(
        f"too little of {table} was measured for a profile: raise --budget-s and run the same command again,"
        " what is measured is kept"
    )


def tail_factor(data: Sequence[Measured]) -> float | None:
    """How much longer a decode batch with a long tail takes than an even one of the same rollouts and total
    KV: the largest ratio of medians that the repeats confirm (the fastest of the one is slower than the
        slowest of the other), at least 1; None if none was run.
    """
    even = {one.point.cell: one for one in data if one.point.cell is not None}
    pairs = [
        (one, even[twin])
        for one in data
        if one.point.cell is None and (twin := _even_twin(one.point)) in even
    ]
    if not pairs:
        return None
    return max(
        [1.0, *(tail.median / flat.median for tail, flat in pairs if min(tail.repeats) > max(flat.repeats))]
    )


def _even_twin(point: Point) -> tuple[float, float]:
    return float(point.n), float(point.kv_tokens)
