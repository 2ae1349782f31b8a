"""Profiles drawn anew, of which intervals are: noise of visits and rounds, and tables as far off as batches
lie that are in no cell."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import log, sqrt
from statistics import fmean, median
from typing import Any

import numpy as np

from oppo_real.calibrate.contention import (
    Activity,
    Contention,
    beside_others,
    contention_factor,
    drawn_anew,
    slowdowns_of,
    time_slices_of,
)
from oppo_real.calibrate.fit import REGIMES, middle, regimes_of, spread_of_repeats
from oppo_real.calibrate.measure import Visit
from oppo_real.validate.off_table import NOTHING_OFF, OffTable
from oppo_sim.columns import TRAINING_STAGES
from oppo_sim.costs.profile import PrefillTable, Profile
from oppo_sim.draws import stream_key

_Ratios = Mapping[tuple[float, float], float]


def resampled_profiles(
    profile: Profile,
    visits: Sequence[Visit],
    met: Sequence[Contention],
    count: int,
    seed: int,
    off_table: OffTable = NOTHING_OFF,
) -> Iterator[Profile]:
    """``count`` profiles in which each measured cell is multiplied by (middle of its visits drawn anew /
    middle of them), and what sharing costs is that of one batch of ``met``, its rounds drawn anew, beside
    other work: which of them a run's are like, how much of other work meets it (from none to twice what met
    the rounds, as much likeliest) and, with cores apart, how much of it is on the scoring worker's (half to
    all), nobody knows. Each batch-size regime of a table is as far off as one of the batches ``off_table``,
    drawn for it.

    A point visited once is as uncertain as one visit of the others is. Cells that were filled from the fit
    have no visits to draw. Nothing is given where no point has two visits.
    """
    grouped: dict[str, list[Visit]] = {}
    for visit in visits:
        grouped.setdefault(visit.point.key, []).append(visit)
    if all(len(group) < 2 for group in grouped.values()):
        return
    generator = np.random.default_rng(stream_key(seed, "validate/resample"))
    single = [key for key, group in grouped.items() if len(group) < 2]
    of_a_visit = spread_of_repeats([[visit.mean for visit in group] for group in grouped.values()])
    for _ in range(count):
        drawn = {
            key: [group[i] for i in generator.integers(len(group), size=len(group))]
            for key, group in grouped.items()
        }
        by_chance = np.exp(of_a_visit * generator.standard_normal(len(single)))
        scaled = _scaled(profile, grouped, drawn, dict(zip(single, by_chance.tolist(), strict=True)))
        scaled = _off(scaled, off_table, generator)
        if met:
            like = met[int(generator.integers(len(met)))]
            (again,) = drawn_anew([like], generator, 1)
            share = float(generator.triangular(0.0, 1.0, 2.0))
            scaled = sharing_in_runs(scaled, again, share, float(generator.uniform(0.5, 1.0)))
        yield scaled


def sharing_in_runs(
    profile: Profile, met: Sequence[Contention], share: float = 1.0, scoring: float = 0.75
) -> Profile:
    """The profile with what sharing costs in runs between the rounds of ``met``, beside the same other work.

    A third process goes to a core that rests and stays there when both are busy. The scoring worker's rests
    more often than a replica's: through an update, and while it waits for chunks. So most of what other work
    takes is taken from scoring; the middle of half of it and all.

    Args:
        share: of what other work took in the rounds, from 0 on.
        scoring: how much of that from scoring where it has cores of its own, 0 to 1. On one core both lose.
    """
    both = beside_others(met, share)
    return profile.model_copy(
        update={
            "contention_factor": contention_factor(both),
            "slowdowns": slowdowns_of(beside_others(met, share, scoring)),
            "time_slices": time_slices_of(both, profile.on_device),
        }
    )


def spread_of_moments(visits: Sequence[Visit], seconds: float) -> float:
    """How unlike the machine's speed is from one run to the next: the standard deviation of the logarithm of
    how long work takes in ``seconds`` of it, from neighbouring moments of a calibration, so that a slow drift
    counts little. 0 for fewer than two moments.

    Args:
        visits: in the order in which they were measured.
    """
    usual: dict[str, list[float]] = {}
    for visit in visits:
        usual.setdefault(visit.point.key, []).append(visit.mean)
    moments, lasted, longer = [], 0.0, 0.0
    for visit in visits:
        expected = median(usual[visit.point.key])
        if visit.mean <= 0.0 or expected <= 0.0:
            continue
        took = visit.mean * len(visit.seconds)
        lasted += took
        longer += took * log(visit.mean / expected)
        if lasted >= seconds:
            moments.append(longer / lasted)
            lasted = longer = 0.0
    steps = [(later - earlier) ** 2 for earlier, later in pairwise(moments)]
    return sqrt(fmean(steps) / 2.0) if steps else 0.0


def spread_of_runs(seconds: Sequence[Sequence[float]]) -> float:
    """The same of real runs, each of which has processes of its own: what is left of the logarithms of
    ``seconds`` (a row a policy, a column a round) when policies and rounds are taken out. 0 for fewer than
    two of either.

    A process can be a few percent faster than the next of the same program for as long as it lives, which no
    calibration in one process sees.
    """
    logs = np.log(np.array(seconds, dtype=np.float64))
    rows, columns = logs.shape
    if min(rows, columns) < 2:
        return 0.0
    left = logs - logs.mean(axis=1, keepdims=True) - logs.mean(axis=0, keepdims=True) + logs.mean()
    return float(np.sqrt((left**2).sum() / ((rows - 1) * (columns - 1))))


def _scaled(
    profile: Profile,
    visits: Mapping[str, Sequence[Visit]],
    drawn: Mapping[str, Sequence[Visit]],
    single: Mapping[str, float],
) -> Profile:
    """``single``: factors of the points that were visited once."""

    def ratio(key: str, stage: str | None = None) -> float:
        before, now = _middle(visits[key], stage), _middle(drawn[key], stage)
        return now / before * single.get(key, 1.0) if before > 0 and now > 0 else 1.0

    def ratios(kind: str, stage: str | None = None) -> _Ratios:
        return {
            cell: ratio(key, stage)
            for key, group in visits.items()
            if group[0].point.kind == kind and (cell := group[0].point.cell) is not None
        }

    decode = ratios("decode")
    rows = tuple(
        row.model_copy(
            update={
                "seconds": tuple(
                    second * decode.get((float(row.n_running), kv), 1.0)
                    for kv, second in zip(row.kv_tokens, row.seconds, strict=True)
                )
            }
        )
        for row in profile.decode.rows
    )
    stages: dict[str, Any] = {}
    for stage in TRAINING_STAGES[:-1]:
        column = getattr(profile.training, stage)
        if column is not None:
            by_tokens = ratios("train", stage)
            stages[stage] = tuple(
                second * by_tokens.get((tokens, 0.0), 1.0)
                for tokens, second in zip(profile.training.tokens, column, strict=True)
            )
    synced = [ratio(key) for key, group in visits.items() if group[0].point.kind == "sync"]
    return profile.model_copy(
        update={
            "decode": profile.decode.model_copy(update={"rows": rows}),
            "prefill": _table(profile.prefill, ratios("prefill")),
            "score": _table(profile.score, ratios("score")),
            "training": profile.training.model_copy(update=stages),
            "update_weights": profile.update_weights * (synced[0] if synced else 1.0),
        }
    )


def _off(profile: Profile, off_table: OffTable, generator: np.random.Generator) -> Profile:
    """Tables as far from the truth as the batches in no cell are from the tables, regime by regime."""

    def factors(kind: Activity, sizes: Sequence[float]) -> list[float]:
        drawn = off_table.drawn(kind, generator, REGIMES)
        return [drawn[regime] for regime in regimes_of(sizes)]

    sizes = [float(row.n_running) for row in profile.decode.rows]
    rows = tuple(
        row.model_copy(update={"seconds": tuple(factor * second for second in row.seconds)})
        for row, factor in zip(profile.decode.rows, factors("decode", sizes), strict=True)
    )
    scored = zip(profile.score.seconds, factors("score", profile.score.tokens), strict=True)
    seconds = tuple(tuple(factor * second for second in row) for row, factor in scored)
    table = profile.training
    trained = factors("train", table.tokens) if table.measured else []
    stages = {
        stage: tuple(factor * second for second, factor in zip(column, trained, strict=True))
        for stage, column in table.stages.items()
    }
    return profile.model_copy(
        update={
            "decode": profile.decode.model_copy(update={"rows": rows}),
            "score": profile.score.model_copy(update={"seconds": seconds}),
            "training": table.model_copy(update=stages),
        }
    )


def _table(table: PrefillTable, ratios: _Ratios) -> PrefillTable:
    seconds = tuple(
        tuple(
            second * ratios.get((tokens, context), 1.0)
            for context, second in zip(table.mean_context, row, strict=True)
        )
        for tokens, row in zip(table.tokens, table.seconds, strict=True)
    )
    return table.model_copy(update={"seconds": seconds})


def _middle(group: Sequence[Visit], stage: str | None) -> float:
    return float(middle([visit.mean if stage is None else visit.stages.get(stage, 0.0) for visit in group]))
