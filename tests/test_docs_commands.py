"""The commands of docs/, as they are written and in their order, each page in a folder that holds only what the
page takes for granted. ``OPPO_DOCS_IN_FULL=1`` plans nothing and makes nothing smaller (some minutes)."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from oppo_sim.cli.main import SUBCOMMANDS, run
from oppo_sim.traces.recorder import Recorder
from tests.cli_runs import default_of, unknown_options, write_scenario
from tests.import_cases import write_archive, write_lines

ROOT = Path(__file__).parents[1]
PAGES = sorted(path for folder in ("docs", "docs/howto") for path in (ROOT / folder).glob("*.md"))

REAL = {"run", "calibrate", "validate"}
"""They need engines: tests/real/test_docs_commands.py runs them."""

ELSEWHERE = {
    "oppo fit experiments/fit/train.log.gz": "tests/test_fit_example.py fits this log",
    "oppo compare fit/scenario.yaml --policies inter,partial-rollout --seeds 5": "takes what that fit writes",
    "oppo fit --scenario paper-stackexchange-7b --observe": "half a minute; tests/test_fit_cli.py observes a small one",
    "oppo simulate my.yaml --trace runs/real": "replays a real run: tests/real/test_docs_commands.py",
    "oppo fit train.log.gz": "the same log under another name",
    "oppo fit runs/recorded": "half a minute; tests/test_recorder.py reads a recorded run as a fit does",
    "oppo compare fit/scenario.yaml --trace runs/recorded": "takes what that fit writes",
    "oppo doctor scenario.yaml": "exits with 1, as the page says: tests/real/test_doctor.py",
    "oppo costs register": "takes a measured profile; tests/test_costs_shipped_profiles.py registers one",
    "oppo tune my.yaml --set": "takes a measured profile: tests/real/test_docs_commands.py",
    "oppo tune mine.yaml --set": "the same in docs/tutorial.md",
    "oppo sweep grpo-h200x8 --set 'trace=": "tests/test_groups_page.py runs it and looks at its answer",
}
"""How a command begins, and why it is not run here."""

PLANNED = {
    "oppo sweep paper-stackexchange-7b --set rollout.batching=continuous",
    "oppo sweep fit/scenario.yaml",
    "oppo sweep h200-single --set policy.name=inter",
    "oppo sweep h200x8-async",
    "oppo sweep h200x8-vllm",
    "oppo tune fit/scenario.yaml",
    "oppo tune h200x8-vllm",
}
"""Minutes of runs: planned only (``--dry-run``), which reads and checks all of it and makes one run."""


_FEW = ["--steps", "3", "--seeds", "1", "--draws", "0", "--no-figures"]
SMALLER = {
    "oppo compare fit/scenario.yaml --policies inter,partial-rollout,tail-batching": _FEW,
    "oppo compare h200x8": ["--steps", "12", *_FEW[2:]],
    "oppo compare h200-single": ["--steps", "24", "--seeds", "2", "--draws", "0", "--no-figures"],
    "oppo simulate h200-single": ["--steps", "24", "--no-figures"],
    "oppo trace synth --like": ["--rows", "20000"],
}
"""Half a minute as written: with these besides, of which the last counts."""

README_FIRST = {
    "python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/oppo compare paper-stackexchange-7b"
}
"""It installs; .ci/run makes it in a fresh environment."""


def text_and_blocks(page: Path) -> tuple[str, list[tuple[str, str]]]:
    """A page, continued lines joined; and its blocks, each with its language."""
    text = re.sub(r" *\\\n *", " ", page.read_text(encoding="utf-8"))
    return text, re.findall(r"^```([^\n]*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def commands(page: Path) -> list[str]:
    """Lines of blocks without a language or of ``bash``, and indented ones, that begin with ``oppo``; comments
    left out, continued lines joined."""
    text, fenced = text_and_blocks(page)
    shell = [block for language, block in fenced if language in ("", "bash")]
    lines = [line for block in shell for line in block.splitlines() if line.startswith("oppo ")]
    lines += re.findall(r"^    (oppo .*)$", text, re.MULTILINE)
    return [shlex.join(shlex.split(line, comments=True)) for line in lines]


def begins(command: str, known: Callable[[str], bool] | set[str] | dict[str, str]) -> bool:
    """One of the known beginnings is this command's."""
    return any(command.startswith(start) for start in known)  # type: ignore[union-attr]


def importers_files() -> None:
    """Dumps of slime and verl, metrics, a log of one's own, a tokenizer, and what the page's own loop records."""
    Path("debug_rollouts").mkdir()
    for step in (20, 40):
        samples = [
            {
                "index": n,
                "group_index": n,
                "response_length": 9 + n,
                "status": "completed",
                "reward": 0.0,
                "tokens": [0] * (12 + n),
            }
            for n in range(4)
        ]
        write_archive(Path(f"debug_rollouts/{step}.pt"), {"rollout_id": step, "samples": samples})
    Path("rollouts").mkdir()
    rows = [{"input": f"q {n}", "output": "word " * (5 + n), "score": 1.0, "step": 1} for n in range(6)]
    write_lines(Path("rollouts/1.jsonl"), rows)
    figures = {
        "response_length/mean": 300.0,
        "response_length/max": 900.0,
        "response_length/min": 20.0,
        "prompt_length/mean": 50.0,
    }
    write_lines(Path("metrics.jsonl"), [{"step": n, "data": figures} for n in range(3)])
    write_lines(Path("log.jsonl"), [{"n_out": 10 + n, "n_in": 5} for n in range(8)])
    Path("Qwen3-8B").mkdir()
    model = {"type": "WordLevel", "vocab": {"[UNK]": 0, "word": 1}, "unk_token": "[UNK]"}
    parts = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    whole = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    Path("Qwen3-8B/tokenizer.json").write_text(json.dumps({**parts, **whole}))
    with Recorder("runs/recorded") as recorder:
        for length in range(40, 80):
            recorder.rollout_finished(length, step=length // 60)


def policies_files() -> None:
    """The policy that the page shows."""
    source = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "policies.md").read_text(), re.DOTALL)
    Path("oldest.py").write_text(next(block for block in source if "class OldestFirst" in block))


def report_files() -> None:
    """A sweep and two runs."""
    path = write_scenario(Path())
    for words in (
        [
            "sweep",
            path,
            "--grid",
            "policy.overcommit=0,2",
            "--seeds",
            "2",
            "--jobs",
            "1",
            "-o",
            "runs/my-sweep",
        ],
        ["simulate", path, "-o", "runs/a"],
        ["simulate", path, "--policy", "inter", "-o", "runs/b"],
    ):
        assert run([str(word) for word in [*words, "--no-figures", "--quiet"]]) == 0


def sweep_files() -> None:
    """A scenario of the user's own."""
    assert run(["scenario", "init", "h200-single", "-o", "mine.yaml"]) == 0


def tutorial_files() -> None:
    """What the page copies, and what its first command makes of it, unfitted."""
    Path("fit").mkdir()
    for place in ("scenario.yaml", "fit/scenario.yaml"):
        shutil.copyfile(ROOT / "experiments" / "fit" / "scenario.yaml", place)


def traces_files() -> None:
    """Lengths of the user's own."""
    lengths = np.random.default_rng(0).lognormal(5.5, 0.8, 400).astype(int).clip(1, 2048)
    Path("lengths.csv").write_text("response_length\n" + "\n".join(map(str, lengths)) + "\n")


BEFORE: dict[str, Callable[[], None]] = {
    "importers.md": importers_files,
    "policies.md": policies_files,
    "limits.md": report_files,
    "sweep.md": sweep_files,
    "traces.md": traces_files,
    "tutorial.md": tutorial_files,
}


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.name)
def test_every_command_runs_as_written(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    BEFORE.get(page.name, lambda: None)()
    for command in commands(page):
        words = shlex.split(command)[1:]
        if words[0] in REAL or begins(command, ELSEWHERE):
            continue
        if "--tokenizer" in words and find_spec("tokenizers") is None:
            continue
        if "OPPO_DOCS_IN_FULL" not in os.environ:
            words += ["--dry-run"] if begins(command, PLANNED) else []
            words += next((more for start, more in SMALLER.items() if command.startswith(start)), [])
        code = run(words)
        printed = capsys.readouterr()
        assert code == 0, f"{command}\n{printed.err}"


def test_nothing_is_excused_that_is_not_written() -> None:
    written = [command for page in PAGES for command in commands(page)]
    assert len(written) > 30
    for start in (*ELSEWHERE, *PLANNED, *SMALLER, *(f"oppo {verb}" for verb in REAL)):
        assert any(command.startswith(start) for command in written), start


def test_commands_in_sentences_name_what_there_is() -> None:
    """They are not run: each must be a command, with options that it has."""
    said = [
        command
        for page in (ROOT / "README.md", *PAGES)
        for command in re.findall(r"`(oppo [^`]+)`", page.read_text(encoding="utf-8"))
    ]
    assert len(said) > 40
    assert {text: unknown for text in said if (unknown := unknown_options(text))} == {}


def test_no_command_hides_where_it_is_not_run() -> None:
    """Commands stand at the beginning of a line, in a block without another language."""
    verbs = "|".join(SUBCOMMANDS)
    for page in (ROOT / "README.md", *PAGES):
        for language, block in text_and_blocks(page)[1]:
            for line in block.splitlines():
                if re.search(rf"\boppo ({verbs})\b", line.partition("#")[0]):
                    runs = line.startswith("oppo ") and language in ("", "bash")
                    assert runs or line in README_FIRST, f"{page.name}: {line}"


def documented_defaults() -> list[tuple[str, str, str, str]]:
    """(page, command, option, default) of tables of options and of texts such as ``(`--draws`, 40)``."""
    found = []
    for page, command in OPTIONS_OF.items():
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        for option, default in re.findall(r"\(`(--[a-z-]+)`, ([\d.]+)\)", text):
            found.append((page, command, option, default))
        for table in re.findall(r"\| option \| default \|.*?(?=\n\n)", text, re.DOTALL):
            for row in table.splitlines()[2:]:
                options, defaults = row.split("|")[1:3]
                names = re.findall(r"`(--[a-z-]+)", options)
                values = [value.strip().strip("`") for value in defaults.split(", ")]
                found += [(page, command, *pair) for pair in zip(names, values, strict=False)]
    return found


OPTIONS_OF = {"tune.md": "tune", "calibrate.md": "validate"}
"""Page → the command whose options its table has."""


def test_defaults_on_a_page_are_those_of_the_command() -> None:
    told = [each for each in documented_defaults() if re.fullmatch(r"[\d.]+|[a-z_]+", each[3])]
    assert {("tune.md", "tune", "--draws", "40"), ("tune.md", "tune", "--trials", "200")} <= set(told)
    assert len(told) >= 8
    assert [each for each in told if default_of(*each[1:3]) != each[3]] == []
