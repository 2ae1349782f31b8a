"""Samples that share their prompt's KV, worked out by hand; the working stands above each check. One decode
iteration takes 1 s."""

from typing import Any

import pytest

from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.model.setup import MachineSetup
from oppo_sim.scenario.build import build_setup
from oppo_sim.scenario.load import load_scenario
from oppo_sim.turns import ToolWait
from tests.small import Result, linear_costs, run

PREFILL = (0.5, 0.1, 0.01)
"""Seconds of a batch, of a token, of a query-key pair."""


def simulated(policy: str, responses: list[int], machine: dict[str, Any], **given: Any) -> Result:
    setup = MachineSetup(**{"shares_prefixes": True, **machine})
    return run(policy, responses, machine=setup, **({"costs": linear_costs(prefill=PREFILL)} | given))


@pytest.mark.parametrize(
    ("shares", "seconds", "prefilled", "cached", "peak"),
    [
        # Two prompts of 17: 34 tokens, 2 · 17²/2 pairs; each grows by 3.
        (False, 0.5 + 3.4 + 2.89, 34, 0, 40),
        # Blocks of 16: the second sample computes one token over 16, 16.5 pairs.
        (True, 0.5 + 1.8 + 1.61, 18, 16, 24),
    ],
)
def test_a_prompt_is_prefilled_and_stored_once(
    shares: bool, seconds: float, prefilled: int, cached: int, peak: int
) -> None:
    result = simulated(
        "sequential", [3, 3], {"shares_prefixes": shares}, steps=1, batch=2, group_size=2, prompts=17
    )
    assert result.column(c.timing("gen")) == [pytest.approx(seconds + 3)]
    assert result.column(c.TOKENS_PREFILLED) == [prefilled]
    assert result.column(c.TOKENS_PREFIX_CACHED) == [cached]
    assert result.column(c.KV_PEAK_TOKENS) == [peak]


@pytest.mark.parametrize(("block", "cached"), [(1, 16), (8, 16), (16, 16), (17, 0), (32, 0)])
def test_only_whole_blocks_without_the_last_token_are_shared(block: int, cached: int) -> None:
    result = simulated(
        "sequential", [3, 3], {"kv_block_tokens": block}, steps=1, batch=2, group_size=2, prompts=17
    )
    assert result.column(c.TOKENS_PREFIX_CACHED) == [cached]


@pytest.mark.parametrize(("shares", "seconds"), [(False, 8.0), (True, 4.0)])
def test_shared_blocks_leave_room_for_another_sample(shares: bool, seconds: float) -> None:
    # 33 tokens of prompt take 3 blocks with the next token, of 4; a second sample that shares 2 takes 1 more.
    machine = {"kv_capacity_tokens": 64, "kv_block_tokens": 16, "shares_prefixes": shares}
    result = simulated(
        "sequential", [4, 4], machine, steps=1, batch=2, group_size=2, prompts=33, costs=linear_costs()
    )
    assert result.column(c.timing("gen")) == [seconds]


def test_samples_on_different_replicas_share_nothing_unless_placed_together() -> None:
    # Two groups of two on two replicas. Spread: ids 0 and 2, 1 and 3 lie together: nothing in common.
    for together, cached, on in ((False, 0, [0, 1, 0, 1]), (True, 32, [0, 0, 1, 1])):
        machine = {"num_replicas": 2, "groups_together": together}
        result = simulated("sequential", [3] * 4, machine, steps=1, batch=4, group_size=2, prompts=17)
        assert result.column(c.TOKENS_PREFIX_CACHED) == [cached]
        assert list(result.rollouts.sort_values(c.ROLLOUT_ID)[c.REPLICA]) == on


def test_carried_samples_recompute_their_prompt_once() -> None:
    # Group 0 is trained after 2 s; group 1, with 2 of 5 tokens each, is carried without its KV: 19 tokens, and
    # for the second 3 over 16. Groups 1 and 2 prefill in one batch: 17 and 1 are new.
    result = simulated(
        "inter",
        [2, 2, 5, 5],
        {},
        steps=2,
        batch=2,
        group_size=2,
        prompts=17,
        settings={"overcommit": 2},
    )
    assert result.column(c.TOKENS_PREFILLED) == [36, 18]
    assert result.column(c.TOKENS_RECOMPUTED) == [0, 22]
    assert result.column(c.TOKENS_PREFIX_CACHED) == [32, 32]
    pairs = 19**2 / 2 + 3 * 16 + 4.5 + 161
    # Group 2 has 2 tokens, as group 0: it finishes first.
    assert result.column(c.timing("gen"))[1] == pytest.approx(0.5 + 4.0 + 0.01 * pairs + 2)


def test_a_prompt_goes_with_the_last_sample_that_has_it() -> None:
    # One may run at a time: the first has finished, and its KV is gone, when the second begins.
    result = simulated("sequential", [3, 3], {"max_num_seqs": 1}, steps=1, batch=2, group_size=2, prompts=17)
    assert result.column(c.TOKENS_PREFIX_CACHED) == [0]
    assert result.column(c.TOKENS_PREFILLED) == [34]


def test_kept_kv_of_a_sample_at_its_tool_holds_the_prompt() -> None:
    # As above, but the first sample calls a tool after one token and keeps its KV: the second finds the prompt.
    result = simulated(
        "sequential",
        [3, 3],
        {"max_num_seqs": 1},
        steps=1,
        batch=2,
        group_size=2,
        prompts=17,
        waits=[(ToolWait(1, 50.0, 2),), ()],
    )
    assert result.column(c.TOKENS_PREFIX_CACHED) == [16]
    assert result.column(c.TOKENS_PREFILLED) == [17 + 1 + 2]


def test_another_prompt_length_is_another_prompt() -> None:
    result = simulated("sequential", [3, 3], {}, steps=1, batch=2, group_size=2, prompts=[17, 20])
    assert result.column(c.TOKENS_PREFIX_CACHED) == [0]


def test_without_groups_nothing_is_shared() -> None:
    result = simulated("sequential", [3, 3], {}, steps=1, batch=2, prompts=17)
    assert result.column(c.TOKENS_PREFIX_CACHED) == [0]


def test_static_batching_refuses() -> None:
    changes = ["rollout.batching=static", "rollout.enable_prefix_caching=true"]
    with pytest.raises(OppoError, match=r"rollout\.batching static pads every prompt and cannot share one"):
        build_setup(load_scenario("paper-gsm8k-7b", changes))
