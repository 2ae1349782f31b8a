"""Figures and terminal tables, from hand-made frames."""

import io
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from rich.console import Console

from oppo_sim import columns as c
from oppo_sim.cli.tables import comparison_table, price_table, run_summary_table
from oppo_sim.errors import OppoError
from oppo_sim.report import comparison_figures as k
from oppo_sim.report import run_figures as g
from oppo_sim.report.fit_figures import fit_figures
from oppo_sim.report.labels import (
    clock_unit,
    format_percent,
    format_seconds,
    format_signed,
    signed_ends,
    significant,
)
from oppo_sim.report.terminal import Column, fitted

STAGE_S = {
    "gen": 80.0,
    "reward": 9.0,
    "old_log_prob": 4.0,
    "ref": 3.0,
    "values": 2.0,
    "adv": 0.0,
    "update_critic": 8.0,
    "update_actor": 14.0,
}


def step_frame(count: int = 20, overlap_s: float = 0.0) -> pd.DataFrame:
    number = np.arange(count)
    frame = {c.STEP: number} | {
        c.timing(stage): np.full(count, seconds) for stage, seconds in STAGE_S.items()
    }
    frame[c.TIMING_STEP] = np.full(count, sum(STAGE_S.values()) - overlap_s)
    frame |= {
        c.ROLLOUTS_DEFERRED: number % 3,
        c.ROLLOUTS_SURPLUS: number % 2,
        c.ROLLOUTS_DROPPED: np.zeros(count, dtype=int),
    }
    frame |= {c.OVERCOMMIT: number // 4, c.CHUNK_SIZE: np.full(count, 256), c.REWARD_MEAN: number / count}
    frame[c.DEFERRALS_HISTOGRAM] = [[6, 2] if i % 2 else np.array([8]) for i in number]
    frame[c.STALENESS_HISTOGRAM] = [[7, 1] if i % 2 else np.array([6, 1, 1]) for i in number]
    return pd.DataFrame(frame)


def comparison() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "step_s": [120.0, 90.0, 80.0], "step_s_low": [118.0, 89.0, 79.0], "step_s_high": [122.0, 91.5, 81.0],
            "speedup": [1.0, 4 / 3, 1.5], "speedup_low": [1.0, 1.3, 1.45], "speedup_high": [1.0, 1.36, 1.55],
            "gen_s": [80.0, 60.0, 70.0], "reward_s": [9.0, 1.0, 2.0], "training_s": [31.0, 29.0, 31.0],
            "staleness_mean": [0.0, 0.13, 1.0], "staleness_max": [0, 2, 1], "length_bias_paired": [0.0, -0.004, np.nan],
        },
        index=pd.Index(["sequential", "oppo", "mine.py:Async[v2]"], name="policy"),
    )  # fmt: skip


def attribution() -> pd.DataFrame:
    nan = np.nan
    return pd.DataFrame(
        {
            "hidden_by_overlap_s": [nan, 8.0, -1.0], "saved_by_shorter_tail_s": [nan, 22.0, nan],
            "lost_to_recomputation_s": [nan, 1.5, 3.0],
            "lost_to_contention_s": [nan, 0.5, 2.0], "lost_to_padding_s": [nan, nan, nan],
            "lost_to_cuts_s": [nan, 0.2, 0.4],
        },
        index=comparison().index,
    )  # fmt: skip


def legend_texts(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def axis_texts(figure: Figure, axis: int = 0) -> list[str]:
    return [text.get_text() for text in figure.axes[axis].texts]


def check_readable(figure: Figure) -> None:
    """1200 pixels wide, everything inside the picture, no labels of one axis on top of each other."""
    figure.canvas.draw()
    width, height = figure.canvas.get_width_height()
    assert width == 1200
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    for part in (*figure.axes, *figure.legends):
        box = part.get_tightbbox(renderer)
        assert box is not None
        assert box.x0 >= -1
        assert box.y0 >= -1
        assert box.x1 <= width + 1
        assert box.y1 <= height + 1
    for axis in figure.axes:
        for labels in (axis.get_xticklabels(), axis.get_yticklabels()):
            extents = [
                label.get_window_extent(renderer)
                for label in labels
                if label.get_text() and label.get_visible()
            ]
            assert not any(a.overlaps(b) for i, a in enumerate(extents) for b in extents[i + 1 :])


MAKERS: dict[str, Callable[[], Figure | None]] = {
    "stage times": lambda: g.stage_times_figure(step_frame(), "oppo"),
    "stage times of one step": lambda: g.stage_times_figure(step_frame(1)),
    "stage times of many steps": lambda: g.stage_times_figure(step_frame(3000, overlap_s=5.0)),
    "lengths": lambda: g.response_length_figure(rollout_frame(), np.arange(1, 2001), "oppo"),
    "controls": lambda: g.controls_figure(step_frame()),
    "staleness": lambda: g.staleness_figure(step_frame()),
    "deferrals": lambda: g.deferrals_figure(step_frame()),
    "in flight": lambda: g.in_flight_figure(step_frame()),
    "step time": lambda: k.step_time_figure(comparison(), "seeds 0 to 4"),
    "speed-up": lambda: k.speedup_figure(comparison(), "sequential"),
    "attribution": lambda: k.attribution_figure(attribution()),
}


@pytest.mark.parametrize("name", MAKERS)
def test_every_figure_is_readable_and_the_same_each_time(name: str) -> None:
    pictures = []
    for _ in range(2):
        figure = MAKERS[name]()
        assert figure is not None
        check_readable(figure)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png")
        pictures.append(buffer.getvalue())
    assert pictures[0] == pictures[1]


def rollout_frame() -> pd.DataFrame:
    """Trained: 1 … 1000; the long ones are still in flight."""
    lengths = np.arange(1, 2001)
    return pd.DataFrame({c.RESPONSE_LENGTH: lengths, c.TRAINED_STEP: np.where(lengths <= 1000, 3.0, np.nan)})


def test_stage_times_stack_up_to_the_step_and_name_the_median() -> None:
    figure = g.stage_times_figure(step_frame(), "oppo")
    assert legend_texts(figure) == [
        *(stage for stage, seconds in STAGE_S.items() if seconds),
        "median step: 120 s",
    ]
    tops = [patch.get_data().values for patch in figure.axes[0].patches]
    assert np.allclose(tops[-1], 120.0)
    assert figure.axes[0].get_ylabel() == "stage time (s)"


def test_numbers_in_figures_leave_out_the_warm_up_as_those_in_the_text() -> None:
    """Two slow steps at the start: shown, shaded and in no number."""
    steps = step_frame(6)
    steps.loc[:1, [c.TIMING_STEP, c.timing("gen")]] += 1000.0
    steps[c.ROLLOUTS_DEFERRED] = [90, 90, 1, 2, 1, 2]
    assert "median step: 120 s" in legend_texts(g.stage_times_figure(steps.iloc[2:]))
    texts = legend_texts(g.stage_times_figure(steps.iloc[:5], warmup_steps=2))
    assert texts[-2:] == ["median step: 2.00 min", "warm-up, not in the numbers"]
    shown = g.in_flight_figure(steps, warmup_steps=2)
    assert legend_texts(shown) == [
        "deferred: mean 1.50",
        "surplus: mean 0.500",
        "warm-up, not in the numbers",
    ]
    shaded = shown.axes[0].patches[-1].get_extents().transformed(shown.axes[0].transData.inverted())
    assert (shaded.x0, shaded.x1) == pytest.approx((-0.5, 1.5))
    rollouts = pd.DataFrame({c.RESPONSE_LENGTH: [500, 500, 100, 300], c.TRAINED_STEP: [0, 1, 2, 3]})
    lengths = g.response_length_figure(rollouts, [200], warmup_steps=2).axes[0].get_legend()
    assert lengths is not None
    assert [text.get_text() for text in lengths.get_texts()][1] == "trained: mean 200.0"


def test_stage_times_show_the_step_itself_where_stages_overlap() -> None:
    figure = g.stage_times_figure(step_frame(overlap_s=5.0))
    assert "step (stages overlap)" in legend_texts(figure)
    assert np.allclose(figure.axes[0].patches[-1].get_data().values, 115.0)


def test_lengths_leave_out_what_was_not_trained() -> None:
    figure = g.response_length_figure(rollout_frame(), np.arange(1, 2001))
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels == ["trace: mean 1,000", "trained: mean 500.5"]
    assert axis_texts(figure, 1) == ["mean: −50.0 %"]
    deferred = g.deferrals_figure(step_frame(2)).axes[0]
    assert [bar.get_height() for bar in deferred.patches] == pytest.approx([14 / 16 * 100, 2 / 16 * 100])
    with pytest.raises(OppoError, match="no rollout was trained"):
        g.response_length_figure(rollout_frame().assign(**{c.TRAINED_STEP: -1}), [1, 2])
    with pytest.raises(OppoError, match="trace has no response lengths"):
        g.response_length_figure(rollout_frame(), [])


def test_lengths_that_no_trace_decided_are_shown_alone() -> None:
    figure = g.response_length_figure(rollout_frame(), None, "a task")
    check_readable(figure)
    (axis,) = figure.axes
    (label,) = [text.get_text() for text in axis.get_legend().get_texts()]
    assert label.startswith("trained: mean ")


def test_controls_are_drawn_only_where_they_vary() -> None:
    figure = g.controls_figure(step_frame())
    assert figure is not None
    assert [axis.get_ylabel() for axis in figure.axes] == ["Δ (rollouts)", "mean reward"]
    both = g.controls_figure(step_frame().assign(**{c.CHUNK_SIZE: [128, 512] * 10}))
    assert both is not None
    assert [axis.get_ylabel() for axis in both.axes] == ["Δ (rollouts)", "chunk size (tokens)", "mean reward"]
    assert g.controls_figure(step_frame().assign(**{c.OVERCOMMIT: 14})) is None


def test_staleness_adds_up_histograms_of_different_length() -> None:
    figure = g.staleness_figure(step_frame(2))
    assert [bar.get_height() for bar in figure.axes[0].patches] == pytest.approx(
        [13 / 16 * 100, 2 / 16 * 100, 1 / 16 * 100]
    )
    assert "mean 0.250, highest 2" in axis_texts(figure)
    with pytest.raises(OppoError, match="no rollout was trained"):
        g.staleness_figure(pd.DataFrame({c.STALENESS_HISTOGRAM: [[], []]}))


def test_in_flight_shows_dropped_rollouts_only_where_some_were() -> None:
    assert legend_texts(g.in_flight_figure(step_frame(6))) == ["deferred: mean 1.00", "surplus: mean 0.500"]
    dropping = step_frame(6).assign(**{c.ROLLOUTS_DROPPED: 28})
    assert legend_texts(g.in_flight_figure(dropping))[-1] == "dropped: mean 28.0"


def test_step_times_are_stacked_by_stage_with_intervals() -> None:
    figure = k.step_time_figure(comparison())
    axis = figure.axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == [
        "sequential",
        "oppo",
        "Async[v2]",
    ]
    assert [bar.get_width() for bar in axis.patches] == [80, 60, 70, 9, 1, 2, 31, 29, 31]
    (bars,) = [
        container for container in axis.containers if container.__class__.__name__ == "ErrorbarContainer"
    ]
    ends = [segment[:, 0].tolist() for segment in bars[2][0].get_segments()]
    assert ends == [[118.0, 122.0], [89.0, 91.5], [79.0, 81.0]]
    assert axis_texts(figure) == ["120 s", "90.0 s", "80.0 s"]


def test_speedups_name_their_baseline() -> None:
    figure = k.speedup_figure(comparison(), "sequential")
    assert axis_texts(figure) == ["1.00×", "1.33×", "1.50×"]
    assert "against sequential" in figure.axes[0].get_xlabel()
    with pytest.raises(OppoError, match="baseline 'inter' is not in the comparison"):
        k.speedup_figure(comparison(), "inter")


def test_attribution_draws_gains_right_losses_left_and_says_what_does_not_apply() -> None:
    figure = k.attribution_figure(attribution())
    assert legend_texts(figure) == [
        "hidden by overlap",
        "saved by the shorter tail",
        "lost to recomputation",
        "lost to contention",
        "lost to cuts",
    ]
    assert axis_texts(figure) == ["not applicable"]
    oppo = [
        (bar.get_x(), bar.get_width())
        for bar in figure.axes[0].patches
        if bar.get_y() == pytest.approx(1 - 0.31)
    ]
    assert oppo == [(0, 8.0), (8.0, 22.0), (0, -1.5), (-1.5, -0.5), (-2.0, -0.2)]
    third = [
        (bar.get_x(), bar.get_width())
        for bar in figure.axes[0].patches
        if bar.get_y() == pytest.approx(2 - 0.31) and bar.get_width()
    ]
    assert third == [(0, -1.0), (-1.0, -3.0), (-4.0, -2.0), (-6.0, -0.4)]


def test_nothing_but_unknowns_can_still_be_drawn() -> None:
    unknown = comparison() * np.nan
    check_readable(k.speedup_figure(unknown, "sequential"))
    check_readable(k.step_time_figure(unknown))
    check_readable(k.attribution_figure(attribution() * np.nan))


@pytest.mark.parametrize(
    ("draw", "missing"),
    [
        (lambda: g.stage_times_figure(step_frame().drop(columns=c.TIMING_STEP)), "timing_s/step"),
        (lambda: g.in_flight_figure(step_frame().drop(columns=c.ROLLOUTS_SURPLUS)), "rollouts/surplus"),
        (
            lambda: g.staleness_figure(step_frame().drop(columns=c.STALENESS_HISTOGRAM)),
            "staleness_worst/histogram",
        ),
        (lambda: k.step_time_figure(comparison().drop(columns="reward_s")), "reward_s"),
        (lambda: comparison_table(comparison().drop(columns="speedup_low")), "speedup_low"),
        (lambda: run_summary_table(step_frame(0)), "no rows"),
    ],
)
def test_missing_columns_and_empty_tables_are_named(draw: Callable[[], object], missing: str) -> None:
    with pytest.raises(OppoError, match=missing):
        draw()


def test_figures_of_a_fit_name_what_is_drawn_and_say_their_numbers() -> None:
    part = {"steps": [1, 2], "measured": [9.0, 8.0], "predicted": [9.1, 8.2], "low": [9, 8], "high": [10, 9]}
    error = {"median": 0.012, "p90": 0.03, "worst": 0.1, "coverage": 0.9}
    columns = dict.fromkeys((c.TIMING_STEP, "timing_s/old_log_prob", "timing_s/update_weights"), part)
    figures = fit_figures(
        {
            "steps": [{"log": "train.log", "columns": columns}],
            "held_out": [
                {"log": "train.log", "errors": {c.TIMING_STEP: {"model": error, "naive_mean": error}}}
            ],
            "judged": [],
            "terms": [
                {"term": "host", "verdict": "identified", "prior": [0.01, 1, 9], "posterior": [0.9, 1, 1.1]}
            ],
        }
    )
    (legend,) = figures["measured_predicted"].legends
    looks = [(line.get_color(), line.get_linestyle()) for line in figures["residuals"].legends[0].get_lines()]
    assert len(set(looks)) == len(looks)
    told = [text.get_text() for text in legend.get_texts()]
    assert told == ["measured", "predicted", "95 % interval", "step", "old_log_prob", "update_weights"]
    assert figures["errors"].axes[0].texts[0].get_text() == "1.20, 3.00 %"
    for figure in figures.values():
        figure.draw_without_rendering()
        assert figure.axes[0].get_title(loc="left")
        assert not [tick for tick in figure.axes[0].get_xticklabels() if "10^" in tick.get_text()]


# ---- terminal ----------------------------------------------------------------------------------------------


def printed(table: object) -> list[list[str]]:
    console = Console(width=160, file=io.StringIO(), color_system=None)
    console.print(table)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    return [[cell for cell in line.split("  ") if cell.strip()] for line in lines]


@pytest.mark.parametrize("width", [80, 100, 140])
def test_a_long_setting_takes_two_lines_and_stays_whole(width: int) -> None:
    splits = [f"rollout:{n}xTP1 scoring:cpu training:{8 - n}" for n in (1, 2, 4)]
    columns = [
        Column("cluster split", folds_at=12),
        Column("step [95 %]"),
        Column("speed-up\n[95 %]"),
        Column("from\nbest", 5),
        Column("staleness\nmean ≤ max", 3),
    ]
    rows = [[split, "24.6 s ± 1.5 %", "1.63× [1.51, 1.77]", "+3.1 %", "0.11 ≤ 2"] for split in splits]
    table, gone = fitted("", columns, rows, width)
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(table)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    lines = [line for line in text.partition("──\n")[2].splitlines() if line.strip()]
    assert len(lines) <= 2 * len(splits)
    assert all(word in text.split() for split in splits for word in split.split())
    assert gone == (("from best",) if width == 80 else ())


def test_run_summary_lists_the_stages_that_took_time_and_the_step() -> None:
    rows = [
        [cell.strip() for cell in row]
        for row in printed(run_summary_table(step_frame(), "oppo [seed 0]"))
        if row
    ]
    assert rows[0] == ["oppo [seed 0]"]
    assert ["gen", "80.0 s", "80.0 s", "80.0 s", "66.7 %"] in rows
    assert ["step", "120 s", "120 s", "120 s", "100.0 %"] in rows
    assert not any(row[0] == "adv" for row in rows)


def test_run_summary_says_what_is_in_no_stage() -> None:
    """Half a step of an asynchronous update that waits for rollouts was in no row."""

    def stages(steps: pd.DataFrame) -> dict[str, list[str]]:
        rows = [[cell.strip() for cell in row] for row in printed(run_summary_table(steps)) if row]
        return {row[0]: row[1:] for row in rows}

    waiting = step_frame()
    waiting[c.TIMING_STEP] += 57.0
    assert stages(waiting)["in no stage"] == ["57.0 s", "57.0 s", "57.0 s", "32.2 %"]
    assert "in no stage" not in stages(step_frame())
    overlapping = step_frame()
    overlapping[c.TIMING_STEP] -= 20.0
    assert "in no stage" not in stages(overlapping)


def test_comparison_table_gives_intervals_and_keeps_brackets() -> None:
    rows = [[cell.strip() for cell in row] for row in printed(comparison_table(comparison())) if row]
    assert ["oppo", "90.0 s", "1.33× [1.30, 1.36]"] in rows
    assert ["mine.py:Async[v2]", "80.0 s", "1.50× [1.45, 1.55]"] in rows


def test_the_table_of_what_is_paid_gives_staleness_bias_and_deferred_rollouts() -> None:
    paid = comparison().assign(
        deferred=[0.0, 9.14, 112.0], tokens_per_s_per_gpu=1000.0, gpu_hours_per_1k_steps=5.0
    )
    rows = [[cell.strip() for cell in row] for row in printed(price_table(paid)) if row]
    assert [row[:4] for row in rows[-2:]] == [
        ["oppo", "0.13 / 2", "−0.4 %", "9.1"],
        ["mine.py:Async[v2]", "1.00 / 1", "–", "112.0"],
    ]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0, "0 s"), (4.2e-5, "42.0 µs"), (0.00472, "4.72 ms"), (0.9996, "1,000 ms"), (9.996, "10.0 s"),
        (85.21, "85.2 s"), (378.6, "6.31 min"),
        (20_000.0, "5.56 h"), (-12.0, "−12.0 s"), (float("nan"), "–"),
    ],
)  # fmt: skip
def test_durations_read_well(seconds: float, said: str) -> None:
    assert format_seconds(seconds) == said


def test_signed_shares_have_a_minus_sign_and_none_where_nothing_is_left() -> None:
    said = [format_signed(share, 2) for share in (-0.0061, 0.0061, 0.00001, -0.00001, float("nan"))]
    assert said == ["−0.61 %", "+0.61 %", "±0.00 %", "±0.00 %", "–"]
    assert signed_ends(-0.0123, 0.002) == " [−1.2, +0.2]"
    assert signed_ends(-0.0123, float("nan")) == ""
    assert [significant(-0.0456), format_percent(-2.706)] == ["−0.0456", "−270.6 %"]


def test_significant_digits_keep_whole_numbers_whole() -> None:
    assert [significant(value) for value in (123456.0, 0.0, 1.0, 0.0456)] == [
        "123,456",
        "0",
        "1.00",
        "0.0456",
    ]


def test_stage_times_of_a_lock_step_run_are_iterations() -> None:
    figure = g.stage_times_figure(step_frame(), unit=clock_unit({"clock": "decode iterations"}))
    assert figure.axes[0].get_ylabel() == "stage time (iterations)"
    assert any(
        text.startswith("median step") and text.endswith(" iterations") for text in legend_texts(figure)
    )
    assert clock_unit({"clock": "seconds"}) is None
