"""The formulas of PPO on flat tensors: one number a response token, [tokens], one response after another."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from oppo_real.ppo.config import KlEstimator


class TokenLosses(NamedTuple):
    """Losses of single tokens, and where the clipped branch was the larger one."""

    losses: torch.Tensor
    clipped: torch.Tensor


def kl_estimate(log_probs: torch.Tensor, ref_log_probs: torch.Tensor, estimator: KlEstimator) -> torch.Tensor:
    """KL(policy, reference) estimated at tokens drawn from the policy.

    Schulman, "Approximating KL divergence" (2020), with log r = ref - policy: k1 = -log r, k3 = (r - 1) - log
    r. Both are unbiased; k3 is never negative.
    """
    log_ratio = ref_log_probs - log_probs
    return -log_ratio if estimator == "k1" else torch.expm1(log_ratio) - log_ratio


def policy_losses(
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    cliprange: float,
    weights: torch.Tensor | None = None,
) -> TokenLosses:
    """Clipped surrogate, Schulman et al., "Proximal policy optimization algorithms" (2017), eq. 7, as a loss.

    r = exp(log_probs - old_log_probs); loss = max(-A r, -A clip(r, 1 - cliprange, 1 + cliprange)), times
    ``weights``: constants, the importance of old over behaviour policy, as in the decoupled objective of
    Hilton et al., "Batch size-invariance for policy optimization" (2022).
    """
    ratio = torch.exp(log_probs - old_log_probs)
    free = -advantages * ratio
    limited = -advantages * ratio.clamp(1.0 - cliprange, 1.0 + cliprange)
    losses = torch.maximum(free, limited)
    return TokenLosses(losses if weights is None else losses * weights, (limited > free).detach())


def value_losses(
    values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, cliprange_value: float
) -> TokenLosses:
    """Half the squared error, or if larger that of the value clipped to near the old one (as TRL has it)."""
    kept_near = old_values + (values - old_values).clamp(-cliprange_value, cliprange_value)
    free, limited = torch.square(values - returns), torch.square(kept_near - returns)
    return TokenLosses(0.5 * torch.maximum(free, limited), (limited > free).detach())


def importance_weights(
    old_log_probs: torch.Tensor, behaviour_log_probs: torch.Tensor, importance_clip: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """min(old / behaviour, importance_clip) of each token, and where it was cut; all 1 when
    ``importance_clip`` is None.

    Truncated importance sampling (Ionides, 2008); a token's own ratio, not the product over its prefix, as
    rho in IMPALA (Espeholt et al., 2018).
    """
    weights = torch.exp(old_log_probs - behaviour_log_probs).detach()
    if importance_clip is None:
        return torch.ones_like(weights), torch.zeros_like(weights, dtype=torch.bool)
    return weights.clamp(max=importance_clip), weights > importance_clip


def whiten(values: torch.Tensor, mask: torch.Tensor, shift_mean: bool = True) -> torch.Tensor:
    """Mean (unless ``shift_mean`` is false) and unbiased variance of the tokens in ``mask`` taken out."""
    chosen = values[mask]
    if chosen.numel() == 0:
        return values
    variance = chosen.var() if chosen.numel() > 1 else chosen.new_zeros(())
    whitened = (values - chosen.mean()) * torch.rsqrt(variance + 1e-8)
    return whitened if shift_mean else whitened + chosen.mean()


def generalized_advantages(
    rewards: torch.Tensor, values: torch.Tensor, lengths: Sequence[int], gamma: float, lam: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns of response tokens; ``rewards`` and ``values`` are flat, [sum of lengths], one
    response after another.

    Schulman et al., "High-dimensional continuous control using generalized advantage estimation" (2016), eq.
    16, with an end after the last token (value 0), cut responses included: delta_t = r_t + gamma V_{t+1} -
    V_t, A_t = delta_t + gamma lam A_{t+1}. Returns are A + V, the targets of the critic (the lambda-return).
    """
    grid = to_grid(values, lengths)
    deltas = to_grid(rewards, lengths) - grid
    deltas[:, :-1] += gamma * grid[:, 1:]
    advantages = torch.zeros_like(grid)
    following = grid.new_zeros(grid.shape[0])
    for position in range(grid.shape[1] - 1, -1, -1):
        # Beyond a response's end rewards and values are 0, so what follows its last token is 0 too.
        following = deltas[:, position] + gamma * lam * following
        advantages[:, position] = following
    flat = from_grid(advantages, lengths)
    return flat, flat + values


def to_grid(flat: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """[sum of lengths] to [responses, longest], zeros behind each end."""
    return torch.nn.utils.rnn.pad_sequence(list(torch.split(flat, list(lengths))), batch_first=True)


def from_grid(grid: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """[responses, longest] to [sum of lengths]."""
    return torch.cat([row[:length] for row, length in zip(grid, lengths, strict=True)])
