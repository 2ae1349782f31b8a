"""Timelines as Chrome trace event JSON, which ui.perfetto.dev and chrome://tracing open, and read back.

Format: "Trace Event Format" (Google, public document): complete events ``X``, instants ``i``, counters ``C``,
metadata ``M``; microseconds."""

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from oppo_sim.errors import OppoError
from oppo_sim.files import whole_file
from oppo_sim.plain_json import plain
from oppo_sim.report.activities import (
    DECODE,
    GEN_END,
    STEP_END,
    Lane,
    Timeline,
    check_times,
    group_order,
    lane_name,
    lanes_of,
    moments,
    window_of,
)
from oppo_sim.results.spans import Marker, Span
from oppo_sim.unpacking import gunzipped

Event = dict[str, Any]

PIDS_PER_RUN: Final = 100
"""Run r (from 0) has the processes from (r + 1) · this on: steps first, then its device groups."""

STEPS: Final = "steps"

_METADATA_FIRST: Final = {"M": 0}


def write_trace(runs: Mapping[str, Timeline], path: str | Path) -> None:
    """Write the timelines of one or several runs into one trace; a path ending in ``.gz`` is compressed.

    A run's name prefixes its processes (an empty one does not). Each device group is a process, each replica,
    worker or trainer a thread (tid = number + 1, since viewers keep thread 0 for themselves), activities that
    overlap on it threads below. Decode spans with ``n`` and ``kv_tokens`` in their args also give counter
    tracks. The same input gives the same bytes. Raises OppoError for impossible times or when the disk
    refuses.
    """
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
    lines = ",\n".join(map(encode, trace_events(runs)))
    data = f'{{"displayTimeUnit":"ms","traceEvents":[\n{lines}\n]}}\n'.encode()
    path = Path(path)
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    with whole_file(path) as file:
        file.write(data)


def trace_events(runs: Mapping[str, Timeline]) -> list[Event]:
    """The events of ``write_trace`` in order: metadata, then by time. Raises OppoError as it does."""
    events: list[Event] = []
    for number, (name, (spans, markers)) in enumerate(runs.items()):
        check_times(spans, markers)
        events.extend(_run_events(number, name, spans, markers))
    events.sort(key=_viewer_order)
    return events


def started_together(runs: Mapping[str, Timeline], steps: tuple[int, int]) -> dict[str, Timeline]:
    """The timelines moved so that all runs begin the first of ``steps`` (first, last) at one instant,
    and no time is negative: what is compared then lies one under the other. Raises OppoError where a run has
    no activity in these steps."""
    starts = {name: window_of(*timeline, steps).start_s for name, timeline in runs.items()}
    # Of an asynchronous run some of what lasts into the step began before it.
    earliest = (min(span.start_s for span in spans) - starts[name] for name, (spans, _) in runs.items())
    lead = -min(0.0, *earliest)
    found: dict[str, Timeline] = {}
    for name, (spans, markers) in runs.items():
        shift = lead - starts[name]
        found[name] = (
            [replace(span, start_s=span.start_s + shift, end_s=span.end_s + shift) for span in spans],
            [replace(marker, at_s=marker.at_s + shift) for marker in markers],
        )
    return found


# ---- inside ------------------------------------------------------------------------------------------------


class _Place(NamedTuple):
    pid: int
    tid: int
    name: str


def _run_events(number: int, run: str, spans: Sequence[Span], markers: Sequence[Marker]) -> Iterator[Event]:
    base = (number + 1) * PIDS_PER_RUN
    prefix = f"{run} · " if run else ""
    lanes = lanes_of([*spans, *markers])
    groups = sorted({group for group, _ in lanes}, key=group_order)
    stride = 1 + max((index for _, index in lanes), default=0)
    sizes = {group: sum(1 for lane in lanes if lane[0] == group) for group in groups}
    pids = {group: base + 1 + position for position, group in enumerate(groups)}

    yield from _named_process(base, f"{prefix}{STEPS}", base)
    yield from _named_thread(base, 1, "step", 0)
    for group, pid in pids.items():
        yield from _named_process(pid, f"{prefix}{group}", pid)

    by_lane: dict[Lane, list[Span]] = {lane: [] for lane in lanes}
    for span in spans:
        by_lane[(span.group, span.index)].append(span)
    places: dict[Lane, _Place] = {}
    for lane in lanes:
        group, index = lane
        places[lane] = _Place(pids[group], index + 1, lane_name(lane, alone=sizes[group] == 1))
        yield from _named_thread(*places[lane], index * stride)
        on_lane = sorted(by_lane[lane], key=lambda span: (_us(span.start_s), -_us(span.end_s), span.stage))
        below: set[int] = set()
        for span, depth in zip(on_lane, _threads_below(on_lane), strict=True):
            tid = index + 1 + depth * stride
            if depth and depth not in below:
                below.add(depth)
                yield from _named_thread(
                    pids[group], tid, f"{places[lane].name} (parallel {depth})", index * stride + depth
                )
            yield _complete(span, pids[group], tid)
        yield from _decode_counters(on_lane, places[lane])

    yield from _step_events(markers, spans, base)
    for marker in markers:
        place = places[(marker.group, marker.index)]
        # Step and gen ends concern the whole group; a chunk only its replica.
        scope = "p" if marker.name in (STEP_END, GEN_END) else "t"
        yield _event(
            "i",
            marker.name,
            place.pid,
            place.tid,
            _us(marker.at_s),
            s=scope,
            args={"step": plain(marker.step)},
        )


def _us(seconds: float) -> int:
    """Whole microseconds: viewers drop slices that overlap by a rounding error, and rounding keeps touching
    ones touching."""
    return round(seconds * 1e6)


def _event(ph: str, name: str, pid: int, tid: int, ts: int, **more: Any) -> Event:
    return {"ph": ph, "name": name, "pid": pid, "tid": tid, "ts": ts, **more}


def _named_process(pid: int, name: str, sort_index: int) -> Iterator[Event]:
    yield _event("M", "process_name", pid, 0, 0, args={"name": name})
    yield _event("M", "process_sort_index", pid, 0, 0, args={"sort_index": sort_index})


def _named_thread(pid: int, tid: int, name: str, sort_index: int) -> Iterator[Event]:
    yield _event("M", "thread_name", pid, tid, 0, args={"name": name})
    yield _event("M", "thread_sort_index", pid, tid, 0, args={"sort_index": sort_index})


def _complete(span: Span, pid: int, tid: int) -> Event:
    n = span.args.get("n")
    name = f"{span.stage} n={n}" if span.stage == DECODE and n is not None else span.stage
    start = _us(span.start_s)
    args = dict(sorted({**span.args, "step": span.step}.items()))
    return _event("X", name, pid, tid, start, dur=_us(span.end_s) - start, cat=span.stage, args=plain(args))


def _threads_below(spans: Sequence[Span]) -> Iterator[int]:
    """Per span (ordered by start, longest first) the first of several stacks of slices in which it nests."""
    stacks: list[list[int]] = []
    for span in spans:
        start, end = _us(span.start_s), _us(span.end_s)
        for depth, stack in enumerate(stacks):
            while stack and stack[-1] <= start:
                stack.pop()
            if not stack or end <= stack[-1]:
                stack.append(end)
                yield depth
                break
        else:
            stacks.append([end])
            yield len(stacks) - 1


def _decode_counters(on_lane: Sequence[Span], place: _Place) -> Iterator[Event]:
    """Running rollouts and their KV tokens at the start of each decode span, 0 where the replica then
    pauses."""
    starts = {_us(span.start_s) for span in on_lane}
    for span in on_lane:
        if span.stage != DECODE:
            continue
        end = _us(span.end_s)
        for key, track in (("n", "running rollouts"), ("kv_tokens", "running KV tokens")):
            value = span.args.get(key)
            if value is None:
                continue
            yield _counter(f"{place.name} {track}", place, _us(span.start_s), float(value))
            if end not in starts:
                yield _counter(f"{place.name} {track}", place, end, 0.0)


def _counter(name: str, place: _Place, ts: int, value: float) -> Event:
    whole = int(value) if float(value).is_integer() else float(value)
    return _event("C", name, place.pid, place.tid, ts, args={"value": whole})


def _step_events(markers: Iterable[Marker], spans: Sequence[Span], pid: int) -> Iterator[Event]:
    """One slice a step, from one ``step_end`` to the next."""
    start = min((_us(span.start_s) for span in spans), default=0)
    for step, at in moments(markers, STEP_END).items():
        end = _us(at)
        start = min(start, end)
        yield _event(
            "X", f"step {step}", pid, 1, start, dur=end - start, cat=STEPS, args={"step": plain(step)}
        )
        start = end


def _viewer_order(event: Event) -> tuple[int, int, int, int, int, str]:
    return (
        _METADATA_FIRST.get(event["ph"], 1),
        event["ts"],
        event["pid"],
        event["tid"],
        -event.get("dur", 0),
        event["name"],
    )


_PARALLEL: Final = re.compile(r" \(parallel \d+\)$")
_NUMBER: Final = re.compile(r" (\d+)$")


def read_trace(path: str | Path) -> dict[str, Timeline]:
    """Timelines by run, times in seconds to the microsecond. Raises OppoError for a file that is missing or
    no such trace."""
    path = Path(path)
    try:
        data = gunzipped(path) if path.suffix == ".gz" else path.read_bytes()
        events = json.loads(data)["traceEvents"]
        groups, lanes = _names(events)
        found: dict[str, tuple[list[Span], list[Marker]]] = {
            run: ([], []) for _, (run, _group) in sorted(groups.items())
        }
        for event in events:
            if event["ph"] not in ("X", "i") or groups[event["pid"]][1] == STEPS:
                continue
            run, group = groups[event["pid"]]
            spans, markers = found[run]
            index, start = lanes[(event["pid"], event["tid"])], event["ts"] / 1e6
            args = dict(event["args"])
            step = args.pop("step")
            if event["ph"] == "X":
                spans.append(
                    Span(group, index, event["cat"], start, (event["ts"] + event["dur"]) / 1e6, step, args)
                )
            else:
                markers.append(Marker(event["name"], group, index, start, step))
    except FileNotFoundError:
        raise OppoError(f"there is no timeline {path}: check the path") from None
    except OSError as error:
        raise OppoError(f"cannot read {path} ({error.strerror or error}): check its permissions") from error
    except (ValueError, KeyError, TypeError, EOFError, AttributeError, RecursionError, zlib.error):
        raise OppoError(f"{path} is no timeline that this program wrote: make the run again") from None
    return dict(found)


def _names(events: list[Mapping[str, Any]]) -> tuple[dict[int, tuple[str, str]], dict[tuple[int, int], int]]:
    """(run, group) by process, and the lane's number by thread."""
    groups: dict[int, tuple[str, str]] = {}
    lanes: dict[tuple[int, int], int] = {}
    for event in events:
        if event["ph"] != "M":
            continue
        if event["name"] == "process_name":
            run, _, group = event["args"]["name"].rpartition(" · ")
            groups[event["pid"]] = (run, group)
        elif event["name"] == "thread_name":
            number = _NUMBER.search(_PARALLEL.sub("", event["args"]["name"]))
            lanes[(event["pid"], event["tid"])] = int(number.group(1)) if number else 0
    return groups, lanes
