"""Offload whose rate is not what the scenario says: an unknown of its own, told by the log."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oppo_sim.columns import TIMING_STEP
from oppo_sim.costs.section import EXACT
from oppo_sim.costs.terms import NO_TERMS, CostTerms, read_draws
from oppo_sim.fit.call import fit
from oppo_sim.fit.terms.offload import OFFLOAD, at_full_rate
from oppo_sim.scenario.build import build_parts
from oppo_sim.scenario.load import load_scenario
from oppo_sim.simulation import simulate
from tests.fit_logs import fit_scenario, short_chains, verl_log

TRUTH = CostTerms(gen_phase_s=3.0, old_log_prob_s=0.2, update_actor_s=0.3, other_s=0.2)


def offloading(rate: float | None, **changes: Any) -> Any:
    """A 7B model on four devices whose weights and optimizer state leave; 20 times as many tokens at first."""
    training = {} if rate is None else {"offload_bytes_per_s": rate}
    return fit_scenario(
        training={
            "critic": "none",
            "ref": False,
            "num_gpus": 4,
            "param_offload": True,
            "optimizer_offload": True,
            "gradient_checkpointing": True,
            "micro_batch_tokens": 8192,
        },
        costs={
            "kind": "roofline",
            "device": "A100-80",
            "actor_model": "qwen2.5-7b",
            "reward_model": {"kind": "verifier"},
            "training": training,
        },
        **changes,
    )


def falling(steps: int = 40) -> dict[str, Any]:
    """Lengths that fall along the run, so that its last steps are mostly offload."""
    return {
        "steps": steps,
        "trace": {
            "synth": {
                "distribution": "lognormal",
                "mean": 500.0,
                "p99": 1400.0,
                "rows": 64 * steps,
                "steps": steps,
                "drift": {"kind": "linear", "last_factor": 0.05},
            },
            "prompt_length": 100,
            "sampling": "by_step",
        },
    }


@pytest.mark.parametrize("rate", [2.0e9, 9.0e9])
def test_a_run_that_offloads_at_another_rate_is_predicted_where_offload_is_most_of_it(
    rate: float, tmp_path: Path
) -> None:
    true, believed = offloading(rate, **falling()), offloading(None, **falling())
    log = verl_log(tmp_path / "a.log", true, TRUTH, steps=40, noise=0.004)
    result = fit(log, believed, fit_steps=15, draws=200, folder=tmp_path / "fit")
    (held,) = result.held_out
    update = next(each for each in held.judgements if each.column == "timing_s/update_actor").model
    assert update.p90 < 0.06
    assert update.coverage is not None
    assert update.coverage > 0.9
    # 4 GB/s are assumed; what the full rate of the host link leaves is in both.
    link = 32e9 * 0.7
    wanted = (1 / rate - 1 / link) / (1 / 4e9 - 1 / link)
    assert float(np.median(result.posterior.terms[OFFLOAD])) == pytest.approx(wanted, rel=0.2)
    # The written scenario takes these seconds too, as seconds of the stages.
    written = load_scenario(tmp_path / "fit" / "scenario.yaml")
    point = written.costs.model_copy(update={"draws": EXACT})
    again = simulate(written.model_copy(update={"costs": point}), policy="sequential").steps
    for stage in ("old_log_prob", "update_actor"):
        truth = true.costs.model_copy(update={"terms": TRUTH})
        before = simulate(true.model_copy(update={"costs": truth}), policy="sequential").steps
        ratio = again[f"timing_s/{stage}"] / before[f"timing_s/{stage}"]
        assert ratio.to_numpy() == pytest.approx(1.0, abs=0.06)
    assert TIMING_STEP in again


def test_nothing_is_changed_where_nothing_is_offloaded() -> None:
    plain = offloading(None)
    kept = plain.model_copy(
        update={
            "training": plain.training.model_copy(update={"param_offload": False, "optimizer_offload": False})
        }
    )
    assert at_full_rate(kept) == (kept, {})
    linear = fit_scenario()
    assert at_full_rate(linear) == (linear, {})


def test_seconds_of_offload_are_those_of_the_bytes_over_the_rate() -> None:
    scenario = offloading(4e9)
    changed, seconds = at_full_rate(scenario)
    assert changed.costs.training.offload_bytes_per_s == 32e9
    assert set(seconds) == {"old_log_prob", "update_actor"}
    parameters = build_parts(scenario).costs.training.actor.parameters / 4
    apart = 2 * (1 / 4e9 - 1 / (0.7 * 32e9))
    assert seconds["old_log_prob"] == pytest.approx(4 * parameters * apart, rel=1e-6)
    assert seconds["update_actor"] > 2 * seconds["old_log_prob"]
    told = scenario.model_copy(
        update={"costs": scenario.costs.model_copy(update={"terms": CostTerms(update_actor=2.0)})}
    )
    again, same = at_full_rate(told)
    assert same == seconds
    assert again.costs.terms != NO_TERMS


@short_chains()
def test_a_run_that_trains_an_unknown_part_of_its_batch_is_written_with_its_offload(tmp_path: Path) -> None:
    """Tokens of the step are of more rollouts than the lengths, and nothing says how many were trained."""
    scenario = offloading(None)
    plain = verl_log(tmp_path / "plain.log", scenario, TRUTH, steps=8)
    lines = [
        re.sub(
            r"perf/total_num_tokens:np\.float64\(([\d.]+)\)",
            lambda found: f"perf/total_num_tokens:{1.1 * float(found[1])}",
            line,
        )
        for line in plain.read_text(encoding="utf-8").splitlines()
    ]
    log = tmp_path / "part.log"
    log.write_text("\n".join(lines) + "\n", encoding="utf-8")
    result = fit(log, scenario, draws=50, fit_steps=8)
    assert any("how many were trained is not logged" in note for note in result.notes)
    (part,) = result.parts
    assert part.features.trained_unknown
    assert OFFLOAD in result.posterior.terms
    assert result.point.update_actor_s > 0.3 * part.features.offload["update_actor"]


@short_chains()
def test_each_of_several_scenarios_is_written_with_its_own_offload(tmp_path: Path) -> None:
    """One cluster, a run that offloads and one that does not."""
    first = offloading(None)
    kept = {"param_offload": False, "optimizer_offload": False}
    second = first.model_copy(update={"training": first.training.model_copy(update=kept)})
    logs = [verl_log(tmp_path / f"{n}.log", each, TRUTH, steps=8) for n, each in enumerate((first, second))]
    result = fit(logs, [first, second], fit_steps=8, draws=60, folder=tmp_path / "fit")
    seconds = result.parts[0].features.offload["update_actor"]
    found, other = (load_scenario(tmp_path / "fit" / f"scenario{n}.yaml") for n in ("", "-2"))
    assert (found.costs.draws, other.costs.draws) == ("draws.csv", "draws-2.csv")
    offload = result.posterior.terms[OFFLOAD]
    one, two = (read_draws(tmp_path / "fit" / each.costs.draws) for each in (found, other))
    apart = [a.update_actor_s - b.update_actor_s for a, b in zip(one, two, strict=True)]
    between = [a.decode / b.decode for a, b in zip(one, two, strict=True)]
    assert between == pytest.approx(np.ones(60))  # row by row one cluster
    assert np.median(apart) == pytest.approx(seconds * np.median(offload), rel=0.2)
    assert other.costs.terms.update_actor_s < 0.5 * seconds
    # What is written simulates the run that it was fitted to.
    for scenario, log_scenario in ((found, first), (other, second)):
        exact = scenario.costs.model_copy(update={"draws": EXACT})
        again = simulate(scenario.model_copy(update={"costs": exact}), policy="sequential").steps
        truth = log_scenario.costs.model_copy(update={"terms": TRUTH})
        before = simulate(log_scenario.model_copy(update={"costs": truth}), policy="sequential").steps
        ratio = again["timing_s/update_actor"].mean() / before["timing_s/update_actor"].mean()
        assert ratio == pytest.approx(1.0, abs=0.1)


@short_chains()
@pytest.mark.parametrize("left", [("update_actor",), ("update_actor", "old_log_prob")])
def test_offload_of_a_stage_that_is_left_out_stays_as_the_scenario_has_it(
    left: tuple[str, ...], tmp_path: Path
) -> None:
    """Whether another stage tells the rate, or none does."""
    scenario = offloading(None)
    log = verl_log(tmp_path / "a.log", scenario, TRUTH, steps=8)
    result = fit(log, scenario, fit_steps=8, draws=60, leave_out=left, folder=tmp_path / "fit")
    assert (OFFLOAD in result.posterior.terms) == (len(left) == 1)
    assert "Offload: offload_bytes_per_s is the host link's rate" in (
        tmp_path / "fit" / "scenario.yaml"
    ).read_text(encoding="utf-8")
    written = load_scenario(tmp_path / "fit" / "scenario.yaml")
    point = written.costs.model_copy(update={"draws": EXACT})
    again = simulate(written.model_copy(update={"costs": point}), policy="sequential").steps
    before = simulate(scenario, policy="sequential").steps
    for stage in left:
        ratio = again[f"timing_s/{stage}"].mean() / before[f"timing_s/{stage}"].mean()
        assert ratio == pytest.approx(1.0, abs=0.2)
