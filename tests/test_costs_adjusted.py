"""Terms on cost models, computed by hand; against the brute force and compiled they are in
test_against_reference and test_fast_equal."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oppo_sim import columns as c
from oppo_sim.costs.adjusted import adjusted
from oppo_sim.costs.build_profile import costs_from_profile
from oppo_sim.costs.context import CostContext, StagesRun, stages_run
from oppo_sim.costs.interface import BatchShape, Costs, Demand
from oppo_sim.costs.profile import Profile, ProfileRangeWarning
from oppo_sim.costs.roofline_config import RooflineCostConfig
from oppo_sim.costs.terms import NO_TERMS, CostTerms
from oppo_sim.costs.training_config import TrainingConfig
from oppo_sim.errors import OppoError
from oppo_sim.fast.choose import run_columns, why_not
from oppo_sim.scenario.load import load_scenario
from oppo_sim.simulation import simulate
from tests.fast_setups import profile_content, shipped
from tests.small import linear_costs
from tests.test_fast_choose import Own, with_actor

ALL = StagesRun(True, True, True, True)
BATCH = BatchShape((10, 10), (40, 40))  # 100 tokens, 2,500 pairs
LINEAR = {
    "decode": (0.1, 0.01, 0.001),
    "prefill": (0.2, 0.01, 0.0),
    "score": (0.3, 0.02, 0.0),
    "stages": {"old_log_prob": (0.5, 0.0, 0.0), "update_actor": (0.0, 0.01, 0.0)},
    "update_weights": 2.0,
}


def linear(**terms: float) -> Costs:
    return adjusted(linear_costs(**LINEAR), CostTerms(**terms), ALL, BATCH)


def roofline(preset: str, **terms: float) -> Costs:
    config = {
        "kind": "roofline",
        "device": "H100",
        "actor_model": "qwen2.5-7b",
        "reward_model": {"kind": "model", "model": "qwen2.5-1.5b"},
        "rollout": {"host": preset},
    }
    context = CostContext(1, 1, 4, 512, 1024, TrainingConfig(num_gpus=8))
    built = RooflineCostConfig.model_validate(config).build(context)
    return adjusted(built, CostTerms(**terms), stages_run(context.training), context.nominal_batch)


def test_without_terms_nothing_is_wrapped() -> None:
    costs = linear_costs(**LINEAR)
    assert adjusted(costs, NO_TERMS, ALL, BATCH) is costs
    only = adjusted(costs, CostTerms(score=2.0), ALL, BATCH)
    assert only.actor is costs.actor
    assert only.training is costs.training
    assert only.scorer is not costs.scorer
    assert only.provenance == {"kind": "linear", "terms": {"score": 2.0}}


def test_linear_seconds_by_hand() -> None:
    costs = linear(
        decode=2.0,
        host=7.0,  # linear costs do not tell the host apart
        iteration_s=0.5,
        rollout_iteration_s=0.1,
        prefill=3.0,
        score=0.5,
        score_batch_s=1.0,
        training=2.0,
        update_actor=1.5,
        old_log_prob_s=4.0,
        update_weights=0.5,
        update_weights_s=0.25,
    )
    assert costs.actor.decode_time(4, 100) == pytest.approx(2.0 * (0.1 + 0.04 + 0.1) + 0.5 + 0.4)
    assert costs.actor.prefill_time(10, 50.0) == pytest.approx(3.0 * 0.3)
    assert costs.scorer.prefill_time(10, 50.0) == pytest.approx(0.5 * 0.5 + 1.0)
    assert costs.training.stage_times(BATCH) == pytest.approx(
        (2.0 * 0.5 + 4.0, 0.0, 0.0, 0.0, 0.0, 2.0 * 1.5 * 1.0, 2.0 * 0.5 * 2.0 + 0.25)
    )


def test_the_device_has_nothing_to_do_in_seconds_of_the_host() -> None:
    costs = linear(iteration_s=0.36, score_batch_s=1.0, old_log_prob_s=1.5, update_weights_s=2.0)
    # 0.24 of 0.6 seconds; 0.5 of 1.5; 1.5 of 3.0; 2 of 4.
    assert costs.actor.decode_demand(4, 100) == pytest.approx(Demand(0.4, 0.0))
    assert costs.scorer.prefill_demand(10, 50.0) == pytest.approx(Demand(0.0, 1 / 3))
    assert costs.training.demand() == pytest.approx(Demand(0.0, 0.5))
    assert costs.training.sync_demand() == pytest.approx(Demand(0.5, 0.0))


def test_a_slower_device_takes_as_much_of_itself() -> None:
    costs = linear(decode=3.0, score=3.0, training=3.0)
    assert costs.actor.decode_demand(4, 100) == Demand(1.0, 0.0)
    assert costs.scorer.prefill_demand(10, 50.0) == Demand(0.0, 1.0)
    assert costs.training.demand() == Demand(0.0, 1.0)


@given(
    st.sampled_from(["vllm", "generate"]),
    st.sampled_from([1, 8, 60, 300]),
    st.integers(1, 500_000),
    st.floats(0.3, 3.0),
    st.floats(0.3, 3.0),
)
def test_device_and_host_of_a_roofline_have_factors_of_their_own(
    host: str, n: int, kv: int, decode: float, slower_host: float
) -> None:
    plain = roofline(host).actor
    changed = roofline(host, decode=decode, host=slower_host, iteration_s=0.001).actor
    overheads = roofline(host).actor.host  # type: ignore[attr-defined]
    device = plain.with_host(0.0).decode_time(n, kv)
    launches = 28 * overheads.launch_per_layer_s
    beside = overheads.per_iteration_s + overheads.per_rollout_s * n
    seconds = max(decode * device, slower_host * launches) + slower_host * beside + 0.001
    assert changed.decode_time(n, kv) == pytest.approx(seconds, rel=1e-9)
    before, after = plain.decode_demand(n, kv), changed.decode_demand(n, kv)
    assert after.memory == pytest.approx(decode * before.memory * plain.decode_time(n, kv) / seconds)
    assert changed.decode_work(n, kv) == plain.decode_work(n, kv)
    assert changed.peak == plain.peak
    assert changed.prefill_time(100, 5000.0) == plain.prefill_time(100, 5000.0)


@given(st.integers(1, 20), st.integers(1, 200), st.floats(0.3, 3.0), st.floats(0.3, 3.0))
def test_tables_and_their_host_have_factors_of_their_own(n: int, kv: int, decode: float, host: float) -> None:
    context = CostContext(1, 1, 2, 12, 60, TrainingConfig())
    built = costs_from_profile(Profile.model_validate(profile_content()), context)
    changed = adjusted(built, CostTerms(decode=decode, host=host), stages_run(context.training), BATCH)
    beside = 0.001 + 0.0001 * n
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ProfileRangeWarning)
        before = built.actor.decode_time(n, kv)
        seconds = decode * (before - beside) + host * beside
        assert changed.actor.decode_time(n, kv) == pytest.approx(seconds, rel=1e-9)
    wanted = min(1.0, decode * before / seconds)
    assert changed.actor.decode_demand(n, kv) == pytest.approx(Demand(wanted, 0.0))


def test_a_stage_that_does_not_run_gets_no_seconds() -> None:
    config = TrainingConfig(old_log_prob="behaviour", ref=False, critic="none")
    terms = CostTerms(old_log_prob_s=1.0, ref_s=1.0, values_s=1.0, update_critic_s=1.0, adv_s=1.0)
    costs = adjusted(linear_costs(), terms, stages_run(config), BATCH)
    assert costs.training.stage_times(BATCH) == (0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)


def test_terms_of_a_scenario_change_its_seconds_and_stand_in_the_manifest() -> None:
    before = simulate(load_scenario("h200-single", ["steps=2", "warmup_steps=0"]), policy="sequential")
    given = ["steps=2", "warmup_steps=0", "costs.terms={update_actor: 2.0, update_actor_s: 5}"]
    after = simulate(load_scenario("h200-single", given), policy="sequential")
    stage = c.timing("update_actor")
    assert list(after.steps[stage]) == pytest.approx(list(2.0 * before.steps[stage] + 5.0))
    assert list(after.steps[c.timing("gen")]) == list(before.steps[c.timing("gen")])
    manifest: Any = after.manifest
    terms, believed = manifest["costs"]["terms"], manifest["costs"]["terms_believed"]
    assert believed == ["first_step_s", "gen_phase_s", "other_s"]
    assert {name: terms[name] for name in terms if name not in believed} == {
        "update_actor": 2.0,
        "update_actor_s": 5.0,
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("costs.terms={decod: 1.1}", "costs.terms.decod"),
        ("costs.terms={decode: 0}", "costs.terms.decode"),
        ("costs.terms={other_s: -1}", "costs.terms.other_s"),
    ],
)
def test_bad_terms_are_refused_by_name(given: str, said: str) -> None:
    with pytest.raises(OppoError, match=said):
        load_scenario("h200-single", [given])


def test_terms_of_a_scenario_are_written_as_they_were_given(tmp_path: Path) -> None:
    scenario = load_scenario("h200-single", ["costs.terms={decode: 1.25}", "costs.draws=none"])
    (tmp_path / "again.yaml").write_text(scenario.to_yaml())
    assert load_scenario(tmp_path / "again.yaml") == scenario
    assert scenario.to_plain()["costs"]["terms"] == {"decode": 1.25}
    assert next(iter(scenario.to_plain()["costs"])) == "kind"


def test_ctrl_c_while_a_scenario_is_written_out_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = load_scenario("h200-single")

    def interrupt(_terms: CostTerms) -> NoReturn:
        raise KeyboardInterrupt

    # Signals are answered in Python code only, such as this.
    monkeypatch.setattr(CostTerms, "__iter__", interrupt)
    with pytest.raises(KeyboardInterrupt):
        scenario.to_plain()


def test_somebodys_own_cost_model_is_adjusted_on_the_model() -> None:
    setup = with_actor(shipped("paper-gsm8k-7b", "oppo", 2, "warmup_steps=0"), Own())
    terms = CostTerms(decode=2.0, host=2.0, iteration_s=0.01)
    changed = replace(setup, costs=adjusted(setup.costs, terms, ALL, BATCH))
    assert "Own has no decode_lines()" in (why_not(changed) or "")
    assert changed.costs.actor.decode_time(3, 10.0) == pytest.approx(0.03)
    assert changed.costs.actor.decode_demand(3, 10.0) == pytest.approx(Demand(2 / 3, 0.0))
    before, after = (run_columns(each).columns[c.timing("gen")] for each in (setup, changed))
    assert min(after / before) > 2.0


def test_an_extrapolation_to_no_time_is_refused_whatever_is_added() -> None:
    content = profile_content()
    content["decode"]["rows"] = [
        {"n_running": n, "kv_tokens": [50_000, 100_000], "seconds": [0.001, 0.02]} for n in (1, 2)
    ]
    content["host"] = {}
    context = CostContext(1, 1, 2, 12, 60, TrainingConfig())
    built = costs_from_profile(Profile.model_validate(content), context)
    costs = adjusted(built, CostTerms(iteration_s=5.0), stages_run(context.training), BATCH)
    setup = replace(shipped("paper-gsm8k-7b", "sequential", 1, "warmup_steps=0"), costs=costs)
    for engine in ("simpy", "compiled"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ProfileRangeWarning)
            with pytest.raises(OppoError, match="extrapolates to no time at all"):
                run_columns(setup, engine=engine)  # type: ignore[arg-type]
