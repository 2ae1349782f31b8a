"""Recorders of frameworks that are not installed here, on what those frameworks give their hooks."""

import asyncio
import subprocess
import sys
from dataclasses import dataclass, field
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from oppo_real.recorders import environment, slime, verl
from oppo_real.recorders.environment import FIRST_STEP, FOLDER, PER_STEP, REQUESTS, recorder_of_process
from oppo_sim.errors import OppoError
from oppo_sim.traces.journal import read_journal
from oppo_sim.traces.journal_format import journal_of


class Status(Enum):
    """Of slime's ``Sample``."""

    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass
class Sample:
    """The fields of slime's ``Sample`` that its hooks are given, with its defaults."""

    group_index: int | None = None
    index: int | None = None
    tokens: list[int] = field(default_factory=list)
    response_length: int = 0
    reward: Any = None
    weight_versions: list[str] = field(default_factory=list)
    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    loss_mask: list[int] | None = None
    non_generation_time: float = 0.0

    def get_reward_value(self, args: Any) -> float:
        return self.reward[args.reward_key] if args.reward_key else self.reward


def test_slime_through_its_sample_hook_and_its_rollout_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "run"))
    args = SimpleNamespace(reward_key="score")
    for step in (0, 1):
        group = [
            Sample(step, 2 * step, [1] * 9, 6, {"score": 1.0}, ["3", "4"], Status.COMPLETED),
            Sample(step, 2 * step + 1, [1] * 7, 4, {"score": 0.0}, [], Status.TRUNCATED),
        ]
        for sample in group:
            assert slime.sample_finished(args, sample, evaluation=False) is None
        slime.sample_finished(args, Sample(status=Status.COMPLETED), evaluation=True)
        # A function that fans out makes several samples of one: they come as a list in the list.
        assert slime.log_rollout(step, args, [group[0], [group[1]]], {"a": 1.0}, 2.5) is False
    run = read_journal(journal_of(tmp_path / "run"))
    trace = run.as_trace()
    assert trace["step"].tolist() == [0, 0, 1, 1]
    assert trace["response_length"].tolist() == [6, 4, 6, 4]
    assert trace["prompt_length"].tolist() == [3] * 4
    assert trace["finish_reason"].tolist() == ["stop", "length"] * 2
    assert trace["reward"].tolist() == [1, 0, 1, 0]
    assert trace["head_version"].tolist()[0] == 3
    assert trace["tail_version"].tolist()[0] == 4
    assert trace["prompt_id"].tolist() == ["0", "0", "1", "1"]
    assert trace["finished_s"].notna().all()
    assert run.steps is not None
    assert run.steps["timing_s/gen+reward"].tolist() == [2.5, 2.5]


def test_slime_with_tools_that_were_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "run"))
    mask = [1, 1, 0, 0, 0, 1]
    timed = Sample(0, 0, [1] * 9, 6, 1.0, loss_mask=mask, non_generation_time=1.5, status=Status.COMPLETED)
    untimed = Sample(0, 1, [1] * 9, 6, 1.0, loss_mask=mask, status=Status.COMPLETED)
    slime.log_rollout(0, SimpleNamespace(reward_key=None), [timed, untimed], {}, 2.5)
    trace = read_journal(journal_of(tmp_path / "run")).as_trace()
    assert trace["response_length"].tolist() == [3, 6]
    assert trace["prompt_length"].tolist() == [3, 3]
    assert [list(each) for each in trace["turn_response_lengths"]] == [[2, 1], [6]]
    assert [list(each) for each in trace["tool_seconds"]] == [[1.5], []]
    assert [list(each) for each in trace["tool_tokens"]] == [[3], []]


def test_odd_samples_of_slime_end_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "run"))
    monkeypatch.setattr(environment, "_WARNED", set())
    args: Any = SimpleNamespace(reward_key=None)
    nothing: Any = None
    samples = [
        Sample(0, 0, [1] * 9, 4, {"score": 1.0}, status=Status.COMPLETED),
        Sample(0, 1, [1] * 9, 5, {"score": 1.0}, status=Status.COMPLETED),
        Sample(0, 2, [1] * 9, 6, 0.5, status=Status.COMPLETED, metadata=nothing),
        Sample(0, 3, nothing, 7, 0.5, status=Status.COMPLETED),
    ]
    with pytest.warns(UserWarning, match="leaves") as told:
        for sample in samples:
            slime.sample_finished(args, sample)
        assert slime.log_rollout(0, args, samples, {}, 2.5) is False
    assert [str(each.message).split(" where")[0].split("leaves out ")[1] for each in told] == [
        "when a sample finished",
        "a reward",
        "a sample",
    ]
    trace = read_journal(journal_of(tmp_path / "run")).as_trace().sort_values("response_length")
    assert trace["response_length"].tolist() == [4, 5, 6]
    assert trace["reward"].isna().tolist() == [True, True, False]
    assert trace["finished_s"].isna().tolist() == [False, False, True]


def test_odd_requests_of_vllm_end_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loggers: Any = ModuleType("vllm.v1.metrics.loggers")
    loggers.StatLoggerBase = object
    for name in ("vllm", "vllm.v1", "vllm.v1.metrics"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "vllm.v1.metrics.loggers", loggers)
    monkeypatch.delitem(sys.modules, "oppo_real.recorders.vllm", raising=False)
    monkeypatch.setenv(REQUESTS, str(tmp_path / "run"))
    monkeypatch.setattr(environment, "_WARNED", set())
    recorder = import_module("oppo_real.recorders.vllm").RequestRecorder(None)
    monkeypatch.delitem(sys.modules, "oppo_real.recorders.vllm")

    def request(tokens: int, prompt: Any, seconds: float) -> Any:
        return SimpleNamespace(
            num_generation_tokens=tokens,
            num_prompt_tokens=prompt,
            finish_reason="stop",
            e2e_latency=seconds,
        )

    finished = [request(4, 3, 0.5), request(5, 3, -0.2), request(6, 3, -0.1), request(7, "many", 0.5)]
    with pytest.warns(UserWarning, match="leaves") as told:
        recorder.record(None, SimpleNamespace(finished_requests=finished))
    assert len(told) == 2  # of the clock that was set back, of the request without a length
    trace = read_journal(journal_of(tmp_path / "run")).as_trace().sort_values("response_length")
    assert trace["response_length"].tolist() == [4, 5, 6]
    assert trace["admitted_s"].isna().tolist() == [False, True, True]


def test_verl_through_an_agent_loop_with_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "run"))
    asked = {"temperature": 1.0, "top_p": 1.0, "top_k": -1}

    class Loop:
        """What verl's base class has of it."""

        rollout_config = SimpleNamespace(**asked, response_length=10)

        async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
            mask = kwargs["mask"]
            return SimpleNamespace(
                prompt_ids=[1] * 4,
                response_ids=[2] * len(mask),
                response_mask=mask,
                reward_score=0.5,
                metrics=SimpleNamespace(generate_sequences=1.0, tool_calls=kwargs["waited"]),
                extra_fields={"min_global_steps": 2, "max_global_steps": 3},
            )

    loop = verl.recorded(Loop)()
    for mask, waited in (([1, 1, 0, 1, 0, 0, 1], 0.8), ([1] * 10, 0.0), ([1, 0, 1], 0.0)):
        asyncio.run(loop.run(asked, uid="a", mask=mask, waited=waited))
    asyncio.run(loop.run({**asked, "temperature": 0.0}, uid="b", mask=[1], waited=0.0))  # it validates
    trace = read_journal(journal_of(tmp_path / "run")).as_trace()
    rows = sorted(zip(trace["response_length"], trace["turn_response_lengths"].map(list), strict=True))
    assert rows == [(2, [2]), (4, [2, 1, 1]), (10, [10])]
    waits = trace[trace["response_length"] == 4].iloc[0]
    assert (list(waits["tool_seconds"]), list(waits["tool_tokens"])) == ([0.4, 0.4], [1, 2])
    assert trace["step"].tolist() == [3] * 3
    assert sorted(trace["finish_reason"]) == ["length", "stop", "stop"]


OPENRLHF = """
import asyncio, sys, time
from oppo_real.recorders.openrlhf import recorded

class Executor:
    async def execute(self, prompt, llm_engine):
        await llm_engine.generate(prompt)
        return {"action_ranges": [(2, 2 + int(prompt))], "observation_tokens": [], "reward": 1.0}

class Engine:
    async def generate(self, prompt): return prompt

for length in sys.argv[1:]:
    asyncio.run(recorded(Executor)().execute(length, llm_engine=Engine()))
"""


def test_openrlhf_from_its_first_step_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "run"))
    monkeypatch.setenv(PER_STEP, "2")

    def lengths() -> dict[int, list[int]]:
        trace = read_journal(journal_of(tmp_path / "run")).as_trace()
        return {int(step): rows["response_length"].tolist() for step, rows in trace.groupby("step")}

    def record(*rollouts: int) -> None:
        subprocess.run([sys.executable, "-c", OPENRLHF, *map(str, rollouts)], check=True)

    record(10, 11, 20, 21, 30)  # stopped in step 3
    assert lengths() == {1: [10, 11], 2: [20, 21]}
    record(31, 32, 40, 41)
    assert lengths() == {1: [10, 11], 2: [20, 21], 3: [31, 32], 4: [40, 41]}
    monkeypatch.setenv(FIRST_STEP, "2")  # from an older checkpoint
    record(22, 23, 33, 34)
    assert lengths() == {1: [10, 11], 2: [22, 23], 3: [33, 34]}
    left_out = read_journal(journal_of(tmp_path / "run")).manifest["left_out"]
    assert left_out == {
        "rollout that fills no step": 1,
        "rollout of a step that was started again, as after a restart": 6,
    }


def test_without_a_folder_in_the_environment_a_hook_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    with pytest.raises(OppoError, match="set OPPO_RECORD to the folder"):
        recorder_of_process("verl")
    monkeypatch.setenv(FOLDER, "somewhere")
    monkeypatch.setenv(FIRST_STEP, "-1")
    with pytest.raises(OppoError, match="OPPO_RECORD_FIRST_STEP=-1 is no step"):
        recorder_of_process("verl")
    monkeypatch.setenv(PER_STEP, "many")
    with pytest.raises(OppoError, match="OPPO_RECORD_ROLLOUTS_PER_STEP=many is no number"):
        recorder_of_process("verl")
