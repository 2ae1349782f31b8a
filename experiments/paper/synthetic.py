"""Do the ranges hold the truth? Synthetic baselines drawn from the prior of a set-up, each fitted from the
numbers that the paper gives of it, and the range of OPPO's speed-up held against the true one.

    nice python experiments/paper/synthetic.py                  # resumable; says how many of 200 ranges hold
    nice python experiments/paper/synthetic.py --label "why"    # and logs it in synthetic_scorings.csv

A pool of machines of the prior (worlds × draws of the costs) is run once: seconds and GPU use of the baseline
as the fit computes them, the same simulated under another seed as a paper would tell them, and speed-ups. A
case takes one of them for the truth, tells its numbers with the errors that the fit takes them to have,
weighs all machines of all *other* worlds as the fit does, and looks at the range of 95 %.
"""

import argparse
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import pandas as pd
from oppo_runs import oppo_study, settings_of
from setups import SETUPS, UNRELATED
from study import RESULTS
from timing import timed

from oppo_sim import columns as c
from oppo_sim.costs.terms import CostTerms
from oppo_sim.fast.choose import run_columns
from oppo_sim.fit.baseline import UTILIZATION_KERNELS, Baseline, kernel_utilization
from oppo_sim.fit.priors import priors_for
from oppo_sim.fit.tempering import resampled, weights_of, worth
from oppo_sim.runs.ranges import machine_interval
from oppo_sim.scenario.build import build_parts, build_setup, cost_context

NAMES: Final = (c.TIMING_STEP, c.UTILIZATION_INFERENCE, UTILIZATION_KERNELS)
POLICIES: Final = ("intra", "inter", "oppo")
STEP_ERROR, USE_ERROR = 0.07, 0.04
"""As the baselines' numbers are known: minutes over a number of steps, and a share."""
DRAWS: Final = 80
_FIRST_WORLD: Final = 10_000
"""Worlds of the fit are not used again."""


PART: Final = "synthetic"
"""Among the parts of ``run.py``."""
SETUP: Final = "se-7b"
CASES, WORLDS, MACHINES = 200, 220, 20


def pool_file(name: str) -> Path:
    """One row a machine."""
    return RESULTS / f"pool_{name}.csv.gz"


def extend_pool(name: str, worlds: int, machines: int) -> pd.DataFrame:
    """``machines`` of each of ``worlds``; what is there is kept."""
    path = pool_file(name)
    rows: list[dict[str, Any]] = pd.read_csv(path).to_dict("records") if path.exists() else []
    done = {int(row["world"]) for row in rows}
    for number in range(_FIRST_WORLD, _FIRST_WORLD + worlds):
        if number in done:
            continue
        rows += _machines(name, number, machines)
        if number % 10 == 9:
            pd.DataFrame(rows).to_csv(path, index=False, float_format="%.6g")
            print(f"{time.strftime('%H:%M:%S')} {name}: world {number - _FIRST_WORLD + 1}", flush=True)
    pd.DataFrame(rows).to_csv(path, index=False, float_format="%.6g")
    return pd.read_csv(path)


def _machines(name: str, number: int, count: int) -> list[dict[str, Any]]:
    study = oppo_study(name)
    world = study.world(number)
    scenario = study.scenario(world)
    baseline = Baseline(scenario, NAMES, scenario.steps - 1)
    known = priors_for([scenario])
    beside = [prior.term for prior in scenario.costs.priors(cost_context(scenario))]
    names = [*baseline.terms, *(term for term in beside if term not in baseline.terms)]
    z = np.random.default_rng([number, 3]).standard_normal((count, len(names)))
    drawn = {term: known[term].median * np.exp(known[term].sigma * z[:, at]) for at, term in enumerate(names)}
    means, apart = baseline.estimated_apart({term: drawn[term] for term in baseline.terms})
    parts, context = build_parts(scenario), cost_context(scenario)
    rows = []
    for machine in range(count):
        terms = CostTerms(**{term: float(values[machine]) for term, values in drawn.items()})
        costs = scenario.costs.under(parts.costs, terms, context)
        row: dict[str, Any] = {"world": number, "gpu_use": world["gpu_use"]}
        row |= {f"mean_{at}": means[machine, at] for at in range(3)}
        row |= {f"cov_{at}{to}": apart[machine, at, to] for at in range(3) for to in range(at, 3)}
        for run in ("sequential", *POLICIES):
            policy, settings = settings_of(run, world)
            setup = build_setup(
                scenario, policy=policy, policy_settings=settings, steps=study.steps, parts=parts
            )
            frame = run_columns(replace(setup, costs=costs)).frame().iloc[study.warmup :]
            row[f"s_{run}"] = float(frame[c.TIMING_STEP].mean())
        told = build_setup(scenario, policy="sequential", steps=scenario.steps, seed=number + 1, parts=parts)
        frame = run_columns(replace(told, costs=costs)).frame().iloc[1:]
        row["told_0"] = float(frame[c.TIMING_STEP].mean())
        row["told_1"] = float(frame[c.UTILIZATION_INFERENCE].mean())
        row["told_2"] = kernel_utilization(frame, (scenario.rollout.num_replicas, 1))
        rows.append(row)
    return rows


def one_case(pool: pd.DataFrame, number: int) -> dict[str, Any]:
    """A machine of the pool as the truth. Where its GPU use is something else, any share is told."""
    generator = np.random.default_rng([number, 4])
    truth = pool.iloc[int(generator.integers(len(pool)))]
    step = float(truth["told_0"]) * (1.0 + STEP_ERROR * generator.standard_normal())
    use = generator.uniform() if truth["gpu_use"] == UNRELATED else float(truth[_column(truth["gpu_use"])])
    if truth["gpu_use"] != UNRELATED:
        use += USE_ERROR * generator.standard_normal()
    others = pool[pool["world"] != truth["world"]]
    logs = _agreement(others, step, use)
    weights = weights_of(logs)
    chosen = others.iloc[resampled(weights, DRAWS, generator)]
    row: dict[str, Any] = {
        "case": number,
        "gpu_use": truth["gpu_use"],
        "step_s": step,
        "told_use": use,
        "effective": worth(weights),
    }
    for run in POLICIES:
        faster = (chosen["s_sequential"] / chosen[f"s_{run}"]).tolist()
        real = float(truth["s_sequential"] / truth[f"s_{run}"])
        low, high = machine_interval(faster)
        row |= {f"{run}_truth": real, f"{run}_low": low, f"{run}_high": high}
        row[f"{run}_inside"] = int(low - 1e-9 <= real <= high + 1e-9)
    return row


def _column(gpu_use: str) -> str:
    return f"told_{NAMES.index(gpu_use)}"


def _agreement(pool: pd.DataFrame, step: float, use: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Log likelihood of every machine, as ``oppo fit --observe`` has it."""
    found = np.empty(len(pool))
    for meant, part in pool.groupby("gpu_use"):
        at = np.flatnonzero((pool["gpu_use"] == meant).to_numpy())
        places = [0] if meant == UNRELATED else [0, NAMES.index(str(meant))]
        told = np.array([step, use])[: len(places)]
        means = part[[f"mean_{place}" for place in places]].to_numpy()
        covariance = np.empty((len(part), len(places), len(places)))
        for i, one in enumerate(places):
            for j, other in enumerate(places):
                covariance[:, i, j] = part[f"cov_{min(one, other)}{max(one, other)}"]
        error = np.diag(np.array([STEP_ERROR * step, USE_ERROR])[: len(places)] ** 2)
        covariance = covariance + error
        off = told - means
        apart = np.einsum("di,di->d", off, np.linalg.solve(covariance, off[:, :, None])[:, :, 0])
        found[at] = -0.5 * (apart + np.linalg.slogdet(2 * np.pi * covariance)[1])
    return found


def cases_file(name: str) -> Path:
    """One row a case."""
    return RESULTS / f"synthetic_{name}.csv"


def files(name: str = SETUP) -> tuple[Path, ...]:
    """What a check makes."""
    return pool_file(name), cases_file(name)


def check_ranges(
    name: str = SETUP, cases: int = CASES, first: int = 0, worlds: int = WORLDS, machines: int = MACHINES
) -> dict[str, int]:
    """How many of the ranges hold the true speed-up, by policy; the cases are written."""
    with timed(PART, name == SETUP and not pool_file(name).exists()):
        pool = extend_pool(name, worlds, machines)
        made = pd.DataFrame([one_case(pool, number) for number in range(first, first + cases)])
    made.to_csv(cases_file(name), index=False, float_format="%.6g")
    inside = {run: int(made[f"{run}_inside"].sum()) for run in POLICIES}
    print(f"{name}: of {len(made)} ranges of 95 % hold {inside}; worth {made['effective'].median():.0f}")
    return inside


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--setup", choices=list(SETUPS), default=SETUP)
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--worlds", type=int, default=WORLDS)
    parser.add_argument("--machines", type=int, default=MACHINES, help="of each world")
    parser.add_argument("--label", default="", help="log what is scored in synthetic_scorings.csv")
    said = parser.parse_args()
    os.environ.setdefault("OPPO_ENGINE", "compiled")
    inside = check_ranges(said.setup, said.cases, said.first, said.worlds, said.machines)
    if not said.label:
        return
    scorings = RESULTS / "synthetic_scorings.csv"
    known = pd.read_csv(scorings) if scorings.exists() else pd.DataFrame()
    scored = {"setup": said.setup, "first": said.first, "cases": said.cases, **inside, "label": said.label}
    pd.concat([known, pd.DataFrame([scored])]).to_csv(scorings, index=False)


if __name__ == "__main__":
    main()
