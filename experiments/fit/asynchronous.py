"""What whole steps of an asynchronous run tell of its generation, where the truth is known.

    python experiments/fit/asynchronous.py --logs 36 --jobs 2    # writes asynchronous.csv, ten CPU minutes
    python experiments/fit/asynchronous.py --page                # the table of README.md from stored rows

Costs of each run are a draw of the scenario's priors; 45 steps of ``async`` are simulated and logged as
verl's fully asynchronous trainer does. The fit sees the log alone. ``sequential`` and ``async`` of the truth
are then simulated beside those of the fitted and of the unfitted costs.
"""

import argparse
import sys
import tempfile
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[2]))

from oppo_sim.columns import TIMING_STEP, TRAINING_STAGES, timing
from oppo_sim.costs.terms import CostTerms
from oppo_sim.fit.call import fit
from oppo_sim.runs.machine import machine_of
from oppo_sim.scenario.load import load_scenario
from oppo_sim.scenario.schema import Scenario
from oppo_sim.simulation import simulate

ROWS: Final = Path(__file__).parent / "asynchronous.csv"
PAGE: Final = Path(__file__).parent / "README.md"
STEPS: Final = 45
JUDGED: Final = 40
"""Draws of the fitted costs whose steps make an interval."""
BEGIN: Final = "<!-- rows of asynchronous.csv -->\n"
POLICIES: Final = ("sequential", "async")


def scenario_of(staleness: int) -> Scenario:
    """Three replicas and five GPUs that train; 128 rollouts."""
    return load_scenario(
        "h200x8-async",
        [f"policy.max_staleness={staleness}", "rollout_batch_size=128", f"steps={STEPS}", "warmup_steps=15"],
    )


def under(scenario: Scenario, terms: CostTerms) -> Scenario:
    """The scenario with these terms, taken as given."""
    costs = scenario.costs.model_copy(update={"terms": terms, "draws": "none"})
    return scenario.model_copy(update={"costs": costs})


def step_s(scenario: Scenario, policy: str) -> float:
    """Mean after the warm-up."""
    run = simulate(scenario, policy=policy, steps=STEPS)
    return float(run.steps[TIMING_STEP].iloc[15:].mean())


def written(path: Path, run: pd.DataFrame) -> float:
    """The log; returns the share of a step that the trainer waits, median."""
    lines, shares = [], []
    for number, row in enumerate(run.to_dict("records"), start=1):
        stages = {timing(stage): row[timing(stage)] for stage in TRAINING_STAGES if row[timing(stage)] > 0}
        wait = max(0.0, row[TIMING_STEP] - sum(stages.values()))
        shares.append(wait / row[TIMING_STEP])
        figures = {
            **stages,
            "timing_s/gen": wait,
            "timing_s/step": row[TIMING_STEP],
            "fully_async/trainer/idle_ratio": shares[-1],
            **{name: row[name] for name in run.columns if name.startswith("response_length/")},
            "prompt_length/mean": 128.0,
        }
        lines.append(f"step:{number} - " + " - ".join(f"{name}:{value}" for name, value in figures.items()))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return float(np.median(shares))


def row_of(number: int) -> dict[str, Any]:
    """One run."""
    warnings.simplefilter("ignore")
    scenario = scenario_of(1 + number % 3)
    drawn = machine_of(scenario.model_copy(update={"seed": 1000 + number}), 1).draws[0]
    truth = under(scenario, drawn).model_copy(update={"seed": 77 + number})
    found: dict[str, Any] = {"run": number, "max_staleness": 1 + number % 3}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "train.log"
        found["waited"] = written(log, simulate(truth, steps=STEPS).steps)
        result = fit(log, scenario, log_lengths=True, folder=Path(folder) / "fit")
        found["waits"] = any("generation holds the run up" in note for note in result.notes)
        fitted = load_scenario(str(Path(folder) / "fit" / "scenario.yaml"))
        for policy in POLICIES:
            true = step_s(truth, policy)
            steps = [step_s(under(fitted, draw), policy) for draw in result.draws[:JUDGED]]
            low, high = np.quantile(steps, (0.025, 0.975))
            found |= {
                f"{policy} truth": true,
                f"{policy} fitted": float(np.median(steps)),
                f"{policy} inside": bool(low <= true <= high),
                f"{policy} priors": step_s(scenario, policy),
            }
    return found


def table(rows: pd.DataFrame) -> str:
    """Markdown."""
    lines = [
        "| simulated runs | n | `sequential`: error, median (90th) | at the priors | inside 95 %"
        " | gain of `async`: error, median (90th) | at the priors |",
        "|---|---|---|---|---|---|---|",
    ]
    for waits, name in (
        (True, "the trainer waits a fifth of a step or more: fitted to whole steps"),
        (False, "it waits less: at the priors"),
    ):
        kept = rows[rows["waits"] == waits]
        if kept.empty:
            continue
        step = {
            way: (kept[f"sequential {way}"] / kept["sequential truth"] - 1).abs()
            for way in ("fitted", "priors")
        }
        gain = {
            way: kept[f"sequential {way}"] / kept[f"async {way}"] for way in ("truth", "fitted", "priors")
        }
        off = {way: (gain[way] / gain["truth"] - 1).abs() for way in ("fitted", "priors")}
        cells = [_shown(step["fitted"]), _shown(step["priors"]), f"{kept['sequential inside'].mean():.0%}"]
        cells += [_shown(off["fitted"]), _shown(off["priors"])]
        lines.append(f"| {name} | {len(kept)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _shown(errors: "pd.Series[float]") -> str:
    return f"{errors.median():.1%} ({errors.quantile(0.9):.1%})"


def with_table(page: str, rows: pd.DataFrame) -> str:
    """The page with the table between its marks."""
    before, _, after = page.split(BEGIN)
    return f"{before}{BEGIN}\n{table(rows)}\n\n{BEGIN}{after}"


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    if not given.page:
        with ProcessPoolExecutor(given.jobs) as pool:
            rows = []
            for row in pool.map(row_of, range(given.logs)):
                rows.append(row)
                pd.DataFrame(rows).to_csv(ROWS, index=False, float_format="%.5g")
                print(row, flush=True)
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_table(page, pd.read_csv(ROWS)), encoding="utf-8")
    print(table(pd.read_csv(ROWS)))


if __name__ == "__main__":
    main()
