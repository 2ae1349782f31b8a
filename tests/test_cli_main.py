"""The ``oppo`` command itself: quick, and every error one sentence."""

import ast
import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from oppo_sim.cli import main as cli
from oppo_sim.errors import OppoError, show_warning
from tests.cli_runs import write_scenario
from tests.test_costs_profile import content


def oppo(*arguments: str, **options: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "oppo_sim.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload, no-any-return]


def test_help_lists_every_command() -> None:
    result = oppo("--help")
    assert result.returncode == 0
    for name, subcommand in cli.SUBCOMMANDS.items():
        assert f"{name} " in result.stdout
        assert subcommand.summary in result.stdout
    assert oppo("-h").stdout == result.stdout
    starts = re.findall(r"^    oppo (.+?)  ", result.stdout, re.MULTILINE)
    assert [words.split()[0] for words in starts] == ["scenario", "compare", "fit"]


def test_the_package_is_a_command_too() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "oppo_sim", "--help"], capture_output=True, text=True, check=True
    )
    assert found.stdout == oppo("--help").stdout


@pytest.mark.parametrize(
    ("words", "offered"), [("oppo sim", "plain,simulate"), ("oppo sweep --obj", "plain,--objective")]
)
def test_commands_and_options_are_completed(words: str, offered: str) -> None:
    asked = {"_OPPO_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    assert oppo(env={**os.environ, **asked}).stdout.split() == [offered]


def test_help_imports_no_subcommand() -> None:
    code = (
        "import sys; from oppo_sim.cli.main import run; run(['--help']); print([m for m in sys.modules if"
        " m.startswith('oppo_sim.') or m in ('numpy', 'pandas', 'pydantic', 'yaml', 'rich')])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ast.literal_eval(result.stdout.splitlines()[-1]))
    light = {"cli", "cli.main", "cli.progress", "errors", "files", "given_command", "inside"}
    assert loaded == {f"oppo_sim.{name}" for name in light}


@pytest.mark.parametrize("name", cli.SUBCOMMANDS)
def test_every_listed_command_answers_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([name, "-h"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: oppo {name} ")


def test_version_is_the_distributions() -> None:
    from importlib.metadata import version

    result = oppo("--version")
    assert (result.returncode, result.stdout) == (0, f"oppo {version('oppo-toolkit')}\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["simulat"], "No such command 'simulat': did you mean 'simulate'?"),
        (["zzz"], "No such command 'zzz': there are simulate, compare"),
        (["list"], "No such command 'list': did you mean 'oppo scenario list' or 'oppo trace list'?"),
        (["help"], "No such command 'help': did you mean '--help'?"),
        (["--zzz"], "No such option '--zzz'"),
        (["fit", "a.log"], "'--scenario': a file, or a name that 'oppo scenario list' shows"),
        (["compare", "tiny", "--seeds"], "requires an argument (see 'oppo compare --help')"),
        (["trace", "import", "a.log", "-o"], "requires an argument (see 'oppo trace import --help')"),
        (["--seeds", "3", "compare", "tiny"], "'--seeds': options go behind the name of their command"),
        (["compare"], "Missing argument 'SCENARIO': a file, or a name that 'oppo scenario list' shows"),
        (["compare", "h200-single", "--gpus", "4"], "'--gpus': fields of a scenario are set by --set"),
        (["compare", "h200-single", "--seed", "4"], "'--seed': did you mean '--seeds'?"),
        (["scenario", "zzz"], "No such command 'zzz'"),
        (["scenario", "show"], "Missing argument 'NAME_OR_PATH'"),
        (["scenario", "show", "zzz"], 'no scenario "zzz"'),
    ],
)
def test_a_wrong_command_line_is_one_sentence(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("oppo: error: ")
    assert printed.err.count("\n") == 1
    assert words in printed.err


def test_bytecode_that_was_cut_off_is_no_interruption(tmp_path: Path) -> None:
    kept = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path)}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    assert oppo("simulate", "--help", env=kept).returncode == 0
    (module,) = tmp_path.rglob("oppo_sim/cli/simulate.*.pyc")
    module.write_bytes(module.read_bytes()[:100])
    result = oppo("simulate", "tiny", env=kept)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.strip().startswith("oppo: error: a file ends too early (marshal data too short)")


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([]) == 2
    assert "Commands:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("raised", "code", "sentence"),
    [
        (OppoError("what,\nwhere, how"), 2, "oppo: error: what, where, how\n"),
        (OppoError("name " + 9999 * "9"), 2, f"oppo: error: name {200 * '9'}…{60 * '9'}\n"),
        (
            KeyboardInterrupt(),
            130,
            "oppo: interrupted: what was not finished is not kept\n",
        ),
        (
            click.Abort(),
            130,
            "oppo: interrupted: what was not finished is not kept\n",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device", "out.csv"),
            2,
            "oppo: error: cannot read or write out.csv: No space left on device\n",
        ),
        (
            PermissionError(errno.EACCES, "Permission denied", "x"),
            2,
            "oppo: error: cannot read or write x: Permission denied\n",
        ),
        (
            MemoryError(),
            2,
            "oppo: error: out of memory: use a smaller trace, fewer steps or fewer processes\n",
        ),
    ],
)
def test_what_goes_wrong_in_a_command_is_said_in_one_sentence(
    raised: BaseException,
    code: int,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    @click.command()
    def failing() -> None:
        raise raised

    monkeypatch.setitem(cli.SUBCOMMANDS, "failing", cli.Subcommand(__name__, "fails", "failing_command"))
    monkeypatch.setattr(sys.modules[__name__], "failing_command", failing, raising=False)
    assert cli.run(["failing"]) == code
    assert capsys.readouterr().err.lstrip("\n") == sentence  # click ends the line on which ^C was typed


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def failing() -> None:
        raise ZeroDivisionError

    monkeypatch.setitem(cli.SUBCOMMANDS, "failing", cli.Subcommand(__name__, "fails", "failing_command"))
    monkeypatch.setattr(sys.modules[__name__], "failing_command", failing, raising=False)
    with pytest.raises(ZeroDivisionError):
        cli.run(["failing"])


def test_a_reader_that_goes_away_is_no_error() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "oppo_sim.cli.main", "--help"]
    result = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write_end)
    assert (result.returncode, result.stderr) == (1, "")


def test_a_full_disk_is_one_sentence() -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "oppo_sim.cli.main", "--help"]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (result.returncode, result.stderr) == (
        2,
        "oppo: error: cannot read or write: No space left on device\n",
    )


def test_a_terminal_without_greek_letters_gets_its_error() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    result = oppo("scenario", "show", "Δ", env=environment)
    assert result.returncode == 2
    assert result.stderr.startswith('oppo: error: no scenario "\\u0394"')


def test_names_that_are_no_utf_8_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = os.fsdecode(b"gr\xf6\xdfe.yaml")
    write_scenario(tmp_path, path)
    for words in (["simulate", path], ["sweep", "tiny.yaml", "-o", path], ["report", path]):
        assert cli.run(words) == 2
        said = capsys.readouterr()
        assert said.err == (
            "oppo: error: 'gr\\xf6\\xdfe.yaml' is no text in this locale: set LC_ALL=C.UTF-8, or rename a file"
            " whose name is not UTF-8\n"
        )
    assert os.listdir() == [path]


def test_broken_yaml_ends_with_exit_code_2_and_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("format: oppo-scenario/1\nsteps: [")
    result = oppo("scenario", "validate", str(path))
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"oppo: error: {path} line 2")
    assert result.stderr.count("\n") == 1


def test_an_error_fits_the_terminal_and_keeps_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = oppo("scenario", "show", "a-scenario-that-nobody-has-shipped-so-far")
    lines = result.stderr.splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 80
    monkeypatch.delenv("COLUMNS")
    whole = oppo("scenario", "show", "a-scenario-that-nobody-has-shipped-so-far")
    assert [" ".join(result.stderr.split())] == whole.stderr.splitlines()


AT_ONCE = """\
import sys
from oppo_sim.cli.main import main
from oppo_sim.runs import execute
execute.WORTHWHILE_SECONDS = execute.HANDING_SECONDS = 0.0
sys.argv = ["oppo", *sys.argv[1:]]
main()
"""
"""The command, which hands little work to other processes, too."""


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_what_tables_do_not_hold_is_said_in_one_sentence_however_many_runs_ask(
    tmp_path: Path, jobs: str
) -> None:
    (tmp_path / "profile.json").write_text(json.dumps(content()))
    scenario = write_scenario(tmp_path, costs={"kind": "profile", "path": "profile.json"})
    words = ["sweep", str(scenario), "--grid", "rollout_batch_size=8,16,32,64", "--seeds", "3"]
    words += ["--jobs", jobs, "--no-figures", "-o", str(tmp_path / "out")]
    result = subprocess.run(
        [sys.executable, "-c", AT_ONCE, *words], check=False, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    warned = [line for line in result.stderr.splitlines() if "outside their range" in line]
    assert len(warned) == 1
    assert warned[0].count("decode at ") == 1


def test_a_warning_is_one_line_that_names_no_code(tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text(json.dumps(content()))
    scenario = write_scenario(tmp_path, costs={"kind": "profile", "path": "profile.json"})
    result = oppo("simulate", str(scenario), "-o", str(tmp_path / "out"), "--no-figures")
    assert result.returncode == 0, result.stderr
    warned = [line for line in result.stderr.splitlines() if "outside their range" in line]
    assert warned
    assert all(line.startswith("oppo: warning: tables of the costs ") for line in warned)
    assert ".py" not in result.stderr


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_quiet_says_no_warning_in_any_process(tmp_path: Path, jobs: str) -> None:
    (tmp_path / "profile.json").write_text(json.dumps(content()))
    scenario = write_scenario(tmp_path, costs={"kind": "profile", "path": "profile.json"})
    out = ("-o", str(tmp_path / "out"), "--jobs", jobs, "--no-figures", "--seeds", "2")
    result = oppo("compare", str(scenario), *out, "--quiet")
    assert (result.returncode, result.stderr) == (0, "")


def test_a_warning_fits_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    show_warning("eight words of a warning, " * 4, UserWarning, "x.py", 1)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 2 and max(map(len, lines)) <= 40
    monkeypatch.delenv("COLUMNS")
    show_warning("eight words of a warning, " * 4, UserWarning, "x.py", 1)
    assert len(capsys.readouterr().err.splitlines()) == 1, "in a log it is a line"
