"""Draws of the unknowns given the seconds of one or several logs.

Metrics that share no unknown are independent and drawn apart. Seconds are log-Student-t around the model, so
that a step that does not fit pulls little; what no stage names (``other``) likewise around its seconds. The
spread of the rebuilt lengths adds to a step's scale. Several runs differ by an offset each, drawn with them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from oppo_sim.costs.priors import Prior
from oppo_sim.fit.inference.sampling import sampled
from oppo_sim.fit.inference.splitting import divided_anew
from oppo_sim.fit.inference.typical_seconds import constant_counts
from oppo_sim.fit.terms.features import Features
from oppo_sim.fit.terms.stages import NEGLIGIBLE, Measurement, stage_seconds, terms_of

Floats = npt.NDArray[np.float64]

DRAWS: Final = 400
_SWEEPS: Final = (200, 60)
"""Of the sampler: any, and a coordinate; the first half is burn-in."""
_LEAST_S: Final = 1e-4
"""Seconds below which differences are not looked at."""
_NOISE: Final = (0.02, 1.0)
"""Median and sigma of a metric's relative scale."""
_SCATTER: Final = (0.5, 0.7)
"""Of the part of the spread of rebuilt lengths by which steps differ from each other. Without a longest
response, it is mostly the unknown kind of the distribution, which is the same in all steps."""
_TAIL: Final = (4.0, 0.5)
"""Of the degrees of freedom beyond 1."""
_FIRST: Final = (0.03, 2.0)
"""Of the seconds by which a first step is longer, of the metric's own; a first update often is not, and says
most of what tokens cost."""
_SLOW: Final = 0.05
"""Of a step: what replaces a metric's own seconds there if it takes hardly any but in a first step."""
_TRAINED_UNKNOWN: Final = 0.7
"""Spread of the logarithm of the part of its batch that a run trains, where it is unknown."""
_BETWEEN: Final = (0.02, 0.7)
_BETWEEN_GEN: Final = (0.03, 0.6)
"""Of the standard deviation of runs' offsets; runs of one cluster differ by 1 to 5 % in generation, by 1 % in
training (verl steps, jianghoucheng/Agent_On_Policy_Distillation, develop runs)."""
_WIDEST: Final = 12.0
_WIDEST_BETWEEN: Final = 3.0
"""Of a coordinate, in standard deviations. Runs spread by a sixth at most: what all of them have in common is
the costs', however far these are from the scenario's. Else offsets of one sign explain it, and the costs stay
near the prior: ten minutes of rewards in place of two seconds."""


@dataclass(frozen=True)
class Posterior:
    """Draws of everything unknown; arrays of one length."""

    terms: dict[str, Floats]
    """Terms of the costs by name."""
    first: dict[str, Floats]
    """Seconds by which a first step is longer, by column."""
    noise: dict[str, Floats]
    """Relative scale by ``Measurement.noise``."""
    tail: dict[str, Floats]
    """Degrees of freedom, likewise."""
    scatter: dict[str, Floats]
    """Factor on the spread of the rebuilt lengths, likewise, where no longest response is logged."""
    between: dict[str, Floats]
    """Standard deviation of the offsets of runs, by column."""
    offsets: dict[tuple[str, int], Floats]
    """Of each run, by column and log."""

    def noise_of(self, member: Measurement) -> str | None:
        """Whose spread holds for a metric, of this run or another; None: it was not fitted."""
        near = (member.noise, member.column, replace(member, trained_unknown=True).noise)
        return next((kind for kind in near if kind in self.noise), None)

    @property
    def size(self) -> int:
        return len(next(iter(self.noise.values())))


@dataclass(frozen=True)
class _Group:
    """Measurements that share unknowns, and the names of the coordinates."""

    members: tuple[Measurement, ...]
    terms: tuple[str, ...]


def draw_posterior(
    logs: Sequence[tuple[Features, Sequence[Measurement]]],
    priors: Mapping[str, Prior],
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> Posterior:
    """``draws`` draws given all logs. Raises OppoError for an unknown without a prior."""
    by_log = {member.log: features for features, members in logs for member in members}
    groups = _groups([each for _, found in logs for each in found], [features for features, _ in logs])
    result = Posterior({}, {}, {}, {}, {}, {}, {})
    for number, group in enumerate(groups):
        _draw_group(group, by_log, priors, draws, np.random.default_rng([seed, number]), result)
    return result


def _groups(members: Sequence[Measurement], features: Sequence[Features]) -> list[_Group]:
    found: list[tuple[list[Measurement], list[str]]] = []
    for member in members:
        mine = terms_of(member.stages, features)
        joined = [each for each in found if set(each[1]) & set(mine) or member.column == each[0][0].column]
        merged = ([m for each in joined for m in each[0]] + [member], [t for each in joined for t in each[1]])
        merged[1].extend(name for name in mine if name not in merged[1])
        found = [each for each in found if each not in joined] + [merged]
    return [_Group(tuple(group), tuple(dict.fromkeys(names))) for group, names in found]


class _Space:
    """Coordinates z of a group: terms, then what the metrics themselves need."""

    def __init__(self, group: _Group, features: Mapping[int, Features], priors: Mapping[str, Prior]) -> None:
        """``features``: by ``Measurement.log``."""
        self.names: list[str] = []
        self._medians: list[float] = []
        self._sigmas: list[float] = []
        self._widest: list[float] = []
        for name in group.terms:
            self._add(name, priors[name].median, priors[name].sigma)
        columns = list(dict.fromkeys(member.column for member in group.members))
        self.columns = columns
        for column in columns:
            same = [member for member in group.members if member.column == column]
            for kind in dict.fromkeys(member.noise for member in same):
                self._add(f"noise/{kind}", *_NOISE)
                self._add(f"tail/{kind}", *_TAIL)
                if any("gen" in m.stages and not features[m.log].longest_logged for m in same):
                    self._add(f"scatter/{kind}", *_SCATTER)
            slow = max(member.cold_s for member in same)
            counts = any(features[member.log].cold.any() and member.share >= NEGLIGIBLE for member in same)
            if counts or slow > 0:
                typical = float(np.nanmedian(np.concatenate([member.seconds for member in same])))
                typical = typical if counts else max(typical, _SLOW * slow)
                self._add(f"first/{column}", max(_FIRST[0] * typical, _LEAST_S), _FIRST[1])
            if len(same) > 1:
                self._add(f"between/{column}", *between_of(same[0]))
            for member in same:
                if len(same) > 1 or member.trained_unknown:
                    self._add(f"offset/{column}/{member.log}", 1.0, 1.0)
        self._median, self._sigma = np.array(self._medians), np.array(self._sigmas)
        self._most = np.array(self._widest)

    def _add(self, name: str, median: float, sigma: float) -> None:
        self.names.append(name)
        self._medians.append(median)
        self._sigmas.append(sigma)
        self._widest.append(_WIDEST_BETWEEN if name.startswith("between/") else _WIDEST)

    def values(self, z: Floats) -> dict[str, Floats]:
        """By name, each (draws,); offsets stay standard normal."""
        values = self._median * np.exp(self._sigma * np.minimum(np.maximum(z, -_WIDEST), self._most))
        return {
            name: (z if name.startswith("offset/") else values)[:, place]
            for place, name in enumerate(self.names)
        }


def _draw_group(
    group: _Group,
    features: Mapping[int, Features],
    priors: Mapping[str, Prior],
    draws: int,
    generator: np.random.Generator,
    result: Posterior,
) -> None:
    space = _Space(group, features, priors)
    rows = [_usable(member, features[member.log], space) for member in group.members]

    def log_likelihood(z: Floats) -> Floats:
        values = space.values(z)
        total = np.zeros(len(z))
        for member, used in zip(group.members, rows, strict=True):
            total = total + _log_likelihood(member, used, values)
        return np.where(np.isfinite(total), total, -np.inf)

    def log_density(z: Floats) -> Floats:
        found: Floats = log_likelihood(z) - 0.5 * (z * z).sum(axis=1)
        return found

    sweeps = _SWEEPS[0] + _SWEEPS[1] * len(space.names)
    drawn = sampled(log_density, len(space.names), draws, sweeps, generator)
    scored = [
        used.features for member, used in zip(group.members, rows, strict=True) if "reward" in member.stages
    ]
    if scored:
        counts = _typical_counts(scored, group.terms)
        places = [space.names.index(name) for name in counts]
        given = [priors[name] for name in counts]
        drawn = divided_anew(drawn, places, given, list(counts.values()), log_likelihood, generator)
    values = space.values(drawn)
    result.terms.update({name: values[name] for name in group.terms})
    for kind in dict.fromkeys(member.noise for member in group.members):
        result.noise[kind] = values[f"noise/{kind}"]
        result.tail[kind] = 1.0 + values[f"tail/{kind}"]
        if f"scatter/{kind}" in values:
            result.scatter[kind] = values[f"scatter/{kind}"]
    for column in space.columns:
        if f"first/{column}" in values:
            result.first[column] = values[f"first/{column}"]
        if f"between/{column}" in values:
            result.between[column] = values[f"between/{column}"]
    for member in group.members:
        offset = values.get(f"offset/{member.column}/{member.log}")
        if offset is not None:
            between = values.get(f"between/{member.column}")
            result.offsets[member.column, member.log] = _offset(member, offset, between)


def _typical_counts(scored: Sequence[Features], terms: Sequence[str]) -> dict[str, float]:
    """Times a step that each constant of scoring is taken."""
    found: dict[str, list[Floats]] = {}
    for features in scored:
        for name, count in constant_counts(features, "reward").items():
            found.setdefault(name, []).append(count)
    return {name: float(np.median(np.concatenate(each))) for name, each in found.items() if name in terms}


@dataclass(frozen=True)
class _Used:
    """The steps of a measurement that count."""

    features: Features
    seconds: Floats
    """Logarithms."""
    spread: Floats | None
    """None: every length is known."""
    cold: Floats | None
    added: Floats | None


def _usable(member: Measurement, features: Features, space: _Space) -> _Used:
    first = f"first/{member.column}" in space.names
    keep = np.isfinite(member.seconds)
    if not first:
        keep &= ~features.cold
    if not keep.any():
        keep = np.isfinite(member.seconds)
    spread = features.spread[keep] if "gen" in member.stages and features.spread[keep].any() else None
    used = features.taken(keep)
    seconds = np.log(np.maximum(member.seconds[keep], 0.0) + _LEAST_S)
    added = None if member.added is None else member.added[keep]
    return _Used(used, seconds, spread, used.cold.astype(np.float64) if first else None, added)


def between_of(member: Measurement) -> tuple[float, float]:
    """Median and sigma of the spread between runs."""
    return _BETWEEN_GEN if "gen" in member.stages else _BETWEEN


def _offset(member: Measurement, offset: Floats, between: Floats | None) -> Floats:
    """Of the logarithm; a run that trains an unknown part of its batch says nothing of other runs."""
    if member.trained_unknown:
        part: Floats = -_TRAINED_UNKNOWN * np.abs(offset)
        return part
    assert between is not None
    return offset * between


def _log_likelihood(member: Measurement, used: _Used, values: Mapping[str, Floats]) -> Floats:
    predicted = member_seconds(member, used.features, values)
    if used.cold is not None:
        predicted = predicted + values[f"first/{member.column}"][:, None] * used.cold
    if used.added is not None:
        predicted = predicted + used.added
    centre = np.log(predicted + _LEAST_S)
    offset = values.get(f"offset/{member.column}/{member.log}")
    if offset is not None:
        centre = centre + _offset(member, offset, values.get(f"between/{member.column}"))[:, None]
    noise, tail = values[f"noise/{member.noise}"][:, None], 1.0 + values[f"tail/{member.noise}"][:, None]
    scale = noise
    if (spread := used.spread) is not None:
        scatter = None if used.features.longest_logged else values.get(f"scatter/{member.noise}")
        scale = np.sqrt(noise**2 + (spread if scatter is None else scatter[:, None] * spread) ** 2)
    residual = (used.seconds - centre) / scale
    density = (
        gammaln((tail + 1) / 2)
        - gammaln(tail / 2)
        - 0.5 * np.log(tail * np.pi)
        - np.log(scale)
        - (tail + 1) / 2 * np.log1p(residual**2 / tail)
    )
    total: Floats = density.sum(axis=1)
    return total


def member_seconds(member: Measurement, features: Features, terms: Mapping[str, Floats]) -> Floats:
    """Seconds of all its stages, draws × steps."""
    parts = [stage_seconds(stage, features, terms) for stage in member.stages]
    total: Floats = np.sum(np.broadcast_arrays(*parts), axis=0) if len(parts) > 1 else parts[0]
    return total
