"""README.md, figures and results/staleness.json from the runs that are done; with ``--accept`` also the
effect that `oppo_sim` ships as measured."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import numpy as np
import pandas as pd
from cells import BASE, DEFAULT_TREATMENT, SEEDS, STALE, TREATMENTS, Cell, cells
from effect import Fitted, Runs, chosen, fitted, worth
from learner import EVALUATED, STEPS, scenario_of
from tasks import TASKS

from oppo_sim.columns import TIMING_STEP
from oppo_sim.learning import MEASURED_FILE
from oppo_sim.runs.statistics import interval
from oppo_sim.scenario.schema import Scenario
from oppo_sim.simulation import simulate

HERE: Final = Path(__file__).parent
PROFILE: Final = HERE.parent / "validate_cpu" / "results" / "profile.json"
LAST: Final = 3
"""Evaluations over which the reward that was reached is averaged."""
KEPT_DRAWS: Final = 64


def write(runs: Runs, accept: bool = False) -> None:
    """Everything. ``accept``: also the file of `oppo_sim`."""
    effects = {
        "all": fitted(chosen(runs)),
        **{task: fitted(chosen(runs, task=task)) for task in TASKS},
        **{name: fitted(found) for name in TREATMENTS if (found := chosen(runs, name))},
    }
    seconds = {(task, arm): predicted_step_s(task, arm) for task in TASKS for arm in ("sequential", *STALE)}
    rows = table(runs, seconds)
    record = {
        "runs": len(runs),
        "of": len(cells()),
        "effects": {name: _record(found) for name, found in effects.items()},
        "table": rows.to_dict(orient="records"),
    }
    (HERE / "results" / "staleness.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    figure(runs, seconds)
    (HERE / "README.md").write_text(readme(runs, effects, rows), "utf-8")
    if accept:
        found = effects["all"]
        kept = [[round(value, 5) for value in pair] for pair in found.draws[:KEPT_DRAWS]]
        shipped = {
            "staleness": round(found.strength.staleness, 5),
            "length_bias": round(found.strength.length_bias, 5),
            "runs": found.runs,
            "pairs": found.pairs,
            "draws": kept,
        }
        MEASURED_FILE.write_text(json.dumps(shipped) + "\n", "utf-8")


def predicted_step_s(task_name: str, arm_name: str) -> float:
    """Mean seconds of a step in the simulator, under the profile of experiments/validate_cpu (a larger model;
    replica and scorer on a core each, async trains on a third), with the lengths of right answers."""
    task, arm = TASKS[task_name], BASE[arm_name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lengths.csv"
        lengths = [
            {"prompt_length": len(task.prompt(0, n)), "response_length": len(task.answer(0, n))}
            for n in range(2000)
        ]
        pd.DataFrame(lengths).to_csv(path, index=False)
        plain = scenario_of(task, arm, 0).to_plain()
        plain |= {
            "trace": {"path": str(path), "sampling": "resample"},
            "costs": {"kind": "profile", "path": str(PROFILE)},
            "steps": 60,
            "warmup_steps": 10,
            "real": None,
            # What the profile measured.
            "training": {
                "num_ppo_epochs": 1,
                "old_log_prob": "behaviour",
                "ref": False,
                "critic": "value_head",
            },
        }
        plain["placement"]["training"] = "separate" if arm.policy == "async" else "rollout"
        steps = simulate(Scenario.model_validate(plain)).steps
    return float(steps[TIMING_STEP].iloc[10:].mean())


def table(runs: Runs, seconds: Mapping[tuple[str, str], float]) -> pd.DataFrame:
    """One row a task, policy and treatment: means over the seeds that also have the sequential run."""
    rows = []
    for task in TASKS:
        for arm in BASE:
            for treatment in (DEFAULT_TREATMENT, *TREATMENTS):
                own = {
                    cell.seed: run
                    for cell, run in runs.items()
                    if (cell.task, cell.arm, cell.treatment) == (task, arm, treatment)
                }
                pairs = {
                    seed: runs[base]
                    for seed in own
                    if (base := Cell(task, "sequential", DEFAULT_TREATMENT, seed)) in runs
                }
                if not pairs:
                    continue
                gains = [reached(own[seed]) - reached(base) for seed, base in pairs.items()]
                low, high = interval(gains)
                steps = [own[seed]["steps"] for seed in pairs]
                rows.append(
                    {
                        "task": task,
                        "policy": arm,
                        "carried": treatment,
                        "seeds": len(pairs),
                        "start": fmean(own[seed]["curve"][0][1] for seed in pairs),
                        "reached": fmean(reached(own[seed]) for seed in pairs),
                        "against_sequential": fmean(gains),
                        "low": low,
                        "high": high,
                        "staleness_mean": fmean(fmean(each["staleness_mean"]) for each in steps),
                        "staleness_max": max(max(each["staleness_max"]) for each in steps),
                        "length_bias": fmean(fmean(each["bias"]) for each in steps),
                        "iterations": fmean(fmean(each["iterations"]) for each in steps),
                        "predicted_step_s": seconds.get((task, arm), float("nan")),
                        "measured_step_cpu_s": fmean(own[seed]["cpu_s"] / STEPS for seed in pairs),
                    }
                )
    return pd.DataFrame(rows)


def reached(run: Mapping[str, Any]) -> float:
    """Mean reward of the last evaluations."""
    return fmean(reward for _, reward in run["curve"][-LAST:])


def figure(runs: Runs, seconds: Mapping[tuple[str, str], float]) -> None:
    """Reward against steps, predicted seconds and measured processor seconds; mean over the seeds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    drawn, axes = plt.subplots(len(TASKS), 3, figsize=(13, 7), layout="constrained")
    for row, task in zip(axes, TASKS, strict=True):
        for number, arm in enumerate(("sequential", *STALE)):
            own = [
                run
                for cell, run in runs.items()
                if (cell.task, cell.arm, cell.treatment) == (task, arm, DEFAULT_TREATMENT)
            ]
            if not own:
                continue
            curves = np.array([run["curve"] for run in own], dtype=float)
            updates, rewards = curves[0, :, 0], curves[:, :, 1]
            measured = fmean(run["cpu_s"] / STEPS for run in own)
            for axis, scale in zip(row, (1.0, seconds[task, arm], measured), strict=True):
                axis.plot(updates * scale, rewards.mean(axis=0), f"C{number}-", label=f"{arm} ({len(own)})")
        row[0].set(ylabel=f"{task}: reward of {EVALUATED} held-out problems", xlabel="steps")
        row[1].set(xlabel="predicted seconds (simulator)")
        row[2].set(xlabel="measured processor seconds (one process)")
        row[0].legend(fontsize=8)
    (HERE / "results").mkdir(exist_ok=True)
    drawn.suptitle("Mean over seeds (how many in brackets); behaviour log-probabilities, corrected")
    drawn.savefig(HERE / "results" / "staleness.png", dpi=110)
    plt.close(drawn)


def _record(found: Fitted) -> dict[str, Any]:
    (low, high), (least, most) = found.interval()
    return {
        "staleness": found.strength.staleness,
        "staleness_95": [low, high],
        "length_bias": found.strength.length_bias,
        "length_bias_95": [least, most],
        "runs": found.runs,
        "pairs": found.pairs,
        "residual": found.error,
    }


def _missing(runs: Runs) -> str:
    base = [cell for cell in cells() if cell.treatment == DEFAULT_TREATMENT]
    rest = [cell for cell in cells() if cell.treatment != DEFAULT_TREATMENT]
    done = (sum(cell in runs for cell in base), sum(cell in runs for cell in rest))
    if done == (len(base), len(rest)):
        return f"All {len(base) + len(rest)} runs are done."
    return (
        f"**Not complete**: {done[0]} of {len(base)} runs of the default treatment and {done[1]} of"
        f" {len(rest)} of the others are done ({SEEDS} seeds are wanted). The command goes on where it"
        " stopped, and makes this page anew."
    )


def readme(runs: Runs, effects: Mapping[str, Fitted], rows: pd.DataFrame) -> str:
    """The page."""
    from text import page

    return page(_missing(runs), effects, rows, predicted_progress(runs, effects["all"]))


def predicted_progress(runs: Runs, found: Fitted) -> dict[str, float]:
    """Policy → what the fitted effect says a step of it is worth, mean over the runs."""
    return {
        arm: fmean(
            float(worth(run, found.strength).mean())
            for cell, run in runs.items()
            if (cell.arm, cell.treatment) == (arm, DEFAULT_TREATMENT)
        )
        for arm in BASE
        if any((cell.arm, cell.treatment) == (arm, DEFAULT_TREATMENT) for cell in runs)
    }
