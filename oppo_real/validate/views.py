"""What is compared of a step, the same from a real run and from a simulated one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from oppo_sim import columns as c

if TYPE_CHECKING:
    import pandas as pd

STAGES: Final = (*c.STAGES, "step")
WORK: Final = (c.TOKENS_DECODED, c.TOKENS_PREFILLED, c.TOKENS_RECOMPUTED, c.TOKENS_SCORED, c.SCORER_BATCHES)
"""Counts that seconds come from."""


@dataclass(frozen=True)
class StepView:
    """One step."""

    seconds: Mapping[str, float]
    """By stage; ``step`` is the whole. Lock-step: decode iterations."""
    trained: tuple[int, ...]
    """Rollout ids in order of selection."""
    deferred: int
    surplus: int
    overcommit: int
    chunk_size: int
    work: Mapping[str, float]
    histograms: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Of ``columns.DISTRIBUTIONS``: trained rollouts with 0, 1, … updates of staleness, or deferrals."""


Views = Sequence[StepView]
"""A run, step by step."""


def views_of(steps: "pd.DataFrame", rollouts: "pd.DataFrame") -> tuple[StepView, ...]:
    """Step and rollout tables of a run, as views."""
    ordered = rollouts.dropna(subset=[c.TRAINED_STEP]).sort_values([c.TRAINED_STEP, c.TRAINED_RANK])
    trained: dict[int, list[int]] = {}
    for step, rollout_id in zip(
        ordered[c.TRAINED_STEP].tolist(), ordered[c.ROLLOUT_ID].tolist(), strict=True
    ):
        trained.setdefault(step, []).append(rollout_id)
    return tuple(
        StepView(
            {stage: float(row[c.timing(stage)]) for stage in STAGES},
            tuple(int(rollout_id) for rollout_id in trained[row[c.STEP]]),
            int(row[c.ROLLOUTS_DEFERRED]),
            int(row[c.ROLLOUTS_SURPLUS]),
            int(row[c.OVERCOMMIT]),
            int(row[c.CHUNK_SIZE]),
            {name: float(row[name]) for name in WORK},
            {name: tuple(map(int, row[column])) for name, column in c.DISTRIBUTIONS.items()},
        )
        for row in steps.to_dict(orient="records")
    )
