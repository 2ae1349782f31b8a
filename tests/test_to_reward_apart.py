"""Time and GPU-hours to a target reward, written apart from docs/model.md §8: from tables of single runs, a row a
trained rollout. Comparison, sweep and search have to agree with it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import oppo_sim
from oppo_sim.scenario.build import build_setup
from oppo_sim.scenario.load import load_scenario
from oppo_sim.traces.on_policy import on_policy_length_mean
from tests.cli_runs import TINY, write_scenario
from tests.tuning import choices, search

SEEDS, STEPS, WARMUP = 3, 14, 2
CURVE = {"kind": "saturating", "start": 1.0, "limit": 5.0, "time_constant": 37.0, "target": 4.2}
GPUS = 9
"""Of which 2 idle: two generate, one scores, four train."""
MACHINES = (
    {"decode": 1.3, "training": 0.8},
    {"decode": 0.7, "training": 1.1},
    {"decode": 1.0, "training": 2.5},
)
"""Draws of what is unknown about it, as factors."""
MEASURED = json.loads(Path(oppo_sim.__file__).with_name("staleness_effect.json").read_text("utf-8"))
EFFECTS: dict[str, tuple[Any, tuple[float, float], list[tuple[float, float]]]] = {
    "measured": (
        "measured",
        (MEASURED["staleness"], MEASURED["length_bias"]),
        [(a, b) for a, b in MEASURED["draws"]],
    ),
    "own": ({"staleness": 0.4, "length_bias": 2.0}, (0.4, 2.0), []),
    "none": ("none", (0.0, 0.0), []),
}
"""What a scenario says → a and b, and draws of them."""
POLICIES: dict[str, dict[str, Any]] = {
    "inter": {"overcommit": 3},
    "tail-batching": {"over_issue": 2.0},
    "async": {"max_staleness": 2},
}


def written(folder: Path, effect: Any, drawn: bool, **changes: Any) -> Path:
    """Long-tailed lengths, a warm-up, GPUs that idle; ``drawn``: a machine that is known up to its draws."""
    costs = dict(TINY["costs"])
    if drawn:
        lines = [",".join(MACHINES[0]), *(",".join(map(str, each.values())) for each in MACHINES)]
        (folder / "draws.csv").write_text("\n".join(lines) + "\n")
        costs["draws"] = "draws.csv"
    given: dict[str, Any] = {
        "costs": costs,
        "cluster": {"num_gpus": GPUS},
        "training": {"num_gpus": 4},
        "steps": STEPS,
        "warmup_steps": WARMUP,
        "trace": {"synth": {"parameters": {"mu": 2.2, "sigma": 0.9}, "rows": 60}, "prompt_length": 4},
        "rewards": {**CURVE, "staleness_effect": effect},
        "policy": {"name": "inter", **POLICIES["inter"]},
        "policies": {name: POLICIES[name] for name in ("async", "tail-batching")},
    }
    return write_scenario(folder, **(given | changes))


# ---- the brute force ---------------------------------------------------------------------------------------


class Apart:
    """Hours to the target, run by run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._runs: dict[Any, tuple[list[int], list[int], list[float]]] = {}
        # Steps on policy until the mean reward is there, by bisection of the curve.
        low, high = 0.0, 10_000.0
        while high - low > 1e-10:
            middle = (low + high) / 2
            reward = CURVE["limit"] + (CURVE["start"] - CURVE["limit"]) * math.exp(
                -middle / CURVE["time_constant"]
            )
            low, high = (middle, high) if reward < CURVE["target"] else (low, middle)
        self.steps_to_target = low

    def _run(self, policy: str, seed: int, machine: int | None) -> tuple[list[int], list[int], list[float]]:
        """Staleness and length of each rollout that counts, seconds of each step that counts."""
        if (policy, seed, machine) not in self._runs:
            factors = {} if machine is None else MACHINES[machine]
            overrides = {"costs.draws": "none"} | {
                f"costs.terms.{name}": value for name, value in factors.items()
            }
            scenario = load_scenario(self._path, [f"{name}={value}" for name, value in overrides.items()])
            settings = POLICIES.get(policy, {})
            made = oppo_sim.simulate(
                scenario, policy=policy, policy_settings=settings, seed=seed, steps=STEPS
            )
            rows = made.rollouts[made.rollouts["trained_step"] >= WARMUP]
            seconds = made.steps["timing_s/step"][WARMUP:].tolist()
            self._runs[policy, seed, machine] = (
                rows["staleness"].tolist(),
                rows["response_length"].tolist(),
                seconds,
            )
        return self._runs[policy, seed, machine]

    def worth(self, policy: str, seed: int, effect: tuple[float, float], machine: int | None = None) -> float:
        stale, lengths, _ = self._run(policy, seed, machine)
        usual = self._run("sequential", seed, machine)[1]
        bias = sum(lengths) / len(lengths) / (sum(usual) / len(usual)) - 1
        each = [math.exp(-effect[0] * min(updates, 16)) for updates in stale]
        return sum(each) / len(each) * math.exp(-effect[1] * abs(bias))

    def hours(self, policy: str, seed: int, effect: tuple[float, float], machine: int | None = None) -> float:
        seconds = self._run(policy, seed, machine)[2]
        a_step = sum(seconds) / len(seconds)
        return self.steps_to_target * a_step / self.worth(policy, seed, effect, machine) / 3600


def mean(values: list[float]) -> float:
    return math.prod(values) ** (1 / len(values))


def interval(at: list[float], drawn: list[float]) -> tuple[float, float]:
    """Of seeds (Student, logs) and of draws (Weibull's places), distances added as squares."""
    logs, middle = np.log(at), math.log(mean(at))
    half = stats.t.ppf(0.975, len(at) - 1) * logs.std(ddof=1) / math.sqrt(len(at))
    below = above = half**2
    if drawn:
        low, high = np.quantile(np.log(drawn), [0.025, 0.975], method="weibull")
        below += max(0.0, middle - low) ** 2
        above += max(0.0, high - middle) ** 2
    return math.exp(middle - math.sqrt(below)), math.exp(middle + math.sqrt(above))


def expected(
    apart: Apart, policy: str, effect: str, drawn: bool, *, every_seed: bool, first: int = 0
) -> dict[str, float]:
    """Columns of a policy on seeds from ``first`` on. On a drawn machine draw k of it goes with draw k of the
    effect, with all seeds (``every_seed``) or with the k-th alone, freed of what that seed does of its
    own."""
    _, strength, draws = EFFECTS[effect]
    seeds = range(first, first + SEEDS)
    at = [apart.hours(policy, seed, strength) for seed in seeds]
    base = [apart.hours("sequential", seed, strength) for seed in seeds]
    gains = [there / own for own, there in zip(at, base, strict=True)]
    drawn_hours, drawn_gains = [], []
    for number in range(len(MACHINES) if drawn else len(draws)):
        machine = number if drawn else None
        here = draws[number % len(draws)] if draws else strength
        places = list(range(SEEDS)) if every_seed or not drawn else [number % SEEDS]
        own = [apart.hours(policy, seeds[place], here, machine) for place in places]
        there = [apart.hours("sequential", seeds[place], here, machine) for place in places]
        drawn_hours.append(mean(own) / mean([at[place] for place in places]) * mean(at))
        drawn_gains.append(mean(there) / mean(own) / mean([gains[place] for place in places]) * mean(gains))
    hours, gain = interval(at, drawn_hours), interval(gains, drawn_gains)
    return {
        "progress": sum(apart.worth(policy, seed, strength) for seed in seeds) / SEEDS,
        "hours_to_reward": mean(at),
        "hours_to_reward_low": hours[0],
        "hours_to_reward_high": hours[1],
        "gpu_hours_to_reward": mean(at) * GPUS,
        "gpu_hours_to_reward_low": hours[0] * GPUS,
        "gpu_hours_to_reward_high": hours[1] * GPUS,
        "speedup_to_reward": mean(gains),
        "speedup_to_reward_low": gain[0],
        "speedup_to_reward_high": gain[1],
    }


# ---- who has to agree --------------------------------------------------------------------------------------


@pytest.mark.parametrize("drawn", [False, True], ids=["exact machine", "drawn machine"])
@pytest.mark.parametrize("effect", list(EFFECTS))
def test_comparison_sweep_and_search_agree_with_it(tmp_path: Path, effect: str, drawn: bool) -> None:
    path = written(tmp_path, EFFECTS[effect][0], drawn)
    apart = Apart(path)
    common: dict[str, Any] = {"objective": "time_to_reward", "seeds": SEEDS}

    compared = oppo_sim.compare(path, list(POLICIES), attribution=False, **common).table
    for policy in POLICIES:
        told = expected(apart, policy, effect, drawn, every_seed=True)
        assert compared.loc[policy, list(told)].to_dict() == pytest.approx(told, rel=1e-9), policy
    assert compared.loc["sequential", "progress"] == pytest.approx(1.0, rel=1e-12)

    swept = oppo_sim.sweep(path, grid={"policy.name": list(POLICIES)}, executor="serial", **common).points
    for policy, row in swept.set_index("policy.name").iterrows():
        told = expected(apart, str(policy), effect, drawn, every_seed=False)
        assert row[list(told)].to_dict() == pytest.approx(told, rel=1e-9), policy

    # A search of one trial on seed 0 looks again on fresh seeds, from 1 on.
    tuned = search(
        load_scenario(path),
        policies=("inter",),
        space=(choices("policy.overcommit", 3),),
        trials=1,
        seeds=1,
        fresh_seeds=SEEDS,
        objective="time_to_reward",
    )
    told = expected(apart, "inter", effect, drawn, every_seed=False, first=1)
    chosen = {**tuned.record["chosen"]["by_world"][0], **tuned.record["chosen"]}
    assert {name: chosen[name] for name in told} == pytest.approx(told, rel=1e-9)


# ---- what sequential training takes, without running it ----------------------------------------------------


@pytest.mark.parametrize("sampling", ["resample", "in_order", "by_step"])
@pytest.mark.parametrize("judged", [False, True], ids=["all groups", "dynamic sampling"])
def test_the_lengths_of_training_on_policy_are_those_that_sequential_trains(
    tmp_path: Path, sampling: str, judged: bool
) -> None:
    rows = ["step,prompt_id,prompt_length,response_length"]
    rows += [f"{n // 12},{n // 2},4,{1 + (n * n * 7) % 39}" for n in range(96)]
    (tmp_path / "rows.csv").write_text("\n".join(rows) + "\n")
    path = written(
        tmp_path,
        "measured",
        drawn=False,
        trace={"path": "rows.csv", "sampling": sampling},
        rollout_batch_size=6,
        group_size=2,
        dynamic_sampling={"enable": judged, "pass_rate": {"alpha": 4.0, "beta": 4.0}},
        policy={"name": "inter", "overcommit": 2},
        policies={},
    )
    scenario = load_scenario(path)
    steps = oppo_sim.simulate(scenario, policy="sequential", seed=5).steps[WARMUP:]
    assert (steps["rollouts/filtered"].sum() > 0) == judged
    setup = build_setup(scenario, seed=5)
    found = on_policy_length_mean(setup.replay, 6, WARMUP, STEPS, setup.sample_rewards)
    assert found == pytest.approx(steps["response_length/mean"].mean(), rel=1e-12)
