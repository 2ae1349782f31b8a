"""Rollouts that wait for tools: their calls are replayed with the seconds and tokens of the trace."""

from collections.abc import Callable

from oppo_real.placement.interface import WorkerGroup
from oppo_real.run.rollout import RealRollout


class ToolCalls:
    """Who waits, until when, and who was answered while no replica could take him."""

    def __init__(self, group: WorkerGroup, go_on: Callable[[RealRollout], bool]) -> None:
        """``go_on``: lets an answered rollout join its replica; False where that rests."""
        self._group = group
        self._go_on = go_on
        self._away: dict[int, RealRollout] = {}
        self._answered: dict[int, RealRollout] = {}

    def call(self, rollout: RealRollout, at: float, now: float) -> None:
        """A rollout called at ``at`` (seconds since the run began; lock-step: iterations)."""
        rollout.answer_at = at + rollout.call_tool().seconds
        self._away[rollout.rollout_id] = rollout
        if rollout.answer_at <= now:
            self.answer(rollout.rollout_id)
        else:
            self._group.set_alarm(rollout.rollout_id, rollout.answer_at)

    def wait_on(self, rollout: RealRollout) -> None:
        """After a restart of the run: it still waits."""
        assert rollout.answer_at is not None
        self._away[rollout.rollout_id] = rollout
        self._group.set_alarm(rollout.rollout_id, rollout.answer_at)

    def answer(self, rollout_id: int) -> None:
        """The tool has answered."""
        rollout = self._away.pop(rollout_id)
        rollout.take_answer()
        if rollout.host >= 0 and not self._go_on(rollout):
            self._answered[rollout_id] = rollout

    def forget(self, rollout: RealRollout) -> None:
        """It is dropped: the answer reaches nobody."""
        self.taken(rollout)
        if self._away.pop(rollout.rollout_id, None) is not None:
            self._group.cancel_alarm(rollout.rollout_id)

    def taken(self, rollout: RealRollout) -> None:
        """Another reason brings it to a replica, or takes it from one."""
        self._answered.pop(rollout.rollout_id, None)

    def take_answered(self) -> list[RealRollout]:
        """Those that a replica is to take when it decodes again."""
        answered, self._answered = self._answered, {}
        return list(answered.values())

    @property
    def waiting(self) -> bool:
        """Somebody who is on a replica waits."""
        return any(rollout.host >= 0 for rollout in self._away.values())
