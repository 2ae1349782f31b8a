"""How often an exploration of the chunk size ends at the best, and what it costs: the table of
results/chunk_exploration/README.md.

python experiments/chunk_exploration.py [--steps 600] [--seeds 40]
"""

import argparse
import sys
from pathlib import Path
from statistics import fmean
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from oppo_sim import columns as c
from oppo_sim.fast.choose import run_columns
from oppo_sim.scenario.build import build_setup
from oppo_sim.scenario.load import load_scenario
from oppo_sim.scenario.yaml_text import show_value

SCENARIOS: Final = ("paper-stackexchange-7b", "paper-gsm8k-7b", "paper-opencoder-3b")
CANDIDATES: Final = (128, 256, 512)
POLICY: Final = {"name": "oppo", "stop_check": "chunk", "overcommit": 0.0625}
"""Rounds, as the paper's: there the chunk size decides how long a step waits. Δ is fixed: no rewards."""
CONTROLS: Final[dict[str, dict[str, Any]]] = {
    "`explore`, 1 step each every 50: the paper": {"control": "explore"},
    "`explore`, 5 steps each every 50": {"control": "explore", "explore_steps": 5},
    "`explore`, 20 steps each every 200": {"control": "explore", "explore_steps": 20, "explore_every": 200},
    "`race`, to 20 steps each every 200: default": {"control": "race"},
}


def run(scenario: str, chunk_size: Any, seed: int, steps: int) -> tuple[float, list[int]]:
    """Seconds a trained token of a run, and the chunk size of each step."""
    policy = show_value({**POLICY, "chunk_size": chunk_size}, 1000)
    given = [f"policy={policy}", "rewards={kind: none}", "warmup_steps=0", f"seed={seed}"]
    setup = build_setup(load_scenario(scenario, given), steps=steps)
    table = run_columns(setup).frame()
    return float(table[c.TIMING_STEP].sum() / table[c.TOKENS_TRAINED].sum()), table[c.CHUNK_SIZE].tolist()


def rows(scenario: str, steps: int, seeds: int) -> list[str]:
    """Rows of the table of one scenario."""
    fixed = {size: [run(scenario, size, seed, steps)[0] for seed in range(seeds)] for size in CANDIDATES}
    best = min(CANDIDATES, key=lambda size: fmean(fixed[size]))
    worse = ", ".join(
        f"{size}: {fmean(fixed[size]) / fmean(fixed[best]) - 1:+.1%}" for size in CANDIDATES if size != best
    )
    found = []
    for name, control in CONTROLS.items():
        every = control.get("explore_every", 50 if control["control"] == "explore" else 200)
        paces, ends, there = [], [], []
        for seed in range(seeds):
            pace, sizes = run(scenario, {**control, "candidates": list(CANDIDATES)}, seed, steps)
            kept = sizes[every - 1 :: every]
            paces.append(pace / fixed[best][seed])
            ends += [size == best for size in kept]
            there.append(fmean(size == best for size in sizes))
        found.append(
            f"| {scenario} | {best} ({worse}) | {name} | {fmean(ends):.0%} of {len(ends)} |"
            f" {fmean(there):.0%} | {fmean(paces) - 1:+.1%} |"
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=40)
    asked = parser.parse_args()
    print("| scenario | best (others slower by) | control | ends at the best | steps at it | time lost |")
    print("|---|---|---|---|---|---|")
    for scenario in SCENARIOS:
        print("\n".join(rows(scenario, asked.steps, asked.seeds)), flush=True)


if __name__ == "__main__":
    main()
