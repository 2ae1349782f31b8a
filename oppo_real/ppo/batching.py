"""Which rollouts go through the model together."""

from collections.abc import Callable, Sequence
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

import torch

from oppo_real.engines.device import to_device
from oppo_real.ppo.rollout import TokenRow
from oppo_sim.draws import draw_index, stream_key


def micro_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Indices in groups of at most ``max_tokens`` tokens, the longest first; a longer one goes alone."""
    groups: list[list[int]] = []
    room = 0
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        if not groups or room < lengths[index]:
            groups.append([])
            room = max_tokens
        groups[-1].append(index)
        room -= lengths[index]
    return groups


def mini_batches(size: int, parts: int, seed: int, update: int, epoch: int) -> list[list[int]]:
    """range(size) shuffled and dealt into ``parts`` groups, sizes differing by one at most."""
    key = stream_key(seed, f"mini_batches/{update}/{epoch}")
    order = list(range(size))
    for last in range(size - 1, 0, -1):
        chosen = draw_index(key, last, last + 1)
        order[last], order[chosen] = order[chosen], order[last]
    ends = [size * part // parts for part in range(parts + 1)]
    return [order[start:end] for start, end in pairwise(ends)]


def token_positions(indices: Sequence[int], lengths: Sequence[int], device: torch.device) -> torch.Tensor:
    """Where the tokens of the responses ``indices`` lie in a flat tensor over all of them, in that order."""
    ends = list(accumulate(lengths))
    return torch.cat(
        [torch.arange(ends[index] - lengths[index], ends[index], device=device) for index in indices]
    )


@torch.no_grad()
def in_micro_batches(
    run: Callable[[Sequence[TokenRow]], torch.Tensor],
    rows: Sequence[TokenRow],
    max_tokens: int,
    device: torch.device,
) -> torch.Tensor:
    """``run`` over all rows, by groups, without gradients; the last dimension is tokens, in row order."""
    lengths = [len(row.response) for row in rows]
    groups = micro_batches([row.length for row in rows], max_tokens)
    joined = torch.cat([run([rows[index] for index in group]) for group in groups], dim=-1)
    positions = torch.cat([token_positions(group, lengths, device) for group in groups])
    return torch.empty_like(joined).index_copy_(-1, positions, joined)


class TrainingGroup(NamedTuple):
    """Rollouts that go through the model together, with gradients."""

    rows: list[TokenRow]
    positions: torch.Tensor
    """Of their response tokens in the flat tensors of the batch."""
    trained: torch.Tensor | None
    """Which of these take part in the losses; None: all."""
    tokens: int
    """How many do. The host knows it without waiting for the device."""

    def taken(self, values: torch.Tensor) -> torch.Tensor:
        """Those of the trained tokens, of [..., tokens]."""
        return values if self.trained is None else values.index_select(-1, self.trained)


def training_groups(
    rows: Sequence[TokenRow],
    left_out: Sequence[bool] | None,
    part: Sequence[int],
    max_tokens: int,
    device: torch.device,
) -> list[TrainingGroup]:
    """The micro-batches of a mini-batch, ``part`` of ``rows``; ``left_out``, of all response tokens of all
    rows: those that are not trained."""
    lengths = [len(row.response) for row in rows]
    ends = list(accumulate(lengths))
    found = []
    for places in micro_batches([rows[index].length for index in part], max_tokens):
        group = [part[place] for place in places]
        positions = token_positions(group, lengths, device)
        trained, tokens = None, len(positions)
        if left_out is not None:
            without = (left_out[ends[index] - lengths[index] : ends[index]] for index in group)
            listed = [place for place, out in enumerate(chain.from_iterable(without)) if not out]
            trained, tokens = to_device(torch.tensor(listed, dtype=torch.long), device), len(listed)
        found.append(TrainingGroup([rows[index] for index in group], positions, trained, tokens))
    return found
