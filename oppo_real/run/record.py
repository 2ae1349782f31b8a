"""What a real run keeps beside its rows: the length trace it made, and the trainer's metrics."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from oppo_real.run.rollout import RealRollout
from oppo_real.run.setup import RealSetup
from oppo_sim.columns import (
    FINISH_REASON,
    GROUP_ID,
    PROMPT_ID,
    PROMPT_LENGTH,
    RESPONSE_LENGTH,
    REWARD,
    ROLLOUT_ID,
    SAMPLE_ID,
    SOURCE,
    STAGES,
    STEP,
    TOOL_SECONDS,
    TOOL_TOKENS,
    TURN_LENGTHS,
    RolloutRow,
    timing,
)
from oppo_sim.results.spans import Marker, Span
from oppo_sim.traces.schema import check_frame

if TYPE_CHECKING:
    import pandas as pd

_TIMING = {timing(stage) for stage in (*STAGES, "step")}


class Record:
    """Grows by a step at a time."""

    def __init__(self, setup: RealSetup) -> None:
        self._setup = setup
        self.step_rows: list[dict[str, Any]] = []
        self.rollout_rows: list[RolloutRow] = []
        self.trace_rows: list[dict[str, Any]] = []
        self.metric_rows: list[dict[str, float]] = []
        self.resolved: Mapping[str, Any] = {}
        self.spans: list[Span] = []
        self.markers: list[Marker] = []

    def on_step(self, row: Mapping[str, Any]) -> None:
        self.step_rows.append(dict(row))

    def on_rollouts(self, rows: Sequence[RolloutRow]) -> None:
        self.rollout_rows.extend(rows)

    def after_step(self, step: int, batch: Sequence[RealRollout], metrics: Mapping[str, float]) -> None:
        """Keep what the step's batch was, and what its update said."""
        size, base = self._setup.base.batch.group_size, self._setup.base
        turns = base.replay.waits is not None and self._setup.config.mode == "replay"
        for rollout in batch:
            self.trace_rows.append(
                {
                    SOURCE: base.scenario.name,
                    STEP: rollout.admitted_step,
                    PROMPT_ID: str(rollout.group_id),
                    SAMPLE_ID: str(rollout.rollout_id % size),
                    PROMPT_LENGTH: rollout.prompt_length,
                    RESPONSE_LENGTH: rollout.response_length,
                    FINISH_REASON: rollout.finish_reason,
                    REWARD: rollout.score,
                    ROLLOUT_ID: rollout.rollout_id,
                    GROUP_ID: rollout.group_id,
                    **(_turns(rollout) if turns else {}),
                }
            )
        self.metric_rows.append(
            {STEP: step, **{name: value for name, value in metrics.items() if name not in _TIMING}}
        )

    def trace(self) -> "pd.DataFrame":
        """The trained rollouts as a checked length trace, in order of admission."""
        import pandas as pd

        frame = pd.DataFrame(self.trace_rows).sort_values(ROLLOUT_ID, ignore_index=True)
        return check_frame(frame, "the run's trace")

    def training(self) -> "pd.DataFrame":
        """One row a step."""
        import pandas as pd

        return pd.DataFrame(self.metric_rows)


def _turns(rollout: RealRollout) -> dict[str, Any]:
    ends = [0, *(wait.after for wait in rollout.waits), rollout.response_length]
    return {
        TURN_LENGTHS: [end - begin for begin, end in pairwise(ends)],
        TOOL_SECONDS: [wait.seconds for wait in rollout.waits],
        TOOL_TOKENS: [wait.tokens for wait in rollout.waits],
    }
