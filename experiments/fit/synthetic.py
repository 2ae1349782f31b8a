"""How often intervals of a fit hold synthetic logs whose noise is known: the first 15 of 60 steps fitted, the
rest judged.

    python experiments/fit/synthetic.py --logs 112        # some ten minutes of one core

Every log has costs drawn from the priors; one row a kind of noise.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[2]))
from oppo_sim.columns import RESPONSE_LENGTH, STAGES, TIMING_STEP, TRAINED_STEP
from oppo_sim.costs.priors import log_priors
from oppo_sim.costs.terms import CostTerms
from oppo_sim.fit.call import fit
from oppo_sim.simulation import simulate
from tests.fit_logs import fit_scenario

STEPS, FITTED = 60, 15
KINDS = ("quiet", "noisy", "heavy", "walk", "ar", "regime", "grow")
TERMS = (
    "decode", "ref", "old_log_prob", "update_actor", "gen_phase_s", "other_s",
    "ref_s", "old_log_prob_s", "update_actor_s",
)  # fmt: skip


def noise(kind: str, generator: np.random.Generator) -> npt.NDArray[np.float64]:
    """Factors on the seconds of one stage, a step each."""
    normal = generator.standard_normal(STEPS)
    if kind == "heavy":
        return np.exp(0.02 * generator.standard_t(2.5, STEPS))
    if kind == "walk":
        return np.exp(0.015 * normal + np.cumsum(0.006 * generator.standard_normal(STEPS)))
    if kind == "ar":
        found = np.zeros(STEPS)
        for step in range(1, STEPS):
            found[step] = 0.8 * found[step - 1] + 0.015 * normal[step]
        return np.exp(found)
    if kind == "regime":
        after = np.arange(STEPS) >= generator.integers(20, 40)
        return np.exp(0.015 * normal + after * generator.normal(0, 0.1))
    return np.exp({"quiet": 0.01, "noisy": 0.06, "grow": 0.02}[kind] * normal)


def write_log(seed: int, path: Path) -> str:
    """A log of the kind that ``seed`` gives; returns the kind."""
    kind, generator = KINDS[seed % len(KINDS)], np.random.default_rng([seed, 99])
    priors = log_priors()
    drawn = {
        name: float(priors[name].median * np.exp(priors[name].sigma * generator.standard_normal()))
        for name in TERMS
    }
    scenario = fit_scenario(seed=seed, steps=STEPS)
    costs = scenario.costs.model_copy(update={"terms": CostTerms(**drawn)})
    run = simulate(scenario.model_copy(update={"costs": costs}), policy="sequential", steps=STEPS, seed=seed)
    factors = {stage: noise(kind, generator) for stage in STAGES}
    lines = []
    for step, row in enumerate(run.steps.to_dict("records")):
        lengths = run.rollouts[run.rollouts[TRAINED_STEP] == step][RESPONSE_LENGTH].to_numpy()
        seconds = {
            f"timing_s/{stage}": float(row[f"timing_s/{stage}"]) * factors[stage][step]
            for stage in STAGES
            if row[f"timing_s/{stage}"] > 0
        }
        data = {name: value for name, value in seconds.items() if name != "timing_s/other"} | {
            TIMING_STEP: sum(seconds.values()),
            "response_length/mean": float(lengths.mean()),
            "response_length/max": float(lengths.max()),
            "response_length/min": float(lengths.min()),
            "response_length/clip_ratio": float((lengths == scenario.max_response_length).mean()),
            "prompt_length/mean": 100.0,
            "perf/total_num_tokens": float(lengths.sum() + 100 * len(lengths)),
        }
        lines.append(json.dumps({"step": step + 1, "data": data}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return kind


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--logs", type=int, default=2 * len(KINDS))
    parser.add_argument("--first", type=int, default=0, help="seed of the first log")
    said = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(said.first, said.first + said.logs):
            path = Path(folder) / f"{seed}.jsonl"
            kind = write_log(seed, path)
            result = fit(path, fit_scenario(steps=STEPS), fit_steps=FITTED, draws=200)
            (held,) = result.held_out
            (step,) = (each.model for each in held.judgements if each.column == TIMING_STEP)
            told = any(trend.since is not None for trend in result.trends)
            rows.append((kind, step.coverage, step.width, step.median, step.p90, told))
    table = pd.DataFrame(rows, columns=["kind", "in interval", "width", "median", "p90", "change told"])
    print(table.groupby("kind", sort=False).mean().round(3).to_string())


if __name__ == "__main__":
    main()
