"""The model before cuts cost and devices were shared in time slices: every column of small runs, made by the
last commit without either, which tests/test_before_cuts.py compares with today's at no cost and with streams.

    python experiments/before_cuts.py            # compare
    python experiments/before_cuts.py --write    # make them anew, from that commit in a folder of its own
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BEFORE = "b1ecc4deab70"
"""The parent of "A cut costs"."""
STORED = ROOT / "tests" / "before_cuts.json"
TABLES = "--tables"
STEPS, BATCH = 6, 8

if __name__ == "__main__" and TABLES not in sys.argv:
    sys.path.insert(0, str(ROOT))

Tables = dict[str, dict[str, list[float]]]
"""Case → column → one value a step."""

ONE = {"scoring_on": "rollout", "training_on": "rollout"}
SHARED = {"num_replicas": 2, "num_workers": 2, "scoring_on": "rollout"}
ROUNDS = {"stop_check": "chunk", "chunk_size": 5, "overcommit": 3}
PIECES = {"score_granularity": "chunk", "chunk_size": 4}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "sequential, one device": ("sequential", {}, ONE),
    "intra, one device": ("intra", {"chunk_size": 4}, ONE),
    "intra, workers on replicas": ("intra", {"chunk_size": 4}, SHARED),
    "intra, workers on the trainer": ("intra", {"chunk_size": 4}, {"scoring_on": "training"}),
    "intra, interference": ("intra", {"chunk_size": 4}, {**SHARED, "interference": 1.3}),
    "intra, one host": ("intra", {"chunk_size": 4}, {"shares_host": True, "interference": 1.3}),
    "rollout-overlap, one device": ("rollout-overlap", {}, ONE),
    "inter, KV kept": ("inter", {"overcommit": 3}, {**ONE, "clear_kv_cache_on_weight_sync": False}),
    "oppo, one device": ("oppo", {"overcommit": 3, "chunk_size": 4}, ONE),
    "oppo, rounds": ("oppo", ROUNDS, {**ONE, "num_replicas": 2}),
    "oppo, rounds, static": ("oppo", ROUNDS, {**SHARED, "batching": "static"}),
    "oppo, little KV": ("oppo", {"overcommit": 3, "chunk_size": 4}, {**ONE, "kv_capacity_tokens": 160}),
    "oppo, scorer's KV": ("oppo", {"overcommit": 3, "chunk_size": 4}, {"scorer_kv_capacity_tokens": 60}),
    "partial-rollout, one device": ("partial-rollout", {"token_budget": 9}, ONE),
    "tail-batching, workers on replicas": ("tail-batching", PIECES, SHARED),
    "one-step-off, workers on replicas": ("one-step-off", {}, SHARED),
    "async, workers on replicas": ("async", PIECES, SHARED),
    "async, order of scores": ("async", {"max_staleness": 2, "train_order": "scored"}, SHARED),
}  # fmt: skip
"""Policy, its settings, the machine."""


def tables() -> Tables:
    """Every numeric column of every case, by the package that is imported."""
    from oppo_sim.model.setup import MachineSetup
    from tests.small import linear_costs, run

    known = {field.name for field in fields(MachineSetup)}
    streams = {"sharing": "streams"} if "sharing" in known else {}  # before, there was no other rule
    lengths = [1 + (n * n * 7 + 3 * n) % 41 for n in range(97)]
    costs = linear_costs(
        decode=(0.031, 0.0017, 0.00003),
        prefill=(0.021, 0.0013, 0.00007),
        score=(0.043, 0.0029, 0.00005),
        stages={
            "old_log_prob": (0.11, 0.0003, 0.0),
            "ref": (0.12, 0.0003, 0.0),
            "update_actor": (0.5, 0.0009, 0.0),
        },
        update_weights=0.27,
        demands={"decode": (0.7, 0.2), "prefill": (0.3, 0.8), "score": (0.4, 0.9), "train": (0.5, 0.6)},
    )
    found: Tables = {}
    for name, (policy, settings, machine) in CASES.items():
        setup = MachineSetup(**{"max_scoring_tokens": 60, **streams, **machine})
        prompts = [n % 11 for n in range(len(lengths))]
        shape = {"steps": STEPS, "batch": BATCH, "prompts": prompts}
        result = run(policy, lengths, **shape, settings=settings, machine=setup, costs=costs)
        numeric = result.steps.select_dtypes("number")
        found[name] = {str(column): [float(value) for value in numeric[column]] for column in numeric}
    return found


def stored() -> Tables:
    """Of that commit."""
    loaded: Tables = json.loads(STORED.read_text("utf-8"))
    return loaded


def before() -> Tables:
    """Made anew by that commit, whose files lie in a folder of their own meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "-C", str(ROOT), "archive", BEFORE], check=True, capture_output=True
        ).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        made = subprocess.run(
            [sys.executable, str(Path(__file__).resolve()), TABLES],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": folder},
            check=True,
            capture_output=True,
            text=True,
        )
    loaded: Tables = json.loads(made.stdout)
    return loaded


def differences(old: Tables, new: Tables) -> list[str]:
    """One line for each column of ``old`` that is not the same in ``new``, to the last bit (no number is the
    same as no number)."""
    return [
        f"{case} / {column}: {values} → {new.get(case, {}).get(column)}"
        for case, columns in old.items()
        for column, values in columns.items()
        if list(map(repr, values)) != list(map(repr, new.get(case, {}).get(column) or []))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true")
    parser.add_argument(TABLES, action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.tables:
        print(json.dumps(tables()))
        return
    if asked.write:
        STORED.write_text(json.dumps(before(), separators=(",", ":")) + "\n", "utf-8")
    old = stored()
    print("\n".join(differences(old, tables())) or f"{sum(map(len, old.values()))} columns are the same")


if __name__ == "__main__":
    main()
