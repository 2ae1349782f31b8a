"""Which worker scores what: the one rule of simulated and real runs (docs/model.md C8, C9, C20)."""

from collections import deque

import pytest

from oppo_sim.schedule.rollout import RolloutState
from oppo_sim.schedule.scoring import ScoringRouter, next_batch


def rollout(rollout_id: int) -> RolloutState:
    return RolloutState(rollout_id, rollout_id, 1, 0)


def send(router: ScoringRouter[RolloutState], piece_of: RolloutState, new: int, last: bool = False) -> None:
    router.offer(piece_of, new, 0, last)
    router.settle()


def loads(router: ScoringRouter[RolloutState]) -> list[int]:
    return [worker.load for worker in router.workers]


def test_a_rollout_goes_to_the_least_loaded_worker_and_stays_there() -> None:
    router: ScoringRouter[RolloutState] = ScoringRouter(2, None)
    first, second, third = rollout(0), rollout(1), rollout(2)
    # Of one instant by id, whatever the order of arrival; equal loads: the lower index.
    router.offer(second, 3, 0, False)
    router.offer(first, 5, 0, False)
    router.settle()
    assert (first.worker, second.worker, loads(router)) == (0, 1, [5, 3])
    send(router, third, 4)
    send(router, first, 1)
    assert (third.worker, first.worker, loads(router)) == (1, 0, [6, 7])
    assert router.pieces == 4


@pytest.mark.parametrize("told", [True, False], ids=["told before the drop", "told after it"])
def test_a_drop_takes_what_waits_at_once_and_what_is_in_service_at_its_end(told: bool) -> None:
    router: ScoringRouter[RolloutState] = ScoringRouter(1, None)
    worker = router.workers[0]
    kept, dropped = rollout(0), rollout(1)
    send(router, dropped, 8)
    send(router, kept, 2, last=True)
    send(router, dropped, 4)
    batch = [dropped.key, kept.key]
    if told:
        router.take(worker, batch)
    router.forget(dropped)
    dropped.restart()
    # A worker that began before it heard of the drop: the pieces that wait for nothing are gone either way.
    assert loads(router) == [10 if told else 2]
    if not told:
        router.take(worker, batch)
    assert router.end_batch(worker, 5.0) == [kept]
    assert (loads(router), kept.scored_at, dropped.scored_at) == ([0], 5.0, None)


def test_a_full_kv_withholds_a_rollout_until_its_last_piece() -> None:
    router: ScoringRouter[RolloutState] = ScoringRouter(1, 10)
    worker = router.workers[0]
    large, small = rollout(0), rollout(1)
    send(router, large, 8)
    send(router, small, 4)
    send(router, small, 1)
    assert (router.pieces, small.withheld, worker.held) == (1, 5, 8)
    router.offer(small, 2, 5, True)
    (_, piece), *_ = router.settle()
    assert (piece.new, piece.past, worker.held) == (7, 0, 15)
    router.take(worker, [large.key, small.key])
    assert router.end_batch(worker, 1.0) == [small]
    assert worker.held == 8  # of the rollout without a score


def test_a_batch_takes_what_fits_in_order_and_an_oversized_piece_alone() -> None:
    queue = deque([30, 5, 6, 1, 12])
    assert next_batch(queue, 12, lambda tokens: tokens) == [30]
    assert next_batch(queue, 12, lambda tokens: tokens) == [5, 6, 1]
    assert next_batch(queue, 12, lambda tokens: tokens) == [12]
