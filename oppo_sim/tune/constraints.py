"""What a setting must keep to: staleness, length bias, KV memory, deferrals. Measured on simulated runs, one
number each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean
from typing import Literal

from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.scenario.build import Parts

MAX_STALENESS = "max_staleness"
MAX_MEAN_STALENESS = "max_mean_staleness"
MAX_LENGTH_BIAS = "max_length_bias"
KV_CAPACITY = "kv_capacity"

SAID: Mapping[str, str] = {
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
    """No rollout is deferred more often. Kept by the policy's own ``max_deferrals``, so no setting can break
    it."""

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
        return tuple(name for name in SAID if getattr(self, name) is not None)

    def described(self) -> dict[str, float | int | str | None]:
        """For the record of a search."""
        return {name: getattr(self, name) for name in (*SAID, "max_deferrals")}


def kv_limit(constraints: Constraints, parts: Parts) -> float | None:
    """Tokens of KV a replica may hold. Raises OppoError where ``auto`` is asked of a cost model that knows no
    memory."""
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
    pairs = list(zip(runs, baseline, strict=True))
    return {
        c.COMPARED_STALENESS_MAX: max(run["staleness_max"] for run in runs),
        c.COMPARED_STALENESS_MEAN: fmean(run["staleness_mean"] for run in runs),
        c.LENGTH_BIAS: fmean(run["length_mean"] / run["trace_length_mean"] for run in runs) - 1.0,
        c.LENGTH_BIAS_PAIRED: fmean(run["length_mean"] / base["length_mean"] for run, base in pairs) - 1.0,
        c.DEFERRED: fmean(run["deferred"] for run in runs),
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


def said(name: str, value: float) -> str:
    """A measured value of a bound, as a person says it."""
    if name == MAX_LENGTH_BIAS:
        return f"{SAID[name]} {100 * value:+.2f} %"
    return f"{SAID[name]} {value:,.0f}" if name in ONLY_GROWS else f"{SAID[name]} {value:.3g}"


def limit_said(name: str, limit: float) -> str:
    """A bound, as a person says it."""
    if name == MAX_LENGTH_BIAS:
        return f"{100 * limit:.3g} %"
    return f"{limit:,.0f}" if name == KV_CAPACITY else f"{limit:g}"
