"""How much two activities on one device slow each other: what is to meet, and what rounds of it say."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import median
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from oppo_real.calibrate.plan import CalibrationPlan
from oppo_real.calibrate.point import Point
from oppo_sim.costs.demands import Demands, explained_slowdown
from oppo_sim.costs.profile import OnDevice, Slowdowns, TimeSlices
from oppo_sim.draws import stream_key

Activity = Literal["decode", "score", "train"]
Pair = tuple[Activity, Activity]
_ALIKE: Final = 1.25
"""Ends of the factor's interval, highest over lowest, at most."""
_REDRAWN: Final = 400
_WAITED: Final = 0.1
"""Share of the time that a process alone may wait for a core."""
_TAKEN: Final = 0.05
"""Share of the time of two together that other work may have before it is told."""
_MOST_TAKEN: Final = 0.9
"""Of an activity's time, by other work, at most."""


class Round(NamedTuple):
    """One round of a meeting. Mean seconds of a unit (an iteration, a batch, an update) of each activity."""

    alone: tuple[float, float]
    together: tuple[float, float]
    waited: tuple[float, float] = (0.0, 0.0)
    """Of the time of each alone, the share in which it waited for a core that other work had."""
    taken: tuple[float, float] = (0.0, 0.0)
    """The same of each together: what other work took of both, turns that they take themselves left out."""

    @property
    def slowdown(self) -> tuple[float, float]:
        """Together over alone, both without the time that other work had.

        Two activities fill the cores, so that a third process takes from them for as long as it runs; of
        those of a run one often rests, and it goes there. It is no cost of running together.
        """
        first, second = (
            together * (1.0 - taken) / (alone * (1.0 - waited))
            for alone, together, waited, taken in zip(*self, strict=True)
        )
        return first, second


class Meeting(NamedTuple):
    """Two activities that are to run together, and the batch that each keeps running."""

    activities: Pair
    points: tuple[Point, Point]

    @property
    def label(self) -> str:
        """For sentences."""
        return " beside ".join(self.sides)

    @property
    def sides(self) -> tuple[str, str]:
        """Each activity with the size of its batch."""
        first, second = (
            f"{activity}, {point.n} rollouts"
            if activity == "decode"
            else f"{activity}, {point.tokens} tokens"
            for activity, point in zip(self.activities, self.points, strict=True)
        )
        return first, second


@dataclass(frozen=True)
class Contention:
    """What two activities did to each other."""

    meeting: Meeting
    expected: float
    """max(1, Σ memory, Σ arithmetic): what shared demand alone explains."""
    by_round: tuple[Round, ...]
    """In the order of measurement."""

    @property
    def slowdown(self) -> tuple[float, float]:
        """Medians over rounds."""
        return self._each(median)

    @property
    def lowest(self) -> tuple[float, float]:
        return self._each(min)

    @property
    def highest(self) -> tuple[float, float]:
        return self._each(max)

    @property
    def factor(self) -> float:
        """f: median of ``factors``, at least 1."""
        return max(1.0, median(self.factors))

    @property
    def factors(self) -> tuple[float, ...]:
        """Of each round the geometric mean of its slow-downs over ``expected``: what one side loses more in a
        round, the other loses less."""
        return tuple(
            sqrt(first * second) / self.expected for first, second in (one.slowdown for one in self.by_round)
        )

    def to_plain(self) -> dict[str, Any]:
        """As JSON."""
        names = ("slowdown", "lowest", "highest", "expected", "factor")
        return {
            "activities": self.meeting.activities,
            "points": [point.key for point in self.meeting.points],
            **{name: getattr(self, name) for name in names},
            "by_round": [one._asdict() for one in self.by_round],
            "rounds": len(self.by_round),
        }

    def _each(self, of: Callable[[Iterable[float]], float]) -> tuple[float, float]:
        first, second = zip(*(one.slowdown for one in self.by_round), strict=True)
        return of(first), of(second)


def grown_met(point: Point) -> int:
    """Tokens that each rollout of a decode batch grows by in a meeting, up to its planned context; then the
    batch begins again."""
    return max(2, min(context for context, _ in point.rows) // 2)


def kv_tokens_met(point: Point) -> float:
    """KV tokens of a decode batch in the mean iteration of a meeting."""
    return point.kv_tokens - point.n * grown_met(point) / 2.0


def contention_of(meeting: Meeting, rounds: Sequence[Round]) -> Contention:
    """What was found in ``rounds``, beside what shared demand alone explains: the demands that a profile
    states where nobody measured them."""
    demands = Demands()
    shares = {"decode": demands.decode, "score": demands.score, "train": demands.training}
    sums = [
        sum(getattr(shares[one], kind) for one in meeting.activities) for kind in ("memory", "arithmetic")
    ]
    return Contention(meeting, max(1.0, *sums), tuple(rounds))


def decode_beside_score(found: Iterable[Contention]) -> list[Contention]:
    """What says how decoding and scoring slow each other."""
    return [one for one in found if one.meeting.activities == ("decode", "score")]


def contention_factor(found: Iterable[Contention]) -> float | None:
    """f of decoding and scoring that run together, the median over the rounds of all batches, at least 1;
    None: not measured."""
    factors = [factor for one in decode_beside_score(found) for factor in one.factors]
    return max(1.0, median(factors)) if factors else None


def slowdowns_of(found: Iterable[Contention]) -> Slowdowns | None:
    """How much longer decoding takes beside scoring, and scoring beside decoding, medians over the rounds of
    all batches, at least 1. None: not measured."""
    rounds = [each.slowdown for one in decode_beside_score(found) for each in one.by_round]
    if not rounds:
        return None
    decode, score = (max(1.0, median(side)) for side in zip(*rounds, strict=True))
    return Slowdowns(decode=decode, score=score)


def time_slices_of(found: Iterable[Contention], on_device: OnDevice | None = None) -> TimeSlices | None:
    """What decoding and scoring lose where they take turns: f from what scoring takes longer than the turns
    explain, then seconds an iteration of decoding from what remains of its; medians over batches. None: not
    measured. ``on_device``: of a profile; a turn lasts as long as the GPU computes."""
    measured = decode_beside_score(found)
    if not measured:
        return None
    explained = [turns_explained(one, on_device) for one in measured]
    interference = max(
        1.0, median(one.slowdown[1] / turns for one, turns in zip(measured, explained, strict=True))
    )
    longer = [
        (one.slowdown[0] / (turns * interference) - 1.0) * median(each.alone[0] for each in one.by_round)
        for one, turns in zip(measured, explained, strict=True)
    ]
    return TimeSlices(interference=interference, turn_s=max(0.0, median(longer)))


def turns_explained(one: Contention, on_device: OnDevice | None) -> float:
    """By how much decoding and scoring in turns slow each other by their shares of the device alone."""
    if on_device is None:
        return explained_slowdown(Demands(), in_turns=True)
    decoded, scored = one.meeting.points
    decode, score = (median(each.alone[side] for each in one.by_round) for side in (0, 1))
    iteration = on_device.decode.at_no_kv(decoded.n) + on_device.decode.per_kv_token * kv_tokens_met(decoded)
    forward = on_device.score.seconds(scored.tokens, sum(new * new / 2.0 for _, new in scored.rows))
    return max(1.0, min(1.0, iteration / decode) + min(1.0, forward / score))


def drawn_anew(
    found: Sequence[Contention], generator: np.random.Generator, count: int
) -> Iterator[list[Contention]]:
    """``found`` again, ``count`` times, each with as many of its own rounds drawn anew."""
    for _ in range(count):
        yield [
            replace(one, by_round=tuple(one.by_round[i] for i in draw))
            for one in found
            for draw in [generator.integers(len(one.by_round), size=len(one.by_round))]
        ]


def taken_by_others(waited: tuple[float, float], held: float) -> tuple[float, float]:
    """Of the time of two activities together, the share that other work had of each.

    Args:
        waited: of the time of each, the share in which it waited for a core.
        held: how many of the two their cores hold at once. 2: any wait is for other work; 1: they take turns,
            and waits beyond one process's whole time are.
    """
    if held >= 2.0:
        return waited
    beyond = min(1.0, max(0.0, sum(waited) - (2.0 - held)) / held)
    return beyond, beyond


def beside_others(found: Iterable[Contention], share: float, second: float = 0.5) -> list[Contention]:
    """``found`` as it is where other work takes ``share`` (from 0 on) of what it took in the rounds, where it
    took of both alike: ``second`` of that from the second activity (1: all), the rest from the first."""

    def kept(taken: float, part: float) -> float:
        lost = min(_MOST_TAKEN, 2.0 * part * taken)
        return 1.0 - (1.0 - taken) / float((1.0 - lost) ** share)

    return [
        replace(
            one,
            by_round=tuple(
                each._replace(taken=(kept(each.taken[0], 1.0 - second), kept(each.taken[1], second)))
                for each in one.by_round
            ),
        )
        for one in found
    ]


def other_work(found: Sequence[Contention]) -> str:
    """A sentence where other work had much of the time in which decoding and scoring ran together."""
    taken = [sum(each.taken) / 2.0 for one in decode_beside_score(found) for each in one.by_round]
    if not taken or median(taken) <= _TAKEN:
        return ""
    return (
        f"other work had {median(taken):.0%} of the time in which decoding and scoring ran together: a"
        " profile says what they cost each other without it, a validation predicts its runs beside as much"
    )


def disagreement(found: Sequence[Contention], seed: int = 0) -> str:
    """A sentence where the rounds say unlike things of decoding beside scoring, or other work ran beside
    them, so that whatever is made of them is a guess; else empty."""
    measured = decode_beside_score(found)
    if not measured:
        return ""
    waited = median(max(each.waited) for one in measured for each in one.by_round)
    if waited > _WAITED:
        return (
            f"other work had the cores while contention was measured (a process that was to run alone waited"
            f" {waited:.0%} of the time), so what running together costs is not known: measure on a quieter"
            " machine"
        )
    generator = np.random.default_rng(stream_key(seed, "calibrate/contention"))
    factors = [contention_factor(again) for again in drawn_anew(measured, generator, _REDRAWN)]
    low, high = np.quantile(np.array(factors, dtype=float), [0.025, 0.975])
    if high <= _ALIKE * low:
        return ""
    rounds = sum(len(one.by_round) for one in measured)
    return (
        f"{rounds} rounds of decoding beside scoring gave slow-downs beyond shared demand from {low:.2f} to"
        f" {high:.2f} (95 %), too unlike to predict anything that overlaps: measure on a quieter machine, or"
        " with more repeats"
    )


def meetings_of(plan: CalibrationPlan) -> list[Meeting]:
    """Who is to meet whom, what matters most first: decoding of a middle, the smallest and the largest batch
    at middle contexts with a scoring batch of middle size; both with a small update, where anything is
    trained; the middle ones with a small and a large scoring batch."""
    decode = [point for point in plan.points if point.kind == "decode" and point.cell is not None]
    by_size = {
        size: sorted((point for point in decode if point.n == size), key=lambda point: point.kv_tokens)
        for size in sorted({point.n for point in decode})
    }
    sizes = list(by_size.values())
    lines = [points for points in sizes if len(points) > 2] or sizes  # of other sizes only ends are measured
    smallest, middle, largest = (
        points[len(points) // 2] for points in (sizes[0], lines[len(lines) // 2], sizes[-1])
    )
    scored = sorted(
        (point for point in plan.points if point.kind == "score"), key=lambda point: (point.tokens, point.key)
    )
    score = scored[len(scored) // 2]
    decoded = dict.fromkeys((middle, smallest, largest))
    found = [Meeting(("decode", "score"), (point, score)) for point in decoded]
    train = sorted((point for point in plan.points if point.kind == "train"), key=lambda point: point.tokens)
    if train:
        found += [
            Meeting(("decode", "train"), (middle, train[0])),
            Meeting(("score", "train"), (score, train[0])),
        ]
    others = dict.fromkeys((scored[len(scored) // 4], scored[-1]))
    return found + [Meeting(("decode", "score"), (middle, other)) for other in others if other != score]
