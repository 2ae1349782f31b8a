"""Timelines as figures: Gantt charts of a few steps."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from oppo_sim.columns import TRAINING_STAGES
from oppo_sim.errors import OppoError
from oppo_sim.report.activities import (
    CHUNK,
    DECODE,
    Lane,
    Timeline,
    Window,
    check_times,
    covered,
    lane_name,
    lanes_of,
    shares,
    window_of,
)
from oppo_sim.report.labels import Unit, format_seconds, time_unit
from oppo_sim.report.style import (
    FAINT,
    IDLE,
    INK,
    WIDTH_IN,
    beside,
    in_stage_order,
    legend_below,
    new_figure,
    set_title,
    stage_colour,
    stage_hatch,
)
from oppo_sim.results.spans import Marker, Span

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LANE_HEIGHT: Final = 0.8
"""Of the distance between lanes."""

_LEAST_DECODE_HEIGHT: Final = 0.1  # one rollout of hundreds is still seen
_LEAST_WIDTH: Final = 1e-3  # of the axes: what is scored within a pixel is still seen
_OVER_IN: Final = 0.54  # inches for a title and the numbers of the steps
_BELOW_IN: Final = 1.2  # inches for the time axis and the legend
_MOST_CHUNK_TICKS: Final = 400  # more would be a grey smear
_MOST_STEP_LABELS: Final = 12
_TAIL_COLOUR: Final = "#EBA98A"


def gantt_figure(
    spans: Sequence[Span],
    markers: Sequence[Marker],
    steps: tuple[int, int],
    title: str = "",
    unit: Unit | None = None,
) -> "Figure":
    """Steps first … last (both included) of one run.

    Decode bars are as high as the share of running rollouts in the most that ran on any replica in the
    window; hatched lanes wait for the last rollouts of ``gen``. The share of the window in which a lane was
    busy stands on the right.
    Raises OppoError when nothing was recorded for these steps.
    """
    return compare_gantt({title: (spans, markers)}, steps, unit)


def compare_gantt(runs: Mapping[str, Timeline], steps: tuple[int, int], unit: Unit | None = None) -> "Figure":
    """The same steps of several runs, one under the other, each from the start of its first shown step, on
    one time axis.

    ``unit``: what the times count; by default the unit in which they read best. Raises OppoError when there
    is no run, or a run has no activity in these steps.
    """
    if not runs:
        raise OppoError("a Gantt chart needs at least one run: give some")
    views = [_View(name, spans, markers, steps) for name, (spans, markers) in runs.items()]
    # Many lanes get thinner, down to what can still be read.
    lane_in = min(0.32, max(0.17, 10.0 / sum(len(view.lanes) for view in views)))
    heights = [max(0.4, 0.15 + lane_in * len(view.lanes)) for view in views]
    font_size = min(9.0, 36.0 * lane_in)
    widest = max(len(name) for view in views for name in view.lane_names)
    # Every size is known, and measuring a hundred texts takes as long as drawing them.
    total = sum(heights) + _OVER_IN * len(views) + _BELOW_IN
    figure, axes = new_figure(heights, share_x=True, below=total - sum(heights), measured=False)
    figure.subplots_adjust(
        left=(0.58 * font_size * widest / 72 + 0.1) / WIDTH_IN,
        right=1.0 - 0.45 / WIDTH_IN,
        bottom=_BELOW_IN / total,
        top=1.0 - _OVER_IN / total,
        hspace=_OVER_IN * len(heights) / sum(heights),
    )
    longest = max(view.length_s for view in views)
    unit = unit or time_unit(longest)
    stages: set[str] = set()
    extras: set[str] = set()
    for view, axis in zip(views, axes, strict=True):
        stages |= view.draw(axis, unit, font_size, extras, longest * _LEAST_WIDTH)
        axis.label_outer()
    axes[-1].set_xlim(0, longest / unit.seconds)
    axes[-1].set_xlabel(f"{unit.name} since the start of step {views[0].first_step}", fontsize=9.5)
    _legend(figure, stages, extras)
    return figure


# ---- inside ------------------------------------------------------------------------------------------------


class _View:
    """What one set of axes shows: activities clipped to the window, times in seconds from its start."""

    def __init__(
        self, name: str, spans: Sequence[Span], markers: Sequence[Marker], steps: tuple[int, int]
    ) -> None:
        check_times(spans, markers)
        self.name = name
        self.window: Window = window_of(spans, markers, steps)
        self.lanes = lanes_of(spans)
        groups = [group for group, _ in self.lanes]
        self.lane_names = [lane_name(lane, alone=groups.count(lane[0]) == 1) for lane in self.lanes]
        self.markers = markers
        self.length_s = self.window.end_s - self.window.start_s
        self.first_step = min(self.window.step_starts)
        self.by_lane: dict[Lane, list[tuple[float, float, Span]]] = {lane: [] for lane in self.lanes}
        for span in sorted(spans, key=lambda span: (span.start_s, span.end_s)):
            start, end = max(span.start_s, self.window.start_s), min(span.end_s, self.window.end_s)
            if end > start:
                self.by_lane[(span.group, span.index)].append(
                    (start - self.window.start_s, end - self.window.start_s, span)
                )
        self.most_running = max(
            (
                _running(span)
                for clipped in self.by_lane.values()
                for _, _, span in clipped
                if span.stage == DECODE
            ),
            default=1.0,
        )

    def draw(self, axis: "Axes", unit: Unit, font_size: float, extras: set[str], least_s: float) -> set[str]:
        """Draw everything; returns the stages that occur and adds to ``extras`` what else needs a
        legend. What took less than ``least_s`` is drawn as wide."""
        scale = 1.0 / unit.seconds
        self._lanes_and_labels(axis, unit, font_size, extras)
        self._waits(axis, scale, extras)
        bars: dict[str, list[list[tuple[float, float]]]] = {}
        for row, lane in enumerate(self.lanes):
            clipped = self.by_lane[lane]
            places = shares([(start, end) for start, end, _ in clipped])
            for (start, end, span), (slot, slots) in zip(clipped, places, strict=True):
                top, bottom = self._heights(span, row, slot, slots)
                left, right = start * scale, max(end, start + least_s) * scale
                bars.setdefault(span.stage, []).append(
                    [(left, bottom), (left, top), (right, top), (right, bottom)]
                )
        for stage in in_stage_order(set(bars)):
            edged = stage.partition("+")[0] in TRAINING_STAGES
            _add_bars(axis, bars[stage], stage_colour(stage), edged=edged, hatch=stage_hatch(stage))
        self._moments(axis, scale, extras)
        return set(bars)

    def _heights(self, span: Span, row: int, slot: int, slots: int) -> tuple[float, float]:
        bottom = row + LANE_HEIGHT / 2 - slot * LANE_HEIGHT / slots
        full = LANE_HEIGHT / slots
        if span.stage == DECODE and "n" in span.args:
            full *= max(_LEAST_DECODE_HEIGHT, min(1.0, _running(span) / self.most_running))
        return bottom - full, bottom

    def _lanes_and_labels(self, axis: "Axes", unit: Unit, font_size: float, extras: set[str]) -> None:
        rows = range(len(self.lanes))
        axis.set_yticks(list(rows), self.lane_names, fontsize=font_size)
        axis.tick_params(axis="y", length=0)
        axis.set_ylim(len(self.lanes) - 0.45, -0.55)
        axis.spines["left"].set_visible(False)
        width = self.length_s / unit.seconds
        _add_bars(
            axis,
            [[(0, row + 0.4), (0, row - 0.4), (width, row - 0.4), (width, row + 0.4)] for row in rows],
            IDLE,
            edged=False,
        )
        extras.add("idle")
        for row, lane in enumerate(self.lanes):
            busy = covered([(start, end) for start, end, _ in self.by_lane[lane]]) / self.length_s
            beside(axis, 1.0, row, f"{busy:.0%}", size=font_size, at_edge=True)
        axis.annotate("busy", (1, 1), (6, 3), "axes fraction", "offset points", fontsize=8.5, color=FAINT)
        count = len(self.window.step_starts)
        label = f"{count} step{'s' if count > 1 else ''} in {format_seconds(self.length_s, unit)}"
        title = f"{self.name}: {label}" if self.name else label
        set_title(axis, title, pad=16 if count <= _MOST_STEP_LABELS else 6)

    def _waits(self, axis: "Axes", scale: float, extras: set[str]) -> None:
        """Replicas that have nothing left to do while others still generate."""
        found = []
        for row, lane in enumerate(self.lanes):
            if lane[0] != "rollout":
                continue
            for step, gen_end in self.window.gen_ends.items():
                begun = self.window.step_starts.get(step)
                if begun is None:
                    continue
                until = gen_end - self.window.start_s
                ends = [end for start, end, _ in self.by_lane[lane] if start < until]
                idle_from = max([begun - self.window.start_s, *ends])
                if until - idle_from > 1e-3 * self.length_s:
                    found.append([(x * scale, y) for x, y in _box(idle_from, until, row)])
        if found:
            from matplotlib.collections import PolyCollection

            axis.add_collection(
                PolyCollection(
                    found,
                    facecolors="white",
                    edgecolors=_TAIL_COLOUR,
                    hatch="//////",
                    linewidths=0.4,
                    zorder=1.5,
                ),
                autolim=False,
            )
            extras.add("waits for the tail")

    def _moments(self, axis: "Axes", scale: float, extras: set[str]) -> None:
        start = self.window.start_s
        for at in self.window.gen_ends.values():
            axis.axvline((at - start) * scale, color=INK, linewidth=0.8, linestyle=(0, (4, 3)), zorder=4)
            extras.add("end of gen")
        for at in self.window.step_ends.values():
            axis.axvline((at - start) * scale, color=INK, linewidth=1.0, zorder=4)
            extras.add("end of step")
        if len(self.window.step_starts) <= _MOST_STEP_LABELS:
            for step, begun in self.window.step_starts.items():
                end = self.window.step_ends.get(step, self.window.end_s)
                middle = (begun + end) / 2 - start
                axis.annotate(
                    f"step {step}",
                    (middle * scale, 1.0),
                    (0, 3),
                    ("data", "axes fraction"),
                    "offset points",
                    ha="center",
                    fontsize=8.5,
                    color=FAINT,
                    in_layout=False,
                )
        rows = {lane: row for row, lane in enumerate(self.lanes)}
        chunks = [
            ((marker.at_s - start) * scale, rows[(marker.group, marker.index)])
            for marker in self.markers
            if marker.name == CHUNK
            and (marker.group, marker.index) in rows
            and start <= marker.at_s <= self.window.end_s
        ]
        if 0 < len(chunks) <= _MOST_CHUNK_TICKS:
            from matplotlib.collections import LineCollection

            ticks = [[(x, row - 0.5), (x, row - 0.34)] for x, row in chunks]
            axis.add_collection(LineCollection(ticks, colors=INK, linewidths=0.6, zorder=4), autolim=False)
            extras.add("piece to the scorer")


def _running(span: Span) -> float:
    return max(1.0, float(span.args.get("n", 1)))


def _box(start: float, end: float, row: int) -> list[tuple[float, float]]:
    low, high = row + LANE_HEIGHT / 2, row - LANE_HEIGHT / 2
    return [(start, low), (start, high), (end, high), (end, low)]


def _add_bars(
    axis: "Axes",
    boxes: list[list[tuple[float, float]]],
    colour: str,
    *,
    edged: bool,
    hatch: str | None = None,
) -> None:
    from matplotlib.collections import PolyCollection

    # Edges tell training stages apart; around thousands of decode segments and scored pieces they would hide
    # them.
    axis.add_collection(
        PolyCollection(
            boxes,
            facecolors=colour,
            edgecolors="white" if edged or hatch else "none",
            linewidths=0.3 if edged and not hatch else 0.0,
            hatch=hatch,
            zorder=1.0 if colour == IDLE else 2.0,
        ),
        autolim=False,
    )


def _legend(figure: "Figure", stages: set[str], extras: set[str]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Artist] = []
    for stage in in_stage_order(stages):
        label = "decode (height: rollouts running)" if stage == DECODE else stage
        hatch = stage_hatch(stage)
        style: dict[str, Any] = {"hatch": hatch, "edgecolor": "white", "linewidth": 0.0} if hatch else {}
        handles.append(Patch(facecolor=stage_colour(stage), label=label, **style))
    others = (
        Patch(facecolor="white", edgecolor=_TAIL_COLOUR, hatch="//////", label="waits for the tail"),
        Patch(facecolor=IDLE, label="idle"),
        Line2D([], [], color=INK, linewidth=0.8, linestyle=(0, (4, 3)), label="end of gen"),
        Line2D([], [], color=INK, linewidth=1.0, label="end of step"),
        Line2D([], [], color=INK, linewidth=0.6, marker="|", linestyle="none", label="piece to the scorer"),
    )
    handles += [other for other in others if other.get_label() in extras]
    legend_below(figure, handles, columns=4)
