"""Do the ranges hold the truth? Synthetic baselines drawn from the prior of a set-up, each fitted from the
numbers that the paper gives of it, and the range of OPPO's speed-up held against the true one.

    nice python experiments/paper/synthetic.py --setup se-3b    # resumable; says how many of 200 ranges hold
    nice python experiments/paper/synthetic.py --label "why"    # and logs it in synthetic_scorings.csv

A pool of machines of the prior (worlds × draws of the costs) is run once: seconds and GPU use of the baseline
as the fit computes them, the same simulated under another seed as a paper would tell them, and speed-ups. A
case takes one of them for the truth, tells of it what is published of the set-up, with the errors that the
fit takes it to have, weighs all machines of all *other* worlds as the fit does, and looks at the range of
95 %.
"""

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import numpy.typing as npt
import pandas as pd
from fitting import DRAWS, independent
from oppo_runs import oppo_study, settings_of
from setups import SETUPS
from study import RESULTS
from timing import timed
from unknowns import CHOICES

from oppo_sim import columns as c
from oppo_sim.costs.terms import CostTerms
from oppo_sim.fast.choose import run_columns
from oppo_sim.fit.baseline import UTILIZATION_KERNELS, Baseline, kernel_utilization
from oppo_sim.fit.inference.tempering import resampled, weights_of
from oppo_sim.fit.observe import Observation, agreement, read_observation
from oppo_sim.fit.terms.priors import priors_for
from oppo_sim.runs.ranges import machine_interval
from oppo_sim.scenario.build import build_parts, build_setup, cost_context

NAMES: Final = (c.TIMING_STEP, c.UTILIZATION_INFERENCE, UTILIZATION_KERNELS)
POLICIES: Final = ("intra", "inter", "oppo")
FIRST_WORLD: Final = 50_000
"""Worlds of the fit are not used again; those from 10,000 on, with cases from 0 on, were looked at while the
ranges were mended."""
FIRST_CASE: Final = 1000
CASES, WORLDS, MACHINES = 200, 500, 5
Floats = npt.NDArray[np.float64]


def part_of(name: str) -> str:
    """Name of a set-up's check among the parts of ``run.py``."""
    return f"synthetic-{name}"


def pool_file(name: str) -> Path:
    """One row a machine."""
    return RESULTS / f"pool_{name}.csv.gz"


def extend_pool(name: str, worlds: int, machines: int) -> pd.DataFrame:
    """``machines`` of each of ``worlds``; what is there is kept."""
    path = pool_file(name)
    rows: list[dict[str, Any]] = pd.read_csv(path).to_dict("records") if path.exists() else []
    done = {int(row["world"]) for row in rows}
    left = [number for number in range(FIRST_WORLD, FIRST_WORLD + worlds) if number not in done]
    for number in left:
        rows += _machines(name, number, machines)
        if number % 10 == 9 or number == left[-1]:
            compressed = {"method": "gzip", "mtime": 0}  # the same bytes whenever they are made
            pd.DataFrame(rows).to_csv(path, index=False, float_format="%.6g", compression=compressed)
            print(f"{time.strftime('%H:%M:%S')} {name}: world {number - FIRST_WORLD + 1}", flush=True)
    return pd.read_csv(path)


def _machines(name: str, number: int, count: int) -> list[dict[str, Any]]:
    study = oppo_study(name)
    world = study.world(number)
    scenario = study.scenario(world)
    baseline = Baseline(scenario, NAMES, scenario.steps - 1)
    known = priors_for([scenario])
    beside = [prior.term for prior in scenario.costs.priors(cost_context(scenario))]
    names = [*dict.fromkeys((*baseline.terms, *beside, *study.beside))]
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


def one_case(name: str, pool: pd.DataFrame, number: int) -> dict[str, Any]:
    """A machine of the pool as the truth; its numbers are told as those of the set-up's baseline are."""
    generator = np.random.default_rng([number, 4])
    truth = pool.iloc[int(generator.integers(len(pool)))]
    told = told_of(name, truth, generator)
    others = pool[pool["world"] != truth["world"]]
    weights = weights_of(_logs(name, others, told))
    chosen = others.iloc[resampled(weights, DRAWS, generator)]
    told_by = independent(chosen["world"])
    row: dict[str, Any] = {
        "case": number,
        "gpu_use": truth["gpu_use"],
        "step_s": float(truth["told_0"]),
        "independent": told_by,
    }
    for run in POLICIES:
        faster = (chosen["s_sequential"] / chosen[f"s_{run}"]).tolist()
        real = float(truth["s_sequential"] / truth[f"s_{run}"])
        low, high = machine_interval(faster, told_by)
        row |= {f"{run}_truth": real, f"{run}_low": low, f"{run}_high": high}
        row[f"{run}_inside"] = int(low - 1e-9 <= real <= high + 1e-9)
    return row


def told_of(
    name: str, truth: "pd.Series[Any]", generator: np.random.Generator
) -> dict[str, tuple[Observation, ...]]:
    """What would be published of a machine, by what its GPU use is taken to be: the numbers that are known of
    the set-up, with their errors. The truth lies anywhere in a range, by its logarithm."""
    place, any_use = generator.uniform(size=2)
    off_step, off_use = generator.standard_normal(2)
    meant, known = str(truth["gpu_use"]), oppo_study(name).known

    def told(one: Observation) -> Observation:
        if one.name != c.TIMING_STEP:
            use = (
                float(truth[f"told_{NAMES.index(meant)}"]) + off_use * one.spread
                if meant in NAMES
                else any_use
            )
            return one._replace(low=use, high=use)
        error = 1.0 + off_step * one.spread / one.low if one.low == one.high else 1.0
        times = error * float(truth["told_0"]) / (one.low ** (1.0 - place) * one.high**place)
        return one._replace(low=times * one.low, high=times * one.high, spread=times * one.spread)

    found = {}
    for meaning in CHOICES["gpu_use"].values:
        published = [read_observation(text) for text in known({"gpu_use": meaning})]
        found[meaning] = tuple(told(one) for one in published if one.name in NAMES)
    return found


def _logs(name: str, pool: pd.DataFrame, told: Mapping[str, Sequence[Observation]]) -> Floats:
    """Log likelihood of every machine, as the fit has it."""
    offset, found = oppo_study(name).offset, np.zeros(len(pool))
    for meaning, part in pool.groupby("gpu_use"):
        observations = told[str(meaning)]
        places = [NAMES.index(one.name) for one in observations]
        if not places:
            continue
        means = part[[f"mean_{place}" for place in places]].to_numpy()
        apart = np.empty((len(part), len(places), len(places)))
        for i, one in enumerate(places):
            for j, other in enumerate(places):
                apart[:, i, j] = part[f"cov_{min(one, other)}{max(one, other)}"]
        at = np.flatnonzero((pool["gpu_use"] == meaning).to_numpy())
        found[at] = agreement(means, apart, observations) + offset({"gpu_use": meaning})
    return found


def cases_file(name: str) -> Path:
    """One row a case."""
    return RESULTS / f"synthetic_{name}.csv"


def files(name: str) -> tuple[Path, ...]:
    """What a check makes."""
    return pool_file(name), cases_file(name)


def check_ranges(
    name: str, cases: int = CASES, first: int = FIRST_CASE, worlds: int = WORLDS, machines: int = MACHINES
) -> dict[str, int]:
    """How many of the ranges hold the true speed-up, by policy; the cases are written."""
    with timed(part_of(name), not pool_file(name).exists()):
        pool = extend_pool(name, worlds, machines)
        made = pd.DataFrame([one_case(name, pool, number) for number in range(first, first + cases)])
    made.to_csv(cases_file(name), index=False, float_format="%.6g")
    inside = {run: int(made[f"{run}_inside"].sum()) for run in POLICIES}
    told_by = made["independent"].median()
    print(f"{name}: of {len(made)} ranges of 95 % hold {inside}; told by {told_by:.0f} worlds")
    return inside


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--setup", choices=list(SETUPS), default="se-7b")
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--first", type=int, default=FIRST_CASE, help="number of the first case")
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
