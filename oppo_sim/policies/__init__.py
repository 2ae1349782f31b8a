"""Policies behind one pure interface; see ``interface.py`` for what one is, ``registry.py`` for finding
one."""

from oppo_sim.policies.interface import (
    Arrangement,
    Batch,
    OraclePoolView,
    Policy,
    PoolView,
    RolloutView,
    StepPlan,
    StepReport,
)

__all__ = [
    "Arrangement",
    "Batch",
    "OraclePoolView",
    "Policy",
    "PoolView",
    "RolloutView",
    "StepPlan",
    "StepReport",
]
