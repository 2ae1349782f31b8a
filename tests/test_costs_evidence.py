"""How well seconds are known, what is believed of them before anything is measured, and draws of that."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np
import pytest

import oppo_sim
from oppo_sim import columns as c
from oppo_sim.cli.main import run
from oppo_sim.costs.context import StagesRun
from oppo_sim.costs.evidence import PLACES, all_of, evidence_text, of_stages, under_terms
from oppo_sim.costs.hosts import HOSTS
from oppo_sim.costs.priors import TABLE, priors_of
from oppo_sim.costs.terms import FACTORS, CostTerms
from oppo_sim.costs.uncertainty import machine_draws
from oppo_sim.errors import OppoError
from oppo_sim.scenario.build import build_setup, cost_context
from oppo_sim.scenario.load import load_scenario
from oppo_sim.scenario.schema import Scenario
from oppo_sim.simulation import simulate
from tests.cli_runs import TINY, write_scenario


def draws(scenario: Scenario, count: int, seed: int = 0) -> tuple[CostTerms, ...]:
    return machine_draws(scenario.costs, cost_context(scenario), count, seed, scenario.base_dir)


def linear(folder: Path, **costs: Any) -> Scenario:
    return load_scenario(write_scenario(folder, costs={**TINY["costs"], **costs}))


def test_evidence_in_words() -> None:
    assert (
        evidence_text(all_of("given"))
        == "gen, prefill, host, reward, training, phases: given by the scenario"
    )
    mixed = all_of("assumed", gen="composed", prefill="composed", ref="fitted")
    assert evidence_text(mixed) == (
        "gen, prefill: composed of measured kernels; ref: fitted; host, reward, old_log_prob,"
        " values, adv, update_critic, update_actor, update_weights, phases: assumed"
    )
    assert evidence_text({}) == ""


def test_what_a_fitted_term_changes_is_fitted() -> None:
    found = under_terms(
        all_of("assumed"), ["decode", "other_s"], ["decode", "rollout_iteration_s", "values_s"]
    )
    assert {place for place in PLACES if found[place] == "fitted"} == {"gen", "host", "values"}
    assert found["phases"] == "given"
    assert "values" not in of_stages(found, StagesRun(True, True, False, False))


def test_a_scenario_says_its_evidence_and_so_does_every_manifest(tmp_path: Path) -> None:
    shipped = build_setup(load_scenario("h200-single")).costs.evidence
    assert {place for place in shipped if shipped[place] == "composed"} == {"gen", "prefill", "reward"}
    assert {shipped[place] for place in ("host", "update_actor", "phases")} == {"assumed"}
    plain = linear(tmp_path)
    assert set(build_setup(plain).costs.evidence.values()) == {"given"}
    (tmp_path / "draws.csv").write_text("decode,update_actor_s\n1.1,3\n1.2,4\n")
    fitted = linear(tmp_path, draws="draws.csv")
    manifest: Any = simulate(fitted, policy="sequential").manifest
    known = manifest["costs"]["evidence"]
    assert (known["gen"], known["update_actor"], known["prefill"]) == ("fitted", "fitted", "given")


def test_the_terminal_says_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["simulate", "h200-single", "--steps", "12", "-o", str(tmp_path / "run"), "--no-figures"]
    assert run(arguments) == 0
    said = capsys.readouterr().out
    assert (
        "costs: composed (gen, prefill, reward: composed of measured kernels; host, training, phases" in said
    )


def test_a_missing_file_of_draws_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(OppoError, match=r"draws\.csv does not exist"):
        build_setup(linear(tmp_path, draws="draws.csv"))


def test_every_row_of_the_priors_has_a_source_and_a_width() -> None:
    for row in TABLE:
        assert row.source
        assert 0 < row.sigma <= 3
        assert row.median > 0
        # The cost model's own seconds are the middle, but of a sync that it takes for another kind.
        assert row.median == 1.0 or row.term not in FACTORS or row.where == "in place"
        assert row.term in CostTerms.model_fields
    assert len({(row.term, row.where) for row in TABLE}) == len(TABLE)


def test_what_is_better_known_has_a_narrower_prior() -> None:
    def sigma(kind: str) -> float:
        found = priors_of({"gen": kind})  # type: ignore[dict-item]
        assert [prior.term for prior in found] == ["decode"]
        return found[0].sigma

    assert sigma("measured") < sigma("composed") < sigma("assumed")
    assert priors_of(all_of("given")) == ()


def test_an_engine_that_never_sleeps_is_not_woken() -> None:
    def terms(*overrides: str) -> set[str]:
        scenario = load_scenario("h200x8-vllm", overrides)
        return {prior.term for prior in scenario.costs.priors(cost_context(scenario))}

    assert "gen_phase_s" in terms("placement.training=rollout")
    assert "gen_phase_s" not in terms("placement.training=separate")
    assert "gen_phase_s" not in terms("placement.training=rollout", "costs.rollout.host=generate")
    assert {"first_step_s", "other_s"} <= terms()
    assert "update_weights" in terms("placement.training=separate")
    assert "update_weights" not in terms("training.weight_sync={kind: shared}")
    assert "values" not in terms("training.critic=none")


def test_a_mixture_of_experts_is_less_well_known() -> None:
    def sigmas(*overrides: str) -> dict[str, float]:
        scenario = load_scenario("h200x8-vllm", ("costs.kind=roofline", *overrides))
        return {prior.term: prior.sigma for prior in scenario.costs.priors(cost_context(scenario))}

    dense, experts = sigmas(), sigmas("costs.actor_model=qwen3-30b-a3b")
    wider = {name for name, sigma in experts.items() if sigma > dense[name]}
    assert {"decode", "update_actor"} <= wider
    assert wider <= {"decode", "old_log_prob", "ref", "adv", "values", "update_actor", "update_critic"}
    profiled = load_scenario("h200x8-vllm", ("costs.actor_model=nowhere.json", "costs.kind=roofline"))
    assert not cost_context(profiled).trains_experts, "refused where costs are built"


def test_a_draw_depends_on_its_number_and_the_seed_alone() -> None:
    scenario = load_scenario("h200-single")
    many = draws(scenario, 20)
    assert draws(scenario, 5) == many[:5]
    assert len(set(many)) == 20
    assert draws(scenario, 5, seed=1) != many[:5]


def test_draws_have_the_width_of_their_prior() -> None:
    scenario = load_scenario("h200-single")
    many = draws(scenario, 2000)
    for prior in scenario.costs.priors(cost_context(scenario)):
        logs = np.log([getattr(draw, prior.term) for draw in many])
        assert fmean(logs) == pytest.approx(np.log(prior.median), abs=4 * prior.sigma / 2000**0.5)
        assert pstdev(logs) == pytest.approx(prior.sigma, rel=0.08)
    apart = np.corrcoef([[draw.decode for draw in many], [draw.host for draw in many]])[0, 1]
    assert abs(apart) < 0.08


def test_draws_lie_around_what_the_scenario_gives() -> None:
    given = load_scenario("h200-single", ["costs.terms={decode: 2.0, other_s: 10, gen_phase_s: 0}"])
    plain = load_scenario("h200-single")
    for mine, theirs in zip(draws(given, 5), draws(plain, 5), strict=True):
        assert mine.decode == pytest.approx(2.0 * theirs.decode)
        assert mine.other_s == pytest.approx(10.0 * theirs.other_s / 0.2)
        assert mine.gen_phase_s == 0.0


def test_what_a_scenario_does_not_state_is_the_median_of_its_draws() -> None:
    def point(*overrides: str) -> CostTerms:
        scenario = load_scenario("h200-single", overrides)
        return scenario.costs.point(cost_context(scenario))

    plain, median = load_scenario("h200-single"), point()
    many = draws(plain, 2000)
    for prior in plain.costs.priors(cost_context(plain)):
        below = fmean(getattr(draw, prior.term) < getattr(median, prior.term) for draw in many)
        assert below == pytest.approx(0.5, abs=0.05)
    phases = (median.gen_phase_s, median.first_step_s, median.other_s, median.reward_phase_s)
    assert build_setup(plain).costs.phases == phases
    assert min(median.gen_phase_s, median.first_step_s, median.other_s) > 0
    stated = point("costs.terms={gen_phase_s: 0, other_s: 3}")
    assert (stated.gen_phase_s, stated.other_s) == (0.0, 3.0)
    assert stated.first_step_s == median.first_step_s
    assert point("costs.draws=none") == CostTerms()


def test_a_term_that_is_stated_as_nothing_stays_so_in_files_and_sweeps(tmp_path: Path) -> None:
    scenario = load_scenario("h200-single", ["costs.terms={gen_phase_s: 0}"])
    again = Scenario.model_validate(scenario.to_plain())
    assert again.costs.point(cost_context(again)).gen_phase_s == 0.0
    swept = oppo_sim.sweep(
        "h200-single", grid={"costs.terms.gen_phase_s": [0.0, 2.0]}, seeds=1, steps=11, draws=0
    ).points[c.GEN_S]
    assert swept[1] == pytest.approx(swept[0] + 2.0)


def test_phases_are_given_when_none_of_their_seconds_is_believed() -> None:
    def phases(*overrides: str) -> str:
        return build_setup(load_scenario("h200-single", overrides)).costs.evidence["phases"]

    assert phases() == phases("costs.terms={other_s: 1}") == "assumed"
    assert phases("costs.terms={gen_phase_s: 1, first_step_s: 0, other_s: 1}") == "given"


def test_every_host_preset_has_priors() -> None:
    rows = {(row.term, row.where) for row in TABLE}
    hosts = {*HOSTS, "own"}
    assert {("host", host) for host in hosts} <= rows
    # No run of a transformers loop was looked at.
    assert {("first_step_s", host) for host in hosts - {"generate"}} <= rows


def test_exact_and_given_costs_have_no_draws(tmp_path: Path) -> None:
    assert draws(load_scenario("h200-single", ["costs.draws=none"]), 5) == ()
    assert draws(linear(tmp_path), 5) == ()
