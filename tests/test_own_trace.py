"""``--trace FILE``: lengths of the user's own in any command, on any scenario."""

import json
from pathlib import Path

import pytest

from oppo_sim.cli.main import run
from oppo_sim.errors import OppoError
from oppo_sim.report.html_parts import sweep_command
from oppo_sim.scenario.load import load_scenario
from oppo_sim.scenario.overrides import own_trace
from oppo_sim.scenario.yaml_text import parse_yaml

LENGTHS = "prompt_length,response_length\n" + "\n".join(f"10,{n}" for n in (3, 5, 8, 40)) + "\n"
FILTERED = "h200-single"
"""Its own trace is of one source of many, which no file of the user's has."""


@pytest.fixture(autouse=True)
def lengths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.csv").write_text(LENGTHS)


def test_a_scenario_that_filters_its_own_trace_takes_the_users(capsys: pytest.CaptureFixture[str]) -> None:
    assert load_scenario(FILTERED).trace.sources
    given = ["--trace", "mine.csv", "--steps", "11", "--no-figures", "--json", "-o", "out"]
    assert run(["simulate", FILTERED, *given]) == 0
    capsys.readouterr()
    trace = parse_yaml(json.loads(Path("out/manifest.json").read_text())["scenario_yaml"], "manifest")[
        "trace"
    ]
    assert trace["path"] == str(Path("mine.csv").resolve())
    assert trace["name"] is None


def test_the_path_is_from_the_current_folder_whatever_the_scenarios(tmp_path: Path) -> None:
    scenarios = tmp_path / "scenarios"
    scenarios.mkdir()
    assert run(["scenario", "init", FILTERED, "-o", "scenarios/mine.yaml"]) == 0
    loaded = load_scenario("scenarios/mine.yaml", own_trace(Path("mine.csv")))
    assert loaded.trace.path == str(tmp_path / "mine.csv")


def test_set_has_the_last_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(["scenario", "show", FILTERED, "--set", "trace.length_factor=2", "--trace", "mine.csv", "--json"])
        == 0
    )
    trace = json.loads(capsys.readouterr().out)["trace"]
    assert (trace["length_factor"], trace["sources"]) == (2, None)


def test_a_shipped_trace_goes_by_its_name_where_no_file_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    name = "synth_tools_openagentrl"
    asked = ["scenario", "show", FILTERED, "--trace", name, "--json"]
    assert run(asked) == 0
    trace = json.loads(capsys.readouterr().out)["trace"]
    assert (trace["name"], trace["path"], trace["sources"]) == (name, None, None)
    Path(name).write_text(LENGTHS)
    assert run(asked) == 0
    assert json.loads(capsys.readouterr().out)["trace"]["path"] == str(Path(name).resolve())


def test_a_file_that_is_not_there_is_named_with_the_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", FILTERED, "--trace", "nix.csv"]) == 2
    told = capsys.readouterr().err
    assert "trace nix.csv does not exist" in told
    assert str(Path.cwd()) in told
    with pytest.raises(OppoError, match=r"nix\.csv"):
        own_trace(Path("nix.csv"))


def test_a_shipped_name_with_a_mistake_names_the_near_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", FILTERED, "--trace", "reason_r1distill_mat"]) == 2
    assert "no shipped trace: did you mean reason_r1distill_math" in capsys.readouterr().err


def test_two_traces_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scenario", "show", FILTERED, "--trace", "mine.csv", "--trace", "other.csv"]) == 2
    assert "--trace is given 2 times (mine.csv, other.csv): keep one" in capsys.readouterr().err


def test_a_command_to_paste_has_the_flag_and_nothing_is_null() -> None:
    fixed = {"trace.name": None, "trace.synth": None, "trace.sources": None, "trace.path": "/a b/mine.csv"}
    spec = {
        "scenario": "x.yaml",
        "grid": {"policy.max_deferrals": [None, 2]},
        "set": fixed,
        "seeds": 5,
        "objective": "rollouts",
    }
    assert sweep_command({"spec": spec}) == (
        "oppo sweep x.yaml --trace '/a b/mine.csv' --grid policy.max_deferrals=null,2 --seeds 5"
    )
    spec["set"] = {"trace.name": None, "trace.path": "mine.csv"}
    assert "--set trace.name=null --set trace.path=mine.csv" in sweep_command({"spec": spec})
