"""The reference itself, pinned by cases small enough to work out by hand (the working stands beside each)."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.reference.config import GRANULARITY
from tests.reference.stepper import ReferenceConfig, ReferenceResult, run

A_SECOND_A_TOKEN = (0.0, 1.0, 0.0)


def simulate(
    rows: Sequence[tuple[int, int]], rewards: Callable[[int], float] = lambda step: 0.0, **fields: Any
) -> ReferenceResult:
    """Rollout i has (prompt, response) ``rows[i]``, cyclically."""
    return run(
        ReferenceConfig(**fields),
        lambda rollout, step: rows[rollout % len(rows)],
        lambda step, ids: rewards(step),
    )


def responses(*lengths: int) -> list[tuple[int, int]]:
    """Rows with prompts of one token."""
    return [(1, length) for length in lengths]


def test_sequential_step_is_the_sum_of_its_stages() -> None:
    # prefill 6 tokens, 2²/2 + 4²/2 = 10 pairs: 1 + 3 + 2.5 = 6.5. Iteration of 2 over 6: 1 + 1 + 0.75; of 1
    # over 5: 1 + 0.5 + 0.625. gen = 6.5 + 2.75 + 2.125 = 11.375. Score of 9 tokens, 3²/2 + 6²/2 = 22.5 pairs:
    # 1 + 9 + 11.25. ref 9, update_actor 1 + 45, weights 3.
    result = simulate(
        [(2, 1), (4, 2)],
        policy="sequential",
        rollout_batch_size=2,
        steps=2,
        decode=(1.0, 0.5, 0.125),
        prefill=(1.0, 0.5, 0.25),
        score=(1.0, 1.0, 0.5),
        stages={"ref": A_SECOND_A_TOKEN, "update_actor": (1.0, 0.0, 2.0)},
        update_weights=3.0,
    )
    first, second = result.steps
    assert (first.gen, first.reward) == (11.375, 21.25)
    assert (
        first.stages["ref"],
        first.stages["update_actor"],
        first.stages["update_weights"],
        first.stages["values"],
    ) == (9, 46, 3, 0)
    assert first.seconds == 11.375 + 21.25 + 9 + 46 + 3 == second.start
    assert [(rollout.finish_time, rollout.score_time) for rollout in first.trained] == [
        (9.25, 32.625),
        (11.375, 32.625),
    ]
    assert (
        first.counters.decoded,
        first.counters.prefilled,
        first.counters.pieces,
        first.counters.batches,
    ) == (3, 6, 2, 1)
    # 7 tokens while both run and write their next (6 + 2 = 8), then 5 + 1
    assert first.counters.kv_peak_tokens == 8
    assert second.trained_ids == (2, 3)
    assert [rollout.staleness for rollout in second.trained] == [0, 0]


def test_chunks_are_scored_while_the_response_grows() -> None:
    # cuts at 2 (3 + 2 tokens: 0.5 + 1.25, until 3.75), at 4 (2 tokens: 1, until 5), at the finish, 5 (1
    # token: 0.75, until 5.75)
    fields: dict[str, Any] = {"rollout_batch_size": 1, "steps": 1, "chunk_size": 2, "score": (0.5, 0.25, 0.0)}
    step = simulate([(3, 5)], policy="intra", **fields).steps[0]
    assert (step.gen, step.reward, step.counters.pieces, step.counters.batches) == (5, 0.75, 3, 3)
    # whole: 8 tokens, 0.5 + 2
    assert simulate([(3, 5)], policy="sequential", **fields).steps[0].reward == 2.5
    # pairs of a piece of n over p: 5·0 + 12.5, 2·5 + 2, 1·7 + 0.5; alone on the worker at 2, 14.5 and 26.5
    pairs = simulate([(3, 5)], policy="intra", **(fields | {"score": (0.0, 0.0, 1.0)})).steps[0]
    assert pairs.trained[0].score_time == 2 + 12.5 + 12 + 7.5


@pytest.mark.parametrize(("clear", "gen", "recomputed", "peak"), [(True, 5, 3, 6), (False, 2, 0, 6)])
def test_carried_rollout_pays_a_prefill_only_where_its_kv_was_cleared(
    clear: bool, gen: float, recomputed: int, peak: int
) -> None:
    # step 0: prefill 2 s, rollout 0 ends at 4, rollout 1 has 2 of 3 tokens. Step 1 adds rollout 2: prefill (1
    # + 2) + 1 or only 1, then 1 s. KV of step 1: 3 + 1 before its iteration, and the two next tokens
    first, second = simulate(
        responses(2, 3, 9),
        policy="inter",
        overcommit=1,
        rollout_batch_size=1,
        steps=2,
        prefill=A_SECOND_A_TOKEN,
        update_weights=1.0,
        clear_kv=clear,
    ).steps
    assert (first.gen, first.seconds, first.deferred, first.surplus) == (4, 5, (1,), ())
    assert (second.gen, second.counters.recomputed, second.counters.prefilled) == (gen, recomputed, 1)
    assert second.counters.kv_peak_tokens == peak
    trained = second.trained[0]
    assert (trained.id, trained.staleness, trained.span, trained.deferrals) == (1, 1, 2, 1)
    assert second.deferred == (2,)


def test_token_stop_lets_the_iteration_in_progress_complete() -> None:
    # decoding costs a second a KV token: replica 0 ends its rollout at 1 + 2, replica 1 is in an iteration
    # that ends at 5
    fields: dict[str, Any] = {"rollout_batch_size": 1, "overcommit": 1, "steps": 1, "num_replicas": 2}
    step = simulate([(1, 2), (5, 9)], policy="inter", decode=(0.0, 0.0, 1.0), **fields).steps[0]
    assert (step.gen, step.trained[0].finish_time, step.counters.decoded) == (5, 3, 3)


def test_rounds_check_and_cut_only_at_the_barrier() -> None:
    # 2 finished only after the second round of 4. At 4 pieces of 1+2, 1+4, 1+4 = 13 s, until 17; then 1 + 4
    # tokens, until 22.
    fields: dict[str, Any] = {"rollout_batch_size": 2, "overcommit": 1, "steps": 1, "score": A_SECOND_A_TOKEN}
    step = simulate(responses(2, 5, 9), policy="oppo", stop_check="chunk", chunk_size=4, **fields).steps[0]
    assert (step.gen, step.reward, step.counters.decoded, step.counters.pieces) == (8, 14, 2 + 5 + 8, 5)
    assert [rollout.finish_time for rollout in step.trained] == [2, 5]
    # partial rollout: the same rounds, scored at the end: 3 + 6 tokens
    partial = simulate(responses(2, 5, 9), policy="partial-rollout", token_budget=4, **fields).steps[0]
    assert (partial.gen, partial.reward) == (8, 9)
    # two replicas, 0.5 s a rollout: rollout 1 ends at 1 on replica 1, which waits for the barrier at 2
    # (replica 0: two of 1 s); rollout 0 ends at 3, rollout 2 completes the round alone in 0.5 s
    fields |= {"stop_check": "chunk", "chunk_size": 2, "num_replicas": 2, "decode": (0.0, 0.5, 0.0)}
    pair = simulate(responses(3, 2, 9), policy="oppo", **fields).steps[0]
    assert (pair.trained_ids, pair.gen) == ((1, 0), 3.5)


def test_growth_preempts_the_highest_id_and_recomputes_it_later() -> None:
    # capacity 10: prefill 4 s, three iterations (3+3, 4+4, 5+5 tokens), the fourth would need 12: rollout 1
    # leaves with 2 + 3 tokens. Rollout 0 ends at 8; rollout 1 prefills 5 s and needs 3 more iterations: 16
    fields: dict[str, Any] = {"policy": "sequential", "rollout_batch_size": 2, "steps": 1}
    step = simulate([(2, 4), (2, 6)], prefill=A_SECOND_A_TOKEN, kv_capacity_tokens=10, **fields).steps[0]
    assert (step.gen, step.counters.preemptions, step.counters.recomputed, step.counters.prefilled) == (
        16,
        1,
        5,
        4,
    )
    assert step.counters.kv_peak_tokens == 10
    # 2 blocks of 4: each has one up to 4 tokens (2 iterations), the fifth token needs another
    blocks = simulate([(2, 4), (2, 6)], kv_capacity_tokens=11, kv_block_tokens=4, **fields).steps[0]
    assert (
        blocks.counters.preemptions,
        blocks.counters.kv_peak_tokens,
        blocks.counters.kv_peak_block_tokens,
    ) == (1, 8, 8)


def test_joins_stop_at_the_first_that_does_not_fit() -> None:
    # capacity 9: rollout 0 needs 5, rollout 1 needs 5 and blocks rollout 2, which would fit; rollout 0 ends
    # at 2, then both run, up to 6 + 3 tokens
    rows = [(4, 2), (4, 2), (1, 2)]
    step = simulate(rows, policy="sequential", rollout_batch_size=3, steps=1, kv_capacity_tokens=9).steps[0]
    assert [rollout.finish_time for rollout in step.trained] == [2, 4, 4]
    with pytest.raises(ValueError, match="never fits"):
        simulate([(4, 5)], policy="sequential", rollout_batch_size=1, steps=1, kv_capacity_tokens=8)
    # with 8 the second tokens (6 + 3) do not fit: rollout 2 leaves after its first, and ends a second after
    # rollout 1
    tight = simulate(rows, policy="sequential", rollout_batch_size=3, steps=1, kv_capacity_tokens=8).steps[0]
    assert [rollout.finish_time for rollout in tight.trained] == [2, 4, 5]
    # at most one at a time: one after the other
    alone = simulate(rows, policy="sequential", rollout_batch_size=3, steps=1, max_num_seqs=1).steps[0]
    assert [rollout.finish_time for rollout in alone.trained] == [2, 4, 6]


def test_static_batch_pays_for_its_longest_row() -> None:
    # prefill 2 × 4 tokens: 8 s. Iterations 1 + 2 + 0.125·2·(4, 5, 6) = 4, 4.25, 4.5. Waste: 2 columns, and
    # row 0 in 2 iterations
    fields: dict[str, Any] = {"batching": "static", "prefill": A_SECOND_A_TOKEN, "decode": (1.0, 1.0, 0.125)}
    step = simulate([(2, 1), (4, 3)], policy="sequential", rollout_batch_size=2, steps=1, **fields).steps[0]
    assert step.gen == 8 + 4 + 4.25 + 4.5
    counters = step.counters
    assert (
        counters.prefilled,
        counters.recomputed,
        counters.padding,
        counters.decoded,
        counters.kv_peak_tokens,
    ) == (6, 0, 4, 4, 14)
    # the stop check breaks the batch after one iteration; step 1 regroups 4 + 1 carried with 2 new, padded to
    # 5
    second = simulate(
        [(2, 1), (4, 3)],
        policy="inter",
        overcommit=1,
        rollout_batch_size=1,
        steps=2,
        clear_kv=False,
        **fields,
    ).steps[1]
    assert (
        second.trained_ids,
        second.counters.prefilled,
        second.counters.recomputed,
        second.counters.padding,
    ) == ((2,), 2, 5, 3)
    assert second.gen == 10 + 1 + 2 + 0.125 * 10


def test_activities_on_one_device_slow_each_other() -> None:
    # from 2 on the first piece (1 s) and the third iteration (1 s) share: 2 · max(1, 0.75 + 0.5, 0.25 + 0.5)
    # = 2.5 times slower, until 4.5; the fourth iteration is alone until 5.5, and so is the last piece until
    # 6.5. The device is busy all the time
    step = simulate(
        responses(4),
        policy="intra",
        rollout_batch_size=1,
        steps=1,
        chunk_size=2,
        score=(1.0, 0.0, 0.0),
        rollout_devices=("gpu",),
        scoring_devices=("gpu",),
        interference=2.0,
        demands={"decode": (0.75, 0.25), "score": (0.5, 0.5)},
    ).steps[0]
    assert (step.gen, step.reward) == (5.5, 1)
    assert step.busy == {"gpu": 6.5}


def test_training_shares_devices_with_scoring_that_goes_on() -> None:
    # rollout 0's piece of 2 tokens is scored on a from 1 to 3, rollout 1's first of 3 on b from 1 on.
    # Training of 2 s begins at 3 on b too: both at half speed until the piece ends at 5; training goes on
    # alone until 6
    step = simulate(
        [(1, 1), (2, 9)],
        policy="oppo",
        overcommit=1,
        chunk_size=1,
        rollout_batch_size=1,
        steps=1,
        num_workers=2,
        score=A_SECOND_A_TOKEN,
        stages={"update_actor": (2.0, 0.0, 0.0)},
        scoring_devices=("a", "b"),
        training_devices=("b", "c"),
    ).steps[0]
    assert (step.gen, step.reward, step.stages["update_actor"]) == (1, 2, 3)
    assert (step.busy["b"], step.busy["c"]) == (5, 3)


def test_one_step_off_trains_the_batch_before() -> None:
    # batch 0: decoded 0–4, scored –5, trained –7; batch 1: 4–7, scored 7–8; weights 7–8. Batch 2: 8–10; batch
    # 1 trained 8–10; weights –11. batch 2 scored 10–11, trained 11–13; batch 3: 11–17; weights –18
    steps = simulate(
        responses(4, 3, 2, 6),
        policy="one-step-off",
        rollout_batch_size=1,
        steps=3,
        score=(1.0, 0.0, 0.0),
        stages={"update_actor": (2.0, 0.0, 0.0)},
        update_weights=1.0,
    ).steps
    assert [step.seconds for step in steps] == [8, 3, 7]
    assert [(step.gen, step.reward) for step in steps] == [(4, 1), (3, 1), (2, 1)]
    assert [step.trained[0].staleness for step in steps] == [0, 1, 1]
    assert [step.counters.decoded for step in steps] == [7, 2, 6]
    assert all(step.deferred == step.surplus == () for step in steps)


def test_async_trains_what_is_scored_and_pauses_for_the_weights() -> None:
    # rollouts 0 and 1 from 0. 0: ends 4, scored 5, trained –7. 1: ends 5, scored 6. Weights 7–8, rollout 2 (3
    # tokens) from 8. 1 trained 8–10; the iteration of 2 that ends at 10 is not followed; weights –11; 2
    # recomputes 1 + 2, ends 12, scored 13, trained –15. Rollout 3, admitted at 11, decodes until 15
    result = simulate(
        responses(4, 5, 3, 10),
        policy="async",
        max_staleness=1,
        rollout_batch_size=1,
        steps=3,
        score=(1.0, 0.0, 0.0),
        stages={"update_actor": (2.0, 0.0, 0.0)},
        update_weights=1.0,
    )
    steps = result.steps
    assert [step.seconds for step in steps] == [8, 3, 5]
    assert [(step.gen, step.reward) for step in steps] == [(4, 1), (0, 0), (1, 1)]
    assert [(step.deferred, step.surplus) for step in steps] == [((), (1,)), ((2,), ()), ((3,), ())]
    assert [step.trained[0].staleness for step in steps] == [0, 1, 1]
    assert (steps[2].trained[0].span, steps[2].trained[0].deferrals, steps[2].counters.recomputed) == (
        2,
        1,
        3,
    )
    assert (steps[2].counters.decoded, result.in_flight, result.tokens_in_flight) == (1 + 4, (3,), 4)


def test_tail_batching_drops_the_long_and_runs_them_together() -> None:
    # ⌈1.5·2⌉ = 3 admitted: 0 and 2 train, 1 is dropped with 2 tokens; 3 and 4 train, 5 is dropped with 1;
    # then 1 and 5 run alone
    result = simulate(
        responses(1, 5, 2, 1, 1, 7), policy="tail-batching", over_issue=1.5, rollout_batch_size=2, steps=3
    )
    assert [step.trained_ids for step in result.steps] == [(0, 2), (3, 4), (1, 5)]
    assert [step.dropped for step in result.steps] == [(1,), (5,), ()]
    assert [step.counters.dropped_tokens for step in result.steps] == [2, 1, 0]
    assert [step.gen for step in result.steps] == [2, 1, 7]
    assert [step.delta for step in result.steps] == [1, 1, 0]
    assert (result.admitted, result.in_flight, result.steps[2].trained[1].staleness) == (6, (), 0)


def test_drop_leaves_the_scorer_and_starts_anew() -> None:
    # chunk 1, a second a token. At 1 the first pieces (3 × 2 tokens) go as one batch, until 7. At 2 rollout 0
    # ends, the others are dropped with 2 tokens each: their second pieces are never scored, rollout 0's last
    # is, 7–8. Step 1 is a long one for rollout 1: 8–11; pieces at 9 (2 tokens, –11), 10 and 11 (together
    # 11–13)
    fields: dict[str, Any] = {
        "score_granularity": "chunk",
        "chunk_size": 1,
        "over_issue": 3.0,
        "rollout_batch_size": 1,
        "steps": 2,
    }
    first, second = simulate(
        responses(2, 3, 3), policy="tail-batching", score=A_SECOND_A_TOKEN, **fields
    ).steps
    assert (first.gen, first.reward, first.dropped, first.counters.dropped_tokens, first.counters.pieces) == (
        2,
        6,
        (1, 2),
        4,
        4,
    )
    assert (second.trained_ids, second.gen, second.reward) == ((1,), 3, 2)
    assert (second.counters.pieces, second.counters.batches, second.counters.prefilled) == (3, 2, 1)


def test_a_rollout_deferred_often_enough_is_waited_for() -> None:
    # rollout 1 (4 tokens) is deferred with 1; in step 1 rollout 2 ends after 1 s, but 1 is waited for (3 s)
    # and goes first; in step 2 the surplus rollout 2 is a whole batch: gen 0, rollout 3 never starts
    steps = simulate(
        responses(1, 4, 1, 1), policy="inter", overcommit=1, max_deferrals=1, rollout_batch_size=1, steps=3
    ).steps
    assert [step.gen for step in steps] == [1, 3, 0]
    assert [step.trained_ids for step in steps] == [(0,), (1,), (2,)]
    assert [(step.deferred, step.surplus) for step in steps] == [((1,), ()), ((), (2,)), ((3,), ())]
    assert [step.trained[0].deferrals for step in steps] == [0, 1, 0]


def test_groups_finish_and_wait_together() -> None:
    # group 1 (rollouts 2, 3) ends at 3; group 0 waits for its 5 tokens, its finished member with it; group 2
    # ends 1 s into step 1
    steps = simulate(
        responses(1, 5, 2, 3, 1, 1), policy="inter", overcommit=2, group_size=2, rollout_batch_size=2, steps=2
    ).steps
    assert [(step.gen, step.trained_ids, step.deferred) for step in steps] == [
        (3, (2, 3), (0, 1)),
        (1, (4, 5), (0, 1)),
    ]


def test_oracle_trains_a_window_from_the_short_to_the_long() -> None:
    steps = simulate(
        responses(5, 2, 3, 4), policy="oracle", window=2, rollout_batch_size=2, steps=2, num_replicas=2
    ).steps
    assert [(step.trained_ids, step.gen, step.deferred) for step in steps] == [
        ((1, 2), 3, (0, 3)),
        ((3, 0), 5, ()),
    ]


def test_full_scorer_withholds_the_rest_until_the_finish() -> None:
    # capacity 4: the first piece, 1 + 2 tokens, is held; the second (2) does not fit: at the finish, 6, one
    # of 4 tokens
    fields: dict[str, Any] = {"rollout_batch_size": 1, "steps": 1, "chunk_size": 2, "score": A_SECOND_A_TOKEN}
    step = simulate(responses(6), policy="intra", scorer_kv_capacity=4, **fields).steps[0]
    assert (step.counters.pieces, step.reward) == (2, 4)
    assert simulate(responses(6), policy="intra", **fields).steps[0].counters.pieces == 3


def test_a_rollout_stays_with_its_worker() -> None:
    # at 1: rollout 0 (3 + 1 tokens) to worker 0, rollout 1 (1 + 1) to worker 1, which is free from 3 on,
    # worker 0 from 5. Rollout 0's last token, cut at 2, waits for worker 0: 5–6. Rollout 1's, cut at 2,
    # begins at 3: 4
    fields: dict[str, Any] = {
        "rollout_batch_size": 2,
        "steps": 1,
        "chunk_size": 1,
        "num_workers": 2,
        "score": A_SECOND_A_TOKEN,
    }
    step = simulate([(3, 2), (1, 2)], policy="intra", **fields).steps[0]
    assert [rollout.score_time for rollout in step.trained] == [6, 4]


def test_streamed_and_parallel_inference() -> None:
    # ref streams with the score: 3 tokens at 2 s each; otherwise 3 s of score, then old_log_prob, ref and
    # values side by side: 6 s
    stages = {"old_log_prob": (5.0, 0.0, 0.0), "ref": A_SECOND_A_TOKEN, "values": (6.0, 0.0, 0.0)}
    fields: dict[str, Any] = {
        "rollout_batch_size": 1,
        "steps": 1,
        "score": A_SECOND_A_TOKEN,
        "stages": stages,
    }
    streamed = simulate(
        responses(2), policy="sequential", stream_ref=True, old_log_prob="behaviour", **fields
    ).steps[0]
    assert (streamed.reward, streamed.stages["ref"], streamed.stages["old_log_prob"], streamed.seconds) == (
        6,
        0,
        0,
        2 + 6 + 6,
    )
    parallel = simulate(responses(2), policy="sequential", parallel_inference=True, **fields).steps[0]
    assert [parallel.stages[stage] for stage in ("old_log_prob", "ref", "values")] == [5, 3, 6]
    assert parallel.seconds == 2 + 3 + 6


def test_delta_follows_the_reward_slope() -> None:
    # window 1: from step 1 on the change since the step before: +, +, −, − (no change counts as down)
    series = [0.0, 1.0, 2.0, 1.0, 1.0, 1.0]
    fields: dict[str, Any] = {"policy": "oppo", "overcommit": 4, "rollout_batch_size": 2, "steps": 6}
    steps = simulate(
        responses(3), lambda step: series[step], delta_control=(2, 5, 1, 2, 1, False), **fields
    ).steps
    assert [step.delta for step in steps] == [4, 4, 5, 5, 3, 2]
    # proportional: 8 → + max(1, ⌊8/4⌋) = 10 → + 2 = 12 → − 3 = 9 → − 2 = 7
    scaled = simulate(
        responses(3),
        lambda step: series[step],
        delta_control=(0, 99, 1, 1, 1, True),
        **(fields | {"overcommit": 8}),
    ).steps
    assert [step.delta for step in scaled] == [8, 8, 10, 12, 9, 7]


def test_chunk_size_is_explored_and_kept() -> None:
    # one rollout of 4 tokens: with chunk 1 three more pieces of 0.5 s hide behind decoding, the last is as
    # long as chunk 4's: a tie
    fields: dict[str, Any] = {
        "policy": "oppo",
        "rollout_batch_size": 1,
        "steps": 6,
        "chunk_control": ((1, 4), 5, 1),
    }
    tied = simulate(responses(4), score=(0.5, 0.0, 0.0), **fields).steps
    assert [step.chunk_size for step in tied] == [1, 4, 4, 4, 4, 1]
    # a second a token: chunk 1 leaves 1 + the prompt's second of delay, chunk 4 leaves all 5
    costly = simulate(responses(4), score=A_SECOND_A_TOKEN, **fields).steps
    assert [step.chunk_size for step in costly] == [1, 4, 1, 1, 1, 1]
    assert [step.seconds for step in costly[:2]] == [6, 9]


@pytest.mark.parametrize("policy", sorted(GRANULARITY))
@pytest.mark.parametrize("granularity", ["batch", "rollout", "chunk"])
def test_tokens_are_conserved(policy: str, granularity: str) -> None:
    rows = [(1 + i * 5 % 7, 1 + i * i * 7 % 23) for i in range(31)]
    config = ReferenceConfig(
        policy=policy,
        score_granularity=granularity,
        rollout_batch_size=4,
        steps=9,
        num_replicas=2,
        num_workers=2,
        overcommit=3,
        chunk_size=5,
        token_budget=6,
        max_staleness=2,
        window=3,
        decode=(1.0, 0.1, 0.01),
        prefill=(0.3, 0.05, 0.001),
        score=(0.2, 0.03, 0.002),
        stages={"update_actor": (1.0, 0.02, 0.0)},
        update_weights=0.7,
        kv_capacity_tokens=80,
        scorer_kv_capacity=60,
    )
    result = run(config, lambda rollout, step: rows[rollout % 31], lambda step, ids: 0.0)
    trained = [rollout for step in result.steps for rollout in step.trained]
    decoded = sum(step.counters.decoded for step in result.steps)
    dropped = sum(step.counters.dropped_tokens for step in result.steps)
    assert decoded == sum(rollout.response_length for rollout in trained) + result.tokens_in_flight + dropped
    assert sorted([rollout.id for rollout in trained] + list(result.in_flight)) == list(
        range(result.admitted)
    )
    assert all(len(step.trained) == 4 for step in result.steps)


def test_sequential_is_oppo_without_overcommit_and_large_chunks_are_whole_rollouts() -> None:
    rows = [(1 + i * 5 % 7, 1 + i * i * 7 % 23) for i in range(31)]
    costs: dict[str, Any] = {"prefill": (0.3, 0.05, 0.001), "score": (0.2, 0.03, 0.002)}
    base = ReferenceConfig(
        policy="sequential", rollout_batch_size=4, steps=5, num_replicas=2, chunk_size=23, **costs
    )

    def records(config: ReferenceConfig) -> object:
        return run(config, lambda rollout, step: rows[rollout % 31], lambda step, ids: 0.0).steps

    assert records(base) == records(replace(base, policy="oppo", score_granularity="batch"))
    whole = replace(base, policy="oppo", overcommit=2, score_granularity="rollout")
    assert records(whole) == records(replace(whole, score_granularity="chunk"))
