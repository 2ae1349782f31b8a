"""What to measure: batches that span what a scenario can ask for, in an order that hides no drift."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, Literal

from oppo_real.calibrate.point import Point
from oppo_real.calibrate.sizes import Sizes
from oppo_sim.draws import draw_uniform, stream_key
from oppo_sim.errors import OppoError

WARM_ITERATIONS: Final = 1
"""Iterations of a visit that are not timed, after the one that prefills; at least."""
TIMED_ITERATIONS: Final = 7
LEAD: Final = 1 + WARM_ITERATIONS + TIMED_ITERATIONS // 2
"""Tokens made when the middle timed iteration begins, by which prompts are shorter than planned contexts; at
least."""
_SETTLED: Final = 16
"""Iterations after a join until an engine has its usual pace: on a CPU the first take half as long again."""
_EACH_UP_TO: Final = 12
"""Rollouts decoded together, up to which every batch size is measured: a kernel takes rows by twos or more,
and the torch engine on a CPU takes a sixth longer for three rollouts than for four."""
_SPREAD: Final = 0.3
"""Of the mean, by which contexts of a measured decode batch lie below and above it."""
SHORTEST_CONTEXT: Final = LEAD + 1
ROUND_ITERATIONS: Final = 16
"""Iterations of a visit that are divided into rounds, at most."""
_MOST_PIECES: Final = 8
_PIECE_TOKENS: Final = 512
"""Of a batch that is divided into pieces, at most."""
_SMALL_PIECE: Final = 2
TAIL: Final = 1 + WARM_ITERATIONS + TIMED_ITERATIONS
"""Tokens left free behind the planned context, for those that a visit makes."""


@dataclass(frozen=True)
class CalibrationPlan:
    """Points, and the order in which they are visited."""

    points: tuple[Point, ...]
    seed: int = 0

    def visits(self, repeats: int) -> Iterable[tuple[Point, int]]:
        """(point, number of the visit), pass after pass over all points; the first pass begins with the
        essential ones.

        Each pass has a hashed order of its own, so that a machine that grows slower does so at no particular
        batch size.
        """
        for visit in range(repeats):
            key = stream_key(self.seed, f"calibrate/order/{visit}")
            drawn = sorted(range(len(self.points)), key=lambda index: draw_uniform(key, index))
            if visit == 0:
                drawn.sort(key=lambda index: not self.points[index].essential)
            for index in drawn:
                yield self.points[index], visit


def make_plan(sizes: Sizes, seed: int = 0) -> CalibrationPlan:
    """The grid of a profile, batches with a long tail, and the chunk sizes.

    Raises OppoError where the lengths leave nothing to measure.
    """
    if sizes.max_length < 4 * SHORTEST_CONTEXT:
        raise OppoError(
            f"max_prompt_length + max_response_length is {sizes.max_length}, below {4 * SHORTEST_CONTEXT}"
            " tokens: too short to tell the cost of tokens from that of an iteration; calibrate with longer"
            " rollouts"
        )
    points = [*_decode(sizes), *_prefill(sizes), *_score(sizes, "score"), Point("sync", (), None, True)]
    points += [*_rounds(sizes), *_pieces(sizes)]
    if sizes.training:
        points += _train(sizes)
    if sizes.stream_ref:
        points += _score(sizes, "score_ref")
    unique: dict[str, Point] = {}
    for point in points:
        kept = unique.get(point.key, point)
        unique[point.key] = replace(
            kept, cell=kept.cell or point.cell, essential=kept.essential or point.essential
        )
    return CalibrationPlan(tuple(unique.values()), seed)


# ---- decode ------------------------------------------------------------------------------------------------


def lead(point: Point) -> int:
    """Tokens that a decode visit makes before the middle timed iteration begins: as many as the engine needs
    for its usual pace, if the shortest context has them."""
    return max(LEAD, min(_SETTLED, min(context for context, _ in point.rows) - 1))


def _decode(sizes: Sizes) -> list[Point]:
    batch_sizes = geometric(1, max(2, sizes.max_running), 5)
    contexts = geometric(max(SHORTEST_CONTEXT, sizes.max_length // 64), sizes.max_length - TAIL, 4)
    points = []
    each = range(1, min(_EACH_UP_TO, sizes.max_running) + 1)
    for n in sorted({*batch_sizes, *each}):
        fitting = [context for context in contexts if _fits([context] * n, sizes)]
        if len(fitting) < 2:
            continue
        if len(fitting) < len(contexts):
            fitting = _with_last(fitting, _longest_that_fits(n, sizes))
        if n not in batch_sizes:  # its place between its neighbours, not its line
            fitting = [fitting[min(1, len(fitting) - 2)], fitting[-1]]
        for context in fitting:
            essential = n in (batch_sizes[0], batch_sizes[1]) and context in (fitting[0], fitting[-1])
            spread = _spread(n, context, fitting[-1])
            rows = tuple((tokens, 1) for tokens in (spread if _fits(spread, sizes) else [context] * n))
            points.append(Point("decode", rows, (float(n), float(n * context)), essential))
        if n >= 4 and n in batch_sizes:
            points += [_ragged(n, context, fitting[-1]) for context in fitting[1:-1]]
    if len({point.n for point in points}) < 2:
        raise OppoError(
            f"kv_capacity_tokens {sizes.kv_capacity_tokens} holds fewer than two batch sizes at two lengths"
            " each; raise it, or shorten the rollouts"
        )
    return points


def _spread(n: int, context: int, longest: int) -> tuple[int, ...]:
    """Contexts of n rollouts around a mean; their sum is n times it."""
    return tuple(context + by for by in _offsets(n, context, longest))


def _offsets(n: int, mean: int, longest: int) -> tuple[int, ...]:
    """By how many tokens n lengths lie beside their mean, evenly from −0.3 to 0.3 of it where there is room;
    their sum is 0.

    Rollouts that began together have nearly equal contexts, carried ones and those that joined later do not,
    and an engine that gathers or masks them pays for that (6 % of an iteration of the torch engine on a CPU,
    with contexts from 0.4 to 1.6 of the mean). A table knows their sum only, so it is measured in between.
    """
    most = min(int(_SPREAD * mean), longest - mean - 1, mean - SHORTEST_CONTEXT)
    if n < 2 or most < 1:
        return (0,) * n
    above = [round(most * (n - 1 - 2 * place) / (n - 1)) for place in range(n // 2)]
    return (*(-by for by in above), *(0,) * (n % 2), *reversed(above))


def _ragged(n: int, context: int, longest: int) -> Point:
    """A long tail with the KV of n even rollouts: an eighth of them as near to ``longest`` as can be."""
    total, count = n * context, max(1, n // 8)
    length = min(longest, (total - (n - count) * SHORTEST_CONTEXT) // count)
    rows = (length,) * count + even_split(total - count * length, n - count)
    return Point("decode", tuple((tokens, 1) for tokens in rows))


def _fits(contexts: Sequence[int], sizes: Sizes) -> bool:
    if sizes.kv_capacity_tokens is None:
        return True
    block = sizes.kv_block_tokens
    return sum((context + TAIL) // block + 1 for context in contexts) <= sizes.kv_capacity_tokens // block


def _longest_that_fits(n: int, sizes: Sizes) -> int:
    assert sizes.kv_capacity_tokens is not None
    blocks = sizes.kv_capacity_tokens // sizes.kv_block_tokens // n
    return min(sizes.max_length, blocks * sizes.kv_block_tokens - 1) - TAIL


def _with_last(values: list[int], last: int) -> list[int]:
    return values if last <= values[-1] * 1.2 else [*values, last]


# ---- forwards ----------------------------------------------------------------------------------------------


def _prefill(sizes: Sizes) -> list[Point]:
    """Of the actor: whole contexts with nothing before them, k of lengths around a mean."""
    longest = sizes.max_length - TAIL
    lengths = geometric(max(1, longest // 16), longest, 3)
    joined = sizes.max_running * longest
    if sizes.kv_capacity_tokens is not None:
        joined = min(joined, sizes.kv_capacity_tokens // 2)
    totals = geometric(lengths[0], max(joined, 2 * lengths[0], longest), 5)
    points = []
    for total in totals:
        for length in lengths:
            count = max(1, round(total / length), -(-total // longest))
            if length > 1.5 * total or count > sizes.max_running:
                continue
            equal = even_split(total, count)
            spread = tuple(map(sum, zip(equal, _offsets(count, total // count, longest), strict=True)))
            joining = spread if _fits(spread, sizes) else equal
            if not _fits(joining, sizes):
                continue
            rows = tuple((0, tokens) for tokens in joining)
            essential = total in (totals[0], totals[-1]) or length == lengths[-1]
            points.append(Point("prefill", rows, (float(total), length / 2.0), essential))
    return points


def _score(sizes: Sizes, kind: Literal["score", "score_ref"]) -> list[Point]:
    """Pieces over what is held of their rollouts: a grid, and each chunk size alone and several together."""
    whole, small = sizes.max_length, sizes.chunk_sizes[0]
    largest = max(whole, min(sizes.max_scoring_tokens, sizes.rollout_batch_size * whole))
    totals = geometric(max(1, min(small, whole // 4)), largest, 4)
    contexts = sorted(
        {max(1.0, min(small, totals[0]) / 2.0), whole / 4.0, whole - min(small, totals[0]) / 2.0}
    )
    if totals[0] > _SMALL_PIECE:  # the last piece of a response can be this short
        totals = [_SMALL_PIECE, *totals]
    points = []
    for total in totals:
        for context in contexts:
            size = min(2 * int(context) or 1, total, sizes.chunk_sizes[-1])
            size = max(1, min(size, int(2 * (whole - context))))
            count = max(1, min(round(total / size), _most_scored(sizes, whole)))
            pieces = even_split(total, count)
            rows = tuple((min(whole - new, max(0, round(context - new / 2.0))), new) for new in pieces)
            rows = _on_blocks(rows, sizes)
            essential = total in (totals[0], totals[-1]) and context in (contexts[0], contexts[-1])
            points.append(Point(kind, rows, (float(total), context), essential))
    block = sizes.prefill_block_tokens
    for chunk in sorted({min(whole, -(-size // block) * block) for size in sizes.chunk_sizes}):
        past = max(0, min(sizes.max_prompt_length + sizes.max_response_length // 2, whole - chunk))
        together = max(1, min(sizes.rollout_batch_size, _most_scored(sizes, past + chunk), largest // chunk))
        points += [
            Point(kind, _on_blocks(((past, chunk),) * count, sizes))
            for count in sorted({1, -(-together // 4), together})
        ]
    return points


def _on_blocks(rows: Sequence[tuple[int, int]], sizes: Sizes) -> tuple[tuple[int, int], ...]:
    """The same pieces behind whole blocks, where a scorer has prefilled no others; about as many past tokens
    in all."""
    block = sizes.prefill_block_tokens
    if block == 1:
        return tuple(rows)
    placed, over = [], 0
    for past, new in rows:
        most = max(0, sizes.max_length - new) // block
        blocks = min(most, max(0, round((past + over) / block)))
        over = min(block, past + over - blocks * block)
        placed.append((blocks * block, new))
    return tuple(placed)


def _most_scored(sizes: Sizes, length: int) -> int:
    """Pieces of rollouts of ``length`` tokens in a batch: of as many as there are, and as a scorer has KV
    for."""
    rollouts = max(sizes.rollout_batch_size, sizes.max_running)
    if sizes.scoring_kv_tokens is None:
        return rollouts
    block = sizes.scoring_block_tokens
    return max(1, min(rollouts, sizes.scoring_kv_tokens // (-(-length // block) * block)))


def _rounds(sizes: Sizes) -> list[Point]:
    """As many rollouts as may run, the same iterations as one round and as several."""
    context = sizes.max_length // 2
    iterations = min(ROUND_ITERATIONS, sizes.max_length // 4)
    n = max(1, sizes.max_running)
    while n > 1 and not _fits([context + iterations] * n, sizes):
        n //= 2
    counts = [count for count in (1, 4, ROUND_ITERATIONS) if iterations % count == 0]
    return [
        Point(
            "round",
            ((context, iterations // count),) * n,
            (float(count), float(iterations // count)),
        )
        for count in counts
    ]


def _pieces(sizes: Sizes) -> list[Point]:
    """The same tokens and pairs as one piece and as several."""
    whole = min(sizes.max_length, sizes.max_scoring_tokens, _PIECE_TOKENS)
    counts = [count for count in (1, 2, 4, _MOST_PIECES) if whole >= _MOST_PIECES]
    whole -= whole % _MOST_PIECES
    return [
        Point("piece", _on_blocks((((whole - whole // count) // 2, whole // count),) * count, sizes))
        for count in counts
    ]


# ---- training ----------------------------------------------------------------------------------------------


def _train(sizes: Sizes) -> list[Point]:
    """Batches of B rollouts of the typical batch's shape, longer and shorter, and some with a long tail."""
    batch = sizes.rollout_batch_size
    lengths = geometric(max(2, sizes.max_length // 8), sizes.max_length, 4)
    points = []
    even = []
    for length in lengths:
        prompt = max(1, min(length - 1, length * sizes.max_prompt_length // sizes.max_length))
        even.append((prompt, length - prompt))
        rows = _scaled(sizes, batch * length) if sizes.trained_lengths else (even[-1],) * batch
        tokens = float(sum(map(sum, rows)))
        points.append(Point("train", rows, (tokens, 0.0), length in (lengths[0], lengths[-1])))
    for prompt, response in even[1:-1] if batch >= 4 else []:
        tail = sizes.max_length - prompt
        rest = batch * response - tail
        if rest >= batch - 1:
            rows = ((prompt, tail), *((prompt, tokens) for tokens in even_split(rest, batch - 1)))
            points.append(Point("train", rows))
    return points


def _scaled(sizes: Sizes, total: int) -> tuple[tuple[int, int], ...]:
    """The typical batch with its lengths multiplied until it has about ``total`` tokens, none beyond the
    longest."""

    def at(factor: float) -> tuple[tuple[int, int], ...]:
        return tuple(
            (
                max(1, min(sizes.max_prompt_length, round(prompt * min(1.0, factor)))),
                max(1, min(sizes.max_response_length, round(response * factor))),
            )
            for prompt, response in sizes.trained_lengths
        )

    low, high = 0.0, float(sizes.max_response_length)
    for _ in range(40):
        middle = (low + high) / 2.0
        low, high = (middle, high) if sum(map(sum, at(middle))) < total else (low, middle)
    return at(high)


# ---- numbers -----------------------------------------------------------------------------------------------


def geometric(low: int, high: int, count: int) -> list[int]:
    """At most ``count`` whole numbers from ``low`` to ``high``, even by ratio, no two closer than 1.2."""
    if high <= low:
        return [low]
    steps = [round(low * (high / low) ** (index / (count - 1))) for index in range(count)]
    steps[-1] = high
    kept = [low]
    for value in steps[1:]:
        if value >= kept[-1] * 1.2 and value > kept[-1]:
            kept.append(value)
    if kept[-1] != high:
        kept = [*([value for value in kept if value * 1.2 <= high] or [low]), high]
    assert all(b > a for a, b in pairwise(kept))
    return kept


def even_split(total: int, count: int) -> tuple[int, ...]:
    """``total`` in ``count`` whole parts that differ by one at most."""
    even, over = divmod(total, count)
    return (even + 1,) * over + (even,) * (count - over)
