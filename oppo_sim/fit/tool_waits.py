"""Waits of rollouts for tools: how much longer generation is, and where a fitted scenario holds that."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from oppo_sim.fit.inference.posterior import Posterior
from oppo_sim.fit.terms.features import Features, Floats
from oppo_sim.fit.terms.stages import stage_seconds
from oppo_sim.scenario.build import build_trace
from oppo_sim.scenario.schema import Scenario


def lengthened_by_tools(features: Sequence[Features], posterior: Posterior) -> Floats:
    """Mean seconds by which waits of the last rollout for tools lengthen generation of a step, a draw: less
    than it waited, where a longer one would have ended the phase later. Zeros: nobody waits."""
    if not any(each.wait.any() for each in features):
        return np.zeros(posterior.size)
    with_waits = [stage_seconds("gen", each, posterior.terms) for each in features]
    without = [
        stage_seconds("gen", each.unended or replace(each, wait=np.zeros_like(each.wait)), posterior.terms)
        for each in features
    ]
    longer: Floats = (np.concatenate(with_waits, axis=1) - np.concatenate(without, axis=1)).mean(axis=1)
    return longer


def where_waits(seconds: float, own: bool) -> str:
    """In words, for ``seconds`` a step; ``own``: rollouts of the scenario's trace wait (``waits_itself``)."""
    if own:
        return "waits for tools are those of the trace's rollouts, and no part of gen_phase_s"
    if seconds < 0:
        return (
            f"gen_phase_s is {-seconds:.3g} s a step less than the logs say: their longest responses ended"
            " before others, and the written scenario waits for them"
        )
    return (
        f"gen_phase_s holds {seconds:.3g} s a step by which waits of the last rollout for tools lengthen it"
        " (mean of the logs)"
    )


def waits_itself(scenario: Scenario) -> bool:
    """Whether rollouts of the scenario's trace wait for tools."""
    if scenario.trace.tool_seconds_factor <= 0:
        return False
    waits = build_trace(scenario).waits
    return waits is not None and any(wait.seconds > 0 for row in waits for wait in row)
