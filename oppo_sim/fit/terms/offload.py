"""Seconds that weights and optimizer state take between a training device and host memory.

They are the same however many tokens a batch has, and their rate is known least of all of a stage: runs on
one kind of device leave 3 to 8 GB/s. So they are taken out of what the cost model
says of a stage and are an unknown of their own.
"""

from collections.abc import Mapping
from typing import Final

from oppo_sim.columns import TRAINING_STAGES
from oppo_sim.costs.interface import BatchShape, TrainingCost
from oppo_sim.costs.priors import Prior
from oppo_sim.costs.roofline_training import RooflineTraining
from oppo_sim.costs.terms import NO_TERMS
from oppo_sim.scenario.build import build_parts
from oppo_sim.scenario.schema import Scenario

OFFLOAD: Final = "offload"
"""Factor on these seconds; no term of costs."""
PRIOR: Final = Prior(
    OFFLOAD,
    1.0,
    0.5,
    "measured by others: 1.4 GB/s out (pytorch/pytorch#138018), 2.6 out and 5.7 in"
    " (fzyzcjy/torch_memory_saver#111); verl steps, jianghoucheng/Agent_On_Policy_Distillation (4 × A800),"
    " develop runs: 3 to 8 GB/s; 4 assumed",
)
_ANY: Final = BatchShape((1,), (1,))


def at_full_rate(scenario: Scenario) -> tuple[Scenario, Mapping[str, float]]:
    """The scenario with ``offload_bytes_per_s`` at the rate of the host link, and by training stage the
    seconds that it had beyond that; the scenario itself and none where nothing is offloaded so."""
    training = scenario.training
    if not (training.param_offload or training.optimizer_offload):
        return scenario, {}
    before = _training(scenario)
    if not isinstance(before, RooflineTraining):
        return scenario, {}
    rate = before.device.host_link_bytes_per_s
    devices = before.devices.model_copy(update={"offload_bytes_per_s": rate})
    changed = scenario.model_copy(update={"costs": scenario.costs.model_copy(update={"training": devices})})
    after = _training(changed)
    slow, fast = (each.stage_times(_ANY)._asdict() for each in (before, after))
    return changed, {
        stage: slow[stage] - fast[stage] for stage in TRAINING_STAGES if slow[stage] > fast[stage]
    }


def _training(scenario: Scenario) -> TrainingCost:
    """As the cost model answers it."""
    costs = scenario.costs.model_copy(update={"terms": NO_TERMS})
    return build_parts(scenario.model_copy(update={"costs": costs})).costs.training
