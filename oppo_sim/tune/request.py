"""What to tune, how much may be spent on it, and the bounds that a setting must keep."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, get_args

from oppo_sim import columns as c
from oppo_sim.errors import OppoError, check_count, check_share
from oppo_sim.policies.knobs import Knob
from oppo_sim.report.labels import format_signed
from oppo_sim.runs.execute import ExecutorName
from oppo_sim.runs.machine import DEFAULT_DRAWS
from oppo_sim.runs.statistics import length_bias, paired_bias
from oppo_sim.scenario.build import Parts
from oppo_sim.scenario.overrides import Overrides
from oppo_sim.scenario.schema import Scenario
from oppo_sim.tune.frameworks.catalog import framework
from oppo_sim.tune.worlds import WorldSpec

Objective = Literal["rollouts", "tokens", "time_to_reward"]
Robust = Literal["mean", "worst", "quantile"]

UNIT_COST = {"rollouts": c.S_PER_ROLLOUT, "tokens": c.S_PER_TOKEN, "time_to_reward": c.TIME_TO_REWARD_S}
"""Objective → the total that is minimised, seconds."""
UNIT_TEXT = {
    "rollouts": "seconds per trained rollout",
    "tokens": "seconds per trained response token",
    "time_to_reward": "seconds to the target reward",
}
DEFAULT_SEEDS = 5
DEFAULT_FRESH_SEEDS = 10


MAX_STALENESS = "max_staleness"
MAX_MEAN_STALENESS = "max_mean_staleness"
MAX_LENGTH_BIAS = "max_length_bias"
KV_CAPACITY = "kv_capacity"

BOUND_TEXT: Mapping[str, str] = {
    MAX_STALENESS: "highest staleness (updates)",
    MAX_MEAN_STALENESS: "mean staleness (updates)",
    MAX_LENGTH_BIAS: "length bias",
    KV_CAPACITY: "KV of a replica (tokens)",
}
MEASURED_BY: Mapping[str, str] = {
    MAX_STALENESS: c.COMPARED_STALENESS_MAX,
    MAX_MEAN_STALENESS: c.COMPARED_STALENESS_MEAN,
    MAX_LENGTH_BIAS: c.LENGTH_BIAS_PAIRED,
    KV_CAPACITY: c.COMPARED_KV_PEAK_TOKENS,
}
ONLY_GROWS = frozenset({MAX_STALENESS, KV_CAPACITY})
"""Highest values over runs: once beyond the bound, further seeds cannot mend them."""


@dataclass(frozen=True)
class Constraints:
    """Bounds; None: no bound."""

    max_staleness: float | None = None
    """Of the stalest rollout trained after the warm-up, updates."""
    max_mean_staleness: float | None = None
    """Mean over the trained rollouts, updates."""
    max_length_bias: float | None = None
    """On |mean response length trained / the sequential baseline's on the same seeds − 1|, a share."""
    kv_capacity: int | Literal["auto"] | None = None
    """On the KV peak of every replica, tokens; ``auto``: what the cost model derives from device memory."""
    max_deferrals: int | None = None
    """No rollout is deferred more often. The policy's own ``max_deferrals`` keeps it."""

    def __post_init__(self) -> None:
        for name in (MAX_STALENESS, MAX_MEAN_STALENESS, MAX_LENGTH_BIAS):
            value = getattr(self, name)
            if value is not None and not (isfinite(value) and value >= 0):
                raise OppoError(f"{name} {value} is no bound: give a number from 0 on")
        if self.kv_capacity is not None and self.kv_capacity != "auto" and self.kv_capacity < 1:
            raise OppoError(
                f"kv_capacity {self.kv_capacity} is no bound: give a number of tokens from 1 on, or auto"
            )
        if self.max_deferrals is not None and self.max_deferrals < 0:
            raise OppoError(f"max_deferrals {self.max_deferrals} is no bound: give a number from 0 on")

    @property
    def measured(self) -> tuple[str, ...]:
        """Bounds that runs are measured against."""
        return tuple(name for name in BOUND_TEXT if getattr(self, name) is not None)

    def described(self) -> dict[str, float | int | str | None]:
        """For the record of a search."""
        return {name: getattr(self, name) for name in (*BOUND_TEXT, "max_deferrals")}


@dataclass(frozen=True)
class TuneRequest:
    """A search. Its trials depend on everything here but ``trials``, ``timeout_s``, ``draws``, ``practical``,
    where it runs, ``folder``, ``force`` and ``figures``: with more trials, time or draws the same search goes
    on."""

    scenario: Scenario | str | Path
    folder: Path | None = None
    """Where trials and results lie; None: nowhere, they are kept for as long as ``tune`` runs."""
    overrides: Overrides = ()
    """Field → value, or ``a.b=c`` texts, for a scenario by name or path."""
    policies: tuple[str, ...] | None = None
    """None: the synchronous shipped ones that the scenario can run, and its own."""
    framework: str | None = None
    """Search only what this framework can do (``verl``), and say the choice in its words alone."""
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
    """Further ones that no trial saw, for what is reported; None: 10, or none for a replay in order."""
    draws: int = DEFAULT_DRAWS
    """Of what is unknown about the machine, for what is reported; 0: the machine is taken as given."""
    practical: float = 0.0
    """A share: settings that differ from the choice by no more count as not told apart from it, too."""
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
            if value is not None:
                check_count(name, value, low, high)
        check_share("practical", self.practical)
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
    """What makes two searches the same; ``inputs``: digest of the contents of files and of this program."""
    return {
        "scenario_sha256": scenario.content_hash,
        "inputs": inputs,
        "policies": None if request.policies is None else list(request.policies),
        **({} if request.framework is None else {"framework": framework(request.framework).name}),
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


def kv_limit(constraints: Constraints, parts: Parts) -> float | None:
    """Tokens of KV a replica may hold. Raises OppoError for ``auto`` where the costs know no memory."""
    if constraints.kv_capacity != "auto":
        return constraints.kv_capacity
    if parts.costs.actor_kv_capacity_tokens is None:
        raise OppoError(
            "kv_capacity auto needs a cost model that knows device memory, and costs.kind"
            f" {parts.costs.provenance.get('kind')} does not: give a number of tokens"
        )
    return parts.costs.actor_kv_capacity_tokens


def measures(
    runs: Sequence[Mapping[str, float]], baseline: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """What bounds are measured on, from runs and the baseline's on the same seeds."""
    return {
        c.COMPARED_STALENESS_MAX: max(run[c.COMPARED_STALENESS_MAX] for run in runs),
        c.COMPARED_STALENESS_MEAN: fmean(run[c.COMPARED_STALENESS_MEAN] for run in runs),
        c.LENGTH_BIAS: length_bias(runs),
        c.LENGTH_BIAS_PAIRED: paired_bias(runs, baseline),
        c.DEFERRED: fmean(run[c.DEFERRED] for run in runs),
        c.COMPARED_KV_PEAK_TOKENS: max(run[c.COMPARED_KV_PEAK_TOKENS] for run in runs),
    }


def worst_of(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The worst of several worlds, measure by measure; of a bias the one furthest from 0."""
    return {name: max((world[name] for world in each), key=abs) for name in each[0]}


def violations(
    constraints: Constraints, measured: Mapping[str, float], kv_tokens: float | None
) -> dict[str, float]:
    """Bound → by how much it is broken, as a share of the bound (of 1 where that is 0); at most 0: kept.

    ``kv_tokens``: the bound on KV of this setting, from ``kv_limit``.
    """
    found = {}
    for name in constraints.measured:
        limit = kv_tokens if name == KV_CAPACITY else getattr(constraints, name)
        assert limit is not None
        found[name] = (abs(measured[MEASURED_BY[name]]) - limit) / (limit or 1.0)
    return found


def broken(found: Mapping[str, float]) -> tuple[str, ...]:
    """Bounds that are broken, the worst first."""
    return tuple(sorted((name for name, by in found.items() if by > 1e-12), key=lambda name: -found[name]))


def bound_text(name: str, value: float) -> str:
    """A measured value of a bound, as a person says it."""
    if name == MAX_LENGTH_BIAS:
        return f"{BOUND_TEXT[name]} {format_signed(value, 2)}"
    return f"{BOUND_TEXT[name]} {value:,.0f}" if name in ONLY_GROWS else f"{BOUND_TEXT[name]} {value:.3g}"


def limit_text(name: str, limit: float) -> str:
    """A bound, as a person says it."""
    if name == MAX_LENGTH_BIAS:
        return f"{100 * limit:.3g} %"
    return f"{limit:,.0f}" if name == KV_CAPACITY else f"{limit:g}"
