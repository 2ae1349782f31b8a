"""What the posterior of a set-up says of other policies on the same machine: every draw runs under each, with
the same rollouts."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from fitting import terms_of
from study import RESULTS, Progress, Study, World

from oppo_sim import columns as c
from oppo_sim.costs.terms import CostTerms
from oppo_sim.fast.choose import run_columns
from oppo_sim.fit.baseline import kernel_utilization
from oppo_sim.learning import measured_effect
from oppo_sim.scenario.build import Parts, build_parts, build_setup, cost_context


def runs_file(name: str, results: Path = RESULTS) -> Path:
    """One row a draw and run."""
    return results / f"runs_{name}.csv"


def predict(study: Study, draws: pd.DataFrame, results: Path, say: Progress) -> pd.DataFrame:
    """All runs of all draws; what the file has is kept."""
    path = runs_file(study.name, results)
    rows: list[dict[str, Any]] = pd.read_csv(path).to_dict("records") if path.exists() else []
    done = {int(row["draw"]) for row in rows}
    for number, row in enumerate(draws.itertuples()):
        if number in done:
            continue
        world = study.world(int(row.world))
        rows += [
            {"draw": number, "world": int(row.world), "run": run, **values}
            for run, values in one_machine(study, world, terms_of(row)).items()
        ]
        if number % 10 == 9 or number == len(draws) - 1:
            pd.DataFrame(rows).to_csv(path, index=False, float_format="%.6g")
            say(f"{study.name}: {number + 1} of {len(draws)} draws run")
    return pd.read_csv(path)


def one_machine(study: Study, world: World, terms: CostTerms) -> dict[str, dict[str, float]]:
    """Every run on one machine."""
    built: dict[str, Parts] = {}
    found = {}
    for name in study.runs:
        run = study.run(world, terms, name)
        scenario = run.scenario
        parts = built.setdefault(scenario.content_hash, build_parts(scenario))
        costs = scenario.costs.under(parts.costs, run.terms, cost_context(scenario))
        setup = build_setup(
            scenario, policy=run.policy, policy_settings=run.settings, steps=study.steps, parts=parts
        )
        frame = run_columns(replace(setup, costs=costs)).frame().iloc[study.warmup :]
        apart = scenario.scoring.num_workers if scenario.placement.scoring == "separate" else 0
        found[name] = summary_of(frame, (scenario.rollout.num_replicas, apart))
    return found


def summary_of(frame: pd.DataFrame, devices: tuple[int, int]) -> dict[str, float]:
    """Means over steps; ``devices`` as ``kernel_utilization`` takes them."""
    deferrals = _pooled(frame[c.DEFERRALS_HISTOGRAM])
    staleness = _pooled(frame[c.STALENESS_HISTOGRAM])
    lengths = frame[c.LENGTH_MEAN].mean() / frame[c.TRACE_LENGTH_MEAN].mean()
    gen, reward = frame[c.timing("gen")], frame[c.timing("reward")]
    return {
        "step_s": float(frame[c.TIMING_STEP].mean()),
        "gen_s": float(gen.mean()),
        "reward_s": float(reward.mean()),
        "utilization": float(frame[c.UTILIZATION_INFERENCE].mean()),
        "kernels": kernel_utilization(frame, devices),
        "overcommit": float(frame["overcommit"].mean()),
        "own_step": float(deferrals[0]),
        "one_step": float(deferrals[1]),
        "staleness": float(staleness @ np.arange(len(staleness))),
        "length_bias": float(lengths - 1.0),
    }


def _pooled(histograms: "pd.Series[Any]") -> np.ndarray[Any, np.dtype[np.float64]]:
    """Shares of all steps together, at least two entries."""
    total = np.zeros(2 + max(len(each) for each in histograms))
    for each in histograms:
        total[: len(each)] += np.asarray(each, dtype=np.float64)
    return total / total.sum()


def steps_ratio(runs: pd.DataFrame) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Steps to a reward over those of on-policy steps, a draw of the measured effect of staleness for each
    row."""
    effect = measured_effect()
    worth = [
        np.exp(-strength.staleness * stale - strength.length_bias * abs(bias))
        for number, (stale, bias) in enumerate(zip(runs["staleness"], runs["length_bias"], strict=True))
        for strength in (effect.drawn(number),)
    ]
    return 1.0 / np.array(worth)


def by_run(runs: pd.DataFrame, column: str) -> Mapping[str, np.ndarray[Any, np.dtype[np.float64]]]:
    """A column by run, one value a draw."""
    table = runs.pivot(index="draw", columns="run", values=column)
    return {str(run): table[run].to_numpy() for run in table}
