"""What both trainers ask of a user: a policy, how to generate; and how an engine shares a model's weights."""

import copy
from collections.abc import Mapping
from typing import Any, Literal

import torch

from oppo_sim.errors import OppoError
from oppo_sim.policies.interface import Batch, Policy
from oppo_sim.policies.registry import BASELINE, make_policy

PolicyChoice = Policy | str | tuple[str, Mapping[str, Any]]
GenerationChoice = Literal["auto", "trl", "continuous"]


def chosen_policy(choice: PolicyChoice, batch: Batch) -> Policy:
    """The policy for a batch. Raises OppoError for an unknown name or setting, and for a policy that was made
    for another batch."""
    if isinstance(choice, Policy):
        if choice.batch != batch:
            raise OppoError(
                f"policy '{choice.name}' was made for {choice.batch}, but the trainer's batch is {batch}:"
                " make it for that one"
            )
        return choice
    name, settings = (choice, {}) if isinstance(choice, str) else choice
    return make_policy(name, batch, settings)


def generates_continuously(generation: GenerationChoice, choice: PolicyChoice, policy: Policy) -> bool:
    """Whether an engine of this package decodes, not TRL's own generation: as set; ``auto``: for all policies
    but the shipped sequential one."""
    shipped = not isinstance(choice, Policy) and policy.name == BASELINE
    return generation == "continuous" or (generation == "auto" and not shipped)


def is_distributed(trainer: Any) -> bool:
    """Whether a trainer of TRL runs in several processes, or with DeepSpeed or FSDP."""
    several = trainer.accelerator.num_processes > 1
    return bool(several or trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled)


def sharing_weights(model: torch.nn.Module) -> torch.nn.Module:
    """A copy of the modules and the configuration over the same parameters: its attention may be changed, and
    it is always up to date."""
    shared = [*model.parameters(), *model.buffers()]
    made = copy.deepcopy(model, {id(tensor): tensor for tensor in shared})
    # TRL 1.16 gives a model a forward of its own, which in a copy would still run the model it was made for.
    made.__dict__.pop("forward", None)
    return made


def check_schedule(policy: Policy) -> None:
    """Raises OppoError for a policy that TRL's loop cannot follow."""
    if policy.schedule != "synchronous":
        raise OppoError(
            f"policy '{policy.name}' generates while it trains, which TRL's loop does not do: take a"
            " synchronous policy, for instance oppo"
        )
    if policy.oracle:
        raise OppoError(
            f"policy '{policy.name}' is an oracle: it needs lengths known beforehand, so it runs in replay"
            " only"
        )


def check_choice(name: str, choice: Any, choices: Any) -> None:
    """Raises OppoError for a value that is none of ``choices``, a ``Literal``."""
    allowed = choices.__args__
    if choice not in allowed:
        raise OppoError(f"{name} is {choice!r}: choose one of {', '.join(allowed)}")
