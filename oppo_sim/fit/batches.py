"""Batches that a step generates one after the other where groups are filtered (DAPO's dynamic sampling).

verl and NeMo RL generate a whole batch, keep the groups whose rewards differ, and generate another one until
there are enough; seconds of generation are the sum. The log has the lengths of what is trained alone.
"""

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from oppo_sim.columns import GENERATION_BATCHES, SLOWEST_LENGTH, STEP
from oppo_sim.errors import OppoError
from oppo_sim.fit.lengths import LengthFigures, rebuilt_lengths

if TYPE_CHECKING:
    from oppo_sim.fit.reading import StepLog
    from oppo_sim.scenario.schema import Scenario

Ints = npt.NDArray[np.int64]


def batches_of(row: Mapping[Hashable, float]) -> int:
    """Batches that a step generated; one where the log does not count them."""
    count = row.get(GENERATION_BATCHES, float("nan"))
    return 1 if np.isnan(count) else round(count)


def batch_rollouts(log: "StepLog", scenario: "Scenario") -> int | None:
    """Rollouts of one of them; None: as many as are trained."""
    return None if log.gen_batch_size is None else log.gen_batch_size * scenario.group_size


def check_batches(log: "StepLog", scenario: "Scenario") -> None:
    """Raise OppoError where a step generated fewer rollouts than it trains."""
    each, trained = batch_rollouts(log, scenario), scenario.rollout_batch_size
    if each is None:
        return
    for row in log.frame.to_dict("records"):
        if batches_of(row) * each < trained:
            raise OppoError(
                f"{log.name}, step {int(row[STEP])}: batches of {each} rollouts ({batches_of(row)} of them)"
                f" are fewer than the {trained} that are trained: --gen-batch-size is prompts a batch, and"
                f" the scenario's group_size is {scenario.group_size}"
            )


def batches_note(log: "StepLog", scenario: "Scenario") -> str | None:
    """What a user should know of it; None: every step generated one batch."""
    counts = [batches_of(row) for row in log.frame.to_dict("records")]
    if max(counts) == 1:
        return None
    simulated = (
        "replaces a dropped group at once instead"
        if scenario.dynamic_sampling.enable
        else "generates one batch a step: dynamic_sampling.enable replaces groups, each at once"
    )
    return (
        f"generation of a step is {min(counts)} to {max(counts)} batches, one after the other"
        f" (num_gen_batches), and was fitted as such; a simulation of the written scenario {simulated}"
    )


def in_batches(
    responses: Ints,
    prompts: Ints,
    row: Mapping[Hashable, float],
    size: int | None,
    cut: int,
    generator: np.random.Generator,
) -> tuple[Ints, Ints]:
    """What was generated, draws × batches × rollouts, and its prompts, batches × rollouts.

    ``responses``: draws × rollouts that are trained; ``size``: as of ``batch_rollouts``. What was dropped has
    their mean and spread, and a longest response of its own; ``cut`` is the longest possible. The rollout
    that finished last, where it is logged, is of the last batch.
    """
    count, trained = batches_of(row), responses.shape[1]
    size = trained if size is None else size
    if count * size == trained:
        return responses[:, None, :], prompts[None, :]
    others = count * size - trained
    figures = LengthFigures(others, float(responses.mean()), std=float(responses.std(axis=1).mean()), cut=cut)
    dropped = rebuilt_lengths(figures, len(responses), generator)
    places = generator.permutation(count * size).reshape(count, size)
    generated = np.concatenate((responses, dropped), axis=1)[:, places]
    slowest = row.get(SLOWEST_LENGTH, float("nan"))
    if not np.isnan(slowest):
        last = generated[:, -1]
        longest = last.argmax(axis=1)[:, None]
        np.put_along_axis(last, longest, np.maximum(last.max(axis=1)[:, None], round(slowest)), axis=1)
    asked = np.concatenate((prompts, prompts[generator.integers(trained, size=others)]))
    return generated, asked[places]
