"""Runs that carry rollouts over updates: their phases of generation are not of whole batches."""

from dataclasses import replace
from typing import Final

from oppo_sim.fit.log.step_log import StepLog
from oppo_sim.scenario.schema import Scenario

OF_FRAMEWORKS: Final = ("april", "inter", "partial-rollout", "async")
"""Policies that carry, and that a framework may have run."""


def with_mixed(log: StepLog, scenario: Scenario) -> StepLog:
    """Where generation is left out of a run whose policy carries rollouts, it is known to be so."""
    if scenario.policy.name not in OF_FRAMEWORKS or not log.whole_steps:
        return log
    return replace(log, mixed=True)


def carried(log: StepLog, scenario: Scenario) -> str | None:
    """What to know where the log may be of such a run, which its figures do not show; None elsewhere."""
    policy = scenario.policy.name
    generation = [column for column, stages in log.covers.items() if "gen" in stages]
    fitted = [column for column in generation if column not in log.not_fitted]
    if policy not in OF_FRAMEWORKS or log.framework == "oppo" or not fitted:
        return None
    return (
        f"the scenario's policy '{policy}' carries unfinished rollouts, and a fit takes the logged seconds of"
        " generation for those of whole batches: of a run with partial rollouts decoding comes out too fast,"
        f" several times so; then leave generation out (--leave-out {fitted[0]}), which fits it to whole"
        " steps under that policy, or fit a log made without partial rollouts"
    )
