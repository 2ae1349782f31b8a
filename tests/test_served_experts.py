"""Served mixtures of experts: the page is what was predicted before it was scored."""

import sys
from pathlib import Path

import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments" / "served"))

import served_experts

FOLDER = served_experts.FOLDER


@pytest.fixture(scope="module")
def predicted() -> pd.DataFrame:
    return pd.read_csv(FOLDER / "predicted.csv.gz")


def test_the_page_says_what_was_scored(predicted: pd.DataFrame) -> None:
    rows = served_experts.rows()
    kept = pd.read_csv(FOLDER / "scored.csv")
    again = served_experts.errors(predicted, rows, ["kind", *served_experts.UNIT])
    pd.testing.assert_frame_equal(again, kept, check_exact=False, rtol=1e-3, check_dtype=False)
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert served_experts.page_table(predicted, rows) in page


def test_the_page_keeps_the_first_scoring() -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    first = pd.read_csv(FOLDER / "scored_first.csv")
    sglang = first[(first["backend"] == "sglang") & first["model"].str.startswith("deepseek")]
    told = sglang[(sglang["kind"] == "composed") & sglang["system"].isin(["h200_sxm", "b200_sxm"])]["median"]
    told = told[sglang["n"] > 4]
    assert f"{100 * told.min():.0f} to {100 * told.max():.0f} % in the median by engine" in page


@pytest.mark.parametrize("model", ["deepseek-ai/DeepSeek-V3", "Qwen/Qwen3.5-397B-A17B"])
def test_the_code_still_predicts_so(model: str, predicted: pd.DataFrame) -> None:
    """What was scored must not drift away from what is shipped unseen."""
    rows = served_experts.rows()
    some = rows[(rows["model"] == model) & (rows["backend"] == "sglang")].groupby("system").head(2)
    again = served_experts.predictions(some)
    known = predicted.set_index(["row", "kind"])["predicted_s"]
    for one in again.itertuples():
        assert one.predicted_s == pytest.approx(known[one.row, one.kind], rel=1e-3), (
            "predictions moved: make them again, and say on the page that it is another scoring"
        )
