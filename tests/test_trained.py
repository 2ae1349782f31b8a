"""Steps of trained models: the page is what was scored, and the code predicts so."""

import sys
from pathlib import Path

import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments" / "trained"))

import trained

FOLDER = trained.FOLDER


def test_the_page_says_what_was_scored() -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    found = trained.joined(pd.read_csv(FOLDER / "predicted.csv"), trained.rows())
    for by in trained.TABLES:
        assert trained.page_table(found, by) in page


def test_the_page_keeps_the_first_scoring() -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    first = pd.read_csv(FOLDER / "scored_first.csv")
    for kind, name in (("dense", "Dense"), ("experts", "Mixtures of experts")):
        errors = first[first["kind"] == kind]["error"].abs()
        told = f"{100 * errors.median():.0f} % off in the median, {100 * errors.max():.0f} % at worst"
        assert f"{name}: {len(errors)} rows, {told}" in page


def test_the_code_still_predicts_so() -> None:
    """What was scored must not drift away from what is shipped unseen."""
    known = pd.read_csv(FOLDER / "predicted.csv")["predicted_s"]
    again = trained.predictions(trained.rows())["predicted_s"]
    assert list(again) == pytest.approx(list(known), rel=1e-3), (
        "predictions moved: make them again, and say on the page that it is another scoring"
    )
