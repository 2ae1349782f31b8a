"""Steps that train again what another generated: TRL's and ms-swift's step is one update, and a generation
may be trained in several (``num_iterations``, ``steps_per_generation``)."""

from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Final

import numpy as np

from oppo_sim.columns import LENGTH_MEAN, TIMING_STEP, TOKENS_CUMULATIVE, TOKENS_TOTAL
from oppo_sim.errors import OppoError
from oppo_sim.fit.log.segments import Gathered
from oppo_sim.scenario.schema import Scenario

if TYPE_CHECKING:
    from oppo_sim.fit.log.step_log import StepLog

_INCOMPLETE: Final = "step of a generation whose steps are not all logged"
_FEWEST: Final = 3
_APART: Final = 0.2
"""From the rollouts of the scenario, that tokens may be, relatively."""


def joined(gathered: Gathered) -> int:
    """How many steps train a generation, as the lines without lengths between those that have some show. Of
    each generation the mean step is kept, as of a line that is of several steps."""
    rows = gathered.rows
    bare = {step for step, row in rows.items() if TIMING_STEP in row and LENGTH_MEAN not in row}
    first = sorted(step for step, row in rows.items() if LENGTH_MEAN in row)
    if len(first) < _FEWEST or not bare:
        return 1
    apart = round(median(after - before for before, after in pairwise(first)))
    whole = [step for step in first if all(step + each in bare for each in range(1, apart))]
    if apart < 2 or len(whole) < _FEWEST or 2 * len(whole) < len(first):
        return 1
    kept = {}
    for step in whole:
        row = dict(rows[step])
        for column in [each for each in row if each.startswith("timing_s/")]:
            row[column] = sum(rows[step + each].get(column, 0.0) for each in range(apart)) / apart
        kept[step] = row
    left = len(rows) - apart * len(whole)
    if left:
        gathered.left_out[_INCOMPLETE] += left
    rows.clear()
    rows.update(kept)
    return apart


def of_generations(log: "StepLog", scenario: Scenario) -> "StepLog":
    """A step for each generation, with the seconds and tokens of all steps that train it. Raises OppoError
    where its tokens are fewer than its responses have, and the scenario does not explain that."""
    times = log.generation_steps if log.generation_steps > 1 else _by_tokens(log, scenario)
    if times == 1:
        return log
    frame = log.frame.copy()
    seconds = [each for each in (*log.covers, TIMING_STEP, TOKENS_TOTAL) if each in frame]
    frame[seconds] = frame[seconds] * float(times)
    note = (
        f"{times} of its steps train what one of them generates (num_iterations, steps_per_generation): they"
        " are taken together, as one step"
    )
    return replace(log, frame=frame, notes=(*log.notes, note))


def _by_tokens(log: "StepLog", scenario: Scenario) -> int:
    """Of lines that are each of as many steps as train a generation, or of several times as many."""
    frame, batch = log.frame, scenario.rollout_batch_size
    if log.lengths is not None or not {TOKENS_CUMULATIVE, TOKENS_TOTAL, LENGTH_MEAN} <= set(frame.columns):
        return 1
    share = float(np.nanmedian(frame[TOKENS_TOTAL] / (batch * frame[LENGTH_MEAN]))) if len(frame) else np.nan
    if not share < 1.0 - _APART:
        return 1
    times = scenario.training.num_ppo_epochs * scenario.training.num_mini_batches
    mean = float(frame[LENGTH_MEAN].median())
    if times > 1 and 1.0 - _APART <= share * times <= 1.0 + scenario.max_prompt_length / mean:
        return times
    raise OppoError(
        f"{log.name} has tokens for at most {share * batch:.0f} responses a step, but rollout_batch_size of"
        f" the scenario is {batch}: correct it (prompts a batch × samples a prompt). Where a generation is"
        " trained in several steps (num_iterations, steps_per_generation), their number is"
        " training.num_ppo_epochs × training.num_mini_batches"
    )
