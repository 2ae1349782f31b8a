"""What a policy may answer; whatever drives the run, a wrong answer is refused in the same sentence."""

from collections.abc import Collection, Container, Iterable, Set
from typing import Final

from oppo_sim.errors import OppoError
from oppo_sim.policies.interface import Batch, Policy, StepPlan

MOST_ADMITTED: Final = 2_000_000
"""Rollouts that a step may begin: the largest batch, and as many again. More is a slip."""


class Answers:
    """Checks a policy's answers in step ``step``, by rollout ids. Every check raises OppoError."""

    def __init__(self, policy: Policy, batch: Batch) -> None:
        self.step = 0
        self._policy = policy
        self._batch = batch

    def check_plan(self, plan: StepPlan, shelved: Set[int]) -> None:
        """``shelved``: dropped rollouts that may run again."""
        size = self._batch.group_size
        if plan.admit < 0 or plan.admit % size:
            raise self.wrong(
                f"plan() admits {plan.admit} rollouts, not a multiple of group_size {size} from 0 on"
            )
        if plan.admit > MOST_ADMITTED:
            raise self.wrong(f"plan() admits {plan.admit:,} rollouts at once, more than {MOST_ADMITTED:,}")
        if plan.chunk_size < 1:
            raise self.wrong(f"plan() gives chunk_size {plan.chunk_size}, below 1 token")
        if plan.overcommit < 0:
            raise self.wrong(f"plan() gives overcommit {plan.overcommit}, below 0 rollouts")
        if plan.readmit:
            again = set(plan.readmit)
            if len(again) != len(plan.readmit) or not again <= shelved:
                raise self.wrong("plan() readmits rollouts that were not dropped")
            if self._splits_group(plan.readmit):
                raise self.wrong("plan() readmits a part of a group")

    def check_move(self, rollout_id: int, replica: int, known: bool, num_replicas: int) -> None:
        """``known``: the rollout is unfinished and in flight."""
        if not known or not 0 <= replica < num_replicas:
            raise self.wrong(
                f"arrange() moved rollout {rollout_id} to replica {replica}, which is not possible"
            )

    def check_phase_can_end(
        self, stop_after: int, in_flight: int, stuck: Collection[int], awaited: Iterable[int]
    ) -> None:
        """``stuck``: groups that cannot finish, since a member is held; ``awaited``: ids in flight that are
        waited for."""
        size, batch = self._batch.group_size, self._batch.rollout_batch_size
        free = in_flight - len(stuck) * size
        if self._policy.schedule == "async" and free < batch:
            raise self.wrong(f"plan() leaves {free} rollouts in flight and not held, too few for a batch")
        if stop_after < batch:
            raise self.wrong(f"plan() ends the phase at {stop_after} finished, below rollout_batch_size")
        if free < stop_after:
            raise self.wrong(
                f"plan() ends the phase at {stop_after} finished rollouts but only {free} are in flight and"
                " not held"
            )
        if stuck and any(rollout_id // size in stuck for rollout_id in awaited):
            raise self.wrong("the phase waits for rollouts that arrange() holds")

    def check_selection(self, selected: Collection[int], finished: Container[int]) -> None:
        """``finished``: ids that may be selected."""
        size = self._batch.rollout_batch_size
        if len(selected) != size or len(set(selected)) != size:
            raise self.wrong(f"select() must name {size} different rollouts, it named {len(set(selected))}")
        wrong = [rollout_id for rollout_id in selected if rollout_id not in finished]
        if wrong:
            raise self.wrong(f"select() must name finished rollouts, rollout {wrong[0]} is none")
        if self._splits_group(selected):
            raise self.wrong("select() split a group")

    def check_drop(self, wanted: set[int], in_flight: Iterable[int]) -> None:
        """``in_flight``: ids of all rollouts that are, but for the batch."""
        unknown = sorted(wanted.difference(in_flight))
        if unknown:
            raise self.wrong(f"drop() named rollouts that are not in flight: {unknown[:5]}")
        if self._splits_group(wanted):
            raise self.wrong("drop() split a group")

    def wrong(self, what: str) -> OppoError:
        """The refusal of an answer."""
        return OppoError(f"policy '{self._policy.name}', step {self.step}: {what}; mend the policy")

    def _splits_group(self, ids: Collection[int]) -> bool:
        size = self._batch.group_size
        if size == 1:
            return False
        named = set(ids)
        return any(
            member not in named
            for rollout_id in ids
            for member in range(rollout_id // size * size, rollout_id // size * size + size)
        )
