"""What every schedule shares: ledger, weight version, rows; and what its plant calls.

``process`` is a generator that yields what it waits for: SimPy runs it as a process, a real run handles
events until the signal has come.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from oppo_sim.policies.interface import Batch, Policy, StepPlan
from oppo_sim.schedule.ledger import Begun, Ledger
from oppo_sim.schedule.plant import BusyReading, Plant, StepEnd, Wait
from oppo_sim.schedule.rollout import F
from oppo_sim.schedule.rules import Stages, effective_granularity


@dataclass(frozen=True)
class ScheduleSetup:
    """What is to be scheduled."""

    policy: Policy
    batch: Batch
    num_replicas: int
    streamable: bool
    steps: int
    first_step: int = 0
    """Steps before it were done in an earlier run."""
    groups_together: bool = False
    """All samples of a prompt go to one replica."""
    equal_rewards: Callable[[Sequence[Any]], bool] | None = None
    """Dynamic sampling: whether a group's rollouts have equal rewards, and are dropped and replaced."""
    gen_batch_size: int | None = None
    """Rollouts that are generated at a time, at least B; groups are replaced by as many, once all have
    finished. None: a group is replaced by one, at once."""


class Scheduler(ABC, Generic[F]):
    """What all schedules share: ledger, weight version, what a row counts of the ledger's decisions."""

    every_instant = False
    """``instant_over`` is wanted."""

    def __init__(
        self,
        setup: ScheduleSetup,
        plant_of: "Callable[[Scheduler[F]], Plant[F]]",
        oracle_length: Callable[[F], int] | None = None,
    ) -> None:
        """``plant_of`` makes the plant that reports to this object what happens; ``oracle_length``: as for
        the ledger."""
        self.setup = setup
        self.version = 0
        """Updates done."""
        self.granularity = effective_granularity(setup.policy, setup.streamable)
        self.plant: Plant[F] = plant_of(self)
        self.ledger: Ledger[F] = Ledger(
            setup.policy,
            setup.batch,
            setup.num_replicas,
            self.plant.admit,
            oracle_length,
            setup.groups_together,
            setup.equal_rewards,
        )
        self._plan = StepPlan(0, 1)
        self._stopping = False
        """A stop of the plant was requested and it has not rested since."""
        self._admitted = 0
        self._dropped: list[int] = []
        self._filtered: list[int] = []

    @abstractmethod
    def process(self) -> Wait[None]:
        """All steps."""

    # ---- what the plant reports ----------------------------------------------------------------------------

    @abstractmethod
    def finished(self, rollout: F, at: float) -> None:
        """A rollout made its last token."""

    @abstractmethod
    def scored(self, rollout: F, at: float) -> None:
        """A rollout's score exists."""

    @abstractmethod
    def stop_check(self) -> None:
        """First decision of an instant: does generation stop?"""

    @abstractmethod
    def all_idle(self) -> None:
        """Generation is on, nobody is stopping it, and no replica has anything left to do."""

    @abstractmethod
    def instant_over(self) -> None:
        """Last decision of an instant, after the scoring workers took work."""

    # ---- what schedules share ------------------------------------------------------------------------------

    def _begin_row(self, step: int) -> float:
        """Returns by how much seconds are fewer from now on."""
        self._admitted = 0
        self._dropped = []
        self._filtered = []
        passed = self.plant.begin_row(step)
        if passed:
            self.ledger.rebase(passed)
        return passed

    def _drop_filtered(self) -> int:
        """Groups with equal rewards leave the scorer; returns how many rollouts."""
        filtered = self.ledger.take_filtered()
        for rollout in filtered:
            self.plant.drop(rollout)
        return len(filtered)

    def _replace_filtered(self, count: int) -> None:
        """Generation goes on: others begin in their place, at once."""
        if count:
            self._admitted += count
            self.plant.join(self.ledger.replace(count))

    def _begin_step(self, step: int) -> Begun[F]:
        self._drop_filtered()  # the plan sees that they are gone
        begun = self.ledger.begin_step(step, self.version, self.setup.gen_batch_size)
        self._plan = begun.plan
        self._admitted += begun.new
        self.plant.place(begun)
        return begun

    def _ready_or_filtered(self, rollout: F, at: float) -> None:
        """It may be selected, or its group is dropped, once the group is whole."""
        self._filtered += self.ledger.ready(rollout, at)

    def _score_whole(self, rollouts: Iterable[F]) -> None:
        """Hand over what has not been handed over yet (``batch`` and ``rollout`` granularity)."""
        for rollout in rollouts:
            if not rollout.sent_to_scorer:
                rollout.sent_to_scorer = True
                self.plant.hand_over(rollout, True)

    def _close_row(
        self,
        step: int,
        stages: Stages,
        batch: list[F],
        left: tuple[int, int],
        last_score: BusyReading | None,
        next_batch: Sequence[F] = (),
    ) -> None:
        """``left``: (deferred, surplus); ``next_batch`` is generated already."""
        in_flight = self.ledger.tokens_in_flight() + sum([rollout.generated for rollout in next_batch])
        self.plant.close_row(
            StepEnd(
                step,
                self.version,
                stages,
                batch,
                self._plan,
                self._admitted,
                *left,
                len(self._dropped),
                sum(self._dropped),
                len(self._filtered),
                sum(self._filtered),
                in_flight,
                last_score,
            )
        )
