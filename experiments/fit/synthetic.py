"""How often intervals of a fit hold synthetic logs whose noise is known: the first 15 of 60 steps fitted, the
rest judged.

    python experiments/fit/synthetic.py                         # 28 logs, some two minutes of one core
    python experiments/fit/synthetic.py --logs 112 --jobs 2     # those of the page, 6 CPU minutes
    python experiments/fit/synthetic.py --page                  # the table of README.md from the stored rows

Every log has costs drawn from the priors; a kind of noise is a row of the table. Logs are rows of
synthetic.csv, added as they are done: those that it has are not made again, so that a run that was stopped
goes on. ``--fresh`` begins anew.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
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
DRAWS = 200
FOLDER = Path(__file__).parent
ROWS, PAGE = FOLDER / "synthetic.csv", FOLDER / "README.md"
MARK = "<!-- rows of synthetic.csv -->"
KINDS = {
    "quiet": "1 %",
    "grow": "2 %",
    "noisy": "6 %",
    "heavy": "2 %, heavy tails (Student-t, 2.5 degrees of freedom)",
    "walk": "1.5 %, and a random walk of 0.6 % a step",
    "ar": "1.5 %, each step keeps 0.8 of the one before",
    "regime": "1.5 %, and one change of level by 10 % (standard deviation)",
}
ORDER = ("quiet", "noisy", "heavy", "walk", "ar", "regime", "grow")
"""Kinds by seed."""
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
    kind, generator = ORDER[seed % len(ORDER)], np.random.default_rng([seed, 99])
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


def judged(seed: int) -> dict[str, object]:
    """One log: how its last steps were predicted."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{seed}.jsonl"
        kind = write_log(seed, path)
        result = fit(path, fit_scenario(steps=STEPS), fit_steps=FITTED, draws=DRAWS)
    (held,) = result.held_out
    (step,) = (each.model for each in held.judgements if each.column == TIMING_STEP)
    told = any(trend.since is not None for trend in result.trends)
    return {
        "seed": seed, "kind": kind, "coverage": step.coverage, "width": step.width,
        "median": step.median, "p90": step.p90, "change_told": told,
    }  # fmt: skip


def rows_of(seeds: Iterable[int], jobs: int) -> None:
    """Add the rows of the logs that ROWS does not have."""
    known = set(pd.read_csv(ROWS)["seed"]) if ROWS.exists() else set()
    with ProcessPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(judged, seed) for seed in seeds if seed not in known]):
            row = pd.DataFrame([done.result()])
            row.to_csv(ROWS, mode="a", header=not ROWS.exists(), index=False, float_format="%.4g")


def page_table(rows: pd.DataFrame) -> str:
    """One line a kind of noise."""
    lines = [
        "| noise of each stage and step | logs | steps in the 95 % interval | its width | error: median | p90"
        " | a change is told in |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind, words in KINDS.items():
        part = rows[rows["kind"] == kind]
        mean = part.mean(numeric_only=True)
        shares = " | ".join(f"{100 * mean[name]:.1f} %" for name in ("coverage", "width", "median", "p90"))
        lines.append(f"| {words} | {len(part)} | {shares} | {int(part['change_told'].sum())} |")
    return "\n".join(lines)


def with_table(page: str, rows: pd.DataFrame) -> str:
    """README.md with the table of ``rows`` between its two marks."""
    before, _, after = page.split(MARK)
    return f"{before}{MARK}\n{page_table(rows)}\n{MARK}{after}"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--logs", type=int, default=4 * len(KINDS))
    parser.add_argument("--first", type=int, default=0, help="seed of the first log")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--fresh", action="store_true", help="forget the stored rows first")
    parser.add_argument("--page", action="store_true", help="only write the table of the stored rows")
    said = parser.parse_args()
    if said.fresh:
        ROWS.unlink(missing_ok=True)
    if not said.page:
        rows_of(range(said.first, said.first + said.logs), said.jobs)
        table = pd.read_csv(ROWS).sort_values("seed")
        table.to_csv(ROWS, index=False, float_format="%.4g")
    page = with_table(PAGE.read_text(encoding="utf-8"), pd.read_csv(ROWS))
    PAGE.write_text(page, encoding="utf-8")
    print(page_table(pd.read_csv(ROWS)))


if __name__ == "__main__":
    main()
