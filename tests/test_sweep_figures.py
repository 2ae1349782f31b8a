"""Figures of a sweep, from a sweep in closed form."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection, QuadMesh
from matplotlib.figure import Figure

from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.report import sweep_figures as s
from oppo_sim.report import tune_figures as t
from oppo_sim.report.curve_figure import curve_figure
from oppo_sim.report.heat_figure import heat_figure
from oppo_sim.report.labels import field_label, measured_label, settings_label, value_label
from oppo_sim.report.points import Points, category, filled, heat_axes, is_grid, ordered_values
from oppo_sim.report.ranked_figure import ranked_figure
from oppo_sim.report.scatter_figure import scatter_figure
from oppo_sim.report.style import legend_below, new_figure
from oppo_sim.report.tradeoff_figure import pareto_front, tradeoff_figure
from tests.report_points import CHUNKS, OVERCOMMITS, made_points, seconds, table
from tests.test_report_figures import check_readable, legend_texts


def sampled_points() -> Points:
    """Random samples: no two points share a value."""
    rng = np.random.default_rng(3)
    chunk, overcommit = 32 * 2 ** (6 * rng.random(200)), 32 * rng.random(200)
    took = [seconds("separate", int(a), int(b)) for a, b in zip(chunk, overcommit, strict=True)]
    frame = pd.DataFrame({"policy.chunk_size": chunk, "policy.overcommit": overcommit, "step_s": took})
    return Points(
        frame, ("policy.chunk_size", "policy.overcommit"), region=frozenset({int(np.argmin(took)), 5})
    )


def made_splits() -> Points:
    """Three splits of GPUs and one that cannot run."""
    frame = pd.DataFrame(
        {
            "cluster.split": ["4xTP2", "8xTP1", "2xTP4", "1xTP8"],
            "step_s": [90.0, 87.0, 141.0, np.nan],
            "step_s_low": [80.0, 79.0, 130.0, np.nan],
            "step_s_high": [100.0, 95.0, 152.0, np.nan],
            "status": ["ok", "ok", "ok", "failed"],
        }
    )
    return Points(frame, ("cluster.split",), 1, frozenset({0, 1}))


def made_trials() -> pd.DataFrame:
    """The third cannot run, the fourth breaks a bound."""
    seconds = [1.2, 1.0, np.nan, 0.8, 0.9]
    statuses = ["ok", "ok", "failed", "infeasible", "ok"]
    return pd.DataFrame({"trial": range(5), "s_per_rollout": seconds, "status": statuses})


def made_sensitivity() -> pd.DataFrame:
    rows = [
        {"field": field, "value": str(value), "value_number": float(value), "status": "ok", **ends}
        for field, values in (("policy.overcommit", (0, 8, 32)), ("policy.chunk_size", (32, 2048)))
        for value in values
        for ends in [{"relative": 0.1, "relative_low": 0.05, "relative_high": 0.15}]
    ]
    return pd.DataFrame(rows)


def made_knobs() -> list[dict[str, Any]]:
    return [
        {"field": "policy.overcommit", "chosen": 8, "share_of_variance": 0.9},
        {"field": "policy.chunk_size", "chosen": 32, "share_of_variance": 0.1},
    ]


MAKERS: dict[str, Callable[[], Figure]] = {
    "heat": lambda: heat_figure(made_points(), title="a"),
    "heat of speed-up": lambda: heat_figure(made_points(), "speedup"),
    "heat of length bias": lambda: heat_figure(made_points(), "length_bias_paired"),
    "heat, 24 × 16": lambda: heat_figure(
        made_points(chunks=tuple(range(64, 64 * 17, 64)), overcommits=tuple(range(24)))
    ),
    "heat, other axes": lambda: heat_figure(made_points(), x="placement.scoring", y="policy.chunk_size"),
    "curve": lambda: curve_figure(made_points(), by="placement.scoring", title="a"),
    "curve of one line": lambda: curve_figure(made_points(), "speedup", x="policy.overcommit"),
    "length bias": lambda: curve_figure(
        made_points(), "length_bias_paired", x="policy.overcommit", by="placement.scoring"
    ),
    "scatter": lambda: scatter_figure(sampled_points()),
    "scatter of one field": lambda: scatter_figure(made_points(chunks=(256,)), by="placement.scoring"),
    "ranked": lambda: ranked_figure(made_splits(), title="a"),
    "trade-off": lambda: tradeoff_figure(made_points(), by="placement.scoring", title="a"),
    "trade-off with the bias": lambda: tradeoff_figure(made_points(), "length_bias_paired"),
    "history of a search": lambda: t.history_figure(made_trials(), "s_per_rollout", "a"),
    "sensitivity": lambda: t.sensitivity_figure(made_sensitivity(), made_knobs(), "a"),
    "regret": lambda: t.regret_figure([{"world": "as given", "chosen": 0.01, "nominal": 0.0}], "a"),
}


@pytest.mark.parametrize("name", MAKERS)
def test_every_figure_is_readable_and_the_same_each_time(name: str) -> None:
    pictures = []
    for _ in range(2):
        figure = MAKERS[name]()
        check_readable(figure)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png")
        pictures.append(buffer.getvalue())
    assert pictures[0] == pictures[1]


def mesh(figure: Figure) -> QuadMesh:
    return next(part for part in figure.axes[0].collections if isinstance(part, QuadMesh))


def test_the_heat_map_shows_the_best_placement_and_says_so() -> None:
    figure = heat_figure(made_points())
    drawn = np.ma.filled(mesh(figure).get_array(), np.nan)
    expected = [
        [np.nan if chunk == 32 and over >= 24 else seconds("separate", chunk, over) for over in OVERCOMMITS]
        for chunk in CHUNKS
    ]
    assert np.allclose(drawn, expected, equal_nan=True)
    assert figure.axes[0].get_title("left") == "at scoring placement separate"
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [
        str(chunk) for chunk in CHUNKS
    ]


def test_the_star_stands_at_the_optimum_and_the_legend_gives_its_value() -> None:
    figure = heat_figure(made_points())
    (marker,) = [line for line in figure.axes[0].lines if line.get_marker() == "*"]
    (x,), (y,) = marker.get_data()
    assert (OVERCOMMITS[round(float(x))], CHUNKS[round(float(y))]) == (24, 512)
    assert legend_texts(figure)[-1] == f"best: {measured_label(seconds('separate', 512, 24), 'seconds')}"


def test_the_outline_runs_around_the_region_and_no_other_cell() -> None:
    points = made_points()
    figure = heat_figure(points)
    (outline,) = [part for part in figure.axes[0].collections if isinstance(part, LineCollection)][1:]
    sides = {tuple(np.round(segment.mean(axis=0), 6)) for segment in outline.get_segments()}
    cells = {
        (
            OVERCOMMITS.index(int(points.table["policy.overcommit"][row])),
            CHUNKS.index(int(points.table["policy.chunk_size"][row])),
        )
        for row in points.region
        if points.table["placement.scoring"][row] == "separate"
    }
    border = set()
    for x, y in cells:
        for dx, dy in ((-1, 0), (1, 0), (0, -1), (0, 1)):
            if (x + dx, y + dy) not in cells:
                border.add((x + dx / 2, y + dy / 2))
    assert len(cells) > 2
    assert sides == border


def test_failed_cells_are_hatched_and_named() -> None:
    assert "failed" in legend_texts(heat_figure(made_points()))
    assert "failed" not in legend_texts(heat_figure(made_points(chunks=(64, 128))))


def test_each_line_of_the_curve_stays_at_its_own_fastest_point() -> None:
    figure = curve_figure(made_points(), by="placement.scoring")
    lines = [line for line in figure.axes[0].lines if line.get_linestyle() != "None"]
    for line, placement in zip(lines, ("separate", "rollout"), strict=True):
        at, height = line.get_data()
        overs = [seconds(placement, int(chunk), 24) for chunk in np.asarray(at)]
        assert np.allclose(height, overs)
    assert legend_texts(figure) == ["separate (overcommit Δ 24)", "rollout (overcommit Δ 24)"]
    assert "95 %" in figure.axes[0].get_title("left")


def test_the_front_holds_what_none_beats() -> None:
    paid, won = (
        np.array([0.0, 1.0, 1.0, 2.0, 3.0, np.nan, 0.5]),
        np.array([1.0, 1.5, 1.4, 1.5, 2.0, 9.0, 0.9]),
    )
    assert pareto_front(paid, won) == [0, 1, 4]


def test_the_trade_off_lists_the_settings_of_its_front() -> None:
    text = tradeoff_figure(made_points()).axes[0].get_xlabel()
    assert text.startswith("mean staleness (weight updates)")
    assert "scoring placement separate, chunk size 512, overcommit Δ 0" in text


def test_what_the_trade_off_lists_stays_in_its_figure() -> None:
    """Splits beside a switch are longer than a line: they go on below, set in."""
    splits = ("rollout:2xTP1 scoring:cpu training:6", "rollout:4xTP1 scoring:cpu training:4")
    frame = pd.DataFrame(
        {
            "cluster.split": [split for split in splits for _ in range(2)],
            "rollout.enable_prefix_caching": [True, False] * 2,
            c.SPEEDUP: [2.98, 2.91, 3.98, 3.92],
            c.COMPARED_STALENESS_MEAN: [0.627, 0.624, 0.704, 0.702],
            c.STATUS: ["ok"] * 4,
        }
    )
    axes = ("cluster.split", "rollout.enable_prefix_caching")
    figure = tradeoff_figure(Points(frame, axes, 2, frozenset({2})))
    figure.canvas.draw()
    text = figure.axes[0].xaxis.label
    assert "training:4,\n     rollout.enable_prefix_caching true" in text.get_text()
    assert text.get_window_extent().x1 <= figure.bbox.width


def test_the_best_trial_so_far_keeps_the_bounds() -> None:
    figure = t.history_figure(made_trials(), "s_per_rollout")
    assert legend_texts(figure) == ["keeps all bounds", "breaks a bound", "best so far"]
    (steps,) = figure.axes[0].lines
    assert list(steps.get_ydata()) == [1.2, 1.0, 1.0, 1.0, 0.9]


def test_a_panel_a_knob_in_the_order_given() -> None:
    figure = t.sensitivity_figure(made_sensitivity(), made_knobs())
    labels = [axis.get_xlabel() for axis in figure.axes]
    assert labels == ["overcommit Δ (rollouts)", "chunk size (tokens)"]
    assert figure.axes[0].get_title(loc="right") == "overcommit Δ: 90 % of the variance"
    # On a logarithmic axis, too, a size reads as it is set.
    assert [tick.get_text() for tick in figure.axes[1].get_xticklabels()] == ["32", "2048"]


def all_failed() -> Points:
    frame = table(chunks=(32,), overcommits=(24, 32))
    return Points(frame, ("placement.scoring", "policy.overcommit"))


NOTHING_TO_DRAW: dict[str, tuple[Callable[[], object], str]] = {
    "a field that does not vary": (lambda: heat_figure(made_points(chunks=(64,))), "policy.chunk_size"),
    "no measure": (
        lambda: heat_figure(all_failed(), x="policy.overcommit", y="placement.scoring"),
        "no point has the measure 'step_s'",
    ),
    "a curve along words": (lambda: curve_figure(made_points(), x="placement.scoring"), "numeric field"),
    "a trade-off without points": (lambda: tradeoff_figure(all_failed()), "no point has both"),
    "no trial": (lambda: t.history_figure(made_trials().iloc[2:3], "s_per_rollout"), "no trial"),
    "no knob": (lambda: t.sensitivity_figure(made_sensitivity(), []), "no knobs"),
    "no rows": (lambda: Points(table().iloc[:0], ()), "no rows"),
    "an axis that is no column": (lambda: Points(table(), ("policy.name",)), "policy.name"),
}


@pytest.mark.parametrize("case", NOTHING_TO_DRAW)
def test_what_cannot_be_drawn_is_said_in_one_sentence(case: str) -> None:
    draw, words = NOTHING_TO_DRAW[case]
    with pytest.raises(OppoError, match=words):
        draw()


def test_default_axes_are_overcommit_and_chunk_size_else_the_longest_two() -> None:
    assert heat_axes(made_points()) == ("policy.overcommit", "policy.chunk_size")
    frame = table().rename(columns={"policy.chunk_size": "policy.token_budget"})
    assert heat_axes(Points(frame, ("policy.token_budget", "policy.overcommit"))) == (
        "policy.token_budget",
        "policy.overcommit",
    )
    assert heat_axes(made_points(chunks=(64,))) is None


def test_where_no_field_is_a_number_points_stand_in_order() -> None:
    named = {one.name: one.figure for one in s.figures_of(made_splits())}
    assert list(named) == ["ranked"]
    (axis,) = named["ranked"].axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["8xTP1", "4xTP2", "2xTP4"]
    assert [line.get_xdata()[0] for line in axis.lines] == [87.0, 90.0, 141.0]  # type: ignore[index]
    assert [text.get_text() for text in axis.texts] == ["87.0 s", "90.0 s", "141 s"]
    assert legend_texts(named["ranked"]) == ["not told apart from the best", "worse on the same rollouts"]


def test_a_point_beside_its_bar_keeps_its_whole_setting() -> None:
    splits = ["rollout:1xTP1 scoring:cpu training:7", "rollout:2xTP1 scoring:cpu training:6"]
    frame = pd.DataFrame(
        {
            "cluster.split": [splits[0], splits[0], splits[1], splits[1]],
            "rollout.enable_prefix_caching": [True, False, True, False],
            "step_s": [3.0, 4.0, 1.0, 2.0],
        }
    )
    figure = ranked_figure(Points(frame, ("cluster.split", "rollout.enable_prefix_caching")))
    shown = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert shown[:2] == [
        f"{splits[1]}\nrollout.enable_prefix_caching true",
        f"{splits[1]}\nrollout.enable_prefix_caching false",
    ]
    assert [name.split("\n")[0] for name in shown[2:]] == [splits[0]] * 2


def test_samples_fill_no_grid_and_a_grid_does() -> None:
    assert filled(made_points(), "policy.overcommit", "policy.chunk_size") == 1.0
    assert filled(sampled_points(), "policy.overcommit", "policy.chunk_size") < 0.05


def test_categories_prefer_the_placement() -> None:
    assert category(made_points()) == "placement.scoring"
    assert category(made_points(placements=("separate",))) is None


def test_values_are_shown_in_order_and_short() -> None:
    mixed = pd.Series([512, "auto", 32.0, None, 512, 0.5], dtype=object)
    assert [value_label(value) for value in ordered_values(mixed)] == ["0.5", "32.0", "512", "auto", "–"]
    assert (
        settings_label([("policy.name", "oppo"), ("policy.overcommit", 8), ("policy.x", None)])
        == "policy oppo, overcommit Δ 8"
    )
    units = [field_label("policy.overcommit", values) for values in ((0, 8), (0.25, 1.0), (4, 0.5), ())]
    assert [label.partition("Δ")[2] for label in units] == [" (rollouts)", " (share of B)", "", " (rollouts)"]
    assert value_label({"control": "explore"}) == "controlled (explore)"
    assert value_label({"control": "race", "start": 64}) == "controlled (race, start 64)"
    assert value_label({"a": 1}) == '{"a": 1}'
    shown = [value_label(value, 4) for value in (1.7654275288657706, 0.33333333, 123456.78, 1.0, 3)]
    assert shown == ["1.765", "0.3333", "123457", "1.0", "3"]
    shown = [measured_label(value, "signed_share") for value in (-0.0004, 0.012, -0.012, float("nan"))]
    assert shown == ["±0.0 %", "+1.2 %", "−1.2 %", "–"]


def test_a_bound_takes_no_star_and_no_place_on_the_front() -> None:
    frame = table((128,), OVERCOMMITS, ("separate", "rollout"))
    frame["bound_only"] = frame["placement.scoring"] == "separate"
    points = Points(frame, ("placement.scoring", "policy.overcommit"))
    bounds = set(points.bounds())
    assert int(frame["step_s"].idxmin()) in bounds
    assert points.best_row() not in bounds
    assert points.best_row(c.SPEEDUP) not in bounds
    front = pareto_front(
        points.measured(c.COMPARED_STALENESS_MEAN), points.achievable(points.measured(c.SPEEDUP))
    )
    assert front
    assert not bounds & set(front)


def test_scattered_values_are_no_grid_even_where_the_best_has_a_cell_of_its_own() -> None:
    """Five trials of a search, each with values of its own: of 25 cells 5 are filled."""
    frame = pd.DataFrame(
        {
            "policy.chunk_size": [8, 10, 16, 21, 30],
            "policy.overcommit": [0, 1, 2, 3, 4],
            "policy.max_deferrals": [0, 1, 2, 3, 4],
            c.STEP_S: [5.0, 4.0, 3.0, 4.0, 5.0],
            c.STATUS: ["ok"] * 5,
        }
    )
    axes = ("policy.chunk_size", "policy.overcommit", "policy.max_deferrals")
    assert not is_grid(Points(frame, axes, 2, frozenset({2})))
    assert is_grid(made_points())


def test_every_mark_of_a_trade_off_is_in_its_legend() -> None:
    one = made_points(chunks=(64,), overcommits=(0, 8, 16), placements=("separate",))
    assert legend_texts(tradeoff_figure(one)) == [
        "a configuration",
        "none is both faster and fresher (Pareto front)",
    ]


def test_a_legend_of_long_names_stays_in_its_figure() -> None:
    """Splits of a cluster beside each other are wider than the page: they stand below each other."""
    figure, (axis,) = new_figure([3.0])
    long = [f"rollout:{n}xTP1 scoring:cpu training:{8 - n}" for n in (1, 2, 4)]
    drawn = [axis.plot([0, 1], label=name)[0] for name in [*long, "none is both faster and fresher"]]
    legend_below(figure, drawn, columns=4)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [line.get_label() for line in drawn]
    box = legend.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.width
