"""Rollouts as the padded tensors that TRL's training loop works with."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from oppo_real.ppo.rollout import TrainRollout


@dataclass(frozen=True)
class PaddedBatch:
    """Prompts padded on the left, responses on the right, both to the longest of the batch, as TRL pads
    them."""

    queries: torch.Tensor
    """[B, context]."""
    query_responses: torch.Tensor
    """[B, context + response]."""
    log_probs: torch.Tensor
    """[B, response], float32: of each response token when it was sampled; 0 under padding, which TRL
    masks."""
    scores: torch.Tensor
    """[B], float32; 0 where TRL's loop scores them."""


def pad_batch(rollouts: Sequence[TrainRollout], pad_token_id: int, device: torch.device) -> PaddedBatch:
    """The batch to train, in the order given."""
    context = max(len(rollout.prompt) for rollout in rollouts)
    width = max(len(rollout.response) for rollout in rollouts)
    rows, log_probs = [], []
    for rollout in rollouts:
        left = [pad_token_id] * (context - len(rollout.prompt))
        missing = width - len(rollout.response)
        rows.append([*left, *rollout.prompt, *rollout.response, *[pad_token_id] * missing])
        log_probs.append([*rollout.log_probs, *[0.0] * missing])
    whole = torch.tensor(rows, dtype=torch.long).to(device)
    return PaddedBatch(
        queries=whole[:, :context].contiguous(),
        query_responses=whole,
        log_probs=torch.tensor(log_probs, dtype=torch.float32).to(device),
        scores=torch.tensor([rollout.score for rollout in rollouts], dtype=torch.float32).to(device),
    )
