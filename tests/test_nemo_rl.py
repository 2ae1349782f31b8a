"""NeMo RL's steps on policy and off: the page is what was predicted before it was scored."""

import sys
from pathlib import Path

import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments" / "nemo_rl"))
sys.path.insert(0, str(Path(__file__).parents[1] / "experiments" / "slime_sweep"))

import nemo_rl
import slime_sweep

from oppo_sim.report.ranges import SPLIT_GAINS
from oppo_sim.runs.placement import PLACEMENT_SIGMA

FOLDER = nemo_rl.FOLDER


@pytest.fixture(scope="module")
def predicted() -> pd.DataFrame:
    return pd.read_csv(FOLDER / "predicted.csv")


@pytest.mark.parametrize("of", ["", "latent_"])
def test_scores_are_those_of_the_predictions(of: str) -> None:
    found, table = pd.read_csv(FOLDER / f"{of}predicted.csv"), nemo_rl.rows(f"{of}rows.csv")
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    scored, on_policy = nemo_rl.scored(found, table), nemo_rl.rows_on_policy(found, table)
    for made, stored in ((scored, "scored.csv"), (on_policy, "on_policy.csv")):
        kept = pd.read_csv(FOLDER / f"{of}{stored}")
        pd.testing.assert_frame_equal(made, kept, check_exact=False, rtol=1e-4)
    assert nemo_rl.page_table(scored, table) in page
    assert nemo_rl.page_table_on_policy(on_policy, table) in page


def test_what_the_tool_says_of_other_splits_is_what_was_scored(predicted: pd.DataFrame) -> None:
    table = nemo_rl.rows()
    found = nemo_rl.inside(nemo_rl.scored(predicted, table), table)
    of_slime = slime_sweep.summary(slime_sweep.scored(pd.read_csv(slime_sweep.FOLDER / "predicted.csv")))
    judged = [
        (one["judge"][0] + other["inside"], one["judge"][1] + other["speedups"])
        for one, other in zip(found.values(), of_slime.values(), strict=True)
    ]
    assert list(found) == ["unfitted", "observed"]
    assert (judged[0][1], *(inside for inside, _ in judged)) == SPLIT_GAINS


def test_the_width_between_splits_is_what_the_gains_that_set_it_say(predicted: pd.DataFrame) -> None:
    found = nemo_rl.placement_sigma(predicted, nemo_rl.rows())
    assert max(found.values()) == pytest.approx(PLACEMENT_SIGMA, rel=0.15), (
        "predictions moved: the width is set by them, and judged on the others only then"
    )
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert f"{found['unfitted']:.2f} unfitted and {found['observed']:.2f} observed" in page


@pytest.mark.parametrize("placed", [False, True])
def test_the_page_says_how_many_gains_lay_inside(placed: bool, predicted: pd.DataFrame) -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    table, told = nemo_rl.rows(), pd.read_csv(slime_sweep.FOLDER / "predicted.csv")
    found = nemo_rl.inside(nemo_rl.scored(predicted, table, placed=placed), table)
    of_slime = slime_sweep.summary(slime_sweep.scored(told, placed=placed))
    named = ("unfitted", "observed or fitted")
    for name, one, other in zip(named, found.values(), of_slime.values(), strict=True):
        cells = [f"{inside} of {count}" for inside, count in one.values()]
        cells.append(f"{other['inside']} of {other['speedups']}")
        assert f"| {name}, {'with' if placed else 'without'} | {' | '.join(cells)} |" in page


def test_the_page_says_what_was_scored(predicted: pd.DataFrame) -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    for way, found in nemo_rl.summary(nemo_rl.scored(predicted, nemo_rl.rows())).items():
        line = next(line for line in page.splitlines() if line.startswith(f"- **{way.capitalize()}**"))
        for said in (
            f"{100 * found['median']:.0f} % in the median",
            f"{100 * found['worst']:.0f} % at worst",
            f"{found['inside']} of {found['speedups']} inside",
            f"{found['sign']} on the right side of 1",
            f"tau {found['tau']:.2f}",
        ):
            assert said in line


def test_the_page_keeps_the_first_scoring() -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    first = nemo_rl.summary(pd.read_csv(FOLDER / "scored_first.csv"))
    unfitted, observed = first["unfitted"], first["observed"]
    for said in (
        f"unfitted {100 * unfitted['median']:.0f} % in the median and {100 * unfitted['worst']:.0f} % at worst,"
        f" {unfitted['inside']} of 14 inside, {unfitted['sign']} on the right side of 1, tau {unfitted['tau']:.2f}",
        f"observed {100 * observed['median']:.0f} % in the median, {observed['inside']} inside",
    ):
        assert said in page


@pytest.mark.parametrize("number", [1, 2, 19, 20])
def test_the_code_still_predicts_so(number: int, predicted: pd.DataFrame, tmp_path: Path) -> None:
    """Unfitted and without draws; what was scored must not drift away from what is shipped unseen."""
    point = predicted[(predicted["way"] == "unfitted") & (predicted["draw"] == -1)].set_index("row")["step_s"]
    row = next(each for each in nemo_rl.rows().itertuples() if each.row == number)
    scenario = nemo_rl.scenario_of(row, nemo_rl.trace_of(row, tmp_path / "lengths.parquet"))
    assert nemo_rl.predicted_step_s(scenario) == pytest.approx(point[number], rel=1e-4), (
        "predictions moved: make them again, and say on the page that it is a second scoring"
    )
