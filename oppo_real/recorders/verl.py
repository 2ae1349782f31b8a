"""verl, recorded through its agent loop, the coroutine that makes one rollout.

    # recorded.yaml, for actor_rollout_ref.rollout.agent.agent_loop_config_path
    - name: recorded_single_turn
      _target_: oppo_real.recorders.verl.single_turn

with actor_rollout_ref.rollout.agent.default_agent_loop=recorded_single_turn, and OPPO_RECORD in the
environment of the workers. A loop of one's own: ``recorded(MyLoop)``. Seconds of the stages come from verl's
own log.
"""

import time
from typing import Any

from oppo_real.recorders.environment import recorder_of_process, unharmed
from oppo_sim.traces.masks import turns_of_mask
from oppo_sim.traces.recorder import Recorder


def recorded(loop_class: Any) -> Any:
    """A class like ``loop_class`` whose rollouts of training are recorded."""

    class RecordedLoop(loop_class):  # type: ignore[misc]
        async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
            started = time.time()
            output = await super().run(sampling_params, **kwargs)
            if _of_training(sampling_params, self.rollout_config):
                recorder = recorder_of_process("verl", first_step=1)
                with unharmed("verl", "a rollout"):
                    _tell(recorder, output, kwargs, int(self.rollout_config.response_length), started)
            return output

    return RecordedLoop


def single_turn(**arguments: Any) -> Any:
    """verl's single-turn agent loop, recorded."""
    from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

    return recorded(SingleTurnAgentLoop)(**arguments)


def tool_agent(**arguments: Any) -> Any:
    """verl's agent loop with tools, recorded."""
    from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop

    return recorded(ToolAgentLoop)(**arguments)


def _of_training(sampling_params: dict[str, Any], config: Any) -> bool:
    """verl does not tell a loop that it validates, but validates with parameters of its own."""
    names = ("temperature", "top_p", "top_k")
    return all(sampling_params.get(name) == getattr(config, name) for name in names)


def _tell(recorder: Recorder, output: Any, asked: dict[str, Any], most: int, started: float) -> None:
    first, last = (output.extra_fields.get(f"{which}_global_steps") for which in ("min", "max"))
    prompt = asked.get("uid", asked.get("index"))
    # verl times the calls of a rollout together; 0 where a loop does not.
    waited = float(getattr(output.metrics, "tool_calls", 0.0))
    turns = turns_of_mask(output.response_mask).columns(waited) if waited > 0 else {}
    recorder.rollout_finished(
        sum(output.response_mask),
        # verl's step g generates with the weights of step g - 1.
        step=None if first is None else int(first) + 1,
        prompt_length=len(output.prompt_ids),
        prompt_id=None if prompt is None else str(prompt),
        finish_reason="length" if len(output.response_ids) >= most else "stop",
        reward=None if output.reward_score is None else float(output.reward_score),
        started_at=started,
        finished_at=time.time(),
        head_version=None if first is None else int(first),
        tail_version=None if last is None else int(last),
        **turns,
    )
