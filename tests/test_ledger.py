"""The ledger alone, driven as a backend drives it: placement, moves, holds, selection, groups, versions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import pytest

from oppo_sim.errors import OppoError
from oppo_sim.policies import Arrangement, Batch, Policy, PoolView, StepPlan
from oppo_sim.schedule.ledger import Ledger
from oppo_sim.schedule.rollout import RolloutState


class Told(Policy):
    """Answers what a test tells it; else admits B and holds nothing."""

    name = "told"

    def __init__(
        self,
        batch: Batch,
        plan: Callable[[PoolView], StepPlan] | None = None,
        arrange: Callable[[PoolView], Arrangement] | None = None,
        select: Callable[[PoolView], Sequence[int]] | None = None,
        drop: Callable[[PoolView], Collection[int]] | None = None,
    ) -> None:
        super().__init__(batch)
        self._plan, self._arrange, self._select, self._drop = plan, arrange, select, drop

    def plan(self, pool: PoolView) -> StepPlan:
        return self._plan(pool) if self._plan else super().plan(pool)

    def arrange(self, pool: PoolView) -> Arrangement:
        return self._arrange(pool) if self._arrange else super().arrange(pool)

    def select(self, pool: PoolView) -> Sequence[int]:
        return self._select(pool) if self._select else super().select(pool)

    def drop(self, pool: PoolView) -> Collection[int]:
        return self._drop(pool) if self._drop else super().drop(pool)


def ledger_of(policy: Policy, replicas: int = 1) -> Ledger[RolloutState]:
    size = policy.batch.group_size
    return Ledger(
        policy,
        policy.batch,
        replicas,
        lambda rollout_id, step: RolloutState(rollout_id, rollout_id // size, 5, step),
    )


def refill(overcommit: int) -> Callable[[PoolView], StepPlan]:
    return lambda pool: StepPlan(
        admit=max(0, 4 + overcommit - pool.in_flight), chunk_size=8, overcommit=overcommit
    )


def finish(
    ledger: Ledger[RolloutState], rollout_id: int, at: float, tokens: int = 7, version: int = 0
) -> None:
    flight = ledger.unfinished[rollout_id]
    flight.generated = tokens
    ledger.finish(flight, at, version)
    ledger.ready(flight, at)


def placed(flights: list[RolloutState]) -> list[int]:
    return [flight.replica for flight in flights]


def test_new_rollouts_go_to_the_fewest_unfinished_and_ties_to_the_lowest_index() -> None:
    ledger = ledger_of(Told(Batch(4), plan=refill(3)), replicas=3)
    begun = ledger.begin_step(0, 0)
    assert placed(begun.admitted) == [0, 1, 2, 0, 1, 2, 0]
    assert (ledger.load, ledger.in_flight, begun.new) == ([3, 2, 2], 7, 7)
    # Ids 0, 3 (replica 0), 1 (replica 1) and 2 (replica 2) finish: one is left on each.
    for rollout_id in (0, 3, 1, 2):
        finish(ledger, rollout_id, 1.0)
    assert ledger.phase_over()
    ledger.end_phase(0)
    assert ledger.load == [1, 1, 1]
    finish_on_two = ledger.begin_step(1, 1).admitted
    assert placed(finish_on_two) == [0, 1, 2, 0]
    assert ledger.load == [3, 2, 2]


def test_a_finish_frees_its_replica_for_the_next_placement() -> None:
    ledger = ledger_of(Told(Batch(4)), replicas=2)
    ledger.begin_step(0, 0)
    for at, rollout_id in enumerate((0, 2, 1, 3)):
        finish(ledger, rollout_id, float(at))
    ledger.end_phase(0)
    assert (ledger.load, ledger.in_flight) == ([0, 0], 0)
    assert placed(ledger.begin_step(1, 1).admitted) == [0, 1, 0, 1]


def test_none_is_admitted_and_none_dropped_if_more_are_in_flight_already() -> None:
    overcommit = {0: 4, 1: 0, 2: 0}
    ledger = ledger_of(Told(Batch(4), plan=lambda pool: refill(overcommit[pool.step])(pool)))
    for step, admitted in ((0, 8), (1, 0), (2, 4)):
        begun = ledger.begin_step(step, step)
        assert begun.new == admitted
        for rollout_id in sorted(ledger.unfinished)[: 4 - (ledger.in_flight - len(ledger.unfinished))]:
            finish(ledger, rollout_id, float(step))
        ledger.end_phase(step)
    assert ledger.admitted == 12


def test_batches_are_surplus_first_then_instant_then_id() -> None:
    ledger = ledger_of(Told(Batch(4), plan=refill(4)))
    ledger.begin_step(0, 0)
    # 6 and 5 within 1e-9 are one instant: the lower id first. The same instant as the fourth finish gives
    # surplus: 7.
    for rollout_id, at in ((3, 1.0), (6, 2.0), (5, 2.0 + 1e-10), (7, 3.0), (2, 3.0)):
        finish(ledger, rollout_id, at)
    outcome = ledger.end_phase(0)
    assert [flight.rollout_id for flight in outcome.trained] == [3, 5, 6, 2]
    assert (outcome.surplus, outcome.deferred) == (1, 3)
    ledger.begin_step(1, 1)
    for rollout_id, at in ((0, 4.0), (1, 5.0), (4, 6.0)):
        finish(ledger, rollout_id, at, version=1)
    assert [flight.rollout_id for flight in ledger.end_phase(1).trained] == [7, 0, 1, 4]


def test_deferrals_count_steps_with_tokens_and_versions_follow_the_tokens() -> None:
    ledger = ledger_of(Told(Batch(4), plan=refill(2)))
    ledger.begin_step(0, 0)
    waiting, slow = ledger.unfinished[4], ledger.unfinished[5]
    for version in range(3):
        slow.generated += 10
        for rollout_id in [i for i in ledger.unfinished if i not in (4, 5)][:4]:
            finish(ledger, rollout_id, float(version), version=version)
        ledger.end_phase(version)
        ledger.begin_step(version + 1, version + 1)
    assert (waiting.deferrals, waiting.head_version, waiting.span) == (0, None, 0)
    assert (slow.deferrals, slow.head_version, slow.tail_version, slow.span) == (3, 0, 2, 3)
    finish(ledger, 5, 9.0, tokens=31, version=3)
    assert (slow.head_version, slow.tail_version, slow.span) == (0, 3, 4)


def test_a_phase_waits_for_those_that_it_must() -> None:
    ledger = ledger_of(
        Told(Batch(4), plan=lambda pool: StepPlan(admit=6, chunk_size=8, wait_for=frozenset({5, 99})))
    )
    ledger.begin_step(0, 0)
    for rollout_id in range(5):
        finish(ledger, rollout_id, 1.0)
    assert not ledger.phase_over()
    finish(ledger, 5, 2.0)
    assert ledger.phase_over()


def test_moves_change_the_load_and_are_reported_once() -> None:
    move = {1: 0, 2: 0}
    ledger = ledger_of(Told(Batch(4), arrange=lambda pool: Arrangement(move=move)), replicas=2)
    begun = ledger.begin_step(0, 0)
    # Ids 0, 2 were placed on replica 0, ids 1, 3 on 1: only id 1 moves.
    assert [(flight.rollout_id, left) for flight, left in begun.moved] == [(1, 1)]
    assert (ledger.load, placed(list(ledger.unfinished.values()))) == ([3, 1], [0, 0, 0, 1])


@pytest.mark.parametrize("move", [{9: 0}, {0: 2}, {0: -1}])
def test_impossible_moves_are_refused(move: dict[int, int]) -> None:
    ledger = ledger_of(Told(Batch(4), arrange=lambda pool: Arrangement(move=move)), replicas=2)
    with pytest.raises(OppoError, match=r"policy 'told', step 0: arrange\(\) moved rollout"):
        ledger.begin_step(0, 0)


def test_held_rollouts_leave_enough_to_end_the_phase() -> None:
    def holding(*ids: int) -> Ledger[RolloutState]:
        return ledger_of(
            Told(Batch(4), plan=refill(2), arrange=lambda pool: Arrangement(hold=frozenset(ids)))
        )

    assert holding(0, 1).begin_step(0, 0).arrangement.hold == {0, 1}
    with pytest.raises(
        OppoError, match="ends the phase at 4 finished rollouts but only 3 are in flight and not held"
    ):
        holding(0, 1, 2).begin_step(0, 0)
    waited = Told(Batch(4), arrange=lambda pool: Arrangement(hold=frozenset({5})))
    waited._plan = lambda pool: StepPlan(admit=6, chunk_size=8, wait_for=frozenset({5}))
    with pytest.raises(OppoError, match=r"waits for rollouts that arrange\(\) holds"):
        ledger_of(waited).begin_step(0, 0)


def test_a_held_member_holds_its_group() -> None:
    # Three groups of 2, one member of two of them held: only one group can finish, B = 4 needs two.
    policy = Told(
        Batch(4, 2),
        plan=lambda pool: StepPlan(admit=6, chunk_size=8),
        arrange=lambda pool: Arrangement(hold=frozenset({1, 2})),
    )
    with pytest.raises(OppoError, match="only 2 are in flight and not held"):
        ledger_of(policy).begin_step(0, 0)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (StepPlan(admit=-1, chunk_size=8), "admits -1"),
        (StepPlan(admit=5, chunk_size=8), "not a multiple of group_size 2"),
        (StepPlan(admit=10_000_000, chunk_size=8), "admits 10,000,000 rollouts at once, more than 2,000,000"),
        (StepPlan(admit=4, chunk_size=0), "chunk_size 0, below 1"),
        (
            StepPlan(admit=4, chunk_size=8, stop_after=2),
            "ends the phase at 2 finished, below rollout_batch_size",
        ),
        (
            StepPlan(admit=4, chunk_size=8, stop_after=6),
            "ends the phase at 6 finished rollouts but only 4 are in flight",
        ),
        (StepPlan(admit=0, chunk_size=8), "only 0 are in flight"),
        (StepPlan(admit=4, chunk_size=8, readmit=(0, 1)), "readmits rollouts that were not dropped"),
    ],
)
def test_plans_that_cannot_be_are_refused(plan: StepPlan, words: str) -> None:
    with pytest.raises(OppoError, match=rf"^policy 'told', step 0: plan\(\) .*{words}.*; mend the policy$"):
        ledger_of(Told(Batch(4, 2), plan=lambda pool: plan)).begin_step(0, 0)


def test_an_asynchronous_policy_must_leave_a_batch_in_flight() -> None:
    policy = Told(Batch(4), plan=lambda pool: StepPlan(admit=3, chunk_size=8))
    policy.schedule = "async"  # type: ignore[misc]
    with pytest.raises(OppoError, match="3 rollouts in flight and not held, too few for a batch"):
        ledger_of(policy).begin_step(0, 0)


@pytest.mark.parametrize(
    ("selected", "words"),
    [
        ([0, 1, 2], "must name 4 different rollouts, it named 3"),
        ([0, 1, 2, 2], "must name 4 different rollouts, it named 3"),
        ([0, 1, 2, 5], "must name finished rollouts, rollout 5 is none"),
        ([0, 1, 2, 99], "must name finished rollouts, rollout 99 is none"),
    ],
)
def test_selections_that_cannot_be_are_refused(selected: list[int], words: str) -> None:
    ledger = ledger_of(Told(Batch(4), plan=refill(2), select=lambda pool: selected))
    ledger.begin_step(0, 0)
    for rollout_id in range(5):
        finish(ledger, rollout_id, 1.0)
    with pytest.raises(OppoError, match=rf"^policy 'told', step 0: select\(\) {words}; mend the policy$"):
        ledger.end_phase(0)


def test_a_policy_may_choose_among_the_finished() -> None:
    ledger = ledger_of(
        Told(
            Batch(4), plan=refill(2), select=lambda pool: [view.rollout_id for view in pool.finished][:-5:-1]
        )
    )
    ledger.begin_step(0, 0)
    for rollout_id in range(6):
        finish(ledger, rollout_id, float(rollout_id))
    outcome = ledger.end_phase(0)
    assert [flight.rollout_id for flight in outcome.trained] == [5, 4, 3, 2]
    assert [flight.rollout_id for flight in ledger.finished] == [0, 1]
    assert ledger.finished_tokens() == 14


# ---- groups ------------------------------------------------------------------------------------------------


def test_a_group_finishes_with_its_last_member_and_is_trained_whole() -> None:
    ledger = ledger_of(Told(Batch(4, 2), plan=lambda pool: StepPlan(admit=6, chunk_size=8)), replicas=3)
    assert placed(ledger.begin_step(0, 0).admitted) == [0, 1, 2, 0, 1, 2]
    for rollout_id, at in ((0, 1.0), (2, 2.0), (4, 3.0), (5, 4.0), (1, 5.0)):
        assert not ledger.phase_over()
        finish(ledger, rollout_id, at)
    assert (ledger.in_flight - len(ledger.unfinished), ledger.unfinished_count(), ledger.load) == (
        4,
        2,
        [1, 0, 0],
    )
    outcome = ledger.end_phase(0)
    assert [flight.rollout_id for flight in outcome.trained] == [4, 5, 0, 1]
    # The member that has finished is deferred with its group.
    assert (outcome.deferred, sorted(ledger.unfinished)) == (2, [2, 3])
    assert [flight.deferrals for flight in ledger.unfinished.values()] == [1, 1]


def test_groups_are_neither_selected_nor_dropped_nor_run_again_in_part() -> None:
    def after(policy: Told) -> Ledger[RolloutState]:
        ledger = ledger_of(policy)
        ledger.begin_step(0, 0)
        for rollout_id in range(6):
            finish(ledger, rollout_id, 1.0)
        return ledger

    def six(pool: PoolView) -> StepPlan:
        return StepPlan(admit=6, chunk_size=8, readmit=(4,) if pool.step else ())

    with pytest.raises(OppoError, match=r"select\(\) split a group"):
        after(Told(Batch(4, 2), plan=six, select=lambda pool: [0, 1, 2, 4])).end_phase(0)
    with pytest.raises(OppoError, match=r"drop\(\) split a group"):
        after(Told(Batch(4, 2), plan=six, drop=lambda pool: [4])).end_phase(0)
    ledger = after(Told(Batch(4, 2), plan=six, drop=lambda pool: [4, 5]))
    ledger.end_phase(0)
    with pytest.raises(OppoError, match=r"plan\(\) readmits a part of a group"):
        ledger.begin_step(1, 1)


def test_dropped_rollouts_start_from_nothing_and_keep_their_id() -> None:
    def plan(pool: PoolView) -> StepPlan:
        return (
            StepPlan(admit=4, chunk_size=8, readmit=(4, 5)) if pool.step else StepPlan(admit=6, chunk_size=8)
        )

    ledger = ledger_of(
        Told(
            Batch(4),
            plan=plan,
            drop=lambda pool: [view.rollout_id for view in (*pool.finished, *pool.unfinished)],
        ),
        replicas=2,
    )
    ledger.begin_step(0, 0)
    half_done = ledger.unfinished[5]
    half_done.generated = 30
    for rollout_id in range(5):
        finish(ledger, rollout_id, float(rollout_id))
    outcome = ledger.end_phase(0)
    assert [flight.rollout_id for flight in outcome.dropped] == [4, 5]
    assert (ledger.in_flight, ledger.load) == (0, [0, 0])
    begun = ledger.begin_step(1, 1)
    assert [flight.rollout_id for flight in begun.admitted] == [6, 7, 8, 9, 4, 5]
    assert (begun.new, placed(begun.admitted)) == (4, [0, 1, 0, 1, 0, 1])
    assert (
        half_done.generated,
        half_done.deferrals,
        half_done.drops,
        half_done.head_version,
        half_done.finished_at,
    ) == (
        0,
        0,
        1,
        None,
        None,
    )


def test_dropping_what_is_not_in_flight_is_refused() -> None:
    ledger = ledger_of(Told(Batch(4), drop=lambda pool: [0]))
    ledger.begin_step(0, 0)
    for rollout_id in range(4):
        finish(ledger, rollout_id, 1.0)
    with pytest.raises(OppoError, match=r"drop\(\) named rollouts that are not in flight: \[0\]"):
        ledger.end_phase(0)


def test_an_oracle_needs_lengths_and_others_are_not_shown_them() -> None:
    class Knowing(Told):
        oracle = True

    with pytest.raises(OppoError, match="policy 'told' is an oracle: it needs lengths known beforehand"):
        ledger_of(Knowing(Batch(4)))
    seen: list[PoolView] = []

    def noting(pool: PoolView) -> StepPlan:
        seen.append(pool)
        return StepPlan(admit=4, chunk_size=8)

    for kind in (Told, Knowing):
        policy = kind(Batch(4), plan=noting)
        Ledger(
            policy,
            policy.batch,
            1,
            lambda i, step: RolloutState(i, i, 5, step),
            lambda flight: 100 + flight.rollout_id,
        ).begin_step(0, 0)
    assert [hasattr(pool, "response_lengths") for pool in seen] == [False, True]
