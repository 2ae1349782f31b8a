"""``oppo tune`` on the command line."""

from __future__ import annotations

import json
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from oppo_sim.cli.tune import EXIT_INFEASIBLE
from tests.cli_runs import TINY, Oppo, assert_refused, contents, start_oppo, write_scenario

SMALL = ("--trials", "6", "--seeds", "2", "--fresh-seeds", "3", "--jobs", "1")


@pytest.fixture
def oppo(capsys: pytest.CaptureFixture[str]) -> Oppo:
    return Oppo(capsys)


def test_a_search_writes_its_folder_and_says_what_to_set(oppo: Oppo, tmp_path: Path) -> None:
    path, folder = write_scenario(tmp_path), tmp_path / "tuned"
    printed = oppo("tune", path, "--policies", "oppo,sequential", *SMALL, "-o", folder)
    assert printed.code == 0, printed.err
    assert "What to set, and what to expect" in printed.out
    assert "Set oppo" in printed.out
    assert "verl" in printed.out
    names = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}
    assert {
        "tune.json",
        "trials.parquet",
        "trials.csv",
        "sensitivity.parquet",
        "advice.md",
        "advice.json",
        "best.yaml",
    } <= names
    assert {"runs.jsonl", "figures/history.png", "figures/sensitivity.png"} <= names
    assert (folder / "figures/history.png").read_bytes().startswith(b"\x89PNG")
    record = json.loads((folder / "tune.json").read_text())
    assert record["format"] == "oppo-tune/1"
    assert record["trials"] == 6
    assert sum(record["statuses"].values()) == 6
    trials = pd.read_parquet(folder / "trials.parquet")
    assert list(trials["trial"]) == list(range(6))
    assert len(pd.read_csv(folder / "trials.csv")) == 6
    best = oppo("simulate", folder / "best.yaml", "-o", tmp_path / "run", "--no-figures")
    assert best.code == 0, best.err


def test_regrets_are_drawn_and_listed(oppo: Oppo, tmp_path: Path) -> None:
    folder = tmp_path / "t"
    worlds = ("--drift", "1.5", "--cost-worlds", "2", "--robust", "worst")
    (tmp_path / "draws.csv").write_text("decode,score\n1.2,0.9\n0.8,1.3\n")
    drawn = write_scenario(tmp_path, costs={**TINY["costs"], "draws": "draws.csv"})
    printed = oppo("tune", drawn, "--policies", "oppo,inter", *worlds, *SMALL, "-o", folder)
    assert printed.code == 0, printed.err
    assert "least worst regret over 4 worlds" in printed.out
    assert (folder / "figures" / "regret.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "advice.md").read_text()
    assert "| lengths × 1.5 |" in page
    record = json.loads((folder / "tune.json").read_text())
    assert [one["world"] for one in record["regrets"]] == record["world_names"]
    assert all(one["chosen"] >= 0 for one in record["regrets"])


def test_json_goes_to_standard_output_alone(oppo: Oppo, tmp_path: Path) -> None:
    printed = oppo(
        "tune",
        write_scenario(tmp_path),
        "--policies",
        "oppo",
        *SMALL,
        "--no-figures",
        "--json",
        "-o",
        tmp_path / "t",
    )
    assert printed.code == 0
    record = json.loads(printed.out)
    assert record["chosen"]["policy"] == "oppo"
    assert (
        record["advice"]["choice"]["policy_settings"]["overcommit"]
        == record["chosen"]["knobs"]["policy.overcommit"]
    )


def test_nothing_feasible_has_an_exit_code_of_its_own(oppo: Oppo, tmp_path: Path) -> None:
    arguments = ("--policies", "april", "--space", "policy.overcommit=4..8", "--max-staleness", "0")
    printed = oppo("tune", write_scenario(tmp_path, steps=20), *arguments, *SMALL, "-o", tmp_path / "t")
    assert printed.code == EXIT_INFEASIBLE
    assert "No setting keeps all bounds" in printed.out
    assert "max_staleness is kept by 0 of 6" in printed.out
    assert json.loads((tmp_path / "t" / "tune.json").read_text())["infeasible"]["binding"] == [
        "max_staleness"
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--policies", "opo"), ("opo", "did you mean")),
        (("--policies", "oracle"), ("oracle", "never a recommendation")),
        (("--policies", ","), ("names no policy",)),
        (("--policies", ""), ("names no policy",)),
        (("--space", "policy.overcomit=0..4"), ("did you mean policy.overcommit?",)),
        (("--space", "overcommit=0..4"), ("did you mean policy.overcommit?",)),
        (("--space", "policy.chunk_size"), ("--space", "policy.chunk_size")),
        (("--space", "policy.chunks=8..16"), ("policy.chunks",)),
        (("--space", "rollout.num_replica=1,2"), ("--space rollout.num_replica=1", "num_replicas")),
        (("--kv-capacity", "lots"), ("lots", "auto")),
        (("--kv-capacity", "auto"), ("kv_capacity auto", "linear")),
        (("--max-staleness", "-1"), ("--max-staleness",)),
        (("--other-trace", "no_such_trace"), ("no_such_trace",)),
        (("--drift", "1"), ("drift 1",)),
        (("--cost-profile", "missing.json"), ("missing.json",)),
        (("--set", "rollout.kv_capacity_tokens=16"), ("kv_capacity_tokens",)),
        (("--trials", "0"), ("--trials",)),
    ],
)
def test_mistakes_are_one_sentence(
    oppo: Oppo, tmp_path: Path, arguments: tuple[Any, ...], words: tuple[str, ...]
) -> None:
    assert_refused(oppo("tune", write_scenario(tmp_path), "-o", tmp_path / "t", *arguments), *words)


def test_a_folder_with_other_things_is_left_alone(oppo: Oppo, tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "notes.txt").write_text("mine")
    assert_refused(
        oppo("tune", write_scenario(tmp_path), *SMALL, "-o", tmp_path / "t", "--force"), "notes.txt", "-o"
    )
    assert (tmp_path / "t" / "notes.txt").read_text() == "mine"


def test_another_search_is_not_mixed_in(oppo: Oppo, tmp_path: Path) -> None:
    path, folder = write_scenario(tmp_path), tmp_path / "t"
    first = ("tune", path, "--policies", "oppo", *SMALL, "--no-figures", "-o", folder)
    assert oppo(*first).code == 0
    assert_refused(
        oppo(*first, "--objective", "tokens"),
        "another search (objective is",
        'there and "tokens" here',
        "--force",
    )
    (folder / "my-notes.txt").write_text("mine")
    assert oppo(*first, "--objective", "tokens", "--force").code == 0
    assert json.loads((folder / "tune.json").read_text())["objective"] == "tokens"
    assert (folder / "my-notes.txt").read_text() == "mine"


def test_a_refused_search_leaves_every_file_of_the_other_as_it_was(oppo: Oppo, tmp_path: Path) -> None:
    folder = tmp_path / "t"
    worlds = ("--drift", "1.5", "--policies", "oppo", *SMALL, "--no-figures", "-o", folder)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert oppo("tune", write_scenario(tmp_path / "a"), *worlds).code == 0
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    trace = {"synth": {"mean": 30, "p50": 20, "rows": 50}, "prompt_length": 4}
    other = write_scenario(tmp_path / "b", trace=trace)
    assert_refused(
        oppo("tune", other, *worlds), "another search", "holds another search (trace.synth.", "--force"
    )
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_damaged_journal_is_said(oppo: Oppo, tmp_path: Path) -> None:
    path, folder = write_scenario(tmp_path), tmp_path / "t"
    first = ("tune", path, "--policies", "oppo", *SMALL, "--no-figures", "-o", folder)
    assert oppo(*first).code == 0
    journal = folder / "runs.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:3], b"nonsense\n", *lines[3:]]))
    assert_refused(oppo(*first), "runs.jsonl, line 4", "delete the line")


def test_without_optuna_the_extra_is_named(
    oppo: Oppo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert_refused(
        oppo("tune", write_scenario(tmp_path), "-o", tmp_path / "t"), "pip install 'oppo-toolkit[tune]'"
    )
    assert not (tmp_path / "t").exists()


def test_ctrl_c_keeps_what_is_finished(tmp_path: Path) -> None:
    path, folder = write_scenario(tmp_path, steps=400), tmp_path / "t"
    command = (
        "tune",
        path,
        "--policies",
        "tail-batching,oppo",
        "--trials",
        "400",
        "--seeds",
        "2",
        "--jobs",
        "1",
        "--no-figures",
        "-o",
        folder,
    )
    process = start_oppo(*command)
    journal = folder / "runs.jsonl"
    end = time.monotonic() + 200
    while not (journal.is_file() and journal.read_bytes().count(b'{"trial":') >= 4):
        assert time.monotonic() < end
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert "the same command goes on from there" in error
    assert error.count("\n") == 1, error
    assert journal.read_bytes().count(b'{"trial":') >= 4


def test_a_framework_bounds_the_search_and_the_answer(oppo: Oppo, tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    printed = oppo("tune", path, "--framework", "verl", *SMALL, "--no-figures", "-o", tmp_path / "t")
    assert printed.code == 0, printed.err
    assert "python3 -m verl.trainer" in printed.out or "python3 -m verl.experimental" in printed.out
    assert "verl 0.9.1 of 2026-09-20" in printed.out
    assert "slime" not in printed.out
    again = oppo("tune", path, "--framework", "slime", *SMALL, "--no-figures", "-o", tmp_path / "t")
    assert_refused(again, "holds")
    assert_refused(oppo("tune", path, "--framework", "verll", "-o", tmp_path / "u"), "did you mean 'verl'")
    assert_refused(
        oppo("tune", path, "--framework", "trl", "--policies", "oppo", "-o", tmp_path / "u"),
        "TRL cannot do it; it can do sequential",
    )


def test_no_figures_keeps_the_figures_of_the_same_search(oppo: Oppo, tmp_path: Path) -> None:
    path, figures = write_scenario(tmp_path), tmp_path / "tuned" / "figures"
    tune = ("tune", path, "--policies", "oppo,sequential", *SMALL, "-o", tmp_path / "tuned")
    assert oppo(*tune).code == 0
    drawn = contents(figures)
    assert drawn
    assert oppo(*tune, "--no-figures").code == 0
    assert contents(figures) == drawn


def test_a_search_for_the_time_to_a_reward_names_its_draws_and_has_a_report_without_an_empty_heat_map(
    oppo: Oppo, tmp_path: Path
) -> None:
    path, folder = write_scenario(tmp_path), tmp_path / "tuned"
    asked = ("--objective", "time_to_reward", "--policies", "oppo,intra", *SMALL, "-o", folder)
    printed = " ".join(oppo("tune", path, *asked).out.split())
    # The machine is exact: what is drawn is the effect of staleness, 64 times.
    assert "ran on 64 draws of the effect of staleness it is the best" in printed
    assert (folder / "figures" / "history.png").is_file()
    assert oppo("report", folder, "-o", tmp_path / "page.html").code == 0
    page = (tmp_path / "page.html").read_text()
    assert '"heat":null' in page  # six trials fill no grid


def test_a_dry_run_says_what_would_be_searched_and_writes_nothing(oppo: Oppo, tmp_path: Path) -> None:
    path, folder = write_scenario(tmp_path), tmp_path / "tuned"
    asked = ("tune", path, "--policies", "oppo,sequential", *SMALL, "-o", folder, "--dry-run")
    printed = oppo(*asked, "--drift", "1.5", "--space", "policy.overcommit=0..6")
    assert (printed.code, printed.err) == (0, "")
    assert not folder.exists()
    assert "policy.overcommit 0 to 6" in printed.out
    assert "sequential: no knobs\n" in printed.out
    # Six trials on two seeds in the scenario as given and with longer responses.
    assert "runs: at most 24 of 6 steps, on 2 seeds in 2 worlds (" in printed.out
    assert "time of the search: " in printed.out
    record = json.loads(oppo(*asked, "--json").out)
    assert (record["most_runs"], record["steps"], record["fresh_seeds"]) == (12, 6, 3)
    assert record["processes"] == 1
    # One policy without knobs is one trial, however many are allowed.
    few = oppo("tune", path, "--framework", "TRL", "--seeds", "5", "-o", folder, "--dry-run", "--json")
    assert json.loads(few.out)["most_runs"] == 5
    assert set(record["space"]) == {"oppo", "sequential"}
    assert_refused(oppo(*asked, "--space", "policy.overcomit=0..6"), "did you mean policy.overcommit?")


def test_every_setting_is_one_row(oppo: Oppo, tmp_path: Path) -> None:
    """Sequential is a trial and the baseline."""
    path = write_scenario(tmp_path)
    printed = oppo("tune", path, "--policies", "oppo,sequential", *SMALL, "-o", tmp_path / "tuned")
    table = printed.out.partition("What to set")[0]
    assert table.count("sequential") == 1
    assert "sequential (the" in table


def test_a_length_bias_in_per_cent_is_refused(oppo: Oppo) -> None:
    refused = oppo("tune", "h200-single", "--max-length-bias", "2")
    assert refused.code == 2
    assert "2.0 is not in the range 0<=x<1" in refused.err


def test_a_search_of_one_setting_claims_nothing_of_others(oppo: Oppo, tmp_path: Path) -> None:
    few = ("--seeds", "1", "--fresh-seeds", "2", "--jobs", "1", "--draws", "0", "--steps", "6")
    command = (
        "tune",
        "grpo-h200x8",
        "--set",
        "policy=sequential",
        "--framework",
        "trl",
        *few,
        "--no-figures",
    )
    printed = oppo(*command, "-o", tmp_path / "tuned")
    assert printed.code == 0, printed.err
    said = " ".join(printed.out.split())
    assert "Nothing else that keeps the bounds was checked on fresh seeds: there was no choice." in said
    assert "significantly worse" not in said
    assert "1 setting of sequential" in said
    assert "arguments of GRPOConfig" in said
    # Nothing is compared with itself.
    assert "oppo simulate" in said
    assert "oppo compare" not in said


def test_one_fresh_seed_tells_nothing_apart_and_shorter_responses_are_warned_of(
    oppo: Oppo, tmp_path: Path
) -> None:
    few = ("--trials", "4", "--seeds", "1", "--fresh-seeds", "1", "--jobs", "1", "--draws", "0")
    command = ("tune", "h200-single", "--policies", "tail-batching", *few, "--steps", "12", "--no-figures")
    printed = oppo(*command, "-o", tmp_path / "tuned")
    assert printed.code == 0, printed.err
    said = " ".join(printed.out.split())
    assert "With one fresh seed nothing can be said about which differences are real" in said
    assert "significantly worse" not in said
    assert "over 1 fresh seed of 12 steps" in said
    # No long step has come by then.
    assert "shorter than sequential does, so part of its gain is shorter work" in said


def test_a_search_is_readable_at_any_width_and_goes_on_in_a_folder_of_its_own(
    oppo: Oppo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, folder = write_scenario(tmp_path), tmp_path / "tuned"
    asked = ("tune", path, "--policies", "oppo", "--space", "policy.overcommit=0..4", *SMALL, "-o", folder)
    for width in (40, 60, 100):
        monkeypatch.setenv("COLUMNS", str(width))
        table, _, advice = oppo(*asked, "--no-figures").out.partition("What to set")
        assert max(map(len, table.splitlines())) <= width
        assert " choice" in table
        assert "overcommit" in table
        assert "\n oppo," in table or "\n  oppo," in table
        commands = [line for line in advice.splitlines() if line.lstrip().startswith("oppo tune ")]
        assert commands
        assert all(line.endswith(f" -o {folder}-wider") for line in commands)


def test_the_command_beyond_an_edge_asks_for_all_that_this_search_did(
    oppo: Oppo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    write_scenario(tmp_path)
    (tmp_path / "own.csv").write_text("response_length\n3\n9\n20\n5\n")
    given = ["--set", "max_response_length=24", "--trace", "own.csv", "--seeds", "2", "--fresh-seeds", "3"]
    given += ["--trials", "9", "--draws", "0", "--steps", "8", "--max-staleness", "9", "--framework", "verl"]
    searched = ["--policies", "inter", "--space", "policy.overcommit=0..2"]
    printed = oppo("tune", "tiny.yaml", *searched, *given, "--jobs", "1", "--no-figures", "-o", "tuned")
    (command,) = [line.strip() for line in printed.out.splitlines() if line.strip().startswith("oppo tune")]
    words = shlex.split(command)[2:]
    assert words[0] == "tiny.yaml"
    asked = list(zip(words[1::2], words[2::2], strict=True))
    kept = {pair for pair in zip(given[::2], given[1::2], strict=True) if pair[0] != "--max-staleness"}
    assert kept <= set(asked)
    assert ("--max-staleness", "9.0") in asked or ("--max-staleness", "9") in asked
    assert ("--policies", "inter") in asked
    assert asked[-1] == ("-o", "tuned-wider")
    page = (tmp_path / "tuned" / "advice.md").read_text()
    assert any(line.endswith("--trials 9") for line in page.splitlines())  # nothing behind it
    again = oppo("tune", *words, "--jobs", "1", "--no-figures")
    assert again.code == 0, again.err
