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
from oppo_sim.policies.knobs import Knob
from oppo_sim.policies.settings import PolicySettings

__all__ = [
    "Arrangement",
    "Batch",
    "Knob",
    "OraclePoolView",
    "Policy",
    "PolicySettings",
    "PoolView",
    "RolloutView",
    "StepPlan",
    "StepReport",
]
