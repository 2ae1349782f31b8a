"""Hypotheses about what is not published, weighed against each other: by the baselines' numbers alone, and by
all rows together. Facts of one set-up (lengths, epochs) are weighed likewise, as if they were the same."""

from math import log
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from claims import Claim, has_runs, read_claims, values_of
from fitting import draws_file, worlds_file
from predicting import runs_file
from scipy.stats import t as student
from setups import SETUPS
from unknowns import CHOICES, names_of

Floats = npt.NDArray[np.float64]
SPREAD: Final = 0.15
"""Scale of the logarithm by which a claim may be off a draw's prediction."""
FREEDOM: Final = 3.0
"""Student's t: a claim that no draw explains decides nothing alone."""
FEW: Final = 5
"""Draws below which nothing is said of the claims under a value."""
_AGAIN: Final = 200
"""Bootstrap samples."""


class Weighed(NamedTuple):
    """A value of an unknown."""

    unknown: str
    value: str
    prior: float
    baselines: tuple[float, float, float]
    """Probability given the baselines' numbers, and the 90 % interval of its Monte Carlo error."""
    everything: tuple[float, float, float]
    """And given the claims of speed; NaN where a value has too few draws."""
    fewest: int
    """Draws with it, in the set-up that has the fewest."""


class _Seen(NamedTuple):
    """Of a set-up: value and log evidence by world, value and log likelihood of the claims by draw."""

    worlds: npt.NDArray[Any]
    evidence: Floats
    draws: npt.NDArray[Any]
    fit: Floats


def weigh() -> list[Weighed]:
    """Every unknown with few values; set-ups that have been run, taken together."""
    setups = [name for name in SETUPS if has_runs(name)]
    found = []
    for unknown in CHOICES:
        having = [name for name in setups if unknown in names_of(SETUPS[name])]
        if having:
            found += _unknown(unknown, having)
    return found


def _unknown(unknown: str, setups: list[str]) -> list[Weighed]:
    choice = CHOICES[unknown]
    values = [str(value) for value in choice.values]
    prior = np.array(choice.odds or [1.0 / len(values)] * len(values))
    seen = [_seen(unknown, name) for name in setups]
    known = choice.of_baseline
    baselines, everything = _shares_of(seen, values, prior, known)
    generator = np.random.default_rng(0)
    again = [
        _shares_of([_resampled(one, generator) for one in seen], values, prior, known) for _ in range(_AGAIN)
    ]
    ends = [np.nanpercentile([one[kind] for one in again], (5, 95), axis=0) for kind in (0, 1)]
    found = []
    for place, value in enumerate(values):
        fewest = min(int((one.draws == value).sum()) for one in seen)
        both = (float(everything[place]), float(ends[1][0][place]), float(ends[1][1][place]))
        found.append(
            Weighed(
                unknown,
                value,
                float(prior[place]),
                (float(baselines[place]), float(ends[0][0][place]), float(ends[0][1][place])),
                both if fewest >= FEW else (float("nan"),) * 3,
                fewest,
            )
        )
    return found


def _shares_of(seen: list[_Seen], values: list[str], prior: Floats, known: bool) -> tuple[Floats, Floats]:
    """Probabilities of the values by the baselines, and by the claims too."""
    logs, claims = np.log(prior), np.zeros(len(values))
    for one in seen:
        if known:
            logs = logs + [_log_mean(one.evidence[one.worlds == value]) for value in values]
        claims += [_log_mean(one.fit[one.draws == value]) for value in values]
    return _shares(logs), _shares(logs + claims)


def _seen(unknown: str, name: str) -> _Seen:
    worlds = pd.read_csv(worlds_file(name))
    drawn = worlds.set_index("world").loc[pd.read_csv(draws_file(name))["world"], unknown]
    return _Seen(
        worlds[unknown].astype(str).to_numpy(),
        worlds["log_evidence"].to_numpy(dtype=np.float64),
        drawn.astype(str).to_numpy(),
        _claims_fit(name),
    )


def _resampled(seen: _Seen, generator: np.random.Generator) -> _Seen:
    worlds = generator.integers(len(seen.worlds), size=len(seen.worlds))
    draws = generator.integers(len(seen.draws), size=len(seen.draws))
    return _Seen(seen.worlds[worlds], seen.evidence[worlds], seen.draws[draws], seen.fit[draws])


def _claims_fit(name: str) -> Floats:
    """By draw, log likelihood of the set-up's claimed speed-ups."""
    runs, worlds = pd.read_csv(runs_file(name)), pd.read_csv(worlds_file(name))
    total = np.zeros(runs["draw"].nunique())
    for claim in _speeds(name):
        off = (np.log(values_of(claim, runs, worlds)) - log(float(claim.paper))) / SPREAD
        total += student.logpdf(off, FREEDOM)
    return total


def _speeds(name: str) -> list[Claim]:
    """Against TRL; what verl took beside it is another machine's question."""
    return [
        one
        for one in read_claims()
        if one.study == name and one.quantity == "speedup" and one.against == "sequential" and one.paper
    ]


def _log_mean(logs: Floats) -> float:
    if not len(logs) or not np.isfinite(logs.max()):
        return float("-inf")
    best = float(logs.max())
    return best + float(np.log(np.exp(logs - best).mean()))


def _shares(logs: Floats) -> Floats:
    best = logs.max()
    if not np.isfinite(best):
        return np.full(len(logs), np.nan)
    weights = np.exp(logs - best)
    return np.asarray(weights / weights.sum())
