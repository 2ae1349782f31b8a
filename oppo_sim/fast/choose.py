"""One way to run a built scenario for its step columns: compiled where the kernel covers it, else the SimPy
model."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal, cast

from oppo_sim.columns import STALENESS_HISTOGRAM, STALENESS_MIN
from oppo_sim.errors import OppoError
from oppo_sim.fast.asked import Asked, compiled_kind, own_methods
from oppo_sim.fast.cost_tables import not_covered, range_counter
from oppo_sim.fast.output import numbers, rollout_rows, step_rows, timeline
from oppo_sim.fast.state import STEPS_ONLY, Kept, Memory, make_state, most_in_flight
from oppo_sim.model.counterfactual import ACTUAL, Counterfactual
from oppo_sim.model.run import ModelInput, run_model
from oppo_sim.policies.interface import Policy
from oppo_sim.results.sinks import FrameSink, Moments, Sink, SummarySink
from oppo_sim.results.spans import Marker, Span
from oppo_sim.scenario.build import Setup
from oppo_sim.traces.replay import Replay

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd


Engine = Literal["auto", "simpy", "compiled"]
COMPILED, SIMPY = "compiled", "simpy"
BLOCK = 1024
"""Steps that the kernel runs at a stretch; bounds the memory of a summary."""
_MOST_ROLLOUTS = 2**31
_ROLLOUT_ROWS = 1 << 14

OnBlock = Callable[[Memory, int], None]
"""Takes the rows of a block: where they are, and how many."""


@dataclass(frozen=True)
class StepColumns:
    """The step table as arrays, one entry a step."""

    columns: "dict[str, np.ndarray[Any, Any]]"
    """Every column of ``columns.py`` but the histogram: whole numbers as int64, the rest as float64."""
    histogram: "np.ndarray[Any, Any]"
    """Rollouts with staleness 0, 1, … of the first step, then of the second, …"""
    histogram_end: "np.ndarray[Any, Any]"
    """Where each step's part of ``histogram`` ends."""
    engine: str
    """Which engine ran: ``compiled`` or ``simpy``."""

    def frame(self) -> "pd.DataFrame":
        """The same table as ``FrameSink.steps``."""
        import numpy as np
        import pandas as pd

        data: dict[str, Any] = {}
        for name, values in self.columns.items():
            data[name] = values
            if name == STALENESS_MIN:
                data[STALENESS_HISTOGRAM] = [
                    part.tolist() for part in np.split(self.histogram, self.histogram_end[:-1])
                ]
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
    if _compiles(setup, engine, score_granularity, counterfactual):
        sink = _compiled_summary(setup, score_granularity, counterfactual)
        if sink is not None:
            return sink, COMPILED
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
    if _compiles(setup, engine, score_granularity, counterfactual):
        columns = _compiled_columns(setup, score_granularity, counterfactual, progress)
        if columns is not None:
            return columns
    frames = FrameSink(keep_rollouts=False)
    _run_model(
        setup, frames if progress is None else _Counting(frames, progress), score_granularity, counterfactual
    )
    return _columns_of(frames.steps())


def run_into(
    setup: Setup,
    sink: Sink,
    *,
    engine: Engine = "auto",
    rollouts: bool = True,
    timeline_steps: tuple[int, int] | None = None,
    score_granularity: str | None = None,
    counterfactual: Counterfactual = ACTUAL,
) -> tuple[list[Span], list[Marker]]:
    """Run a scenario into a sink, which gets the rows of rollouts if ``rollouts``; returns the timeline of
    ``timeline_steps`` (first and last). Compiled runs give their rows some steps at a time. Raises as
    ``run_summary``."""
    skipping = _From(sink, 0)
    if _compiles(setup, engine, score_granularity, counterfactual):
        found = _compiled_into(
            setup, skipping, score_granularity, counterfactual, Kept(rollouts, timeline_steps)
        )
        if found is not None:
            return found
        # The model says what is wrong, after the steps that were done.
        skipping = _From(sink, skipping.first)
    return _run_model(setup, skipping, score_granularity, counterfactual, timeline_steps)


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


def _compiles(
    setup: Setup, engine: Engine, score_granularity: str | None, counterfactual: Counterfactual
) -> bool:
    if engine == SIMPY:
        return False
    if engine not in ("auto", COMPILED):
        raise OppoError(f"engine '{engine}' is unknown: choose auto, simpy or compiled")
    reason = why_not(setup, score_granularity=score_granularity, counterfactual=counterfactual)
    if reason is not None and engine == COMPILED:
        raise OppoError(f"engine compiled cannot make this run ({reason}): use engine auto")
    return reason is None


def _run_model(
    setup: Setup,
    sink: Sink,
    score_granularity: str | None,
    counterfactual: Counterfactual,
    timeline_steps: tuple[int, int] | None = None,
) -> tuple[list[Span], list[Marker]]:
    policy, replay = _policy(setup, score_granularity), setup.replay
    given = ModelInput(
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
    )
    return run_model(given, sink)


class _From:
    """A sink that has the rows of the first steps already. A step's rollouts follow its row."""

    def __init__(self, sink: Sink, first: int) -> None:
        self._sink = sink
        self.first = first
        """Steps that it has."""
        self._step = 0

    def on_step(self, row: Mapping[str, Any]) -> None:
        self._step += 1
        if self._step > self.first:
            self._sink.on_step(row)

    def give(self, row: Mapping[str, Any], rollouts: Sequence[tuple[Any, ...]]) -> None:
        """The next step."""
        self.first += 1
        self._sink.on_step(row)
        self._sink.on_rollouts(rollouts)

    def on_rollouts(self, rows: Sequence[tuple[Any, ...]]) -> None:
        if self._step > self.first:
            self._sink.on_rollouts(rows)


def _compiled_into(
    setup: Setup,
    sink: _From,
    score_granularity: str | None,
    counterfactual: Counterfactual,
    kept: Kept,
) -> tuple[list[Span], list[Marker]] | None:
    Trace = tuple[list[Span], list[Marker]]
    size = setup.batch.rollout_batch_size

    def fresh() -> tuple[Trace, OnBlock]:
        trace: Trace = ([], [])
        done = 0

        def on_block(memory: Memory, rows: int) -> None:
            nonlocal done
            batches = rollout_rows(memory, rows, size) if kept.rollouts else repeat([], rows)
            for row, batch in zip(step_rows(memory, rows), batches, strict=True):
                done += 1
                if done > sink.first:
                    sink.give(row, batch)
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

    def on_rollouts(self, rows: Any) -> None:
        self._sink.on_rollouts(rows)


def _compiled_summary(
    setup: Setup, score_granularity: str | None, counterfactual: Counterfactual
) -> SummarySink | None:
    import numpy as np

    kernel, records = load_kernel(), load_records()
    begun = np.array([0.0, 0.0, 0.0, 0.0, np.inf, -np.inf])

    def fresh() -> tuple[Any, OnBlock]:
        moments = np.tile(begun, (len(records.NAMES), 1))
        skip = setup.warmup_steps

        def on_block(memory: Memory, rows: int) -> None:
            nonlocal skip
            skipped = min(skip, rows)
            skip -= skipped
            kernel.add_moments(numbers(memory, rows)[skipped:], moments)

        return moments, on_block

    found = _run_compiled(setup, score_granularity, counterfactual, fresh)
    if found is None:
        return None
    sink = SummarySink(0)
    sink.steps = setup.steps - setup.warmup_steps
    for name, row in zip(records.NAMES, found.tolist(), strict=True):
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
            used = int(memory.tables["histogram_end"][rows - 1])
            parts[0].append(numbers(memory, rows).copy())
            parts[1].append(memory.tables["histogram"][:used].copy())
            parts[2].append(memory.tables["histogram_end"][:rows] + histogram)
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

    parts = [np.array(part, dtype=np.int64) for part in frame[STALENESS_HISTOGRAM]]
    columns = {str(name): frame[name].to_numpy() for name in frame.columns if name != STALENESS_HISTOGRAM}
    return StepColumns(columns, np.concatenate(parts), np.cumsum([len(part) for part in parts]), SIMPY)


_loaded: list[Any] = []


def load_kernel() -> Any:
    """The compiled module. The first call in a process imports numba; where nothing is cached yet, it says
    once that it compiles."""
    if not _loaded:
        from numba.core import config, event

        class SayOnce(event.Listener):
            def on_start(self, event: Any) -> None:
                if not said:
                    said.append(True)
                    print(
                        "oppo: compiling the fast path; this takes a while, once (its result is cached)",
                        file=sys.stderr,
                        flush=True,
                    )

            def on_end(self, event: Any) -> None:
                pass

        said: list[bool] = []
        event.register("numba:compile", SayOnce())  # type: ignore[no-untyped-call]
        try:
            from oppo_sim.fast import kernel
        except RuntimeError:  # no folder that numba may write its cache to
            import tempfile
            from pathlib import Path

            config.CACHE_DIR = str(  # type: ignore[attr-defined]
                Path(tempfile.gettempdir()) / "oppo_sim_cache"
            )
            from oppo_sim.fast import kernel
        _loaded.append(kernel)
    return _loaded[0]


def load_records() -> Any:
    """The module of codes and records; to be called after ``load_kernel``."""
    from oppo_sim.fast import records

    return records
