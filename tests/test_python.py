"""From Python and in notebooks: what completion offers, settings as mappings, results that show themselves."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest

import oppo_sim
from oppo_sim import columns as c
from oppo_sim.cli.main import run
from oppo_sim.errors import OppoError
from oppo_sim.finished_run import read_run_folder
from oppo_sim.report.explore import at_values
from oppo_sim.report.points import Points
from oppo_sim.sweep import Sweep
from tests import own_policies
from tests.cells import run_cell
from tests.cli_runs import contents, write_scenario

GRID = {"policy.chunk_size": [8, 16, 32], "policy.overcommit": [0, 2]}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    path = write_scenario(tmp_path_factory.mktemp("swept"))
    return oppo_sim.sweep(path, grid=GRID, seeds=2, steps=6)


def test_a_heat_map_of_one_field_says_what_is_missing(tmp_path: Path) -> None:
    swept = oppo_sim.sweep(write_scenario(tmp_path), grid={"policy.overcommit": [0, 2]}, seeds=2, steps=6)
    with pytest.raises(OppoError, match=r"needs two fields that vary, and here only policy.overcommit does"):
        swept.heatmap()


def test_completion_offers_every_public_name() -> None:
    assert set(oppo_sim.__all__) <= set(dir(oppo_sim))
    assert not {"Any", "TYPE_CHECKING", "import_module"} & set(dir(oppo_sim))


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
    first, second = (oppo_sim.sweep(path, grid=grid, seeds=2, overrides=each) for each in (given, texts))
    assert first.points.equals(second.points)
    with pytest.raises(OppoError, match="give a mapping of fields to values"):
        oppo_sim.simulate(path, overrides="policy.overcommit=2")
    with pytest.raises(OppoError, match=r"axes are \['policy.overcommit'\]: give a mapping"):
        oppo_sim.sweep(path, grid=["policy.overcommit"])  # type: ignore[arg-type]
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
    with pytest.raises(OppoError, match="lacks the column 'speedups': did you mean 'speedup'"):
        swept.heatmap("speedups")


def test_the_rows_that_are_alike_begin_with_the_best(swept: Sweep) -> None:
    region = swept.region()
    assert region.index[0] == swept.best
    assert set(region.index) == set(swept.alike)
    assert region[c.DIFFERENCE].iloc[0] == 0


def test_a_sweep_is_explored_with_controls(swept: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    head, *sliders, sentence, picture = swept.explore().children
    measure, across, upwards = head.children
    chunk = next(slider for slider in sliders if slider.description == "chunk size")
    first = bytes(picture.value)
    assert first.startswith(b"\x89PNG")
    measure.value = c.COMPARED_STALENESS_MEAN
    assert bytes(picture.value) != first
    assert chunk.disabled, "it is on an axis"
    # Without a second field: a curve of Δ at the chunk size that the slider says.
    upwards.value, chunk.value = "", 8
    at_8 = bytes(picture.value)
    chunk.value = 32
    assert not chunk.disabled
    assert bytes(picture.value) != at_8
    upwards.value = across.value
    assert (bytes(picture.value), "two fields" in sentence.value) == (b"", True)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with pytest.raises(OppoError, match=r"pip install 'oppo-toolkit\[notebooks\]'"):
        swept.explore()


def test_what_is_explored_is_held_at_the_values_chosen(swept: Sweep) -> None:
    shown = Points(swept.points, swept.plan.fields, swept.best, frozenset(swept.alike))
    held = at_values(shown, {"policy.chunk_size": 16})
    wanted = swept.points[swept.points["policy.chunk_size"] == 16]
    assert held.table[c.STEP_S].tolist() == wanted[c.STEP_S].tolist()
    assert held.best is None or wanted.index[held.best] == swept.best
    assert {wanted.index[row] for row in held.region} == set(swept.alike) & set(wanted.index)
    with pytest.raises(OppoError, match=r"no point of the sweep has .* = 17"):
        at_values(shown, {"policy.chunk_size": 17})


def test_a_comparison_is_drawn_in_one_call(tmp_path: Path) -> None:
    compared = oppo_sim.compare(write_scenario(tmp_path), ["inter"], seeds=2, steps=6)
    for what in ("speedup", "step_time", "attribution"):
        labels = [text.get_text() for text in compared.plot(what).axes[0].get_yticklabels()]  # type: ignore[arg-type]
        assert "inter" in labels
    with pytest.raises(OppoError, match="choose speedup, step_time, attribution"):
        compared.plot("seconds")  # type: ignore[arg-type]
    titles = [axis.get_title(loc="left") for axis in compared.gantt((2, 3)).axes]
    assert ["sequential" in title for title in titles] == [True, False]
    assert "inter" in titles[1]
    with pytest.raises(OppoError, match="timeline 2:9 lies outside steps 0 to 5"):
        compared.gantt((2, 9))
    run = oppo_sim.simulate(write_scenario(tmp_path), steps=6, timeline=(2, 3))
    assert len(run.gantt().axes) == 1
    with pytest.raises(OppoError, match="kept no timeline"):
        oppo_sim.simulate(write_scenario(tmp_path), steps=6).gantt()


def test_a_trace_is_drawn_in_one_call() -> None:
    steps = [step for step in range(4) for _ in range(16)]
    frame = pd.DataFrame({"response_length": [10 + 3 * at for at in range(64)], "step": steps})
    opened = oppo_sim.open_trace(frame)
    assert repr(opened) == "OpenedTrace(given lengths, 64 responses of 104 tokens, the longest 199)"
    assert "<table" in opened._repr_html_()
    assert len(opened.plot().axes) == 3, "lengths, tail, drift over the steps"
    assert len(oppo_sim.open_trace(frame["response_length"]).plot().axes) == 2


def test_packages_are_called_by_their_names() -> None:
    from oppo_sim.sweep import SweepSpec, call

    assert oppo_sim.sweep is sys.modules["oppo_sim.sweep"]
    assert SweepSpec.__module__ == "oppo_sim.sweep.spec"
    assert inspect.signature(oppo_sim.sweep) == inspect.signature(call.sweep)
    words: dict[str, dict[str, inspect.Parameter]] = {
        name: dict(inspect.signature(getattr(oppo_sim, name)).parameters)
        for name in ("simulate", "compare", "sweep", "tune", "fit")
    }
    # A word that has a default of its own in each: what is best; how many draws of the costs a fit writes.
    for word in {word for parameters in words.values() for word in parameters} - {"objective", "draws"}:
        known = [each[word].default for each in words.values() if word in each]
        defaults = {str(one) for one in known if one not in (None, (), inspect.Parameter.empty)}
        assert len(defaults) <= 1, f"{word} begins at {defaults}"
    assert all("progress" in each and "overrides" in each for each in words.values())


def test_every_call_tells_the_same_progress(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    small: dict[str, Any] = {"steps": 6, "draws": 0, "seeds": 2}
    calls = [
        lambda tell: oppo_sim.simulate(path, steps=6, progress=tell),
        lambda tell: oppo_sim.compare(path, ["inter"], attribution=False, progress=tell, **small),
        lambda tell: oppo_sim.sweep(path, grid={"policy.overcommit": [0, 2]}, progress=tell, **small),
        lambda tell: oppo_sim.tune(
            path, policies=["inter"], trials=3, fresh_seeds=2, overrides={"seed": 4}, progress=tell, **small
        ),
    ]
    for call in calls:
        seen: list[oppo_sim.Progress] = []
        call(seen.append)
        assert all(0 <= at.done <= at.total for at in seen)
        assert seen[-1].done == seen[-1].total
    assert [at.done for at in seen if at.doing == "search"] == [0, 1, 2, 3]


def test_progress_is_told_on_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_scenario(tmp_path)
    oppo_sim.simulate(path, steps=6, progress=True)
    assert capsys.readouterr().err.splitlines()[-1] == "simulated steps: 6 of 6"
    grid = {"policy.overcommit": [0, 2]}
    swept = oppo_sim.sweep(path, grid=grid, seeds=2, steps=6, draws=0, progress=True)
    assert capsys.readouterr().err.splitlines()[-1].startswith("simulated runs: ")
    silent = oppo_sim.sweep(path, grid=grid, seeds=2, steps=6, draws=0, progress=False)
    assert silent.points.equals(swept.points)
    assert capsys.readouterr().err == ""
    with pytest.raises(OppoError, match="progress is 3: give True, or a function"):
        oppo_sim.simulate(path, steps=6, progress=3)  # type: ignore[arg-type]


def test_simulate_and_compare_write_the_folders_of_their_commands(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    folder = tmp_path / "run"
    asked: dict[str, Any] = {"policy": "inter", "steps": 6}
    written = oppo_sim.simulate(path, folder=folder, figures=False, **asked)
    given = ["simulate", str(path), "--policy", "inter", "--steps", "6", "--no-figures"]
    assert run([*given, "-o", str(tmp_path / "by-command")]) == 0
    assert contents(folder) == contents(tmp_path / "by-command")
    alone = oppo_sim.simulate(path, timeline=(1, 3), **asked)
    for name in ("steps", "rollouts", "summary"):
        assert getattr(written, name).equals(getattr(alone, name))
    assert written.spans == alone.spans
    with pytest.raises(OppoError, match="holds a finished run"):
        oppo_sim.simulate(path, folder=folder, **asked)
    settings = {"overcommit": 1}
    again = oppo_sim.simulate(
        path, folder=folder, force=True, figures=False, keep_rollouts=False, policy_settings=settings, **asked
    )
    assert read_run_folder(folder).manifest["policy_settings"] == settings
    assert read_run_folder(folder).frames == ("steps.parquet",)
    assert again.steps.equals(oppo_sim.simulate(path, policy_settings=settings, **asked).steps)

    small: dict[str, Any] = {"seeds": 2, "steps": 6, "draws": 2, "figures": False}
    compared = oppo_sim.compare(path, ["inter"], folder=tmp_path / "compared", **small)
    given = ["compare", str(path), "--policies", "inter", "--seeds", "2", "--steps", "6", "--draws", "2"]
    assert run([*given, "--no-figures", "-o", str(tmp_path / "compared-by-command")]) == 0
    assert contents(tmp_path / "compared") == contents(tmp_path / "compared-by-command")
    assert compared.table.equals(oppo_sim.compare(path, ["inter"], **small).table)
    told: list[oppo_sim.Progress] = []
    with pytest.raises(OppoError, match="holds a finished run"):
        oppo_sim.compare(path, ["inter"], folder=tmp_path / "compared", progress=told.append, **small)
    assert not told, "refused before anything is simulated"


def test_a_search_shows_what_it_found(tmp_path: Path) -> None:
    space = {"policy.overcommit": "0..4", "policy.max_deferrals": [None, 2]}
    found = oppo_sim.tune(
        write_scenario(tmp_path),
        policies=["inter"],
        space=space,
        trials=5,
        seeds=2,
        fresh_seeds=2,
        draws=0,
        steps=6,
    )
    settings = found.settings
    assert settings["why"].iloc[0] == "choice"
    assert (settings["difference"].iloc[0], bool(settings["keeps_bounds"].iloc[0])) == (0.0, True)
    assert {"as the scenario has it", "the baseline"} & set(settings["why"])
    assert found._repr_html_().count("<tr") == len(settings) + 1
    assert set(found.trials["policy.overcommit"].dropna()) <= {0, 1, 2, 3, 4}
    with pytest.raises(OppoError, match="give a list of at least one name"):
        oppo_sim.tune(write_scenario(tmp_path), policies="inter")


def test_results_show_themselves_shortly(swept: Sweep, tmp_path: Path) -> None:
    assert repr(swept).startswith("Sweep(6 points over policy.chunk_size, policy.overcommit; best: row ")
    shown = swept._repr_html_()
    rows = [re.findall(r"<t[dh]>(.*?)</t[dh]>", row) for row in re.findall(r"<tr.*?</tr>", shown, re.DOTALL)]
    assert (rows[0][0], rows[1][0], rows[1][-1]) == ("row", str(swept.best), "best")
    assert (len(rows), len(rows[0]) < 20) == (1 + len(swept.points), True)
    assert not any(word in shown for word in ("NaN", "&lt;NA&gt;", "not shown"))
    assert "4 other points not shown" in swept.best_points(2).html(swept.title, swept.points)
    scenario = oppo_sim.load_scenario("h200-single")
    assert repr(scenario).startswith("Scenario(name h200-single, rollout_batch_size ")
    assert str(scenario) == repr(scenario)
    assert len(repr(scenario)) < 200
    assert "<td>h200-single</td>" in scenario._repr_html_()
    compared = oppo_sim.compare(write_scenario(tmp_path), ["inter"], seeds=2, steps=6, attribution=False)
    assert repr(compared).startswith("Comparison(sequential 1.00×, inter ")
    assert "<table" in compared._repr_html_()
    run = oppo_sim.simulate(write_scenario(tmp_path), policy="intra", steps=6)
    assert repr(run).startswith("Run(intra, seed 0, 6 steps of ")
    assert "<table" in run._repr_html_()


def test_the_heat_map_of_the_page_is_drawn() -> None:
    page = (Path(__file__).parents[1] / "docs" / "sweep.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(ast.parse(block).body) == 3
    assert "image/png" in run_cell(block, {})


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


def test_a_trace_is_given_as_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPPO_CACHE_DIR", str(tmp_path / "cache"))
    path = write_scenario(tmp_path)
    frame = pd.DataFrame({"prompt_length": 4, "response_length": [3, 9, 27, 4, 8, 16]})
    wanted = oppo_sim.simulate(path, overrides={"trace": frame}).steps
    for given in (frame, oppo_sim.open_trace(frame)):
        assert oppo_sim.simulate(path, trace=given).steps.equals(wanted)
        assert oppo_sim.simulate(path, overrides={"trace": given}).steps.equals(wanted)
    small: dict[str, Any] = {"seeds": 2, "steps": 6, "draws": 0}
    calls: list[Callable[..., Any]] = [
        lambda **how: oppo_sim.compare(path, ["inter"], attribution=False, **small, **how).table,
        lambda **how: oppo_sim.sweep(path, grid={"policy.overcommit": [0, 2]}, **small, **how).points,
        lambda **how: (
            oppo_sim.tune(path, policies=["inter"], trials=2, fresh_seeds=2, **small, **how).settings
        ),
    ]
    for call in calls:
        assert call(trace=frame).equals(call(overrides={"trace": frame}))
        assert not call(trace=frame).equals(call())
        with pytest.raises(OppoError, match="trace is given twice"):
            call(trace=frame, overrides={"trace": frame})
    with pytest.raises(OppoError, match="overrides and trace go with a scenario's name or path"):
        oppo_sim.simulate(oppo_sim.load_scenario(path), trace=frame)
    with pytest.raises(OppoError, match=r"^trace nix.csv does not exist"):
        oppo_sim.simulate(path, trace="nix.csv")
    with pytest.raises(OppoError, match=r"axis trace are no plain values: give trace.path over files"):
        oppo_sim.sweep(path, grid={"trace": [frame]})
    files = [tmp_path / "short.csv", tmp_path / "long.csv"]
    for factor, file in enumerate(files, 1):
        (frame * factor).to_csv(file, index=False)
    grid = {"trace.path": [str(file) for file in files]}
    assert oppo_sim.sweep(path, trace=files[0], grid=grid, **small).points[c.STEP_S].is_monotonic_increasing


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

    with pytest.raises(OppoError, match="neither a name nor a class"):
        oppo_sim.simulate(path, policy=3)  # type: ignore[arg-type]


def test_a_policy_class_of_a_running_program_is_a_policy(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    small: dict[str, Any] = {"seeds": 3, "steps": 6, "draws": 0}

    def made(more: int) -> type:
        class Inside(own_policies.Overcommitting):
            def plan(self, pool: oppo_sim.PoolView) -> oppo_sim.StepPlan:
                return self.refill(pool, overcommit=more * self.batch.group_size, chunk_size=3)

        return Inside

    wanted = oppo_sim.simulate(path, policy=own_policies.Overcommitting).steps
    assert oppo_sim.simulate(path, policy=made(1)).steps.equals(wanted)
    assert not oppo_sim.simulate(path, policy=made(4)).steps.equals(wanted), "a cell that was run again"
    compared = oppo_sim.compare(path, [made(1), own_policies.Overcommitting], **small)
    ours, theirs = compared.table.iloc[1], compared.table.iloc[2]
    assert (ours.name, ours[c.STEP_S]) == ("Inside", theirs[c.STEP_S])
    with pytest.warns(UserWarning, match="only this program holds policy Inside"):
        spread = oppo_sim.compare(path, [made(1), own_policies.Overcommitting], jobs=2, **small)
    assert spread.table.equals(compared.table)
    swept = oppo_sim.sweep(path, grid={"policy.name": [made(1), "inter"]}, **small)
    assert swept.points[c.STEP_S].iloc[0] == pytest.approx(ours[c.STEP_S])
    found = oppo_sim.tune(path, policies=[made(1)], trials=2, fresh_seeds=2, **small)
    assert "Inside" in found.settings["setting"].iloc[0]

    class Other:
        pass

    class april(oppo_sim.Policy):
        pass

    with pytest.raises(OppoError, match="Other is not a policy"):
        oppo_sim.simulate(path, policy=Other)
    with pytest.raises(OppoError, match="april has the name of a shipped policy"):
        oppo_sim.simulate(path, policy=april)


def test_a_policy_class_of_a_cell_is_a_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    space: dict[str, Any] = {"__name__": "__main__", "oppo_sim": oppo_sim}
    run_cell("class Mine(oppo_sim.POLICIES['inter']):\n    pass", space)
    path = write_scenario(tmp_path)
    compared = oppo_sim.compare(path, [space["Mine"], "inter"], seeds=2, steps=6, draws=0)
    assert compared.table.loc["Mine", c.STEP_S] == compared.table.loc["inter", c.STEP_S]
    assert set(compared.table.index) == {"sequential", "Mine", "inter"}
    broken = "class Broken(oppo_sim.Policy):\n    def __init__(self, *given):\n        raise ValueError('no')"
    run_cell(broken, space)
    with pytest.raises(OppoError, match="policy 'Broken' cannot be made: it raised ValueError: no"):
        oppo_sim.simulate(path, policy=space["Broken"])


def ran_script(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In an interpreter of its own."""
    return subprocess.run(
        [sys.executable, script, *arguments], capture_output=True, text=True, check=False,
        cwd=Path(__file__).parents[1], env={**os.environ, "PYTHONPATH": os.getcwd()},
    )  # fmt: skip


def test_a_policy_class_of_a_script_is_a_policy(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    script = tmp_path / "mine.py"
    script.write_text(
        "import oppo_sim\n"
        "class Mine(oppo_sim.POLICIES['inter']):\n    pass\n"
        f"table = oppo_sim.compare({str(path)!r}, ['inter', Mine], seeds=2, steps=6, draws=0).table\n"
        "print(table.index.tolist(), table['speedup'].nunique())\n"
    )
    ran = ran_script(script)
    assert (ran.stdout, ran.stderr) == ("['sequential', 'inter', 'Mine'] 2\n", "")


def test_settings_of_a_policys_name_stay_under_given_settings(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    run = oppo_sim.simulate(path, policy="oppo:chunk_size=7", policy_settings={"overcommit": 1}, steps=6)
    assert run.manifest["policy_settings"] == {"chunk_size": 7, "overcommit": 1}
    assert set(run.steps["chunk_size"]) == {7}
    assert set(run.steps["overcommit"]) == {1}


def test_what_was_changed_in_an_imported_class_is_heeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_scenario(tmp_path)
    (tmp_path / "mypol.py").write_text(
        "import oppo_sim\nclass Q(oppo_sim.Policy):\n    extra = 1\n    def plan(self, pool):\n"
        "        return self.refill(pool, overcommit=self.extra, chunk_size=8)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import mypol  # type: ignore[import-not-found]

    assert set(oppo_sim.simulate(path, policy=mypol.Q, steps=6).steps["overcommit"]) == {1}
    mypol.Q.extra = 3
    assert set(oppo_sim.simulate(path, policy=mypol.Q, steps=6).steps["overcommit"]) == {3}
    table = oppo_sim.compare(path, [mypol.Q, "inter"], seeds=2, steps=6, draws=0, attribution=False).table
    assert "Q" in table.index


def test_settings_that_are_set_are_of_the_policy_that_is_named(tmp_path: Path) -> None:
    """README's command, on a scenario whose own policy has no overcommit."""
    path = write_scenario(tmp_path, policy="sequential", policies={"oppo": {"chunk_size": 7}})
    for overrides in ({"policy.overcommit": 2}, ["policy.overcommit=2"]):
        done = oppo_sim.simulate(path, policy="oppo", overrides=overrides, steps=6)  # type: ignore[arg-type]
        assert set(done.steps["overcommit"]) == {2}
        assert set(done.steps["chunk_size"]) == {7}
    command = ("simulate", str(path), "--policy", "oppo", "--set", "policy.overcommit=2", "--steps", "6")
    assert run([*command, "--no-figures", "-o", str(tmp_path / "out")]) == 0
    with pytest.raises(OppoError, match=r"unknown field policy\.overcommit of policy 'sequential'"):
        oppo_sim.simulate(path, policy="intra", overrides={"policy.overcommit": 2}, steps=6)


def test_slips_in_arguments_are_one_sentence(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    assert len(oppo_sim.simulate(path, steps=6, overrides=None).steps) == 6
    with pytest.raises(OppoError, match="timeline is 3: give the first and the last step"):
        oppo_sim.simulate(path, steps=6, timeline=3)  # type: ignore[arg-type]
    aborted = pd.DataFrame({"response_length": [9, 20, 30], "finish_reason": ["abort", "stop", "stop"]})
    run = oppo_sim.simulate(path, steps=6, trace=aborted)
    assert any(
        said.startswith("1 of 3 rows of the given trace are left out") for said in run.manifest["warnings"]
    )
    with pytest.raises(OppoError, match=r"step 0: plan\(\) gives overcommit -7, below 0 rollouts"):

        class Less(oppo_sim.Policy):
            def plan(self, pool: Any) -> Any:
                return oppo_sim.StepPlan(admit=8, chunk_size=8, overcommit=-7)

        oppo_sim.simulate(path, steps=6, policy=Less)
    with pytest.raises(OppoError, match="policy 'Less' has no setting 'nope'"):
        oppo_sim.simulate(path, steps=6, policy=Less, policy_settings={"nope": 4})
    with pytest.raises(OppoError, match="name inter twice: name each once"):
        oppo_sim.tune(path, policies=["inter", "inter"], trials=2, seeds=2, fresh_seeds=2, steps=6)


def test_force_replaces_no_folder_of_another_command(tmp_path: Path) -> None:
    path, folder = write_scenario(tmp_path), tmp_path / "out"
    small: dict[str, Any] = {"seeds": 2, "steps": 6, "draws": 0, "attribution": False}
    oppo_sim.compare(path, ["inter"], folder=folder, **small)
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    with pytest.raises(
        OppoError, match=r"another command wrote \(simulated comparison\), which is not replaced"
    ):
        oppo_sim.simulate(path, steps=6, folder=folder, force=True)
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before
    oppo_sim.compare(path, ["inter"], folder=folder, force=True, **small)

    oppo_sim.simulate(path, steps=6, folder=tmp_path / "one")
    with pytest.raises(OppoError, match=r"another command wrote \(simulated\), which is not replaced"):
        oppo_sim.compare(path, ["inter"], folder=tmp_path / "one", force=True, **small)
    assert (tmp_path / "one" / "steps.parquet").is_file()


@pytest.mark.parametrize("manifest", [{"format": "oppo-recorded-run/1"}, {}, []])
def test_force_replaces_no_folder_of_another_program(manifest: Any, tmp_path: Path) -> None:
    """A recorded run, above all."""
    path, folder = write_scenario(tmp_path), tmp_path / "kept"
    folder.mkdir()
    (folder / "workload.parquet").write_bytes(b"mine")
    if isinstance(manifest, dict):
        manifest = {**manifest, "files": ["workload.parquet"]}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(OppoError, match="which is not replaced: choose another folder, or delete it first"):
        oppo_sim.simulate(path, steps=6, folder=folder, force=True)
    assert (folder / "workload.parquet").read_bytes() == b"mine"


def test_runs_of_a_script_s_policy_are_known_by_the_values_that_it_reads(tmp_path: Path) -> None:
    """A sweep goes on where it was; a policy that does something else now is another."""
    path = write_scenario(tmp_path)
    script = tmp_path / "mine.py"
    script.write_text(
        "import sys, oppo_sim\n"
        "EXTRA = int(sys.argv[1])\n"
        "UNREAD = object()\n"
        "def more():\n    return EXTRA\n"
        "class Mine(oppo_sim.Policy):\n"
        "    factor = int(sys.argv[2])\n"
        "    def plan(self, pool):\n"
        "        return self.refill(pool, overcommit=[more() for _ in (1,)][0] * self.factor, chunk_size=8)\n"
        f"folder = {str(tmp_path / 'sweep')!r}\n"
        "def swept():\n"
        f"    found = oppo_sim.sweep({str(path)!r}, grid={{'policy.name': [Mine]}}, seeds=2, steps=6, draws=0, folder=folder)\n"
        "    return found.points['step_s'].iloc[0]\n"
        "print(swept())\n"
        "Mine.factor = 0\n"
        "print(swept())\n"
    )

    def ran(*arguments: str) -> list[str]:
        done = ran_script(script, *arguments)
        assert done.stderr == ""
        return done.stdout.split()

    three, none = ran("3", "1")
    assert three != none
    assert ran("3", "1") == [three, none]
    assert ran("1", "3")[0] == three
    assert ran("0", "1") == [none, none]


def test_what_is_within_the_practical_threshold_counts_as_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_scenario(tmp_path)
    small: dict[str, Any] = {"seeds": 4, "steps": 12, "attribution": False}
    sure, wide = (oppo_sim.compare(path, ["inter", "intra"], practical=p, **small) for p in (0.0, 0.9))
    assert sure.best == wide.best
    assert "sequential" not in sure.alike
    assert {*wide.alike, wide.best} == {"sequential", "inter", "intra"}
    mean = sure.cells.groupby("policy")["s_per_rollout"].mean()
    gap = mean["sequential"] / mean[sure.best] - 1
    assert 0 < gap < 0.9
    found = oppo_sim.tune(
        path, policies=["inter"], trials=4, seeds=2, fresh_seeds=4, draws=0, steps=12, practical=0.9
    )
    assert found.settings["alike"].all()
    assert "within 90 % of it" in found.advice()
    given = ("compare", str(path), "--policies", "inter,intra", "--seeds", "4", "--steps", "12")
    assert (
        run([*given, "--no-attribution", "--no-figures", "--practical", "0.9", "-o", str(tmp_path / "c")])
        == 0
    )
    told = " ".join(capsys.readouterr().out.split())
    assert f"best: {wide.best}, " in told
    assert f"; ≈ {', '.join(wide.alike)}: not told apart from it over the seeds, or within 90 % of it" in told
