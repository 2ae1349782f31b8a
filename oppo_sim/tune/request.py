"""What to tune, and how much may be spent on it."""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.policies.knobs import Knob
from oppo_sim.runs.execute import ExecutorName
from oppo_sim.scenario.schema import Scenario
from oppo_sim.tune.constraints import Constraints
from oppo_sim.tune.worlds import WorldSpec

Objective = Literal["rollouts", "tokens"]
Robust = Literal["mean", "worst", "quantile"]

UNIT_COST = {"rollouts": c.S_PER_ROLLOUT, "tokens": c.S_PER_TOKEN}
"""Objective → the total that is minimised, seconds."""
UNIT_SAID = {"rollouts": "seconds per trained rollout", "tokens": "seconds per trained response token"}
DEFAULT_SEEDS = 5
DEFAULT_FRESH_SEEDS = 10


@dataclass(frozen=True)
class TuneRequest:
    """A search. Its result depends on everything here but ``trials``, ``timeout_s``, where it runs,
    ``folder``, ``force`` and ``figures``: with more trials or time the same search goes on."""

    scenario: Scenario | str | Path
    folder: Path | None = None
    """Where trials and results lie; None: nowhere, they are kept for as long as ``tune`` runs."""
    overrides: tuple[str, ...] = ()
    """``a.b=c``, for a scenario by name or path."""
    policies: tuple[str, ...] | None = None
    """None: the synchronous shipped ones that the scenario can run, and its own."""
    space: tuple[Knob, ...] = ()
    """Ranges that replace the default ones, or add fields."""
    objective: Objective = "rollouts"
    constraints: Constraints = field(default_factory=Constraints)
    worlds: WorldSpec = field(default_factory=WorldSpec)
    robust: Robust = "mean"
    """With several worlds: mean, worst or 90 % quantile of the regret over them."""
    trials: int = 200
    seeds: int | None = None
    """Common to all trials, from the scenario's seed on; None: 5, or 1 where a trace is replayed in order."""
    fresh_seeds: int | None = None
    """Further ones that no trial saw, for what is reported; None: 10, or none where a trace is replayed in
    order."""
    steps: int | None = None
    """None: the scenario's."""
    sampler_seed: int = 0
    timeout_s: float | None = None
    """Of the search; what comes after it (fresh seeds, sensitivity) is done in any case."""
    executor: ExecutorName = "processes"
    """Where to simulate: ``serial``, ``processes`` or ``ray``. Results do not depend on it."""
    jobs: int | None = 1
    """Processes; None: one a core."""
    ray_address: str | None = None
    """Of a running cluster; None: RAY_ADDRESS, else a local one."""
    force: bool = False
    """Begin anew where the folder holds another search."""
    figures: bool = True

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("trials", self.trials, 1, 100_000),
            ("seeds", self.seeds, 1, 1000),
            ("fresh_seeds", self.fresh_seeds, 1, 1000),
        ):
            if value is not None and not low <= value <= high:
                raise OppoError(f"{name} {value} is out of range: give {low:,} to {high:,}")
        if self.timeout_s is not None and self.timeout_s <= 0:
            raise OppoError(
                f"timeout_s {self.timeout_s} leaves no time: give seconds above 0, or leave it out"
            )
        if self.objective not in UNIT_COST:
            raise OppoError(f"objective '{self.objective}' is unknown: choose {' or '.join(UNIT_COST)}")
        if self.robust not in get_args(Robust):
            raise OppoError(f"robust '{self.robust}' is unknown: choose {', '.join(get_args(Robust))}")


@dataclass(frozen=True)
class Seeds:
    """Which seeds a search uses."""

    search: tuple[int, ...]
    fresh: tuple[int, ...]
    """Empty: nothing is random."""
    exact: bool = field(default=False)
    """The trace is replayed in order: every seed gives the same run."""


def seeds_of(request: TuneRequest, scenario: Scenario) -> Seeds:
    """The seeds of a request. Raises OppoError for several seeds of a trace that is replayed in order."""
    if scenario.trace.sampling == "in_order":
        if (request.seeds or 1) > 1 or request.fresh_seeds is not None:
            raise OppoError(
                "trace.sampling in_order replays the same rollouts under every seed: leave out seeds, or use"
                " sampling resample"
            )
        return Seeds((scenario.seed,), (), exact=True)
    first = scenario.seed
    count = request.seeds or DEFAULT_SEEDS
    fresh = request.fresh_seeds or DEFAULT_FRESH_SEEDS
    return Seeds(tuple(range(first, first + count)), tuple(range(first + count, first + count + fresh)))


def identity(request: TuneRequest, scenario: Scenario, inputs: str) -> dict[str, Any]:
    """What makes two searches the same, as plain values; ``inputs`` stands for the contents of files and for
    this program."""
    return {
        "scenario_sha256": scenario.content_hash,
        "inputs": inputs,
        "policies": None if request.policies is None else list(request.policies),
        "space": [knob.described() for knob in request.space],
        "objective": request.objective,
        "constraints": request.constraints.described(),
        "worlds": request.worlds.described(),
        "robust": request.robust,
        "seeds": request.seeds,
        "fresh_seeds": request.fresh_seeds,
        "steps": request.steps,
        "sampler_seed": request.sampler_seed,
    }


def digest_of(plain: dict[str, Any]) -> str:
    """SHA-256 (hex) of plain values."""
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
