"""Which step a line of a wandb history is of: wandb counts calls of its log as ``_step``, trainers their own
steps."""

from collections.abc import Iterable, Iterator
from typing import Final

from oppo_sim.traces.importers.reading import Reading

Named = dict[str, float]
Figures = tuple[int | None, Named]

_CALLS: Final = "_step"
TRAINED: Final = (
    "training_step",
    "global_step",
    "training/global_step",
    "train/global_step",
    "system/global_step",
    "rollout/step",
    "rollout_step",
)
"""A trainer's own number of a step; open-instruct's ``global_step`` beside it counts rollouts."""
_ADDED: Final = "profiling/"
"""Beginning of metrics that are logged once a call of a function, in seconds: those of a step add up."""


def by_trained_step(lines: Iterable[Figures], reading: Reading) -> Iterator[Figures]:
    """Lines under the step that the trainer names; those that name wandb's alone, which a trainer logs on its
    way, come to the next that does. Lines as they are if none of them does, or if they have a ``step``.

    What adds up is a step's mean where a line is of several steps, as its other figures are (TRL logs every
    tenth). A line that names the step before it again is of an evaluation, and so is what it adds up.
    """
    waiting: list[Figures] = []
    last: int | None = None
    usual: int | None = None
    first: tuple[int, tuple[Named, Named]] | None = None
    """Held back until the second line tells of how many steps a line is."""
    for step, figures in lines:
        if _CALLS not in figures or "step" in figures:
            yield step, figures
            continue
        named = next((figures[name] for name in TRAINED if name in figures), None)
        if named is None or named != int(named) or named < 0:
            waiting.append((step, figures))
            continue
        line = _joined(waiting), figures
        waiting.clear()
        now, apart = int(named), usual if last is None or named < last else int(named) - last
        last = now
        if apart is None:
            first = now, line
            continue
        if apart > 0:
            usual = apart
            if first is not None:
                yield _mean(*first, apart)
                first = None
        yield _mean(now, line, apart)
    if first is not None:
        yield _mean(*first, first[0])
    if last is None:
        yield from waiting
    elif waiting:
        reading.left_out["line of a step that the log does not end"] += len(waiting)


def _mean(step: int, line: tuple[Named, Named], steps: int) -> Figures:
    """What was logged on the way and the line itself, of ``steps`` steps, of fewer where it is the first; of
    none, without what adds up."""
    before, figures = line
    of = min(steps, step)
    kept = {
        name: value / of if name.startswith(_ADDED) else value
        for name, value in before.items()
        if of or not name.startswith(_ADDED)
    }
    return step, kept | figures


def _joined(lines: Iterable[Figures]) -> Named:
    found: Named = {}
    for _, figures in lines:
        for name, value in figures.items():
            found[name] = value + (found.get(name, 0.0) if name.startswith(_ADDED) else 0.0)
    return found
