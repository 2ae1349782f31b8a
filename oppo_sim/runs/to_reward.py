"""Time and GPU-hours to the target reward, with an interval of all that is unknown about them: the rollouts
(seeds), the machine (draws of its costs) and the effect of staleness (draws of its own)."""

from collections.abc import Mapping, Sequence
from math import nan
from typing import Any, Final, NamedTuple

from oppo_sim import columns as c
from oppo_sim.learning import Learning
from oppo_sim.runs.ranges import both, geometric_mean, machine_interval
from oppo_sim.runs.statistics import ratio_interval

TO_REWARD_COLUMNS: Final = (
    c.PROGRESS,
    c.HOURS_TO_REWARD, c.HOURS_TO_REWARD_LOW, c.HOURS_TO_REWARD_HIGH,
    c.GPU_HOURS_TO_REWARD, c.GPU_HOURS_TO_REWARD_LOW, c.GPU_HOURS_TO_REWARD_HIGH,
    c.REWARD_SPEEDUP, c.REWARD_SPEEDUP_LOW, c.REWARD_SPEEDUP_HIGH,
)  # fmt: skip


class Drawn(NamedTuple):
    """A run and its baseline on a draw of the machine."""

    seed: int
    """Position among the seeds."""
    run: Mapping[Any, Any]
    base: Mapping[Any, Any]


def to_reward_columns(
    actual: Sequence[Mapping[Any, Any]],
    base: Sequence[Mapping[Any, Any]],
    learning: Learning,
    drawn: Sequence[Sequence[Drawn]] = (),
) -> dict[str, float]:
    """Columns of a policy: geometric means over the seeds with 95 % intervals.

    Args:
        actual: totals by seed, and ``base`` those of the baseline; with ``learning.columns``.
        drawn: draw by draw of the machine, each with some of the seeds; empty: the machine is exact. Draw k
            of the machine goes with draw k of the effect.
    """
    if not drawn:
        every = [Drawn(seed, *pair) for seed, pair in enumerate(zip(actual, base, strict=True))]
        drawn = [every] * len(learning.effect.draws)
    hours = [learning.seconds(run) / 3600 for run in actual]
    gains = [learning.seconds(other) / learning.seconds(run) for run, other in zip(actual, base, strict=True)]
    drawn_hours, drawn_gains = [], []
    for number, row in enumerate(drawn):
        seconds = [
            (one.seed, learning.seconds(one.run, number), learning.seconds(one.base, number)) for one in row
        ]
        drawn_hours.append([(seed, own / 3600) for seed, own, _ in seconds])
        drawn_gains.append([(seed, there / own) for seed, own, there in seconds])
    mean, low, high = _with_interval(hours, drawn_hours)
    gpus = actual[0][c.NUM_GPUS]
    values = (
        sum(learning.progress(run) for run in actual) / len(actual),
        mean, low, high,
        mean * gpus, low * gpus, high * gpus,
        *_with_interval(gains, drawn_gains),
    )  # fmt: skip
    return dict(zip(TO_REWARD_COLUMNS, values, strict=True))


def _with_interval(
    point: Sequence[float], drawn: Sequence[Sequence[tuple[int, float]]]
) -> tuple[float, float, float]:
    """Geometric mean over the seeds, low and high. ``drawn``: (seed, value) by draw; what a seed does of its
    own is taken out."""
    if not all(value > 0 for value in point):
        return nan, nan, nan
    mean, *ends = ratio_interval(point)
    values = [mean * geometric_mean([value / point[seed] for seed, value in row]) for row in drawn]
    return mean, *both(mean, (ends[0], ends[1]), machine_interval(values))
