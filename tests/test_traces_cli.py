"""``oppo trace`` as a user types it."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from oppo_sim.cli.main import oppo, run
from oppo_sim.errors import OppoError
from oppo_sim.run_files import TRACE
from oppo_sim.run_folder import open_run_folder
from oppo_sim.run_kinds import SIMULATED
from oppo_sim.traces.opening import open_trace
from oppo_sim.traces.recorded import split_trace, write_recorded_run
from oppo_sim.traces.schema import check_frame, content_hash
from oppo_sim.traces.stats import trace_stats
from oppo_sim.traces.storage import load_trace, save_trace


def call(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(oppo, ["trace", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    counts = range(1, 201)
    frame = pd.DataFrame(
        {
            "response_length": [3 * i for i in counts],
            "step": [i // 20 for i in counts],
            "source": ["run [a]" if i % 2 else "run [b]" for i in counts],
            "finish_reason": "stop",
        }
    )
    save_trace(frame, tmp_path / "lengths.csv")
    return tmp_path / "lengths.csv"


def test_list_names_all_with_licences() -> None:
    text = call("list").stdout
    entries = json.loads(call("list", "--json").stdout)
    assert len(entries) == 22
    for entry in entries:
        assert entry["name"] in text
        assert entry["licence"] in text
        assert entry["origin"]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_names_and_numbers_are_whole_at_any_width(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    listed = call("list").stdout
    names = [entry["name"] for entry in json.loads(call("list", "--json").stdout)]
    assert all(name in listed.split() for name in names)
    shown = call("show", "reason_r1distill_math")
    assert "r1-gpqa_diamond/r1-distill-llama-8b" in shown.stdout.split()
    fits = call("fit", "reason_r1distill_math", "--source", "r1-math500/*").stdout
    assert {"distribution", "parameters", "lognormal"} <= set(fits.split())
    runs = call("show", "rl_steps_openagentrl").stdout
    assert "openagentrl/run-20251202_120842-do7bl4gg" in runs.split()
    importers = call("import", "--list").stdout.partition("Examples")[0]
    assert {"rollout.dump_to_file", "areal", "token_loss_mask),"} <= set(importers.split())
    # What does not fit is said, not cut.
    said = f"not shown at {width} columns: "
    assert (said in shown.stdout, said in fits) == (width <= 80, width <= 80)
    lines = [line for text in (listed, fits) for line in text.splitlines()]
    assert max(len(line) for line in lines if not line.startswith(said)) <= width


def test_show_a_shipped_trace() -> None:
    text = call("show", "reason_r1distill_math", "--source", "r1-math500/*").stdout
    for part in (
        "reason_r1distill_math",
        "1,000",
        "p99 / p50",
        "longest 1 %",
        "longest of 112",
        "MIT",
        "r1-math500/r1-distill-qwen-7b",
    ):
        assert part in text
    assert "r1-gsm8k" not in text


def test_show_as_json(lengths: Path) -> None:
    shown = json.loads(call("show", lengths, "--json").stdout)
    assert shown["content_sha256"] == content_hash(load_trace(lengths))
    assert shown["stats"]["rows"] == 200
    assert shown["stats"]["mean"] == 301.5
    assert shown["stats"]["group_cv"] is None
    assert shown["provenance"] is None
    assert set(shown["sources"]) == {"run [a]", "run [b]"}
    assert [each["first_step"] for each in shown["drift"]][:2] == [0, 2]
    assert shown["drift"][-1]["mean"] > shown["drift"][0]["mean"]


def test_show_prints_names_that_look_like_markup(lengths: Path) -> None:
    assert "run [a]" in call("show", lengths).stdout


def test_show_draws_a_figure(lengths: Path, tmp_path: Path) -> None:
    for name, begin in (("t.png", b"\x89PNG"), ("t.svg", b"<?xml"), ("t.pdf", b"%PDF")):
        call("show", lengths, "--plot", tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(begin)
    with pytest.raises(OppoError, match="exists"):
        call("show", lengths, "--plot", tmp_path / "t.png")
    call("show", lengths, "--plot", tmp_path / "t.png", "--force")
    with pytest.raises(OppoError, match=r"\.png, \.svg or \.pdf"):
        call("show", lengths, "--plot", tmp_path / "t.jpeg")


def test_the_figure_tells_of_sources_cuts_and_drift(tmp_path: Path) -> None:
    call("show", "rl_reinforcepp_logic_qwen3b", "--plot", tmp_path / "t.svg")
    call("show", "math_qwen25math_math100", "--plot", tmp_path / "one.svg")
    with_steps, without = (tmp_path / "t.svg").read_text(), (tmp_path / "one.svg").read_text()
    assert "<!-- training step -->" in with_steps
    assert "4 sources pooled" in with_steps
    assert "3.3 % cut" in with_steps
    assert "training step" not in without
    assert "median 346" in without


def test_show_what_a_real_run_made(lengths: Path, tmp_path: Path) -> None:
    folder = open_run_folder(tmp_path / "run", SIMULATED)
    folder.write_frame(TRACE, load_trace(lengths))
    folder.finish({})
    shown = json.loads(call("show", tmp_path / "run", "--json").stdout)
    assert shown["content_sha256"] == content_hash(load_trace(lengths))


def test_show_a_recorded_run(lengths: Path, tmp_path: Path) -> None:
    write_recorded_run(tmp_path / "run", {}, *split_trace(load_trace(lengths)))
    shown = json.loads(call("show", tmp_path / "run", "--json").stdout)
    assert shown["content_sha256"] == content_hash(load_trace(lengths))


def test_show_a_step_table() -> None:
    assert "7_5_plus_kl" in call("show", "rl_steps_rasbt").stdout
    runs = json.loads(call("show", "rl_steps_openagentrl", "--json").stdout)["runs"]
    grown = next(each for each in runs if each["source"].endswith("do7bl4gg"))
    assert grown["factor"] == pytest.approx(4.44, abs=0.01)


def test_fit(lengths: Path) -> None:
    result = json.loads(call("fit", lengths, "--json").stdout)
    assert {each["distribution"] for each in result["fits"]} == {"lognormal", "weibull", "mixture"}
    assert result["best"] == result["fits"][0]["distribution"]
    assert result["fits"][0]["aic"] <= result["fits"][1]["aic"]
    assert "weibull" in call("fit", lengths).stdout


def test_synth_writes_what_was_asked(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    said = json.loads(
        call(
            "synth",
            "--mean",
            "900",
            "--clip-ratio",
            "0.05",
            "--max-response-length",
            "4096",
            "-o",
            path,
            "--json",
        ).stdout
    )
    frame = load_trace(path)
    assert len(frame) == 10_000
    assert frame["response_length"].mean() == pytest.approx(900, rel=0.01)
    assert (frame["finish_reason"] == "length").mean() == pytest.approx(0.05, abs=0.001)
    assert said["content_sha256"] == content_hash(frame)
    assert said["stats"]["max"] == 4096
    call("synth", "--param", "mu=6", "--param", "sigma=0.5", "--rows", "500", "-o", tmp_path / "p.csv")
    assert len(load_trace(tmp_path / "p.csv")) == 500


def test_synth_like_a_trace(tmp_path: Path) -> None:
    call("synth", "--like", "math_rl_llama3b_amc_aime", "--rows", "20000", "-o", tmp_path / "l.parquet")
    like, real = load_trace(tmp_path / "l.parquet"), 484.8
    assert like["response_length"].mean() == pytest.approx(real, rel=0.03)
    assert like["response_length"].max() == 2048, "the cut of the trace is kept"


def test_synth_like_a_trace_says_what_it_does_not_take(tmp_path: Path) -> None:
    like = ["synth", "--like", "synth_tools_openagentrl", "--rows", "4096", "-o"]
    said = " ".join(call(*like, tmp_path / "a.parquet").stderr.split())
    options = "--tool-calls 3.94 --tool-seconds 0.752 --tool-tokens 78.5"
    assert f"the lengths of responses are taken alone: its tools are {options}, its prompts --prompt" in said
    prompts = said[said.index("--prompt-mean") :].split()
    # With the options that it names nothing is lost, and nothing said.
    again = call(*like, tmp_path / "b.parquet", *options.split(), *prompts)
    assert again.stderr == ""
    real, made = (
        trace_stats(open_trace("synth_tools_openagentrl").frame),
        trace_stats(load_trace(tmp_path / "b.parquet")),
    )
    assert made.turns_mean == pytest.approx(real.turns_mean, rel=0.03)
    assert made.tool_seconds_mean == pytest.approx(real.tool_seconds_mean, rel=0.05)
    assert made.prompt_mean == pytest.approx(real.prompt_mean, rel=0.01)


def test_synth_with_drift_and_prompts(tmp_path: Path) -> None:
    options = [
        "--p50",
        "400",
        "--p99",
        "3000",
        "--rows",
        "4000",
        "--steps",
        "20",
        "--drift",
        "linear",
        "--last-factor",
        "3",
    ]
    prompts = [
        "--samples-per-prompt",
        "4",
        "--prompt-correlation",
        "0.5",
        "--prompt-mean",
        "100",
        "--seed",
        "7",
    ]
    call("synth", *options, *prompts, "-o", tmp_path / "d.csv.gz")
    frame = load_trace(tmp_path / "d.csv.gz")
    means = frame.groupby("step")["response_length"].mean()
    assert means.iloc[-1] / means.iloc[0] == pytest.approx(3, rel=0.1)
    assert frame.groupby("prompt_id").size().unique().tolist() == [4]


def test_resample_and_convert(lengths: Path, tmp_path: Path) -> None:
    for name in ("one.parquet", "two.csv"):
        call("resample", lengths, "--rows", "1000", "--seed", "4", "-o", tmp_path / name)
    assert content_hash(load_trace(tmp_path / "one.parquet")) == content_hash(
        load_trace(tmp_path / "two.csv")
    )
    (tmp_path / "other.csv").write_text("prompt_tokens,response_tokens\n1,2\n")
    call("convert", tmp_path / "other.csv", tmp_path / "ours.parquet")
    assert load_trace(tmp_path / "ours.parquet")["response_length"].tolist() == [2]


WRONG: list[tuple[list[str], str]] = [
    (["show", "nosuch"], "no shipped trace 'nosuch'"),
    (["show", "math_gsm8k"], "did you mean math_gsm8k_gpt3"),
    (["show", "no/such.csv"], "does not exist"),
    (["show", "math_gsm8k_gpt3", "--source", "7b*"], "no source of trace 'math_gsm8k_gpt3' matches '7b*'"),
    (["show", "BAD"], "data row 2, column response_length is 'x'"),
    (["fit", "BAD"], "data row 2"),
    (["resample", "BAD", "--rows", "5", "--seed", "0", "-o", "new.csv"], "data row 2"),
    (["resample", "OLD", "--rows", "5", "--seed", "0", "-o", "OLD"], "exists"),
    (["resample", "OLD", "--rows", "0", "--seed", "0", "-o", "new.csv"], "'--rows'"),
    (["convert", "OLD", "new.txt"], "must end in"),
    (["convert", "OLD", "OLD"], "exists"),
    (["synth", "--mean", "10", "--p50", "5", "-o", "OLD"], "exists"),
    (["synth", "--mean", "10", "-o", "new.csv"], "two of the targets"),
    (["synth", "--mean", "-3", "--p50", "2", "-o", "new.csv"], "mean is -3.0 but must be at least 1"),
    (["synth", "--mean", "50", "--p50", "100", "-o", "new.csv"], "at least 100"),
    (["synth", "--mean", "50", "--p50", "10", "--rows", "0", "-o", "new.csv"], "rows is 0"),
    (["synth", "--param", "mu", "-o", "new.csv"], "NAME=VALUE"),
    (["synth", "--param", "mu=3", "-o", "new.csv"], "mu, sigma"),
    (["synth", "--mean", "50", "--p50", "10", "--last-factor", "2", "-o", "new.csv"], "need --drift"),
    (["synth", "--like", "OLD", "--mean", "10", "-o", "new.csv"], "leave out the targets"),
    (
        [
            "synth",
            "--mean",
            "50",
            "--p50",
            "10",
            "--steps",
            "9",
            "--drift",
            "table",
            "--drift-table",
            "x",
            "-o",
            "new.csv",
        ],
        "per-step table 'x'",
    ),
]


@pytest.mark.parametrize(
    ("arguments", "said"), WRONG, ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else ""
)
def test_errors_are_one_sentence_and_exit_code_2(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.csv").write_text("response_length\n1\nx\n")
    save_trace(check_frame(pd.DataFrame({"response_length": range(1, 50)})), tmp_path / "old.csv")
    before = (tmp_path / "old.csv").read_bytes()
    named = {"BAD": "bad.csv", "OLD": "old.csv"}
    assert run(["trace", *(named.get(each, each) for each in arguments)]) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("oppo: error: ")
    assert captured.err.count("\n") == 1
    assert said in captured.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.csv", "old.csv"]
    assert (tmp_path / "old.csv").read_bytes() == before


@pytest.mark.parametrize("command", ["list", "show", "fit", "synth", "resample", "convert"])
def test_help_has_an_example(command: str) -> None:
    assert f"oppo trace {command}" in call(command, "--help").stdout


def test_help_imports_nothing_heavy() -> None:
    heavy = ("numpy", "pandas", "pyarrow", "scipy", "matplotlib")
    code = f"import sys; import oppo_sim.cli.trace; print([name for name in {heavy} if name in sys.modules])"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )
