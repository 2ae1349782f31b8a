"""Generalised advantage estimation over responses of different lengths."""

from collections.abc import Sequence

import torch


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
    filled = _filled(lengths, flat.device)
    return flat.new_zeros(filled.shape).masked_scatter(filled, flat)


def from_grid(grid: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """[responses, longest] to [sum of lengths]."""
    return grid[_filled(lengths, grid.device)]


def per_response(flat: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """Sums of [sum of lengths] over each response: [responses]."""
    return to_grid(flat, lengths).sum(dim=1)


def _filled(lengths: Sequence[int], device: torch.device) -> torch.Tensor:
    ends = torch.tensor(lengths, device=device)
    return torch.arange(max(lengths), device=device) < ends[:, None]
