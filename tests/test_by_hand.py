"""Small cases worked out by hand; the working stands above each check. One decode iteration takes 1 s unless
a test says otherwise."""

from dataclasses import replace

import pytest

from oppo_sim import columns as c
from oppo_sim.costs.interface import Costs, Cuts
from oppo_sim.model.setup import MachineSetup
from tests.small import linear_costs, run


def test_sequential_step_is_prefill_decode_score_train() -> None:
    # Two rollouts of 3 and 5 tokens, prompts of 10. Prefill: 0.5 + 20·0.1 + (2·10²/2)·0.01 = 3.5 s.
    # Decode: iterations 1–3 with n = 2: 1 + 2·0.1 = 1.2 s each; 4–5 with n = 1: 1.1 s each; per KV token
    # 0.01: kv before each: 20, 22, 24, then (10 + 3) = 13, 14 → 0.93 s. Sum 3.6 + 2.2 + 0.93 = 6.73. gen =
    # 10.23. Score both whole at the end, one batch: n = 13 + 15 = 28 → 2 + 2.8 + (13² + 15²)/2·0.001 = 4.997.
    # Train: update_actor 1 + 28·0.1 = 3.8, update_weights 2.
    costs = linear_costs(
        (1.0, 0.1, 0.01),
        (0.5, 0.1, 0.01),
        (2.0, 0.1, 0.001),
        {"update_actor": (1.0, 0.1, 0.0)},
        update_weights=2.0,
    )
    result = run("sequential", [3, 5], steps=1, batch=2, prompts=10, costs=costs)
    row = result.steps.iloc[0]
    assert row["timing_s/gen"] == pytest.approx(10.23, rel=1e-12)
    assert row["timing_s/reward"] == pytest.approx(4.997, rel=1e-12)
    assert row["timing_s/update_actor"] == pytest.approx(3.8)
    assert row["timing_s/update_weights"] == pytest.approx(2.0)
    assert row["timing_s/step"] == pytest.approx(10.23 + 4.997 + 3.8 + 2.0, rel=1e-12)


def test_chunks_stream_and_only_the_last_piece_is_left() -> None:
    # One rollout of 10 tokens, prompt 4, chunk 4; scoring 0.5 s a token. Pieces: 4 + 4 tokens at t = 4 (done
    # 8), 4 at t = 8 (done 10), the last 2 at t = 10 (done 11). gen = 10, reward = 1; unstreamed it would be
    # 14·0.5 = 7.
    costs = linear_costs(score=(0.0, 0.5, 0.0))
    result = run("intra", [10], steps=1, batch=1, prompts=4, settings={"chunk_size": 4}, costs=costs)
    assert result.column("timing_s/gen") == [10.0]
    assert result.column("timing_s/reward") == [pytest.approx(1.0)]
    assert result.column(c.SCORER_PIECES) == [3]
    assert run("sequential", [10], steps=1, batch=1, prompts=4, costs=costs).column("timing_s/reward") == [
        pytest.approx(7.0)
    ]


def test_a_finish_at_a_cut_gives_one_piece() -> None:
    # 8 tokens, chunk 4: cuts at 4 and 8; the one at 8 is the finish. Two pieces, not three.
    result = run("intra", [8], steps=1, batch=1, settings={"chunk_size": 4})
    assert result.column(c.SCORER_PIECES) == [2]


def test_overcommit_carries_the_straggler() -> None:
    # B = 2, Δ = 1, lengths 2, 9, 3 | 4, 4, …: step 0 ends at the second finish, t = 3 (ids 0 and 2). Id 1 has
    # 3 tokens and is carried; step 1 admits two of 4: they finish 4 s later, id 1 then has 7. Batch 1 = ids
    # 3, 4. Step 2 admits two of 4: id 1 finishes after 2 s, the new ones after 4 (both at the same instant;
    # the lower id, 5, is taken). Staleness of id 1 = 2, span 3.
    result = run("inter", [2, 9, 3, 4, 4, 4, 4], steps=3, batch=2, settings={"overcommit": 1})
    assert result.trained() == [[0, 2], [3, 4], [1, 5]]
    assert result.column("timing_s/gen") == [3.0, 4.0, 4.0]
    straggler = result.rollouts.set_index("rollout_id").loc[1]
    assert (straggler["staleness"], straggler["span"], straggler["deferrals"]) == (2, 3, 2)
    assert result.column(c.ROLLOUTS_DEFERRED) == [1, 1, 0]
    assert result.column(c.ROLLOUTS_SURPLUS) == [0, 0, 1]


def test_the_iteration_in_progress_elsewhere_completes() -> None:
    # Two replicas, iterations of 1 + 0.5·n s. Ids 0, 2 → replica 0; 1 → replica 1. Lengths 1, 5, 9; B = 1, Δ
    # = 2. Replica 0 (n = 2) ends its first iteration at t = 2: id 0 finishes, the phase ends. Replica 1 (n =
    # 1) is at 1.5 s an iteration: its second runs from 1.5 to 3 and completes. gen = 3, tokens = 2 + 2.
    costs = linear_costs((1.0, 0.5, 0.0))
    result = run(
        "inter",
        [1, 5, 9],
        steps=1,
        batch=1,
        settings={"overcommit": 2},
        machine=MachineSetup(num_replicas=2),
        costs=costs,
    )
    assert result.column("timing_s/gen") == [3.0]
    assert result.column(c.TOKENS_DECODED) == [4]


def test_recomputed_kv_costs_a_prefill_and_kept_kv_does_not() -> None:
    # As above with one replica: lengths 2 and 6, prompts 10, B = 1, Δ = 1; prefill 0.1 s a token. Step 0:
    # prefill 2 s + 2 s. Step 1 carries id 1 with 2 tokens and admits id 2 (length 2): prefill 10 for the new
    # one, plus 10 + 2 if the KV was cleared. Then two iterations and id 2 finishes.
    costs = linear_costs(prefill=(0.0, 0.1, 0.0))
    for clear, expected, again in ((True, 2.2 + 2.0, 12), (False, 1.0 + 2.0, 0)):
        machine = MachineSetup(clear_kv_cache_on_weight_sync=clear)
        result = run(
            "inter",
            [2, 6],
            steps=2,
            batch=1,
            prompts=10,
            settings={"overcommit": 1},
            machine=machine,
            costs=costs,
        )
        assert result.column("timing_s/gen") == [pytest.approx(4.0), pytest.approx(expected)]
        assert result.column(c.TOKENS_RECOMPUTED) == [0, again]


def test_rounds_wait_at_the_barrier() -> None:
    # stop_check chunk, rounds of 4: one rollout of 5 tokens needs two rounds on a replica that runs out of
    # work after 5 iterations; the other replica's rollout of 7 goes on to 7. Barriers at 4 and 7 → gen = 7.
    # With token it would be 7 too; with B = 1, Δ = 1 the phase ends at the barrier after the finish at 5: at
    # 7 + … the round's end for replica 1 is its finish at 7.
    machine = MachineSetup(num_replicas=2)
    result = run(
        "inter",
        [5, 9],
        steps=1,
        batch=1,
        settings={"overcommit": 1, "stop_check": "chunk", "chunk_size": 4},
        machine=machine,
    )
    # Replica 0 finishes at 5 in round 2 (iterations 5–8); replica 1 runs to 8. Barrier at 8.
    assert result.column("timing_s/gen") == [8.0]
    token = run("inter", [5, 9], steps=1, batch=1, settings={"overcommit": 1}, machine=machine)
    assert token.column("timing_s/gen") == [5.0]


def test_kv_capacity_preempts_the_youngest() -> None:
    # Capacity 10 tokens, blocks of 1, prompts of 2, lengths 6 and 6. Joins: (2 + 1) + (2 + 1) = 6 ≤ 10.
    # Before iteration j (0-based) both need 2·(2 + j + 1): j = 0 → 6, 1 → 8, 2 → 10, 3 → 12 > 10: id 1 is
    # preempted with 3 tokens. Id 0 goes on alone and finishes at t = 6. Then id 1 (2 + 3 tokens) joins,
    # recomputes 5 tokens (0.2 s a token = 1 s) and needs 3 more iterations.
    costs = linear_costs(prefill=(0.0, 0.2, 0.0))
    machine = MachineSetup(kv_capacity_tokens=10, kv_block_tokens=1)
    result = run("sequential", [6, 6], steps=1, batch=2, prompts=2, machine=machine, costs=costs)
    assert result.column(c.KV_PREEMPTIONS) == [1]
    assert result.column(c.TOKENS_RECOMPUTED) == [5]
    # Prefill of both at the start: 4 tokens, 0.8 s.
    assert result.column("timing_s/gen") == [pytest.approx(0.8 + 6.0 + 1.0 + 3.0)]


def test_static_batch_pays_for_finished_rows() -> None:
    # Prompts 2 and 4, lengths 1 and 3. Padded prefill: 2 rows × 4 = 8 tokens at 0.1 s. Iterations: 2 rows
    # throughout, 1 + 2·0.5 = 2 s plus 0.01 a KV token: 8, 10, 12. gen = 0.8 + 6 + 0.3. Padding: 2 in the
    # prefill, 2 rows wasted by the finished row.
    costs = linear_costs((1.0, 0.5, 0.01), (0.0, 0.1, 0.0))
    machine = MachineSetup(batching="static")
    result = run("sequential", [1, 3], steps=1, batch=2, prompts=[2, 4], machine=machine, costs=costs)
    assert result.column("timing_s/gen") == [pytest.approx(7.1)]
    assert result.column(c.TOKENS_PADDING) == [2 + 2]


def test_contention_slows_both() -> None:
    # One GPU: decode alone takes all of the memory traffic (m = 1), scoring m = 0.5, a = 1. Rollouts of 4 and
    # 8 tokens; id 0 is scored from t = 4: alone 2 s. Together Σm = 1.5, so both run at 1/1.5: scoring lasts 3
    # s (to t = 7) while decode makes 2 iterations; it needs 4, so 2 more at full speed: gen = 9. Then id 1 is
    # scored: 2 s.
    costs = linear_costs(score=(2.0, 0.0, 0.0), demands={"score": (0.5, 1.0)})
    machine = MachineSetup(scoring_on="rollout", sharing="streams")
    result = run("rollout-overlap", [4, 8], steps=1, batch=2, machine=machine, costs=costs)
    assert result.column("timing_s/gen") == [pytest.approx(9.0)]
    assert result.column("timing_s/reward") == [pytest.approx(2.0)]
    # Interference f = 2 on top: at rate 1/3 scoring lasts 6 s (to 10) and decode makes 2 of its 4 iterations
    # in that time.
    slow = run(
        "rollout-overlap",
        [4, 8],
        steps=1,
        batch=2,
        machine=replace(machine, interference=2.0),
        costs=costs,
    )
    assert slow.column("timing_s/gen") == [pytest.approx(12.0)]


def test_in_time_slices_only_the_gaps_of_an_activity_are_free() -> None:
    # As above in time slices: decode has a kernel on the device all of its time (max(1, 0)), scoring too (max(
    # 0.5, 1)): Σ = 2, both run at 1/2. Scoring lasts 4 s (to t = 8) while decode makes 2 iterations, then 2
    # more: gen = 10. With f = 2 at 1/4: scoring to 12, gen = 14.
    def gen(interference: float, sharing: str, decode: tuple[float, float]) -> float:
        demands = {"decode": decode, "score": (0.5, 1.0)}
        machine = MachineSetup(scoring_on="rollout", sharing=sharing, interference=interference)  # type: ignore[arg-type]
        costs = linear_costs(score=(2.0, 0.0, 0.0), demands=demands)
        result = run("rollout-overlap", [4, 8], steps=1, batch=2, machine=machine, costs=costs)
        (seconds,) = result.column("timing_s/gen")
        return float(seconds)

    assert gen(1.0, "time_slice", (1.0, 0.0)) == pytest.approx(10.0)
    assert gen(2.0, "time_slice", (1.0, 0.0)) == pytest.approx(14.0)
    # Decode that waits for launches 3/4 of its time leaves 3/4 of the device: Σ = 0.25 + 1, scoring lasts 2.5 s
    # (to 6.5), decode makes 2 iterations meanwhile, and 2 more: 8.5.
    assert gen(1.0, "time_slice", (0.25, 0.1)) == pytest.approx(8.5)
    # Together (streams or MPS) arithmetic is 1.1 times what there is: 2.2 s and 8.2.
    assert gen(1.0, "streams", (0.25, 0.1)) == gen(1.0, "mps", (0.25, 0.1)) == pytest.approx(8.2)


def test_an_iteration_takes_longer_by_turns_only_in_time_slices_beside_another_activity() -> None:
    # The first case of time slices, each iteration of 1 s longer by 0.25 s while scoring works: scoring as before
    # from t = 4 to 8 (half of it is the other's), decode at 1 / (2 · 1.25) makes 1.6 iterations meanwhile, then
    # 2.4 more alone: gen = 10.4. With f = 2 scoring lasts to 12, decode at 1/5: 1.6, and 2.4 more: 14.4. Streams: 1.5 at once, 9.
    def gen(sharing: str, interference: float = 1.0, scoring_on: str = "rollout") -> float:
        demands = {"decode": (1.0, 0.0), "score": (0.5, 1.0)}
        machine = MachineSetup(
            scoring_on=scoring_on,  # type: ignore[arg-type]
            sharing=sharing,  # type: ignore[arg-type]
            interference=interference,
            turn_s=0.25,
        )
        costs = linear_costs(score=(2.0, 0.0, 0.0), demands=demands)
        result = run("rollout-overlap", [4, 8], steps=1, batch=2, machine=machine, costs=costs)
        (seconds,) = result.column("timing_s/gen")
        return float(seconds)

    assert gen("time_slice") == pytest.approx(10.4)
    assert gen("time_slice", interference=2.0) == pytest.approx(14.4)
    assert gen("streams") == gen("mps") == pytest.approx(9.0)
    assert gen("time_slice", scoring_on="separate") == pytest.approx(8.0)


def test_a_kernel_is_on_the_device_in_max_of_both_demands_of_an_activity() -> None:
    # The last case above: 8 iterations of 1 s have a kernel on the device a quarter of their seconds, 2 s;
    # two rollouts scored in 2 s each, all of them, 4 s: of a step of 8.5 + 2 s, then 3 s of training on a
    # device of its own (half of them a kernel's) and 1 s of weight sync on both (all of it).
    stages = {"update_actor": (3.0, 0.0, 0.0)}
    demands = {"decode": (0.25, 0.1), "score": (0.5, 1.0), "train": (0.2, 0.5), "sync": (1.0, 0.0)}
    costs = linear_costs(score=(2.0, 0.0, 0.0), stages=stages, update_weights=1.0, demands=demands)
    step_s = 8.5 + 2 + 3 + 1

    def shares(sharing: str, training_on: str) -> list[float]:
        machine = MachineSetup(scoring_on="rollout", training_on=training_on, sharing=sharing)  # type: ignore[arg-type]
        result = run("rollout-overlap", [4, 8], steps=1, batch=2, machine=machine, costs=costs)
        (seconds,) = result.column("timing_s/step")
        names = (c.KERNEL_GEN, c.KERNEL_REWARD, c.KERNEL_TRAINING, c.KERNEL_DEVICES)
        return [float(result.column(name)[0]) * seconds for name in names]

    # Seconds of kernels: decoding, scoring, training with sync, and a device's: 2 + 4 + 2.5 + 1 on two
    # devices, the sync on both; or on one.
    apart = shares("time_slice", "separate")
    assert apart == pytest.approx([2.0, 4.0, 2.5, (2 + 4 + 1.5 + 2 * 1) / 2])
    together = shares("time_slice", "rollout")
    assert together == pytest.approx([2.0, 4.0, 2.5, 2 + 4 + 2.5])
    assert step_s == 14.5


def test_groups_in_one_machine_slow_each_other_without_sharing_capacity() -> None:
    # As above, on devices of their own in one machine, f = 2: scoring lasts 4 s (t = 4 to 8) while decode
    # makes 2 of its 4 iterations, whatever both demand: gen = 10, and then 2 s alone. Decode is busy 10 s of
    # 12, the scorer 6 s.
    costs = linear_costs(score=(2.0, 0.0, 0.0), demands={"score": (0.5, 1.0)})
    machine = MachineSetup(shares_host=True, interference=2.0)
    result = run("rollout-overlap", [4, 8], steps=1, batch=2, machine=machine, costs=costs)
    assert result.column("timing_s/gen") == [pytest.approx(10.0)]
    assert result.column("timing_s/reward") == [pytest.approx(2.0)]
    assert result.column(c.BUSY_ROLLOUT) == [pytest.approx(10 / 12)]
    assert result.column(c.BUSY_SCORING) == [pytest.approx(6 / 12)]
    # Two replicas and one worker (on the host of replica 0): rollout 1, on replica 1, is not slowed.
    wide = MachineSetup(num_replicas=2, shares_host=True, interference=2.0)
    apart = run("rollout-overlap", [4, 8], steps=1, batch=2, machine=wide, costs=costs)
    assert apart.column("timing_s/gen") == [pytest.approx(8.0)]


def test_each_of_a_machine_is_slowed_by_its_own_factor() -> None:
    # The same with decoding slowed by 2 beside scoring and scoring by 1.25: it lasts 2.5 s (t = 4 to 6.5) while
    # decode makes 1.25 of its 4 iterations, the rest until 9.25. Nothing slows the second, nor training (f = 3).
    costs = linear_costs(score=(2.0, 0.0, 0.0), stages={"update_actor": (5.0, 0.0, 0.0)})
    machine = MachineSetup(shares_host=True, interference=3.0, slowdowns=(2.0, 1.25))
    result = run("rollout-overlap", [4, 8], steps=1, batch=2, machine=machine, costs=costs)
    assert result.column("timing_s/gen") == [pytest.approx(9.25)]
    assert result.column("timing_s/reward") == [pytest.approx(2.0)]
    assert result.column("timing_s/update_actor") == [pytest.approx(5.0)]
    # Devices that are shared know f alone, and apart nothing is slowed.
    alone = run(
        "rollout-overlap", [4, 8], steps=1, batch=2, machine=replace(machine, shares_host=False), costs=costs
    )
    assert alone.column("timing_s/gen") == [pytest.approx(8.0)]


def test_one_step_off_overlaps_training_with_the_next_batch() -> None:
    # B = 1, lengths 5, 7, 3, 4. Training 6 s, update_weights 1 s, no scoring time.
    # Step 0: batch 0 generates 0–5; batch 1 from 5 to 12; training of batch 0 from 5 to 11; update 12–13.
    # step = 13. Step 1: batch 2 generates 13–16; training of batch 1 13–19; update 19–20. step = 7, gen = 7.
    # Step 2: batch 3 20–24, training 20–26, update 26–27: 7, gen = 3.
    costs = linear_costs(stages={"update_actor": (6.0, 0.0, 0.0)}, update_weights=1.0)
    result = run("one-step-off", [5, 7, 3, 4], steps=3, batch=1, costs=costs)
    assert result.column("timing_s/step") == [13.0, 7.0, 7.0]
    assert result.column("timing_s/gen") == [5.0, 7.0, 3.0]
    assert list(result.rollouts["staleness"]) == [0, 1, 1]


def test_async_trains_whatever_is_scored_first() -> None:
    # B = 1, max_staleness 1: two admitted at 0 (lengths 8 and 2). Id 1 is scored at 2 and trains 2–5; then
    # both stop: the iteration that ends at 5 is not followed by another; update 5–6. Step 0 = 6 s. Id 2
    # (length 1) is admitted at 6 and finishes at 7, before id 0 (5 tokens at 5, 8 at 9). It trains 7–10: id 0
    # finishes at 9. Update 10–11. Staleness of id 2: version 1 − 1 = 0. Then id 0 trains.
    costs = linear_costs(stages={"update_actor": (3.0, 0.0, 0.0)}, update_weights=1.0)
    result = run("async", [8, 2, 1, 50], steps=3, batch=1, costs=costs)
    assert result.trained() == [[1], [2], [0]]
    assert result.column("timing_s/step") == [6.0, 5.0, 4.0]
    assert list(result.rollouts["staleness"]) == [0, 0, 2]
    assert result.column("timing_s/gen") == [2.0, 1.0, 0.0]


def test_tail_batching_drops_and_runs_the_dropped_again() -> None:
    # B = 2, η = 1.5: three admitted, the first two finished are trained, the third is dropped and queued.
    # After two short steps the queue holds two (ids 1 and 4): step 2 is long and runs them from nothing.
    result = run("tail-batching", [1, 9, 2, 3, 8, 3], steps=3, batch=2, settings={"over_issue": 1.5})
    assert result.trained() == [[0, 2], [3, 5], [4, 1]]
    assert result.column("timing_s/gen") == [2.0, 3.0, 9.0]
    assert result.column(c.ROLLOUTS_DROPPED) == [1, 1, 0]
    assert result.column(c.TOKENS_DROPPED) == [2, 3, 0]
    assert result.column(c.STALENESS_MAX) == [0, 0, 0]


@pytest.mark.parametrize("replicas", [1, 3])
def test_what_a_stop_drops_at_an_instant_is_not_scored_at_it(replicas: int) -> None:
    # Lengths 1, 2, 1, 1; B = 2, over-issue 2: four run. At t = 1 rollouts 0, 2 and 3 finish and the step
    # ends with 0 and 2, so 1 and 3 are dropped, also where 1 is in the middle of two iterations on a replica
    # of its own. Scored is what is left, rollouts 0 and 2 of one token: 1 + 2·1 = 3 s.
    result = run(
        "tail-batching",
        [1, 2, 1],
        steps=1,
        batch=2,
        settings={"over_issue": 2.0, "score_granularity": "rollout", "stop_check": "token"},
        machine=MachineSetup(num_replicas=replicas),
        costs=linear_costs(score=(1.0, 1.0, 0.0), update_weights=1.0),
    )
    assert result.trained() == [[0, 2]]
    assert result.column("timing_s/gen") == [1.0]
    assert result.column("timing_s/reward") == [3.0]
    assert result.column(c.TOKENS_SCORED) == [2]


@pytest.mark.parametrize("policy", ["oppo", "one-step-off", "async"])
def test_a_step_late_in_a_run_is_like_one_at_its_begin(policy: str) -> None:
    # An update of 4·10⁷ s must not make later instants wider: 1e-9 of that would be 40 ms, and iterations
    # take 10 ms. Batches at the scorer are then those of a run whose updates take 4 s.
    def columns(update_s: float) -> dict[str, list[float]]:
        result = run(
            policy,
            [9, 4, 7, 12, 5, 3, 8],
            steps=12,
            batch=4,
            machine=MachineSetup(num_replicas=2, max_scoring_tokens=20),
            settings={"chunk_size": 3},
            costs=linear_costs((0.01, 0.001, 0.0), score=(0.004, 0.0003, 0.0), update_weights=update_s),
        )
        counts = {name: result.column(name) for name in (c.SCORER_BATCHES, c.SCORER_PIECES, c.TOKENS_DECODED)}
        return counts | {"gen": [round(seconds, 9) for seconds in result.column("timing_s/gen")]}

    assert columns(4e7) == columns(4.0)


def test_overdue_rollouts_are_waited_for() -> None:
    # B = 1, Δ = 1, max_deferrals 1, lengths 9, 2, 2, 2. Step 0: id 1 finishes at 2; id 0 is deferred once.
    # Step 1 admits id 2 (done after 2) but waits for id 0 (7 more): gen = 7; id 0 is trained, id 2 is
    # surplus. Step 2 admits id 3; id 2 is finished: gen = 0.
    result = run("inter", [9, 2, 2, 2], steps=3, batch=1, settings={"overcommit": 1, "max_deferrals": 1})
    assert result.trained() == [[1], [0], [2]]
    assert result.column("timing_s/gen") == [2.0, 7.0, 0.0]


def test_groups_finish_with_their_last_member() -> None:
    # B = 2 in groups of 2, Δ = 2. Group 0 has lengths 1 and 9, group 1 has 3 and 4: group 1 is trained at t =
    # 4.
    result = run("inter", [1, 9, 3, 4], steps=1, batch=2, group_size=2, settings={"overcommit": 2})
    assert result.trained() == [[2, 3]]
    assert result.column("timing_s/gen") == [4.0]
    assert result.column(c.ROLLOUTS_DEFERRED) == [2]


def with_cuts(costs: Costs, **seconds: float) -> Costs:
    return replace(costs, cuts=Cuts(**seconds))


def test_a_round_costs_seconds_before_its_barrier_is_left() -> None:
    # One rollout of 10 tokens, rounds of 4: barriers after 4, 8 and 10 iterations, 0.5 s at each:
    # gen = 10 + 3·0.5. Pieces of 4, 4 and 2 tokens, 1 s a token, reach the scorer at 4, 8.5 and 11 (before
    # the seconds of their round): done at 8, 12.5 and 14.5: 3 s after gen's end at 11.5. The replica is busy
    # 10 s of 14.5.
    rounds = {"stop_check": "chunk", "chunk_size": 4}
    costs = with_cuts(linear_costs(score=(0.0, 1.0, 0.0)), round_fixed_s=0.5)
    result = run("intra", [10], steps=1, batch=1, settings=rounds, costs=costs, timeline=(0, 0))
    assert result.column("timing_s/gen") == [11.5]
    assert result.column("timing_s/reward") == [pytest.approx(3.0)]
    assert result.column(c.BUSY_ROLLOUT) == [pytest.approx(10 / 14.5)]
    cuts = [(span.start_s, span.end_s) for span in result.spans if span.stage == "barrier"]
    assert cuts == [(4.0, 4.5), (8.5, 9.0), (11.0, 11.5)]
    # Without rounds nothing is paid.
    assert run("intra", [10], steps=1, batch=1, settings={"chunk_size": 4}, costs=costs).column(
        "timing_s/gen"
    ) == [10.0]


def test_an_engine_without_kv_between_rounds_prefills_what_runs() -> None:
    # Two rollouts of 6 and 3 tokens, prompts of 10, rounds of 2, prefill 0.1 s a token. Round 1: 20 tokens,
    # 2 s, 2 iterations. Round 2: 12 + 12 tokens, 2.4 s, 2 iterations (id 1 finishes in the first). Round 3:
    # id 0 alone, 14 tokens, 1.4 s, 2 iterations. gen = 5.8 + 6; recomputed 24 + 14.
    costs = linear_costs(prefill=(0.0, 0.1, 0.0))
    rounds = {"stop_check": "chunk", "chunk_size": 2}
    machine = MachineSetup(keeps_kv_between_rounds=False)
    result = run(
        "sequential", [6, 3], steps=1, batch=2, prompts=10, settings=rounds, machine=machine, costs=costs
    )
    assert result.column("timing_s/gen") == [pytest.approx(11.8)]
    assert result.column(c.TOKENS_PREFILLED) == [20]
    assert result.column(c.TOKENS_RECOMPUTED) == [38]


def test_a_static_batch_without_kv_between_rounds_is_formed_anew() -> None:
    # As above as a plain generate(): round 2 is again 2 rows of 12 (id 1 finishes, its row wasted in one
    # iteration), round 3 is one row of 14: no row of id 1 is left. Iterations cost 1 s a row: 2·2 + 2·2 + 2.
    costs = linear_costs((0.001, 1.0, 0.0), prefill=(0.0, 0.1, 0.0))
    rounds = {"stop_check": "chunk", "chunk_size": 2}
    static = MachineSetup(batching="static", keeps_kv_between_rounds=False)
    result = run(
        "sequential", [6, 3], steps=1, batch=2, prompts=10, settings=rounds, machine=static, costs=costs
    )
    assert result.column("timing_s/gen") == [pytest.approx(5.8 + 10.0 + 0.006)]
    assert result.column(c.TOKENS_PADDING) == [1]


def test_a_piece_costs_seconds_at_the_scorer() -> None:
    # 10 tokens, prompt 4, chunk 4, 0.5 s a token and 1 s a piece: pieces of 8, 4 and 2 tokens at 4, 8 and 10.
    # 4 to 9 (8·0.5 + 1); then the 4 of t = 8 alone, 9 to 12; then 2: 12 to 14. gen = 10, reward = 4.
    costs = with_cuts(linear_costs(score=(0.0, 0.5, 0.0)), piece_fixed_s=1.0)
    streamed = {"prompts": 4, "settings": {"chunk_size": 4}, "costs": costs}
    result = run("intra", [10], steps=1, batch=1, **streamed)
    assert result.column("timing_s/reward") == [pytest.approx(4.0)]
    # In one batch each piece costs its second: two rollouts scored whole, (4 + 10) + (4 + 6) tokens, 2 pieces.
    whole = run("sequential", [10, 6], steps=1, batch=2, prompts=4, costs=costs)
    assert whole.column("timing_s/reward") == [pytest.approx(12.0 + 2.0)]


def test_a_scorer_with_blocks_prefills_whole_ones_until_the_last_piece() -> None:
    # 10 tokens, prompt 4, chunk 4, 1 s a piece that prefills, 0.5 s a token, blocks of 6: given 8, 12 and 14
    # tokens at 4, 8 and 10, the scorer has prefilled 6, 6 (12 would leave none over) and 14. 4 to 8 (6·0.5 + 1);
    # nothing for the second; 10 to 15 (8·0.5 + 1). gen = 10, reward = 5.
    costs = with_cuts(linear_costs(score=(0.0, 0.5, 0.0)), piece_fixed_s=1.0)
    streamed = {"prompts": 4, "settings": {"chunk_size": 4}, "costs": costs}
    result = run("intra", [10], steps=1, batch=1, machine=MachineSetup(scorer_block_tokens=6), **streamed)
    assert result.column("timing_s/reward") == [pytest.approx(5.0)]
    # Pairs are those of the tokens that are prefilled: 6²/2 with the first, (14² − 6²)/2 with the last piece.
    pairs = {"prompts": 4, "settings": {"chunk_size": 4}, "costs": linear_costs(score=(0.0, 0.0, 0.1))}
    result = run("intra", [10], steps=1, batch=1, machine=MachineSetup(scorer_block_tokens=6), **pairs)
    assert result.column("timing_s/reward") == [pytest.approx(8.0)]


def test_a_scorer_prefills_again_what_its_cache_has_lost() -> None:
    # Two of 10 tokens, prompts 4, chunk 4, blocks of 2, 7 of them; 0.25 s a token. At 4 both have 3 blocks: 12 tokens,
    # to 7. At 8 id 0 fills 5 (the free one, and the last of id 1's 3): 4 tokens; id 1, which has 2 left, fills 5
    # from what id 0 just had: 6 tokens, 2 of them again. To 10.5. Then the last pieces, 7 blocks each: id 0 has 2 left,
    # 10 tokens, 6 again; id 1 none, 14 tokens, 10 again. To 16.5. gen = 10, reward = 6.5; 28 tokens and 18 again.
    costs = linear_costs(score=(0.0, 0.25, 0.0))
    streamed = {"prompts": 4, "settings": {"chunk_size": 4}, "costs": costs}
    small = MachineSetup(scorer_block_tokens=2, scorer_cache_tokens=15)
    result = run("intra", [10, 10], steps=1, batch=2, machine=small, **streamed)
    assert result.column("timing_s/reward") == [pytest.approx(6.5)]
    assert result.column("tokens/scored") == [46]
    # A block more: id 1 keeps its 3 at 8, which costs id 0 two of its 5; then 8 and 12 tokens. Ample: 4 and 4.
    for cache, reward, scored in ((16, 5.0, 40), (None, 2.0, 28)):
        machine = MachineSetup(scorer_block_tokens=2, scorer_cache_tokens=cache)
        result = run("intra", [10, 10], steps=1, batch=2, machine=machine, **streamed)
        assert (result.column("timing_s/reward"), result.column("tokens/scored")) == (
            [pytest.approx(reward)], [scored],
        )  # fmt: skip


def test_pieces_of_one_instant_cross_a_link_together_while_decoding_goes_on() -> None:
    # Two rollouts of 8 tokens on one replica, chunk 4, no prompts; a piece takes 1 s and 0.25 s a token on its
    # way: 2 s. Cut at 4: both arrive at 8; cut at 8: both at 12. Scoring takes 1 s a token, one piece at a
    # time: 8 to 12, 12 to 16 (id 1's first; the two of t = 12 wait behind it), 16 to 20, 20 to 24.
    # gen = 8, reward = 16.
    costs = with_cuts(linear_costs(score=(0.0, 1.0, 0.0)), piece_send_s=1.0)
    machine = MachineSetup(send_s_per_token=0.25, max_scoring_tokens=1)
    result = run("intra", [8, 8], steps=1, batch=2, settings={"chunk_size": 4}, machine=machine, costs=costs)
    assert result.column("timing_s/gen") == [8.0]
    assert result.column("timing_s/reward") == [pytest.approx(16.0)]
    # They are scored together, too, where they may be: with 1 s a batch, 8 to 17 and 17 to 26.
    both = replace(machine, max_scoring_tokens=8)
    batched = with_cuts(linear_costs(score=(1.0, 1.0, 0.0)), piece_send_s=1.0)
    result = run("intra", [8, 8], steps=1, batch=2, settings={"chunk_size": 4}, machine=both, costs=batched)
    assert result.column("timing_s/reward") == [pytest.approx(18.0)]
    # Two replicas have a link each: pieces of both arrive at 6 and at 10, and the scorer is never idle.
    wide = replace(machine, num_replicas=2)
    result = run("intra", [8, 8], steps=1, batch=2, settings={"chunk_size": 4}, machine=wide, costs=costs)
    assert result.column("timing_s/reward") == [pytest.approx(14.0)]
    alone = replace(machine, num_replicas=2, num_workers=2)
    result = run("intra", [8, 8], steps=1, batch=2, settings={"chunk_size": 4}, machine=alone, costs=costs)
    assert result.column("timing_s/reward") == [pytest.approx(6.0)]
