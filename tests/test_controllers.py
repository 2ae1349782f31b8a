"""The two online controllers against sequences worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from pydantic import ValidationError

from oppo_sim.errors import OppoError
from oppo_sim.policies.controllers import ChunkControl, ChunkController, DeltaControl, DeltaController
from oppo_sim.policies.interface import Batch, StepReport


def report(step: int = 0, reward: float | None = None, seconds: float = 1.0, tokens: int = 1) -> StepReport:
    return StepReport(step, {"step": seconds}, (), tokens, reward, 0, 0, 0, 1)


def deltas(controller: DeltaController, rewards: Sequence[float | None]) -> list[int]:
    """Δ before the first step and after each."""
    found = [controller.value]
    for step, reward in enumerate(rewards):
        controller.observe(report(step, reward))
        found.append(controller.value)
    return found


def sizes(controller: ChunkController, paces: dict[int, float], steps: int) -> list[int]:
    """Chunk size of each step, where a step under size s takes ``paces[s]`` seconds a token."""
    found = []
    for step in range(steps):
        found.append(controller.value)
        controller.observe(report(step, seconds=10 * paces[controller.value], tokens=10))
    return found


# ---- Δ -----------------------------------------------------------------------------------------------------


def test_delta_waits_for_a_full_window_then_follows_the_slope() -> None:
    # w = 2: the first change comes after the third reward, M_2 − M_0. 0, 1, 2 → up; 1 − 1 = 0 → down; 0 − 2 <
    # 0 → down; 3 − 1 → up.
    control = DeltaControl(initial=3, max=8, window=2)
    assert deltas(DeltaController(control, Batch(64)), [0.0, 1.0, 2.0, 1.0, 0.0, 3.0]) == [
        3,
        3,
        3,
        4,
        3,
        2,
        3,
    ]


def test_only_the_ends_of_the_window_count() -> None:
    # (M_t − M_{t−w})/w is the mean of the w differences, whatever lies between.
    control = DeltaControl(initial=4, max=8, window=3)
    assert deltas(DeltaController(control, Batch(64)), [1.0, 100.0, -100.0, 1.5]) == [4, 4, 4, 4, 5]


def test_a_slope_of_zero_decreases() -> None:
    control = DeltaControl(initial=2, max=8, window=1)
    assert deltas(DeltaController(control, Batch(64)), [1.0, 1.0, 1.0, 1.0]) == [2, 2, 1, 0, 0]


def test_delta_stays_within_its_bounds() -> None:
    control = DeltaControl(initial=6, min=2, max=7, window=1, increment=3, decrement=4)
    rising, falling = [float(t) for t in range(4)], [float(-t) for t in range(4)]
    assert deltas(DeltaController(control, Batch(64)), rising) == [6, 6, 7, 7, 7]
    assert deltas(DeltaController(control, Batch(64)), falling) == [6, 6, 2, 2, 2]


def test_proportional_changes_by_a_quarter_and_at_least_one() -> None:
    # From 16: +4 → 20, +5 → 25, +6 → 31, +7 → 38, +9 → 40 (bound); and from 16 down: −4, −3, −2, −1, −1.
    control = DeltaControl(initial=16, max=40, window=1, proportional=True)
    assert deltas(DeltaController(control, Batch(512)), [float(t) for t in range(6)]) == [
        16,
        16,
        20,
        25,
        31,
        38,
        40,
    ]
    assert deltas(DeltaController(control, Batch(512)), [float(-t) for t in range(6)]) == [
        16,
        16,
        12,
        9,
        7,
        6,
        5,
    ]


def test_defaults_are_an_eighth_of_the_batch_and_half_of_that() -> None:
    # B = 112: Δ_max = 14, start 7. B = 20: Δ_max = ⌈2.5⌉ = 3, start 2.
    for size, maximum, start in ((112, 14, 7), (20, 3, 2), (1, 1, 1)):
        controller = DeltaController(DeltaControl(), Batch(size))
        assert (controller.minimum, controller.maximum, controller.value) == (0, maximum, start)
    assert DeltaControl().window == 10


def test_a_step_without_reward_changes_nothing() -> None:
    control = DeltaControl(initial=2, max=8, window=1)
    assert deltas(DeltaController(control, Batch(64)), [1.0, None, 2.0, None]) == [2, 2, 2, 3, 3]


def test_groups_make_changes_and_bounds_whole() -> None:
    # Groups of 4: Δ_max = ⌈64/8⌉ = 8, start 4; a change of 1 becomes 4. A max of 6 becomes 8.
    controller = DeltaController(DeltaControl(window=1), Batch(64, 4))
    assert deltas(controller, [0.0, 1.0, 2.0, 1.0]) == [4, 4, 8, 8, 4]
    assert DeltaController(DeltaControl(max=6), Batch(64, 4)).maximum == 8


def test_bounds_that_contradict_each_other_are_refused() -> None:
    for wrong in (
        {"min": 3, "max": 2},
        {"initial": 9, "max": 8},
        {"initial": 1, "min": 2},
        {"window": 0},
        {"increment": 0},
    ):
        with pytest.raises(ValidationError):
            DeltaControl(**wrong)
    # The default max, 8/8 = 1, is below what is given: nothing is lowered silently.
    for named, wrong in (("min", {"min": 2}), ("initial", {"initial": 2})):
        with pytest.raises(
            OppoError, match=rf"overcommit {named} 2 is above max, which is 1 .* give overcommit\.max"
        ):
            DeltaController(DeltaControl(**wrong), Batch(8))


def test_delta_goes_on_after_a_checkpoint() -> None:
    control, rewards = (
        DeltaControl(initial=4, max=9, window=3, proportional=True),
        [1.0, 3.0, 2.0, 4.0, 4.5, 1.0, 0.0, 5.0],
    )
    whole = deltas(DeltaController(control, Batch(64)), list(rewards))
    for stop in range(len(rewards)):
        first, second = DeltaController(control, Batch(64)), DeltaController(control, Batch(64))
        deltas(first, list(rewards[:stop]))
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert deltas(second, list(rewards[stop:])) == whole[stop:]


# ---- chunk size --------------------------------------------------------------------------------------------


def test_candidates_run_in_order_and_the_quickest_is_kept_until_the_next_exploration() -> None:
    control = ChunkControl(candidates=(128, 512, 256), explore_every=6)
    assert sizes(ChunkController(control), {128: 3.0, 512: 2.0, 256: 1.0}, 8) == [
        128,
        512,
        256,
        256,
        256,
        256,
        128,
        512,
    ]


def test_each_candidate_runs_its_steps() -> None:
    control = ChunkControl(candidates=(128, 256), explore_every=6, explore_steps=2)
    assert sizes(ChunkController(control), {128: 1.0, 256: 2.0}, 8) == [
        128,
        128,
        256,
        256,
        128,
        128,
        128,
        128,
    ]


def test_the_ratio_of_sums_counts() -> None:
    # 128: (1 + 10) s for (100 + 5) tokens, 0.105 s a token (the mean of the two ratios is 1.005); 256: 0.3
    # both ways.
    controller = ChunkController(ChunkControl(candidates=(128, 256), explore_every=9, explore_steps=2))
    for seconds, tokens in ((1.0, 100), (10.0, 5), (3.0, 10), (3.0, 10)):
        controller.observe(report(seconds=seconds, tokens=tokens))
    assert controller.value == 128


def test_ties_go_to_the_larger_chunk() -> None:
    for paces, kept in (
        ({128: 1.0, 256: 1.0, 512: 1.0}, 512),
        ({128: 1.0, 256: 1.0 + 1e-10, 512: 2.0}, 256),
        ({128: 1.0, 256: 1.0 + 1e-8, 512: 2.0}, 128),
    ):
        assert sizes(ChunkController(ChunkControl()), paces, 4)[3] == kept


def test_exploration_can_fill_the_whole_time() -> None:
    control = ChunkControl(candidates=(1, 2), explore_every=2)
    assert sizes(ChunkController(control), {1: 1.0, 2: 2.0}, 5) == [1, 2, 1, 2, 1]


def test_an_exploration_forgets_the_last_one() -> None:
    controller = ChunkController(ChunkControl(candidates=(1, 2), explore_every=3))
    assert sizes(controller, {1: 1.0, 2: 2.0}, 3) == [1, 2, 1]
    assert sizes(controller, {1: 3.0, 2: 2.9}, 3) == [1, 2, 2]


def test_candidates_that_make_no_sense_are_refused() -> None:
    for wrong in (
        {"candidates": ()},
        {"candidates": (0,)},
        {"candidates": (8, 8)},
        {"explore_every": 2},
        {"explore_steps": 0},
    ):
        with pytest.raises(ValidationError):
            ChunkControl(**wrong)


def test_the_chunk_size_goes_on_after_a_checkpoint() -> None:
    control, paces = ChunkControl(candidates=(4, 8), explore_every=7, explore_steps=2), {4: 1.0, 8: 0.5}
    whole = sizes(ChunkController(control), paces, 16)
    for stop in range(16):
        first, second = ChunkController(control), ChunkController(control)
        sizes(first, paces, stop)
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert sizes(second, paces, 16 - stop) == whole[stop:]
