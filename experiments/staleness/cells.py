"""Which runs there are, in which order."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from learner import BATCH, Arm
from tasks import TASKS

SEEDS: Final = 5
CHUNK: Final = 16
"""Tokens; nothing that is trained depends on it."""


def _oppo(delta: int, **changes: Any) -> Arm:
    return Arm("oppo", {"overcommit": delta, "chunk_size": CHUNK}, **changes)


def _async(bound: int, **changes: Any) -> Arm:
    return Arm("async", {"max_staleness": bound}, **changes)


STALE: Final[Mapping[str, Arm]] = {
    "oppo B/8": _oppo(BATCH // 8),
    "oppo B/2": _oppo(BATCH // 2),
    "oppo B": _oppo(BATCH),
    "async 1": _async(1),
    "async 4": _async(4),
}
BASE: Final[Mapping[str, Arm]] = {
    "sequential": Arm("sequential"),
    **STALE,
    "shortest 80 %": Arm("sequential", kept=0.8),
    "shortest 50 %": Arm("sequential", kept=0.5),
}
"""The first five policies of the question, and two selections of lengths without staleness."""
TREATMENTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "behaviour, no correction": {"corrected": False},
    "recompute": {"carried": "recompute"},
    "recompute, no correction": {"carried": "recompute", "corrected": False},
    "mask": {"carried": "mask"},
}
DEFAULT_TREATMENT: Final = "behaviour"


class Cell(NamedTuple):
    """One run."""

    task: str
    arm: str
    treatment: str
    seed: int

    @property
    def key(self) -> str:
        """Of its entry."""
        return "|".join(map(str, self))

    def run_arm(self) -> Arm:
        """What it runs."""
        arm = BASE[self.arm]
        changes = TREATMENTS.get(self.treatment, {})
        return Arm(arm.policy, arm.settings, **{"kept": arm.kept, **changes})


def cells(seeds: int = SEEDS) -> list[Cell]:
    """All runs, the most wanted first: the default treatment seed by seed, then the others."""
    base = [
        Cell(task, arm, DEFAULT_TREATMENT, seed) for seed in range(seeds) for arm in BASE for task in TASKS
    ]
    others = [
        Cell(task, arm, treatment, seed)
        for seed in range(seeds)
        for arm in ("async 4", "oppo B", "async 1", "oppo B/2", "oppo B/8")
        for treatment in TREATMENTS
        for task in TASKS
    ]
    return base + sorted(others, key=lambda cell: (cell.arm not in ("async 4", "oppo B"), cell.seed))
