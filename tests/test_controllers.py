"""The online controllers against sequences worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from pydantic import ValidationError

from oppo_sim.errors import OppoError
from oppo_sim.policies.chunk_control import ChunkController, ExploreControl, RaceControl
from oppo_sim.policies.delta_control import DeltaControl, DeltaController
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


# ---- chunk size: the paper's exploration --------------------------------------------------------------------------------------------


def test_candidates_run_in_order_and_the_quickest_is_kept_until_the_next_exploration() -> None:
    control = ExploreControl(candidates=(128, 512, 256), explore_every=6)
    assert sizes(control.controller(), {128: 3.0, 512: 2.0, 256: 1.0}, 8) == [
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
    control = ExploreControl(candidates=(128, 256), explore_every=6, explore_steps=2)
    assert sizes(control.controller(), {128: 1.0, 256: 2.0}, 8) == [
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
    controller = ExploreControl(candidates=(128, 256), explore_every=9, explore_steps=2).controller()
    for seconds, tokens in ((1.0, 100), (10.0, 5), (3.0, 10), (3.0, 10)):
        controller.observe(report(seconds=seconds, tokens=tokens))
    assert controller.value == 128


def test_ties_go_to_the_larger_chunk() -> None:
    for paces, kept in (
        ({128: 1.0, 256: 1.0, 512: 1.0}, 512),
        ({128: 1.0, 256: 1.0 + 1e-10, 512: 2.0}, 256),
        ({128: 1.0, 256: 1.0 + 1e-8, 512: 2.0}, 128),
    ):
        assert sizes(ExploreControl().controller(), paces, 4)[3] == kept


def test_exploration_can_fill_the_whole_time() -> None:
    control = ExploreControl(candidates=(1, 2), explore_every=2)
    assert sizes(control.controller(), {1: 1.0, 2: 2.0}, 5) == [1, 2, 1, 2, 1]


def test_an_exploration_forgets_the_last_one() -> None:
    controller = ExploreControl(candidates=(1, 2), explore_every=3).controller()
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
            ExploreControl(**wrong)


def test_the_chunk_size_goes_on_after_a_checkpoint() -> None:
    control, paces = ExploreControl(candidates=(4, 8), explore_every=7, explore_steps=2), {4: 1.0, 8: 0.5}
    whole = sizes(control.controller(), paces, 16)
    for stop in range(16):
        first, second = control.controller(), control.controller()
        sizes(first, paces, stop)
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert sizes(second, paces, 16 - stop) == whole[stop:]


# ---- chunk size: a race ------------------------------------------------------------------------------------


def raced(control: RaceControl, seconds: dict[int, Sequence[float]], steps: int) -> list[int]:
    """Chunk size of each step, where the i-th step under size s takes ``seconds[s][i]`` (again and again) for
    ten tokens."""
    controller, ran, found = control.controller(), dict.fromkeys(seconds, 0), []
    for step in range(steps):
        size = controller.value
        found.append(size)
        controller.observe(report(step, seconds=seconds[size][ran[size] % len(seconds[size])], tokens=10))
        ran[size] += 1
    return found


def test_candidates_take_turns_and_another_begins_each_round() -> None:
    # Steps so noisy that nobody is out: three rounds, each of all three.
    noisy = {128: (1.0, 9.0, 5.0), 256: (9.0, 5.0, 1.0), 512: (5.0, 1.0, 9.5)}
    control = RaceControl(candidates=(128, 256, 512), min_steps=2, max_steps=3, explore_every=12)
    assert raced(control, noisy, 14) == [
        128, 256, 512,
        256, 512, 128,
        512, 128, 256,
        256, 256, 256,  # 15 s each but for 512: a tie goes to the larger
        128, 256,
    ]  # fmt: skip


def test_a_race_ends_when_one_is_left() -> None:
    # After two rounds: 128 took 1.0 and 1.2 s, 256 took 2.0 and 2.2. Each pace has the variance
    # (0.1² + 0.1²) · 2 / (1 · 20²) = 1e-4 s²; both √2e-4 = 0.01414; ν = 2. The paces differ by 0.1, that is
    # 7.07 such; t(ν = 2) is 6.96 at 1 % and 9.92 at 0.5 %.
    times = {128: (1.0, 1.2), 256: (2.0, 2.2)}
    settings = {"candidates": (128, 256), "min_steps": 2, "max_steps": 4, "explore_every": 8}
    assert raced(RaceControl(**settings, level=0.01), times, 8) == [128, 256, 256, 128, 128, 128, 128, 128]
    # At 0.5 % it takes another round: variances 1e-4 · (2/3)…, five times the distance that is needed.
    assert raced(RaceControl(**settings, level=0.005), times, 8) == [128, 256, 256, 128, 128, 256, 128, 128]


def test_nobody_is_left_out_before_min_steps() -> None:
    times = {128: (1.0,), 256: (2.0,), 512: (3.0,)}
    control = RaceControl(min_steps=3, max_steps=5, explore_every=15)
    assert raced(control, times, 15) == [
        128, 256, 512,
        256, 512, 128,
        512, 128, 256,
        *[128] * 6,
    ]  # fmt: skip


def test_the_ratio_of_sums_decides_a_race_too() -> None:
    controller = RaceControl(candidates=(128, 256), min_steps=2, max_steps=2, explore_every=9).controller()
    # In turns 128, 256, 256, 128: (1 + 10) s for (100 + 5) tokens against 0.3 s a token.
    for seconds, tokens in ((1.0, 100), (3.0, 10), (3.0, 10), (10.0, 5)):
        controller.observe(report(seconds=seconds, tokens=tokens))
    assert controller.value == 128


def test_a_race_begins_anew_and_forgets_the_last() -> None:
    controller = RaceControl(candidates=(1, 2), min_steps=2, max_steps=2, explore_every=5).controller()
    assert sizes(controller, {1: 1.0, 2: 2.0}, 5) == [1, 2, 2, 1, 1]
    assert sizes(controller, {1: 3.0, 2: 2.0}, 5) == [1, 2, 2, 1, 2]


def test_a_race_of_one_is_no_race() -> None:
    assert raced(RaceControl(candidates=(64,)), {64: (1.0, 2.0)}, 4) == [64] * 4


def test_races_that_make_no_sense_are_refused() -> None:
    for wrong, said in (
        ({"candidates": (8, 8)}, "different numbers"),
        ({"explore_every": 59}, "leaves no room for 3 candidates of 20"),
        ({"min_steps": 1}, "greater than or equal to 2"),
        ({"min_steps": 5, "max_steps": 4}, "max_steps 4 is below min_steps 5"),
        ({"level": 0.0}, "greater than 0"),
    ):
        with pytest.raises(ValidationError, match=said):
            RaceControl(**wrong)


def test_a_race_goes_on_after_a_checkpoint() -> None:
    control = RaceControl(candidates=(4, 8, 16), min_steps=2, max_steps=4, explore_every=13)
    times = {4: (1.0, 1.3, 0.9), 8: (0.9, 1.4, 1.1), 16: (2.0, 1.9, 2.1)}
    whole = raced(control, times, 30)
    for stop in range(30):
        first, second, ran = control.controller(), control.controller(), dict.fromkeys(times, 0)
        for step in range(30):
            if step == stop:
                second.load_state_dict(json.loads(json.dumps(first.state_dict())))
            holder = first if step < stop else second
            size = holder.value
            assert size == whole[step]
            holder.observe(report(step, seconds=times[size][ran[size] % 3], tokens=10))
            ran[size] += 1
