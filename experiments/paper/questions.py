"""Questions of the paper's reviewers, answered on machines of the priors: every world of what OPPO did not
publish, not only those that agree with its baselines.

    nice python experiments/paper/questions.py          # all; what is in results/ is kept
    nice python experiments/paper/questions.py b        # what an engine leaves of the gain
    nice python experiments/paper/questions.py --page   # figures and pages alone

Each writes results/question_X.csv (resumable), a figure and question_X.md.
"""

import argparse
import os
import sys
from collections.abc import Mapping
from math import pi, sin
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent))

import pandas as pd
from answers import page_a, page_b, page_c, page_d, page_e, page_f, page_g, page_h
from asking import Case, Cases, Question, ask, laid_over, rows_file
from prompts import PROMPTS, ask_prompts, prompts_table
from study import FOLDER, World
from timing import timed

CONTINUOUS: Final = {"engine": "vllm"}
"""Continuous batching."""
SYNC: Final = {"kind": "online_refit", "fixed_s": 1.0, "convert_bytes_per_s": 1.06e9}
"""20 s for 20 GB, the one report of a weight sync when the results were made."""
_DELTA: Final = 14
"""An eighth of B = 112."""


def _four(chunk: int, delta: int, **further: Any) -> dict[str, Case]:
    """Sequential, both parts and OPPO."""
    return {
        "sequential": Case("sequential", {}, **further),
        "intra": Case("intra", {"chunk_size": chunk}, **further),
        "inter": Case("inter", {"overcommit": delta}, **further),
        "oppo": Case("oppo", {"overcommit": delta, "chunk_size": chunk}, **further),
    }


def _named(prefix: str, cases: Cases) -> dict[str, Case]:
    return {f"{prefix}: {name}": case for name, case in cases.items()}


def _streaming(world: World) -> Cases:
    chunk = int(world["chunk_size"])
    rounds = {"stop_check": "chunk", "chunk_size": chunk}
    return {
        "batch": Case("sequential"),
        "rollout": Case("rollout-overlap"),
        "chunk": Case("intra", {"chunk_size": chunk}),
        "chunk in rounds": Case("intra", rounds),
        "inter + rollout": Case("inter", {"overcommit": _DELTA, "score_granularity": "rollout"}),
        "inter + chunk": Case("oppo", {"overcommit": _DELTA, "chunk_size": chunk}),
    }


def _engines(world: World) -> Cases:
    found: dict[str, Case] = {}
    for engine in ("generate", "vllm", "sglang"):
        # The engines have continuous batching and the same lengths, and bring their own host.
        known = {"engine": "generate" if engine == "generate" else "vllm"}
        host = {"costs": {"rollout": {"host": engine}}}
        found |= _named(engine, _four(int(world["chunk_size"]), _DELTA, world=known, scenario=host))
    return found


def _competitors(world: World) -> Cases:
    chunk, mean = int(world["chunk_size"]), round(float(world["mean"]))
    found = {
        "sequential": Case("sequential"),
        "rollout-overlap": Case("rollout-overlap"),
        "intra": Case("intra", {"chunk_size": chunk}),
    }
    for over in (1.1, 1.25, 1.5):
        settings = {"over_issue": over, "score_granularity": "chunk", "chunk_size": chunk}
        found[f"tail-batching {over}"] = Case("tail-batching", settings)
    for delta in (4, 14, 28, 56, 112):
        for most in (None, 1):
            settings = {"overcommit": delta, "chunk_size": chunk, "max_deferrals": most}
            found[f"oppo {delta} {most}"] = Case("oppo", settings)
    for most in (None, 1):
        found[f"april {most}"] = Case("april", {"max_deferrals": most})
    for times in (1, 2, 4):
        for most in (None, 1):
            settings = {"token_budget": times * mean, "max_deferrals": most}
            found[f"partial-rollout {times} {most}"] = Case("partial-rollout", settings)
    for replicas in (2, 3, 4, 5):
        apart = {
            "rollout": {"num_replicas": replicas},
            "placement": {"training": "separate"},
            "training": {"num_gpus": 7 - replicas, "weight_sync": SYNC},
        }
        scored_so = {"score_granularity": "rollout"}
        found[f"one-step-off {replicas}"] = Case("one-step-off", scored_so, scenario=apart)
        settings = {"max_staleness": 1, "score_granularity": "rollout"}
        found[f"async {replicas}"] = Case("async", settings, scenario=apart)
    return {name: case._replace(world=CONTINUOUS) for name, case in found.items()}


def _deltas(world: World) -> Cases:
    chunk = int(world["chunk_size"])
    return {
        f"overcommit {delta}": Case("oppo", {"overcommit": delta, "chunk_size": chunk})
        for delta in (0, 2, 4, 8, 14, 28, 56, 112)
    }


def _control(world: World) -> Cases:
    chunk = int(world["chunk_size"])
    found = {"sequential": Case("sequential")}
    for delta in (0, 2, 4, 8, 14, 28, 56):
        found[f"constant {delta}"] = Case("oppo", {"chunk_size": chunk, "overcommit": delta})
    # Without a trend, and swinging with a period of 40 steps, as an unstable run's.
    swing = [round(2.0 + 0.5 * sin(pi * step / 20), 6) for step in range(400)]
    oscillating = {"rewards": {"kind": "series", "values": swing}}
    for rewards, patch in (("rising", {}), ("oscillating", oscillating)):
        for most in (8, 28, 56):
            for window in (5, 20):
                control = {"control": "reward_slope", "max": most, "window": window}
                settings = {"chunk_size": chunk, "overcommit": control}
                found[f"{rewards} max {most} w {window}"] = Case("oppo", settings, scenario=patch)
    explore = {"control": "explore", "candidates": [128, 256, 512], "explore_every": 50}
    found["chunk explored"] = Case("oppo", {"chunk_size": explore, "overcommit": _DELTA})
    return found


def _rewards(world: World) -> Cases:
    def model(name: str, dtype: str = "bf16") -> dict[str, Any]:
        return {"kind": "model", "model": name, "host": world["engine"], "dtype": dtype}

    def judge(calls: float) -> dict[str, Any]:
        # Calls a second, a rollout each. What a call takes from end to end comes once a step to any policy.
        reward = {"kind": "verifier", "fixed_s": 1.0 / calls}
        return {"costs": {"reward_model": reward}, "scoring": {"max_scoring_tokens": 1}}

    rewards: dict[str, dict[str, Any]] = {
        "rule": {"costs": {"reward_model": {"kind": "verifier", "fixed_s": 0.01, "per_token_s": 1e-6}}},
        "0.5B": {"costs": {"reward_model": model("qwen2.5-0.5b")}},
        "7B": {"costs": {"reward_model": model("qwen2.5-7b")}},
        "7B float32": {"costs": {"reward_model": model("qwen2.5-7b", "float32")}},
        "32B": {"costs": {"reward_model": model("qwen2.5-32b")}},
        "judge, 6 calls a second": judge(6.0),
        "judge, 1 call a second": judge(1.0),
    }
    chunk = int(world["chunk_size"])
    found: dict[str, Case] = {}
    for name, patch in rewards.items():
        found |= _named(name, _four(chunk, _DELTA, scenario=patch))
        found[f"{name}: rollout-overlap"] = Case("rollout-overlap", scenario=patch)
    return found


def _losses(world: World) -> Cases:
    def grouped(size: int, **training: Any) -> dict[str, Any]:
        samples = {"samples_per_prompt": size, "prompt_correlation": 0.5}
        return {
            "group_size": size,
            "trace": {"synth": samples},
            "training": {"critic": "none", "num_ppo_epochs": 1, **training},
        }

    rule = {"costs": {"reward_model": {"kind": "verifier", "fixed_s": 0.01, "per_token_s": 1e-6}}}
    losses: dict[str, Mapping[str, Any]] = {
        "PPO": {},
        "PPO, 1 epoch": {"training": {"num_ppo_epochs": 1}},
        "GRPO, groups of 8": grouped(8),
        "GRPO, groups of 8, rule": {**grouped(8), **rule},
        "online DPO, pairs": grouped(2),
    }
    found: dict[str, Case] = {}
    for name, patch in losses.items():
        found |= _named(name, _four(int(world["chunk_size"]), 16, scenario=patch))
    return found


def _growth(world: World) -> Cases:
    chunk = int(world["chunk_size"])
    found: dict[str, Case] = {}

    def add(name: str, batch: int, patch: Mapping[str, Any], **drawn: Any) -> None:
        whole = laid_over({"rollout_batch_size": batch}, patch)
        known = {**CONTINUOUS, **drawn}
        found.update(_named(name, _three(chunk, batch // 8, world=known, scenario=whole)))

    for gpus in (8, 16, 32):
        nodes = {
            "rollout": {"num_replicas": 7 * gpus // 8},
            "scoring": {"num_workers": gpus // 8},
            "cluster": {"num_gpus_per_node": 8},
        }
        add(f"GPUs, B fixed {gpus}", 112, nodes)
        add(f"GPUs, B grows {gpus}", 14 * gpus, nodes)
    for gpus in (8, 4, 2):
        add(f"GPUs of a node, of 8 {gpus}", 112, {"cluster": {"num_gpus_per_node": gpus}})
    for batch in (56, 112, 224, 448):
        add(f"B {batch}", batch, {})
    longest = int(world["longest"])
    for ratio in (1.5, 2.5, 4.0, 6.0):
        mean = min(float(world["mean"]), longest / 7)
        add(f"tail {ratio:g}", 112, {}, tail="heavy", tail_shape=ratio, mean=mean)
    for seconds in (0.0, 1.0, 5.0, 20.0):
        calls = {"mean_calls": 3.0, "mean_s": seconds, "p99_s": 5 * seconds or None, "mean_tokens": 100.0}
        tools = {"trace": {"synth": {"tools": calls}}} if seconds else {}
        add(f"tools {seconds:g}", 112, tools)
    return found


def _three(chunk: int, delta: int, **further: Any) -> dict[str, Case]:
    four = _four(chunk, delta, **further)
    return {name: four[name] for name in ("sequential", "intra", "oppo")}


QUESTIONS: Final[Mapping[str, Question]] = {
    "a": Question(_streaming, page_a, 40),
    "b": Question(_engines, page_b, 40),
    "c": Question(_competitors, page_c, 12),
    "d": Question(_deltas, page_d, 12, steps=50, warmup=20),
    "e": Question(_control, page_e, 12, steps=120, warmup=20),
    "f": Question(_rewards, page_f, 12),
    "g": Question(_losses, page_g, 12),
    "h": Question(_growth, page_h, 10),
}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("questions", nargs="*", metavar="LETTER", help="a to h; none: all")
    parser.add_argument("--machines", type=int, help="of each set-up, instead of the question's own number")
    parser.add_argument("--page", action="store_true", help="of what is there")
    said = parser.parse_args()
    os.environ.setdefault("OPPO_ENGINE", "compiled")
    for letter in said.questions or QUESTIONS:
        answer(letter, 0 if said.page else said.machines or QUESTIONS[letter].machines)


def part_of(letter: str) -> str:
    """Name of a question among the parts of ``run.py``."""
    return f"question-{letter}"


def answer(letter: str, machines: int) -> None:
    """Run what is missing, then write figure and page."""
    with timed(part_of(letter), not rows_file(letter).exists()):
        rows = ask(letter, QUESTIONS[letter], machines)
        if letter == "d":
            ask_prompts(machines // 4)
    (FOLDER / f"question_{letter}.md").write_text(page_text(letter, rows), "utf-8")


def page_text(letter: str, rows: pd.DataFrame) -> str:
    """The page's text with its tables; draws the figure."""
    text = (FOLDER / f"question_{letter}.text.md").read_text("utf-8")
    if letter == "d":
        text = text.replace("{prompts}", prompts_table(pd.read_csv(PROMPTS)))
    return text.replace("{table}", QUESTIONS[letter].page(rows))


if __name__ == "__main__":
    main()
