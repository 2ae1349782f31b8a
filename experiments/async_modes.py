"""What the modes of ``async`` change on a shipped scenario: the table of results/async_modes/README.md.

python experiments/async_modes.py [--steps 60] [--seeds 3]
"""

import argparse
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from oppo_sim import columns as c
from oppo_sim.fast.choose import run_columns
from oppo_sim.scenario.build import build_setup
from oppo_sim.scenario.load import load_scenario

SCENARIO = "h200x8-vllm"
SEPARATE = ("placement.training=separate", "training.num_gpus=8")
MODES: dict[str, dict[str, Any]] = {
    "order of scores": {"train_order": "scored"},
    "oldest first (default)": {},
    "oldest first, strict": {"max_staleness_strategy": "wait"},
    "oldest first, KV kept": {"keep_kv": True},
    "updates wait for rollouts": {"partial_rollout": False},
}
BOUNDS = (1, 4)


def row(mode: str, bound: int, steps: int, seeds: int) -> str:
    """A row of the table: means over seeds, the largest staleness of any."""
    given = dict(MODES[mode])
    kv = "false" if given.pop("keep_kv", False) else "true"
    settings = [f"policy.{name}={str(value).lower()}" for name, value in given.items()]
    overrides = [*SEPARATE, f"rollout.clear_kv_cache_on_weight_sync={kv}", "policy=async"]
    overrides += [f"policy.max_staleness={bound}", *settings]
    runs = []
    for seed in range(seeds):
        setup = build_setup(load_scenario(SCENARIO, [*overrides, f"seed={seed}"]), steps=steps)
        runs.append(run_columns(setup).frame().iloc[setup.warmup_steps :])

    def mean(name: str) -> float:
        return fmean(float(table[name].mean()) for table in runs)

    step_s, stalest = mean(c.TIMING_STEP), max(int(table[c.STALENESS_MAX].max()) for table in runs)
    recomputed = mean(c.TOKENS_RECOMPUTED) / mean(c.TOKENS_DECODED)
    return (
        f"| {bound} | {mode} | {step_s:.1f} | {mean(c.STALENESS_MEAN):.2f} | {stalest} |"
        f" {mean(c.SPANS_MEAN):.2f} | {recomputed:.0%} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    print("| `max_staleness` | mode | s a step | staleness, mean | max | span, mean | recomputed / decoded |")
    print("|---|---|---|---|---|---|---|")
    for bound in BOUNDS:
        for mode in MODES:
            print(row(mode, bound, asked.steps, asked.seeds), flush=True)


if __name__ == "__main__":
    main()
