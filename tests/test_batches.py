"""Whole batches out of rollouts that finish one by one."""

from oppo_sim.policies.interface import Batch
from oppo_sim.schedule.batches import WholeBatches
from oppo_sim.schedule.rollout import RolloutState


def flight(rollout_id: int, group_size: int = 1) -> RolloutState:
    return RolloutState(rollout_id, rollout_id // group_size, 4, 0)


def ids(taken: list[RolloutState]) -> list[int]:
    return [one.rollout_id for one in taken]


def test_batches_are_given_out_whole_once_and_in_order_of_instant_then_id() -> None:
    batches: WholeBatches[RolloutState] = WholeBatches(Batch(2))
    batches.add(flight(5), 1.0)
    assert batches.take() == []
    batches.add(flight(3), 1.0 + 1e-12)  # the same instant
    batches.add(flight(1), 2.0)
    assert ids(batches.take()) == [3, 5]
    batches.add(flight(4), 1.5)
    batches.add(flight(2), 2.0)
    batches.add(flight(0), 3.0)
    # The one that waited is in its place among those that came later.
    assert ids(batches.take()) == [4, 1, 2, 0]
    assert batches.take() == []


def test_groups_count_when_their_last_member_has_finished() -> None:
    batches: WholeBatches[RolloutState] = WholeBatches(Batch(4, 2))
    for at, rollout_id in enumerate((3, 0, 6, 2)):
        batches.add(flight(rollout_id, 2), float(at))
    assert batches.take() == []
    batches.add(flight(1, 2), 9.0)
    assert ids(batches.take()) == [2, 3, 0, 1]
