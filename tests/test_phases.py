"""Seconds of phases, worked out by hand: waking the engine, the first step, what a step does outside its
stages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from oppo_sim import columns as c
from oppo_sim.costs.interface import Phases
from oppo_sim.model.setup import MachineSetup
from oppo_sim.scenario.build import build_setup
from oppo_sim.scenario.load import load_scenario
from tests.fit_logs import COSTS, fit_scenario
from tests.small import Result, linear_costs, run

STAGES = {"stages": {"update_actor": (1.0, 0.0, 0.0)}, "update_weights": 0.5}
"""An iteration takes 1 s, a scoring batch 0.25 s, training 1 s, the weight sync 0.5 s."""
APART = MachineSetup(training_on="separate")


def simulate(policy: str, responses: list[int], phases: Phases = Phases(), **given: Any) -> Result:  # noqa: B008
    costs = replace(linear_costs(score=(0.25, 0.0, 0.0), **STAGES), phases=phases)
    return run(policy, responses, costs=costs, **given)


def columns(result: Result, *stages: str) -> list[tuple[float, ...]]:
    return list(zip(*(result.column(c.timing(stage)) for stage in stages), strict=True))


def test_a_phase_begins_with_waking_and_a_step_ends_with_what_is_outside_its_stages() -> None:
    result = simulate("sequential", [2, 3], Phases(4.0, 10.0, 2.0), steps=3, batch=2)
    assert columns(result, "gen", "reward", "update_weights", "other", "step") == [
        (17.0, 0.25, 0.5, 2.0, 20.75),
        (7.0, 0.25, 0.5, 2.0, 10.75),
        (7.0, 0.25, 0.5, 2.0, 10.75),
    ]
    # Nothing runs on a device meanwhile: decoding takes 3 s of it, the weight sync 0.5 s.
    assert result.column(c.BUSY_ROLLOUT) == pytest.approx([3.5 / 20.75, 3.5 / 10.75, 3.5 / 10.75])
    assert result.column(c.UTILIZATION_INFERENCE)[1] == pytest.approx(3.25 / (2 * 7.25))


def test_a_phase_that_is_over_before_it_begins_wakes_nobody() -> None:
    # Step 0 admits 4 and trains the first 2; both others finish at the same instant and are step 1's batch.
    result = simulate(
        "inter", [2, 2, 2, 2, 5, 5], Phases(gen_phase_s=4.0), steps=2, batch=2, settings={"overcommit": 2}
    )
    assert columns(result, "gen") == [(6.0,), (0.0,)]


def test_scoring_goes_on_while_the_engine_wakes() -> None:
    # Three finish at 21 s and are scored one by one, for 6 s each: two are trained until 34 s, when the engine
    # begins to wake for 20 s.
    costs = replace(
        linear_costs(score=(6.0, 0.0, 0.0), stages={"update_actor": (1.0, 0.0, 0.0)}),
        phases=Phases(gen_phase_s=20.0),
    )
    settings = {"overcommit": 1, "score_granularity": "rollout", "stop_check": "token"}
    machine = MachineSetup(max_scoring_tokens=1)
    result = run("oppo", [1, 1, 1, 2, 2], costs=costs, steps=2, batch=2, settings=settings, machine=machine)
    scored = dict(zip(result.rollouts["rollout_id"], result.rollouts["scored_s"], strict=True))
    assert columns(result, "gen") == [(21.0,), (22.0,)]
    assert (scored[0], scored[1], scored[2]) == (27.0, 33.0, 39.0)


def test_one_step_off_wakes_the_engine_for_every_batch() -> None:
    # Batch 0: 10 + 4 + 2 s; batch 1 from then on: 4 + 3 s, longer than scoring and training of batch 0.
    result = (
        simulate("one-step-off", [2, 3], Phases(4.0, 10.0, 2.0), steps=2, batch=1, machine=APART, warmup=0)
        if False
        else simulate("one-step-off", [2, 3], Phases(4.0, 10.0, 2.0), steps=2, batch=1, machine=APART)
    )
    assert columns(result, "gen", "other", "step") == [
        (16.0, 2.0, 16.0 + 7.0 + 0.5 + 2.0),
        (7.0, 2.0, 6.0 + 0.5 + 2.0),
    ]


def test_the_engine_of_an_asynchronous_run_never_sleeps_and_the_trainer_is_late() -> None:
    # One rollout at a time is in flight beside the one in training: 2 s each. Row 0: 10 s, 2 s, score 0.25 s,
    # training 1 s (the iteration in progress ends at 14), sync 0.5 s.
    given: dict[str, Any] = {"steps": 3, "batch": 1, "machine": APART, "settings": {"max_staleness": 1}}
    plain = simulate("async", [2], **given)
    late = simulate("async", [2], Phases(4.0, 10.0, 30.0), **given)
    first, again = (
        columns(plain, "gen", "reward", "other", "step")[0],
        columns(late, "gen", "reward", "other", "step"),
    )
    assert again[0] == (first[0] + 10.0, first[1], 0.0, first[3] + 10.0)
    # The next batch is there long before the trainer, which is busy for 30 s, takes it.
    for gen, reward, other, step in again[1:]:
        assert gen + reward + other == pytest.approx(30.0)
        assert other > 20.0
        assert step == pytest.approx(30.0 + 1.0 + 0.5)


def test_a_reward_model_that_sleeps_is_woken_once_a_phase_by_its_first_batch() -> None:
    # Two finish after 2 and 3 s and are scored for 0.25 s together, 5 s of waking before it.
    woken = Phases(reward_phase_s=5.0)
    result = simulate("sequential", [2, 3], woken, steps=2, batch=2)
    assert columns(result, "gen", "reward", "step") == [(3.0, 5.25, 3.0 + 5.25 + 1.5)] * 2
    assert result.column(c.UTILIZATION_INFERENCE)[0] == pytest.approx(0.5)  # its device is taken meanwhile
    # Scored when finished, at 2 s: awake at 7 s, the first is scored at 7.25, the second at 7.5 s.
    result = simulate("rollout-overlap", [2, 3], woken, steps=2, batch=2)
    assert columns(result, "gen", "reward") == [(3.0, 4.5)] * 2
    # An engine that never sleeps has a reward model that does not, either.
    result = simulate("async", [2, 3], woken, steps=2, batch=2, machine=APART)
    assert result.column(c.timing("reward")) == pytest.approx(
        simulate("async", [2, 3], steps=2, batch=2, machine=APART).column(c.timing("reward"))
    )


def test_every_scoring_worker_wakes_its_own_reward_model() -> None:
    result = simulate(
        "sequential",
        [1, 1],
        Phases(reward_phase_s=5.0),
        steps=1,
        batch=2,
        machine=MachineSetup(num_workers=2),
    )
    assert columns(result, "gen", "reward") == [(1.0, 5.25)]


def test_a_reward_model_that_is_woken_on_the_devices_of_generation_is_told_of() -> None:
    def said(policy: str, seconds: float, placement: str) -> bool:
        scenario = fit_scenario(
            costs={**COSTS, "terms": {"reward_phase_s": seconds}}, placement={"scoring": placement}
        )
        notes = build_setup(scenario, policy=policy).warnings
        return any("must be awake beside the engine" in note for note in notes)

    assert said("intra", 4.0, "rollout") and said("rollout-overlap", 4.0, "training")
    assert not said("sequential", 4.0, "rollout")
    assert not said("intra", 0.1, "rollout")
    assert not said("intra", 4.0, "separate")


def test_the_room_for_keys_and_values_counts_a_reward_model_that_must_be_awake() -> None:
    def told(*overrides: str) -> tuple[str, int]:
        scenario = load_scenario("h200x8-vllm", ["costs.terms.reward_phase_s=4", *overrides])
        built = build_setup(scenario, policy="intra")
        notes = (note for note in built.warnings if "must be awake beside the engine" in note)
        return next(notes, ""), built.costs.actor_kv_capacity_tokens or 0

    note, beside = told("rollout.kv_capacity_tokens=auto")
    assert note.endswith("takes memory for both (rollout.kv_capacity_tokens auto counts its weights)")
    ample, _ = told("rollout.kv_capacity_tokens=null")
    assert ample.endswith(f": {beside:,} tokens of KV a replica are left (rollout.kv_capacity_tokens auto)")
    none, alone = told("costs.reward_model={kind: verifier}", "placement.scoring=separate")
    assert none == "" and alone > beside
