"""The rollout summaries of Tinker's cookbook."""

from pathlib import Path
from typing import Any

from oppo_sim.traces.importers import import_log
from tests.import_cases import column, refused, simulated, write_lines


def summary(iteration: int, group: int, sample: int, *turns: tuple[int, int], **more: Any) -> dict[str, Any]:
    """``turns``: tokens of the observation, all before it included, and of the action."""
    steps = [
        {"step_idx": n, "ob_len": seen, "ac_len": made, "reward": 0.0, "episode_done": n + 1 == len(turns),
         "stop_reason": "stop", "metrics": {}, "logs": {}}
        for n, (seen, made) in enumerate(turns)
    ]  # fmt: skip
    return {
        "schema_version": 1, "split": "train", "iteration": iteration, "group_idx": group, "traj_idx": sample,
        "tags": ["gsm8k"], "sampling_client_step": iteration, "total_reward": 0.5, "final_reward": 0.5,
        "trajectory_metrics": {}, "steps": steps, "final_ob_len": 0, **more,
    }  # fmt: skip


def run(folder: Path, *records: dict[str, Any]) -> Path:
    for record in records:
        place = folder / f"iteration_{record['iteration']:06d}"
        place.mkdir(parents=True, exist_ok=True)
        with (place / "train_rollout_summaries.jsonl").open("a") as file:
            file.write(write_lines(folder / "line.json", [record]).read_text())
    (folder / "line.json").unlink()
    return folder


def test_every_trajectory_is_a_rollout(tmp_path: Path) -> None:
    cut = summary(1, 0, 1, (40, 64))
    cut["steps"][0]["stop_reason"] = "length"
    path = run(
        tmp_path / "run",
        summary(0, 0, 0, (40, 12)), summary(0, 0, 1, (40, 30)), summary(0, 1, 0, (55, 7)), cut,
    )  # fmt: skip
    write_lines(
        path / "iteration_000000" / "eval_test_rollout_summaries.jsonl",
        [summary(0, 0, 0, (9, 9), split="eval/test"), summary(0, 0, 0)],
    )
    frame, provenance = import_log("auto", path)
    assert provenance["framework"] == "tinker"
    assert column(frame, "response_length") == [12, 30, 7, 64]
    assert column(frame, "prompt_length") == [40, 40, 55, 40]
    assert column(frame, "step") == [0, 0, 0, 1]
    assert column(frame, "prompt_id") == ["0", "0", "1", "0"]
    assert column(frame, "finish_reason") == ["stop", "stop", "stop", "length"]
    assert column(frame, "reward") == [0.5] * 4
    assert column(frame, "head_version") == [0, 0, 0, 1]
    assert provenance["rows_left_out"] == {"rollout of an evaluation": 1, "rollout without an action": 1}
    assert provenance["measured"] is True
    simulated(frame, provenance, tmp_path, sampling="by_step")


def test_turns_are_known_where_an_observation_holds_those_before_it(tmp_path: Path) -> None:
    several = summary(0, 0, 0, (40, 10), (60, 20), (80, 5))  # 10 tokens answer, then none
    path = run(tmp_path / "run", several, summary(0, 0, 1, (40, 10), (45, 20)))
    frame, provenance = import_log("tinker", path, tool_seconds=2.0)
    assert column(frame, "response_length") == [35, 30]
    turns, waits, answers = (
        frame[name][0] for name in ("turn_response_lengths", "tool_seconds", "tool_tokens")
    )
    assert (list(turns), list(waits), list(answers)) == ([10, 25], [2.0], [10])
    assert "does not hold the turns before it" in str(provenance["notes"])


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x.jsonl", [{"iteration": 1, "group_idx": 0, "traj_idx": 0, "steps": 3}])
    assert "x.jsonl, line 1: there is no list of steps" in refused("tinker", path)
    bad = summary(0, 0, 0, (40, 10))
    bad["steps"][0]["ac_len"] = "many"
    assert "steps.ac_len" in refused("tinker", write_lines(tmp_path / "y.jsonl", [bad]))
