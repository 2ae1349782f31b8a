"""Answers of tables of seconds: lines of a decode, seconds of a forward, both counted where they are outside.

A profile's tables and those of composed kernels answer by the same rules.
"""

from bisect import bisect_left
from itertools import pairwise
from typing import NamedTuple

from oppo_sim.costs.formulas import inside
from oppo_sim.costs.interface import DecodeLines, Line
from oppo_sim.costs.interpolate import bilinear, line_at, merged
from oppo_sim.costs.profile import DecodeRow, DecodeTable, PrefillTable, RangeCounter
from oppo_sim.errors import OppoError

_INFINITE = float("inf")


class Knots(NamedTuple):
    """Decode of one batch size: line i answers KV up to knot i, the last one beyond."""

    knots: tuple[float, ...]
    found: DecodeLines

    def line(self, kv_tokens: float) -> Line:
        return self.found.lines[bisect_left(self.knots, kv_tokens)]

    def answer(self, n_running: int, kv_tokens: float, ranges: RangeCounter) -> Line:
        """The line of ``kv_tokens``, counted where it is outside. Raises OppoError for a time <= 0."""
        line, measured = self.line(kv_tokens), self.found.measured
        asked = f"n_running {n_running}, kv_tokens {kv_tokens:g}"
        if measured is None or not inside(*measured, kv_tokens):
            ranges.note("decode", asked)
        furthest = line.kv_until if line.per_kv_token < 0 else kv_tokens
        if line.seconds(furthest) <= 0:
            raise _no_time("decode", asked)
        return line


def decode_lines_of(table: DecodeTable, n_running: int, host: float) -> Knots:
    """Lines of one batch size from the rows on both sides of it (the two nearest outside)."""
    weighted = _rows_of(table, n_running)
    scaled = [[kv * n_running / row.n_running for kv in row.kv_tokens] for row, _ in weighted]
    knots = merged(*scaled)
    low, high = max(grid[0] for grid in scaled), min(grid[-1] for grid in scaled)
    if not table.rows[0].n_running <= n_running <= table.rows[-1].n_running:
        low, high = 1.0, 0.0  # nothing is inside
    middles = [knots[0] - 1.0, *((a + b) / 2.0 for a, b in pairwise(knots)), knots[-1] + 1.0]
    lines = []
    for middle, until in zip(middles, [*knots, _INFINITE], strict=True):
        fixed, slope = host, 0.0
        for row, weight in weighted:
            share = row.n_running / n_running
            at_zero, rise = line_at(row.kv_tokens, row.seconds, middle * share)
            fixed += weight * at_zero
            slope += weight * rise * share
        lines.append(Line(fixed, slope, until))
    last = lines[-1]
    if last.per_kv_token < 0:  # noise at the end of a row must not lead to negative times far beyond it
        lines[-1] = Line(last.seconds(knots[-1]), 0.0, _INFINITE)
    return Knots(tuple(knots), DecodeLines(tuple(lines), (low, high)))


def _rows_of(table: DecodeTable, n_running: int) -> list[tuple[DecodeRow, float]]:
    rows = table.rows
    for row in rows:
        if row.n_running == n_running:
            return [(row, 1.0)]
    place = bisect_left([row.n_running for row in rows], n_running)
    i = min(max(place - 1, 0), len(rows) - 2)
    weight = (n_running - rows[i].n_running) / (rows[i + 1].n_running - rows[i].n_running)
    return [(rows[i], 1.0 - weight), (rows[i + 1], weight)]


def forward_seconds(
    table: PrefillTable, tokens: float, pairs: float, counted_as: str, ranges: RangeCounter | None = None
) -> float:
    """Bilinear in tokens and pairs per token; outside it is counted in ``ranges`` (None: not).

    Raises OppoError for a time <= 0.
    """
    context = pairs / tokens
    if ranges is not None and not (
        inside(table.tokens[0], table.tokens[-1], tokens)
        and inside(table.mean_context[0], table.mean_context[-1], context)
    ):
        ranges.note(counted_as, _forward(tokens, context))
    seconds = bilinear(table.tokens, table.mean_context, table.seconds, tokens, context)
    if seconds <= 0:
        raise _no_time(counted_as, _forward(tokens, context))
    return seconds


def _forward(tokens: float, context: float) -> str:
    return f"{tokens:g} tokens, mean context {context:g}"


def _no_time(counted_as: str, asked: str) -> OppoError:
    return OppoError(
        f"cost tables: {counted_as} extrapolates to no time at all at {asked}; keep to what the tables hold,"
        " or measure nearer to it"
    )
