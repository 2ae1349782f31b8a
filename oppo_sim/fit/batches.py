"""Batches that a step generates one after the other where groups are filtered (DAPO's dynamic sampling).

verl and NeMo RL generate a whole batch, keep the groups whose rewards differ, and generate another one until
there are enough; seconds of generation are the sum. The log has the lengths of what is trained alone.
"""

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from oppo_sim.columns import GENERATION_BATCHES, ROLLOUTS_ADMITTED, SLOWEST_LENGTH
from oppo_sim.fit.lengths import LengthFigures, rebuilt_lengths

if TYPE_CHECKING:
    from oppo_sim.fit.reading import StepLog
    from oppo_sim.scenario.schema import Scenario

Ints = npt.NDArray[np.int64]


def batches_of(row: Mapping[Hashable, float], scenario: "Scenario") -> int:
    """Batches that a step generated; one where the log does not count them. A run of ours has what it
    admitted."""
    count, admitted = (row.get(name, float("nan")) for name in (GENERATION_BATCHES, ROLLOUTS_ADMITTED))
    size = batch_size(row, scenario)
    if np.isnan(count) and size is not None and not np.isnan(admitted):
        return max(1, round(admitted / size))
    return 1 if np.isnan(count) else round(count)


def batch_size(row: Mapping[Hashable, float], scenario: "Scenario") -> int | None:
    """Rollouts of one of them; None: as many as are trained."""
    judged = scenario.dynamic_sampling.enable or GENERATION_BATCHES in row
    return scenario.dynamic_sampling.gen_batch_size if judged else None


def batches_note(log: "StepLog", scenario: "Scenario") -> str | None:
    """What a user should know of it; None: every step generated one batch."""
    counts = [batches_of(row, scenario) for row in log.frame.to_dict("records")]
    if max(counts) == 1:
        return None
    said = (
        f"generation of a step is {min(counts)} to {max(counts)} batches, one after the other"
        f" (num_gen_batches), and was fitted as such"
    )
    sampling = scenario.dynamic_sampling
    if sampling.enable and sampling.gen_batch_size:
        return said
    return (
        f"{said}; the written scenario does not run so: set dynamic_sampling.enable, gen_batch_size (rollouts"
        " a batch) and pass_rate in it"
    )


def in_batches(
    responses: Ints,
    prompts: Ints,
    row: Mapping[Hashable, float],
    scenario: "Scenario",
    generator: np.random.Generator,
) -> tuple[Ints, Ints]:
    """What was generated, draws × batches × rollouts, and its prompts, batches × rollouts.

    ``responses``: draws × rollouts that are trained. What was dropped has their mean and spread, and a
    longest response of its own. The rollout that finished last, where it is logged, is of the last batch.
    """
    count, trained = batches_of(row, scenario), responses.shape[1]
    size, cut = max(batch_size(row, scenario) or 0, trained), scenario.max_response_length
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
