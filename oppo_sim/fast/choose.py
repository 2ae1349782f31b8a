"""One way to run a built scenario for its step columns: compiled where the kernel covers it, else the SimPy
model."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from oppo_sim.columns import HISTOGRAMS, STALENESS_MIN, RolloutRow
from oppo_sim.errors import OppoError
from oppo_sim.fast.asked import Asked, compiled_kind, own_methods
from oppo_sim.fast.compiling import (
    ROLLOUT_S,
    Chooser,
    cache_folder,
    compiling_alone,
    end_beside,
    is_compiled,
    mark_compiled,
)
from oppo_sim.fast.cost_tables import not_covered, range_counter
from oppo_sim.fast.memory import Memory
from oppo_sim.fast.output import numbers, rollout_rows, split_histograms, step_rows, timeline
from oppo_sim.fast.state import STEPS_ONLY, Kept, make_state, most_in_flight
from oppo_sim.model.counterfactual import ACTUAL, Counterfactual
from oppo_sim.model.run import ModelInput, run_model
from oppo_sim.policies.interface import Policy
from oppo_sim.results.sinks import FrameSink, Moments, Sink, SummarySink
from oppo_sim.results.spans import Marker, Span
from oppo_sim.scenario.build import Setup, build_setup
from oppo_sim.scenario.load import load_scenario
from oppo_sim.traces.replay import Replay

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd


Engine = Literal["auto", "simpy", "compiled"]
COMPILED: Final = "compiled"
SIMPY: Final = "simpy"
ENGINE_VARIABLE: Final = "OPPO_ENGINE"
"""Environment: what ``auto`` means. ``simpy``: never compiled; ``compiled``: wherever covered, even if the
compiler must be waited for."""
BLOCK = 1024
"""Steps that the kernel runs at a stretch; bounds the memory of a summary."""
_MOST_ROLLOUTS = 2**31
_ROLLOUT_ROWS = 1 << 14

Trace = tuple[list[Span], list[Marker]]
"""The timeline of a run."""
OnBlock = Callable[[Memory, int], None]
"""Takes the rows of a block: where they are, and how many."""


@dataclass(frozen=True)
class StepColumns:
    """The step table as arrays, one entry a step."""

    columns: "dict[str, np.ndarray[Any, Any]]"
    """Every column of ``columns.py`` but the histograms: whole numbers as int64, the rest as float64."""
    histogram: "np.ndarray[Any, Any]"
    """Step after step: rollouts with staleness 0, 1, …, then those deferred 0, 1, … times."""
    histogram_end: "np.ndarray[Any, Any]"
    """Where each part of ``histogram`` ends, two a step."""
    engine: str
    """Which engine ran: ``compiled`` or ``simpy``."""

    def frame(self) -> "pd.DataFrame":
        """The same table as ``FrameSink.steps``."""
        import pandas as pd

        data: dict[str, Any] = {}
        for name, values in self.columns.items():
            data[name] = values
            if name == STALENESS_MIN:
                data |= split_histograms(self.histogram, self.histogram_end)
        return pd.DataFrame(data)


def run_summary(
    setup: Setup,
    *,
    engine: Engine = "auto",
    score_granularity: str | None = None,
    counterfactual: Counterfactual = ACTUAL,
) -> tuple[SummarySink, str]:
    """Run a scenario for the moments of its step columns after the warm-up; also says which engine ran.

    ``score_granularity`` replaces the policy's own. Raises OppoError for what cannot run, and for ``engine``
    ``compiled`` where the kernel does not cover the run.
    """
    choice = _choice(setup, engine, score_granularity, counterfactual)
    sink = SummarySink(setup.warmup_steps)
    if choice != COMPILED and _run_model(setup, sink, score_granularity, counterfactual, choice) is not None:
        return sink, SIMPY
    found = _compiled_summary(setup, score_granularity, counterfactual)
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
    counterfactual: Counterfactual = ACTUAL,
    progress: Callable[[int], None] | None = None,
) -> StepColumns:
    """Run a scenario for its whole step table. ``progress`` is told now and then how many steps are done.
    Raises as ``run_summary``."""
    choice = _choice(setup, engine, score_granularity, counterfactual)
    while True:
        frames = FrameSink(keep_rollouts=False)
        sink: Sink = frames if progress is None else _Counting(frames, progress)
        if (
            choice != COMPILED
            and _run_model(setup, sink, score_granularity, counterfactual, choice) is not None
        ):
            return _columns_of(frames.steps())
        columns = _compiled_columns(setup, score_granularity, counterfactual, progress)
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
    score_granularity: str | None = None,
    counterfactual: Counterfactual = ACTUAL,
) -> Trace:
    """Run a scenario into a sink, which gets the rows of rollouts if ``rollouts``; returns the timeline of
    ``timeline_steps`` (first and last). Compiled runs give their rows some steps at a time. Raises as
    ``run_summary``."""
    choice = _choice(setup, engine, score_granularity, counterfactual)
    onward = _Onward(sink)
    if choice != COMPILED:
        trace = _run_model(setup, onward, score_granularity, counterfactual, choice, timeline_steps)
        if trace is not None:
            return trace
        onward.again()
    kept = Kept(rollouts, timeline_steps)
    trace = _compiled_into(setup, onward, score_granularity, counterfactual, kept)
    if trace is None:
        onward.again()  # the model says what is wrong, after the steps that were done
        trace = _run_model(setup, onward, score_granularity, counterfactual, SIMPY, timeline_steps)
    assert trace is not None
    return trace


def engine_of(setup: Setup) -> str:
    """The engine that ``auto`` takes for a run, as far as can be told beforehand."""
    return COMPILED if why_not(setup) is None else SIMPY


def why_not(
    setup: Setup, *, score_granularity: str | None = None, counterfactual: Counterfactual = ACTUAL
) -> str | None:
    """What the kernel does not cover in this run, as a sentence; None: it covers it."""
    policy = _policy(setup, score_granularity)
    if not isinstance(setup.replay, Replay):
        return "rows of your own are drawn on the SimPy model: only replayed traces are compiled"
    if (setup.steps + 1) * most_in_flight(policy, setup.batch) >= _MOST_ROLLOUTS:
        return f"runs of more than {_MOST_ROLLOUTS:,} rollouts run on the SimPy model"
    reason = not_covered(setup.costs)
    return None if reason is None else f"this run is made on the SimPy model: {reason}"


# ---- inside ------------------------------------------------------------------------------------------------


def _policy(setup: Setup, score_granularity: str | None) -> Policy:
    policy = setup.policy_factory()
    if score_granularity is not None:
        policy.score_granularity = score_granularity  # type: ignore[assignment]
    return policy


def _choice(
    setup: Setup, engine: Engine, score_granularity: str | None, counterfactual: Counterfactual
) -> Engine:
    """The engine of a run; ``auto``: SimPy, until the kernel has been compiled beside it."""
    wanted = engine
    if engine == "auto":
        wanted = cast(Engine, os.environ.get(ENGINE_VARIABLE) or "auto")
    if wanted not in ("auto", COMPILED, SIMPY):
        where = "engine" if engine != "auto" else ENGINE_VARIABLE
        raise OppoError(f"{where} '{wanted}' is unknown: choose auto, simpy or compiled")
    if wanted == SIMPY:
        return SIMPY
    reason = why_not(setup, score_granularity=score_granularity, counterfactual=counterfactual)
    if reason is not None:
        if engine == COMPILED:
            raise OppoError(f"engine compiled cannot make this run ({reason}): use engine auto")
        return SIMPY
    if wanted == COMPILED or _loaded or _chooser.wants_kernel(_expected_s(setup)):
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
    policy, replay = _policy(setup, score_granularity), setup.replay
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


class _Onward:
    """A sink that gets each step once, though a run be begun again. A step's rollouts follow its row."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._had = 0
        self._step = 0

    def again(self) -> None:
        """The run begins anew."""
        self._had, self._step = max(self._had, self._step), 0

    def on_step(self, row: Mapping[str, Any]) -> None:
        self._step += 1
        if self._step > self._had:
            self._sink.on_step(row)

    def on_rollouts(self, rows: Sequence[RolloutRow]) -> None:
        if self._step > self._had:
            self._sink.on_rollouts(rows)


def _compiled_into(
    setup: Setup, sink: _Onward, score_granularity: str | None, counterfactual: Counterfactual, kept: Kept
) -> Trace | None:
    size = setup.batch.rollout_batch_size

    def fresh() -> tuple[Trace, OnBlock]:
        sink.again()
        trace: Trace = ([], [])

        def on_block(memory: Memory, rows: int) -> None:
            batches = rollout_rows(memory, rows, size) if kept.rollouts else repeat([], rows)
            for row, batch in zip(step_rows(memory, rows), batches, strict=True):
                sink.on_step(row)
                sink.on_rollouts(batch)
            spans, markers = timeline(memory)
            trace[0].extend(spans)
            trace[1].extend(markers)

        return trace, on_block

    return cast(Trace | None, _run_compiled(setup, score_granularity, counterfactual, fresh, kept))


class _Counting:
    """A sink that tells how many steps are done."""

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


def _compiled_summary(
    setup: Setup, score_granularity: str | None, counterfactual: Counterfactual
) -> SummarySink | None:
    import numpy as np

    kernel, records = load_kernel(), load_records()
    begun = np.array([0.0, 0.0, 0.0, 0.0, np.inf, -np.inf])

    def fresh() -> tuple[Any, OnBlock]:
        moments = np.tile(begun, (len(records.NAMES), 1))
        sink = SummarySink(0)
        skip = setup.warmup_steps

        def on_block(memory: Memory, rows: int) -> None:
            nonlocal skip
            skipped = min(skip, rows)
            skip -= skipped
            kernel.add_moments(numbers(memory, rows)[skipped:], moments)
            counts, ends = (memory.tables[name] for name in ("histogram", "histogram_end"))
            for name, parts in split_histograms(counts, ends[: 2 * rows]).items():
                for part in parts[skipped:]:
                    sink.count(name, part)

        return (moments, sink), on_block

    found = _run_compiled(setup, score_granularity, counterfactual, fresh)
    if found is None:
        return None
    moments = found[0]
    sink: SummarySink = found[1]
    sink.steps = setup.steps - setup.warmup_steps
    for name, row in zip(records.NAMES, moments.tolist(), strict=True):
        sink.columns[name] = Moments.of(int(row[0]), *row[1:])
    return sink


def _compiled_columns(
    setup: Setup,
    score_granularity: str | None,
    counterfactual: Counterfactual,
    progress: Callable[[int], None] | None,
) -> StepColumns | None:
    import numpy as np

    records = load_records()
    Parts = tuple[list[Any], list[Any], list[Any]]

    def fresh() -> tuple[Parts, OnBlock]:
        parts: Parts = ([], [], [])
        done = histogram = 0

        def on_block(memory: Memory, rows: int) -> None:
            nonlocal done, histogram
            used = int(memory.tables["histogram_end"][2 * rows - 1])
            parts[0].append(numbers(memory, rows).copy())
            parts[1].append(memory.tables["histogram"][:used].copy())
            parts[2].append(memory.tables["histogram_end"][: 2 * rows] + histogram)
            done += rows
            histogram += used
            if progress is not None:
                progress(done)

        return parts, on_block

    found = _run_compiled(setup, score_granularity, counterfactual, fresh)
    if found is None:
        return None
    table, histogram, ends = (np.concatenate(part) for part in found)
    columns = {
        name: table[:, i].astype(np.int64) if name in records.WHOLE else table[:, i].copy()
        for i, name in enumerate(records.NAMES)
    }
    return StepColumns(columns, histogram, ends, COMPILED)


def _run_compiled(
    setup: Setup,
    score_granularity: str | None,
    counterfactual: Counterfactual,
    fresh: Callable[[], tuple[Any, OnBlock]],
    kept: Kept = STEPS_ONLY,
) -> Any:
    """What ``fresh`` made, filled by its block taker; None: the model must say what is wrong. Begins again
    where a buffer was too small."""
    kernel, records = load_kernel(), load_records()
    room, error = 1, records.NO_ROOM
    while error == records.NO_ROOM:
        result, on_block = fresh()
        policy = _policy(setup, score_granularity)
        asks: frozenset[str] = frozenset()
        if compiled_kind(policy) is None:
            asks = own_methods(policy, Policy) | {"plan"}
        block = min(setup.steps, _block(setup, kept))
        memory = make_state(setup, policy, counterfactual, block, room, asks, kept)
        asked = Asked(kernel, setup, policy, memory)
        done, error = 0, records.OK
        while done < setup.steps and error == records.OK:
            rows = min(block, setup.steps - done)
            memory.states["row"] = memory.states["histogram"] = memory.states["traced"] = 0
            done += rows
            try:
                error = asked.advance(done)
            except OppoError:
                if memory.states["row"][0]:
                    on_block(memory, int(memory.states["row"][0]))
                raise
            if error == records.OK:
                on_block(memory, rows)
        room *= 4
    if error != records.OK:
        return None
    _count_extrapolations(setup, memory)
    return result


def _block(setup: Setup, kept: Kept) -> int:
    """Steps at a stretch; fewer where the rows of rollouts are kept."""
    return max(1, min(BLOCK, _ROLLOUT_ROWS // setup.batch.rollout_batch_size)) if kept.rollouts else BLOCK


def _count_extrapolations(setup: Setup, memory: Memory) -> None:
    """As ``RangeCounter.note`` was told by the cost models."""
    counter = range_counter(setup.costs)
    if counter is None:
        return
    for table, (count, first, second) in zip(
        ("decode", "prefill", "score", "score_ref", "training"), memory.tables["asked"].tolist(), strict=True
    ):
        if not count:
            continue
        if table == "decode":
            asked = f"n_running {int(first)}, kv_tokens {second:g}"
        elif table == "training":
            asked = f"{int(first)} tokens"
        else:
            asked = f"{first:g} tokens, mean context {second:g}"
        counter.note(table, asked)
        counter.counts[table] += int(count) - 1


def _columns_of(frame: "pd.DataFrame") -> StepColumns:
    import numpy as np

    rows = frame[list(HISTOGRAMS)].itertuples(index=False)
    parts = [np.array(part, dtype=np.int64) for row in rows for part in row]
    columns = {str(name): frame[name].to_numpy() for name in frame.columns if name not in HISTOGRAMS}
    return StepColumns(columns, np.concatenate(parts), np.cumsum([len(part) for part in parts]), SIMPY)


_loaded: list[Any] = []
_chooser = Chooser()


def lacks_kernel() -> bool:
    """This process made runs on SimPy only because nothing is compiled yet."""
    return _chooser.lacks_kernel


def compile_instead() -> None:
    """Compile in this process, at its priority, in place of one beside."""
    end_beside()
    _load(lambda: None, beside=False)


def compile_alone() -> None:
    """Compile in a process that does nothing else."""
    _load(lambda: None, beside=True)


def load_kernel() -> Any:
    """The compiled module. The first call in a process imports numba; where nothing is compiled yet, it
    compiles, and says so, or waits for another process that does."""
    return _load(_say, beside=False)


def _say() -> None:
    print("oppo: compiling the fast path, once; its result is kept", file=sys.stderr, flush=True)


def _load(say: Callable[[], None], *, beside: bool) -> Any:
    if _loaded:
        return _loaded[0]
    import numba.core.config as numba_config

    # Where numba keeps machine code is settled when a function is decorated.
    config: Any = numba_config
    before = config.CACHE_DIR
    config.CACHE_DIR = str(cache_folder())
    try:
        from oppo_sim.fast import kernel
    finally:
        config.CACHE_DIR = before
    _loaded.append(kernel)
    if not is_compiled():
        with compiling_alone(beside=beside):
            if not is_compiled():
                say()
                _compile()
                mark_compiled()
    return kernel


def _compile() -> None:
    """Call each entry of the kernel once, with the types that all calls have."""
    setup = build_setup(load_scenario("paper-stackexchange-7b", ["warmup_steps=0"]), steps=2)
    run_columns(setup, engine=COMPILED)
    run_summary(setup, engine=COMPILED)


def load_records() -> Any:
    """The module of codes and records; to be called after ``load_kernel``."""
    from oppo_sim.fast import records

    return records
