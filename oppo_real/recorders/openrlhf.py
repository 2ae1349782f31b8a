"""OpenRLHF, recorded through its agent executor, the class that generates and scores one rollout.

    # agent.py, for --train.agent_func_path agent.py
    from openrlhf.utils.agent import SingleTurnAgentExecutor
    from oppo_real.recorders.openrlhf import recorded

    AgentExecutor = recorded(SingleTurnAgentExecutor, remote_rm_url=["reward.py"])

with OPPO_RECORD and OPPO_RECORD_ROLLOUTS_PER_STEP in the environment: an executor is not told the step.
Seconds of the stages come from OpenRLHF's own log.
"""

import hashlib
import time
from typing import Any

from oppo_real.recorders.environment import recorder_of_process, unharmed
from oppo_sim.traces.recorder import Recorder


class _Clocked:
    """The engine, and when it last gave an answer."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.answered_at: float | None = None

    async def generate(self, *args: Any, **kwargs: Any) -> Any:
        answer = await self._engine.generate(*args, **kwargs)
        self.answered_at = time.time()
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def recorded(executor_class: Any, **arguments: Any) -> Any:
    """A class like ``executor_class`` whose rollouts are recorded. ``arguments``: for its constructor, which
    OpenRLHF calls without any."""

    class RecordedExecutor(executor_class):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(**arguments)

        async def execute(self, prompt: Any, *args: Any, llm_engine: Any, **kwargs: Any) -> Any:
            engine, started = _Clocked(llm_engine), time.time()
            output = await super().execute(prompt, *args, llm_engine=engine, **kwargs)
            if output is not None:
                recorder = recorder_of_process("openrlhf", first_step=1)
                with unharmed("openrlhf", "a rollout"):
                    _tell(recorder, prompt, output, started, engine.answered_at)
            return output

    return RecordedExecutor


def _tell(
    recorder: Recorder, prompt: Any, output: dict[str, Any], started: float, answered_at: float | None
) -> None:
    spans = output["action_ranges"]
    reward = output.get("reward")
    recorder.rollout_finished(
        sum(end - start for start, end in spans),
        prompt_length=spans[0][0] if spans else len(output["observation_tokens"]),
        prompt_id=hashlib.sha256(str(prompt).encode()).hexdigest()[:16],
        finish_reason="length" if output.get("truncated") else "stop",
        reward=None if reward is None else float(reward[0] if isinstance(reward, list) else reward),
        started_at=started,
        finished_at=answered_at,
    )
