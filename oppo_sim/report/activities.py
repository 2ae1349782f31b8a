"""What spans and markers say of a run: lanes, windows of steps, when something happened, what overlaps."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from oppo_sim.errors import OppoError
from oppo_sim.results.spans import Marker, Span

Timeline: TypeAlias = tuple[Sequence[Span], Sequence[Marker]]
"""Spans and markers of one run."""
Lane: TypeAlias = tuple[str, int]
"""(device group, number)."""

GROUPS: Final = ("rollout", "scoring", "training")
_LANE_NAMES: Final[Mapping[str, str]] = {"rollout": "replica", "scoring": "scorer", "training": "training"}
DECODE: Final = "decode"
GEN_END: Final = "gen_end"
STEP_END: Final = "step_end"
CHUNK: Final = "chunk"  # a piece handed to the scorer, at every granularity


def group_order(group: str) -> tuple[int, str]:
    """Sort key: rollout, scoring, training, then others by name."""
    return (GROUPS.index(group) if group in GROUPS else len(GROUPS), group)


def lanes_of(activities: Iterable[Span | Marker]) -> list[Lane]:
    """Every (group, number) that occurs, in the order of display."""
    found = {(activity.group, activity.index) for activity in activities}
    return sorted(found, key=lambda lane: (group_order(lane[0]), lane[1]))


def lane_name(lane: Lane, alone: bool) -> str:
    """``replica 3``; without the number if the group has one lane and needs none."""
    group, index = lane
    name = _LANE_NAMES.get(group, group)
    return name if alone and name == group else f"{name} {index}"


def check_times(spans: Iterable[Span], markers: Iterable[Marker]) -> None:
    """Raise OppoError for a time that is not finite or a span that ends before it starts."""
    for span in spans:
        if not (math.isfinite(span.start_s) and math.isfinite(span.end_s) and span.end_s >= span.start_s):
            raise OppoError(
                f"span '{span.stage}' of {span.group} {span.index}, step {span.step}, runs from"
                f" {span.start_s} to {span.end_s} s: give finite times, the end not before the start"
            )
    for marker in markers:
        if not math.isfinite(marker.at_s):
            raise OppoError(
                f"marker '{marker.name}' of step {marker.step} lies at {marker.at_s} s: give a finite time"
            )


class Window(NamedTuple):
    """A run of whole steps on a timeline, times in seconds."""

    start_s: float
    end_s: float
    step_ends: dict[int, float]
    gen_ends: dict[int, float]
    step_starts: dict[int, float]


def window_of(spans: Sequence[Span], markers: Sequence[Marker], steps: tuple[int, int]) -> Window:
    """Where steps first … last (both included) lie. A step starts where the one before ended, else with its
    first activity.

    Raises OppoError when no activity of these steps was recorded.
    """
    first, last = steps
    recorded = sorted({span.step for span in spans})
    shown = [step for step in recorded if first <= step <= last]
    if not shown:
        have = (
            f"there are steps {recorded[0]} to {recorded[-1]}"
            if recorded
            else "no activity was recorded at all"
        )
        raise OppoError(f"no activity of steps {first} to {last} was recorded: {have}")
    ends = moments(markers, STEP_END)
    starts = {}
    for step in shown:
        begun = min(span.start_s for span in spans if span.step == step)
        starts[step] = ends.get(step - 1, begun)
    last_activity = max(span.end_s for span in spans if first <= span.step <= last)
    end = ends.get(shown[-1], last_activity)
    if end <= starts[shown[0]]:
        raise OppoError(f"steps {first} to {last} took no time: there is nothing to draw")
    return Window(
        starts[shown[0]],
        end,
        {step: at for step, at in ends.items() if first <= step <= last},
        {step: at for step, at in moments(markers, GEN_END).items() if first <= step <= last},
        starts,
    )


def moments(markers: Iterable[Marker], name: str) -> dict[int, float]:
    """Seconds of a marker by step: the latest, should several lanes give one."""
    found: dict[int, float] = {}
    for marker in markers:
        if marker.name == name:
            found[marker.step] = max(found.get(marker.step, -math.inf), marker.at_s)
    return dict(sorted(found.items()))


def shares(intervals: Sequence[tuple[float, float]]) -> list[tuple[int, int]]:
    """(slot, slots) per interval of one lane: intervals that overlap, also through others, share the lane's
    height.

    ``intervals`` must be ordered by start. One that overlaps none has slot 0 of 1.
    """
    slots = [0] * len(intervals)
    result: list[tuple[int, int]] = [(0, 1)] * len(intervals)
    cluster: list[int] = []
    busy_until: list[float] = []

    def close() -> None:
        for member in cluster:
            result[member] = (slots[member], len(busy_until))
        cluster.clear()
        busy_until.clear()

    for number, (start, end) in enumerate(intervals):
        if busy_until and start >= max(busy_until):
            close()
        slot = next((free for free, until in enumerate(busy_until) if until <= start), len(busy_until))
        if slot == len(busy_until):
            busy_until.append(end)
        else:
            busy_until[slot] = end
        slots[number] = slot
        cluster.append(number)
    close()
    return result


def covered(intervals: Sequence[tuple[float, float]]) -> float:
    """Length of the union of intervals ordered by start (same unit)."""
    total = 0.0
    reach = -math.inf
    for start, end in intervals:
        total += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return total
