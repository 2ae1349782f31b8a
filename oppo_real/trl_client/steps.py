"""What a finished step tells the log and the user."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oppo_real.ppo.rollout import TrainRollout
from oppo_sim import columns as c


def _count(column: str) -> Any:
    return property(lambda record: int(record.row[column]))


@dataclass(frozen=True)
class StepRecord:
    """One training step. Seconds and tokens."""

    row: Mapping[str, Any]
    """As in the step table of every run, by column."""
    rollouts: tuple[TrainRollout, ...]
    """The trained batch, in its order."""

    step = _count(c.STEP)

    @property
    def timing_s(self) -> dict[str, float]:
        """Stage → seconds, and ``step``. TRL updates actor and critic together: ``update_actor`` is all that
        no other stage is."""
        stages = {stage: float(self.row[c.timing(stage)]) for stage in (*c.STAGES, "step")}
        known = sum(seconds for stage, seconds in stages.items() if stage not in ("step", "update_actor"))
        return {**stages, "update_actor": max(0.0, stages["step"] - known)}

    @property
    def trained(self) -> tuple[int, ...]:
        """Rollout ids."""
        return tuple(rollout.rollout_id for rollout in self.rollouts)

    @property
    def prompts(self) -> tuple[tuple[int, ...], ...]:
        """Without padding."""
        return tuple(rollout.prompt for rollout in self.rollouts)

    @property
    def responses(self) -> tuple[tuple[int, ...], ...]:
        """Without padding."""
        return tuple(rollout.response for rollout in self.rollouts)

    @property
    def versions(self) -> tuple[tuple[int, ...], ...]:
        """Weight version of each response token."""
        return tuple(rollout.weight_versions for rollout in self.rollouts)

    @property
    def response_lengths(self) -> tuple[int, ...]:
        """Of the trained batch."""
        return tuple(map(len, self.responses))

    weight_version = _count(c.WEIGHT_VERSION)
    """Updates done before this one."""
    admitted = _count(c.ROLLOUTS_ADMITTED)
    deferred = _count(c.ROLLOUTS_DEFERRED)
    surplus = _count(c.ROLLOUTS_SURPLUS)
    dropped = _count(c.ROLLOUTS_DROPPED)
    overcommit = _count(c.OVERCOMMIT)
    chunk_size = _count(c.CHUNK_SIZE)
    tokens_decoded = _count(c.TOKENS_DECODED)
    tokens_recomputed = _count(c.TOKENS_RECOMPUTED)
    tokens_padding = _count(c.TOKENS_PADDING)
    tokens_dropped = _count(c.TOKENS_DROPPED)
    tokens_scored = _count(c.TOKENS_SCORED)
    """Prefilled by a scorer beside the loop; 0 where TRL's loop scores."""
    tokens_in_flight = _count(c.TOKENS_IN_FLIGHT)

    @property
    def staleness(self) -> tuple[int, ...]:
        """Of each trained rollout: versions between its first token and the update."""
        return tuple(self.weight_version - versions[0] for versions in self.versions)

    @property
    def spans(self) -> tuple[int, ...]:
        """Distinct weight versions of each trained rollout."""
        return tuple(len(set(versions)) for versions in self.versions)

    @property
    def reward_mean(self) -> float:
        """TRL's ``objective/scores``."""
        return float(self.row[c.REWARD_MEAN])

    def metrics(self) -> dict[str, float]:
        """Under the column names of ``oppo_sim``, to be logged beside TRL's own."""
        times = {c.timing(stage): seconds for stage, seconds in self.timing_s.items()}
        return times | {name: float(self.row[name]) for name in _LOGGED}


_LOGGED = (
    c.LENGTH_MEAN, c.LENGTH_MAX, c.LENGTH_MIN, c.LENGTH_CLIP_RATIO, c.ROLLOUTS_ADMITTED, c.ROLLOUTS_DEFERRED,
    c.ROLLOUTS_SURPLUS, c.ROLLOUTS_DROPPED, c.PARTIAL_RATIO, c.STALENESS_MEAN, c.STALENESS_MAX, c.SPANS_MEAN,
    c.SPANS_MAX, c.OVERCOMMIT, c.CHUNK_SIZE, c.TOKENS_DECODED, c.TOKENS_TRAINED, c.TOKENS_RECOMPUTED,
    c.TOKENS_PADDING, c.TOKENS_DROPPED, c.TOKENS_SCORED, c.TOKENS_IN_FLIGHT,
)  # fmt: skip
