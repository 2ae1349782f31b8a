"""Generation of runs that have no seconds of whole batches, since they generate while they train or carry
rollouts over: draws of its terms are moved until the run's own policy takes as long as the logged steps."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from oppo_sim.columns import STEP, TIMING_STEP
from oppo_sim.costs.section import EXACT
from oppo_sim.costs.terms import NO_TERMS, CostTerms
from oppo_sim.errors import OppoError
from oppo_sim.fast.choose import run_columns
from oppo_sim.fit.log.carried import OF_FRAMEWORKS
from oppo_sim.fit.log.step_log import ramp
from oppo_sim.fit.log_lengths import lengths_of_logs
from oppo_sim.fit.log_part import LogPart
from oppo_sim.fit.terms.features import Floats
from oppo_sim.fit.terms.stages import terms_of
from oppo_sim.progress import OnProgress, Progress, unheard
from oppo_sim.scenario.build import build_parts, build_setup, cost_context
from oppo_sim.scenario.schema import Scenario
from oppo_sim.traces.replay import Replay, replay_frame
from oppo_sim.traces.schema import check_frame

MEMBERS: Final = 48
"""Draws that are simulated; those beyond have the generation of one of them."""
STEPS: Final = 27
"""That are simulated."""
_FEWEST: Final = 4
"""Steps of a log that tell something."""
_ROUNDS: Final = 3
"""Of assimilation: each counts the datum with this many times its variance."""
_POLISHED: Final = 2
"""Rounds after them, which lengthen generation as a whole."""
_FURTHEST: Final = 0.7
"""That such a round moves a draw, on the logarithm."""
_LEAST: Final = 1e-9
_UNLIKE: Final = 0.05
"""Standard deviation of log(simulated / logged) where the seconds of generation are right: policies of
frameworks are not quite those of the simulator. Assumed."""
_REACHED: Final = 0.1


@dataclass(frozen=True)
class Moved:
    """What whole steps tell of generation."""

    draws: tuple[CostTerms, ...]
    terms: tuple[str, ...]
    """Those that were moved; none: they are as before."""
    said: str


def moved_to_steps(
    draws: Sequence[CostTerms],
    believed: Sequence[str],
    part: LogPart,
    scenario: Scenario,
    seed: int,
    progress: OnProgress = unheard,
) -> Moved | None:
    """None where the log's generation is fitted, or its scenario's policy is none that a framework runs so.

    Ensemble smoother with multiple data assimilation (Emerick and Reynolds, Computers & Geosciences 2013) on
    the logarithms of the terms, whose one datum is the median step.

    Args:
        draws: of the costs, of which ``believed`` are those of the priors.
        scenario: as it is written, but for terms and trace.
    """
    terms = [name for name in terms_of(("gen",), [part.features]) if name in believed]
    whole = part.log.whole_steps
    if not terms or not whole or scenario.policy.name not in OF_FRAMEWORKS:
        return None
    later = part.log.frame[STEP].iloc[part.log.ramp :]
    logged = [whole[step] for step in later.astype(int) if step in whole]
    if len(logged) < _FEWEST:
        return None
    try:
        run = _OwnRun(scenario, part, seed)
    except OppoError as error:
        return Moved(tuple(draws), (), f"its steps tell nothing of generation: {error}")
    members = list(draws[:MEMBERS])
    target = float(np.log(np.median(logged)))
    values = np.log([[max(getattr(draw, name), _LEAST) for name in terms] for draw in members])
    generator = np.random.default_rng([seed, 2])
    ahead = target + _UNLIKE * generator.standard_normal(len(members))
    """What each draw is to take."""
    for number in range(rounds := _ROUNDS + _POLISHED):
        progress(Progress(f"generation under {scenario.policy.name}", number, rounds + 1))
        found = run.median_steps(members)
        if number < _ROUNDS:
            noise = _UNLIKE * np.sqrt(_ROUNDS) * generator.standard_normal(len(members))
            apart = found - found.mean()
            spread = apart @ apart + len(apart) * _ROUNDS * _UNLIKE**2
            values = values + np.outer(
                target + noise - found, (values - values.mean(axis=0)).T @ apart / spread
            )
        else:
            # Draws whose trainer did not wait before showed no slope: all of generation takes longer.
            values = values + np.clip(ahead - found, -_FURTHEST, _FURTHEST)[:, None]
        members = [
            draw.model_copy(update=dict(zip(terms, np.exp(row).tolist(), strict=True)))
            for draw, row in zip(members, values, strict=True)
        ]
    progress(Progress(f"generation under {scenario.policy.name}", rounds, rounds + 1))
    ends = np.exp(np.quantile(run.median_steps(members), (0.025, 0.5, 0.975)))
    took, policy = float(np.exp(target)), scenario.policy.name
    if abs(np.log(ends[1] / took)) > _REACHED:
        return Moved(
            tuple(draws),
            (),
            f"under {policy}, the scenario's policy, a step takes {ends[1]:.3g} s whatever generation takes,"
            f" and {took:.3g} s in the log: generation stays at its priors; is {policy} with these settings"
            " what was run?",
        )
    update = [{name: getattr(member, name) for name in terms} for member in members]
    moved = tuple(draw.model_copy(update=update[number % len(update)]) for number, draw in enumerate(draws))
    return Moved(
        moved,
        tuple(terms),
        f"generation is fitted to whole steps alone: under {policy}, the scenario's policy, a step of the"
        f" written costs takes {ends[1]:.3g} s [{ends[0]:.3g}, {ends[2]:.3g}], in the log {took:.3g} s. That"
        f" is right if {policy} with its settings is what was run",
    )


# ---- inside ------------------------------------------------------------------------------------------------


class _OwnRun:
    """The scenario under its own policy, on the lengths of a log. Steps of both are those after a ramp."""

    def __init__(self, scenario: Scenario, part: LogPart, seed: int) -> None:
        """Raises OppoError where it cannot run so."""
        costs = scenario.costs.model_copy(update={"terms": NO_TERMS, "draws": EXACT})
        self._scenario = scenario.model_copy(update={"costs": costs, "warmup_steps": 0})
        self._parts = build_parts(self._scenario, _lengths(part, self._scenario, seed))
        self._setup = build_setup(self._scenario, steps=STEPS, parts=self._parts)

    def median_steps(self, draws: Sequence[CostTerms]) -> Floats:
        """Logarithms, one a draw."""
        context = cost_context(self._scenario)
        found = []
        for terms in draws:
            costs = self._scenario.costs.under(self._parts.costs, terms, context)
            frame = run_columns(replace(self._setup, costs=costs)).frame()
            found.append(float(frame[TIMING_STEP].iloc[ramp(STEPS) :].median()))
        return np.log(found)


def _lengths(part: LogPart, scenario: Scenario, seed: int) -> Replay | None:
    """Of the log; None: the scenario's trace is the log's own."""
    lengths = lengths_of_logs([part.log], scenario, seed)
    if lengths.frame is None:
        return None
    return replay_frame(
        check_frame(lengths.frame),
        where=part.log.name,
        sampling=lengths.sampling,
        max_prompt_length=scenario.max_prompt_length,
        max_response_length=scenario.max_response_length,
        group_size=scenario.group_size,
        seed=scenario.seed,
    )
