"""Stages that a scenario runs and the run of its log did not: no metric names them, and its steps have no
room for them or its framework does not run them; or their metric holds hardly any seconds (verl's
``bypass_mode`` times a copy)."""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from oppo_sim.columns import TIMING_STEP, timing
from oppo_sim.fit.log.names import NOT_RUN
from oppo_sim.fit.log.step_log import StepLog
from oppo_sim.fit.terms.features import Features
from oppo_sim.fit.terms.stages import seconds_beyond
from oppo_sim.scenario.schema import Scenario

_ROOM: Final = 0.2
"""Of what the cost model says; a factor of a stage is hardly further from 1 (``costs/priors.py``)."""
_HARDLY: Final = 0.01
"""Of what the cost model says."""
_COUNTS: Final = 0.01
"""Of a step: a stage that takes less is left as it is."""
_WITHOUT: Final[Mapping[str, tuple[frozenset[str], Mapping[str, object]]]] = {
    "ref": (frozenset({"ref"}), {"ref": False, "stream_ref": False}),
    "critic": (frozenset({"values", "update_critic"}), {"critic": "none"}),
    "old_log_prob": (frozenset({"old_log_prob"}), {"old_log_prob": "behaviour"}),
}
"""What a scenario leaves out: its stages, and the settings of ``training`` without it."""


def as_run(log: StepLog, scenario: Scenario, features: Features) -> tuple[Scenario, tuple[str, ...]]:
    """The scenario without what the run did not run, and sentences that say so.

    ``features`` are those of ``scenario``. A metric that holds the stage among others does not show it, nor,
    where none holds it, a log without seconds of whole steps.
    """
    bypassed = _bypassed(log, features)
    scenario, foreign = _of_framework(log, scenario, features)
    scenario, said = _without_room(log, scenario, features)
    if bypassed:
        training = scenario.training.model_copy(update=_WITHOUT["old_log_prob"][1])
        scenario = scenario.model_copy(update={"training": training})
    return scenario, (*bypassed, *foreign, *said, *_not_shown(log, scenario, features))


def _not_shown(log: StepLog, scenario: Scenario, features: Features) -> Iterator[str]:
    """Of stages that the scenario runs within a metric of others, where what shows them is not logged: a log
    that a person chose columns of may lack it, too."""
    named = {stage for stages in log.covers.values() for stage in stages}
    for what, (stages, without) in _WITHOUT.items():
        metric = next((log.not_shown[stage] for stage in stages if stage in log.not_shown), None)
        runs = scenario.training.ref if what == "ref" else True
        if metric is None or stages & named or not runs:
            continue
        if any(features.stages[stage].max() > 0.0 for stage in stages):
            yield (
                f"no line has {metric}, which {log.framework} logs where it runs {what}: if the run did not,"
                f" fit again with --set training.{what}={str(without[what]).lower()}"
            )


def _of_framework(log: StepLog, scenario: Scenario, features: Features) -> tuple[Scenario, tuple[str, ...]]:
    """Without stages that the framework does not run (``LogNames.not_run``) and the log does not name."""
    named = {stage for stages in log.covers.values() for stage in stages}
    left = [
        what
        for what, (stages, _) in _WITHOUT.items()
        if stages <= set(NOT_RUN.get(log.framework, ())) - named
        and any(features.stages[stage].max() > 0.0 for stage in stages)
    ]
    if not left:
        return scenario, ()
    settings = {name: value for what in left for name, value in _WITHOUT[what][1].items()}
    switches = ", ".join(f"training.{what}: {str(_WITHOUT[what][1][what]).lower()}" for what in left)
    said = (
        f"{log.framework} computes no {' and no '.join(left)}: taken as not run, also in the written scenario"
        f" ({switches})"
    )
    training = scenario.training.model_copy(update=settings)
    return scenario.model_copy(update={"training": training}), (said,)


def _bypassed(log: StepLog, features: Features) -> tuple[str, ...]:
    """A sentence where probabilities of before the update were not computed again, but are timed."""
    column = timing("old_log_prob")
    if log.covers.get(column) != ("old_log_prob",) or column in log.not_fitted:
        return ()
    expected = float(np.median(features.stages["old_log_prob"]))
    took = float(log.frame[column].median())
    if not 0.0 < took < _HARDLY * expected:
        return ()
    return (
        f"{column} takes {took:.2g} s where the scenario's costs say {expected:.3g} s: taken as not run, also"
        " in the written scenario (training.old_log_prob: behaviour)",
    )


def _without_room(log: StepLog, scenario: Scenario, features: Features) -> tuple[Scenario, tuple[str, ...]]:
    """Of stages that no metric names."""
    if TIMING_STEP not in log.frame:
        return scenario, ()
    named = {stage for stages in log.covers.values() for stage in stages}
    whole, left = seconds_beyond(log)
    step = float(np.nanmedian(whole)) if np.any(np.isfinite(whole)) else np.nan
    room = float(np.nanmedian(left)) if np.any(np.isfinite(left)) else np.nan
    if not (np.isfinite(step) and np.isfinite(room)):
        return scenario, ()
    settings: dict[str, object] = {}
    said = []
    unnamed, switches = list[str](), list[str]()
    for what, (stages, without) in _WITHOUT.items():
        if stages & named:
            continue
        expected = sum(float(np.median(features.stages[stage])) for stage in sorted(stages))
        if expected < _COUNTS * step:
            continue
        if room > _ROOM * expected:
            if "update_actor" in named:  # else the log does not separate stages
                unnamed += sorted(stages)
                switches.append(f"--set training.{what}={str(without[what]).lower()}")
            continue
        settings |= without
        said.append(
            f"no metric names {' or '.join(sorted(stages))}, and beyond all metrics a step has"
            f" {max(room, 0.0):.2g} s where the scenario's costs say {expected:.3g} s: taken as not run, also"
            f" in the written scenario (training.{what})"
        )
    if unnamed:
        said.append(
            f"no metric names {', '.join(unnamed)}, which the scenario runs: if the run did not, fit again"
            f" with {' '.join(switches)}"
        )
    if not settings:
        return scenario, tuple(said)
    training = scenario.training.model_copy(update=settings)
    return scenario.model_copy(update={"training": training}), tuple(said)
