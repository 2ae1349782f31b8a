"""How a question is asked: every run of it on the same machines.

A machine is a world of what OPPO did not publish, costs of the priors, and rollouts of its own draw.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
from predicting import summary_of
from setups import SETUPS
from study import RESULTS, World
from unknowns import scenario_of, world_of

from oppo_sim import columns as c
from oppo_sim.costs.priors import Prior
from oppo_sim.costs.terms import CostTerms
from oppo_sim.errors import OppoError
from oppo_sim.fast.choose import run_columns
from oppo_sim.fit.terms.priors import priors_for
from oppo_sim.learning import measured_effect, progress
from oppo_sim.scenario.build import Parts, build_parts, build_setup, cost_context
from oppo_sim.scenario.schema import Scenario

FIRST_WORLD: Final = 20_000
KEPT: Final = (
    "step_s", "gen_s", "reward_s", "utilization", "overcommit", "own_step", "one_step", "staleness",
    "length_bias",
)  # fmt: skip
DIGITS: Final = 4
"""Significant, of stored numbers; the rest tells nothing."""


class Case(NamedTuple):
    """One run of a question."""

    policy: str
    settings: Mapping[str, Any] = {}
    world: Mapping[str, Any] = {}
    """Unknowns that have this value, whatever was drawn."""
    scenario: Mapping[str, Any] = {}
    """Sections of the scenario, laid over it."""


Cases = Mapping[str, Case]


class Question(NamedTuple):
    """What is run, and on how many machines of each set-up."""

    cases: Callable[[World], Cases]
    page: Callable[[pd.DataFrame], str]
    """Draws the figure; gives the table."""
    machines: int
    steps: int = 26
    """Of each run, with its warm-up."""
    warmup: int = 6
    setups: tuple[str, ...] = ("se-7b", "se-3b", "opencoder-3b", "nodes-7b")


def laid_over(plain: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """``plain`` with the fields of ``patch``; a section with a ``kind`` takes the place of the old one."""
    merged = dict(plain)
    for name, value in patch.items():
        before = merged.get(name)
        inside = isinstance(before, Mapping) and isinstance(value, Mapping) and "kind" not in value
        merged[name] = laid_over(before, value) if inside else value
    return merged


def rows_file(letter: str) -> Path:
    """One row a machine and run."""
    return RESULTS / f"question_{letter}.csv"


def ask(letter: str, question: Question, machines: int) -> pd.DataFrame:
    """All runs on the first ``machines`` machines of each set-up; what is there is kept. A run that cannot be
    (memory, say) has no row."""
    path = rows_file(letter)
    rows: list[dict[str, Any]] = pd.read_csv(path).to_dict("records") if path.exists() else []
    done = {(row["setup"], int(row["world"])) for row in rows}
    began = time.monotonic()
    for number in range(FIRST_WORLD, FIRST_WORLD + machines):
        left = [name for name in question.setups if (name, number) not in done]
        for name in left:
            rows += _machine(question, name, number)
        if left:
            pd.DataFrame(rows).to_csv(path, index=False, float_format=f"%.{DIGITS}g")
            seconds = time.monotonic() - began
            print(f"question {letter}: machine {number - FIRST_WORLD + 1}, {seconds:.0f} s", flush=True)
    return pd.read_csv(path)


def _machine(question: Question, name: str, number: int) -> list[dict[str, Any]]:
    drawn = world_of(SETUPS[name], number)
    deviations = deviations_of(number)
    built: dict[str, Parts] = {}
    rows = []
    for run, case in question.cases(drawn).items():
        try:
            world = {**drawn, **case.world}
            plain = scenario_of(SETUPS[name], world).to_plain()
            scenario = Scenario.model_validate(laid_over(plain, case.scenario))
            parts = built.setdefault(scenario.content_hash, build_parts(scenario))
            setup = build_setup(
                scenario,
                policy=case.policy,
                policy_settings=dict(case.settings),
                steps=question.steps,
                seed=number,
                parts=parts,
            )
            terms = terms_of_machine(scenario, deviations)
            costs = scenario.costs.under(parts.costs, terms, cost_context(scenario))
            frame = run_columns(replace(setup, costs=costs)).frame().iloc[question.warmup :]
        except OppoError:
            continue
        found = summary_of(frame, (scenario.rollout.num_replicas, 1))
        rows.append(
            {
                "setup": name,
                "world": number,
                "engine": world["engine"],
                "tail": world["tail"],
                "shape": world["tail_shape"],
                "run": run,
                **{key: found[key] for key in KEPT},
                "stalest": int(frame[c.STALENESS_MAX].max()),
                "beyond_one": _beyond_one(frame),
                "worth": _worth(frame, found["length_bias"]),
            }
        )
    return rows


def deviations_of(number: int) -> dict[str, float]:
    """Standard normal draws by term: one machine of the priors of ``oppo fit --observe``. With another engine
    or reward model it keeps them."""
    generator = np.random.default_rng([number, 5])
    return {name: float(generator.standard_normal()) for name in sorted(CostTerms.model_fields)}


def priors_of(scenario: Scenario) -> dict[str, Prior]:
    """Of every term that a machine may have."""
    own = {prior.term: prior for prior in scenario.costs.priors(cost_context(scenario))}
    return {
        name: prior
        for name, prior in (priors_for([scenario]) | own).items()
        if name in CostTerms.model_fields
    }


def terms_of_machine(scenario: Scenario, deviations: Mapping[str, float]) -> CostTerms:
    drawn = {
        name: prior.median * float(np.exp(prior.sigma * deviations[name]))
        for name, prior in priors_of(scenario).items()
    }
    return CostTerms(**drawn)


def _shares(frame: pd.DataFrame) -> list[float]:
    """Of trained rollouts with staleness 0, 1, …"""
    histograms = list(frame[c.STALENESS_HISTOGRAM])
    total = np.zeros(max(len(each) for each in histograms))
    for each in histograms:
        total[: len(each)] += np.asarray(each, dtype=np.float64)
    return [float(share) for share in total / total.sum()]


def _beyond_one(frame: pd.DataFrame) -> float:
    return sum(_shares(frame)[2:])


def _worth(frame: pd.DataFrame, length_bias: float) -> float:
    """On-policy steps that a step is worth, by the strength of the measured effect of staleness; what is
    unknown of it (its draws) moves no row."""
    return progress(_shares(frame), length_bias, measured_effect().strength)
