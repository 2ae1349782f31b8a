"""For each thing that costs: a command whose answer changes because of it. Prints the table of README.md.

python experiments/what_moves/run.py [NUMBER…]
"""

import contextlib
import io
import json
import shlex
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from oppo_sim.cli.main import run

BEST = {"rollouts": "s_per_rollout", "time_to_reward": "hours_to_reward"}


@dataclass(frozen=True)
class Row:
    """A command with the cost in it, and what takes it out."""

    number: str
    cost: str
    command: str
    without: str


CHUNKS = "--grid policy.chunk_size=64:16384:*2 --seeds 2 --steps 20 --draws 0"
SHARED = (
    "oppo sweep a100x16-10b --set policy.name=oppo --set placement.interference=1.3"
    " --grid policy.score_granularity=batch,rollout,chunk --seeds 4 --steps 30 --draws 0"
)
ETHERNET = "--set cluster.node_link_bytes_per_s=1.25e10"
LARGE_SCORER = (
    f"oppo sweep h100x16-2nodes {ETHERNET} --set 'costs.reward_model={{kind: model, model: qwen2.5-32b}}'"
    " --grid cluster.split=auto --seeds 3 --steps 26 --draws 0"
)
REWARD = "--objective time_to_reward --draws 0"
LONG_PROMPTS = (
    "--set 'trace={prompt_length: 3000, synth: {mean: 600, p99: 1800, rows: 4000, seed: 1}}'"
    " --set max_prompt_length=3000"
)
SPLITS = (
    "'cluster.split=rollout:1xTP1 scoring:cpu training:7,rollout:2xTP1 scoring:cpu training:6,"
    "rollout:3xTP1 scoring:cpu training:5,rollout:4xTP1 scoring:cpu training:4'"
)
MASKED = "'rewards.staleness_effect={staleness: 3.0, length_bias: 0.79}'"
ROWS = (
    Row(
        "1",
        "0.1 s a round",
        f"oppo sweep h200x8-vllm --set policy.stop_check=chunk --set costs.terms.round_fixed_s=0.1 {CHUNKS}",
        "--set costs.terms.round_fixed_s=0",
    ),
    Row(
        "1",
        "KV that ends with a round",
        "oppo sweep h200x8-vllm --set policy.stop_check=chunk --set rollout.keeps_kv_between_rounds=false"
        f" {CHUNKS}",
        "--set rollout.keeps_kv_between_rounds=true",
    ),
    Row("2", "scorer and replica take turns", LARGE_SCORER, "--set placement.sharing=mps"),
    Row("2", "turns that cost a third", SHARED, "--set placement.interference=1.0"),
    Row(
        "3",
        "staleness",
        "oppo sweep h200-single --set policy.name=inter --grid policy.overcommit=0:64:+8 --seeds 3 --steps 40"
        f" {REWARD}",
        "--set rewards.staleness_effect=none",
    ),
    Row(
        "4",
        "staleness where stale tokens are masked",
        f"oppo sweep h200x8-async --set {MASKED} --grid policy.max_staleness=0:4:+1 --seeds 3 --steps 30"
        f" {REWARD}",
        "--set rewards.staleness_effect=measured",
    ),
    Row(
        "5",
        "waits for tools",
        "oppo sweep agentic-a800x4 --set policy.name=inter --grid policy.overcommit=0,16,32,64,128 --seeds 3"
        " --draws 0",
        "--set trace.tool_seconds_factor=0",
    ),
    Row(
        "6",
        "long prompts, prefilled once a group",
        f"oppo sweep grpo-h200x8 {LONG_PROMPTS} --set group_size=16 --set dynamic_sampling.enable=false"
        " --set 'policy={name: async, max_staleness: 1}'"
        f" --grid {SPLITS} --seeds 2 --steps 16 --draws 0",
        "--set rollout.enable_prefix_caching=false",
    ),
    Row(
        "7",
        "a strict bound on staleness",
        "oppo sweep h200x8-async --set policy.max_staleness_strategy=wait --grid policy.max_staleness=1:8:+1"
        " --seeds 3 --steps 30 --draws 0",
        "--set policy.max_staleness_strategy=admission",
    ),
    Row(
        "8",
        "a link between two nodes",
        f"oppo sweep h100x16-2nodes {ETHERNET} --grid cluster.split=auto --seeds 1 --steps 14 --draws 0",
        "--set cluster.num_gpus_per_node=null",
    ),
)


def answer(command: str, folder: Path) -> tuple[Any, pd.Series, str]:
    """The best value of what is varied; value → what is ranked by, of all of them; its name."""
    with contextlib.redirect_stdout(io.StringIO()):
        assert run([*shlex.split(command)[1:], "-o", str(folder), "--no-figures", "--json", "--quiet"]) == 0
    best = json.loads((folder / "best.json").read_text())
    points = pd.read_parquet(folder / "points.parquet")
    (field,) = best["best"]["values"]
    return best["best"]["values"][field], points.set_index(field)[BEST[best["objective"]]], field


def main() -> None:
    wanted = sys.argv[1:]
    print("| what costs | taken out by | answer without | answer with | kept, the former costs |")
    print("|---|---|---|---|---|")
    for row in ROWS:
        if wanted and row.number not in wanted:
            continue
        with tempfile.TemporaryDirectory() as place:
            before, _, field = answer(f"{row.command} {row.without}", Path(place) / "without")
            after, table, _ = answer(row.command, Path(place) / "with")
        name = field.split(".")[-1]
        paid = float(table[before]) / float(table[after]) - 1
        name = "" if name in ("split", "score_granularity") else f"{name} "
        told = (f"{row.number}, {row.cost}", f"`{row.without}`", f"{name}{before}", f"{name}{after}")
        print(f"| {' | '.join(told)} | {paid:+.1%} |", flush=True)
        print(
            "   ", {key: round(float(value), 4) for key, value in table.items()}, file=sys.stderr, flush=True
        )


if __name__ == "__main__":
    main()
