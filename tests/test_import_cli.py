"""``oppo trace import`` as a user types it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from oppo_sim.cli.main import oppo, run
from oppo_sim.traces.importers import IMPORTERS
from oppo_sim.traces.storage import load_trace
from tests.import_cases import write_archive, write_lines


def call(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(oppo, ["trace", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture
def log(tmp_path: Path) -> Path:
    rows = [
        {
            "seqlen": 40 + at,
            "prompt_len": 10,
            "head_version": at,
            "task_id": at,
            "sample_idx": 0,
            "reward": 1.0,
        }
        for at in range(5)
    ]
    return write_lines(tmp_path / "dump" / "1" / "1.jsonl", rows)


def test_a_log_becomes_a_trace_that_every_command_reads(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "my.parquet"
    said = call(
        "import",
        "--from",
        "auto",
        log.parent.parent,
        "-o",
        out,
        "--steps",
        "1:3",
        "--source",
        "run 7",
        "--max-response-length",
        "33",
    ).stdout
    assert "recognised as a log of areal" in said
    assert "5 read, 3 kept" in said
    assert "2 for: step outside --steps" in said
    frame = load_trace(out)
    assert frame["response_length"].tolist() == [31, 32, 33]
    assert set(frame["source"]) == {"run 7"}
    shown = call("show", out).stdout
    for part in ("Provenance", "areal", "1/1.jsonl", "as logged", "33.3 %"):
        assert part in shown
    assert json.loads(call("show", out, "--json").stdout)["provenance"]["files"][0]["name"] == "1/1.jsonl"
    assert json.loads(call("show", out, "--json", "--source", "run*").stdout)["provenance"] is None
    call("resample", out, "--rows", "9", "--seed", "1", "-o", tmp_path / "more.parquet")


def test_the_list_names_all_with_examples(log: Path) -> None:
    text, entries = call("import", "--list").stdout, json.loads(call("import", "--list", "--json").stdout)
    for each, entry in zip(IMPORTERS, entries, strict=True):
        assert entry["name"] == each.name
        assert each.name in text
        assert f"oppo trace import --from {each.name} " in text
    assert "oppo trace import" in call("import", "--help").stdout


def test_examples_of_the_list_are_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for each in IMPORTERS:
        assert run(each.example.split()[1:]) == 2
        assert "does not exist" in capfd.readouterr().err, "every option is known, only the log is missing"


def test_json_and_drawn_lengths(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "m.jsonl",
        [{"step": 1, "data": {"response_length/mean": 50.0, "response_length/max": 90.0}}],
    )
    result = call(
        "import", "--from", "verl", path, "--rows-per-step", "16", "-o", tmp_path / "o.parquet", "--json"
    )
    assert json.loads(result.stdout)["measured"] is False
    result = call("import", path, "--rows-per-step", "16", "-o", tmp_path / "o.parquet", "--force")
    assert "recognised as a log of verl" in result.stdout
    assert (result.stdout + result.stderr).count("drawn, not measured") == 1


def test_columns_and_fields(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x.jsonl", [{"n_out": 5, "n_in": 6, "s": 7}])
    call(
        "import",
        "--from",
        "jsonl",
        path,
        "--columns",
        "response_length=n_out,prompt_length=n_in",
        "--field",
        "step=s",
        "-o",
        tmp_path / "x.csv",
    )
    assert load_trace(tmp_path / "x.csv")[
        ["prompt_length", "response_length", "step"]
    ].to_numpy().tolist() == [[6, 5, 7]]


WRONG: list[tuple[list[str], str]] = [
    (["LOG"], "-o FILE"),
    (["--from", "areal", "LOG"], "-o FILE"),
    (["--from", "nosuch", "LOG", "-o", "new.csv"], "no importer 'nosuch'"),
    (["--from", "areal", "no/such", "-o", "new.csv"], "no/such does not exist"),
    (["--from", "areal", "LOG", "-o", "new.txt"], "must end in"),
    (["--from", "areal", "LOG", "-o", "LOG"], "must end in"),
    (["--from", "areal", "LOG", "-o", "old.csv"], "exists"),
    (["--from", "areal", "LOG", "-o", "new.csv", "--steps", "9"], "'9' is not a range of steps"),
    (["--from", "areal", "LOG", "-o", "new.csv", "--steps", "9:2"], "not a range of steps"),
    (["--from", "areal", "LOG", "-o", "new.csv", "--field", "step"], "is not TARGET=NAME"),
    (["--from", "areal", "LOG", "-o", "new.csv", "--columns", "step=a,step=b"], "names step twice"),
    (["--from", "areal", "LOG", "-o", "new.csv", "--field", "mean=a"], "has no effect"),
    (
        ["--from", "areal", "LOG", "-o", "new.csv", "--tokenizer", "no.json"],
        "tokenizer no.json does not exist",
    ),
    (["--from", "verl", "LOG", "-o", "new.csv"], "neither rollouts nor metrics of verl"),
    (["--from", "slime", "evil.pt", "-o", "new.csv"], "could run code"),
]


@pytest.mark.parametrize(
    ("arguments", "said"), WRONG, ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else ""
)
def test_errors_are_one_sentence_and_leave_nothing(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "log.jsonl", [{"seqlen": 40, "prompt_len": 10, "task_id": 1}])
    (tmp_path / "old.csv").write_text("response_length\n1\n")
    write_archive(tmp_path / "evil.pt", None, raw=b"cos\nsystem\n(S'touch ran'\ntR.")
    assert run(["trace", "import", *("log.jsonl" if each == "LOG" else each for each in arguments)]) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("oppo: error: ")
    assert captured.err.count("\n") == 1
    assert said in captured.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evil.pt", "log.jsonl", "old.csv"]
