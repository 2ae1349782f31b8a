"""What "the same instant" means (docs/model.md §2, C4)."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

TOLERANCE = 1e-9


def instant_tolerance(seconds: float) -> float:
    """Largest distance (seconds) at which another time is the same instant as ``seconds``, counted from the
    begin of the row."""
    return TOLERANCE * seconds if seconds > 1.0 else TOLERANCE


def by_instant_then_id(items: Iterable[tuple[float, int, T]]) -> Iterator[tuple[float, int, T]]:
    """Order (seconds, id, item) by instant, ids ascending inside one instant.

    Times are grouped from the earliest on; a time belongs to a group while it is within the tolerance of the
    group's first.
    """
    group: list[tuple[float, int, T]] = []
    for entry in sorted(items, key=lambda entry: entry[:2]):
        if group and entry[0] - group[0][0] > instant_tolerance(entry[0]):
            group.sort(key=lambda member: member[1])
            yield from group
            group = []
        group.append(entry)
    group.sort(key=lambda member: member[1])
    yield from group
