"""One workload under two policies on real GPUs, measured by others: what the simulator predicts of it.

    python experiments/slime_sweep/slime_sweep.py predict   # from lengths and configurations alone
    python experiments/slime_sweep/slime_sweep.py score     # beside the seconds of the logs

Nine runs of slime (data/README.md): the same model, prompts and batch, colocated and synchronous on 2, 4 and
8 H200, and one step off-policy with 1 to 6 of them for generation and one for training.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import kendalltau

from oppo_sim.columns import TIMING_STEP
from oppo_sim.costs.section import EXACT
from oppo_sim.costs.terms import CostTerms
from oppo_sim.costs.uncertainty import machine_draws
from oppo_sim.fit.call import fit
from oppo_sim.fit.log.reading import read_step_log
from oppo_sim.runs.placement import placement_factor
from oppo_sim.runs.ranges import machine_interval
from oppo_sim.scenario.build import cost_context
from oppo_sim.scenario.load import scenario_from_plain
from oppo_sim.scenario.schema import Scenario
from oppo_sim.simulation import simulate
from oppo_sim.traces.importers.importing import import_log

FOLDER = Path(__file__).parent
DATA = FOLDER / "data"
DRAWS = 100
COLD = 1
"""Rollouts at the start that are not counted: engines and kernels are new to them."""
FITTED_ON = ("colocated_2", "colocated_4")
BASELINE = "colocated_2"
PROMPT = 160
"""Mean tokens of a prompt, from the logs (total less response)."""


@dataclass(frozen=True)
class Run:
    """``generating`` of the GPUs generate; ``training`` train, which are the same ones where it is
    colocated."""

    name: str
    generating: int
    training: int
    colocated: bool

    @property
    def log(self) -> Path:
        """Of slime, the lines with figures alone."""
        return DATA / f"{self.name}.log"


RUNS = (
    Run("colocated_2", 2, 2, colocated=True),
    Run("colocated_4", 4, 4, colocated=True),
    Run("colocated_8", 8, 8, colocated=True),
    *(Run(f"async_{count}_1", count, 1, colocated=False) for count in range(1, 7)),
)


def scenario_of(run: Run, folder: Path) -> Scenario:
    """What a user would write from the run's script and the arguments that slime prints; lengths rebuilt from
    the log's mean, maximum and truncated share a rollout, each replayed in its own step."""
    frame, _ = import_log("slime", run.log, rows_per_step=256, max_response_length=8092)
    path = folder / f"{run.name}.parquet"
    frame.to_parquet(path, index=False)
    # --offload-train of slime's --colocate; train_async.py keeps everything on its GPU.
    offload = {"param_offload": True, "optimizer_offload": True, "weight_sync": {"kind": "reshard"}}
    # What was the default when these runs were predicted and scored; it is 1 s of a step of 100 here.
    refit = {"kind": "online_refit", "fixed_s": 1.0, "convert_bytes_per_s": 1.06e9}
    return scenario_from_plain({
        "format": "oppo-scenario/1",
        "name": run.name,
        "steps": 5,
        "warmup_steps": COLD,
        "rollout_batch_size": 32 * 8,
        "group_size": 8,
        "max_prompt_length": 1024,
        "max_response_length": 8092,
        "trace": {"path": str(path), "sampling": "by_step", "prompt_length": PROMPT},
        "rollout": {
            "num_replicas": run.generating,
            "kv_capacity_tokens": 1_030_719,  # max_total_num_tokens, which SGLang prints when it starts
            "max_num_seqs": 512,  # --sglang-server-concurrency
        },
        "placement": {} if run.colocated else {"training": "separate"},
        "training": {
            "num_ppo_epochs": 1,
            "num_mini_batches": 1,  # --global-batch-size is all of a rollout
            "micro_batch_tokens": 9216,  # colocated_8 has 8192, less than its longest rollout
            "sharding": "optimizer",  # --use-distributed-optimizer
            "reduce_dtype": "float32",
            "num_gpus": run.training,
            "critic": "none",
            "gradient_checkpointing": True,
            "ref_param_offload": True,
            **(offload if run.colocated else {"weight_sync": refit}),
        },
        "costs": {
            "kind": "composed",
            "device": "H200",
            "actor_model": "Qwen/Qwen3-0.6B",
            "ref_model": "Qwen/Qwen3-0.6B",
            "reward_model": {"kind": "verifier"},
            "kernels": {"engine": "sglang"},
            "rollout": {
                "tensor_parallel": 1,
                "host": "sglang",
                "gpu_memory_utilization": 0.8,
                "sleep_mode": run.colocated,
            },
            "training": {"old_log_prob_entropy": False},
        },
        "policy": "sequential" if run.colocated else "one-step-off",
    })  # fmt: skip


def predicted_step_s(scenario: Scenario, terms: CostTerms | None) -> float:
    """Mean seconds of the steps after the first."""
    if terms is not None:
        costs = scenario.costs.model_copy(update={"terms": terms, "draws": EXACT})
        scenario = scenario.model_copy(update={"costs": costs})
    return float(simulate(scenario).steps[TIMING_STEP].to_numpy()[COLD:].mean())


def predictions() -> pd.DataFrame:
    """A row a run, way and draw (−1: the point): seconds a step."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        scenarios = {run.name: scenario_of(run, Path(name)) for run in RUNS}
        known = [scenarios[each] for each in FITTED_ON]
        fitted = fit([DATA / f"{each}.log" for each in FITTED_ON], known, framework="slime", draws=DRAWS)
        for run, scenario in scenarios.items():
            drawn = machine_draws(scenario.costs, cost_context(scenario), DRAWS, 0)
            for way, point, draws in (
                ("unfitted", None, drawn),
                ("fitted on " + " and ".join(FITTED_ON), fitted.point, fitted.draws),
            ):
                for number, terms in enumerate((point, *draws), start=-1):
                    rows.append((run, way, number, predicted_step_s(scenario, terms)))
    return pd.DataFrame(rows, columns=["run", "way", "draw", "step_s"])


def measured_step_s(run: Run) -> list[float]:
    """``perf/step_time`` of each rollout: training and what it waited for, seconds."""
    seconds: list[float] = read_step_log(run.log, "slime").frame[TIMING_STEP].tolist()
    return seconds


def placements() -> dict[str, list[float]]:
    """Run → its factor on all seconds, draw by draw: what costs told for ``BASELINE`` miss on other GPUs."""
    with tempfile.TemporaryDirectory() as name:
        splits = {run.name: scenario_of(run, Path(name)).split for run in RUNS}
    return {
        run: [placement_factor(split, splits[BASELINE], draw, 0) for draw in range(DRAWS)]
        for run, split in splits.items()
    }


def speedups(
    predicted: pd.DataFrame, pairs: Sequence[tuple[str, str]], *, placed: bool = True
) -> pd.DataFrame:
    """A row a way and pair (run, the run it is held against): seconds a step of the run, and its speed-up,
    predicted with 95 % and measured. ``placed``: ranges hold the other split of the GPUs."""
    factors = {run: np.array(each if placed else [1.0] * DRAWS) for run, each in placements().items()}
    measured = {run.name: mean(measured_step_s(run)[COLD:]) for run in RUNS}
    rows: list[Mapping[str, Any]] = []
    for way, table in predicted.groupby("way", sort=False):
        steps = table.pivot(index="draw", columns="run", values="step_s")
        for run, against in pairs:
            ratios = steps[against] / steps[run]
            drawn = ratios[ratios.index >= 0].to_numpy() * factors[against] / factors[run]
            low, high = machine_interval(drawn.tolist())
            rows.append({
                "way": way, "run": run, "against": against,
                "predicted_s": steps[run][-1], "measured_s": measured[run],
                "predicted": ratios[-1], "low": low, "high": high,
                "measured": measured[against] / measured[run],
            })  # fmt: skip
    return pd.DataFrame(rows)


def scored(predicted: pd.DataFrame, *, placed: bool = True) -> pd.DataFrame:
    """Every run against ``BASELINE``."""
    return speedups(predicted, [(run.name, BASELINE) for run in RUNS], placed=placed)


SAME_GPUS = (
    ("async_1_1", "colocated_2"),
    ("async_3_1", "colocated_4"),
    ("async_6_1", "colocated_8"),
)
"""One step off-policy against colocated on as many GPUs; the last has seven where the other has eight."""


def draw_figure(table: pd.DataFrame) -> None:
    """figure.png: speed-ups predicted from the synchronous logs, with intervals, beside what was measured."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    drawn, axis = plt.subplots(figsize=(8, 3.6))
    rows = table[table["way"] != "unfitted"].reset_index(drop=True)
    below, above = rows["predicted"] - rows["low"], rows["high"] - rows["predicted"]
    axis.errorbar(
        rows.index, rows["predicted"], yerr=[below, above], fmt="o", capsize=4, label="predicted, 95 %"
    )
    axis.plot(rows.index, rows["measured"], "kx", ms=8, label="measured")
    axis.axhline(1.0, color="0.7", lw=0.8)
    names = [" ".join(name.split("_", 1)).replace("_", "+") for name in rows["run"]]
    axis.set_xticks(rows.index, names, rotation=20)
    axis.set_ylabel("speed-up over colocated 2")
    axis.set_ylim(0)
    axis.legend()
    drawn.tight_layout()
    drawn.savefig(FOLDER / "figure.png", dpi=90, metadata={"Software": None})
    plt.close(drawn)


def summary(table: pd.DataFrame) -> dict[str, Any]:
    """Errors of the eight speed-ups of each way."""
    found = {}
    for way, rows in table[table["run"] != BASELINE].groupby("way", sort=False):
        errors = (rows["predicted"] / rows["measured"] - 1.0).abs()
        inside = (rows["low"] <= rows["measured"]) & (rows["measured"] <= rows["high"])
        found[way] = {
            "speedups": len(rows),
            "median": errors.median(),
            "worst": errors.max(),
            "inside": int(inside.sum()),
            "tau": float(kendalltau(rows["predicted"], rows["measured"]).statistic),
            "step_median": (rows["predicted_s"] / rows["measured_s"] - 1.0).abs().median(),
        }
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("predict", "score"))
    if parser.parse_args(arguments).what == "predict":
        predictions().to_csv(FOLDER / "predicted.csv", index=False, float_format="%.6g")
        return
    predicted = pd.read_csv(FOLDER / "predicted.csv")
    table = scored(predicted)
    table.to_csv(FOLDER / "scored.csv", index=False, float_format="%.5g")
    draw_figure(table)
    print(table.round(3).to_string(index=False))
    print(speedups(predicted, SAME_GPUS).round(3).to_string(index=False))
    print(json.dumps(summary(table), indent=1))
    without = summary(scored(predicted, placed=False))
    print("inside without placement:", {way: found["inside"] for way, found in without.items()})


if __name__ == "__main__":
    main()
