"""Costs from a few known numbers instead of a log: draws of the priors, kept by how well a simulated baseline
agrees.

Fewer numbers than unknowns is the usual case, so the answer is a distribution, often of several modes. Draws
are made given the numbers of a baseline that is computed stage by stage; each is then simulated, and weighted
by how much better or worse the simulated one agrees (importance sampling).
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from oppo_sim.costs.priors import IDENTIFIED, Prior
from oppo_sim.costs.terms import CostTerms
from oppo_sim.errors import OppoError
from oppo_sim.fit.baseline import STEPS, Baseline, known_names
from oppo_sim.fit.checks.identify import CUTS, TermEstimate, estimates_of, estimates_table
from oppo_sim.fit.drawn_costs import mean_terms
from oppo_sim.fit.inference.sampling import on_one_blas_thread
from oppo_sim.fit.inference.tempering import resampled, tempered, weights_of, worth
from oppo_sim.fit.record import FORMAT
from oppo_sim.fit.terms.priors import priors_for
from oppo_sim.progress import OnProgress, Progress, unheard
from oppo_sim.scenario.build import cost_context
from oppo_sim.scenario.schema import Scenario

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]

_RELATIVE: Final = 0.03
_HUNDRED: Final = 100.0
_ABSOLUTE: Final = 0.02
"""What a number without a range is taken to be known to: relative, of a share absolute."""
_LOOKED: Final = 24
"""Steps after the first of which a number is taken to be the mean, if the scenario has as many."""
EDGE: Final = 0.05
"""Softness of a range's ends, of its width; where it is no share, at most of its low end."""
_FEW: Final = 50.0
_UNMET: Final = 4.0
_HOPELESS: Final = 8.0
"""Spreads beyond an observation at which draws do not agree with it; computed, not simulated."""
_LONGEST: Final = 100.0
"""Times what costs give at most, beyond which seconds are in another unit."""
_CANDIDATES: Final = 2
"""Simulated, for each draw that is kept."""

_NUMBER: Final = r"([-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?)"
_RANGE: Final = re.compile(rf"\s*{_NUMBER}\s*(?:(\.\.|±|\+-)\s*{_NUMBER}\s*)?")


class Observation(NamedTuple):
    """A number that is known of a run: ``low`` to ``high``, with soft ends."""

    text: str
    name: str
    low: float
    high: float
    spread: float
    """Standard deviation beyond the ends."""


@dataclass(frozen=True, repr=False)
class Observed:
    """What agreed with the observations."""

    observations: tuple[Observation, ...]
    draws: tuple[CostTerms, ...]
    point: CostTerms
    estimates: tuple[TermEstimate, ...]
    before: Floats
    """The observed quantities under the prior, draws × observations."""
    after: Floats
    """Simulated under the draws that were kept."""
    lengths: Floats
    """How far a run with other lengths lies from each, standard deviation."""
    effective: float
    """Effective sample size of the weighted draws."""
    simulated: int
    scenario: Scenario
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        identified = sum(one.verdict == IDENTIFIED for one in self.estimates)
        numbers = ", ".join(one.text for one in self.observations)
        of = f"{identified} of {len(self.estimates)} terms identified"
        return f"Observed({numbers}: {len(self.draws)} draws, {of})"

    def _repr_html_(self) -> str:
        return self.terms.to_html(float_format=lambda value: f"{value:.4g}")

    @property
    def terms(self) -> "pd.DataFrame":
        """As ``FitResult.terms``."""
        return estimates_table(self.estimates)


def read_observations(texts: Sequence[str]) -> tuple[Observation, ...]:
    """Each quantity once. Raises OppoError as ``read_observation``, and for one that is given twice."""
    found = tuple(read_observation(text) for text in texts)
    for number, one in enumerate(found):
        before = next((each for each in found[:number] if each.name == one.name), None)
        if before is not None:
            raise OppoError(
                f"--observe {one.text}: {one.name} is given twice, {before.text} too: give one of them, or a"
                f" range (--observe {one.name}={min(before.low, one.low):g}..{max(before.high, one.high):g})"
            )
    return found


def read_observation(text: str) -> Observation:
    """``NAME=171``, ``NAME=160..180`` or ``NAME=171±5``; a share also as ``50.6%``. Raises OppoError."""
    name, equals, value = text.partition("=")
    name = name.strip()
    if not equals or name not in known_names():
        listed = ", ".join(known_names())
        raise OppoError(f"--observe {text}: '{name}' is not known; give NAME=VALUE with one of {listed}")
    share = not name.startswith("timing_s/") and not name.endswith("_per_s")
    percent = share and value.rstrip().endswith("%")
    match = _RANGE.fullmatch(value.replace("%", " ") if percent else value)
    try:
        if match is None:
            raise ValueError
        first = float(match.group(1))
        second = None if match.group(3) is None else float(match.group(3))
        if not (math.isfinite(first) and math.isfinite(second or 0.0)):
            raise ValueError
    except ValueError:
        raise OppoError(
            f"--observe {text}: '{value.strip()}' is no number and no range: give 171, 160..180 or 171±5"
        ) from None
    if percent:
        first, second = first / _HUNDRED, None if second is None else second / _HUNDRED
    low = high = first
    if second is None:
        spread = _ABSOLUTE if share else _RELATIVE * first
    elif match.group(2) == "..":
        width = second - first
        high, spread = second, EDGE * (width if share else min(width, first or width))
    else:
        spread = second
    if not (0 <= low <= high and spread > 0) or (share and high > 1):
        what = "a share from 0 to 1" if share else "a number above 0, or a range that rises"
        if share and not percent and 0 <= low <= high <= _HUNDRED and spread > 0:
            ends = (first,) if second is None else (first, second)
            between = match.group(2) or ""
            of_one = between.join(f"{end / _HUNDRED:g}" for end in ends)
            percents = between.join(f"{end:g}" for end in ends)
            what += f" ({percents} % is {name}={percents}% or {name}={of_one})"
        raise OppoError(f"--observe {text}: {value.strip()} cannot be; give {what}")
    return Observation(text, name, low, high, spread)


@on_one_blas_thread
def observed_costs(
    scenario: Scenario,
    observed: Sequence[str],
    *,
    draws: int,
    seed: int = 0,
    progress: OnProgress = unheard,
) -> Observed:
    """Draws of the costs that agree with what was observed of the sequential baseline.

    Raises OppoError for an unknown name, a value that cannot be, and where nothing agrees.
    """
    observations = read_observations(observed)
    names_observed = [one.name for one in observations]
    short = Baseline(scenario, names_observed)
    steps = _steps_of(scenario)
    baseline = short if steps == STEPS else Baseline(scenario, names_observed, steps)
    priors = priors_for([scenario])
    names = baseline.terms
    terms = _terms_of(names, priors)
    generator = np.random.default_rng(seed)

    def likelihood(z: Floats) -> Floats:
        return agreement(*baseline.estimated_apart(terms(z)), observations)

    before = baseline.estimated(terms(generator.standard_normal((4000, len(names)))))
    _refuse_other_units(observations, before)
    count = _CANDIDATES * draws
    values = {
        **terms(tempered(likelihood, len(names), count, generator)),
        **_beside(scenario, names, priors, count, generator),
    }
    found = [CostTerms(**{name: float(each[row]) for name, each in values.items()}) for row in range(count)]
    estimated, apart = baseline.estimated_apart(values)
    # What simulation would not mend is refused before it.
    _refuse_unmet(observations, _lengths(apart), before, estimated, _HOPELESS)
    seen = []
    for number, each in enumerate(found):
        progress(Progress("simulated draws", number + 1, count))
        seen.append(short.simulated(each))
    # A few steps are simulated: by how much they are off what is computed of them.
    computed = short.estimated(values)
    after = estimated * np.divide(np.array(seen), computed, out=np.ones_like(computed), where=computed > 0)
    logs = agreement(after, apart, observations) - agreement(estimated, apart, observations)
    weights = weights_of(logs)
    effective = worth(weights)
    chosen = resampled(weights, draws, generator)
    lengths = _lengths(apart[chosen])
    _refuse_unmet(observations, lengths, before, after[chosen], _UNMET)
    kept = tuple(found[row] for row in chosen)
    notes: tuple[str, ...] = (
        (f"the draws are worth {effective:.0f} independent ones: observe less, or wider ranges",)
        if effective < min(_FEW, count / 2)
        else ()
    )
    estimates = estimates_of({name: values[name][chosen] for name in names}, priors)
    notes += _unusual(estimates)
    return Observed(
        observations,
        kept,
        mean_terms(kept),
        tuple(estimates),
        before,
        after[chosen],
        lengths,
        effective,
        count,
        scenario,
        notes,
    )


@on_one_blas_thread
def log_evidence(scenario: Scenario, observed: Sequence[str], *, draws: int = 4000, seed: int = 0) -> float:
    """How well a scenario explains what was observed of its sequential baseline: the log of the mean
    likelihood over draws of the priors, computed stage by stage. Of two scenarios the difference is the log
    of how many times more the numbers speak for one (Bayes factor), for the same ``observed``; minus infinity
    where no draw comes near.

    Raises OppoError for an unknown name, a value that cannot be, and what the scenario refuses.
    """
    observations = read_observations(observed)
    baseline = Baseline(scenario, [one.name for one in observations], _steps_of(scenario))
    terms = _terms_of(baseline.terms, priors_for([scenario]))
    z = np.random.default_rng(seed).standard_normal((draws, len(baseline.terms)))
    logs = agreement(*baseline.estimated_apart(terms(z)), observations)
    best = float(logs.max())
    return best + float(np.log(np.exp(logs - best).mean()))


def _steps_of(scenario: Scenario) -> int:
    """Steps of which a number is taken to be the mean."""
    return max(STEPS, min(_LOOKED, scenario.steps - 1))


def _terms_of(names: Sequence[str], priors: Mapping[str, Prior]) -> Callable[[Floats], dict[str, Floats]]:
    """Terms by name from standard normals, draws × names."""
    median = np.array([priors[name].median for name in names])
    sigma = np.array([priors[name].sigma for name in names])

    def terms(z: Floats) -> dict[str, Floats]:
        values = median * np.exp(sigma * np.clip(z, -8, 8))
        return {name: values[:, place] for place, name in enumerate(names)}

    return terms


def _beside(
    scenario: Scenario,
    names: Sequence[str],
    priors: Mapping[str, Prior],
    count: int,
    generator: np.random.Generator,
) -> dict[str, Floats]:
    """Terms that the looked-at steps do not have: of the prior, where an unfitted scenario draws them too;
    what a cut costs as the scenario says."""
    stated = scenario.costs.terms.stated()
    kept = [name for name in CUTS if name in stated and name not in names]
    found: dict[str, Floats] = {name: np.full(count, stated[name]) for name in kept}
    for prior in scenario.costs.priors(cost_context(scenario)):
        if prior.term not in names and prior.term not in stated:
            drawn = priors[prior.term]
            found[prior.term] = drawn.median * np.exp(drawn.sigma * generator.standard_normal(count))
    return found


def _unusual(estimates: Sequence[TermEstimate]) -> tuple[str, ...]:
    """Terms of which hardly a draw of the prior is where what was observed has them."""
    far = [each for each in estimates if not each.prior[0] <= each.posterior[1] <= each.prior[2]]
    if not far:
        return ()
    named = ", ".join(
        f"{each.term} {each.posterior[1]:.3g} (usual are {each.prior[0]:.3g} to {each.prior[2]:.3g})"
        for each in far
    )
    return (f"what was observed asks for unusual costs: {named}; is it the scenario of that run?",)


def _lengths(apart: Floats) -> Floats:
    """By how much other lengths move each quantity: the middle of the draws."""
    found: Floats = np.sqrt(np.median(np.diagonal(apart, axis1=1, axis2=2), axis=0))
    return found


def _refuse_other_units(observations: Sequence[Observation], before: Floats) -> None:
    """Raises OppoError for seconds of which no cause is thinkable, and of what the scenario does not run."""
    for place, one in enumerate(observations):
        low, high = np.percentile(before[:, place], (2.5, 97.5))
        if one.low > 0 and before[:, place].max() <= 0:
            raise OppoError(
                f"--observe {one.text}: the scenario has none of it; leave it out, or write a scenario that"
                " runs it"
            )
        if one.name.startswith("timing_s/") and one.low > _LONGEST * high:
            raise OppoError(
                f"--observe {one.text}: that is {one.low / high:,.0f} times the most that costs give here"
                f" ({low:.3g} to {high:.3g} s): is it in milliseconds? Give seconds"
            )


def _refuse_unmet(
    observations: Sequence[Observation], lengths: Floats, before: Floats, after: Floats, spreads: float
) -> None:
    for place, one in enumerate(observations):
        middle = float(np.median(after[:, place]))
        far = spreads * float(np.hypot(one.spread, lengths[place]))
        if not one.low - far <= middle <= one.high + far:
            low, high = np.percentile(before[:, place], (2.5, 97.5))
            others = ", and beside the other observations nothing nearer" if len(observations) > 1 else ""
            raise OppoError(
                f"no costs agree with {one.text}: the priors give {low:.3g} to {high:.3g} here{others}; is"
                " it the scenario of that run?"
            )


def agreement(values: Floats, apart: Floats, observations: Sequence[Observation]) -> Floats:
    """Log of how well quantities (draws × observations) agree, of which those of another run lie ``apart``
    (draws × observations × observations, covariance): nothing is lost inside a range, a normal's loss
    outside."""
    low, high, spread = (
        np.array([getattr(one, name) for one in observations]) for name in ("low", "high", "spread")
    )
    beyond = np.minimum(values - low, 0.0) + np.maximum(values - high, 0.0)
    covariance = apart + np.diag(spread**2)
    total = -0.5 * np.einsum("di,di->d", beyond, np.linalg.solve(covariance, beyond[:, :, None])[:, :, 0])
    points = np.flatnonzero(low == high)
    found: Floats = total - 0.5 * np.linalg.slogdet(covariance[:, points[:, None], points])[1]
    return found


def observe_record(result: Observed) -> dict[str, Any]:
    """As ``fit_record``."""
    return {
        "format": FORMAT,
        "from": "observations",
        "scenario": result.scenario.name,
        "scenario_hash": result.scenario.content_hash,
        "observed": [
            {
                **one._asdict(),
                "prior": np.percentile(result.before[:, place], (2.5, 50, 97.5)).tolist(),
                "posterior": np.percentile(result.after[:, place], (2.5, 50, 97.5)).tolist(),
                "lengths_sd": float(result.lengths[place]),
            }
            for place, one in enumerate(result.observations)
        ],
        "simulated_baselines": result.simulated,
        "effective_draws": result.effective,
        "point": result.point.changed(),
        "draws": len(result.draws),
        "terms": [asdict(each) for each in result.estimates],
        "notes": list(result.notes),
    }
