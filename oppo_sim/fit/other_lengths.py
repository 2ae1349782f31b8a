"""A log whose rollouts are not as long as those of its scenario's trace, which are what is simulated."""

import shlex
from typing import Final

import numpy as np

from oppo_sim.columns import LENGTH_CLIP_RATIO, LENGTH_MAX, LENGTH_MEAN, LENGTH_STD
from oppo_sim.fit.reading import StepLog
from oppo_sim.scenario.build import build_trace
from oppo_sim.scenario.schema import Scenario

_ALIKE: Final = 1.25
"""Steps of a run, and draws of a trace, differ by as much."""


def other_lengths(log: StepLog, scenario: Scenario) -> str | None:
    """A sentence with what to do; None: their means are alike."""
    logged, simulated = _mean_logged(log), float(np.mean(build_trace(scenario).response_lengths))
    if not logged > 0 or max(logged / simulated, simulated / logged) < _ALIKE:
        return None
    trace = scenario.trace.name or scenario.trace.path or "synthetic"
    said = (
        f"responses of the log have {logged:,.0f} tokens in the mean, those of the scenario's trace"
        f" ({trace}) {simulated:,.0f}, and the written scenario simulates its trace: give compare,"
        " sweep and tune the log's lengths as --trace"
    )
    if log.framework == "oppo":
        return f"{said} {log.path or log.name}"
    if log.lengths is not None or not log.path:
        return said
    words = ["--from", log.framework, log.path, "--rows-per-step", str(scenario.rollout_batch_size)]
    cut = log.frame.get(LENGTH_CLIP_RATIO)
    if LENGTH_MAX not in log.frame and cut is not None:
        words += ["--max-response-length", str(scenario.max_response_length)]
    if not ({LENGTH_MAX, LENGTH_STD} & set(log.frame)) and (cut is None or not (cut > 0).all()):
        if scenario.trace.name is None:  # of the tail the log says nothing
            return said
        words += ["--like", scenario.trace.name]
    command = shlex.join(["oppo", "trace", "import", *words, "-o", "lengths.parquet"])
    return f"{said} lengths.parquet, which this makes: {command}"


def _mean_logged(log: StepLog) -> float:
    if log.lengths is not None:
        return float(np.mean([each for rollouts in log.lengths.values() for each in rollouts]))
    return float(log.frame[LENGTH_MEAN].mean()) if LENGTH_MEAN in log.frame else 0.0
