"""Runs on the compiled kernel, which is loaded on the first of them, and compiled where it is not yet."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, cast

from oppo_sim.columns import STALENESS_MIN, RolloutRow
from oppo_sim.errors import OppoError
from oppo_sim.fast import codes
from oppo_sim.fast.compiling import cache_folder, compiling_alone, is_compiled, mark_compiled
from oppo_sim.fast.cost_tables import range_counter
from oppo_sim.fast.memory import Memory
from oppo_sim.fast.output import numbers, rollout_rows, split_histograms, step_rows, timeline
from oppo_sim.fast.policy_calls import PolicyCalls, compiled_kind, own_methods
from oppo_sim.fast.state import STEPS_ONLY, Kept, make_state
from oppo_sim.model.counterfactual import UNCHANGED, Counterfactual
from oppo_sim.policies.interface import Policy
from oppo_sim.results.sinks import Moments, Sink, SummarySink
from oppo_sim.results.spans import Marker, Span
from oppo_sim.scenario.build import Setup, build_setup
from oppo_sim.scenario.load import load_scenario

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

COMPILED: Final = "compiled"
BLOCK = 1024
"""Steps that the kernel runs at a stretch; bounds the memory of a summary."""
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


class Onward:
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


def policy_of(setup: Setup, score_granularity: str | None) -> Policy:
    """A new policy of the run; ``score_granularity`` replaces its own."""
    policy = setup.policy_factory()
    if score_granularity is not None:
        policy.score_granularity = score_granularity  # type: ignore[assignment]
    return policy


def compiled_into(
    setup: Setup, sink: Onward, score_granularity: str | None, counterfactual: Counterfactual, kept: Kept
) -> Trace | None:
    """Rows into ``sink``; returns the timeline. None: the model must say what is wrong."""
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


def compiled_summary(
    setup: Setup, score_granularity: str | None, counterfactual: Counterfactual
) -> SummarySink | None:
    """Moments of the steps after the warm-up. None: the model must say what is wrong."""
    import numpy as np

    kernel = load_kernel()
    begun = np.array([0.0, 0.0, 0.0, 0.0, np.inf, -np.inf])

    def fresh() -> tuple[Any, OnBlock]:
        moments = np.tile(begun, (len(codes.NAMES), 1))
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
    for name, row in zip(codes.NAMES, moments.tolist(), strict=True):
        sink.columns[name] = Moments.of(int(row[0]), *row[1:])
    return sink


def compiled_columns(
    setup: Setup,
    score_granularity: str | None,
    counterfactual: Counterfactual,
    progress: Callable[[int], None] | None,
) -> StepColumns | None:
    """The whole step table. None: the model must say what is wrong."""
    import numpy as np

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
        name: table[:, i].astype(np.int64) if name in codes.WHOLE else table[:, i].copy()
        for i, name in enumerate(codes.NAMES)
    }
    return StepColumns(columns, histogram, ends, COMPILED)


# ---- loading and compiling ---------------------------------------------------------------------------------


_loaded: list[Any] = []


def is_loaded() -> bool:
    """This process has the kernel: another run on it costs no loading."""
    return bool(_loaded)


def compile_alone() -> None:
    """Compile in a process that does nothing else."""
    _load(lambda: None, beside=True)


def compile_silently() -> None:
    """Compile in this process, where it is not compiled."""
    _load(lambda: None, beside=False)


def load_kernel() -> Any:
    """The compiled module. The first call in a process imports numba; where nothing is compiled yet, it
    compiles, and says so, or waits for another process that does."""
    return _load(_say, beside=False)


# ---- inside ------------------------------------------------------------------------------------------------


def _run_compiled(
    setup: Setup,
    score_granularity: str | None,
    counterfactual: Counterfactual,
    fresh: Callable[[], tuple[Any, OnBlock]],
    kept: Kept = STEPS_ONLY,
) -> Any:
    """What ``fresh`` made, filled by its block taker; None: the model must say what is wrong. Begins again
    where a buffer was too small."""
    kernel = load_kernel()
    room, error = 1, codes.NO_ROOM
    while error == codes.NO_ROOM:
        result, on_block = fresh()
        policy = policy_of(setup, score_granularity)
        asks: frozenset[str] = frozenset()
        if compiled_kind(policy) is None:
            asks = own_methods(policy, Policy) | {"plan"}
        block = min(setup.steps, _block(setup, kept))
        memory = make_state(setup, policy, counterfactual, block, room, asks, kept)
        calls = PolicyCalls(kernel, setup, policy, memory)
        done, error = 0, codes.OK
        while done < setup.steps and error == codes.OK:
            rows = min(block, setup.steps - done)
            memory.states["row"] = memory.states["histogram"] = memory.states["traced"] = 0
            done += rows
            try:
                error = calls.advance(done)
            except OppoError:
                if memory.states["row"][0]:
                    on_block(memory, int(memory.states["row"][0]))
                raise
            if error == codes.OK:
                on_block(memory, rows)
        room *= 4
    if error != codes.OK:
        return None
    _count_extrapolations(setup, memory)
    return result


def _block(setup: Setup, kept: Kept) -> int:
    """Steps at a stretch; fewer where the rows of rollouts are kept."""
    return max(1, min(BLOCK, _ROLLOUT_ROWS // setup.batch.rollout_batch_size)) if kept.rollouts else BLOCK


def _count_extrapolations(setup: Setup, memory: Memory) -> None:
    """As the cost models report to ``RangeCounter.note``."""
    counter = range_counter(setup.costs)
    if counter is None:
        return
    for table, (count, first, second) in zip(
        ("decode", "prefill", "score", "score_ref", "training"),
        memory.tables["extrapolated"].tolist(),
        strict=True,
    ):
        if not count:
            continue
        if table == "decode":
            query = f"n_running {int(first)}, kv_tokens {second:g}"
        elif table == "training":
            query = f"{int(first)} tokens"
        else:
            query = f"{first:g} tokens, mean context {second:g}"
        counter.note(table, query)
        counter.counts[table] += int(count) - 1


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
    compiled_columns(setup, None, UNCHANGED, None)
    compiled_summary(setup, None, UNCHANGED)
