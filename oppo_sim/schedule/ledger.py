"""Who is in flight: admission, placement, selection, deferral and versions. One object for simulator and real
engines.

The backend decodes and reports to the ledger what finished when; the ledger calls the policy and checks its
decisions. It holds no time costs and never looks at the length of a response that has not finished.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from oppo_sim.errors import OppoError
from oppo_sim.instants import by_instant_then_id
from oppo_sim.policies.interface import (
    KEEP,
    Arrangement,
    Batch,
    OraclePoolView,
    Policy,
    PoolView,
    RolloutView,
    StepPlan,
)
from oppo_sim.schedule.answers import Answers
from oppo_sim.schedule.rollout import F


@dataclass(frozen=True)
class Begun(Generic[F]):
    """What a step starts with."""

    plan: StepPlan
    admitted: list[F]
    """Newly admitted, and dropped ones that run again, placed on their replicas."""
    new: int
    """How many of them are new."""
    arrangement: Arrangement
    moved: list[tuple[F, int]]
    """(rollout, replica it left), for rollouts that were on a replica before this step or were just
    placed."""


@dataclass(frozen=True)
class PhaseOutcome(Generic[F]):
    """What a phase ended with."""

    trained: list[F]
    dropped: list[F]
    surplus: int
    """Finished, kept for the next step."""
    deferred: int
    """Unfinished (with groups: members of unfinished groups), kept."""


class Ledger(Generic[F]):
    """Bookkeeping of one run."""

    def __init__(
        self,
        policy: Policy,
        batch: Batch,
        num_replicas: int,
        make_rollout: Callable[[int, int], F],
        oracle_length: Callable[[F], int] | None = None,
        groups_together: bool = False,
        equal_rewards: Callable[[Sequence[F]], bool] | None = None,
    ) -> None:
        """``make_rollout(rollout_id, step)`` makes a rollout's record; only a declared oracle is shown what
        ``oracle_length`` gives; ``groups_together``: all samples of a prompt go to one replica;
        ``equal_rewards``: whether a group that is ready is dropped (None: none is)."""
        if policy.oracle and oracle_length is None:
            raise OppoError(
                f"policy '{policy.name}' is an oracle: it needs lengths known beforehand, so it runs in"
                " replay only"
            )
        self._policy = policy
        self._batch = batch
        self._answers = Answers(policy, batch)
        self._make_rollout = make_rollout
        self._oracle_length = oracle_length if policy.oracle else None
        self._oldest_first = policy.schedule == "async" and policy.train_order == "oldest"
        self._arranges = type(policy).arrange is not Policy.arrange
        self._num_replicas = num_replicas
        self._together = groups_together
        self._placed_last: F | None = None
        self._equal_rewards = equal_rewards
        self._filtered: list[F] = []
        self.filtered = 0
        """Rollouts dropped for the equal rewards of their groups."""
        self.load = [0] * num_replicas
        """Unfinished rollouts a replica has."""
        self.unfinished: dict[int, F] = {}
        """By id; with groups every member of an unfinished group, finished or not."""
        self.finished: list[F] = []
        """In order of selection."""
        self.shelved: dict[int, F] = {}
        """Dropped, may run again."""
        self.admitted = 0
        self._arrivals: list[tuple[float, int, list[F]]] = []
        self._missing: dict[int, int] = {}  # group id → members that have not finished
        self._awaited: set[int] = set()
        self._finished_count = 0  # rollouts of whole finished groups, surplus included
        self._stop_after = 0
        self._step = 0

    @property
    def in_flight(self) -> int:
        """Rollouts admitted, not trained, not dropped."""
        return len(self.unfinished) + self._finished_count

    def unfinished_count(self) -> int:
        """Unfinished rollouts; with groups, members of unfinished groups."""
        groups = {rollout.group_id for rollout in self.unfinished.values() if rollout.finished_at is None}
        return len(groups) * self._batch.group_size

    def finished_tokens(self) -> int:
        """Response tokens of finished rollouts that are still in flight."""
        arrived = sum([rollout.generated for _, _, members in self._arrivals for rollout in members])
        return arrived + sum([rollout.generated for rollout in self.finished])

    def tokens_in_flight(self) -> int:
        """Response tokens of all rollouts in flight; ``generated`` must be current."""
        return self.finished_tokens() + sum([rollout.generated for rollout in self.unfinished.values()])

    def pool(self, version: int) -> PoolView:
        """What the policy may see now."""

        def make(finished: bool) -> tuple[RolloutView, ...]:
            rollouts: Iterable[F] = (
                self.finished
                if finished
                else sorted(self.unfinished.values(), key=lambda rollout: rollout.rollout_id)
            )
            return tuple([rollout.view() for rollout in rollouts])

        def ids() -> list[int]:
            return [*self.unfinished, *(rollout.rollout_id for rollout in self.finished)]

        kind = PoolView if self._oracle_length is None else OraclePoolView
        pool = kind(
            self._step, version, self.admitted, self.in_flight, self._num_replicas, make, ids, self.filtered
        )
        if isinstance(pool, OraclePoolView) and self._oracle_length is not None:
            length = self._oracle_length
            pool.response_lengths = {
                rollout.rollout_id: length(rollout) for rollout in (*self.unfinished.values(), *self.finished)
            }
        return pool

    def begin_step(self, step: int, version: int, at_least: int | None = None) -> Begun[F]:
        """Get the policy's plan, admit, ``at_least`` so many, and place. Raises OppoError if the plan
        is impossible."""
        self._step = self._answers.step = step
        for rollout in self.unfinished.values():
            rollout.generated_before = rollout.generated
        plan = self._policy.plan(self.pool(version))
        self._answers.check_plan(plan, self.shelved.keys())
        self._placed_last = None
        admitted = [self._admit_new(step) for _ in range(max(plan.admit, at_least or 0))]
        new = len(admitted)
        for rollout_id in plan.readmit:
            rollout = self.shelved.pop(rollout_id)
            rollout.restart()
            self._place(rollout)
            admitted.append(rollout)
        arrangement, moved = self._arrange(version) if self._arranges else (KEEP, [])
        self._stop_after = self._batch.rollout_batch_size if plan.stop_after is None else plan.stop_after
        self._awaited = {rollout_id for rollout_id in plan.wait_for if rollout_id in self.unfinished}
        self._check_phase_can_end(arrangement)
        return Begun(plan, admitted, new, arrangement, moved)

    def finish(self, rollout: F, at: float, version: int) -> None:
        """A rollout made its last token at ``at`` (seconds) under ``version``."""
        rollout.finished_at = at
        rollout.made_tokens_in(version)
        self.load[rollout.replica] -= 1

    def ready(self, rollout: F, at: float) -> Sequence[int]:
        """A finished rollout may be selected (synchronous: when it finished; async: when it was scored).
        Returns the response tokens of each member of its group if that is dropped for equal rewards."""
        group = rollout.group_id
        if self._batch.group_size == 1:
            members = [rollout]
        else:
            self._missing[group] -= 1
            if self._missing[group]:
                return ()
            del self._missing[group]
            members = [self.unfinished[i] for i in self._member_ids(group)]
        for member in members:
            del self.unfinished[member.rollout_id]
            member.finished_step = self._step
            if self._awaited:
                self._awaited.discard(member.rollout_id)
        if self._equal_rewards is not None and self._equal_rewards(members):
            for member in members:
                member.filtered = True
            self._filtered += members
            self.filtered += len(members)
            return [member.generated for member in members]
        self._arrivals.append((at, group, members))
        self._finished_count += len(members)
        return ()

    def take_filtered(self) -> list[F]:
        """Rollouts of groups with equal rewards since the last call; they are in flight no more."""
        filtered, self._filtered = self._filtered, []
        return filtered

    def replace(self, count: int) -> list[F]:
        """Admit ``count`` rollouts within the step, and place them."""
        self._placed_last = None
        return [self._admit_new(self._step) for _ in range(count)]

    def state_dict(self, plain: Callable[[F], Any]) -> dict[str, Any]:
        """The ledger between two steps; ``plain`` turns a rollout's record into plain values."""
        return {
            "admitted": self.admitted,
            "filtered": self.filtered,
            "load": list(self.load),
            "unfinished": [plain(rollout) for rollout in self.unfinished.values()],
            "finished": [plain(rollout) for rollout in self.finished],
            "shelved": [plain(rollout) for rollout in self.shelved.values()],
            "missing": dict(self._missing),
        }

    def load_state_dict(self, state: Mapping[str, Any], restored: Callable[[Any], F]) -> None:
        """Restore what ``state_dict`` gave; ``restored`` turns plain values into a rollout's record."""
        self.admitted = int(state["admitted"])
        self.filtered = int(state.get("filtered", 0))
        self.load[:] = state["load"]
        self.unfinished = {rollout.rollout_id: rollout for rollout in map(restored, state["unfinished"])}
        self.finished = [restored(plain) for plain in state["finished"]]
        self.shelved = {rollout.rollout_id: rollout for rollout in map(restored, state["shelved"])}
        self._missing = dict(state["missing"])
        self._finished_count = len(self.finished)

    def rebase(self, passed: float) -> None:
        """Seconds are counted from a moment ``passed`` seconds later."""
        self._arrivals = [(at - passed, group, members) for at, group, members in self._arrivals]
        arrived = [rollout for _, _, members in self._arrivals for rollout in members]
        for rollout in (*self.unfinished.values(), *self.finished, *arrived):
            rollout.rebase(passed)

    def phase_over(self) -> bool:
        """True when what ends the phase has happened."""
        return self._finished_count >= self._stop_after and not self._awaited

    def close_version(self, version: int) -> None:
        """Account the tokens that unfinished rollouts made under ``version``; ``generated`` must be
        current."""
        for rollout in self.unfinished.values():
            if rollout.finished_at is None and rollout.generated > rollout.generated_before:
                rollout.made_tokens_in(version)

    def begin_version(self) -> None:
        """Tokens from now on belong to a new version (asynchronous policies)."""
        for rollout in self.unfinished.values():
            rollout.generated_before = rollout.generated

    def end_phase(self, version: int, whole_batches: bool = False) -> PhaseOutcome[F]:
        """Count deferrals, get the policy's decisions what to train and what to drop. ``whole_batches``: of
        generation batches the first rollouts are trained, whenever they finished, and the others dropped.
        Raises OppoError if its answer is impossible."""
        self.close_version(version)
        self._count_deferrals()
        if whole_batches:
            self._order_arrivals()
            self.finished.sort(key=lambda rollout: rollout.rollout_id)
        trained = self.take_batch(version)
        dropped = self._drop(version)
        if whole_batches:
            dropped += self.finished
            self.finished, self._finished_count = [], 0
        return PhaseOutcome(trained, dropped, self._finished_count, len(self.unfinished))

    def take_batch(self, version: int) -> list[F]:
        """Remove and return the batch the policy selects from what is ready."""
        self._order_arrivals()
        selected = list(self._policy.select(self.pool(version)))
        size = self._batch.rollout_batch_size
        head = self.finished[:size]
        if selected != [rollout.rollout_id for rollout in head]:
            by_id = {rollout.rollout_id: rollout for rollout in self.finished}
            self._answers.check_selection(selected, by_id)
            head = [by_id[rollout_id] for rollout_id in selected]
            chosen = set(selected)
            self.finished = [rollout for rollout in self.finished if rollout.rollout_id not in chosen]
        else:
            del self.finished[:size]
        self._finished_count -= size
        return head

    # ---- inside --------------------------------------------------------------------------------------------

    def _admit_new(self, step: int) -> F:
        rollout = self._make_rollout(self.admitted, step)
        self.admitted += 1
        self._place(rollout)
        return rollout

    def _place(self, rollout: F) -> None:
        load, last = self.load, self._placed_last
        if self._together and last is not None and last.group_id == rollout.group_id:
            replica = last.replica
        else:
            replica = load.index(min(load))
        load[replica] += 1
        rollout.replica = replica
        self._placed_last = rollout
        self.unfinished[rollout.rollout_id] = rollout
        if self._batch.group_size > 1:
            self._missing[rollout.group_id] = self._missing.get(rollout.group_id, 0) + 1

    def _arrange(self, version: int) -> tuple[Arrangement, list[tuple[F, int]]]:
        arrangement = self._policy.arrange(self.pool(version))
        moved = []
        for rollout_id, replica in sorted(arrangement.move.items()):
            rollout = self.unfinished.get(rollout_id)
            self._answers.check_move(rollout_id, replica, rollout is not None, self._num_replicas)
            assert rollout is not None
            if rollout.replica != replica and rollout.finished_at is None:
                moved.append((rollout, rollout.replica))
                self.load[rollout.replica] -= 1
                self.load[replica] += 1
                rollout.replica = replica
        return arrangement, moved

    def _member_ids(self, group: int) -> range:
        size = self._batch.group_size
        return range(group * size, (group + 1) * size)

    def _order_arrivals(self) -> None:
        if self._arrivals:
            for _, _, members in by_instant_then_id(self._arrivals):
                self.finished.extend(members)
            self._arrivals.clear()
            if self._oldest_first:
                self._order_by_first_token()

    def _order_by_first_token(self) -> None:
        oldest: dict[int, int] = {}
        for rollout in self.finished:
            assert rollout.head_version is not None
            group = rollout.group_id
            oldest[group] = min(oldest.get(group, rollout.head_version), rollout.head_version)
        self.finished.sort(key=lambda rollout: oldest[rollout.group_id])

    def _count_deferrals(self) -> None:
        decoded = {
            rollout.group_id
            for rollout in self.unfinished.values()
            if rollout.generated > rollout.generated_before
        }
        for rollout in self.unfinished.values():
            if rollout.group_id in decoded:
                rollout.deferrals += 1

    def _drop(self, version: int) -> list[F]:
        wanted = set(self._policy.drop(self.pool(version)))
        if not wanted:
            return []
        in_flight = (*self.finished, *self.unfinished.values())
        self._answers.check_drop(wanted, {rollout.rollout_id for rollout in in_flight})
        dropped = [rollout for rollout in in_flight if rollout.rollout_id in wanted]
        for rollout in dropped:
            self.shelved[rollout.rollout_id] = rollout
            if self.unfinished.pop(rollout.rollout_id, None) is None:
                self._finished_count -= 1
            elif rollout.finished_at is None:
                self.load[rollout.replica] -= 1
            self._missing.pop(rollout.group_id, None)
        self.finished = [rollout for rollout in self.finished if rollout.rollout_id not in wanted]
        return dropped

    def _check_phase_can_end(self, arrangement: Arrangement) -> None:
        # A group with a held member cannot finish.
        kept = [self.unfinished[i] for i in arrangement.hold if i in self.unfinished]
        stuck = {rollout.group_id for rollout in kept if rollout.finished_at is None}
        self._answers.check_phase_can_end(self._stop_after, self.in_flight, stuck, self._awaited)
