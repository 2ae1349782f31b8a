"""The commands of the README, as they are written and in their order, in a folder that holds only a user's own
files."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from oppo_sim.cli.main import run
from oppo_sim.costs.terms import CostTerms
from oppo_sim.scenario.load import load_scenario
from tests.cells import run_cell
from tests.fit_logs import short_chains, verl_log

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
FEW_STEPS = 6


def commands(heading: str) -> list[str]:
    """Of the first shell block under a heading, comments left out."""
    block = README.split(heading, 1)[1].split("```bash\n", 1)[1].split("```", 1)[0]
    return [
        " ".join(shlex.split(line, comments=True)) for line in block.splitlines() if line.startswith("oppo ")
    ]


def own_files(folder: Path) -> None:
    """A log of verl, lengths, dumps of rollouts, and a model's configuration, under the README's names."""
    verl_log(folder / "train.log", load_scenario("h200-single"), CostTerms(decode=1.2))
    lengths = np.random.default_rng(0).lognormal(5.5, 0.8, 400).astype(int).clip(1, 2048)
    (folder / "my_lengths.csv").write_text("response_length\n" + "\n".join(map(str, lengths)) + "\n")
    (folder / "rollout_dumps").mkdir()
    for step in (1, 2):
        rows = [
            {"input": f"question {row}", "output": "word " * (20 + 7 * row), "score": 1.0, "step": step}
            for row in range(8)
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "rollout_dumps" / f"{step}.jsonl").write_text(text)
    model = {
        "model_type": "qwen2", "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5504,
        "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 8, "max_position_embeddings": 4096,
        "architectures": ["Qwen2ForCausalLM"],
    }  # fmt: skip
    (folder / "my_config.json").write_text(json.dumps(model))


@short_chains()
def test_every_command_runs_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    own_files(tmp_path)
    said = commands("## What you get")
    assert len(said) >= 10
    for command in said:
        code = run(shlex.split(command)[1:])
        output = capsys.readouterr()
        assert code == 0, f"{command}\n{output.err}"
        if command.startswith("oppo scenario init"):
            # The one thing that a user changes in it before going on; here for the time it takes.
            path = tmp_path / "mine.yaml"
            text, changed = re.subn(r"(?m)^steps: \d+", f"steps: {FEW_STEPS}", path.read_text())
            assert changed == 1
            path.write_text(re.sub(r"(?m)^warmup_steps: \d+", "warmup_steps: 1", text))
    assert (tmp_path / "fit" / "scenario.yaml").is_file()
    assert (tmp_path / "sweep.html").stat().st_size > 10_000
    assert (tmp_path / "mine.parquet").is_file()


def test_the_python_of_the_readme_runs_as_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    for block in blocks:
        shown = run_cell(block, space)
    assert "image/png" in shown
    assert blocks[-1].count("\n") == 3, "a heat map is three lines"


def test_the_links_of_the_readme_lead_somewhere() -> None:
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
