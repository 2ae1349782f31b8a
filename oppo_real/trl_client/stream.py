"""The policy's stream of rollouts for TRL's loop, as both trainers set it up."""

import sys

import torch

from oppo_real.placement.interface import WorkerGroup
from oppo_real.run.inputs import RunInput
from oppo_real.run.source import PromptSource
from oppo_real.wrapper import OwnTraining, RolloutStream
from oppo_sim.model.setup import MachineSetup
from oppo_sim.policies.interface import Policy


def policy_stream(
    policy: Policy,
    group: WorkerGroup,
    prompts: PromptSource,
    model: torch.nn.Module,
    machine: MachineSetup,
    max_response_tokens: int,
) -> RolloutStream:
    """``model``: the one that TRL trains."""
    training = OwnTraining(model.state_dict())
    inputs = RunInput(
        policy,
        policy.batch,
        machine,
        group,
        prompts,
        training,
        None,
        max_response_tokens,
        sys.maxsize,  # TRL's loop ends it
        lock_step=False,
        replays=False,
        own_loop=True,
    )
    return RolloutStream(inputs, training, model)
