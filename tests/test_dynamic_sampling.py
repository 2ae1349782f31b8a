"""Groups dropped for equal rewards and replaced, worked out by hand; the working stands above each check. One
decode iteration takes 1 s."""

from dataclasses import dataclass
from typing import Any

import pytest

from oppo_sim import columns as c
from oppo_sim.draws import draw_uniform, stream_key
from oppo_sim.dynamic_sampling import DynamicSampling, PassRate, sample_rewards
from oppo_sim.errors import OppoError
from oppo_sim.model.setup import MachineSetup
from oppo_sim.scenario.build import build_setup
from oppo_sim.scenario.load import load_scenario
from tests.small import linear_costs, run

SAME, DIFFERENT = [1.0, 1.0], [0.0, 1.0]


def test_a_group_with_equal_rewards_is_replaced_at_once() -> None:
    # Two groups of two. Group 0 has finished at t = 2 and teaches nothing: group 2 begins there and has finished
    # at t = 2 + 4; group 1 had at t = 3. Trained: 1, 2.
    result = run(
        "sequential",
        [2, 2, 3, 1, 4, 4],
        steps=1,
        batch=4,
        group_size=2,
        sample_rewards=[*SAME, *DIFFERENT, *DIFFERENT],
    )
    assert result.column(c.timing("gen")) == [6.0]
    assert result.trained() == [[2, 3, 4, 5]]
    assert result.column(c.ROLLOUTS_ADMITTED) == [6]
    assert result.column(c.ROLLOUTS_FILTERED) == [2]
    assert result.column(c.TOKENS_FILTERED) == [4]
    assert result.column(c.TOKENS_DECODED) == [16]
    assert result.column(c.TOKENS_TRAINED) == [12]


def test_generation_batches_follow_one_another_and_what_is_left_over_is_dropped() -> None:
    # Batches of two groups, of which one is trained. Group 0 (t = 2) and group 1 (t = 3) teach nothing: groups
    # 2 and 3 begin at t = 3 and have finished at t = 3 + 4 and 3 + 1. Both are kept: the first is trained,
    # though it finished last, the other dropped. The second step begins with groups 4 and 5, and so on.
    result = run(
        "sequential",
        [2, 2, 3, 1, 4, 4, 1, 1, 2, 2, 5, 5],
        steps=2,
        batch=2,
        group_size=2,
        sample_rewards=[*SAME, *SAME, *DIFFERENT, *DIFFERENT, *DIFFERENT, *DIFFERENT],
        gen_batch_size=4,
    )
    assert result.column(c.timing("gen")) == [7.0, 5.0]
    assert result.trained() == [[4, 5], [8, 9]]
    assert result.column(c.ROLLOUTS_ADMITTED) == [8, 4]
    assert result.column(c.ROLLOUTS_FILTERED) == [4, 0]
    assert result.column(c.ROLLOUTS_DROPPED) == [2, 2]
    assert result.column(c.TOKENS_DROPPED) == [2, 10]
    assert result.column(c.ROLLOUTS_SURPLUS) == [0, 0]


def test_replacements_may_be_dropped_too() -> None:
    # Groups 0 and 1 are dropped at t = 2 and t = 5, group 2 is trained at t = 9.
    result = run(
        "sequential",
        [2, 1, 3, 3, 4, 4],
        steps=1,
        batch=2,
        group_size=2,
        sample_rewards=[0.0, 0.0, *SAME, *DIFFERENT],
    )
    assert result.column(c.timing("gen")) == [9.0]
    assert result.trained() == [[4, 5]]
    assert result.column(c.TOKENS_FILTERED) == [9]


def test_over_sampling_hides_the_replacement() -> None:
    # As the first, with a group more in flight from the begin on: group 2 has finished at t = 4. Group 3, which
    # came at t = 2 for group 0, has 2 of 6 tokens then and is carried.
    result = run(
        "inter",
        [2, 2, 3, 1, 4, 4, 6, 6],
        steps=1,
        batch=4,
        group_size=2,
        settings={"overcommit": 2},
        sample_rewards=[*SAME, *DIFFERENT, *DIFFERENT, *DIFFERENT],
    )
    assert result.column(c.timing("gen")) == [4.0]
    assert result.trained() == [[2, 3, 4, 5]]
    assert result.column(c.ROLLOUTS_DEFERRED) == [2]
    assert result.column(c.TOKENS_IN_FLIGHT) == [4]


def test_what_is_dropped_as_the_phase_ends_is_replaced_by_the_next_plan() -> None:
    # B = 2, two groups in flight. t = 3: group 0 is whole and trained, group 1 is dropped in the same instant;
    # the next step admits groups 2 and 3.
    result = run(
        "inter",
        [3, 3, 3, 3, 2, 2, 5, 5],
        steps=2,
        batch=2,
        group_size=2,
        settings={"overcommit": 2},
        sample_rewards=[*DIFFERENT, *SAME, *DIFFERENT, *DIFFERENT],
    )
    assert result.column(c.ROLLOUTS_ADMITTED) == [4, 4]
    assert result.column(c.ROLLOUTS_FILTERED) == [2, 0]
    assert result.trained() == [[0, 1], [4, 5]]


def test_in_rounds_groups_are_judged_at_the_barrier() -> None:
    # Rounds of 3. Group 0 has finished at t = 1, is dropped at the barrier t = 3, and group 1 needs two rounds.
    result = run(
        "sequential",
        [1, 1, 4, 4],
        steps=1,
        batch=2,
        group_size=2,
        settings={"stop_check": "chunk", "chunk_size": 3},
        sample_rewards=[*SAME, *DIFFERENT],
    )
    # The first round is over when its rollouts are done.
    assert result.column(c.timing("gen")) == [5.0]


def test_an_asynchronous_run_judges_a_group_when_it_is_scored() -> None:
    # A batch of 2 scores in 1 s. Group 0: finished t = 2, scored t = 3, dropped; group 1 begins at t = 3,
    # finishes at t = 5, is scored at t = 6.
    result = run(
        "async",
        [2, 2, 2, 2],
        steps=1,
        batch=2,
        group_size=2,
        settings={"max_staleness": 0},
        machine=MachineSetup(),
        costs=linear_costs(score=(1.0, 0.0, 0.0)),
        sample_rewards=[*SAME, *DIFFERENT],
    )
    assert result.column(c.timing("step")) == [6.0]
    assert result.trained() == [[2, 3]]


@dataclass(frozen=True)
class Rows:
    response_lengths: list[int]
    rewards: list[float] | None
    blocks: tuple[tuple[int, int], ...]


def test_passes_are_drawn_by_hash_of_seed_and_row() -> None:
    # Of the uniform distribution (alpha = beta = 1) the quantile of u is u.
    rows = Rows([1] * 40, None, ((0, 20),))
    config = DynamicSampling(enable=True, pass_rate=PassRate())
    rates, passes = stream_key(7, "pass_rate"), stream_key(7, "pass")
    expected = [float(draw_uniform(passes, i) < draw_uniform(rates, i // 2)) for i in range(40)]
    assert sample_rewards(config, rows, 2, 7) == expected
    assert sample_rewards(config, rows, 2, 8) != expected


def test_the_share_of_groups_kept() -> None:
    # Uniform rates: E[p^g] = 1/(g + 1), so groups of 4 keep 1 − 2/5.
    assert PassRate().kept_share(4) == pytest.approx(0.6)
    rows = Rows([1] * 40_000, None, ((0, 10_000),))
    for rate in (PassRate(), PassRate(alpha=0.5, beta=2.0)):
        drawn = sample_rewards(DynamicSampling(enable=True, pass_rate=rate), rows, 4, 0)
        assert drawn is not None
        kept = sum(len(set(drawn[i : i + 4])) > 1 for i in range(0, 40_000, 4)) / 10_000
        assert kept == pytest.approx(rate.kept_share(4), abs=0.02)


@pytest.mark.parametrize(
    ("config", "rewards", "message"),
    [
        ({}, None, "give dynamic_sampling.pass_rate, such as {alpha: 0.5, beta: 0.7}: alpha"),
        ({}, [1.0, 1.0, 0.0, 0.0], "would draw for ever"),
        ({"pass_rate": PassRate(alpha=1000.0, beta=0.001)}, None, "rewards that differ"),
    ],
)
def test_rewards_that_keep_nothing_are_refused(
    config: dict[str, Any], rewards: list[float] | None, message: str
) -> None:
    rows = Rows([1] * 4, rewards, ((0, 2),))
    with pytest.raises(OppoError, match=message):
        sample_rewards(DynamicSampling(enable=True, **config), rows, 2, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["policy=sequential", "rollout.batching=continuous"], "needs groups"),
        (["group_size=2", "rollout.batching=static"], "use batching continuous"),
        (["group_size=2", "rollout.batching=continuous", "policy=oracle"], "cannot replace groups"),
        (
            [
                "group_size=2",
                'policy={"name": "async", "score_granularity": "batch"}',
                "placement.training=separate",
                "rollout.batching=continuous",
                "training.weight_sync.kind=online_refit",
            ],
            "use rollout or chunk",
        ),
    ],
)
def test_what_cannot_be_judged_is_refused(changes: list[str], message: str) -> None:
    on = ["dynamic_sampling.enable=true", 'dynamic_sampling.pass_rate={"alpha": 1.0, "beta": 1.0}']
    with pytest.raises(OppoError, match=message):
        build_setup(load_scenario("paper-gsm8k-7b", [*on, *changes]))


def test_generation_batches_are_of_policies_that_carry_nothing() -> None:
    given = [
        "dynamic_sampling.enable=true",
        'dynamic_sampling.pass_rate={"alpha": 1.0, "beta": 1.0}',
        "rollout_batch_size=32",
        "group_size=4",
        "rollout.batching=continuous",
        "data.gen_batch_size=16",
    ]
    scenario = load_scenario("paper-gsm8k-7b", given)
    assert scenario.dynamic_sampling.gen_batch_size == 64
    for policy, size in (("sequential", 64), ("intra", 64), ("oppo", None), ("tail-batching", None)):
        assert build_setup(scenario, policy=policy).gen_batch_size == size
    with pytest.raises(OppoError, match="it counts rollouts"):
        load_scenario("paper-gsm8k-7b", [*given[:-1], "dynamic_sampling.gen_batch_size=16"])
