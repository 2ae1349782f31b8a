"""Which step a line of a wandb history is of: wandb counts calls of its log as ``_step``, trainers their own
steps."""

from collections.abc import Iterable, Iterator
from typing import Final

from oppo_sim.traces.importers.reading import Reading

Figures = tuple[int | None, dict[str, float]]

_CALLS: Final = "_step"
TRAINED: Final = (
    "global_step",
    "training/global_step",
    "train/global_step",
    "system/global_step",
    "rollout/step",
    "rollout_step",
)
"""A trainer's own number of a step."""
_ADDED: Final = "profiling/"
"""Beginning of metrics that are logged once a call of a function, in seconds: those of a step add up."""


def by_trained_step(lines: Iterable[Figures], reading: Reading) -> Iterator[Figures]:
    """Lines under the step that the trainer names; those that name wandb's alone, which a trainer logs on its
    way, come to the next that does. Lines as they are if none of them does, or if they have a ``step``."""
    waiting: list[Figures] = []
    last: int | None = None
    for step, figures in lines:
        if _CALLS not in figures or "step" in figures:
            yield step, figures
            continue
        named = next((figures[name] for name in TRAINED if name in figures), None)
        if named is None or named != int(named) or named < 0:
            waiting.append((step, figures))
            continue
        last = int(named)
        yield last, _joined(waiting) | figures
        waiting.clear()
    if last is None:
        yield from waiting
    elif waiting:
        reading.left_out["line of a step that the log does not end"] += len(waiting)


def _joined(lines: Iterable[Figures]) -> dict[str, float]:
    found: dict[str, float] = {}
    for _, figures in lines:
        for name, value in figures.items():
            found[name] = value + (found.get(name, 0.0) if name.startswith(_ADDED) else 0.0)
    return found
