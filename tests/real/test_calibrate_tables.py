"""From measured points to tables: what was measured stays, what was not is filled by the fit, and what cannot
be told is refused."""

from io import StringIO
from types import SimpleNamespace
from typing import cast

import pytest
from rich.console import Console

from oppo_real.calibrate.contention import Contention, Meeting, Round
from oppo_real.calibrate.fit import (
    DECODE_BASIS,
    FEATURES,
    PREFILL_BASIS,
    SCORE_BASIS,
    Measured,
    fit_table,
)
from oppo_real.calibrate.measure import Visit
from oppo_real.calibrate.plan import make_plan
from oppo_real.calibrate.profile import Calibration, decode_table, forward_table, tail_factor, training_table
from oppo_real.calibrate.report import calibration_figure, fit_tables
from oppo_real.calibrate.sizes import Sizes, bounded
from oppo_sim.errors import OppoError

SIZES = Sizes(16, 16, 100, 411, (32, 64), 2048)
PLAN = make_plan(SIZES)
TRUTH = {"fixed": 2e-3, "per_token": 5e-6, "per_pair": 1e-8}


def measured(kind: str, truth: dict[str, float], repeats: int = 3) -> list[Measured]:
    return [
        Measured(point, (sum(value * FEATURES[name](point) for name, value in truth.items()),) * repeats)
        for point in PLAN.points
        if point.kind == kind
    ]


@pytest.mark.parametrize(("kind", "basis"), [("prefill", PREFILL_BASIS), ("score", SCORE_BASIS)])
def test_every_cell_of_a_linear_truth_is_exact_measured_or_not(kind: str, basis: tuple[str, ...]) -> None:
    data = measured(kind, TRUTH)
    table, filled = forward_table(kind, data, fit_table(kind, data, basis, resamples=5))
    for tokens, row in zip(table.tokens, table.seconds, strict=True):
        for context, seconds in zip(table.mean_context, row, strict=True):
            assert seconds == pytest.approx(
                TRUTH["fixed"] + tokens * (TRUTH["per_token"] + TRUTH["per_pair"] * context), rel=1e-6
            )
    assert filled.measured + filled.fitted == len(table.tokens) * len(table.mean_context)
    assert (filled.fitted > 0) == (kind == "prefill"), "a prefill has no context longer than itself"


def test_a_cell_that_was_not_run_follows_its_neighbours_not_only_the_fit() -> None:
    """The machine is twice as slow as any fit says at the largest batch: a hole in that row is filled at
    twice the fit, too."""
    data = measured("score", TRUTH)
    most = max(one.point.cell[0] for one in data if one.point.cell)
    hole = next(one for one in data if one.point.cell and one.point.cell[0] == most)
    fit = fit_table("score", data, SCORE_BASIS, resamples=5)
    slow = [
        Measured(one.point, (2 * one.seconds,)) if one.point.tokens == most else one
        for one in data
        if one is not hole
    ]
    table, filled = forward_table("score", slow, fit)
    assert hole.point.cell is not None
    context = hole.point.cell[1]
    found = table.seconds[table.tokens.index(most)][table.mean_context.index(context)]
    seconds = TRUTH["fixed"] + most * (TRUTH["per_token"] + TRUTH["per_pair"] * context)
    assert found == pytest.approx(2 * seconds, rel=0.02)
    assert filled.fitted == 1


def test_times_lost_in_noise_are_refused() -> None:
    data = [Measured(one.point, (-1e-6, 0.0, 1e-9)) for one in measured("prefill", TRUTH)]
    with pytest.raises(OppoError, match="told from noise"):
        forward_table("prefill", data, fit_table("prefill", data, PREFILL_BASIS, resamples=5))


def test_too_few_batch_sizes_are_refused() -> None:
    one_row = [one for one in measured("decode", {"fixed": 1e-3}) if one.point.n == 1]
    with pytest.raises(OppoError, match="too little of decode"):
        decode_table(one_row)
    with pytest.raises(OppoError, match="too little of training"):
        training_table({"update_actor": measured("train", {"fixed": 1.0})[:1]})


def test_the_tail_is_what_the_repeats_confirm() -> None:
    flat = {"fixed": 1e-3, "per_kv_token": 1e-7}
    assert tail_factor(measured("decode", flat)) == 1.0
    found = tail_factor(measured("decode", {**flat, "per_longest_kv_token": 1e-5}))
    assert found is not None
    assert found > 1.5
    noisy = [
        Measured(
            one.point,
            (one.seconds, 1.3 * one.seconds) if one.point.cell is None else (one.seconds, 1.1 * one.seconds),
        )
        for one in measured("decode", flat)
    ]
    assert tail_factor(noisy) == 1.0
    assert tail_factor([one for one in measured("decode", flat) if one.point.cell is not None]) is None


def test_the_plan_keeps_within_what_the_engine_has() -> None:
    assert bounded(SIZES, {}, {}) == SIZES
    small = bounded(SIZES, {"kv_capacity_tokens": 1024, "kv_block_tokens": 32, "max_num_seqs": 6}, {})
    assert (small.kv_capacity_tokens, small.kv_block_tokens, small.max_running) == (1024, 32, 6)
    assert all(
        point.n <= 6 and point.kv_tokens <= 1024
        for point in make_plan(small).points
        if point.kind == "decode"
    )
    own = Sizes(16, 16, 100, 411, (32,), 2048, kv_capacity_tokens=800)
    assert bounded(own, {"kv_capacity_tokens": 4096}, {}).kv_capacity_tokens == 800


def test_tables_of_80_columns_name_both_that_met_and_the_regime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    decode = next(one for one in PLAN.points if one.kind == "decode")
    score = next(one for one in PLAN.points if one.kind == "score")
    met = Contention(
        Meeting(("decode", "score"), (decode, score)), 1.21, tuple([Round((1.0, 1.0), (1.43, 2.11))] * 2)
    )
    fit = fit_table("prefill", measured("prefill", TRUTH), PREFILL_BASIS, resamples=5)
    tables = fit_tables(cast(Calibration, SimpleNamespace(fits=[fit], contention=[met])))
    console = Console(width=80, file=StringIO(), color_system=None)
    console.print(*tables)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    words = " ".join(text.split())
    assert "not shown" not in words
    for said in (
        f"{decode.n} rollouts",
        f"{score.tokens} tokens",
        "regime held out",
        "interference",
        "(1.43-1.43)",
    ):
        assert said in words, text


def test_every_batch_size_of_the_figure_has_a_colour_of_its_own() -> None:
    decode = measured("decode", {"fixed": 1e-3, "per_kv_token": 1e-7})
    prefill = measured("prefill", TRUTH)
    figure = calibration_figure(
        [Visit(one.point, 0, one.repeats) for one in (*decode, *prefill)],
        [
            fit_table("decode", decode, DECODE_BASIS, resamples=5),
            fit_table("prefill", prefill, PREFILL_BASIS, resamples=5),
        ],
    )
    legend = figure.axes[0].get_legend()
    assert legend is not None
    told = [text.get_text() for text in legend.get_texts()]
    sizes = sorted({one.point.n for one in decode})
    assert told == [*map(str, sizes), "long tail (× fitted)"]
    lines = {line.get_color() for line in figure.axes[0].get_lines() if line.get_linestyle() == "-"}
    assert len(lines) == len(sizes) > 7
