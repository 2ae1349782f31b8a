"""Simulate one run of a scenario; from Python in one call, returning pandas frames."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oppo_sim.columns import TIMING_STEP
from oppo_sim.errors import OppoError
from oppo_sim.fast.choose import engine_of, run_columns
from oppo_sim.manifest import run_manifest
from oppo_sim.one_run import ProgressSink, run_setup, with_step_warnings
from oppo_sim.policies.registry import policy_name
from oppo_sim.progress import OnProgress, Progress, listener
from oppo_sim.results.sinks import FrameSink, Sinks
from oppo_sim.results.spans import Marker, Span
from oppo_sim.results.summary import summarise
from oppo_sim.scenario.build import Setup, build_setup, policy_settings_of
from oppo_sim.scenario.load import load_scenario
from oppo_sim.scenario.overrides import Overrides, override_texts, with_trace
from oppo_sim.scenario.policy_label import for_policy, scenario_under, settings_in
from oppo_sim.scenario.schema import Scenario

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Run:
    """A finished run.

    ``steps`` has a row for each training step: ``timing_s/step`` (seconds) and ``timing_s/gen`` and its like
    (seconds of a stage), ``overcommit`` (rollouts), ``chunk_size`` (tokens). ``rollouts`` has one for each
    trained rollout: ``response_length`` (tokens), ``staleness`` (updates). ``summary`` has one for each
    numeric column of ``steps``: its moments after the warm-up, in its unit. All columns with units:
    ``oppo_sim.explain(run.steps)``, docs/columns.md.
    """

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


def simulate(
    scenario: Scenario | str | Path,
    *,
    policy: str | type | None = None,
    policy_settings: Mapping[str, Any] | None = None,
    steps: int | None = None,
    seed: int | None = None,
    trace: Any = None,
    overrides: Overrides = (),
    keep_rollouts: bool = True,
    timeline: tuple[int, int] | None = None,
    folder: str | Path | None = None,
    force: bool = False,
    figures: bool = True,
    progress: OnProgress | bool | None = None,
) -> Run:
    """Simulate a scenario and return its tables.

    Args:
        scenario: an object, a shipped name or a YAML path.
        trace: your own lengths instead of the scenario's, as ``--trace``: a path, a shipped trace's name, a
            frame, a list or an array of response lengths (tokens), or what ``open_trace`` gave.
        overrides: settings laid over a scenario by name or path, ``{"policy.overcommit": 8}``.
        policy: a name, with settings of its own if need be (``oppo:chunk_size=256``), or a class; None: the
            scenario's own. ``policy_settings``: in place of those that the scenario gives it; a name's own
            stay where these say nothing.
        keep_rollouts: one row a trained rollout, too.
        timeline: first and last step whose spans are kept. None: none; in a folder three after the warm-up.
        folder: a run folder to write, as ``oppo simulate -o`` does, with ``figures``; ``force`` replaces one.
            None: nothing is written.
        progress: told the steps that are done (``oppo_sim.Progress``), of a compiled run
            (docs/architecture.md) some at a time. True: lines on standard error.

    Raises OppoError for anything that cannot run and a folder that is taken. Ctrl-C (KeyboardInterrupt)
    finishes the folder with the steps that are done.
    """
    loaded, name, settings = _under_policy(scenario, policy, policy_settings, overrides, trace, steps)
    if timeline is not None and (isinstance(timeline, int) or len(timeline) != 2):
        raise OppoError(f"timeline is {timeline!r}: give the first and the last step, such as (2, 4)")
    setup = build_setup(loaded, policy=name, policy_settings=settings, seed=seed, steps=steps)
    heard = listener(progress)

    def tell(done: int) -> None:
        if heard is not None:
            heard(Progress("simulated steps", done, setup.steps))

    if folder is None:
        return _simulated(setup, name, settings, keep_rollouts, timeline, tell)
    from oppo_sim.simulation_folder import SimulationRequest, shown_steps, simulate_to_folder

    frames = FrameSink(keep_rollouts)
    shown = timeline or shown_steps(setup)
    request = SimulationRequest(
        setup, name, Path(folder), force, shown, keep_rollouts, figures, settings=settings, also=frames
    )
    stored = simulate_to_folder(request, tell)
    if stored.interrupted:
        raise KeyboardInterrupt
    return Run(
        name,
        setup.seed,
        stored.steps,
        frames.rollouts(),
        stored.summary,
        dict(stored.manifest),
        list(stored.spans),
        list(stored.markers),
    )


def _under_policy(
    scenario: Scenario | str | Path,
    policy: str | type | None,
    policy_settings: Mapping[str, Any] | None,
    overrides: Overrides,
    trace: Any,
    steps: int | None,
) -> tuple[Scenario, str, dict[str, Any]]:
    """The scenario with what was given beside it, the policy's name, and the policy's settings there."""
    if overrides and isinstance(policy, str):
        overrides = for_policy(override_texts(overrides), policy)
    loaded = loaded_scenario(scenario, overrides, trace).for_steps(steps)
    label = loaded.policy.name if policy is None else policy_name(policy)
    loaded, name = scenario_under(loaded, label)
    if policy_settings is None:
        return loaded, name, policy_settings_of(loaded, name)
    return loaded, name, settings_in(label) | dict(policy_settings)


def _simulated(
    setup: Setup,
    name: str,
    settings: Mapping[str, Any],
    keep_rollouts: bool,
    timeline: tuple[int, int] | None,
    tell: Callable[[int], None],
) -> Run:
    """A run that is kept in memory alone."""
    spans: list[Span] = []
    markers: list[Marker] = []
    frames = FrameSink(keep_rollouts)
    if keep_rollouts or timeline is not None:
        sink = Sinks(frames, ProgressSink(tell))
        spans, markers = run_setup(setup, sink, timeline=timeline, rollouts=keep_rollouts)
        table, engine = frames.steps(), engine_of(setup)
    else:
        made = run_columns(setup, progress=tell)
        table, engine = made.frame(), made.engine
    manifest = run_manifest(setup, name, settings, engine=engine)
    return Run(
        name,
        setup.seed,
        table,
        frames.rollouts(),
        summarise(table, setup.warmup_steps),
        with_step_warnings(manifest, setup.scenario, table, setup.warmup_steps),
        spans,
        markers,
    )


def loaded_scenario(scenario: Scenario | str | Path, overrides: Overrides, trace: Any = None) -> Scenario:
    """A scenario by name, path or as an object; the ``trace`` to replay and ``overrides`` (a mapping, or
    ``a.b=c`` texts) applied. Raises OppoError for anything else."""
    if isinstance(scenario, Scenario):
        if overrides or trace is not None:
            raise OppoError(
                "overrides and trace go with a scenario's name or path: give that, or change the Scenario"
                " itself"
            )
        return scenario
    if not isinstance(scenario, str | Path):
        raise OppoError(
            f"a scenario is a name, a path or a Scenario, not {type(scenario).__name__}: see load_scenario"
        )
    return load_scenario(scenario, with_trace(overrides, trace))
