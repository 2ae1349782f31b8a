"""TRL's completions, a Parquet file a step."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from oppo_sim.traces.importers import import_log
from tests.import_cases import column, refused, simulated


def completions(step: int, **more: Any) -> pd.DataFrame:
    texts = ["x" * 40, "x" * 80, "x" * 120]
    return pd.DataFrame(
        {
            "step": step,
            "prompt": ["p" * 20, "p" * 20, "r" * 20],
            "completion": texts,
            "advantage": [0.1, -0.1, 0.0],
            **more,
        }
    )


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    folder = tmp_path / "completions"
    folder.mkdir()
    for step in (5, 10):
        completions(step, accuracy_reward=[1.0, 0.0, 1.0]).to_parquet(
            folder / f"completions_{step:05d}.parquet"
        )
    return folder


def test_text_is_counted(dump: Path, tmp_path: Path) -> None:
    frame, provenance = import_log("auto", dump, chars_per_token=4.0, max_response_length=30)
    assert provenance["framework"] == "trl"
    assert column(frame, "step") == [5, 5, 5, 10, 10, 10]
    assert column(frame, "response_length") == [10, 20, 30] * 2
    assert column(frame, "prompt_length") == [5] * 6
    assert column(frame, "finish_reason") == [None] * 6, "an estimate cannot tell"
    assert column(frame, "reward") == [1.0, 0.0, 1.0] * 2
    prompts = column(frame, "prompt_id")
    assert prompts[0] == prompts[1] != prompts[2]
    simulated(frame, provenance, tmp_path, sampling="by_step")


def test_steps_are_chosen_by_file(dump: Path) -> None:
    (dump / "completions_00007.parquet").write_bytes(b"PAR1 damaged")
    frame, _ = import_log("trl", dump, chars_per_token=4.0, steps=(8, 20))
    assert set(frame["step"]) == {10}
    message = refused("trl", dump, chars_per_token=4.0)
    assert "completions_00007.parquet is not a readable Parquet file" in message


def test_messages_and_several_rewards(tmp_path: Path) -> None:
    chat = [[{"role": "user", "content": "p" * 8}], [{"role": "user", "content": "q" * 8}]]
    answers = [[{"role": "assistant", "content": "x" * 16}], [{"role": "assistant", "content": "y" * 24}]]
    table = pd.DataFrame(
        {"step": 1, "prompt": chat, "completion": answers, "format": [1.0, 0.5], "accuracy": [0.0, 1.0]}
    )
    table.to_parquet(tmp_path / "completions_00001.parquet")
    frame, provenance = import_log("trl", tmp_path, chars_per_token=4.0)
    assert column(frame, "response_length") == [4, 6]
    assert column(frame, "prompt_length") == [2, 2]
    assert column(frame, "reward") == [None, None]
    assert any("format, accuracy" in note for note in provenance["notes"])
    frame, _ = import_log("trl", tmp_path, chars_per_token=4.0, fields={"reward": "accuracy"})
    assert column(frame, "reward") == [0.0, 1.0]


def test_bad_tables_are_named(tmp_path: Path) -> None:
    completions(1).drop(columns="completion").to_parquet(tmp_path / "completions_00001.parquet")
    assert "has no column 'completion'" in refused(
        "trl", tmp_path / "completions_00001.parquet", chars_per_token=4.0
    )
    completions(2).assign(completion=["a", None, "b"]).to_parquet(tmp_path / "completions_00002.parquet")
    assert "row 2: completion is empty but must be text" in refused(
        "trl", tmp_path / "completions_00002.parquet", chars_per_token=4.0
    )
    completions(3).iloc[:0].to_parquet(tmp_path / "completions_00003.parquet")
    assert "holds no rollouts" in refused("trl", tmp_path / "completions_00003.parquet", chars_per_token=4.0)
