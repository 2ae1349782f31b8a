"""``rollout-overlap``: score each rollout as soon as it has finished."""

from typing import ClassVar

from oppo_sim.policies.interface import ScoreGranularity
from oppo_sim.policies.refill import Refill
from oppo_sim.policies.shipped.sequential import SequentialSettings


class RolloutOverlapSettings(SequentialSettings):
    score_granularity: ClassVar[ScoreGranularity] = "rollout"


class RolloutOverlap(Refill):
    """Score each rollout when it finishes, as agentic frameworks do."""

    name = "rollout-overlap"
    summary = "score each rollout when it finishes"
    carries = False
    recomputes = False
    Settings = RolloutOverlapSettings
    inherited = ("chunk_size", "stop_check")
