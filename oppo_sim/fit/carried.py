"""Runs that carry rollouts over updates: their phases of generation are not of whole batches."""

from typing import Final

from oppo_sim.fit.reading import StepLog
from oppo_sim.scenario.schema import Scenario

_OF_FRAMEWORKS: Final = ("april", "inter", "partial-rollout", "async")
"""Policies that carry, and that a framework may have run."""


def carried(log: StepLog, scenario: Scenario) -> str | None:
    """What to know where the log may be of such a run, which its figures do not show; None elsewhere."""
    policy = scenario.policy.name
    generates = any("gen" in stages for stages in log.covers.values())
    if policy not in _OF_FRAMEWORKS or log.framework == "oppo" or not generates:
        return None
    return (
        f"the scenario's policy '{policy}' carries unfinished rollouts, and a fit takes the logged seconds of"
        " generation for those of whole batches: of a run with partial rollouts decoding comes out too fast,"
        " several times so; then believe the terms of training alone, and fit a log made without partial"
        " rollouts for the others"
    )
