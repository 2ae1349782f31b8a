"""How far batches that no cell of a profile holds lie from what its tables say of them: by so much is a
prediction off though nothing is noise."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import log, sqrt
from statistics import fmean
from typing import Final

import numpy as np

from oppo_real.calibrate.contention import Activity, Contention, kv_tokens_met
from oppo_real.calibrate.fit import middle, spread_of_repeats
from oppo_real.calibrate.measure import Visit
from oppo_real.calibrate.point import Point
from oppo_sim.costs.interpolate import linear
from oppo_sim.costs.profile import Profile, ProfileRangeWarning, RangeCounter
from oppo_sim.costs.tabulated import decode_lines_of, forward_seconds
from oppo_sim.errors import OppoError

_KINDS: Final[tuple[Activity, ...]] = ("decode", "score", "train")


@dataclass(frozen=True)
class OffTable:
    """Logarithms of measured seconds over those of the tables, a batch each, made smaller by what chance
    explains of them."""

    decode: tuple[float, ...] = ()
    score: tuple[float, ...] = ()
    train: tuple[float, ...] = ()

    def drawn(self, kind: Activity, generator: np.random.Generator, count: int) -> list[float]:
        """``count`` factors, each of one of the batches; which way they lie is the same for all: where the
        runs' batches lie is not known from those of the calibration, only how far."""
        found = getattr(self, kind)
        if not found:
            return [1.0] * count
        sign = 1.0 if generator.uniform() < 0.5 else -1.0
        chosen = np.array(found)[generator.integers(len(found), size=count)]
        return [float(factor) for factor in np.exp(sign * chosen)]

    @property
    def told(self) -> str:
        """A sentence; empty where no batch says anything."""
        names = {"decode": "decoding", "score": "scoring", "train": "updates"}
        found = {name: getattr(self, kind) for kind, name in names.items()}
        said = [f"{sqrt(fmean([r * r for r in off])):.1%} ({name})" for name, off in found.items() if off]
        if not said:
            return ""
        return (
            f"batches of the calibration that are in no cell lie {', '.join(said)} from its tables, beyond"
            " chance (root mean square); predicted intervals hold as much"
        )


NOTHING_OFF: Final = OffTable()


def off_table(profile: Profile, visits: Sequence[Visit], met: Sequence[Contention]) -> OffTable:
    """From batches of the calibration that were measured and are in no cell (a long tail, the scenario's
    chunks), and from those that the rounds of contention ran alone, in processes of their own.

    With r = log(measured / told) and s² the variance of measured seconds by chance, all r of a kind are
    multiplied by √(1 − mean s² / mean r²), or 0: what is left has the mean square that chance does not
    explain.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ProfileRangeWarning)
        return OffTable(
            **{kind: tuple(_beyond_chance(_ratios(profile, kind, visits, met))) for kind in _KINDS}
        )


def _ratios(
    profile: Profile, kind: Activity, visits: Sequence[Visit], met: Sequence[Contention]
) -> Iterator[tuple[float, float]]:
    """(r, s²) of each batch that the tables can be asked for."""
    for by_batch in (_uncelled(profile, kind, visits), _alone(profile, kind, visits, met)):
        batches = [(told, repeats) for told, repeats in by_batch if told > 0.0 and min(repeats) > 0.0]
        by_chance = spread_of_repeats([repeats for _, repeats in batches]) ** 2
        for told, repeats in batches:
            yield log(float(middle(repeats)) / told), by_chance / len(repeats)


def _uncelled(
    profile: Profile, kind: Activity, visits: Sequence[Visit]
) -> Iterator[tuple[float, Sequence[float]]]:
    """Told and measured seconds of the batches in no cell."""
    for point, group in _by_point(visits, kind):
        if point.cell is None:
            repeats = [sum(one.stages.values()) if kind == "train" else one.mean for one in group]
            yield _told(profile, kind, point, float(point.kv_tokens), point.pairs), repeats


def _alone(
    profile: Profile, kind: Activity, visits: Sequence[Visit], met: Sequence[Contention]
) -> Iterator[tuple[float, Sequence[float]]]:
    """Of the batches of the rounds, which decode with contexts that grow, and score what they never saw; an
    update is compared with the visits to it."""
    trained = {
        point.key: float(middle([one.mean for one in group])) for point, group in _by_point(visits, "train")
    }
    found: dict[str, tuple[Point, list[float]]] = {}
    for one in met:
        for side, (activity, point) in enumerate(
            zip(one.meeting.activities, one.meeting.points, strict=True)
        ):
            if activity == kind:
                _, seconds = found.setdefault(point.key, (point, []))
                seconds += [each.alone[side] for each in one.by_round]
    for point, seconds in found.values():
        if kind == "train":
            yield trained.get(point.key, 0.0), seconds
        else:
            pairs = sum(new * new / 2.0 for _, new in point.rows)
            yield _told(profile, kind, point, kv_tokens_met(point), pairs), seconds


def _by_point(visits: Iterable[Visit], kind: Activity) -> list[tuple[Point, list[Visit]]]:
    found: dict[str, tuple[Point, list[Visit]]] = {}
    for visit in visits:
        if visit.point.kind == kind:
            found.setdefault(visit.point.key, (visit.point, []))[1].append(visit)
    return list(found.values())


def _told(profile: Profile, kind: Activity, point: Point, kv_tokens: float, pairs: float) -> float:
    """Seconds by the tables; 0 where they give no time at all."""
    try:
        if kind == "decode":
            line = decode_lines_of(profile.decode, point.n, 0.0).answer(point.n, kv_tokens, RangeCounter())
            return line.seconds(kv_tokens)
        if kind == "score":
            pieces = point.n * (profile.piece_fixed_s or 0.0)
            return forward_seconds(profile.score, point.tokens, pairs, "score") + pieces
    except OppoError:
        return 0.0
    table = profile.training
    columns = table.stages.values()
    return sum(linear(table.tokens, column, point.tokens) for column in columns)


def _beyond_chance(ratios: Iterable[tuple[float, float]]) -> list[float]:
    found = list(ratios)
    square = fmean([r * r for r, _ in found]) if found else 0.0
    if not square:
        return []
    left = sqrt(max(0.0, 1.0 - fmean([noise for _, noise in found]) / square))
    return [left * r for r, _ in found]
