"""One way to run a built scenario for its step columns: compiled where the kernel covers it, else the SimPy
model."""

import os
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from oppo_sim.columns import HISTOGRAMS, RolloutRow
from oppo_sim.errors import OppoError
from oppo_sim.fast.compiled_run import (
    COMPILED,
    Onward,
    StepColumns,
    Trace,
    compile_silently,
    compiled_columns,
    compiled_into,
    compiled_summary,
    is_loaded,
    policy_of,
)
from oppo_sim.fast.compiling import ROLLOUT_S, Chooser, end_beside
from oppo_sim.fast.cost_tables import not_covered
from oppo_sim.fast.state import Kept, most_in_flight
from oppo_sim.model.counterfactual import UNCHANGED, Counterfactual
from oppo_sim.model.run import ModelInput, run_model
from oppo_sim.results.sinks import FrameSink, Sink, SummarySink
from oppo_sim.scenario.build import Setup
from oppo_sim.traces.replay import Replay

if TYPE_CHECKING:
    import pandas as pd


Engine = Literal["auto", "simpy", "compiled"]
SIMPY: Final = "simpy"
ENGINE_VARIABLE: Final = "OPPO_ENGINE"
"""Environment: what ``auto`` means. ``simpy``: never compiled; ``compiled``: wherever covered, even if the
compiler must be waited for."""
_MOST_ROLLOUTS = 2**31

_chooser = Chooser()


def run_summary(
    setup: Setup,
    *,
    engine: Engine = "auto",
    score_granularity: str | None = None,
    counterfactual: Counterfactual = UNCHANGED,
) -> tuple[SummarySink, str]:
    """Run a scenario for the moments of its step columns after the warm-up; also says which engine ran.

    ``score_granularity`` replaces the policy's own. Raises OppoError for what cannot run, and for ``engine``
    ``compiled`` where the kernel does not cover the run.
    """
    choice = _choice(setup, engine, score_granularity)
    sink = SummarySink(setup.warmup_steps)
    if choice != COMPILED and _run_model(setup, sink, score_granularity, counterfactual, choice) is not None:
        return sink, SIMPY
    found = compiled_summary(setup, score_granularity, counterfactual)
    if found is not None:
        return found, COMPILED
    sink = SummarySink(setup.warmup_steps)
    _run_model(setup, sink, score_granularity, counterfactual)
    return sink, SIMPY


def run_columns(
    setup: Setup,
    *,
    engine: Engine = "auto",
    score_granularity: str | None = None,
    counterfactual: Counterfactual = UNCHANGED,
    progress: Callable[[int], None] | None = None,
) -> StepColumns:
    """Run a scenario for its whole step table. ``progress`` is called now and then with the steps
    done. Raises as ``run_summary``."""
    choice = _choice(setup, engine, score_granularity)
    while True:
        frames = FrameSink(keep_rollouts=False)
        sink: Sink = frames if progress is None else _Counting(frames, progress)
        if (
            choice != COMPILED
            and _run_model(setup, sink, score_granularity, counterfactual, choice) is not None
        ):
            return _columns_of(frames.steps())
        columns = compiled_columns(setup, score_granularity, counterfactual, progress)
        if columns is not None:
            return columns
        choice = SIMPY  # the model says what is wrong


def run_into(
    setup: Setup,
    sink: Sink,
    *,
    engine: Engine = "auto",
    rollouts: bool = True,
    timeline_steps: tuple[int, int] | None = None,
) -> Trace:
    """Run a scenario into a sink, which gets the rows of rollouts if ``rollouts``; returns the timeline of
    ``timeline_steps`` (first and last). Compiled runs give their rows some steps at a time. Raises as
    ``run_summary``."""
    choice = _choice(setup, engine, None)
    onward = Onward(sink)
    if choice != COMPILED:
        trace = _run_model(setup, onward, None, UNCHANGED, choice, timeline_steps)
        if trace is not None:
            return trace
        onward.again()
    kept = Kept(rollouts, timeline_steps)
    trace = compiled_into(setup, onward, None, UNCHANGED, kept)
    if trace is None:
        onward.again()  # the model says what is wrong, after the steps that were done
        trace = _run_model(setup, onward, None, UNCHANGED, SIMPY, timeline_steps)
    assert trace is not None
    return trace


def engine_of(setup: Setup) -> str:
    """The engine that ``auto`` takes for a run, as far as it is known beforehand."""
    return COMPILED if why_not(setup) is None else SIMPY


def why_not(setup: Setup, *, score_granularity: str | None = None) -> str | None:
    """What the kernel does not cover in this run, as a sentence; None: it covers it."""
    policy = policy_of(setup, score_granularity)
    if not isinstance(setup.replay, Replay):
        return "rows of your own are drawn on the SimPy model: only replayed traces are compiled"
    if (setup.steps + 1) * most_in_flight(policy, setup.batch) >= _MOST_ROLLOUTS:
        return f"runs of more than {_MOST_ROLLOUTS:,} rollouts run on the SimPy model"
    if setup.gen_batch_size is not None:
        return "runs in generation batches (dynamic_sampling.gen_batch_size) are made on the SimPy model"
    reason = not_covered(setup.costs)
    return None if reason is None else f"this run is made on the SimPy model: {reason}"


def lacks_kernel() -> bool:
    """This process made runs on SimPy only because nothing is compiled yet."""
    return _chooser.lacks_kernel


def will_load() -> bool:
    """Runs of this process were made on SimPy only because loading the kernel did not pay yet."""
    return _chooser.will_load and not is_loaded()


def compile_instead() -> None:
    """Compile in this process, at its priority, in place of one beside."""
    end_beside()
    compile_silently()


# ---- inside ------------------------------------------------------------------------------------------------


def _choice(setup: Setup, engine: Engine, score_granularity: str | None) -> Engine:
    """The engine of a run; ``auto``: SimPy, until the kernel has been compiled beside it."""
    wanted = engine
    if engine == "auto":
        wanted = cast(Engine, os.environ.get(ENGINE_VARIABLE) or "auto")
    if wanted not in ("auto", COMPILED, SIMPY):
        where = "engine" if engine != "auto" else ENGINE_VARIABLE
        raise OppoError(f"{where} '{wanted}' is unknown: choose auto, simpy or compiled")
    if wanted == SIMPY:
        return SIMPY
    reason = why_not(setup, score_granularity=score_granularity)
    if reason is not None:
        if engine == COMPILED:
            raise OppoError(f"engine compiled cannot make this run ({reason}): use engine auto")
        return SIMPY
    if wanted == COMPILED or is_loaded() or _chooser.wants_kernel(_expected_s(setup)):
        return COMPILED
    return "auto"


def _expected_s(setup: Setup) -> float:
    """What the run takes on SimPy, roughly."""
    return setup.steps * setup.batch.rollout_batch_size * ROLLOUT_S


def _run_model(
    setup: Setup,
    sink: Sink,
    score_granularity: str | None,
    counterfactual: Counterfactual,
    choice: Engine = SIMPY,
    timeline_steps: tuple[int, int] | None = None,
) -> Trace | None:
    """Make a run on SimPy; returns its timeline. None, under ``choice`` auto: it was left, since the kernel
    is there now and is sooner done."""
    policy, replay = policy_of(setup, score_granularity), setup.replay
    inputs = ModelInput(
        setup.machine,
        setup.costs,
        policy,
        setup.batch,
        replay,
        replay.cursor(),
        setup.rewards(),
        setup.steps,
        counterfactual,
        timeline_steps,
        waits=replay.waits,
        sample_rewards=setup.sample_rewards,
        gen_batch_size=setup.gen_batch_size,
    )
    if choice == SIMPY:
        return run_model(inputs, sink)
    watching = _Watching(sink, setup.steps)
    try:
        trace = run_model(inputs, watching)
    except _KernelReadyError:
        return None
    _chooser.add(watching.seconds)
    return trace


class _KernelReadyError(Exception):
    """The kernel was compiled in the middle of a run on SimPy."""


class _Watching:
    """A sink that ends a long run on SimPy when the kernel has become ready."""

    def __init__(self, sink: Sink, steps: int) -> None:
        self._sink = sink
        self._steps = steps
        self._done = 0
        self._began = monotonic()

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return monotonic() - self._began

    def on_step(self, row: Any) -> None:
        self._sink.on_step(row)
        self._done += 1

    def on_rollouts(self, rows: Sequence[RolloutRow]) -> None:
        self._sink.on_rollouts(rows)
        # The step is complete.
        if _chooser.became_ready(self.seconds / self._done * (self._steps - self._done)):
            raise _KernelReadyError


class _Counting:
    """A sink that reports how many steps are done."""

    def __init__(self, sink: Sink, progress: Callable[[int], None]) -> None:
        self._sink = sink
        self._progress = progress
        self._done = 0

    def on_step(self, row: Any) -> None:
        self._sink.on_step(row)
        self._done += 1
        self._progress(self._done)

    def on_rollouts(self, rows: Sequence[RolloutRow]) -> None:
        self._sink.on_rollouts(rows)


def _columns_of(frame: "pd.DataFrame") -> StepColumns:
    import numpy as np

    rows = frame[list(HISTOGRAMS)].itertuples(index=False)
    parts = [np.array(part, dtype=np.int64) for row in rows for part in row]
    columns = {str(name): frame[name].to_numpy() for name in frame.columns if name not in HISTOGRAMS}
    return StepColumns(columns, np.concatenate(parts), np.cumsum([len(part) for part in parts]), SIMPY)
