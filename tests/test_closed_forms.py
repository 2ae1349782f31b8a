"""Cases whose answer is a formula."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oppo_sim import columns as c
from oppo_sim.model.setup import MachineSetup
from tests.small import linear_costs, run


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 200), min_size=1, max_size=12),
    st.integers(1, 50),
    st.tuples(st.floats(0.001, 1), st.floats(0, 0.1), st.floats(0, 0.001)),
    st.tuples(st.floats(0, 1), st.floats(0, 0.01), st.floats(0, 0.001)),
    st.tuples(st.floats(0, 1), st.floats(0, 0.01), st.floats(0, 0.001)),
)
def test_a_sequential_step_is_a_sum(
    lengths: list[int],
    prompt: int,
    decode: tuple[float, float, float],
    prefill: tuple[float, float, float],
    score: tuple[float, float, float],
) -> None:
    # gen = prefill of all prompts + Σ over iterations k of fixed + per_rollout·n_k + per_kv·kv_k, n_k =
    # responses longer than k.
    n = len(lengths)
    gen = prefill[0] + prefill[1] * n * prompt + prefill[2] * n * prompt**2 / 2
    for k in range(max(lengths)):
        alive = sum(length > k for length in lengths)
        gen += decode[0] + decode[1] * alive + decode[2] * alive * (prompt + k)
    tokens = sum(prompt + length for length in lengths)
    reward = score[0] + score[1] * tokens + score[2] * sum((prompt + length) ** 2 / 2 for length in lengths)
    machine = MachineSetup(max_scoring_tokens=10**9)
    result = run(
        "sequential",
        lengths,
        steps=2,
        batch=n,
        prompts=prompt,
        machine=machine,
        costs=linear_costs(decode, prefill, score),
    )
    assert result.column("timing_s/gen") == [pytest.approx(gen, rel=1e-12)] * 2
    assert result.column("timing_s/reward") == [pytest.approx(reward, rel=1e-9, abs=1e-9 * gen)] * 2


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 30), st.floats(0.01, 40.0))
def test_a_deterministic_queue(pieces: int, chunk: int, service: float) -> None:
    # One rollout of N·c tokens at 1 s a token gives a piece every c seconds (D/D/1). With a service of s < c
    # each waits for nobody and the last score is s after the finish; with s ≥ c the worker never idles after
    # the first arrival: c + N·s.
    machine = MachineSetup(max_scoring_tokens=1)  # every piece is a batch of its own
    result = run(
        "intra",
        [pieces * chunk],
        steps=1,
        batch=1,
        settings={"chunk_size": chunk},
        machine=machine,
        costs=linear_costs(score=(service, 0, 0)),
    )
    finish = pieces * chunk
    last_score = max(finish + service, chunk + pieces * service)
    assert result.column("timing_s/gen") == [pytest.approx(finish)]
    assert result.column("timing_s/reward") == [
        pytest.approx(last_score - finish, rel=1e-9, abs=1e-9 * last_score)
    ]
    assert result.column(c.SCORER_BATCHES) == [pieces]


def test_the_longest_of_a_batch_has_the_expected_mean() -> None:
    # Geometric lengths with success probability p: E[max of B] = Σ_k (−1)^{k+1} C(B, k) / (1 − (1 − p)^k).
    # 4,000 steps of B = 8.
    batch, p, steps = 8, 0.02, 4000
    expected = sum((-1) ** (k + 1) * math.comb(batch, k) / (1 - (1 - p) ** k) for k in range(1, batch + 1))
    draw = random.Random(1)
    lengths = [
        max(1, math.ceil(math.log(1.0 - draw.random()) / math.log(1 - p))) for _ in range(batch * steps)
    ]
    gen = run("sequential", lengths, steps=steps, batch=batch).steps["timing_s/gen"]
    assert abs(gen.mean() - expected) < 4 * gen.std() / math.sqrt(steps)


@pytest.mark.parametrize("policy", ["inter", "april", "oppo", "partial-rollout"])
def test_constant_lengths_leave_nothing_to_carry_over(policy: str) -> None:
    # All responses have length 30, Δ = B = 4: eight start together and finish together after 30 s; four are
    # surplus and are trained in the next step without decoding, in which the four newly admitted do not start
    # (and count as deferred). Staleness is at most 1.
    settings = {
        "inter": {"overcommit": 4},
        "oppo": {"overcommit": 4, "chunk_size": 10},
        "partial-rollout": {"overcommit": 4, "token_budget": 10},
    }
    result = run(policy, [30], steps=12, batch=4, settings=settings.get(policy, {}))
    assert result.column(c.ROLLOUTS_DEFERRED) == [0, 4] * 6
    assert result.column("timing_s/gen") == [30.0, 0.0] * 6
    assert max(result.column(c.STALENESS_MAX)) == 1


def test_perfect_overlap_hides_all_but_the_last_piece() -> None:
    # Chunks of c, scoring s seconds a token below the decode pace: sequential waits N·s, streaming only the
    # last c tokens, c·s.
    costs = linear_costs(score=(0.0, 0.5, 0.0))
    sequential = run("sequential", [640], steps=1, batch=1, costs=costs).column("timing_s/reward")[0]
    streamed = run("intra", [640], steps=1, batch=1, settings={"chunk_size": 64}, costs=costs).column(
        "timing_s/reward"
    )[0]
    assert (sequential, streamed) == (pytest.approx(320.0), pytest.approx(32.0))


def test_parallel_inference_takes_the_longest_stage() -> None:
    stages = {
        "old_log_prob": (3.0, 0.0, 0.0),
        "ref": (5.0, 0.0, 0.0),
        "values": (4.0, 0.0, 0.0),
        "update_actor": (7.0, 0.0, 0.0),
    }
    for parallel, total in ((False, 19.0), (True, 12.0)):
        costs = linear_costs(stages=stages, parallel_inference=parallel)
        result = run("sequential", [10], steps=1, batch=1, costs=costs)
        assert result.column(c.TIMING_STEP) == [10.0 + total]
        assert [result.column(c.timing(stage))[0] for stage in ("old_log_prob", "ref", "values")] == [
            3.0,
            5.0,
            4.0,
        ]


def test_busy_shares_and_utilisation() -> None:
    # One replica and one worker: gen 10 s, then 5 s of scoring, then 5 s of training on its own device. step
    # = 20.
    costs = linear_costs(score=(5.0, 0.0, 0.0), stages={"update_actor": (5.0, 0.0, 0.0)})
    row = run("sequential", [10], steps=1, batch=1, costs=costs).steps.iloc[0]
    assert (row[c.BUSY_ROLLOUT], row[c.BUSY_SCORING], row[c.BUSY_TRAINING]) == (0.5, 0.25, 0.25)
    # Inference stage: from the start of gen to the last score, 15 s: (10/15 + 5/15) / 2.
    assert row[c.UTILIZATION_INFERENCE] == pytest.approx(0.5)
