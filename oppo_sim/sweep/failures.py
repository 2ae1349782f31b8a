"""Why points of a sweep cannot run."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from oppo_sim.errors import OppoError
from oppo_sim.sweep.points import Values


@dataclass(frozen=True)
class Failure:
    """Why points failed."""

    sentence: str
    points: int
    """How many."""
    first: Values
    """One of them."""


def grouped(failed: Sequence[tuple[Values, str]]) -> list[Failure]:
    """Points with their sentences, by sentence, the most frequent first."""
    counts = Counter(sentence for _, sentence in failed)
    first = {sentence: values for values, sentence in reversed(failed)}
    return [Failure(sentence, count, first[sentence]) for sentence, count in counts.most_common()]


def none_can_run(failures: Sequence[Failure], points: int) -> OppoError:
    """The error of a sweep of so many points, all of which failed."""
    why = failures[0]
    rest = (
        f"; {len(failures) - 1} other reason{'s' if len(failures) > 2 else ''} beside that"
        if len(failures) > 1
        else ""
    )
    which = f"{why.points} of them" if len(failures) > 1 else ("it" if points == 1 else "all of them")
    return OppoError(
        f"none of the {points:,} point{'s' if points > 1 else ''} of the sweep can run; {which}:"
        f" {why.sentence}{rest}"
    )
