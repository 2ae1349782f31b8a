"""Which sequences of a packed batch attend together on the plain path, and by which indices. Made once a
forward, used by every layer.

A sequence brings ``queries`` new tokens and sees ``keys`` tokens, its own new ones included (causal, aligned
at the end). Short sequences are gathered into groups of similar shape, with padding inside the group only;
long ones are read in place, one by one, because copying them would cost more than the call does. Nothing
outside attention is ever padded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from oppo_real.engines.device import to_device


class Span(NamedTuple):
    """One sequence: where its queries and keys begin and how many there are (tokens)."""

    query_start: int
    queries: int
    key_start: int
    keys: int


@dataclass(frozen=True)
class Group:
    """Sequences of similar shape. ``rows`` g, padded to q queries and k keys."""

    query_index: torch.Tensor
    """[g·q] into the packed queries."""
    key_index: torch.Tensor
    """[g·k] into the keys."""
    mask: torch.Tensor | None
    """[g, 1, q, k], 0 or −inf; None when everything is seen."""
    rows: int
    queries: int
    keys: int


@dataclass(frozen=True)
class PackedPlan:
    """Groups, then ``singles``; ``order`` [T]: packed token t's place in their outputs laid end to end."""

    groups: tuple[Group, ...]
    singles: tuple[Span, ...]
    order: torch.Tensor


GATHER_BYTES = 192 * 1024
"""Keys and values of a sequence and layer up to which gathering them beats a call (22 µs on a CPU core)."""
QUERY_SLICE = 512
"""Queries at a time of a long piece behind a context, so that its mask stays small."""
_PADDING_SHARE = 0.3
_PADDING_FREE = 1 << 14
"""Query-key pairs of padding in a group that cost less than another call."""


def make_plan(
    spans: Sequence[Span], bytes_per_key: int, dtype: torch.dtype, device: torch.device
) -> PackedPlan:
    """Plan the attention of the packed sequences ``spans`` (each with queries ≥ 1).

    ``bytes_per_key``: of one key and value together.
    """
    short: list[int] = []
    singles: list[tuple[int, Span]] = []
    for number, span in enumerate(spans):
        if span.keys * bytes_per_key <= GATHER_BYTES:
            short.append(number)
        elif span.queries in (1, span.keys):
            singles.append((number, span))
        else:
            past = span.keys - span.queries
            for begin in range(0, span.queries, QUERY_SLICE):
                count = min(QUERY_SLICE, span.queries - begin)
                singles.append(
                    (number, Span(span.query_start + begin, count, span.key_start, past + begin + count))
                )
    short.sort(key=lambda number: (spans[number].queries, spans[number].keys))
    total = sum(span.queries for span in spans)
    order = torch.empty(total, dtype=torch.long)
    groups: list[Group] = []
    produced = 0
    for members in _similar([spans[number] for number in short]):
        group, positions = _group(members, dtype, device)
        for row, span in enumerate(members):
            order[span.query_start : span.query_start + span.queries] = (
                torch.arange(span.queries) + produced + row * group.queries
            )
        produced += positions
        groups.append(group)
    for _, span in singles:
        order[span.query_start : span.query_start + span.queries] = torch.arange(span.queries) + produced
        produced += span.queries
    return PackedPlan(tuple(groups), tuple(span for _, span in singles), to_device(order, device))


def _similar(spans: list[Span]) -> list[list[Span]]:
    """Cut the sorted list where padding would cost more than a share of the work."""
    groups: list[list[Span]] = []
    queries = keys = pairs = 0
    for span in spans:
        wide, tall = max(queries, span.queries), max(keys, span.keys)
        grown = pairs + span.queries * span.keys
        allowed = grown * (1 + _PADDING_SHARE) + _PADDING_FREE
        if groups and (len(groups[-1]) + 1) * wide * tall <= allowed:
            groups[-1].append(span)
            queries, keys, pairs = wide, tall, grown
        else:
            groups.append([span])
            queries, keys, pairs = span.queries, span.keys, span.queries * span.keys
    return groups


def _group(members: list[Span], dtype: torch.dtype, device: torch.device) -> tuple[Group, int]:
    rows = len(members)
    shape = torch.tensor(members, dtype=torch.long).view(rows, 4, 1)
    query_start, query_count, key_start, key_count = shape.unbind(1)
    queries, keys = int(query_count.max()), int(key_count.max())
    within_query, within_key = torch.arange(queries).view(1, -1), torch.arange(keys).view(1, -1)
    # Padding repeats the last real token: always a valid index, and never picked by ``order``.
    query_index = query_start + torch.minimum(within_query, query_count - 1)
    key_index = key_start + torch.minimum(within_key, key_count - 1)
    last_seen = (key_count - query_count + torch.minimum(within_query, query_count - 1)).unsqueeze(-1)
    hidden = within_key.view(1, 1, -1) > last_seen
    mask = None
    if bool(hidden.any()):
        filled = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
        mask = to_device(filled.unsqueeze(1), device)
    queried, seen = (to_device(index.flatten(), device) for index in (query_index, key_index))
    group = Group(queried, seen, mask, rows, queries, keys)
    return group, rows * queries


def whole_spans(lengths: Sequence[int]) -> list[Span]:
    """Spans of whole sequences laid end to end."""
    spans: list[Span] = []
    start = 0
    for length in lengths:
        spans.append(Span(start, length, start, length))
        start += length
    return spans
