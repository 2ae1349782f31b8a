"""What the settings of policies are made of. Checked when a scenario is read."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from oppo_sim.errors import OppoError
from oppo_sim.policies.interface import Batch

ChunkSize = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
Rollouts = Annotated[int, Field(strict=True, ge=0, le=1_000_000)]
ShareOfBatch = Annotated[float, Field(strict=True, ge=0.0, le=100.0)]
Overcommit = Rollouts | ShareOfBatch
OVERCOMMIT_HELP = "Δ: rollouts (8), a share of B (0.07), or {control: reward_slope, …}"
CHUNK_HELP = "tokens of a streamed piece, or {control: explore, …}"
DEFERRALS_HELP = "a rollout deferred this often is waited for; null: never"


class PolicySettings(BaseModel):
    """Base of every policy's ``Settings``: unknown fields are refused, and nothing changes afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True)


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
