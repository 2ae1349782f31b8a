"""Simulate one run of a scenario; from Python in one call, returning pandas frames."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oppo_sim.columns import TIMING_STEP, RolloutRow
from oppo_sim.errors import OppoError
from oppo_sim.fast.choose import engine_of, run_columns, run_into
from oppo_sim.manifest import run_manifest
from oppo_sim.policies.registry import policy_name
from oppo_sim.progress import OnProgress, Progress
from oppo_sim.results.sinks import FrameSink, RolloutBlocks, Sink, Sinks
from oppo_sim.results.spans import Marker, Span
from oppo_sim.results.summary import summarise
from oppo_sim.runs.sync_share import sync_warnings
from oppo_sim.scenario.build import Setup, build_setup, policy_settings_of
from oppo_sim.scenario.load import Overrides, load_scenario, override_texts
from oppo_sim.scenario.schema import Scenario

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Run:
    """A finished run."""

    policy: str
    seed: int
    steps: "pd.DataFrame"
    """One row a training step; columns with units: docs/columns.md, ``oppo_sim.explain(run.steps)``."""
    rollouts: "pd.DataFrame"
    """One row a trained rollout (empty if not kept)."""
    summary: "pd.DataFrame"
    """Moments of the step columns after the warm-up."""
    manifest: dict[str, Any]
    spans: list[Span]
    markers: list[Marker]

    def __repr__(self) -> str:
        return f"Run({self.policy}, seed {self.seed}, {len(self.steps):,} steps of {self.step_s:.4g} s)"

    def _repr_html_(self) -> str:
        return self.summary.to_html(float_format=lambda value: f"{value:.4g}")

    def gantt(self) -> "Figure":
        """What every device did in the steps of ``timeline``. Raises OppoError where none were kept."""
        from oppo_sim.report.timeline import gantt_figure

        if not self.spans:
            raise OppoError("the run kept no timeline: simulate it with timeline=(first, last)")
        steps = [span.step for span in self.spans]
        return gantt_figure(self.spans, self.markers, (min(steps), max(steps)), self.policy)

    @property
    def step_s(self) -> float:
        """Mean seconds of a step after the warm-up."""
        return float(self.summary["mean"][TIMING_STEP])


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


def simulate(
    scenario: Scenario | str | Path,
    *,
    policy: str | type | None = None,
    policy_settings: Mapping[str, Any] | None = None,
    steps: int | None = None,
    seed: int | None = None,
    overrides: Overrides = (),
    keep_rollouts: bool = True,
    timeline: tuple[int, int] | None = None,
    progress: OnProgress | None = None,
) -> Run:
    """Simulate a scenario (an object, a shipped name or a YAML path) and return its tables.

    ``policy`` is a name or a class; ``overrides`` are settings laid over the scenario,
    ``{"policy.overcommit": 8, "trace": my_lengths}`` (a frame, an array or a path); ``timeline`` names the
    first and last step whose spans are kept.
    ``progress`` is told the steps that are done (``oppo_sim.Progress``), of a compiled run
    (docs/architecture.md) some at a time.
    Raises OppoError for anything that cannot run.
    """
    loaded = loaded_scenario(scenario, overrides)
    name = loaded.policy.name if policy is None else policy_name(policy)
    settings = policy_settings_of(loaded, name) if policy_settings is None else policy_settings
    setup = build_setup(loaded, policy=name, policy_settings=settings, seed=seed, steps=steps)

    def tell(done: int) -> None:
        if progress is not None:
            progress(Progress("simulated steps", done, setup.steps))

    if not keep_rollouts and timeline is None:
        made = run_columns(setup, progress=tell)
        table = made.frame()
        manifest = run_manifest(setup, name, settings, engine=made.engine)
        return Run(
            name,
            setup.seed,
            table,
            RolloutBlocks().frame(),
            summarise(table, setup.warmup_steps),
            with_sync_warnings(manifest, loaded, table, setup.warmup_steps),
            [],
            [],
        )
    frames = FrameSink(keep_rollouts)
    sink: Sink = frames if progress is None else Sinks(frames, ProgressSink(tell))
    spans, markers = run_setup(setup, sink, timeline=timeline)
    table = frames.steps()
    manifest = run_manifest(setup, name, settings, engine=engine_of(setup))
    return Run(
        name,
        setup.seed,
        table,
        frames.rollouts(),
        summarise(table, setup.warmup_steps),
        with_sync_warnings(manifest, loaded, table, setup.warmup_steps),
        spans,
        markers,
    )


def with_sync_warnings(
    manifest: Mapping[str, Any], scenario: Scenario, steps: "pd.DataFrame", warmup: int
) -> dict[str, Any]:
    """The manifest with a warning where the weight sync takes much of a mean step after the warm-up."""
    found = sync_warnings(scenario, float(steps[TIMING_STEP].iloc[warmup:].mean()))
    return {**manifest, "warnings": [*manifest["warnings"], *found]}


def loaded_scenario(scenario: Scenario | str | Path, overrides: Overrides) -> Scenario:
    """A scenario by name, path or as an object, ``overrides`` (a mapping, or ``a.b=c`` texts) applied. Raises
    OppoError for anything else."""
    if isinstance(scenario, Scenario):
        if overrides:
            raise OppoError(
                "overrides go with a scenario's name or path: give that, or change the Scenario itself"
            )
        return scenario
    if not isinstance(scenario, str | Path):
        raise OppoError(
            f"a scenario is a name, a path or a Scenario, not {type(scenario).__name__}: see load_scenario"
        )
    return load_scenario(scenario, override_texts(overrides))


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
) -> tuple[list[Span], list[Marker]]:
    """Run a built scenario into a sink, compiled where that covers it."""
    check_timeline(timeline, setup.steps)
    return run_into(setup, sink, timeline_steps=timeline)
