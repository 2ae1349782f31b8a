"""Batches that a step generates one after the other where groups are filtered (DAPO's dynamic sampling).

verl and NeMo RL generate a whole batch, keep the groups whose rewards differ, and generate another one until
there are enough; seconds of generation are the sum. The log has the lengths of what is trained alone.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from oppo_sim.columns import GENERATION_BATCHES, ROLLOUTS_ADMITTED, SLOWEST_LENGTH
from oppo_sim.dynamic_sampling import DynamicSampling, PassRate
from oppo_sim.errors import OppoError
from oppo_sim.fit.log.rebuilt_lengths import LengthFigures, rebuilt_lengths
from oppo_sim.scenario.load import scenario_from_plain

if TYPE_CHECKING:
    from oppo_sim.fit.log.step_log import StepLog
    from oppo_sim.scenario.schema import Scenario

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_SHARES: Final[Floats] = np.linspace(0.01, 0.99, 491)
"""Of groups that are kept: a scenario takes no less than the first."""
_SHAPES: Final = (1e-3, 1e3)


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
    counts = _counts(log, scenario)
    if max(counts) == 1:
        return None
    return (
        f"generation of a step is {min(counts)} to {max(counts)} batches, one after the other"
        f" (num_gen_batches), and was fitted as such"
    )


def as_sampled(scenario: "Scenario", logs: Sequence["StepLog"]) -> tuple["Scenario", str | None]:
    """The scenario that generates in batches as the runs of its logs did, and a sentence that says so; as it
    is where each step of theirs generated one.

    How many batches a step took gives the share of the groups that was kept, and that the pass rate: of a
    symmetric beta distribution, since counts identify one number. Rewards or a pass rate that the scenario
    has are left as they are.
    """
    counts = [count for log in logs for count in _counts(log, scenario)]
    if max(counts) == 1:
        return scenario, None
    sampling, size = scenario.dynamic_sampling, scenario.group_size
    if sampling.enable and sampling.gen_batch_size:
        return scenario, None
    generated = sampling.gen_batch_size or scenario.rollout_batch_size
    settings: dict[str, object] = {**dict(sampling), "enable": True, "gen_batch_size": generated}
    said = f"the written scenario generates in batches of {generated} rollouts, too (dynamic_sampling)"
    if not (sampling.enable or sampling.pass_rate):
        low, share, high = kept_shares(counts, generated // size, scenario.rollout_batch_size // size)
        rate = settings["pass_rate"] = _pass_rate(share, size)
        said += (
            f", and keeps {rate.kept_share(size):.2g} of its groups of {size}: the counts of the log say"
            f" {share:.2g} [{low:.2g}, {high:.2g}]"
        )
    changed = scenario.model_copy(update={"dynamic_sampling": DynamicSampling.model_validate(settings)})
    try:
        scenario_from_plain(changed.to_plain(), base_dir=scenario.base_dir)
    except OppoError as error:
        return scenario, f"the written scenario does not generate in batches: {error}"
    return changed, said


def kept_shares(counts: Sequence[int], groups: int, needed: int) -> tuple[float, float, float]:
    """Share of groups that are kept, its 95 % interval about its mean: (low, mean, high).

    A step that took k batches of ``groups`` kept fewer than ``needed`` of the first k − 1 and as many in all
    k. Every share from 0.01 to 0.99 is as likely before.
    """
    from scipy.stats import binom

    logs = np.zeros(len(_SHARES))
    for count, times in zip(*np.unique(counts, return_counts=True), strict=True):
        short_before = binom.cdf(needed - 1, (count - 1) * groups, _SHARES)
        short = binom.cdf(needed - 1, count * groups, _SHARES)
        logs += times * np.log(np.maximum(short_before - short, 1e-300))
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    low, high = np.interp((0.025, 0.975), np.cumsum(weights), _SHARES)
    return float(low), float(weights @ _SHARES), float(high)


def _pass_rate(share: float, group_size: int) -> PassRate:
    """Symmetric, so that ``share`` of the groups is kept; the most that can be where that is more."""
    from scipy.optimize import brentq

    def over(log_shape: float) -> float:
        shape = float(np.exp(log_shape))
        return PassRate(alpha=shape, beta=shape).kept_share(group_size) - share

    low, high = np.log(_SHAPES)
    if over(low) >= 0.0:
        shape = _SHAPES[0]
    else:
        shape = _SHAPES[1] if over(high) <= 0.0 else float(np.exp(brentq(over, low, high)))
    shape = float(f"{shape:.3g}")
    return PassRate(alpha=shape, beta=shape)


def _counts(log: "StepLog", scenario: "Scenario") -> list[int]:
    return [batches_of(row, scenario) for row in log.frame.to_dict("records")]


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
    generating = np.concatenate((prompts, prompts[generator.integers(trained, size=others)]))
    return generated, generating[places]
