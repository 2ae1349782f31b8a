"""The log that comes with the repository, fitted as docs/fit.md says."""

import re
from pathlib import Path

import pandas as pd

from experiments.fit import asynchronous, simulated
from experiments.fit.synthetic import PAGE, ROWS, with_table
from oppo_sim.columns import TIMING_STEP
from oppo_sim.fit.call import fit

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "experiments" / "fit"


def test_fifteen_steps_predict_the_rest_of_a_real_run() -> None:
    result = fit(EXAMPLE / "train.log.gz", EXAMPLE / "scenario.yaml", fit_steps=15)
    (held,) = result.held_out
    assert held.held_steps == 39
    step = next(each for each in held.judgements if each.column == TIMING_STEP)
    assert step.model.median < 0.04
    assert step.model.p90 < 0.10
    assert_tutorial_says(step.model.median, step.model.p90)
    assert step.model.p90 < step.naive["line"].p90 / 2
    assert step.model.coverage is not None
    assert step.model.coverage > 0.9
    assert result.left_out["train.log.gz"] == {"step whose line names no seconds and no lengths": 5}
    assert {each.step for each in result.odd} >= {1}


def assert_tutorial_says(median: float, p90: float) -> None:
    """Lengths are rebuilt by the seed, and draws differ between processors: the page gives ranges."""
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    said = re.search(r"here (\d) to (\d) % in the median and (\d) to (\d) % at the 90th percentile", page)
    assert said is not None
    low, high, low_p90, high_p90 = (int(each) / 100 for each in said.groups())
    assert low - 0.005 <= median <= high + 0.005
    assert low_p90 - 0.005 <= p90 <= high_p90 + 0.005


def test_the_page_has_the_table_of_the_stored_synthetic_logs() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page, pd.read_csv(ROWS)) == page


def test_the_page_has_the_table_of_the_simulated_runs() -> None:
    assert simulated.table(pd.read_csv(simulated.ROWS)) in PAGE.read_text(encoding="utf-8")


def test_the_page_has_the_table_of_the_asynchronous_runs() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert asynchronous.with_table(page, pd.read_csv(asynchronous.ROWS)) == page
