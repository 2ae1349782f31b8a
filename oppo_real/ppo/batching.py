"""Which rollouts go through the model together."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch

from oppo_sim.draws import draw_index, stream_key


def micro_batches(lengths: Sequence[int], max_tokens: int, pads: bool = True) -> list[list[int]]:
    """Indices in groups of at most ``max_tokens`` tokens; a longer one goes alone. ``pads``: each counts as
    the longest of its group.

    Longest first, so that neighbours in length share a group and little is padded.
    """
    groups: list[list[int]] = []
    longest = room = 0
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        if not groups or room < (longest if pads else lengths[index]):
            groups.append([])
            longest, room = lengths[index], max_tokens
        groups[-1].append(index)
        room -= longest if pads else lengths[index]
    return groups


def mini_batches(size: int, parts: int, seed: int, update: int, epoch: int) -> list[list[int]]:
    """range(size) shuffled and dealt into ``parts`` groups, sizes differing by one at most; depends on the
    arguments only."""
    key = stream_key(seed, f"mini_batches/{update}/{epoch}")
    order = list(range(size))
    for last in range(size - 1, 0, -1):
        chosen = draw_index(key, last, last + 1)
        order[last], order[chosen] = order[chosen], order[last]
    ends = [size * part // parts for part in range(parts + 1)]
    return [order[start:end] for start, end in pairwise(ends)]


def token_positions(indices: Sequence[int], lengths: Sequence[int], device: torch.device) -> torch.Tensor:
    """Where the tokens of the responses ``indices`` lie in a flat tensor over all responses, in that
    order."""
    ends = list(accumulate(lengths))
    return torch.cat(
        [torch.arange(ends[index] - lengths[index], ends[index], device=device) for index in indices]
    )
