"""What the settings of policies are made of. Checked when a scenario is read."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _at_most_the_batch(share: float) -> float:
    # 8.0 from one who means 8 rollouts would be eight batches.
    if share > 1.0:
        raise ValueError(
            f"{share!r} means {share:g} times the batch: give rollouts as a whole number, or at most 1.0"
        )
    return share


ChunkSize = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
Rollouts = Annotated[int, Field(strict=True, ge=0, le=1_000_000)]
ShareOfBatch = Annotated[float, Field(strict=True, ge=0.0), AfterValidator(_at_most_the_batch)]
Overcommit = Rollouts | ShareOfBatch
OVERCOMMIT_HELP = "Δ: rollouts (8), a share of B (0.07), or {control: reward_slope, …}"
DEFERRALS_HELP = "a rollout deferred this often is waited for; null: never"


class PolicySettings(BaseModel):
    """Base of every policy's ``Settings``: unknown fields are refused, and nothing changes afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True)
