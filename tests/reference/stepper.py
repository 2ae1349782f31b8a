"""The reference's door: one configuration, one run."""

from .asynchronous import run_async, run_one_step_off
from .config import Counters, ReferenceConfig, ReferenceResult, StepRecord, TrainedRollout
from .pool import Lengths
from .synchronous import Rewards, run_synchronous

__all__ = ["Counters", "ReferenceConfig", "ReferenceResult", "StepRecord", "TrainedRollout", "run"]


def run(config: ReferenceConfig, lengths: Lengths, rewards: Rewards) -> ReferenceResult:
    """Run ``config.steps`` steps.

    ``lengths(rollout_id, step_first_admitted)`` answers (prompt tokens, response tokens ≥ 1),
    ``rewards(step, trained ids)`` the batch's mean reward.
    Raises ValueError where a rollout never fits the KV.
    """
    if config.policy == "one-step-off":
        return run_one_step_off(config, lengths, rewards)
    if config.policy == "async":
        return run_async(config, lengths, rewards)
    return run_synchronous(config, lengths, rewards)
