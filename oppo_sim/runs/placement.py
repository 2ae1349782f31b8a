"""What costs of one split of the GPUs miss on another: one more unknown between splits, as a factor on all
seconds of a run."""

from collections.abc import Mapping
from math import exp
from typing import Final

from oppo_sim import columns as c
from oppo_sim.draws import draw_normal, stream_key
from oppo_sim.scenario.cluster import Split

PLACEMENT: Final = "placement"
"""As attributions call it, beside terms of the costs."""
PLACEMENT_SIGMA: Final = 0.16
"""Standard deviation of its logarithm.

Set from the 10 gains of another split that NVIDIA published of NeMo RL v0.4 and v0.5 (experiments/nemo_rl):
what log(predicted / measured) has in the root mean square beside what draws of the costs explain, 0.16
unfitted and 0.13 with one step observed; the larger is taken for both. Judged on what did not set it: the 4
gains of v0.6 and the 8 of experiments/slime_sweep. ``nemo_rl.py score`` computes it."""
_SECONDS: Final = frozenset(
    (
        *(c.RUN_SECONDS, c.S_PER_ROLLOUT, c.S_PER_TOKEN, c.GPU_HOURS_PER_1K_STEPS, c.TIME_TO_REWARD_S),
        *map(c.timing, (*c.STAGES, "step")),
    )
)
"""Totals of a run that grow with its seconds."""
_A_SECOND: Final = frozenset((c.TOKENS_PER_S, c.TOKENS_PER_S_PER_GPU))


def placement_factor(split: Split, base: Split, number: int, seed: int) -> float:
    """Factor on the seconds that draw ``number`` of the costs gives a run on ``split``; 1 on ``base``, which
    the costs describe. The same for all runs on one split, independent between splits."""
    if split == base:
        return 1.0
    return exp(PLACEMENT_SIGMA * draw_normal(stream_key(seed, f"{PLACEMENT}/{split}"), number))


def slower(totals: Mapping[str, float], factor: float) -> dict[str, float]:
    """Totals of a run all of whose seconds are ``factor`` times as long."""
    return {
        name: value * factor if name in _SECONDS else value / factor if name in _A_SECOND else value
        for name, value in totals.items()
    }
