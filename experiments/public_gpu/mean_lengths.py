"""NeMo RL's published step seconds of runs on policy: a mean length is all that is told of a row.

    python experiments/public_gpu/mean_lengths.py

Scenarios are those of the recipes in NeMo RL's repository. Left out is what `oppo_sim` does not describe:
latent attention (DeepSeek), engines on several nodes. Not told and assumed: prompts of 120 tokens; that some
rollout of each step reaches the limit, lengths rebuilt from mean and maximum as of a log without more.
Nothing is fitted, and nothing was set on these rows. Writes results/mean_lengths.csv: seconds, and the 95 %
range of 50 draws of the priors.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from split import load

from oppo_sim import columns as c
from oppo_sim.costs.uncertainty import machine_draws
from oppo_sim.fit.lengths import LengthFigures, rebuilt_lengths
from oppo_sim.scenario.build import cost_context
from oppo_sim.scenario.schema import Scenario
from oppo_sim.simulation import simulate

PROMPT = 120
STEPS = 3
DRAWS = 50
MODELS = {
    "LLAMA3.1_8B": "meta-llama/Llama-3.1-8B-Instruct",
    "Qwen3-32B": "Qwen/Qwen3-32B",
    "Qwen3-30B3A": "Qwen/Qwen3-30B-A3B",
    "Qwen3-235B": "Qwen/Qwen3-235B-A22B",
}
LOG_PROB_ROLLOUTS = {"LLAMA3.1_8B": 2, "Qwen3-32B": 4, "Qwen3-30B3A": 4, "Qwen3-235B": 1}
"""`logprob_batch_size`: packs of so many times the longest."""
CHECKPOINTED = ("LLAMA3.1_8B", "Qwen3-235B")
ASYNC_ENGINE = ("Qwen3-235B",)
NO_KERNELS = ("Qwen3-235B",)
"""Measured on no device here."""


def rows() -> pd.DataFrame:
    """In bf16, on policy, with an engine on one node."""
    table = load("nemo_rl_steps")
    kept = table["model"].isin(list(MODELS)) & (table["policy"] == "On policy")
    kept &= table["precision"].str.startswith("Training BF16") & (table["gen_tp_pp"] != "[16,1]")
    return table[kept].reset_index(drop=True)


def scenario_of(row: Any, lengths: Path) -> Scenario:
    """The recipe of a row. Packed sequences, an optimizer and a reference that wait in host memory, vLLM in
    the trainer's processes with CUDA graphs; 8 GPUs a node with InfiniBand, or 72 with NVLink."""
    longest, gpus = int(row.max_seq), int(row.gpus)
    tensor = int(row.gen_tp_pp.strip("[]").split(",")[0])
    parallel = row.train_par.strip("[]").split(",")
    return Scenario.model_validate(
        {
            "format": "oppo-scenario/1",
            "name": f"nemo-rl {row.release} {row.system} {row.model}",
            "steps": STEPS,
            "warmup_steps": 0,
            "rollout_batch_size": int(row.gen_batch),
            "group_size": 32,
            "max_prompt_length": PROMPT,
            "max_response_length": longest - PROMPT,
            "rollout": {"num_replicas": gpus // tensor, "kv_capacity_tokens": "auto", "max_num_seqs": 1024},
            "trace": {"path": str(lengths), "sampling": "by_step"},
            "training": {
                "num_ppo_epochs": 1,
                "num_mini_batches": int(row.gen_batch // row.train_batch),
                "micro_batch_tokens": longest,
                "log_prob_micro_batch_tokens": LOG_PROB_ROLLOUTS[row.model] * longest,
                "ref_micro_batch_tokens": LOG_PROB_ROLLOUTS[row.model] * longest,
                "num_gpus": gpus,
                "critic": "none",
                "tensor_parallel": int(parallel[0]),
                "sequence_parallel": int(parallel[1]),
                "expert_parallel": int(parallel[2]),
                "expert_tensor_parallel": 1 if int(parallel[2]) > 1 else None,
                "pipeline_parallel": int(parallel[-2]),
                "sharding": "optimizer",
                "gradient_checkpointing": row.model in CHECKPOINTED,
                "optimizer_offload": True,
                "ref_param_offload": True,
                "weight_sync": {"kind": "reshard", "sleep_level": 1},
            },
            "cluster": {"num_gpus_per_node": 8} if row.system == "DGX-H100" else {},
            "costs": {
                "kind": "roofline" if row.model in NO_KERNELS else "composed",
                "device": "H100" if row.system == "DGX-H100" else "GB200",
                "actor_model": MODELS[row.model],
                "reward_model": {"kind": "verifier"},
                "rollout": {
                    "tensor_parallel": tensor,
                    "host": "vllm-async" if row.model in ASYNC_ENGINE else "vllm",
                    "gpu_memory_utilization": 0.6,
                    "sleep_mode": True,
                },
            },
            "policy": "sequential",
        }
    )


def trace_of(row: Any, path: Path) -> Path:
    """Lengths of its steps."""
    limit = int(row.max_seq) - PROMPT
    figures = LengthFigures(int(row.gen_batch), row.avg_seq - PROMPT, max=limit, cut=limit)
    drawn = rebuilt_lengths(figures, STEPS, np.random.default_rng(0))
    frame = pd.concat(
        pd.DataFrame({"source": row.model, "step": step, "prompt_length": PROMPT, "response_length": lengths})
        for step, lengths in enumerate(drawn)
    )
    frame.to_parquet(path, index=False)
    return path


def scored(row: Any, folder: Path) -> dict[str, Any]:
    """Measured and predicted."""
    scenario = scenario_of(row, trace_of(row, folder / "lengths.parquet"))

    def seconds(costs: Any) -> pd.Series:
        run = simulate(scenario.model_copy(update={"costs": costs}), policy="sequential")
        return run.steps[[name for name in run.steps if str(name).startswith("timing_s/")]].mean()

    section = scenario.costs
    drawn = machine_draws(section, cost_context(scenario), DRAWS, 0, scenario.base_dir)
    of_draws = [seconds(section.model_copy(update={"terms": terms}))[c.TIMING_STEP] for terms in drawn]
    low, high = np.percentile(of_draws, (2.5, 97.5))
    point = seconds(section)
    stages = {name: point[c.timing(name)] for name in ("gen", "old_log_prob", "ref", "update_actor")}
    return {
        "release": row.release,
        "system": row.system,
        "model": row.model,
        "gpus": int(row.gpus),
        "train_par": row.train_par,
        "measured": row.step_s,
        "predicted": point[c.TIMING_STEP],
        "error": point[c.TIMING_STEP] / row.step_s - 1.0,
        "low": low,
        "high": high,
        "inside": bool(low <= row.step_s <= high),
        **stages,
    }


def main() -> None:
    """Command line."""
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        found = pd.DataFrame([scored(row, Path(name)) for row in rows().itertuples()])
    found.to_csv(Path(__file__).parent / "results" / "mean_lengths.csv", index=False, float_format="%.4g")
    print(found.to_string())


if __name__ == "__main__":
    main()
