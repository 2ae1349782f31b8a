"""Every column of every table has a unit and a meaning, in one place, of which the page is made."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import oppo_sim
from oppo_sim import columns, columns_page
from tests.cli_runs import write_scenario

PAGE = Path(__file__).parents[1] / "docs" / "columns.md"


def test_the_page_is_made_of_the_columns() -> None:
    assert PAGE.read_text(encoding="utf-8") == columns_page.page(), "python -m oppo_sim.columns_page"


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("columns")
    # Costs with unknowns: the columns that rest on draws of the machine are there, too.
    (folder / "draws.csv").write_text("decode\n0.9\n1\n1.1\n")
    path = write_scenario(folder)
    small = {"seeds": 2, "steps": 6, "draws": 3, "overrides": {"costs.draws": str(folder / "draws.csv")}}
    run = oppo_sim.simulate(path, policy="oppo", overrides={"rewards.kind": "saturating"})
    compared = oppo_sim.compare(path, ["oppo"], **small)  # type: ignore[arg-type]
    swept = oppo_sim.sweep(path, grid={"policy.overcommit": [0, 2]}, **small)  # type: ignore[arg-type]
    tuned = oppo_sim.tune(path, policies=["inter"], trials=3, fresh_seeds=2, **small)  # type: ignore[arg-type]
    assert compared.ranges is not None
    frames = {
        "steps": run.steps,
        "rollouts": run.rollouts,
        "summary": run.summary.T,
        "table": compared.table,
        "attribution": compared.attribution,
        "cells": compared.cells,
        "draws": compared.ranges.runs,
        "points": swept.points,
        "runs": swept.runs,
        "trials": tuned.trials,
        "settings": tuned.settings,
        "sensitivity": tuned.sensitivity,
    }
    return {name: list(frame.columns) for name, frame in frames.items()}


def test_every_column_has_a_meaning(tables: dict[str, list[str]]) -> None:
    untold = {
        f"{name}: {column}"
        for name, columns in tables.items()
        for column, meaning in oppo_sim.explain(columns)["meaning"].items()
        if not meaning
    }
    assert untold == set()


def test_units_are_those_of_the_kind_of_table(tables: dict[str, list[str]]) -> None:
    steps, rollouts, points = (oppo_sim.explain(tables[name]) for name in ("steps", "rollouts", "points"))
    assert (steps["unit"]["timing_s/gen"], steps["unit"]["tokens/decoded"]) == ("s", "tokens")
    assert (rollouts["unit"]["staleness"], rollouts["unit"]["admitted_s"]) == ("updates", "s")
    assert points["unit"][["step_s_machine_low", "speedup_both_high"]].tolist() == ["s", "ratio"]
    assert points["meaning"]["policy.overcommit"].startswith("a field of the scenario")
    trace = oppo_sim.explain(pd.DataFrame({"response_length": [1], "step": [0], "mine": [2]}))
    assert trace["meaning"].tolist()[1:] == ["training step, from 0 in what is simulated", ""]


def test_every_name_in_seconds_says_so() -> None:
    for table in columns.TABLES:
        for fact in table.facts.values():
            ends_in_seconds = fact.column.removesuffix("_low").removesuffix("_high").endswith("_s")
            if ends_in_seconds and not fact.column.startswith("tokens_per"):
                assert fact.unit == "s", fact
