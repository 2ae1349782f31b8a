"""What must always hold (docs/model.md), over random scenarios. The numbers are those of that page."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from oppo_sim import columns as c
from oppo_sim.instants import instant_tolerance
from oppo_sim.model.setup import MachineSetup
from tests.cases import CARRYING, PHASED, STAGES, Case, cases
from tests.small import Result, linear_costs, run

EXAMPLES = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def check_conservation(result: Result, admitted: int) -> None:
    steps = result.steps
    in_flight = steps[c.TOKENS_IN_FLIGHT].iloc[-1]
    decoded, trained, dropped, filtered = (
        int(steps[name].sum())
        for name in (c.TOKENS_DECODED, c.TOKENS_TRAINED, c.TOKENS_DROPPED, c.TOKENS_FILTERED)
    )
    assert decoded == trained + in_flight + dropped + filtered
    ids = Counter(result.rollouts[c.ROLLOUT_ID])
    assert max(ids.values()) == 1
    assert set(ids) <= set(range(admitted))


@EXAMPLES
@given(cases())
def test_1_conservation(case: Case) -> None:
    result = case.run()
    admitted = int(result.steps[c.ROLLOUTS_ADMITTED].sum())
    check_conservation(result, admitted)
    assert len(result.rollouts) == case.steps * case.batch
    if case.policy in PHASED and case.policy != "tail-batching":
        last = result.steps.iloc[-1]
        kept = last[c.ROLLOUTS_DEFERRED] + last[c.ROLLOUTS_SURPLUS]
        assert admitted == len(result.rollouts) + kept + result.steps[c.ROLLOUTS_FILTERED].sum()


def same_but_policy(left: Result, right: Result) -> None:
    pd.testing.assert_frame_equal(left.steps, right.steps, check_exact=True)
    pd.testing.assert_frame_equal(left.rollouts, right.rollouts, check_exact=True)


@EXAMPLES
@given(cases(policies=("sequential",)))
def test_2a_oppo_without_overcommit_and_streaming_is_sequential(case: Case) -> None:
    plain = {"overcommit": 0, "score_granularity": "batch", **case.settings}
    same_but_policy(case.run(), case.run(policy="oppo", settings=plain))


@EXAMPLES
@given(cases(policies=("intra",), contention=False))
def test_2b_chunks_longer_than_any_response_are_rollouts(case: Case) -> None:
    assume(case.machine.scorer_kv_capacity_tokens is None)
    long_chunks = {"stop_check": "token", "chunk_size": max(case.responses)}
    same_but_policy(case.run(settings=long_chunks), case.run(policy="rollout-overlap", settings=long_chunks))


@EXAMPLES
@given(cases(policies=("sequential", "intra", "rollout-overlap"), contention=False))
def test_2c_without_overcommit_scoring_changes_no_batch(case: Case) -> None:
    chunk_size = case.settings["chunk_size"]
    assume(isinstance(chunk_size, int))
    batches = [
        sorted(map(tuple, map(sorted, case.run(policy=policy).trained())))
        for policy in ("sequential", "intra", "rollout-overlap")
    ]
    assert batches[0] == batches[1] == batches[2]


@EXAMPLES
@given(
    # With tools it may: answers that came together come apart, and are prefilled one by one.
    cases(policies=("sequential",), contention=False, tools=False),
    st.sampled_from(["decode", "prefill", "score", *STAGES]),
    st.integers(0, 2),
)
def test_3_a_faster_stage_never_makes_a_sequential_step_longer(case: Case, faster: str, part: int) -> None:
    case = replace(case, machine=replace(case.machine, kv_capacity_tokens=None, max_num_seqs=None))

    def halved(triple: tuple[float, float, float]) -> tuple[float, float, float]:
        values = list(triple)
        values[part] /= 2
        return values[0], values[1], values[2]

    if faster in STAGES:
        quick = replace(case, stages={**case.stages, faster: halved(case.stages[faster])})
    else:
        quick = replace(case, **{faster: halved(getattr(case, faster))})
    before, after = case.run().steps[c.TIMING_STEP], quick.run().steps[c.TIMING_STEP]
    assert (after <= before * (1 + 1e-12) + 1e-12).all()


@EXAMPLES
@given(cases(policies=("sequential", "intra", "rollout-overlap", *CARRYING, "oracle")))
def test_4_each_token_is_scored_once(case: Case) -> None:
    result = case.run()
    trained = int((result.rollouts[c.PROMPT_LENGTH] + result.rollouts[c.RESPONSE_LENGTH]).sum())
    answers = [sum(call.tokens for call in row) for row in case.calls] or [0]
    trained += sum(answers[row % len(answers)] for row in result.rollouts[c.TRACE_ROW])
    scored = int(result.steps[c.TOKENS_SCORED].sum())
    last = result.steps.iloc[-1]
    # Others may have been scored in part: those in flight, and groups that were dropped for equal rewards.
    others = last[c.ROLLOUTS_DEFERRED] + last[c.ROLLOUTS_SURPLUS] + result.steps[c.ROLLOUTS_FILTERED].sum()
    decoded = last[c.TOKENS_IN_FLIGHT] + result.steps[c.TOKENS_FILTERED].sum()
    assert trained <= scored
    if case.machine.scorer_cache_tokens is None:  # else lost prefixes are scored again
        assert scored <= trained + decoded + others * (max(case.prompts) + max(answers))


@EXAMPLES
@given(cases())
def test_5_same_input_same_bytes(case: Case) -> None:
    def content(result: Result) -> bytes:
        out = io.BytesIO()
        result.steps.to_parquet(out)
        return out.getvalue() + result.rollouts.to_csv().encode()

    assert content(case.run()) == content(case.run())


@EXAMPLES
@given(cases())
def test_6_causality(case: Case) -> None:
    result = case.run(timeline=(0, case.steps - 1))
    rollouts = result.rollouts
    assert (rollouts["finished_s"] >= rollouts["admitted_s"]).all()
    assert (rollouts["scored_s"] >= rollouts["finished_s"]).all()
    starts = result.column(c.START_S)
    assert starts == sorted(starts)
    ends = result.steps.set_index(c.STEP)[c.START_S] + result.steps.set_index(c.STEP)[c.TIMING_STEP]
    trained_by = rollouts["trained_step"].map(ends)
    assert (rollouts["scored_s"] <= trained_by * (1 + 1e-9) + 1e-9).all()
    for span in result.spans:
        assert span.end_s >= span.start_s >= 0.0


@EXAMPLES
@given(cases(contention=False, tools=False))
def test_7_nothing_idles_while_it_has_work(case: Case) -> None:
    result = case.run(timeline=(0, case.steps - 1))
    arrivals = sorted(marker.at_s for marker in result.markers if marker.name == "chunk")
    tracks: dict[tuple[str, int], list[Any]] = {}
    for span in sorted(result.spans, key=lambda span: (span.start_s, span.end_s)):
        tracks.setdefault((span.group, span.index), []).append(span)
    for (group, _), spans in tracks.items():
        for before, after in pairwise(spans):
            slack = 4 * instant_tolerance(after.start_s)
            assert after.start_s >= before.end_s - slack, "one activity at a time"
            idle = after.start_s - before.end_s > slack
            if group == "scoring" and idle and not pieces_travel(case):
                assert any(abs(at - after.start_s) <= slack for at in arrivals), (
                    "a batch starts when a piece arrives or the last one ended"
                )
    # A replica's decoding has no gap inside a phase of a synchronous policy; a group that replaces one whose
    # rewards are all equal is admitted when those are known.
    if (
        case.policy in PHASED
        and not case.sample_rewards
        and result.column(c.KV_PREEMPTIONS) == [0] * case.steps
        and not settings_use_rounds(case)
    ):
        for (group, _), spans in tracks.items():
            if group == "rollout":
                for before, after in pairwise(spans):
                    if before.step == after.step:
                        assert after.start_s - before.end_s <= 4 * instant_tolerance(after.start_s)


def pieces_travel(case: Case) -> bool:
    return case.terms.piece_send_s > 0 or case.machine.send_s_per_token > 0


def settings_use_rounds(case: Case) -> bool:
    return case.settings.get("stop_check") == "chunk" or case.policy == "partial-rollout"


@EXAMPLES
@given(
    cases(policies=("sequential", "intra", "inter", "oppo"), contention=False),
    st.floats(0.1, 10),
    st.floats(0.1, 10),
)
def test_8_lock_step_decisions_depend_on_the_recorded_series_only(
    case: Case, slower_scoring: float, slower_training: float
) -> None:
    case = replace(case, calls=())  # tools answer after seconds, whatever the schedule does
    recorded = case.run()
    series = [{name.removeprefix("timing_s/"): value for name, value in row.items() if name.startswith("timing_s/")}
              for row in recorded.steps.to_dict(orient="records")]  # fmt: skip

    def lock_step(factor: float) -> Result:
        stages = {"update_actor": (factor * slower_training, 0.0, 0.0)}
        costs = linear_costs((1.0, 0.0, 0.0), score=(0.0, factor * slower_scoring, 0.0), stages=stages)
        return case.run(costs=costs, recorded_timing=series)

    quick, slow = lock_step(0.01), lock_step(1.0)
    assert quick.trained() == slow.trained()
    for name in (c.ROLLOUTS_DEFERRED, c.ROLLOUTS_SURPLUS, c.OVERCOMMIT, c.CHUNK_SIZE):
        assert quick.column(name) == slow.column(name)


@EXAMPLES
@given(cases(policies=("sequential", "inter", "oppo", "one-step-off", "async"), contention=False))
def test_steps_tile_the_run(case: Case) -> None:
    steps = case.run().steps
    assert steps[c.START_S].iloc[0] == 0.0
    ends = steps[c.START_S] + steps[c.TIMING_STEP]
    assert list(steps[c.START_S].iloc[1:]) == pytest.approx(list(ends.iloc[:-1]))
    if case.policy in PHASED and not case.parallel_inference:
        parts = steps[[c.timing(stage) for stage in c.STAGES]].sum(axis=1)
        assert list(parts) == pytest.approx(list(steps[c.TIMING_STEP]))


def test_an_ideal_machine_has_no_overlap_to_hide() -> None:
    result = run(
        "oppo",
        [5, 3, 8],
        steps=4,
        batch=2,
        settings={"overcommit": 0, "chunk_size": 2},
        machine=MachineSetup(),
    )
    assert result.column("timing_s/reward") == [0.0] * 4
