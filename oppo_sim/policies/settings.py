"""Settings of the shipped policies: what each accepts, and its defaults. Checked when a scenario is read."""

from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from oppo_sim.errors import OppoError
from oppo_sim.policies.controllers import ChunkControl, DeltaControl
from oppo_sim.policies.interface import Batch, ScoreGranularity, StopCheck

ChunkSize = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
Rollouts = Annotated[int, Field(strict=True, ge=0, le=1_000_000)]
ShareOfBatch = Annotated[float, Field(strict=True, ge=0.0, le=100.0)]
Overcommit = Rollouts | ShareOfBatch
OVERCOMMIT_HELP = "Δ: rollouts (8), a share of B (0.07), or {control: reward_slope, …}"


class PolicySettings(BaseModel):
    """Base: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    INHERITED: ClassVar[tuple[str, ...]] = ("chunk_size", "stop_check", "max_deferrals")
    """Fields that ``compare`` takes over from the scenario's own policy."""


class SequentialSettings(PolicySettings):
    stop_check: StopCheck = Field(
        "token", description="token: end at the B-th finish; chunk: in rounds of chunk_size iterations"
    )
    chunk_size: ChunkSize | ChunkControl = Field(
        256, description="length of a round under stop_check chunk, tokens"
    )
    overcommit: ClassVar[Overcommit] = 0
    max_deferrals: ClassVar[int | None] = None
    score_granularity: ClassVar[ScoreGranularity] = "batch"


class IntraSettings(SequentialSettings):
    chunk_size: ChunkSize | ChunkControl = Field(
        256, description="tokens of a streamed piece, or {control: explore, …}"
    )
    score_granularity: ClassVar[ScoreGranularity] = "chunk"


class RolloutOverlapSettings(SequentialSettings):
    score_granularity: ClassVar[ScoreGranularity] = "rollout"


class CarrySettings(PolicySettings):
    """Policies that admit more than B and carry the rest."""

    INHERITED: ClassVar[tuple[str, ...]] = ("chunk_size", "stop_check", "max_deferrals", "overcommit")

    stop_check: StopCheck = "token"
    chunk_size: ChunkSize | ChunkControl = Field(
        256, description="tokens of a streamed piece, or {control: explore, …}"
    )
    max_deferrals: int | None = Field(
        None, ge=0, description="a rollout deferred this often is waited for; null: never"
    )


class InterSettings(CarrySettings):
    overcommit: Overcommit | DeltaControl = Field(0.0625, description=OVERCOMMIT_HELP)
    score_granularity: ScoreGranularity = "batch"


class OppoSettings(CarrySettings):
    chunk_size: ChunkSize | ChunkControl = Field(
        ChunkControl(), description="tokens of a streamed piece, or {control: explore, …}"
    )
    overcommit: Overcommit | DeltaControl = Field(DeltaControl(), description=OVERCOMMIT_HELP)
    score_granularity: ScoreGranularity = "chunk"


class PartialRolloutSettings(PolicySettings):
    INHERITED: ClassVar[tuple[str, ...]] = ("max_deferrals",)

    token_budget: ChunkSize = Field(1024, description="iterations of a round")
    overcommit: Overcommit = Field(0.5, description="Δ: rollouts, or a share of B")
    max_deferrals: int | None = Field(None, ge=0)
    stop_check: ClassVar[StopCheck] = "chunk"
    score_granularity: ClassVar[ScoreGranularity] = "batch"

    @property
    def chunk_size(self) -> int:
        """A round is the token budget."""
        return self.token_budget


class AprilSettings(PolicySettings):
    INHERITED: ClassVar[tuple[str, ...]] = ("max_deferrals", "chunk_size")

    overcommit: Overcommit = Field(1.0, description="Δ: rollouts, or a share of B")
    max_deferrals: int | None = Field(None, ge=0)
    score_granularity: ScoreGranularity = "batch"
    chunk_size: ChunkSize | ChunkControl = 256
    stop_check: ClassVar[StopCheck] = "token"


class TailBatchingSettings(PolicySettings):
    INHERITED: ClassVar[tuple[str, ...]] = ("stop_check", "chunk_size")

    over_issue: float = Field(1.25, ge=1.0, le=100.0, description="η: a short step admits η · B")
    stop_check: StopCheck = "token"
    score_granularity: ScoreGranularity = "batch"
    chunk_size: ChunkSize | ChunkControl = 256


class OneStepOffSettings(PolicySettings):
    INHERITED: ClassVar[tuple[str, ...]] = ("chunk_size",)

    score_granularity: ScoreGranularity = "batch"
    chunk_size: ChunkSize | ChunkControl = 256


class AsyncSettings(PolicySettings):
    INHERITED: ClassVar[tuple[str, ...]] = ("chunk_size",)

    max_staleness: int = Field(
        1, ge=0, le=1000, description="bounds admission: admitted < B · (updates done + max_staleness + 1)"
    )
    score_granularity: ScoreGranularity = "rollout"
    chunk_size: ChunkSize | ChunkControl = 256


class OracleSettings(PolicySettings):
    INHERITED: ClassVar[tuple[str, ...]] = ("stop_check", "chunk_size")

    window: int = Field(4, ge=1, le=1000, description="batches whose lengths it knows and sorts")
    stop_check: StopCheck = "token"
    score_granularity: ScoreGranularity = "chunk"
    chunk_size: ChunkSize | ChunkControl = 256


def overcommit_rollouts(overcommit: Overcommit, batch: Batch) -> int:
    """Δ in rollouts: a float is a share of B, rounded up to whole groups (docs/model.md C17)."""
    if isinstance(overcommit, float):
        return batch.whole_groups(round(overcommit * batch.rollout_batch_size, 9))
    if overcommit % batch.group_size:
        raise OppoError(
            f"overcommit {overcommit} is not a multiple of group_size {batch.group_size}: make it one, or"
            " give a share of B such as 0.1"
        )
    return overcommit
