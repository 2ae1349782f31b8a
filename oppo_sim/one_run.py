"""One run of a scenario that was built: into a sink, with what is told meanwhile and warned of after."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from oppo_sim.columns import KV_PEAK_TOKENS, TIMING_STEP, RolloutRow
from oppo_sim.errors import OppoError
from oppo_sim.fast.choose import run_into
from oppo_sim.results.sinks import Sink
from oppo_sim.results.spans import Marker, Span
from oppo_sim.runs.kv_room import kv_warnings
from oppo_sim.runs.sync_share import sync_warnings
from oppo_sim.scenario.build import Setup
from oppo_sim.scenario.schema import Scenario

if TYPE_CHECKING:
    import pandas as pd


class ProgressSink:
    """Tells a callback how many steps are done."""

    def __init__(self, progress: Callable[[int], None]) -> None:
        self._progress = progress
        self._done = 0

    def on_step(self, row: Mapping[str, Any]) -> None:
        self._done += 1
        self._progress(self._done)

    def on_rollouts(self, rows: Sequence[RolloutRow]) -> None:
        """Nothing to count."""


def check_timeline(timeline: tuple[int, int] | None, steps: int) -> None:
    """Raise OppoError for a timeline that is not within the run's ``steps`` steps."""
    if timeline is not None and not 0 <= timeline[0] <= timeline[1] < steps:
        raise OppoError(
            f"timeline {timeline[0]}:{timeline[1]} lies outside steps 0 to {steps - 1}: choose first:last"
            " within them"
        )


def run_setup(
    setup: Setup,
    sink: Sink,
    *,
    timeline: tuple[int, int] | None = None,
    rollouts: bool = True,
) -> tuple[list[Span], list[Marker]]:
    """Run a built scenario into a sink, compiled where that covers it; ``rollouts``: their rows, too, where
    it saves time to leave them out."""
    check_timeline(timeline, setup.steps)
    return run_into(setup, sink, rollouts=rollouts, timeline_steps=timeline)


def with_step_warnings(
    manifest: Mapping[str, Any], scenario: Scenario, steps: "pd.DataFrame", warmup: int
) -> dict[str, Any]:
    """The manifest with a warning where the weight sync takes much of a mean step after the warm-up, and
    where KV is larger than device memory."""
    found = sync_warnings(scenario, float(steps[TIMING_STEP].iloc[warmup:].mean()))
    found += kv_warnings(scenario, float(steps[KV_PEAK_TOKENS].max()))
    return {**manifest, "warnings": [*manifest["warnings"], *found]}
