"""slime's own samples, through its own loader of hooks, recorded; needs a checkout of slime, torch and httpx,
no GPU and no engine.

    PYTHONPATH=path/of/slime:. python experiments/recorders/record_slime.py
"""

import asyncio
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

from slime.rollout.sample_hooks import apply_rollout_sample_hooks
from slime.utils.misc import load_function
from slime.utils.types import Sample

from oppo_sim.traces.journal import read_journal
from oppo_sim.traces.journal_format import journal_of

LENGTHS = (6, 4, 9, 12)
ARGS = SimpleNamespace(
    reward_key=None,
    rollout_sample_hook_path=["oppo_real.recorders.slime.sample_finished"],
    custom_rollout_log_function_path="oppo_real.recorders.slime.log_rollout",
)


def sample(number: int, length: int) -> Sample:
    made = Sample(group_index=number // 2, index=number, tokens=[1] * (3 + length), response_length=length)
    made.weight_versions.append("7")
    made.status = Sample.Status.TRUNCATED if length == max(LENGTHS) else Sample.Status.COMPLETED
    return made


async def finished(samples: list[Sample]) -> list[Sample]:
    """As slime's ``generate_and_rm`` calls the hooks, before the reward; once more as it evaluates."""
    hooked = [await apply_rollout_sample_hooks(ARGS, each, evaluation=False) for each in samples]
    await apply_rollout_sample_hooks(ARGS, sample(99, 5), evaluation=True)
    return hooked


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["OPPO_RECORD"] = str(Path(folder) / "run")
        samples = asyncio.run(finished([sample(number, length) for number, length in enumerate(LENGTHS)]))
        for each in samples:
            each.reward = 0.5
        # As slime's log_rollout_data calls it.
        assert load_function(ARGS.custom_rollout_log_function_path)(0, ARGS, samples, {}, 2.5) is False
        trace = read_journal(journal_of(Path(folder) / "run")).as_trace()
    print(trace.to_string())
    assert sorted(trace["response_length"]) == sorted(LENGTHS)
    assert set(trace["prompt_length"]) == {3} and set(trace["reward"]) == {0.5}
    assert trace["finished_s"].notna().all() and set(trace["head_version"]) == {7}


if __name__ == "__main__":
    main()
