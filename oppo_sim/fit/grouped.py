"""Scenarios with more samples a prompt than their trace has, where the lengths of a log take its place."""

from typing import Final

import numpy as np

from oppo_sim.errors import OppoError
from oppo_sim.scenario.build import build_trace
from oppo_sim.scenario.schema import Scenario
from oppo_sim.traces.config import SynthConfig, TraceConfig
from oppo_sim.traces.replay import TooFewSamples

CORRELATION: Final = 0.5
"""Of the samples of a prompt (``log_lengths.prompt_correlation``), where nothing says how alike they are:
between the 0.23 and 0.86 of the shipped traces that have samples."""
_GROUPS: Final = 500


def with_samples(scenario: Scenario, log_lengths: bool) -> tuple[Scenario, str | None]:
    """The scenario on a trace that has the samples, and what was assumed; itself where its own trace has
    them. Raises OppoError where its own would be simulated."""
    try:
        build_trace(scenario)
    except TooFewSamples as error:
        if not log_lengths:
            raise OppoError(
                f"{error}; or simulate the lengths of the log in its place (--log-lengths, in Python"
                " log_lengths=True)"
            ) from None
    else:
        return scenario, None
    alone = build_trace(scenario.model_copy(update={"group_size": 1}))
    mean = float(np.mean(alone.response_lengths))
    synth = SynthConfig(
        mean=mean,
        p99=3.0 * mean,
        rows=_GROUPS * scenario.group_size,
        samples_per_prompt=scenario.group_size,
        prompt_correlation=CORRELATION,
    )
    prompt = max(1, round(float(np.mean(alone.prompt_lengths))))
    trace = TraceConfig(synth=synth, prompt_length=prompt)
    return scenario.model_copy(update={"trace": trace}), (
        f"no prompt of the scenario's trace has {scenario.group_size} samples: those of the log's lengths are"
        f" taken to be alike by {CORRELATION} (assumed; shipped traces: 0.23 to 0.86), which moves policies"
        " that wait for whole groups; rollouts one by one would say it (oppo trace import)"
    )
