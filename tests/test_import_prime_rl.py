"""prime-rl's traces: records of verifiers episodes."""

from pathlib import Path
from typing import Any

import pytest

from oppo_sim.errors import OppoError
from oppo_sim.fit.log.reading import read_step_log
from oppo_sim.traces.importers import import_log
from tests.import_cases import column, refused, simulated, write_lines


def node(prompt: int, sampled: int) -> dict[str, Any]:
    return {
        "token_ids": [1] * (prompt + sampled),
        "mask": [False] * prompt + [True] * sampled,
        "sampled": sampled > 0,
        "parent": None,
    }


def trace(*nodes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "id": "t1", "version": 1, "task": {"type": "T", "key": "k", "data": {}}, "agent": {"name": "agent", "trainable": True},
        "nodes": list(nodes), "calls": [{"finish_reason": "stop"}],
        "rewards": {"a": {"score": 1.0, "weight": 0.5}, "b": {"score": 2.0}, "c": None},
        "is_completed": True, "ok": True, **more,
    }  # fmt: skip


def episode(step: int, *traces: dict[str, Any], group: str = "g1") -> dict[str, Any]:
    work = {"type": "train", "step": step, "policy": {"start": step - 1, "end": step}}
    return {
        "id": "e",
        "env": {"id": "gsm8k"},
        "group": {"id": group},
        "run": {"type": "train", "id": "r", "work": work},
        "traces": list(traces),
        "ok": True,
    }


def test_sampled_tokens_are_counted(tmp_path: Path) -> None:
    root = tmp_path / "rollouts"
    cut = trace(node(10, 0), node(2, 30), calls=[{"finish_reason": "length"}])
    tools = trace(node(10, 20), node(15, 0), node(0, 5))
    failed = trace(node(10, 3), ok=False, errors=[{"type": "E", "message": "m"}], stop_condition="error")
    judge = trace(node(9, 9), agent={"name": "judge", "trainable": False})
    lost = trace(ok=False, errors=[{"type": "E", "message": "m"}], calls=[])
    whole = [episode(3, cut), episode(3, tools, judge), episode(3, failed, lost, group="g2")]
    write_lines(root / "step_3" / "train" / "all" / "traces.jsonl", whole)
    write_lines(root / "step_3" / "train" / "effective" / "traces.jsonl", whole[:1])
    write_lines(root / "step_3" / "eval" / "all" / "traces.jsonl", whole)
    write_lines(root / "step_4" / "train" / "effective" / "traces.jsonl", [episode(4, cut)])
    frame, provenance = import_log("auto", root)
    assert provenance["framework"] == "prime_rl"
    assert column(frame, "response_length") == [30, 25, 3, 30]
    assert column(frame, "prompt_length") == [12, 10, 10, 12]
    assert column(frame, "finish_reason") == ["length", "stop", "abort", "length"]
    assert column(frame, "step") == [3, 3, 3, 4]
    assert column(frame, "reward") == [2.5] * 4
    assert column(frame, "prompt_id") == ["g1", "g1", "g2", "g1"]
    assert column(frame, "head_version") == [2, 2, 2, 3]
    assert column(frame, "source") == ["prime_rl/gsm8k"] * 4
    assert provenance["files_left_out"] == {
        "file of an evaluation": 1,
        "file whose rollouts are in 'all' too": 1,
    }
    assert provenance["rows_left_out"] == {
        "trace of an agent that is not trained": 1,
        "trace that failed before any token": 1,
    }
    simulated(frame, provenance, tmp_path)


def test_usage_and_older_records(tmp_path: Path) -> None:
    usages = [{"prompt_tokens": 11, "completion_tokens": 20}, {"prompt_tokens": 40, "completion_tokens": 5}]
    called = trace(calls=[{"usage": usage, "finish_reason": "stop"} for usage in usages], rewards={})
    turns = [
        {"tokens": {"prompt_ids": [1] * 8, "completion_ids": [2] * 6}},
        {"tokens": {"prompt_ids": [1] * 20, "completion_ids": [2] * 4}},
    ]
    older = {"example_id": 7, "trajectory": turns, "reward": 0.5, "is_truncated": True}
    path = write_lines(tmp_path / "step_9" / "train" / "all" / "traces.jsonl", [episode(9, called), older])
    frame, _ = import_log("prime_rl", path)
    assert column(frame, "response_length") == [25, 10]
    assert column(frame, "prompt_length") == [11, 8]
    assert column(frame, "step") == [9, 9]
    assert column(frame, "finish_reason") == ["stop", "length"]
    assert column(frame, "reward") == [None, 0.5]


def test_bad_records_are_named(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    assert "line 1: there are no token ids" in refused("prime_rl", write_lines(path, [episode(1, trace())]))
    assert "line 1: traces is not a list" in refused("prime_rl", write_lines(path, [{"traces": {"a": 1}}]))
    path.write_text("")
    assert "holds no rollouts" in refused("prime_rl", path)
    metrics = write_lines(tmp_path / "metrics.jsonl", [{"step": 1, "seq_len/all/mean": 500.0}])
    assert "neither rollouts nor metrics" in refused("prime_rl", metrics)


def test_metrics_of_its_orchestrator(tmp_path: Path) -> None:
    """Rows of other metrics between them, as the trainer writes to a file of its own or to wandb's."""
    lines: list[dict[str, Any]] = []
    for step in (1, 2):
        tokens = {"mean": 400.0 * step, "max": 2048.0, "min": 12.0, "p10": 60.0, "p90": 900.0}
        figures = {f"train/agg/all/num_output_tokens/{name}": value for name, value in tokens.items()}
        figures |= {
            "train/agg/effective/num_output_tokens/mean": 1.0,
            "train/agg/all/num_input_tokens/mean": 90.0,
        }
        lines += [{"step": step, "time": 1.7e9, "perf/mfu": 30.0}, {"step": step, "time": 1.7e9, **figures}]
    frame, _ = import_log("prime_rl", write_lines(tmp_path / "metrics.jsonl", lines), rows_per_step=256)
    means = frame.groupby("step")["response_length"].mean()
    assert means.to_numpy() == pytest.approx([400.0, 800.0], rel=0.02)
    assert frame["response_length"].min() >= 12
    assert frame["response_length"].max() == 2048
    assert set(frame["prompt_length"]) == {90}


@pytest.mark.parametrize("middle", ["18.4s | Reward 0.3120 | Trainable 9/12 (75.0%)", "2m 3s | Loss -0.0012"])
def test_a_console_that_names_no_lengths_is_answered_with_the_file_that_does(
    middle: str, tmp_path: Path
) -> None:
    path = tmp_path / "console.log"
    path.write_text(
        f"12:00:00    INFO Starting\n12:00:20 SUCCESS \x1b[32mStep 1 | {middle:>9} | Error 0.0%\x1b[0m\n"
    )
    for source in ("auto", "prime_rl"):
        assert "prime-rl's console" in (said := refused(source, path, rows_per_step=8))
        assert "metrics.jsonl" in said
        with pytest.raises(OppoError, match=r"prime-rl's console, .* give the metrics.jsonl"):
            read_step_log(path, framework=source)
