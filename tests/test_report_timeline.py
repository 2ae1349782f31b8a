"""Perfetto traces and Gantt charts, from hand-made timelines."""

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from oppo_sim.errors import OppoError
from oppo_sim.report.activities import covered, shares
from oppo_sim.report.perfetto import started_together, trace_events, write_trace
from oppo_sim.report.style import stage_colour
from oppo_sim.report.timeline import compare_gantt, gantt_figure
from oppo_sim.results.spans import Marker, Span


def two_steps(step_s: float = 10.0) -> tuple[list[Span], list[Marker]]:
    """Two replicas (the second waits for the tail of the first), a scorer, training with three parallel
    stages."""
    spans, markers = [], []
    for step in range(2):
        t = step * step_s
        for replica, decode_s in enumerate((6.0, 2.0)):
            spans.append(Span("rollout", replica, "prefill", t, t + 0.5, step, {"tokens": 640}))
            half = decode_s / 2
            spans.append(
                Span(
                    "rollout",
                    replica,
                    "decode",
                    t + 0.5,
                    t + half,
                    step,
                    {"n": 16, "kv_tokens": 1600, "iterations": 40},
                )
            )
            spans.append(
                Span(
                    "rollout",
                    replica,
                    "decode",
                    t + half,
                    t + decode_s,
                    step,
                    {"n": 2, "kv_tokens": 900, "iterations": 60},
                )
            )
        markers.append(Marker("chunk", "rollout", 0, t + 3, step))
        markers.append(Marker("gen_end", "rollout", 0, t + 6, step))
        spans.append(Span("scoring", 0, "score", t + 6, t + 7, step, {"tokens": np.int64(3000)}))
        spans.append(Span("training", 0, "old_log_prob", t + 7, t + 8, step, {}))
        spans.append(Span("training", 0, "ref", t + 7.5, t + 8.1, step, {}))
        spans.append(Span("training", 0, "values", t + 7, t + 8.2, step, {}))
        spans.append(Span("training", 0, "update_actor", t + 8.2, t + step_s, step, {}))
        markers.append(Marker("step_end", "training", 0, t + step_s, step))
    return spans, markers


def check_trace_rules(events: list[dict[str, object]]) -> None:
    """Trace Event Format: required keys, durations from 0 on, slices of one thread nest."""
    open_slices: dict[tuple[int, int], list[int]] = {}
    last_ts = -math.inf
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    for event in events:
        for key, kind in (("ph", str), ("name", str), ("ts", int), ("pid", int), ("tid", int)):
            assert isinstance(event[key], kind), event
        assert event["ph"] in {"X", "i", "C", "M"}
        if event["ph"] == "M":
            assert event["name"] in {"process_name", "process_sort_index", "thread_name", "thread_sort_index"}
            assert len(event["args"]) == 1
            continue
        assert (event["pid"], event["tid"]) in named
        assert event["ts"] >= last_ts
        last_ts = event["ts"]
        if event["ph"] == "i":
            assert event["s"] in {"g", "p", "t"}
        elif event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())
        else:
            assert event["dur"] >= 0
            stack = open_slices.setdefault((event["pid"], event["tid"]), [])
            while stack and stack[-1] <= event["ts"]:
                stack.pop()
            assert not stack or event["ts"] + event["dur"] <= stack[-1], (
                "slices of one thread overlap without nesting"
            )
            stack.append(event["ts"] + event["dur"])


def names_of(events: list[dict[str, object]], kind: str) -> dict[tuple[int, int], str]:
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == kind}


def test_trace_has_processes_threads_slices_and_obeys_the_format() -> None:
    events = trace_events({"": two_steps()})
    check_trace_rules(events)
    assert sorted(names_of(events, "process_name").values()) == ["rollout", "scoring", "steps", "training"]
    threads = list(names_of(events, "thread_name").values())
    assert threads == ["step", "replica 0", "replica 1", "scorer 0", "training", "training (parallel 1)"]
    slices = [e for e in events if e["ph"] == "X"]
    assert {e["name"] for e in slices} == {
        "prefill", "decode n=16", "decode n=2", "score", "old_log_prob", "ref", "values", "update_actor", "step 0", "step 1",
    }  # fmt: skip
    score = next(e for e in slices if e["name"] == "score")
    assert (score["ts"], score["dur"]) == (6_000_000, 1_000_000)
    assert score["args"] == {"step": 0, "tokens": 3000}
    assert [(e["ts"], e["dur"]) for e in slices if e["name"].startswith("step ")] == [
        (0, 10_000_000),
        (10_000_000, 10_000_000),
    ]
    assert {e["name"] for e in events if e["ph"] == "i"} == {"chunk", "gen_end", "step_end"}


def test_sort_indexes_order_the_groups_and_lanes() -> None:
    events = trace_events({"": two_steps()})
    order = {e["pid"]: e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"}
    names = {pid: name for (pid, _), name in names_of(events, "process_name").items()}
    assert [names[pid] for pid in sorted(order, key=order.__getitem__)] == [
        "steps",
        "rollout",
        "scoring",
        "training",
    ]


def test_counters_follow_the_running_rollouts_and_fall_to_zero_when_a_replica_waits() -> None:
    events = trace_events({"": two_steps()})
    running = [
        (e["ts"], e["args"]["value"])
        for e in events
        if e["ph"] == "C" and e["name"] == "replica 1 running rollouts"
    ]
    assert running[:3] == [(500_000, 16), (1_000_000, 2), (2_000_000, 0)]
    kv = [e["args"]["value"] for e in events if e["ph"] == "C" and e["name"] == "replica 0 running KV tokens"]
    assert kv == [1600, 900, 0, 1600, 900, 0]


def test_several_runs_lie_side_by_side() -> None:
    events = trace_events({"simulated": two_steps(), "real": two_steps(11.0)})
    check_trace_rules(events)
    order = {e["pid"]: e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"}
    assert len(set(order.values())) == len(order) == 8
    names = {pid: name for (pid, _), name in names_of(events, "process_name").items()}
    shown = [names[pid] for pid in sorted(order, key=order.__getitem__)]
    groups = ("steps", "rollout", "scoring", "training")
    assert shown == [f"{run} · {group}" for run in ("simulated", "real") for group in groups]


def test_the_same_timeline_gives_the_same_bytes_whatever_the_order_of_args(tmp_path: Path) -> None:
    spans, markers = two_steps()
    turned = [replace(span, args=dict(reversed(span.args.items()))) for span in spans]
    write_trace({"run": (spans, markers)}, tmp_path / "a.json")
    write_trace({"run": (turned, markers)}, tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert json.loads((tmp_path / "a.json").read_bytes())["traceEvents"] == trace_events(
        {"run": (spans, markers)}
    )
    for name in ("c.json.gz", "d.json.gz"):
        write_trace({"run": (spans, markers)}, tmp_path / name)
    packed = (tmp_path / "c.json.gz").read_bytes()
    assert packed == (tmp_path / "d.json.gz").read_bytes()
    assert gzip.decompress(packed) == (tmp_path / "a.json").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.json", "c.json.gz", "d.json.gz"]


intervals = st.lists(st.tuples(st.floats(0, 50), st.floats(0, 10)), max_size=30)


@settings(max_examples=50, deadline=None)
@given(intervals)
def test_any_overlap_on_one_lane_becomes_threads_that_nest(pieces: list[tuple[float, float]]) -> None:
    spans = [
        Span("training", 0, f"s{i}", start, start + length, 0, {}) for i, (start, length) in enumerate(pieces)
    ]
    events = trace_events({"": (spans, [])})
    check_trace_rules(events)
    assert sum(e["ph"] == "X" for e in events) == len(spans)


@settings(max_examples=50, deadline=None)
@given(intervals)
def test_overlapping_activities_share_a_lane_without_touching(pieces: list[tuple[float, float]]) -> None:
    ordered = sorted((start, start + length) for start, length in pieces if length)
    places = shares(ordered)
    for i, (start, end) in enumerate(ordered):
        slot, slots = places[i]
        assert 0 <= slot < slots
        for j in range(i + 1, len(ordered)):
            if ordered[j][0] < end and ordered[j][1] > start:
                assert places[j][1] == slots
                assert places[j][0] != slot
    assert 0 <= covered(ordered) <= sum(end - start for start, end in ordered) + 1e-9


@pytest.mark.parametrize(("start", "end"), [(2.0, 1.0), (0.0, math.nan), (math.inf, math.inf)])
def test_impossible_times_are_refused(start: float, end: float, tmp_path: Path) -> None:
    bad = ([Span("rollout", 3, "decode", start, end, 5, {"n": 1})], [])
    with pytest.raises(OppoError, match="'decode' of rollout 3, step 5"):
        write_trace({"": bad}, tmp_path / "t.json")
    assert not list(tmp_path.iterdir())


def test_unknown_groups_and_values_without_json_form_are_kept() -> None:
    events = trace_events({"": ([Span("reward_api", 2, "call", 0.0, 1.0, 0, {"rate": math.nan})], [])})
    check_trace_rules(events)
    assert (
        "reward_api 2" in names_of(events, "thread_name").values()
        or "reward_api" in names_of(events, "thread_name").values()
    )
    assert next(e for e in events if e["ph"] == "X")["args"] == {"rate": None, "step": 0}


# ---- Gantt -------------------------------------------------------------------------------------------------


def boxes(figure: Figure, axis: int, colour: str) -> list[np.ndarray]:
    """Vertices of the bars of one colour."""
    found = []
    for collection in figure.axes[axis].collections:
        if isinstance(collection, PolyCollection) and to_hex(collection.get_facecolor()[0]).upper() == colour:
            found += [path.vertices[:4] for path in collection.get_paths()]
    return found


def legend_texts(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_gantt_has_a_lane_per_replica_worker_and_trainer_and_a_legend_of_what_is_drawn() -> None:
    figure = gantt_figure(*two_steps(), steps=(0, 1), title="oppo")
    axis = figure.axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == [
        "replica 0",
        "replica 1",
        "scorer 0",
        "training",
    ]
    assert axis.get_title(loc="left") == "oppo: 2 steps in 20.0 s"
    assert axis.get_xlabel() == "s since the start of step 0"
    assert axis.get_xlim() == (0.0, 20.0)
    assert legend_texts(figure) == [
        "decode (height: rollouts running)", "prefill", "score", "old_log_prob", "ref", "values", "update_actor",
        "waits for the tail", "idle", "end of gen", "end of step", "piece to the scorer",
    ]  # fmt: skip
    written = [text.get_text() for text in axis.texts]
    assert "step 0" in written
    assert "60%" in written  # replica 0 is busy 6 of 10 s
    assert "20%" in written  # replica 1: 2 of 10 s
    figure.canvas.draw()


def test_gantt_decode_bars_are_as_high_as_the_rollouts_that_run() -> None:
    figure = gantt_figure(*two_steps(), steps=(0, 0))
    heights = sorted({round(float(np.ptp(box[:, 1])), 6) for box in boxes(figure, 0, stage_colour("decode"))})
    assert heights == [pytest.approx(0.8 * 2 / 16), pytest.approx(0.8)]


def test_gantt_marks_the_replica_that_waits_for_the_tail() -> None:
    figure = gantt_figure(*two_steps(), steps=(0, 0))
    hatched = [c for c in figure.axes[0].collections if isinstance(c, PolyCollection) and c.get_hatch()]
    (wait,) = [path.vertices[:4] for collection in hatched for path in collection.get_paths()]
    assert (wait[:, 0].min(), wait[:, 0].max()) == (2.0, 6.0)
    assert wait[:, 1].mean() == pytest.approx(1.0)  # the lane of replica 1


def test_stages_without_work_are_told_apart_by_shade_and_hatch() -> None:
    stages = ("wake", "barrier", "other")
    spans = [Span("training", 0, stage, float(n), n + 1.0, 0, {}) for n, stage in enumerate(stages)]
    figure = gantt_figure(spans, [], steps=(0, 0))
    drawn = [c for c in figure.axes[0].collections if isinstance(c, PolyCollection) and c.get_hatch()]
    looks = {(to_hex(bar.get_facecolor()[0]), bar.get_hatch()) for bar in drawn}
    keys = {to_hex(key.get_facecolor()): key.get_hatch() for key in figure.legends[0].legend_handles[:3]}
    assert len(looks) == len({shade for shade, _ in looks}) == len({hatch for _, hatch in looks}) == 3
    assert set(keys.items()) == looks


def test_gantt_parallel_stages_share_the_lane() -> None:
    figure = gantt_figure(*two_steps(), steps=(0, 0))
    (ref,) = boxes(figure, 0, stage_colour("ref"))
    (update,) = boxes(figure, 0, stage_colour("update_actor"))
    assert np.ptp(ref[:, 1]) == pytest.approx(0.8 / 3)
    assert np.ptp(update[:, 1]) == pytest.approx(0.8)


def test_gantt_window_starts_with_its_first_step_and_cuts_what_reaches_in() -> None:
    spans, markers = two_steps()
    spans.append(Span("scoring", 0, "score", 9.0, 11.0, 0, {}))
    figure = gantt_figure(spans, markers, steps=(1, 1))
    assert figure.axes[0].get_xlim() == (0.0, 10.0)
    first = min(boxes(figure, 0, stage_colour("score")), key=lambda box: box[:, 0].min())
    assert (first[:, 0].min(), first[:, 0].max()) == (0.0, 1.0)


def test_compared_runs_share_the_time_axis_and_one_legend() -> None:
    long = two_steps(400.0)
    figure = compare_gantt({"sequential": long, "oppo": two_steps()}, steps=(1, 1))
    assert [axis.get_title(loc="left") for axis in figure.axes] == [
        "sequential: 1 step in 6.67 min",
        "oppo: 1 step in 0.167 min",
    ]
    assert figure.axes[0].get_xlim() == figure.axes[1].get_xlim() == (0.0, pytest.approx(400 / 60))
    assert figure.axes[1].get_xlabel() == "min since the start of step 1"
    assert len(figure.legends) == 1
    figure.canvas.draw()


def test_joint_stages_look_like_their_first_and_every_legend_fits_the_picture() -> None:
    spans, markers = two_steps()
    joint = "old_log_prob+ref+values"
    spans = [
        replace(span, stage=joint) if span.stage == "old_log_prob" else span
        for span in spans
        if span.stage not in ("ref", "values")
    ]
    extra = [
        Span("training", 0, stage, 20.0, 20.1, 1, {}) for stage in ("adv", "update_critic", "update_weights")
    ]
    figure = gantt_figure([*spans, *extra], markers, steps=(0, 1))
    assert len(boxes(figure, 0, stage_colour("old_log_prob"))) == 2
    assert legend_texts(figure)[3] == joint
    figure.canvas.draw()
    extent = figure.legends[0].get_window_extent()
    width, height = figure.canvas.get_width_height()
    assert width == 1200
    assert extent.x0 >= 0
    assert extent.y0 >= 0
    assert extent.x1 <= width
    assert extent.y1 <= height


def test_gantt_says_which_steps_were_recorded() -> None:
    with pytest.raises(OppoError, match=r"steps 7 to 9 .* there are steps 0 to 1"):
        gantt_figure(*two_steps(), steps=(7, 9))
    with pytest.raises(OppoError, match="at least one run"):
        compare_gantt({}, steps=(0, 1))


def test_compared_runs_start_their_first_shown_step_together() -> None:
    """A slow run, a fast one, and one whose training reaches into the step from before: all begin step 1 at
    one instant, nothing lies before 0, and lengths stay."""
    slow, fast, early = two_steps(20.0), two_steps(), two_steps(12.0)
    early[0].append(Span("training", 0, "update_actor", 11.0, 12.5, 1, {}))
    runs = {"slow": slow, "fast": fast, "early": early}
    late = {name: ([one for one in spans if one.step], markers) for name, (spans, markers) in runs.items()}
    moved = started_together(late, (1, 1))
    begun = {
        name: min(span.start_s for span in spans if span.stage == "prefill")
        for name, (spans, _) in moved.items()
    }
    assert begun == {"slow": 1.0, "fast": 1.0, "early": 1.0}
    assert min(span.start_s for spans, _ in moved.values() for span in spans) == 0.0
    for name, (spans, markers) in moved.items():
        lengths = [span.end_s - span.start_s for span in late[name][0]]
        assert [span.end_s - span.start_s for span in spans] == pytest.approx(lengths)
        assert markers[0].at_s - late[name][1][0].at_s == pytest.approx(
            spans[0].start_s - late[name][0][0].start_s
        )
