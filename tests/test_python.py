"""From Python and in notebooks: what completion offers, settings as mappings, results that show themselves."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import oppo_sim
from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.sweep import Sweep
from tests import own_policies
from tests.cli_runs import write_scenario

GRID = {"policy.chunk_size": [8, 16, 32], "policy.overcommit": [0, 2]}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    path = write_scenario(tmp_path_factory.mktemp("swept"))
    return oppo_sim.run_sweep(path, grid=GRID, seeds=2, steps=6)


def test_completion_offers_every_public_name() -> None:
    assert set(oppo_sim.__all__) <= set(dir(oppo_sim))


def test_overrides_are_a_mapping_or_texts_everywhere(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    given = {"policy.name": "inter", "policy.overcommit": 2, "rollout.kv_capacity_tokens": None, "steps": 6}
    texts = ["policy.name=inter", "policy.overcommit=2", "rollout.kv_capacity_tokens=null", "steps=6"]
    assert oppo_sim.simulate(path, overrides=given).steps.equals(
        oppo_sim.simulate(path, overrides=texts).steps
    )
    by_map, by_text = (
        oppo_sim.compare(path, ["inter"], seeds=2, overrides=each, attribution=False)
        for each in (given, texts)
    )
    assert by_map.table.equals(by_text.table)
    grid = {"policy.overcommit": [0, 2]}
    first, second = (oppo_sim.run_sweep(path, grid=grid, seeds=2, overrides=each) for each in (given, texts))
    assert first.points.equals(second.points)
    with pytest.raises(OppoError, match="give a mapping of fields to values"):
        oppo_sim.simulate(path, overrides="policy.overcommit=2")
    with pytest.raises(OppoError, match="which a scenario cannot hold"):
        oppo_sim.simulate(path, overrides={"policy.overcommit": object()})


def test_a_sweep_is_drawn_in_one_call(swept: Sweep) -> None:
    figure = swept.heatmap()
    labels = {figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()}
    assert any("overcommit" in label for label in labels)
    assert any("chunk size" in label for label in labels)
    turned = swept.heatmap(c.SPEEDUP, x="policy.chunk_size", y="policy.overcommit")
    assert "chunk size" in turned.axes[0].get_xlabel()
    with pytest.raises(OppoError, match="needs two fields that vary"):
        swept.heatmap(x="steps")


def test_results_show_themselves_shortly(swept: Sweep, tmp_path: Path) -> None:
    assert repr(swept).startswith("Sweep(6 points over policy.chunk_size, policy.overcommit; best: row ")
    assert "<table" in swept._repr_html_()
    compared = oppo_sim.compare(write_scenario(tmp_path), ["inter"], seeds=2, steps=6, attribution=False)
    assert repr(compared).startswith("Comparison(sequential 1.00×, inter ")
    assert "<table" in compared._repr_html_()
    run = oppo_sim.simulate(write_scenario(tmp_path), policy="intra", steps=6)
    assert repr(run).startswith("Run(intra, seed 0, 6 steps of ")
    assert "<table" in run._repr_html_()


def test_the_heat_map_of_the_page_is_drawn() -> None:
    page = (Path(__file__).parents[1] / "docs" / "sweep.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    *before, last = ast.parse(block).body
    assert len(before) == 2
    assert isinstance(last, ast.Expr)
    space: dict[str, Any] = {}
    exec(compile(ast.Module(before, []), "sweep.md", "exec"), space)
    figure = eval(compile(ast.Expression(last.value), "sweep.md", "eval"), space)
    assert "overcommit" in figure.axes[0].get_xlabel()


def test_lengths_in_memory_are_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPPO_CACHE_DIR", str(tmp_path / "cache"))
    path = write_scenario(tmp_path)
    lengths = [3, 9, 27, 4, 8, 16]
    frame = pd.DataFrame({"prompt_length": 4, "response_length": lengths})
    frame.to_csv(tmp_path / "lengths.csv", index=False)
    given = [frame, frame.set_index([[7] * 6]), tmp_path / "lengths.csv", str(tmp_path / "lengths.csv")]
    tables = [oppo_sim.simulate(path, overrides={"trace": one}).steps for one in given]
    assert all(table.equals(tables[0]) for table in tables[1:])

    # Prompts are not told: those of the scenario's trace.prompt_length, 4 tokens too.
    alone = [lengths, np.array(lengths), frame["response_length"]]
    runs = [oppo_sim.simulate(path, overrides={"trace": one}) for one in alone]
    assert all(run.steps.equals(tables[0]) for run in runs)
    assert len(list((tmp_path / "cache" / "traces").iterdir())) == 2, "one file for what holds the same"

    compared = oppo_sim.compare(path, ["inter"], seeds=1, overrides={"trace": frame}, attribution=False)
    assert list(compared.table.index) == ["sequential", "inter"]
    for bad in (np.zeros((2, 2)), 7, {1, 2}):
        with pytest.raises(OppoError, match="a trace is a path, a frame"):
            oppo_sim.simulate(path, overrides={"trace": bad})
    with pytest.raises(OppoError, match="response_length"):
        oppo_sim.simulate(path, overrides={"trace": pd.DataFrame({"lengths": lengths})})


def test_a_policy_class_is_a_policy(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    by_name = oppo_sim.simulate(path, policy="inter", policy_settings={"overcommit": 2})
    by_class = oppo_sim.simulate(path, policy=oppo_sim.POLICIES["inter"], policy_settings={"overcommit": 2})
    assert by_class.steps.equals(by_name.steps)
    named = f"{Path(own_policies.__file__)}:Overcommitting"
    own = oppo_sim.simulate(path, policy=own_policies.Overcommitting)
    assert own.steps.equals(oppo_sim.simulate(path, policy=named).steps)
    compared = oppo_sim.compare(path, [own_policies.Overcommitting, "inter"], seeds=1, attribution=False)
    assert list(compared.table.index) == ["sequential", named, "inter"]

    class Inside(own_policies.Overcommitting):
        pass

    with pytest.raises(OppoError, match="defined in no file that other processes could open"):
        oppo_sim.simulate(path, policy=Inside)
    with pytest.raises(OppoError, match="neither a name nor a class"):
        oppo_sim.simulate(path, policy=3)  # type: ignore[arg-type]
