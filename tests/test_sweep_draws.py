"""Sweeps over draws of the machine: which points are drawn, on what, and what that does to the region."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import oppo_sim
from oppo_sim import columns as c
from oppo_sim import compare
from oppo_sim.cli.main import run
from oppo_sim.runs import execute as execution
from oppo_sim.runs.evaluate import evaluate
from oppo_sim.runs.ranges import SPEEDUP_ENDS, SPEEDUP_PER_TOKEN_ENDS
from oppo_sim.runs.request import RunRequest, RunResult
from oppo_sim.sweep.drawing import GROUP
from oppo_sim.sweep.show import notes
from tests.cli_runs import TINY, write_scenario
from tests.test_comparison_draws import constant, write_drawn

CHUNKS = {"policy.chunk_size": [4, 40]}


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[RunRequest]:
    """Every run that is made from here on, in this process."""
    made: list[RunRequest] = []

    def counted(request: RunRequest) -> RunResult:
        made.append(request)
        return evaluate(request)

    monkeypatch.setattr(execution, "evaluate", counted)
    return made


def streaming(folder: Path, draws: str) -> Path:
    """Scoring is streamed in chunks; a draw says what a scoring batch costs beside its forward."""
    costs = {**TINY["costs"], "score": {"fixed": 0.0, "per_token": 0.05}, "draws": "draws.csv"}
    alone = {"max_scoring_tokens": 1}  # every piece is a batch
    return write_drawn(folder, draws, costs=costs, scoring=alone, policy={"name": "intra", "chunk_size": 8})


def test_draws_widen_the_region(tmp_path: Path) -> None:
    """Small chunks hide more of the scoring, unless a scoring batch has a price of its own."""
    path = streaming(tmp_path, "score_batch_s\n0\n0\n1\n")
    seeds_alone = oppo_sim.sweep(path, grid=CHUNKS, seeds=3, draws=0)
    drawn = oppo_sim.sweep(path, grid=CHUNKS, seeds=3)
    assert seeds_alone.best == drawn.best == 0
    assert seeds_alone.alike == (0,)
    assert drawn.alike == (0, 1)
    shares = drawn.points[c.P_BEST].tolist()
    assert shares == pytest.approx([2 / 3, 1 / 3])
    assert drawn.points[c.DIFFERENCE_BOTH_LOW][1] < 0 < drawn.points[c.DIFFERENCE_LOW][1]
    assert drawn.points[c.MACHINE_WIDEST].tolist() == ["score_batch_s"] * 2


def test_without_draws_the_tables_are_those_of_an_exact_machine(tmp_path: Path) -> None:
    path = streaming(tmp_path, "score_batch_s\n0\n0.5\n")
    none = oppo_sim.sweep(path, grid=CHUNKS, seeds=2, draws=0)
    exact = oppo_sim.sweep(path, grid=CHUNKS, seeds=2, overrides={"costs.draws": "none"})
    pd.testing.assert_frame_equal(none.points, exact.points)
    assert c.P_BEST not in none.points.columns
    assert (none.machine.sentence, exact.machine.source) == ("", "given")
    drawn = oppo_sim.sweep(path, grid=CHUNKS, seeds=2)
    # What a reward takes has one interval, of the seeds and the machine.
    both = {c.HOURS_TO_REWARD_LOW, c.HOURS_TO_REWARD_HIGH, c.REWARD_SPEEDUP_LOW, c.REWARD_SPEEDUP_HIGH}
    both |= {c.GPU_HOURS_TO_REWARD_LOW, c.GPU_HOURS_TO_REWARD_HIGH}
    before = [name for name in none.points.columns if name not in {c.ENGINE, *both}]
    pd.testing.assert_frame_equal(none.points[before], drawn.points[before])


def test_intervals_are_those_of_a_comparison_where_rollouts_are_all_alike(tmp_path: Path) -> None:
    path = constant(tmp_path, "decode,training\n1,1\n1,4\n")
    swept = oppo_sim.sweep(path, grid={"policy.name": ["one-step-off"]}, seeds=2).points.iloc[0]
    row = compare(path, ["one-step-off"], seeds=2, attribution=False).table.loc["one-step-off"]
    for name in (
        *SPEEDUP_ENDS, *SPEEDUP_PER_TOKEN_ENDS,
        c.STEP_S_MACHINE_LOW, c.STEP_S_MACHINE_HIGH, c.MACHINE_WIDEST_SHARE,
    ):  # fmt: skip
        assert swept[name] == pytest.approx(row[name]), name
    assert swept[c.MACHINE_WIDEST] == "training"


def test_every_drawn_point_has_the_same_draws_each_with_one_of_the_seeds(
    tmp_path: Path, simulated: list[RunRequest]
) -> None:
    path = streaming(tmp_path, "score_batch_s\n0\n0.1\n0.5\n")
    oppo_sim.sweep(path, grid=CHUNKS, seeds=2)
    drawn: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for request in simulated:
        if request.terms:
            drawn.setdefault((request.policy, request.settings), []).append((request.terms, request.seed))
    assert len(drawn) == 3  # two points and their baseline
    first = next(iter(drawn.values()))
    assert [seed for _, seed in first] == [0, 1, 0]
    assert len({terms for terms, _ in first}) == 3
    assert all(found == first for found in drawn.values())


def test_a_dry_run_counts_the_runs_on_draws(
    tmp_path: Path, simulated: list[RunRequest], capsys: pytest.CaptureFixture[str]
) -> None:
    path = streaming(tmp_path, "score_batch_s\n0\n0.1\n0.5\n")
    wanted = [
        "sweep",
        str(path),
        "--grid",
        "policy.chunk_size=4,40",
        "--seeds",
        "2",
        "-o",
        str(tmp_path / "s"),
    ]
    assert run([*wanted, "--dry-run"]) == 0
    assert "draws: 9 more runs" in capsys.readouterr().out
    simulated.clear()
    oppo_sim.sweep(path, grid=CHUNKS, seeds=2)
    assert sum(bool(request.terms) for request in simulated) == 9
    assert run([*wanted, "--draws", "0", "--dry-run"]) == 0
    assert "draws:" not in capsys.readouterr().out


def test_only_points_that_could_be_the_best_are_drawn(tmp_path: Path) -> None:
    path = constant(tmp_path, "decode\n1\n1.02\n0.98\n")
    values: list[Any] = [float(x) for x in range(1, 21)]
    found = oppo_sim.sweep(path, grid={"costs.stages.update_actor.fixed": values}, seeds=2)
    drawn = found.points.index[found.points[c.P_BEST].notna()].tolist()
    assert drawn == list(range(GROUP))
    assert found.alike == (0,)
    # All alike: all could be the best, so that all are drawn.
    same = oppo_sim.sweep(path, grid={"scoring.max_scoring_tokens": [10_000 + x for x in range(20)]}, seeds=2)
    assert same.points[c.P_BEST].notna().all()
    assert len(same.alike) == 20
    assert same.points[c.P_BEST].tolist() == pytest.approx([0.05] * 20)


def test_a_folder_of_draws_is_continued_and_shown(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    simulated: list[RunRequest],
) -> None:
    monkeypatch.chdir(tmp_path)
    streaming(tmp_path, "score_batch_s\n0\n0.1\n0.5\n")
    command = ["sweep", "tiny.yaml", "--grid", "policy.chunk_size=4,40", "--seeds", "2", "-o", "out"]
    options = ["--jobs", "1", "--no-figures"]
    assert run([*command, *options]) == 0
    made = len(simulated)
    assert made == 3 * 2 + 3 * 3
    printed = capsys.readouterr().out
    assert "3 fitted draws of the machine (draws.csv)" in printed
    assert "2 points that could be the best ran on the draws" in printed
    assert run([*command, *options]) == 0
    assert len(simulated) == made
    assert run(["report", "out", "-o", "page.html"]) == 0
    assert "seeds and the draws of the machine" in Path("page.html").read_text()


def test_what_is_said_of_a_column_is_said_where_it_is_shown(tmp_path: Path) -> None:
    swept = oppo_sim.sweep(streaming(tmp_path, "score_batch_s\n0\n0\n1\n"), grid=CHUNKS, seeds=2)

    def said(gone: tuple[str, ...]) -> list[str]:
        return [
            sentence for sentence in notes(swept, gone) if "could be the best ran on the draws" in sentence
        ]

    assert "speed-up [95 %] of seeds and machine" in said(("KV peak",))[0]
    assert "speed-up" not in said(("speed-up [95 %]",))[0]


def test_a_sweep_of_which_one_point_ran_compares_nothing(tmp_path: Path) -> None:
    path = streaming(tmp_path, "score_batch_s\n0\n0\n1\n")
    swept = oppo_sim.sweep(path, grid={"placement.scoring": ["separate", "elsewhere"]}, seeds=2)
    said = " ".join(notes(swept))
    assert "splits of GPUs" not in said
    # The one point that ran has no other to be compared with.
    assert "1 of 2 points failed" in said and "every other" not in said and "of the others" not in said


def test_linear_costs_have_no_draws(tmp_path: Path) -> None:
    found = oppo_sim.sweep(write_scenario(tmp_path), grid=CHUNKS, seeds=2)
    assert c.P_BEST not in found.points.columns
    assert "taken as given" in found.machine.sentence


def test_more_points_than_one_group_draws_are_ranked_by_the_time_to_a_reward(tmp_path: Path) -> None:
    path = streaming(tmp_path, "score_batch_s\n0\n0\n1\n")
    grid = {"policy.chunk_size": [2, 3, 4, 5, 6, 8, 10, 12, 20, 40]}
    assert len(grid["policy.chunk_size"]) > GROUP
    swept = oppo_sim.sweep(path, grid=grid, seeds=2, objective="time_to_reward")
    shares = swept.points[c.P_BEST]
    assert GROUP <= shares.notna().sum() <= len(shares)
    assert shares.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("draws", [1, 3])
def test_too_few_draws_to_tell_what_widens_most(draws: int, tmp_path: Path) -> None:
    found = tmp_path / "swept"
    words = ["h200-single", "--grid", "policy.overcommit=0,8", "--steps", "12", "--seeds", "2"]
    assert run(["sweep", *words, "--draws", str(draws), "--no-figures", "-o", str(found)]) == 0
    best = json.loads((found / "best.json").read_bytes())["best"]
    assert best[c.P_BEST] == 1.0
    assert best[c.MACHINE_WIDEST] is None
    assert run(["report", str(found), "-o", str(tmp_path / "swept.html")]) == 0
