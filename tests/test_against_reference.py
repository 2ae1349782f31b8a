"""The simulator against the brute force of ``tests/reference``, which steps token by token and shares no code
with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from oppo_sim import columns as c
from oppo_sim.costs.terms import CostTerms
from oppo_sim.model.setup import MachineSetup
from oppo_sim.turns import ToolWait
from tests.cases import PHASED, STAGES, Case, cases
from tests.reference.config import ReferenceConfig, ReferenceResult, StepRecord
from tests.reference.stepper import run as run_reference

EXAMPLES = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
FACTORED = ("decode", "prefill", "score", "training", *STAGES, "update_weights")
ADDED = ("iteration", "rollout_iteration", "score_batch", *STAGES, "update_weights")
PHASES = ("gen_phase", "reward_phase", "first_step", "other", "round_fixed", "piece_fixed", "piece_send")
EXACT = {"rel": 1e-9, "abs": 1e-9}


def as_instants_are(step: StepRecord) -> dict[str, float]:
    """What begins and ends at instants of a row is known as well as they are."""
    return {"rel": 1e-9, "abs": 1e-9 * max(1.0, step.seconds)}


def reference_config(case: Case) -> ReferenceConfig:
    """The same run in the reference's words."""
    machine, chosen = case.machine, case.settings
    rollout = tuple(f"rollout {i}" for i in range(machine.num_replicas))
    own = machine.num_workers if machine.scoring_on == "training" else 1
    training = rollout if machine.training_on == "rollout" else tuple(f"training {i}" for i in range(own))
    hosts = {"rollout": rollout, "training": training}.get(machine.scoring_on)
    scoring = tuple(
        f"scoring {j}" if hosts is None else hosts[j % len(hosts)] for j in range(machine.num_workers)
    )
    chunk = chosen.get("chunk_size", chosen.get("token_budget"))
    explored = raced = None
    if isinstance(chunk, dict):
        sizes, every = tuple(chunk["candidates"]), chunk["explore_every"]
        if chunk["control"] == "race":
            raced = sizes, every, chunk["min_steps"], chunk["max_steps"], chunk["level"]
        else:
            explored = sizes, every, chunk["explore_steps"]
        chunk = sizes[0]
    delta = chosen.get("overcommit", 0)
    control = None
    if isinstance(delta, dict):
        control = (delta["min"], delta["max"], 1, 1, delta["window"], delta["proportional"])
        delta = delta["initial"]
    granularity = chosen.get("score_granularity") or {"intra": "chunk", "rollout-overlap": "rollout"}.get(
        case.policy, "batch"
    )
    if granularity == "chunk" and not machine.streamable:
        granularity = "rollout"
    return ReferenceConfig(
        rollout_batch_size=case.batch,
        steps=case.steps,
        policy=case.policy,
        num_replicas=machine.num_replicas,
        num_workers=machine.num_workers,
        stop_check=chosen.get("stop_check", "token"),
        score_granularity=granularity,
        chunk_size=chunk,
        overcommit=delta,
        delta_control=control,
        chunk_control=explored,
        chunk_race=raced,
        max_deferrals=chosen.get("max_deferrals"),
        token_budget=chosen.get("token_budget", 0),
        over_issue=chosen.get("over_issue", 1.25),
        window=chosen.get("window", 4),
        max_staleness=chosen.get("max_staleness", 0),
        oldest_first=chosen.get("train_order", "oldest") == "oldest",
        wait_for_due=chosen.get("max_staleness_strategy") == "wait",
        interrupts=chosen.get("partial_rollout", True),
        group_size=case.group_size,
        clear_kv=machine.clear_kv_cache_on_weight_sync,
        keeps_kv=machine.keeps_kv_between_rounds,
        send_per_token=machine.send_s_per_token,
        keep_kv_on_tool_call=not machine.clear_kv_cache_on_tool_call,
        calls=case.calls,
        sample_rewards=case.sample_rewards,
        gen_batch_size=case.gen_batch_size,
        shares_prompts=machine.shares_prefixes,
        together=machine.groups_together,
        batching=machine.batching,
        kv_capacity_tokens=machine.kv_capacity_tokens,
        kv_block_tokens=machine.kv_block_tokens,
        max_num_seqs=machine.max_num_seqs,
        max_scoring_tokens=machine.max_scoring_tokens,
        scorer_kv_capacity=machine.scorer_kv_capacity_tokens,
        scorer_block=machine.scorer_block_tokens,
        scorer_cache=machine.scorer_cache_blocks,
        scorer_iteration=machine.scorer_iteration_tokens,
        parallel_inference=case.parallel_inference,
        decode=case.decode,
        prefill=case.prefill,
        score=case.score,
        stages={name: case.stages[name] for name in STAGES},
        update_weights=case.update_weights,
        rollout_devices=rollout,
        scoring_devices=scoring,
        training_devices=training,
        shares_host=machine.shares_host,
        interference=machine.interference,
        slowed_by=(*(machine.slowdowns or (machine.interference,) * 2), machine.interference),
        turn_s=machine.turn_s,
        in_turns=machine.sharing == "time_slice",
        factors={name: getattr(case.terms, name) for name in FACTORED},
        added={name: getattr(case.terms, f"{name}_s") for name in (*ADDED, *PHASES)},
        nominal=(case.nominal.tokens, case.nominal.pairs),
        demands=case.demands,
    )


def reference(case: Case) -> ReferenceResult:
    rows = len(case.responses)

    def lengths(rollout_id: int, step: int) -> tuple[int, int]:
        return case.prompts[rollout_id % rows], case.responses[rollout_id % rows]

    def rewards(step: int, trained: Any) -> float:
        return case.rewards[min(step, len(case.rewards) - 1)]

    return run_reference(reference_config(case), lengths, rewards)


@EXAMPLES
@given(cases())
def test_every_step_and_rollout_agrees(case: Case) -> None:
    assert_like_the_reference(case)


@EXAMPLES
@given(cases(("sequential", "intra", "rollout-overlap"), in_batches=True))
def test_generation_batches_agree(case: Case) -> None:
    assert_like_the_reference(case)


def assert_like_the_reference(case: Case) -> None:
    """Every step and every trained rollout."""
    ours, theirs = case.run(), reference(case)
    rollouts = ours.rollouts.set_index(c.ROLLOUT_ID)
    assert len(theirs.steps) == len(ours.steps)
    for (_, row), step in zip(ours.steps.iterrows(), theirs.steps, strict=True):
        where = f"step {step.step}"
        batch = rollouts[rollouts[c.TRAINED_STEP] == step.step].sort_values(c.TRAINED_RANK)
        if case.policy == "one-step-off":  # the whole of a batch is trained: its order is nobody's rule
            assert sorted(batch.index) == sorted(rollout.id for rollout in step.trained), where
        else:
            assert list(batch.index) == [rollout.id for rollout in step.trained], where
        near = as_instants_are(step)
        assert row["timing_s/gen"] == pytest.approx(step.gen, **near), where
        assert row["timing_s/reward"] == pytest.approx(step.reward, **near), where
        for stage in (*STAGES, "update_weights", "other"):
            assert row[c.timing(stage)] == pytest.approx(step.stages[stage], **near), (where, stage)
        assert row[c.TIMING_STEP] == pytest.approx(step.seconds, **near), where
        assert row[c.START_S] == pytest.approx(step.start, **near), where
        assert row[c.ROLLOUTS_DEFERRED] == len(step.deferred), where
        assert row[c.ROLLOUTS_SURPLUS] == len(step.surplus), where
        assert row[c.ROLLOUTS_DROPPED] == len(step.dropped), where
        assert row[c.OVERCOMMIT] == step.delta or case.policy in ("tail-batching", "oracle"), where
        assert row[c.CHUNK_SIZE] == step.chunk_size, where
        for name, count in (
            (c.TOKENS_DECODED, step.counters.decoded),
            (c.TOKENS_PREFILLED, step.counters.prefilled),
            (c.TOKENS_RECOMPUTED, step.counters.recomputed),
            (c.TOKENS_PREFIX_CACHED, step.counters.shared),
            (c.TOKENS_PADDING, step.counters.padding),
            (c.TOKENS_DROPPED, step.counters.dropped_tokens),
            (c.ROLLOUTS_FILTERED, step.counters.filtered),
            (c.TOKENS_FILTERED, step.counters.filtered_tokens),
            (c.KV_PREEMPTIONS, step.counters.preemptions),
        ):
            assert row[name] == count, (where, name)
        if case.policy in PHASED:  # else which row has a batch that begins as one ends is nobody's rule
            assert row[c.TOKENS_SCORED] == step.counters.scored, where
        if step.seconds > 0:
            kernels = {c.KERNEL_GEN: step.counters.kernel_gen / case.machine.num_replicas}
            if case.policy in PHASED:  # else which row has a batch that begins as one ends is nobody's rule
                kernels[c.KERNEL_REWARD] = step.counters.kernel_score / case.machine.num_workers
            for name, kernel_s in kernels.items():
                assert row[name] == pytest.approx(min(1.0, kernel_s / step.seconds), **EXACT), (where, name)
        newest = [rollout.newest_staleness for rollout in step.trained]
        assert row[c.STALENESS_NEWEST_MEAN] == pytest.approx(sum(newest) / len(newest)), where
        assert (row[c.STALENESS_NEWEST_MIN], row[c.STALENESS_NEWEST_MAX]) == (min(newest), max(newest)), where
        for rollout in step.trained:
            mine = rollouts.loc[rollout.id]
            assert (mine["staleness"], mine["span"]) == (rollout.staleness, rollout.span), (where, rollout.id)
            if case.policy not in ("one-step-off", "async"):
                assert mine["deferrals"] == rollout.deferrals, (where, rollout.id)
            assert mine["finished_s"] == pytest.approx(rollout.finish_time, **EXACT)
            assert mine["scored_s"] == pytest.approx(rollout.score_time, **EXACT)


# ---- found at random, kept ---------------------------------------------------------------------------------

_NOTHING = (0.0, 0.0, 0.0)
_PLAIN = Case(
    "sequential",
    {"chunk_size": 1, "stop_check": "token"},
    batch=6,
    group_size=1,
    steps=1,
    prompts=(1,) * 12,
    responses=(1,) * 12,
    machine=MachineSetup(num_replicas=1),
    decode=(1.0, 0.0, 0.0),
    prefill=_NOTHING,
    score=_NOTHING,
    stages=dict.fromkeys(STAGES, _NOTHING),
    update_weights=0.0,
    parallel_inference=False,
    demands=dict.fromkeys(("decode", "prefill", "score", "train", "sync"), (0.0, 0.0)),
    rewards=(0.0,) * 9,
    terms=CostTerms(),
)


def test_sends_of_a_microsecond_late_in_a_row_are_no_chain() -> None:
    # The tolerance is 1.003 µs there. Eight replicas send 2 to 8 tokens and 1,004, a microsecond each: the sends end
    # in pairs.
    case = replace(
        _PLAIN,
        policy="inter",
        settings={"chunk_size": 1, "overcommit": 0, "stop_check": "token", "score_granularity": "batch"},
        batch=8,
        responses=(1003, 1, 2, 3, 4, 5, 6, 7, 1, 1, 1, 1),
        machine=MachineSetup(num_replicas=8, max_scoring_tokens=1, send_s_per_token=1e-6),
    )
    microseconds = sorted((case.run().rollouts["scored_s"] - 1003.0) * 1e6)
    assert microseconds == pytest.approx([3, 3, 5, 5, 7, 7, 8, 1004], rel=1e-3)
    assert_like_the_reference(case)


def test_a_tool_that_leaves_nothing_to_prefill_changes_who_decodes() -> None:
    # Rollout 0 leaves rollout 1 alone for an iteration and comes back with its KV: two share the demand again.
    case = replace(
        _PLAIN,
        batch=2,
        responses=(5, 6) * 6,
        demands={**_PLAIN.demands, "decode": (0.3, 0.6)},
        terms=CostTerms(rollout_iteration_s=2.0),
        calls=((ToolWait(after=2, seconds=0.5, tokens=0),), ()) * 6,
    )
    assert_like_the_reference(case)
