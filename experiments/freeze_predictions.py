"""The frozen predictions of the shipped scenarios: what the gate in the tests compares with.

python experiments/freeze_predictions.py           # old against new, nothing is written
python experiments/freeze_predictions.py --write   # accept the new ones (say why in the commit)
"""

import json
import sys
from math import isclose, isnan
from pathlib import Path

from oppo_sim.columns import (
    CHUNK_SIZE,
    OVERCOMMIT,
    ROLLOUTS_DEFERRED,
    STALENESS_MEAN,
    TIMING_STEP,
    TOKENS_TRAINED,
    timing,
)
from oppo_sim.scenario.load import load_scenario, shipped_scenarios
from oppo_sim.simulation import simulate

FROZEN = Path(__file__).resolve().parent.parent / "tests" / "frozen_predictions.json"
STEPS = 12
POLICIES = (
    "sequential",
    "rollout-overlap",
    "intra",
    "inter",
    "oppo",
    "partial-rollout",
    "april",
    "tail-batching",
    "oracle",
)
COLUMNS = (
    TIMING_STEP,
    timing("gen"),
    timing("reward"),
    timing("update_actor"),
    STALENESS_MEAN,
    ROLLOUTS_DEFERRED,
    TOKENS_TRAINED,
    OVERCOMMIT,
    CHUNK_SIZE,
)


def predictions() -> dict[str, dict[str, dict[str, float]]]:
    """scenario → policy → column → mean over the first steps."""
    result: dict[str, dict[str, dict[str, float]]] = {}
    for name in shipped_scenarios():
        scenario = load_scenario(name, ["warmup_steps=0"])
        policies = [
            *POLICIES,
            *(["one-step-off", "async"] if scenario.placement.training == "separate" else []),
        ]
        if scenario.dynamic_sampling.enable:
            policies.remove("oracle")  # refused
        of = result[name] = {}
        for policy in policies:
            steps = simulate(scenario, policy=policy, steps=STEPS, keep_rollouts=False).steps
            of[policy] = {column: float(steps[column].mean()) for column in COLUMNS}
    return result


def differences(
    old: dict[str, dict[str, dict[str, float]]], new: dict[str, dict[str, dict[str, float]]], tolerance: float
) -> list[str]:
    """One line for each prediction that moved by more than ``tolerance`` (relative), appeared or went
    away."""
    lines = []
    keys = {(s, p, c) for table in (old, new) for s in table for p in table[s] for c in table[s][p]}
    for scenario, policy, column in sorted(keys):
        before, after = (table.get(scenario, {}).get(policy, {}).get(column) for table in (old, new))
        if before is None or after is None:
            lines.append(f"{scenario} / {policy} / {column}: {before} → {after}")
        elif not (isclose(before, after, rel_tol=tolerance) or (isnan(before) and isnan(after))):
            change = f" ({after / before - 1:+.3%})" if before else ""
            lines.append(f"{scenario} / {policy} / {column}: {before:.9g} → {after:.9g}{change}")
    return lines


if __name__ == "__main__":
    new = predictions()
    old = json.loads(FROZEN.read_text()) if FROZEN.is_file() else {}
    moved = differences(old, new, 1e-9)
    print("\n".join(moved) or "no prediction moved")
    if "--write" in sys.argv:
        FROZEN.write_text(json.dumps(new, indent=1, sort_keys=True) + "\n")
        print(f"wrote {FROZEN.name}: {sum(len(policies) for policies in new.values())} predictions")
