"""Rollouts as the padded tensors that TRL's training loop works with."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from oppo_real.trl_client.rollout import TrlRollout


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
    scores: torch.Tensor | None
    """[B], float32; None where TRL's loop scores them."""


def pad_batch(rollouts: Sequence[TrlRollout], pad_token_id: int, device: torch.device) -> PaddedBatch:
    """The batch to train, in the order given."""
    context = max(len(rollout.prompt) for rollout in rollouts)
    width = max(len(rollout.tokens) for rollout in rollouts)
    rows, log_probs = [], []
    for rollout in rollouts:
        left = [pad_token_id] * (context - len(rollout.prompt))
        missing = width - len(rollout.tokens)
        rows.append([*left, *rollout.prompt, *rollout.tokens, *[pad_token_id] * missing])
        log_probs.append([*rollout.log_probs, *[0.0] * missing])
    whole = torch.tensor(rows, dtype=torch.long).to(device)
    scored = [rollout.score for rollout in rollouts if rollout.score is not None]
    return PaddedBatch(
        queries=whole[:, :context].contiguous(),
        query_responses=whole,
        log_probs=torch.tensor(log_probs, dtype=torch.float32).to(device),
        scores=torch.tensor(scored, dtype=torch.float32).to(device) if len(scored) == len(rollouts) else None,
    )
