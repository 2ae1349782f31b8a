"""The steps of the shipped runs as a verl log, so that they are read as a user's log is read."""

import json
from pathlib import Path

import pandas as pd

METRICS = {
    "response_mean": "response_length/mean",
    "response_max": "response_length/max",
    "response_min": "response_length/min",
    "clip_ratio": "response_length/clip_ratio",
    "prompt_mean": "prompt_length/mean",
    "prompt_max": "prompt_length/max",
    "tokens": "perf/total_num_tokens",
    "gen_s": "timing_s/gen",
    "reward_s": "timing_s/reward",
    "old_log_prob_s": "timing_s/old_log_prob",
    "ref_s": "timing_s/ref",
    "adv_s": "timing_s/adv",
    "update_actor_s": "timing_s/update_actor",
    "testing_s": "timing_s/testing",
    "save_checkpoint_s": "timing_s/save_checkpoint",
    "step_s": "timing_s/step",
    "slowest_gen_s": "timing_s/agent_loop/slowest/generate_sequences",
    "slowest_tool_s": "timing_s/agent_loop/slowest/tool_calls",
    "slowest_response": "timing_s/agent_loop/slowest/response_length",
    "mfu_actor": "perf/mfu/actor",
}
"""Column of the shipped tables → verl's name."""


def write_log(steps: pd.DataFrame, path: Path) -> Path:
    """Steps of one run as verl's file logger writes them, one JSON object a line."""
    lines = []
    for row in steps.to_dict("records"):
        data = {name: row[column] for column, name in METRICS.items() if pd.notna(row.get(column))}
        lines.append(json.dumps({"step": int(row["step"]), "data": data}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
