"""Whether the ranges of unfitted predictions hold what was measured: draws of the priors of the terms.

A range is of a unit, since what is unknown of a machine is the same in all its steps: the median over a run's
steps or a configuration's rows, between the 2.5 % and 97.5 % quantiles of the draws.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from fitted import log_of
from measures import Numbers
from served import engine_scenario, served_engines, token_seconds_of
from steps import Run, scenario_of

from oppo_sim.columns import TRAINING_STAGES
from oppo_sim.costs.terms import CostTerms
from oppo_sim.costs.uncertainty import machine_draws
from oppo_sim.fit.terms.features import build_features
from oppo_sim.fit.terms.stages import stage_seconds
from oppo_sim.scenario.build import cost_context

DRAWS = 200
SEED = 0
QUANTILES = (2.5, 97.5)


def ranges_of_run(run: Run, folder: Path) -> Iterator[dict[str, Any]]:
    """Of a run's stages and step: measured, low, high."""
    log, scenario = log_of(run, folder), scenario_of(run, folder)
    features, _ = build_features(log, scenario, seed=SEED)
    drawn = machine_draws(scenario.costs, cost_context(scenario), DRAWS, SEED, scenario.base_dir)
    terms = as_arrays(drawn)
    steps = run.steps.set_index("step").loc[list(features.steps)]
    running = ("gen", *(stage for stage in TRAINING_STAGES if features.stages[stage].max() > 0))
    seconds = {stage: stage_seconds(stage, features, terms) for stage in running}
    seconds["gen"] = seconds["gen"] + seconds.pop("update_weights", 0.0)
    seconds["step"] = np.sum(list(seconds.values()), axis=0) + terms["other_s"][:, None]
    for stage, predicted in seconds.items():
        if f"{stage}_s" in steps and stage != "adv":
            ratio = predicted / steps[f"{stage}_s"].to_numpy(float)
            yield {"unit": run.name, "what": stage, **_range(np.median(ratio, axis=1))}


def ranges_of_served(kind: str, held_out: bool) -> Iterator[dict[str, Any]]:
    """Of served configurations: the median over their rows of predicted / measured."""
    for unit, engine, rows in served_engines(kind, held_out):
        scenario, measured = engine_scenario(engine), rows["measured"].to_numpy(float)
        section, context = scenario.costs, cost_context(scenario)
        ratios = []
        for draw in machine_draws(section, context, DRAWS, SEED):
            costs = section.model_copy(update={"terms": draw}).costs(context)
            ratios.append(np.median(token_seconds_of(costs, rows) / measured))
        yield {"unit": unit, "what": "time per output token", **_range(np.array(ratios))}


def as_arrays(draws: Sequence[CostTerms]) -> Mapping[str, Numbers]:
    """Draws by term."""
    return {name: np.array([getattr(draw, name) for draw in draws]) for name in CostTerms.model_fields}


def _range(ratio: Numbers) -> dict[str, Any]:
    low, high = np.percentile(ratio, QUANTILES)
    return {"low": float(low), "high": float(high), "inside": bool(low <= 1.0 <= high)}


def range_table(parts: Sequence[Iterator[dict[str, Any]]]) -> pd.DataFrame:
    """All of them: `low` and `high` of predicted / measured."""
    return pd.DataFrame([row for part in parts for row in part])
