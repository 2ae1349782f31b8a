"""Requests of vLLM's asynchronous engine, which its server runs, recorded."""

import asyncio
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from oppo_real.recorders.environment import PER_STEP, REQUESTS
from oppo_sim.traces.journal import read_journal
from oppo_sim.traces.journal_format import journal_of


def test_every_request_of_the_engine_is_recorded(
    actor_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm import AsyncEngineArgs, SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

    from oppo_real.recorders.vllm import RequestRecorder

    monkeypatch.setenv(REQUESTS, str(tmp_path / "run"))
    monkeypatch.setenv(PER_STEP, "2")
    # As beside the engines that this project steps: without a further process for the worker.
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    arguments = AsyncEngineArgs(
        model=str(actor_folder),
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="float32",
        distributed_executor_backend="uni",
        kv_cache_memory_bytes=1 << 26,
        max_model_len=128,
    )

    # Where this package is installed, as in CI, the engine finds the recorder by itself.
    found = [point.load() for point in entry_points(group="vllm.stat_logger_plugins")]
    assert found in ([RequestRecorder], [])

    async def serve() -> None:
        engine = AsyncLLM.from_engine_args(arguments, stat_loggers=[] if found else [RequestRecorder])

        async def ask(number: int, tokens: int) -> Any:
            wanted = SamplingParams(max_tokens=tokens, min_tokens=tokens, ignore_eos=True, detokenize=False)
            prompt = {"prompt_token_ids": [5] * (3 + number)}
            async for answer in engine.generate(prompt, wanted, request_id=str(number)):
                last = answer
            return last

        try:
            await asyncio.gather(*(ask(number, 4 * (4 - number)) for number in range(4)))
        finally:
            engine.shutdown()

    asyncio.run(serve())
    trace = read_journal(journal_of(tmp_path / "run")).as_trace()
    # The shortest finish first, and two make a step.
    assert sorted(trace["response_length"]) == [4, 8, 12, 16]
    assert dict(zip(trace["response_length"], trace["prompt_length"], strict=True)) == {
        16: 3,
        12: 4,
        8: 5,
        4: 6,
    }
    assert set(trace[trace["step"] == 0]["response_length"]) == {4, 8}
    assert set(trace["finish_reason"]) == {"length"}
    assert (trace["finished_s"] > trace["admitted_s"]).all()
