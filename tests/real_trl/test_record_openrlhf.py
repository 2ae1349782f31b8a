"""OpenRLHF's own agent executor over an engine that answers at once, recorded."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oppo_real.recorders.environment import FOLDER, PER_STEP
from oppo_real.recorders.openrlhf import recorded
from oppo_sim.traces.journal import read_journal
from oppo_sim.traces.journal_format import journal_of
from tests.real_trl import toy

REWARD = """
import torch

def reward_func(queries, prompts, labels):
    return {"rewards": torch.tensor([float(len(queries[0].split()))])}
"""


class Engine:
    """Answers with as many tokens as the prompt's last word says, at most what it is asked for."""

    lora = "kept"

    async def generate(self, prompt_ids: list[int], params: Any, multi_modal_data: Any = None) -> Any:
        tokens = [5] * min(prompt_ids[-1], params.max_tokens)
        cut = len(tokens) == params.max_tokens
        await asyncio.sleep(0.001 * len(tokens))
        output = SimpleNamespace(
            token_ids=tokens, text="", logprobs=None, finish_reason="length" if cut else "stop"
        )
        return SimpleNamespace(outputs=[output])


def test_every_execution_is_a_rollout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from openrlhf.utils.agent import AgentExecutorBase, SingleTurnAgentExecutor

    monkeypatch.setenv(FOLDER, str(tmp_path / "run"))
    monkeypatch.setenv(PER_STEP, "3")
    (tmp_path / "reward.py").write_text(REWARD)
    executor_class = recorded(SingleTurnAgentExecutor, remote_rm_url=[str(tmp_path / "reward.py")])
    # As OpenRLHF's _load_agent_executor asks and calls.
    assert issubclass(executor_class, AgentExecutorBase)
    executor = executor_class()

    async def generate() -> list[dict[str, Any]]:
        return await asyncio.gather(
            *(
                executor.execute(
                    prompt=f"t3 t{length}",
                    label="",
                    sampling_params=SimpleNamespace(max_tokens=20, logprobs=None),
                    max_length=64,
                    hf_tokenizer=toy.spaced_tokenizer(),
                    llm_engine=Engine(),
                    images=None,
                )
                for length in (6, 4, 23, 8, 10, 12)
            )
        )

    outputs = asyncio.run(generate())
    assert outputs[0]["action_ranges"] == [(2, 8)]
    trace = read_journal(journal_of(tmp_path / "run")).as_trace()
    lengths = dict(zip(trace["response_length"], trace["step"], strict=True))
    # In the order in which they finished, from OpenRLHF's "Global step 1" on.
    assert lengths == {4: 1, 6: 1, 8: 1, 10: 2, 12: 2, 20: 2}
    rows = trace.set_index("response_length")
    assert rows["finish_reason"].to_dict() == {
        4: "stop",
        6: "stop",
        8: "stop",
        10: "stop",
        12: "stop",
        20: "length",
    }
    assert rows["reward"].to_dict() == {length: 2.0 + length for length in lengths}
    assert set(rows["prompt_length"]) == {2}
    assert rows["prompt_id"].nunique() == 6
    assert (rows["finished_s"] - rows["admitted_s"] >= 0.001 * rows.index).all()
