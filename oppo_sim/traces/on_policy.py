"""The lengths that training on policy would see: those of the rollouts that sequential training takes in the
same steps under the same seed. Known from the trace alone."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from oppo_sim.draws import indices

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from oppo_sim.traces.replay import Replay

_AT_ONCE: Final = 1 << 18
"""Groups that are drawn at once, so that memory does not grow with the steps."""


def on_policy_length_mean(
    replay: "Replay",
    rollout_batch_size: int,
    first_step: int,
    steps: int,
    sample_rewards: Sequence[float] | None,
) -> float:
    """Mean response length (tokens) of what sequential training trains in steps ``first_step`` to
    ``steps`` − 1: rollouts in order of admission, without groups that dynamic sampling drops.

    ``rollout_batch_size``: a multiple of the replay's group size; ``sample_rewards``: one a row of the trace,
    by which groups are judged; None: none is.
    """
    import numpy as np

    size = replay.group_size
    lengths = np.asarray(replay.response_lengths, dtype=np.int64)
    kept = np.ones(len(lengths), dtype=np.bool_)
    if sample_rewards is not None:
        rewards = np.asarray(sample_rewards)
        for first, groups in replay.blocks:
            rows = rewards[first : first + groups * size].reshape(groups, size)
            kept[first : first + groups * size] = np.repeat((rows != rows[:, :1]).any(axis=1), size)
    per_step = rollout_batch_size // size
    skipped, wanted = first_step * per_step, (steps - first_step) * per_step
    deal = _by_step(replay, per_step, kept) if replay.sampling == "by_step" else _from_all(replay, kept)
    whole = 0
    for rows in deal:  # first rows of groups that are trained, in order
        if skipped >= len(rows):
            skipped -= len(rows)
            continue
        taken = rows[skipped : skipped + wanted]
        skipped = 0
        whole += sum(int(lengths[taken + member].sum()) for member in range(size))
        wanted -= len(taken)
        if not wanted:
            break
    return whole / ((steps - first_step) * rollout_batch_size)


def _from_all(replay: "Replay", kept: "npt.NDArray[np.bool_]") -> "Iterator[npt.NDArray[np.int64]]":
    """Groups drawn from all rows, or in order."""
    import numpy as np

    ((_, groups),) = replay.blocks
    number, count = 0, min(_AT_ONCE, max(1024, groups))
    while True:
        if replay.sampling == "in_order":
            drawn = np.arange(number, number + count, dtype=np.int64) % groups
        else:
            drawn = indices(replay.key, count, groups, number)
        rows = drawn * replay.group_size
        yield rows[kept[rows]]
        number += count


def _by_step(
    replay: "Replay", per_step: int, kept: "npt.NDArray[np.bool_]"
) -> "Iterator[npt.NDArray[np.int64]]":
    """Each step's own groups, then draws from them."""
    import numpy as np

    number, step = 0, 0
    while True:
        first, groups = replay.blocks[step % len(replay.blocks)]
        place, missing = 0, per_step
        while missing:  # as many again as were dropped
            places = np.arange(place, place + missing, dtype=np.int64)
            drawn = np.where(places < groups, places, indices(replay.key, missing, groups, number))
            rows = first + drawn * replay.group_size
            yield rows[kept[rows]]
            place, number = place + missing, number + missing
            missing -= int(kept[rows].sum())
        step += 1
