"""Which terms a log identifies, and what to log, or to run, for the others."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from oppo_sim.costs.priors import IDENTIFIED, UNIDENTIFIED, Prior
from oppo_sim.fit.inference.posterior import Posterior
from oppo_sim.fit.terms.features import Floats
from oppo_sim.fit.terms.priors import TOOL_TOKENS, TOOL_WAIT

if TYPE_CHECKING:
    import pandas as pd

_UNIDENTIFIED: Final = 0.75
"""Width of the posterior over the prior's from which on a log identifies a term hardly or not at all."""
_PARTLY: Final = 0.4

CUTS: Final = ("round_fixed_s", "piece_fixed_s", "piece_send_s")
"""Terms of what a cut costs."""
_ADVICE: Final = {
    "decode": "a run whose longest responses differ from step to step, or with another batch size",
    "host": "a run with another batch size on the same engine",
    "iteration_s": "steps whose longest response differs while the tokens stay alike",
    "rollout_iteration_s": "a run with another batch size, or steps with shorter responses",
    "gather": "training stages of steps with fewer and with more tokens",
    "offload": "training stages of steps with fewer and with more tokens",
    "prefill": "a run with longer prompts, or the engine's own prefill seconds",
    "gen_phase_s": "a step with very short responses, or the seconds of waking and resharding by themselves",
    "score": "timing_s/reward of batches of different size",
    "score_batch_s": "timing_s/reward of batches of different size",
    "reward_phase_s": "timing_s/reward with another rollout_batch_size, or seconds of waking by themselves",
    "piece_fixed_s": "timing_s/reward with another rollout_batch_size, or oppo calibrate",
    "round_fixed_s": "a run with another chunk_size, or oppo calibrate",
    "update_weights": "timing_s/update_weights apart from timing_s/gen, for two model sizes",
    "update_weights_s": "timing_s/update_weights apart from timing_s/gen",
    "other_s": "timing_s/step beside all stages",
    "tool_wait": "steps whose slowest rollout waits for tools, and others",
    "tool_tokens": "response lengths without the tools' output",
}


@dataclass(frozen=True)
class TermEstimate:
    """A term of the costs before and after the logs."""

    term: str
    unit: str
    prior: tuple[float, float, float]
    """2.5, 50 and 97.5 percent."""
    posterior: tuple[float, float, float]
    width: float
    """Spread of the logarithms over the prior's: 1 where the log says nothing of it."""
    verdict: str
    """``identified``, ``partly`` or ``not identified``."""
    advice: str = ""
    """What to log, or to run, to identify it."""
    tied_to: str = ""
    """Another term with which it is correlated (beyond 0.8): their sum is known better than each."""


def estimates_table(estimates: Sequence[TermEstimate]) -> "pd.DataFrame":
    """One row a term of the costs: its unit, 95 % intervals before and after, the verdict."""
    import pandas as pd

    return pd.DataFrame(
        [
            {
                "term": one.term,
                "unit": one.unit,
                "prior_low": one.prior[0],
                "prior_high": one.prior[-1],
                "low": one.posterior[0],
                "high": one.posterior[-1],
                "verdict": one.verdict,
                "tied_to": one.tied_to,
            }
            for one in estimates
        ]
    )


def posterior_estimates(posterior: Posterior, priors: Mapping[str, Prior]) -> list[TermEstimate]:
    """Every unknown of a posterior."""
    return estimates_of(posterior.terms, priors)


def unidentified_cuts(terms: Iterable[str]) -> list[str]:
    """A sentence on the costs of a cut (``docs/model.md``) that the fitted runs do not have, so that nothing
    was estimated of them."""
    missing = [name for name in CUTS if name not in terms]
    if not missing:
        return []
    are, them = ("they are", "them") if len(missing) > 1 else ("it is", "it")
    return [
        f"{', '.join(missing)} cannot be identified from these logs: {are} what a chunk costs beside its"
        " tokens (a stop of the engine, a scoring request, its transfer), and their runs have no such chunks."
        f" Policies that stream are simulated with what the scenario says of {them} (0 where it says"
        f" nothing); measure {them} with oppo calibrate, or fit the folder of a sequential run in rounds"
        " (stop_check: chunk)"
    ]


def estimates_of(terms: Mapping[str, Floats], priors: Mapping[str, Prior]) -> list[TermEstimate]:
    """Draws of terms against their priors."""
    found = []
    for name, values in terms.items():
        prior = priors[name]
        width = float(np.log(np.maximum(values, 1e-300)).std() / prior.sigma)
        verdict = UNIDENTIFIED if width > _UNIDENTIFIED else "partly" if width > _PARTLY else IDENTIFIED
        tied = _tied(name, terms)
        low, high = (prior.median * np.exp(z * prior.sigma) for z in (-1.96, 1.96))
        found.append(
            TermEstimate(
                term=name,
                unit="share" if name in (TOOL_TOKENS, TOOL_WAIT) else prior.unit,
                prior=(float(low), prior.median, float(high)),
                posterior=tuple(np.percentile(values, (2.5, 50, 97.5)).tolist()),
                width=width,
                verdict=verdict,
                advice="" if verdict == IDENTIFIED else _advice(name),
                tied_to="" if verdict == IDENTIFIED else tied,
            )
        )
    return found


def _tied(name: str, terms: Mapping[str, Floats]) -> str:
    own = terms[name]
    best, which = 0.8, ""
    for other, values in terms.items():
        if other == name or own.std() == 0 or values.std() == 0:
            continue
        together = abs(float(np.corrcoef(own, values)[0, 1]))
        if together > best:
            best, which = together, other
    return which


def _advice(name: str) -> str:
    stage = name.removesuffix("_s")
    return _ADVICE.get(name, f"timing_s/{stage} of steps with fewer and with more tokens")
