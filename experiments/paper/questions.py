"""Questions of the paper's reviewers, answered on machines of the priors: every world of what OPPO did not
publish, not only those that agree with its baselines.

    nice python experiments/paper/questions.py a    # chunks, or is each finished rollout enough?
    nice python experiments/paper/questions.py e    # control of overcommit, or a good constant?

Each writes results/question_X.csv (resumable), a figure and question_X.md.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent))

import matplotlib as mpl
import numpy as np
import pandas as pd
from predicting import summary_of
from setups import SETUPS
from study import FOLDER, RESULTS, World
from unknowns import scenario_of, world_of

from oppo_sim.costs.terms import CostTerms
from oppo_sim.fast.choose import run_columns
from oppo_sim.fit.priors import priors_for
from oppo_sim.learning import measured_effect, progress
from oppo_sim.runs.ranges import machine_interval
from oppo_sim.scenario.build import build_parts, build_setup, cost_context
from oppo_sim.scenario.schema import Scenario

mpl.use("Agg")
import matplotlib.pyplot as plt

_FIRST_WORLD: Final = 20_000
_CONSTANTS: Final = (0, 2, 4, 8, 14, 28, 56)
Runs = Mapping[str, tuple[str, dict[str, Any], str]]
"""By name: policy, its settings, and which rewards."""


def _streaming(world: World) -> Runs:
    chunk = int(world["chunk_size"])
    rounds = {"stop_check": "chunk", "chunk_size": chunk}
    return {
        "batch": ("sequential", {}, "rising"),
        "rollout": ("rollout-overlap", {}, "rising"),
        "chunk": ("intra", {"chunk_size": chunk}, "rising"),
        "chunk in rounds": ("intra", rounds, "rising"),
        "inter + rollout": ("inter", {"overcommit": 14, "score_granularity": "rollout"}, "rising"),
        "inter + chunk": ("oppo", {"overcommit": 14, "chunk_size": chunk}, "rising"),
    }


def _control(world: World) -> Runs:
    found: dict[str, tuple[str, dict[str, Any], str]] = {"sequential": ("sequential", {}, "rising")}
    chunk = int(world["chunk_size"])
    for delta in _CONSTANTS:
        found[f"constant {delta}"] = ("oppo", {"chunk_size": chunk, "overcommit": delta}, "rising")
    for rewards in ("rising", "oscillating"):
        for most in (8, 28, 56):
            for window in (5, 20):
                control = {"control": "reward_slope", "max": most, "window": window}
                settings = {"chunk_size": chunk, "overcommit": control}
                found[f"{rewards} max {most} w {window}"] = ("oppo", settings, rewards)
    explore = {"control": "explore", "candidates": [128, 256, 512], "explore_every": 50}
    found["chunk explored"] = ("oppo", {"chunk_size": explore, "overcommit": 14}, "rising")
    return found


QUESTIONS: Final[Mapping[str, tuple[Callable[[World], Runs], int, int]]] = {
    "a": (_streaming, 26, 6),
    "e": (_control, 120, 20),
}
"""Runs, steps of each, and steps of these that are warm-up."""


def make(question: str, machines: int) -> pd.DataFrame:
    """All runs of ``machines`` machines a set-up; what is there is kept."""
    path = RESULTS / f"question_{question}.csv"
    rows: list[dict[str, Any]] = pd.read_csv(path).to_dict("records") if path.exists() else []
    done = {(row["setup"], int(row["world"])) for row in rows}
    for number in range(_FIRST_WORLD, _FIRST_WORLD + machines):
        for name in SETUPS:
            if (name, number) not in done and SETUPS[name].reward is not None:
                rows += _machine(question, name, number)
        pd.DataFrame(rows).to_csv(path, index=False, float_format="%.5g")
        print(f"{time.strftime('%H:%M:%S')} {question}: machine {number - _FIRST_WORLD + 1}", flush=True)
    return pd.read_csv(path)


def _machine(question: str, name: str, number: int) -> list[dict[str, Any]]:
    runs_of, steps, warmup = QUESTIONS[question]
    world = world_of(SETUPS[name], number)
    scenario = scenario_of(SETUPS[name], world)
    parts, context = build_parts(scenario), cost_context(scenario)
    costs = scenario.costs.under(parts.costs, _terms(scenario, number), context)
    rows = []
    for run, (policy, settings, rewards) in runs_of(world).items():
        here = scenario if rewards == "rising" else _oscillating(scenario)
        setup = build_setup(here, policy=policy, policy_settings=settings, steps=steps, parts=parts)
        frame = run_columns(replace(setup, costs=costs)).frame().iloc[warmup:]
        found = summary_of(frame, (scenario.rollout.num_replicas, 1))
        kept = {key: found[key] for key in ("step_s", "gen_s", "reward_s", "overcommit", "own_step")}
        worth = _worth(found)
        tail = world["tail"]
        rows.append(
            {
                "setup": name,
                "world": number,
                "engine": world["engine"],
                "tail": tail,
                "run": run,
                **kept,
                **worth,
            }
        )
    return rows


def _terms(scenario: Scenario, number: int) -> CostTerms:
    """One machine of the priors of ``oppo fit --observe``."""
    generator = np.random.default_rng([number, 5])
    own = {prior.term: prior for prior in scenario.costs.priors(cost_context(scenario))}
    drawn = {
        name: prior.median * np.exp(prior.sigma * generator.standard_normal())
        for name, prior in (priors_for([scenario]) | own).items()
        if name in CostTerms.model_fields
    }
    return CostTerms(**{name: float(value) for name, value in drawn.items()})


def _oscillating(scenario: Scenario) -> Scenario:
    """Rewards without a trend that swing with a period of 40 steps, as an unstable run's do."""
    values = [2.0 + 0.5 * np.sin(2 * np.pi * step / 40) for step in range(400)]
    plain = scenario.to_plain() | {"rewards": {"kind": "series", "values": [float(v) for v in values]}}
    return Scenario.model_validate(plain)


def _worth(found: Mapping[str, float]) -> dict[str, float]:
    """On-policy steps that a step is worth: the measured effect of staleness, and none."""
    stale = found["staleness"]
    whole = int(stale)
    shares = [0.0] * (whole + 2)
    shares[whole], shares[whole + 1] = 1.0 - (stale - whole), stale - whole
    return {"worth": progress(shares, found["length_bias"], measured_effect().strength)}


def page_a(rows: pd.DataFrame) -> str:
    """The answer to (a)."""
    table = rows.pivot(index=["setup", "world"], columns="run", values="step_s")
    scoring = rows[rows["run"] == "batch"].set_index(["setup", "world"])
    share = (scoring["reward_s"] / scoring["step_s"]).reindex(table.index)
    figure, axes = plt.subplots(figsize=(6, 3.6))
    pairs = {"alone": ("rollout", "chunk"), "beside overcommit 14": ("inter + rollout", "inter + chunk")}
    lines = [
        "| scoring of a step | machines | chunks over rollouts | beside overcommit 14 | chunks in rounds |"
    ]
    lines += ["|---|---|---|---|---|"]
    for (label, (left, right)), colour in zip(pairs.items(), ("#4575b4", "#d73027"), strict=True):
        axes.plot(share, table[left] / table[right], ".", ms=4, color=colour, label=label)
    for low, high in ((0.0, 0.1), (0.1, 0.2), (0.2, 0.4), (0.4, 1.0)):
        part = table[(share >= low) & (share < high)]
        cells = [
            _ranged(part[left] / part[right])
            for left, right in (*pairs.values(), ("rollout", "chunk in rounds"))
        ]
        lines.append(f"| {low:.0%} to {high:.0%} | {len(part)} | {' | '.join(cells)} |")
    axes.axhline(1, color="grey", lw=0.8)
    axes.set_xlabel("scoring's share of a sequential step")
    axes.set_ylabel("times faster than\nrollout scoring")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(RESULTS / "question_a.png", dpi=110)
    plt.close(figure)
    return "\n".join(lines)


def page_e(rows: pd.DataFrame) -> str:
    """The answer to (e)."""
    rows = rows.assign(to_reward=rows["step_s"] / rows["worth"])
    lines = [
        "| | seconds a step against constant 14 | time to a reward against constant 14 |",
        "|---|---|---|",
    ]
    found = {}
    for column in ("step_s", "to_reward"):
        found[column] = rows.pivot(index=["setup", "world"], columns="run", values=column)
    constants = [f"constant {delta}" for delta in _CONSTANTS]
    for run in found["step_s"].columns:
        cells = [_ranged(found[column]["constant 14"] / found[column][run]) for column in found]
        lines.append(f"| {run} | {' | '.join(cells)} |")
    best = {
        column: _ranged(found[column]["constant 14"] / found[column][constants].min(axis=1))
        for column in found
    }
    lines.append(
        f"| best constant of each machine (known afterwards) | {best['step_s']} | {best['to_reward']} |"
    )
    figure, axes = plt.subplots(figsize=(6, 3.4))
    for column, colour in (("step_s", "#4575b4"), ("to_reward", "#d73027")):
        ratios = [found[column]["constant 0"] / found[column][name] for name in constants]
        axes.plot(_CONSTANTS, [ratio.median() for ratio in ratios], "o-", color=colour, label=column)
        low, high = ([ratio.quantile(q) for ratio in ratios] for q in (0.1, 0.9))
        axes.fill_between(_CONSTANTS, low, high, color=colour, alpha=0.15)
    axes.set_xlabel("constant overcommit (B = 112)")
    axes.set_ylabel("times better than none")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(RESULTS / "question_e.png", dpi=110)
    plt.close(figure)
    return "\n".join(lines)


def _ranged(values: "pd.Series[float]") -> str:
    told = values.dropna()
    if not len(told):
        return "–"
    low, high = machine_interval(told.tolist())
    return f"{told.median():.3f} [{low:.3f}, {high:.3f}]"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("question", choices=list(QUESTIONS))
    parser.add_argument("--machines", type=int, default=60, help="of each set-up")
    said = parser.parse_args()
    os.environ.setdefault("OPPO_ENGINE", "compiled")
    rows = make(said.question, said.machines)
    table = {"a": page_a, "e": page_e}[said.question](rows)
    text = (FOLDER / f"question_{said.question}.text.md").read_text("utf-8")
    (FOLDER / f"question_{said.question}.md").write_text(text.replace("{table}", table), "utf-8")


if __name__ == "__main__":
    main()
