"""What a compiled run gives besides its columns: rows for a sink, spans and markers."""

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from oppo_sim.columns import (
    FINISH_REASON,
    HISTOGRAMS,
    ROLLOUT_COLUMNS,
    STALENESS_MIN,
    TRAINING_STAGES,
    RolloutRow,
)
from oppo_sim.fast import codes
from oppo_sim.fast.memory import Memory
from oppo_sim.model.machine import BARRIER, WAKE
from oppo_sim.model.training import OTHER, PARALLEL
from oppo_sim.results.sinks import FINISH_REASONS, SECONDS
from oppo_sim.results.spans import Marker, Span

if TYPE_CHECKING:
    import numpy as np


def numbers(memory: Memory, rows: int) -> "np.ndarray[Any, Any]":
    """The rows of a block, one column a name of ``codes.NAMES``."""
    import numpy as np

    return memory.tables["out"][:rows].view(np.float64).reshape(rows, -1)


def step_rows(memory: Memory, rows: int) -> Iterator[dict[str, Any]]:
    """The rows of a block as ``Sink.on_step`` takes them."""
    ends = memory.tables["histogram_end"][: 2 * rows]
    histograms = split_histograms(memory.tables["histogram"], ends)
    whole = [name in codes.WHOLE for name in codes.NAMES]
    for i, values in enumerate(numbers(memory, rows).tolist()):
        row: dict[str, Any] = {}
        for name, is_whole, value in zip(codes.NAMES, whole, values, strict=True):
            row[name] = int(value) if is_whole else value
            if name == STALENESS_MIN:
                for histogram, parts in histograms.items():
                    row[histogram] = parts[i]
        yield row


def split_histograms(
    counts: "np.ndarray[Any, Any]", ends: "np.ndarray[Any, Any]"
) -> dict[str, list[list[int]]]:
    """Column → its counts, one list a step; ``counts`` and ``ends`` as in ``records.TABLES``."""
    bounds = [0, *ends.tolist()]
    flat = counts[: bounds[-1]].tolist()
    parts = [flat[first:last] for first, last in pairwise(bounds)]
    return {name: parts[i :: len(HISTOGRAMS)] for i, name in enumerate(HISTOGRAMS)}


def rollout_rows(memory: Memory, rows: int, batch_size: int) -> Iterator[list[RolloutRow]]:
    """The rows of the trained rollouts of a block, step by step, as ``Sink.on_rollouts`` takes them."""
    import numpy as np

    table = memory.tables["rollout_rows"][: rows * batch_size]
    columns: list[list[Any]] = []
    for i, name in enumerate(ROLLOUT_COLUMNS):
        if name == FINISH_REASON:
            columns.append([FINISH_REASONS[code] for code in table[:, i].astype(np.int64).tolist()])
        else:
            columns.append(table[:, i].astype(np.float64 if name in SECONDS else np.int64).tolist())
    whole = list(map(RolloutRow._make, zip(*columns, strict=True)))
    for i in range(rows):
        yield whole[i * batch_size : (i + 1) * batch_size]


def timeline(memory: Memory) -> tuple[list[Span], list[Marker]]:
    """Spans and markers of a block."""

    spans: list[Span] = []
    markers: list[Marker] = []
    for row in memory.tables["trace"][: int(memory.states["traced"][0])].tolist():
        what, index, stage, step = (int(row[i]) for i in (0, 1, 2, 5))
        began, ended = row[3], row[4]
        a, b, c = (int(value) for value in row[6:9])
        if what == codes.SPAN_WAKE:
            spans.append(Span("rollout", index, WAKE, began, ended, step, {}))
        elif what == codes.SPAN_BARRIER:
            spans.append(Span("rollout", index, BARRIER, began, ended, step, {}))
        elif what == codes.SPAN_DECODE:
            args: dict[str, float | int | str] = {"n": a, "iterations": b, "kv_tokens": c}
            spans.append(Span("rollout", index, "decode", began, ended, step, args))
        elif what == codes.SPAN_PREFILL:
            spans.append(Span("rollout", index, "prefill", began, ended, step, {"n": a}))
        elif what == codes.SPAN_SCORE:
            spans.append(Span("scoring", index, "score", began, ended, step, {"pieces": a, "tokens": b}))
        elif what == codes.SPAN_TRAINING:
            name = (*TRAINING_STAGES, OTHER)[stage] if stage >= 0 else "+".join(PARALLEL)
            spans.append(Span("training", 0, name, began, ended, step, {}))
        elif what == codes.MARK_PIECE:
            markers.append(Marker("chunk", "rollout", index, ended, step))
        else:
            name = "gen_end" if what == codes.MARK_GENERATED else "step_end"
            markers.append(Marker(name, "training", 0, ended, step))
    return spans, markers
