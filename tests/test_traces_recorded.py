"""Recorded runs: workload and outcomes apart, checked on reading, never overwritten."""

import json
from pathlib import Path

import pandas as pd
import pytest

from oppo_sim.errors import OppoError
from oppo_sim.traces.opening import open_trace
from oppo_sim.traces.recorded import read_recorded_run, read_workload, split_trace, write_recorded_run
from oppo_sim.traces.schema import check_frame, content_hash

WORKLOAD = pd.DataFrame(
    {"rollout_id": [0, 1, 2], "prompt_id": ["a", "a", "b"], "step": [0, 0, 1], "prompt_length": [5, 5, 9]}
)
OUTCOMES = pd.DataFrame(
    {
        "rollout_id": [2, 0, 1],
        "response_length": [30, 10, 20],
        "finish_reason": "stop",
        "reward": [1.0, 0.0, 0.5],
        "gen_s": [3.0, 1.0, 2.0],
    }
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_recorded_run(tmp_path / "run", {"seed": 3, "versions": {"python": "3.11"}}, WORKLOAD, OUTCOMES)
    return tmp_path / "run"


def test_round_trip(run: Path) -> None:
    assert sorted(path.name for path in run.iterdir()) == [
        "manifest.json",
        "outcomes.parquet",
        "workload.parquet",
    ]
    assert [path.name for path in run.parent.iterdir()] == ["run"]
    read = read_recorded_run(run)
    assert read.manifest == {"seed": 3, "versions": {"python": "3.11"}}
    assert read.workload["rollout_id"].tolist() == read.outcomes["rollout_id"].tolist() == [0, 1, 2]
    trace = read.as_trace()
    assert trace["response_length"].tolist() == [10, 20, 30]
    assert trace["prompt_length"].tolist() == [5, 5, 9]
    assert trace["gen_s"].tolist() == [1.0, 2.0, 3.0]
    assert content_hash(open_trace(str(run)).frame) == content_hash(trace)


def test_the_workload_tells_nothing_of_the_outcomes(run: Path) -> None:
    (run / "outcomes.parquet").unlink()
    workload = read_workload(run)
    assert workload["prompt_length"].tolist() == [5, 5, 9]
    assert not {"response_length", "finish_reason", "reward", "gen_s"} & set(workload.columns)


def test_a_trace_splits_and_joins_again(tmp_path: Path) -> None:
    trace = check_frame(
        pd.DataFrame(
            {
                "response_length": [4, 5],
                "prompt_length": [1, 2],
                "finish_reason": ["stop", None],
                "prompt_id": "p",
            }
        )
    )
    workload, outcomes = split_trace(trace)
    assert list(workload.columns) == ["rollout_id", "prompt_id", "prompt_length"]
    write_recorded_run(tmp_path / "run", {}, workload, outcomes)
    assert content_hash(read_recorded_run(tmp_path / "run").as_trace()) == content_hash(trace)


@pytest.mark.parametrize("name", ["workload.parquet", "outcomes.parquet", "manifest.json"])
def test_missing_and_altered_files_are_noticed(name: str, run: Path) -> None:
    path = run / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
    with pytest.raises(OppoError, match=name):
        read_recorded_run(run)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(OppoError, match=name):
        read_recorded_run(run)
    path.unlink()
    with pytest.raises(OppoError, match=name):
        read_recorded_run(run)


def test_an_edited_manifest_is_noticed(run: Path) -> None:
    path = run / "manifest.json"
    sealed = json.loads(path.read_text())
    sealed["run"]["seed"] = 4
    path.write_text(json.dumps(sealed))
    with pytest.raises(OppoError, match="altered"):
        read_recorded_run(run)
    path.write_text(json.dumps({**sealed, "format": "oppo-recorded-run/2"}))
    with pytest.raises(OppoError, match="oppo-recorded-run/2"):
        read_recorded_run(run)


def test_files_of_another_run_are_noticed(run: Path, tmp_path: Path) -> None:
    write_recorded_run(tmp_path / "other", {}, WORKLOAD, OUTCOMES.assign(response_length=[1, 2, 3]))
    (run / "outcomes.parquet").write_bytes((tmp_path / "other" / "outcomes.parquet").read_bytes())
    with pytest.raises(OppoError, match=r"outcomes\.parquet was altered"):
        read_recorded_run(run)


def test_a_folder_that_exists_is_left_alone(run: Path) -> None:
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    with pytest.raises(OppoError, match="never overwritten"):
        write_recorded_run(run, {}, WORKLOAD, OUTCOMES)
    assert before == {path.name: path.read_bytes() for path in run.iterdir()}


@pytest.mark.parametrize(
    ("workload", "outcomes", "manifest", "said"),
    [
        (
            WORKLOAD.assign(response_length=1),
            OUTCOMES,
            {},
            "response_length, which is not known at admission",
        ),
        (WORKLOAD.assign(gen_s=1.0), OUTCOMES, {}, "gen_s, which is not known at admission"),
        (WORKLOAD.drop(columns="rollout_id"), OUTCOMES, {}, "no column rollout_id"),
        (WORKLOAD.assign(rollout_id=[0, 0, 1]), OUTCOMES, {}, "each once"),
        (WORKLOAD.iloc[:2], OUTCOMES, {}, "different rollouts"),
        (WORKLOAD, OUTCOMES.drop(columns="response_length"), {}, "no column response_length"),
        (WORKLOAD, OUTCOMES.assign(response_length=-1), {}, "negative"),
        (WORKLOAD, OUTCOMES.assign(prompt_length=1), {}, "repeat column prompt_length"),
        (WORKLOAD.assign(prompt_length=-1), OUTCOMES, {}, "negative"),
        (WORKLOAD, OUTCOMES, {"x": float("nan")}, "plain JSON"),
        (WORKLOAD, OUTCOMES, {"x": object()}, "plain JSON"),
    ],
)
def test_what_may_not_be_written(
    workload: pd.DataFrame, outcomes: pd.DataFrame, manifest: dict[str, object], said: str, tmp_path: Path
) -> None:
    with pytest.raises(OppoError, match=said):
        write_recorded_run(tmp_path / "run", manifest, workload, outcomes)
    assert not list(tmp_path.iterdir())


def test_no_run_at_all(tmp_path: Path) -> None:
    with pytest.raises(OppoError, match="no manifest"):
        read_recorded_run(tmp_path)
