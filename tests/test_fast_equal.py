"""The compiled path gives what the SimPy model gives, to the last bit: every column of every step, and the
moments made of them."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oppo_sim import columns as c
from oppo_sim.costs.adjusted import AdjustedEngine
from oppo_sim.costs.profile_engine import ProfileEngine
from oppo_sim.costs.terms import CostTerms
from oppo_sim.errors import OppoError
from oppo_sim.fast.choose import run_columns, run_into, run_summary, why_not
from oppo_sim.fast.compiled_run import StepColumns
from oppo_sim.model.counterfactual import Counterfactual
from oppo_sim.model.setup import MachineSetup
from oppo_sim.policies.interface import Policy, StepReport
from oppo_sim.results.sinks import FrameSink
from oppo_sim.scenario.build import Setup
from tests.cases import ASYNCHRONOUS, POLICIES, STAGES, Case, cases
from tests.fast_setups import Chosen, chosen, setup_of, shipped
from tests.own_policies import OWN, own_policy

EXAMPLES = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
SHIPPED = (
    "a100x16-10b", "h200-single", "h200x8-vllm", "paper-gsm8k-7b", "paper-opencoder-3b", "paper-stackexchange-3b", "paper-stackexchange-7b",
)  # fmt: skip
ALONE = (
    "placement.training=separate",
    "training.weight_sync.kind=online_refit",
    "rollout.batching=continuous",
)
"""Asynchronous policies need devices of their own for training, and continuous batching."""
COUNTERFACTUALS = (
    Counterfactual(),
    Counterfactual(free_recompute=True),
    Counterfactual(free_padding=True),
    Counterfactual(free_cuts=True),
)


def outcome(setup: Setup, engine: Any, **how: Any) -> StepColumns | str:
    """The step table, or the sentence that says why there is none. Warnings are left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return run_columns(setup, engine=engine, **how)
        except OppoError as error:
            return str(error)


def assert_equal(fast: StepColumns | str, slow: StepColumns | str) -> None:
    if isinstance(fast, str) or isinstance(slow, str):
        assert fast == slow
        return
    pd.testing.assert_frame_equal(fast.frame(), slow.frame(), check_exact=True)


def counts_of(setup: Setup) -> dict[str, int] | None:
    """Answers outside the tables of a profile."""
    actor = setup.costs.actor
    engine = actor.engine if isinstance(actor, AdjustedEngine) else actor
    return engine.ranges.counts if isinstance(engine, ProfileEngine) else None


@EXAMPLES
@given(
    cases((*POLICIES, *OWN)),
    chosen(),
    st.sampled_from(COUNTERFACTUALS),
    st.sampled_from([None, None, "batch", "rollout", "chunk"]),
)
def test_every_column_of_every_step(
    case: Case, how: Chosen, counterfactual: Counterfactual, granularity: str | None
) -> None:
    if case.sample_rewards and case.policy in ASYNCHRONOUS and granularity == "batch":
        granularity = "rollout"  # a batch may never be whole
    given: dict[str, Any] = {"counterfactual": counterfactual, "score_granularity": granularity}
    fast, slow = setup_of(case, how), setup_of(case, how)
    assert why_not(fast, score_granularity=granularity) is None
    found = outcome(fast, "auto", **given)
    assert_equal(found, outcome(slow, "simpy", **given))
    if not isinstance(found, str):
        assert found.engine == "compiled"
    assert counts_of(fast) == counts_of(slow)


def test_work_of_replicas_that_end_at_one_time_is_summed_in_one_order() -> None:
    none = (0.0, 0.0, 0.0)
    case = Case(
        policy="arranging",
        settings={},
        batch=6,
        group_size=3,
        steps=4,
        prompts=(1,) * 10,
        responses=(1, 1, 27, 33, 53, 1, 1, 1, 42, 1),
        machine=MachineSetup(
            3,
            1,
            batching="static",
            kv_block_tokens=1,
            clear_kv_cache_on_weight_sync=False,
            groups_together=True,
            max_scoring_tokens=1,
            scoring_on="rollout",
            training_on="separate",
            sharing="time_slice",
        ),
        decode=(0.25, 0.0, 0.0),
        prefill=none,
        score=none,
        stages=dict.fromkeys(STAGES, none),
        update_weights=0.0,
        parallel_inference=False,
        demands=dict.fromkeys(("decode", "prefill", "score", "train", "sync"), (0.0, 0.0)),
        rewards=(0.0,) * 9,
        terms=CostTerms(decode=0.5, rollout_iteration_s=0.001),
    )
    setup = setup_of(case, Chosen("ranks over nodes", "resample", "series", 1, 252))
    assert_equal(outcome(setup, "compiled"), outcome(setup, "simpy"))


@EXAMPLES
@given(cases((*POLICIES, *OWN)), chosen(), st.data())
def test_rows_of_rollouts_and_timelines(case: Case, how: Chosen, data: st.DataObject) -> None:
    steps = case.steps + how.warmup
    first = data.draw(st.integers(0, steps - 1))
    shown = first, data.draw(st.integers(first, steps - 1))
    made = []
    for engine in ("compiled", "simpy"):
        sink = FrameSink()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                spans, markers = run_into(setup_of(case, how), sink, engine=engine, timeline_steps=shown)  # type: ignore[arg-type]
        except OppoError as error:
            made.append((sink.steps(), sink.rollouts(), str(error)))
            continue
        steps, rollouts = sink.steps(), sink.rollouts()
        # What ends in the same instant as the run may have been seen or not.
        end = (steps[c.START_S] + steps[c.TIMING_STEP]).iloc[-1] * (1.0 - 1e-9)
        seen = sorted(repr(span) for span in spans if span.end_s < end)
        made.append((steps, rollouts, seen, sorted(repr(m) for m in markers if m.at_s < end)))
    fast, slow = made
    for mine, theirs in zip(fast[:2], slow[:2], strict=True):
        pd.testing.assert_frame_equal(mine, theirs, check_exact=True)
    assert fast[2:] == slow[2:]


@pytest.mark.parametrize("engine", ["compiled", "simpy"])
def test_an_asynchronous_trainer_sees_all_that_is_scored_at_its_instant(engine: Any) -> None:
    none = (0.0, 0.0, 0.0)
    machine = MachineSetup(max_scoring_tokens=1, clear_kv_cache_on_weight_sync=False)
    stages = dict.fromkeys(("old_log_prob", "ref", "values", "adv", "update_critic", "update_actor"), none)
    demands = dict.fromkeys(("decode", "prefill", "score", "train", "sync"), (0.0, 0.0))
    lengths = (1, 1, 1)
    case = Case(
        "free",
        {},
        1,
        1,
        1,
        lengths,
        lengths,
        machine,
        (0.25, 0.0, 0.0),
        none,
        none,
        stages,
        0.0,
        False,
        demands,
        (0.0,) * 9,
    )
    sink = FrameSink()
    run_into(setup_of(case, Chosen("linear", "in_order", "series", 0, 0)), sink, engine=engine)
    # Two rollouts are scored one after the other in no time: the policy picks the newest of both.
    assert sink.rollouts()[c.ROLLOUT_ID].tolist() == [1]


@EXAMPLES
@given(cases((*POLICIES, *OWN)), chosen())
def test_the_moments_are_those_of_the_model(case: Case, how: Chosen) -> None:
    setup = setup_of(case, how)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fast, _ = run_summary(setup, engine="auto")
            slow, _ = run_summary(setup, engine="simpy")
    except OppoError:
        return  # the sentence is compared above
    assert fast.steps == slow.steps
    assert set(fast.columns) == set(slow.columns)
    for name, moments in slow.columns.items():
        mine = fast.columns[name]
        assert mine.count == moments.count, name
        if not moments.count:
            continue
        for what in ("mean", "total", "minimum", "maximum", "std"):
            assert getattr(mine, what) == getattr(moments, what), (name, what)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_scenarios(name: str, policy: str) -> None:
    overrides = ALONE if policy in ("one-step-off", "async") else ()
    setup = shipped(name, policy, 12, *overrides)
    assert why_not(setup) is None
    assert_equal(run_columns(setup, engine="compiled"), run_columns(setup, engine="simpy"))


@pytest.mark.parametrize(
    ("name", "policy", "steps", "overrides"),
    [
        ("h100x16-2nodes", "oppo", 11, ()),
        # Pieces wait for their link: 8 bytes a token at 2 kB/s.
        ("h100x16-2nodes", "oppo", 11, ("cluster.node_link_bytes_per_s=2e3", "warmup_steps=0")),
        ("h200x8-async", "async", 11, ()),
        ("h200x8-moe", "inter", 11, ()),
        ("agentic-a800x4", "inter", 2, ("warmup_steps=0",)),
    ],
)
def test_shipped_scenarios_of_more_machines(
    name: str, policy: str, steps: int, overrides: tuple[str, ...]
) -> None:
    setup = shipped(name, policy, steps, *overrides)
    assert why_not(setup) is None
    assert_equal(run_columns(setup, engine="compiled"), run_columns(setup, engine="simpy"))


@pytest.mark.parametrize("model", ["deepseek-v2-lite", "qwen3.5-35b-a3b"])
def test_latent_and_linear_attention(model: str) -> None:
    """Decodes and prefills of other operator groups than the shipped models have."""
    changes = (
        f"costs.actor_model={model}",
        "costs.reward_model.model=deepseek-v2-lite",
        "costs.kind=roofline",
    )
    less = (
        "warmup_steps=1",
        "training.lora_rank=8",
        "training.critic=none",
        "training.gradient_checkpointing=true",
    )
    setup = shipped("h200x8-vllm", "intra", 4, *changes, *less)
    assert why_not(setup) is None
    assert_equal(run_columns(setup, engine="compiled"), run_columns(setup, engine="simpy"))


@pytest.mark.parametrize("ranks", [1, 2])
def test_engines_with_ranks_of_experts_and_attention(ranks: int) -> None:
    changes = (
        "costs.actor_model=deepseek-v2-lite",
        "costs.reward_model.model=deepseek-v2-lite",
        "costs.kind=roofline",
        "costs.rollout.tensor_parallel=4",
        "rollout.num_replicas=2",
        "costs.rollout.expert_parallel=4",
        f"costs.rollout.attention_data_parallel={ranks}",
    )
    less = (
        "warmup_steps=1",
        "training.lora_rank=8",
        "training.critic=none",
        "training.gradient_checkpointing=true",
    )
    setup = shipped("h200x8-vllm", "intra", 4, *changes, *less)
    assert why_not(setup) is None
    assert_equal(run_columns(setup, engine="compiled"), run_columns(setup, engine="simpy"))


@pytest.mark.parametrize("name", OWN)
def test_a_policy_is_told_the_same_of_every_step(name: str) -> None:
    setup = shipped("h200-single", "sequential", 6, "warmup_steps=0", *ALONE)
    told: list[StepReport] = []

    def factory() -> Policy:
        policy = own_policy(name, setup.batch)
        learn = policy.observe

        def observe(report: StepReport) -> None:
            told.append(report)
            learn(report)

        policy.observe = observe  # type: ignore[method-assign]
        return policy

    made = []
    for engine in ("compiled", "simpy"):
        told.clear()
        run_columns(replace(setup, policy_factory=factory), engine=engine)  # type: ignore[arg-type]
        made.append(list(told))
    fast, slow = made
    assert [report.step for report in slow] == list(range(6))
    assert fast == slow


def test_a_long_run_stays_equal_where_the_tolerance_of_an_instant_is_large() -> None:
    setup = shipped(
        "paper-stackexchange-7b",
        "oppo",
        400,
        "rollout.batching=continuous",
        "rollout.kv_capacity_tokens=20000",
    )
    fast, slow = run_columns(setup, engine="compiled"), run_columns(setup, engine="simpy")
    assert slow.columns[c.START_S][-1] > 1e4
    assert slow.columns[c.KV_PREEMPTIONS].sum() > 0
    assert_equal(fast, slow)


def test_blocks_of_a_run_join_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = shipped("paper-stackexchange-7b", "oppo", 50)
    seen: list[int] = []
    whole = run_columns(setup)
    monkeypatch.setattr("oppo_sim.fast.compiled_run.BLOCK", 7)
    parts = run_columns(setup, progress=seen.append)
    assert whole.frame().equals(parts.frame())
    assert seen == [*range(7, 50, 7), 50]
    sink, engine = run_summary(setup)
    assert engine == "compiled"
    assert sink.steps == 50 - setup.warmup_steps
