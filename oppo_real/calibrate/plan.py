"""What to measure: batches that span what a scenario can ask for, in an order that hides no drift."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Literal

from oppo_sim.draws import draw_uniform, stream_key
from oppo_sim.errors import OppoError

if TYPE_CHECKING:
    from oppo_sim.scenario.schema import Scenario

Kind = Literal["decode", "prefill", "score", "score_ref", "train", "sync", "round", "piece"]

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
class Sizes:
    """How large the batches of a scenario get. Rollouts and tokens."""

    max_running: int
    """Rollouts that a replica decodes together."""
    rollout_batch_size: int
    max_prompt_length: int
    max_response_length: int
    chunk_sizes: tuple[int, ...]
    """Of streamed scoring; the candidates where they are controlled."""
    max_scoring_tokens: int
    kv_capacity_tokens: int | None = None
    kv_block_tokens: int = 16
    scoring_kv_tokens: int | None = None
    """Of a scorer, where it is a serving engine; beyond it every visit prefills what was evicted."""
    scoring_block_tokens: int = 16
    prefill_block_tokens: int = 1
    """Of a rollout that goes on a scorer prefills whole blocks of so many tokens (docs/model.md, C9b)."""
    stream_ref: bool = False
    training: bool = True
    """False: a run trains nothing, so neither updates nor their contention are measured."""
    trained_lengths: tuple[tuple[int, int], ...] = ()
    """Prompt and response of each rollout of a typical batch, so that training is measured on batches of that
    shape: attention of a long rollout costs more than that of short ones with as many tokens. Empty:
    of equal ones."""

    @property
    def max_length(self) -> int:
        """Prompt and response together."""
        return self.max_prompt_length + self.max_response_length


@dataclass(frozen=True)
class Point:
    """One batch to measure: a row for each rollout, (past tokens, new tokens).

    decode: (context before the iteration, 1); prefill: (0, tokens); score and score_ref: (tokens prefilled
        before, tokens that are prefilled with the piece);
    train: (prompt, response); round: (context, iterations of a round); piece: as score; sync: no rows.
    """

    kind: Kind
    rows: tuple[tuple[int, int], ...]
    cell: tuple[float, float] | None = None
    """Its place in the profile's table: (n_running, KV tokens) or (tokens, mean context); of rounds how many
    and iterations of each; None: fit only."""
    essential: bool = False
    """A profile cannot be written without it."""

    @property
    def n(self) -> int:
        """Rollouts."""
        return len(self.rows)

    @cached_property
    def tokens(self) -> int:
        """New tokens; of a trained batch prompts and responses."""
        return sum(new + (past if self.kind == "train" else 0) for past, new in self.rows)

    @cached_property
    def kv_tokens(self) -> int:
        """Past tokens."""
        return sum(past for past, _ in self.rows)

    @cached_property
    def longest(self) -> int:
        """Of the past of a row; of a trained batch its longest rollout."""
        return max((past + new if self.kind == "train" else past for past, new in self.rows), default=0)

    @cached_property
    def pairs(self) -> float:
        """Query-key pairs, Σ (new·past + new²/2); of a trained batch Σ (prompt + response)²/2."""
        if self.kind == "train":
            return sum((past + new) ** 2 for past, new in self.rows) / 2.0
        return sum(new * past + new * new / 2.0 for past, new in self.rows)

    @property
    def mean_context(self) -> float:
        """Pairs a token."""
        return self.pairs / self.tokens

    @cached_property
    def key(self) -> str:
        """Hash of what is run: kind and rows."""
        return hashlib.sha256(json.dumps([self.kind, self.rows], separators=(",", ":")).encode()).hexdigest()

    def label(self) -> str:
        """For reports."""
        if self.kind == "decode":
            return f"decode n {self.n}, KV {self.kv_tokens} (longest {self.longest})"
        if self.kind == "round" and self.cell is not None:
            return f"{self.cell[0]:g} rounds of {self.cell[1]:g} iterations, {self.n} rollouts"
        if self.kind == "sync":
            return "weight sync"
        if self.kind == "train":
            return f"train {self.n} rollouts, {self.tokens} tokens (longest {self.longest})"
        return f"{self.kind} {self.n} pieces, {self.tokens} tokens, mean context {self.mean_context:g}"


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


def sizes_of(scenario: "Scenario", policies: Sequence[tuple[str, Mapping[str, Any]]] | None = None) -> Sizes:
    """What a scenario asks for under any of ``policies`` (name and settings; by default its own).

    Raises OppoError for a policy that cannot be built.
    """
    from oppo_sim.policies.interface import Batch
    from oppo_sim.policies.registry import make_policy

    policies = policies or [(scenario.policy.name, scenario.policy.settings)]
    batch = Batch(scenario.rollout_batch_size, scenario.group_size)
    admitted = [
        _first_admission(make_policy(name, batch, settings, scenario.base_dir)) for name, settings in policies
    ]
    in_flight = max(*admitted, scenario.rollout_batch_size)
    replicas = scenario.rollout.num_replicas
    running = -(-in_flight // replicas)
    if scenario.rollout.max_num_seqs is not None:
        running = min(running, scenario.rollout.max_num_seqs)
    capacity = scenario.rollout.kv_capacity_tokens
    return Sizes(
        max_running=running,
        rollout_batch_size=scenario.rollout_batch_size,
        max_prompt_length=scenario.max_prompt_length,
        max_response_length=scenario.max_response_length,
        chunk_sizes=_chunk_sizes([settings for _, settings in policies], scenario.max_response_length),
        max_scoring_tokens=scenario.scoring.max_scoring_tokens,
        kv_capacity_tokens=capacity if isinstance(capacity, int) else None,
        kv_block_tokens=scenario.rollout.kv_block_tokens,
        stream_ref=scenario.training.stream_ref,
        training=_trains(scenario),
        trained_lengths=typical_batch(scenario) if _trains(scenario) else (),
    )


def typical_batch(scenario: "Scenario") -> tuple[tuple[int, int], ...]:
    """Prompt and response (tokens) of B rollouts: the middle prompt of the scenario's trace, and responses at
    its B quantiles (i + ½)/B. Empty where the actor's own lengths are trained.

    Raises OppoError for a trace that cannot be replayed.
    """
    from oppo_sim.scenario.build import build_trace

    if (scenario.real or {}).get("mode") == "train":
        return ()
    replay = build_trace(scenario)
    responses, prompts = sorted(replay.response_lengths), sorted(replay.prompt_lengths)
    prompt = max(1, prompts[len(prompts) // 2])
    twice = 2 * scenario.rollout_batch_size
    return tuple((prompt, responses[place * len(responses) // twice]) for place in range(1, twice, 2))


def _trains(scenario: "Scenario") -> bool:
    """Unless the scenario says that PPO does not run."""
    ppo = (scenario.real or {}).get("ppo")
    return not (isinstance(ppo, Mapping) and ppo.get("enabled") is False)


def bounded(sizes: Sizes, resolved: Mapping[str, Any], scorer: Mapping[str, Any]) -> Sizes:
    """Sizes within what an actor and a scorer have, where their resolved configurations say so: KV tokens and
    rollouts."""
    scoring = scorer.get("kv_capacity_tokens")
    capacity, rollouts = resolved.get("kv_capacity_tokens"), resolved.get("max_num_seqs")
    known = [tokens for tokens in (sizes.kv_capacity_tokens, capacity) if isinstance(tokens, int)]
    return replace(
        sizes,
        kv_capacity_tokens=min(known, default=None),
        kv_block_tokens=int(resolved.get("kv_block_tokens") or sizes.kv_block_tokens),
        scoring_kv_tokens=scoring if isinstance(scoring, int) else None,
        scoring_block_tokens=int(scorer.get("kv_block_tokens") or sizes.scoring_block_tokens),
        prefill_block_tokens=int(scorer.get("prefill_block_tokens") or 1),
        max_running=min(sizes.max_running, rollouts) if isinstance(rollouts, int) else sizes.max_running,
    )


def _first_admission(policy: Any) -> int:
    """Rollouts in flight in the first step, and B/8 more, the default bound of a controlled overcommit."""
    from oppo_sim.policies.interface import OraclePoolView, PoolView

    view = OraclePoolView if policy.oracle else PoolView
    pool = view(0, 0, 0, 0, 1, lambda finished: ())
    if isinstance(pool, OraclePoolView):
        pool.response_lengths = {}
    batch: int = policy.batch.rollout_batch_size
    if policy.schedule == "async":
        return batch * (int(policy.max_staleness) + 1)
    return max(int(policy.plan(pool).admit), batch + -(-batch // 8))


def _chunk_sizes(policies: Sequence[Mapping[str, Any]], longest: int) -> tuple[int, ...]:
    """Chunk sizes or candidates in the policies' settings; else those that the controller tries."""
    found: list[Any] = []
    for settings in policies:
        setting = settings.get("chunk_size")
        if isinstance(setting, int):
            found.append(setting)
        elif isinstance(setting, Mapping) and setting.get("candidates"):
            found += setting["candidates"]
    return tuple(sorted({min(int(size), longest) for size in found or (128, 256, 512)}))


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
