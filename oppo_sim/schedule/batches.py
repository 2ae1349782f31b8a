"""Whole batches for a scorer that wants them (``batch`` scoring) where no phase ends to make them:
asynchronous policies."""

from typing import Generic

from oppo_sim.instants import by_instant_then_id
from oppo_sim.policies.interface import Batch
from oppo_sim.schedule.rollout import F


class WholeBatches(Generic[F]):
    """Collects finished rollouts until their groups make up batches."""

    def __init__(self, batch: Batch) -> None:
        self._group_size = batch.group_size
        self._groups = batch.rollout_batch_size // batch.group_size
        self._unfinished: dict[int, list[F]] = {}
        self._finished: list[tuple[float, int, list[F]]] = []

    def add(self, rollout: F, at: float) -> None:
        """A rollout has finished at ``at`` (seconds)."""
        group = self._unfinished.setdefault(rollout.group_id, [])
        group.append(rollout)
        if len(group) == self._group_size:
            del self._unfinished[rollout.group_id]
            self._finished.append((at, rollout.group_id, sorted(group, key=lambda member: member.rollout_id)))

    def rebase(self, passed: float) -> None:
        """Seconds are counted from a moment ``passed`` seconds later."""
        self._finished = [(at - passed, group, members) for at, group, members in self._finished]

    def take(self) -> list[F]:
        """The rollouts of all batches that are whole, in order of (instant of the group's finish, group, id);
        each is given out once."""
        count = len(self._finished) // self._groups * self._groups
        if not count:
            return []
        ordered = list(by_instant_then_id(self._finished))
        self._finished = ordered[count:]
        return [rollout for _, _, members in ordered[:count] for rollout in members]
