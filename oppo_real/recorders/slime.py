"""slime, recorded through two of its function paths.

    --custom-rollout-log-function-path oppo_real.recorders.slime.log_rollout
    --rollout-sample-hook-path oppo_real.recorders.slime.sample_finished

with OPPO_RECORD in the environment. The first writes every sample of the batch down, and the seconds of
generation with its rewards; the second, where a version of slime has it, adds when each finished. Seconds of
the other stages come from slime's own log.
"""

import time
from collections.abc import Iterator
from typing import Any, Final

from oppo_real.recorders.environment import known, recorder_of_process, unharmed
from oppo_sim.columns import TURN_LENGTHS
from oppo_sim.traces.masks import turns_of_mask
from oppo_sim.traces.recorder import Recorder

FINISHED_AT: Final = "oppo_finished_at"
_REASONS: Final = {"completed": "stop", "truncated": "length", "aborted": "abort", "failed": "abort"}


def sample_finished(args: Any, sample: Any, evaluation: bool = False) -> None:
    """A hook for samples: notes when a response was complete."""
    if not evaluation and sample.status.value in ("completed", "truncated"):
        with unharmed("slime", "when a sample finished"):
            sample.metadata[FINISHED_AT] = time.time()


def log_rollout(rollout_id: int, args: Any, samples: Any, extra_metrics: Any, rollout_time: float) -> bool:
    """Record the batch of training step ``rollout_id``. Returns False: slime's own log goes on."""
    recorder = recorder_of_process("slime")
    ended = time.time()
    with unharmed("slime", "a batch"):
        recorder.start_step(rollout_id)
        with unharmed("slime", "seconds of the generation"):
            recorder.stage("gen+reward", rollout_time)
        for sample in _each(samples):
            with unharmed("slime", "a sample"):
                _tell(recorder, args, sample, ended - rollout_time)
    return False


def _tell(recorder: Recorder, args: Any, sample: Any, began: float) -> None:
    versions = [int(version) for version in sample.weight_versions or () if str(version).isdecimal()]
    metadata = sample.metadata or {}
    finished = metadata.get(FINISHED_AT)
    carried = "start_rollout_id" in metadata
    turns = known("slime", "turns", lambda: _turns(sample)) or {}
    recorder.rollout_finished(
        sum(turns[TURN_LENGTHS]) if turns else sample.response_length,
        prompt_length=len(sample.tokens) - sample.response_length,
        prompt_id=sample.group_index,
        sample_id=sample.index,
        finish_reason=_REASONS.get(sample.status.value),
        reward=known("slime", "a reward", lambda: _reward(args, sample)),
        started_at=None if finished is None or carried else min(finished, began),
        finished_at=finished,
        head_version=versions[0] if versions else None,
        tail_version=versions[-1] if versions else None,
        **turns,
    )


def _reward(args: Any, sample: Any) -> float | None:
    return None if sample.reward is None else float(sample.get_reward_value(args))


def _turns(sample: Any) -> dict[str, Any]:
    """Columns of turns: of a sample whose tools were timed, where its mask says which tokens were theirs."""
    mask, waited = getattr(sample, "loss_mask", None), getattr(sample, "non_generation_time", 0.0)
    if mask is None or len(mask) != sample.response_length or not waited > 0:
        return {}
    return turns_of_mask(mask).columns(float(waited))


def _each(samples: Any) -> Iterator[Any]:
    for sample in samples:
        if isinstance(sample, list):
            yield from _each(sample)
        else:
            yield sample
