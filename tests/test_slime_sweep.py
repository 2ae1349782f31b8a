"""The public sweep of one workload under two policies: its page is what was predicted before it was scored."""

import sys
from pathlib import Path

import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments" / "slime_sweep"))

import slime_sweep as sweep

FOLDER = sweep.FOLDER


@pytest.fixture(scope="module")
def predicted() -> pd.DataFrame:
    return pd.read_csv(FOLDER / "predicted.csv")


def test_scores_are_those_of_the_predictions(predicted: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(
        sweep.scored(predicted), pd.read_csv(FOLDER / "scored.csv"), check_exact=False, rtol=1e-4
    )


def test_the_page_says_what_was_scored(predicted: pd.DataFrame) -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    table = sweep.scored(predicted)
    for row in table[table["way"] != "unfitted"].to_dict("records"):
        if row["run"] == sweep.BASELINE:
            continue
        said = f"{row['predicted']:.2f} ({row['low']:.2f} to {row['high']:.2f})"
        line = next(line for line in page.splitlines() if line.startswith(f"| {row['run']} "))
        assert said in line
        assert f"{100 * (row['predicted'] / row['measured'] - 1):+.1f} %".replace("-", "−") in line
    for way, found in sweep.summary(table).items():
        start = "- **Unfitted**" if way == "unfitted" else "- Eight speed-ups"
        line = next(line for line in page.splitlines() if line.startswith(start))
        assert f"{100 * found['median']:.1f} %" in line
        assert f"{found['inside']} of 8" in line


def test_the_page_keeps_the_first_scoring() -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    first = sweep.summary(pd.read_csv(FOLDER / "scored_first.csv"))
    unfitted, fitted = (found["inside"] for found in first.values())
    assert f"{fitted} of 8 lay inside, {unfitted} unfitted" in page


def test_the_code_still_predicts_so(predicted: pd.DataFrame, tmp_path: Path) -> None:
    """Unfitted and without draws; what was scored must not drift away from what is shipped unseen."""
    points = predicted[(predicted["way"] == "unfitted") & (predicted["draw"] == -1)].set_index("run")[
        "step_s"
    ]
    for run in sweep.RUNS[:4]:
        step_s = sweep.predicted_step_s(sweep.scenario_of(run, tmp_path), None)
        assert step_s == pytest.approx(points[run.name], rel=1e-4), (
            "predictions of the sweep moved: make them again, and say on its page that it is a second scoring"
        )
