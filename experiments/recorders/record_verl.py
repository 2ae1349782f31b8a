"""verl's own single-turn agent loop, recorded, over a server that answers at once; needs verl, ray and
tensordict, no GPU. Checks that what was recorded is what the loop gave back.

    PYTHONPATH=. python experiments/recorders/record_verl.py
"""

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

import hydra
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, DictConfigWrap, ToolListWrap
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.rollout.replica import TokenOutput

from oppo_sim.traces.journal import read_journal
from oppo_sim.traces.journal_format import journal_of
from tests.real_trl import toy

MOST = 24
TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


class Server:
    """verl's server client as an agent loop sees it."""

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: Any, **_: Any
    ) -> Any:
        tokens = [5] * min(prompt_ids[-1], MOST)
        await asyncio.sleep(0.001 * len(tokens))
        versions = {"global_steps": 4, "min_global_steps": 4, "max_global_steps": 5}
        return TokenOutput(token_ids=tokens, log_probs=[-1.0] * len(tokens), extra_fields=versions)


async def made(temperature: float) -> list[AgentLoopOutput]:
    rollout = {
        "prompt_length": 16,
        "response_length": MOST,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
    }
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": {}})
    tokenizer = toy.spaced_tokenizer()
    tokenizer.chat_template = TEMPLATE
    # As AgentLoopWorker makes one, from an entry of agent_loop_config_path.
    entry = OmegaConf.create({"name": "recorded", "_target_": "oppo_real.recorders.verl.single_turn"})
    loops = [
        hydra.utils.instantiate(
            config=entry,
            trainer_config=DictConfigWrap(config=config),
            server_manager=Server(),
            tokenizer=tokenizer,
            processor=None,
            hf_model_type=None,
            dataset_cls=RLHFDataset,
            data_config=DictConfigWrap(config.data),
            tools=ToolListWrap([]),
        )
        for _ in range(4)
    ]
    asked = {
        "temperature": temperature,
        "top_p": 1.0,
        "top_k": -1,
        "repetition_penalty": 1.0,
        "logprobs": True,
    }
    prompts = [[{"role": "user", "content": f"t4 t{length}"}] for length in (6, 9, 12, 23)]
    return await asyncio.gather(
        *(
            loop.run(dict(asked), raw_prompt=prompt, uid=f"prompt-{number}", index=number)
            for number, (loop, prompt) in enumerate(zip(loops, prompts, strict=True))
        )
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["OPPO_RECORD"] = str(Path(folder) / "run")
        outputs = asyncio.run(made(temperature=1.0))
        asyncio.run(made(temperature=0.0))  # as verl validates: not recorded
        trace = read_journal(journal_of(Path(folder) / "run")).as_trace()
    by_prompt = trace.set_index("prompt_id")
    for number, output in enumerate(outputs):
        row = by_prompt.loc[f"prompt-{number}"]
        assert row["response_length"] == sum(output.response_mask), (row, output)
        assert row["prompt_length"] == len(output.prompt_ids), (row, output)
    assert len(trace) == len(outputs)
    assert set(trace["step"]) == {5}
    print(trace.to_string())


if __name__ == "__main__":
    main()
