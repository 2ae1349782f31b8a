"""What waits for tools change: step seconds of the shipped scenario agentic-a800x4, with the waits as logged
and with tools that answer at once, with KV kept during a call and without, for sequential and for 64 rollouts
more in flight.

    python experiments/agents/waits.py [--seeds 3]
"""

import argparse

from oppo_sim import columns as c
from oppo_sim.fast.choose import run_summary
from oppo_sim.runs.statistics import ratio_interval
from oppo_sim.scenario.build import build_parts, build_setup
from oppo_sim.scenario.load import load_scenario

SCENARIO = "agentic-a800x4"
MACHINES: dict[str, list[str]] = {
    "as logged": [],
    "as logged, KV cleared": ["rollout.clear_kv_cache_on_tool_call=true"],
    "tools answer at once": ["trace.tool_seconds_factor=0"],
}

POLICIES: dict[str, dict[str, int]] = {"sequential": {}, "inter": {"overcommit": 64}}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    print("| waits | sequential, s a step | gen | inter, Δ = 64 | speed-up | recomputed a step |")
    print("|---|---|---|---|---|---|")
    for name, overrides in MACHINES.items():
        scenario = load_scenario(SCENARIO, overrides)
        parts = build_parts(scenario)
        found: dict[str, list[dict[str, float]]] = {"sequential": [], "inter": []}
        for seed in seeds:
            for policy, settings in POLICIES.items():
                setup = build_setup(scenario, policy=policy, policy_settings=settings, seed=seed, parts=parts)
                sink, _ = run_summary(setup)
                columns = (c.TIMING_STEP, c.timing("gen"), c.TOKENS_RECOMPUTED)
                found[policy].append({column: sink.columns[column].mean for column in columns})
        means = {
            policy: {column: sum(row[column] for row in rows) / len(rows) for column in rows[0]}
            for policy, rows in found.items()
        }
        pairs = zip(found["sequential"], found["inter"], strict=True)
        ratios = [plain[c.TIMING_STEP] / more[c.TIMING_STEP] for plain, more in pairs]
        speedup, low, high = ratio_interval(ratios)
        one, two = means["sequential"], means["inter"]
        print(
            f"| {name} | {one[c.TIMING_STEP]:.1f} | {one[c.timing('gen')]:.1f} | {two[c.TIMING_STEP]:.1f} |"
            f" {speedup:.3f} ({low:.3f} to {high:.3f}) | {one[c.TOKENS_RECOMPUTED]:,.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
