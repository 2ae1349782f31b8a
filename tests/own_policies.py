"""Policies of one's own that use every question a policy is asked; made as a user's file would be."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from oppo_sim.policies import Batch, Policy, PoolView, StepPlan
from oppo_sim.policies.interface import Arrangement, StepReport
from oppo_sim.policies.own import make_own


class Overcommitting(Policy):
    """One group too many, and what is overdue is waited for."""

    name = "overcommitting"
    score_granularity = "chunk"
    max_deferrals = 1

    def plan(self, pool: PoolView) -> StepPlan:
        return self.refill(pool, overcommit=self.batch.group_size, chunk_size=3)


class Arranging(Overcommitting):
    """Holds the newest group back and moves rollouts from replica to replica."""

    name = "arranging"

    def plan(self, pool: PoolView) -> StepPlan:
        return StepPlan(
            self.refill(pool, overcommit=2 * self.batch.group_size, chunk_size=1).admit, 4, overcommit=1
        )

    def arrange(self, pool: PoolView) -> Arrangement:
        free = [view for view in pool.unfinished if view.group_id == pool.unfinished[-1].group_id]
        hold = frozenset(view.rollout_id for view in free) if pool.step % 3 == 1 else frozenset()
        move = {
            view.rollout_id: (view.replica + 1) % pool.num_replicas
            for view in pool.unfinished
            if view.rollout_id % 4 == pool.step % 4
        }
        return Arrangement(hold=hold, move=move)


class Selecting(Overcommitting):
    """Waits for more than a batch and trains the newest groups first; learns from what it trained."""

    name = "selecting"
    score_granularity = "rollout"
    max_deferrals = None
    stop_check = "chunk"

    def __init__(self, batch: Batch, settings: Mapping[str, Any] | None = None) -> None:
        super().__init__(batch, settings)
        self.chunk = 2

    def plan(self, pool: PoolView) -> StepPlan:
        more = self.batch.group_size
        plan = self.refill(pool, overcommit=2 * more, chunk_size=self.chunk)
        return StepPlan(
            plan.admit, plan.chunk_size, overcommit=2 * more, stop_after=self.batch.rollout_batch_size + more
        )

    def select(self, pool: PoolView) -> Sequence[int]:
        newest = sorted(pool.finished, key=lambda view: (-view.group_id, view.rollout_id))
        return [view.rollout_id for view in newest[: self.batch.rollout_batch_size]]

    def observe(self, report: StepReport) -> None:
        self.chunk = 2 + len(report.trained) * report.surplus % 3


class Dropping(Overcommitting):
    """Drops the unfinished and one finished group, and runs some of them again."""

    name = "dropping"

    def __init__(self, batch: Batch, settings: Mapping[str, Any] | None = None) -> None:
        super().__init__(batch, settings)
        self.queue: list[int] = []

    def plan(self, pool: PoolView) -> StepPlan:
        size = self.batch.group_size
        again, self.queue = tuple(self.queue[: 2 * size]), self.queue[2 * size :]
        admit = max(0, self.batch.rollout_batch_size + 2 * size - pool.in_flight - len(again))
        wait_for = frozenset(range(pool.admitted, pool.admitted + admit)[:1])
        return StepPlan(admit, 2, overcommit=2 * size, readmit=again, wait_for=wait_for)

    def drop(self, pool: PoolView) -> Collection[int]:
        groups = {view.group_id for view in pool.unfinished if view.generated}
        groups |= {view.group_id for view in pool.finished[:1]}
        views = (*pool.finished, *pool.unfinished)
        dropped = sorted(view.rollout_id for view in views if view.group_id in groups)
        self.queue += dropped
        return dropped


class Ahead(Overcommitting):
    """A batch ahead, on a schedule of its own."""

    name = "ahead"
    schedule = "one-step-off"


class Free(Overcommitting):
    """Asynchronous, and picks the newest of what is scored."""

    name = "free"
    schedule = "async"
    max_deferrals = None

    def plan(self, pool: PoolView) -> StepPlan:
        bound = self.batch.rollout_batch_size * (pool.weight_version + 2)
        return StepPlan(max(0, bound - (pool.admitted - pool.filtered)), 3)

    def select(self, pool: PoolView) -> Sequence[int]:
        newest = sorted(pool.finished, key=lambda view: (-view.group_id, view.rollout_id))
        return [view.rollout_id for view in newest[: self.batch.rollout_batch_size]]


class Uninterrupted(Arranging):
    """Asynchronous, in order of scores: updates wait for what has begun, but not for what is held."""

    name = "uninterrupted"
    schedule = "async"
    max_deferrals = None
    train_order = "scored"
    partial_rollout = False

    def plan(self, pool: PoolView) -> StepPlan:
        bound = self.batch.rollout_batch_size * (pool.weight_version + 3)
        return StepPlan(max(0, bound - (pool.admitted - pool.filtered)), 3)


OWN = {
    kind.name: kind for kind in (Overcommitting, Arranging, Selecting, Dropping, Ahead, Free, Uninterrupted)
}


def own_policy(name: str, batch: Batch) -> Policy:
    """A fresh one, watched as a user's is."""
    return make_own(OWN[name], name, batch, {})
