"""Known terms come back from simulated logs, within intervals that hold as often as they say."""

from pathlib import Path

import numpy as np
import pytest

from oppo_sim.columns import TIMING_STEP
from oppo_sim.costs.priors import log_priors
from oppo_sim.costs.terms import CostTerms
from oppo_sim.errors import OppoError
from oppo_sim.fit.call import fit
from oppo_sim.fit.estimate import FitResult, judge_rest
from oppo_sim.fit.sources import open_log
from tests.fit_logs import ALL, TRUTH, fit_scenario, seconds_of_a_step, short_chains, verl_log

PRIORS = log_priors()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return verl_log(tmp_path_factory.mktemp("log") / "verl.log", fit_scenario(), TRUTH)


@pytest.fixture(scope="module")
def fitted(small: Path) -> FitResult:
    """By all steps, and by the first 15 to judge the other 9."""
    return fit(small, fit_scenario(), fit_steps=15)


def test_terms_come_back_within_their_intervals(fitted: FitResult) -> None:
    missed = 0
    for estimate in fitted.estimates:
        low, _, high = estimate.posterior
        truth = max(getattr(TRUTH, estimate.term), PRIORS[estimate.term].median / 1000)
        assert low - (high - low) <= truth <= high + (high - low), estimate
        missed += not (low <= truth <= high) and getattr(TRUTH, estimate.term) > 0
    assert missed <= 2
    assert fitted.point.ref == pytest.approx(0.8, rel=0.05)
    assert fitted.point.old_log_prob == pytest.approx(1.5, rel=0.1)
    assert fitted.point.update_actor == pytest.approx(1.2, rel=0.2)
    verdicts = {each.term: each.verdict for each in fitted.estimates}
    assert verdicts["ref"] == "identified"
    assert verdicts["update_weights"] != "not identified"


def test_held_out_steps_are_predicted_within_intervals(fitted: FitResult) -> None:
    (held,) = fitted.held_out
    assert (held.fitted_steps, held.held_steps) == (15, 9)
    step = next(each for each in held.judgements if each.column == TIMING_STEP)
    assert step.model.median < 0.02
    assert step.model.p90 < 0.05
    assert step.model.coverage is not None
    assert step.model.coverage >= 0.8
    assert step.model.p90 < step.naive["mean"].p90


def test_the_rest_can_be_judged_without_a_fit_of_all_steps(fitted: FitResult, small: Path) -> None:
    alone = judge_rest(open_log(small), fit_scenario(), fit_steps=15)
    assert [each.model for each in alone.judgements] == [each.model for each in fitted.held_out[0].judgements]
    with pytest.raises(OppoError, match="no steps were held back"):
        judge_rest(open_log(small), fit_scenario(), fit_steps=ALL)


def test_intervals_hold_as_often_as_they_say(tmp_path: Path) -> None:
    """Over small cases with terms drawn from the priors; a binomial of 0.95 leaves 0.85 to 1 over 100 steps."""
    generator = np.random.default_rng(5)
    inside = total = 0
    for case in range(6):
        drawn = {
            name: PRIORS[name].median * float(np.exp(PRIORS[name].sigma * generator.standard_normal()))
            for name in ("decode", "ref", "old_log_prob", "update_actor", "gen_phase_s", "other_s")
        }
        log = verl_log(
            tmp_path / f"{case}.log",
            fit_scenario(seed=case),
            CostTerms(**drawn),
            noise=0.03,
            seed=case,
            steps=20,
        )
        held = judge_rest(open_log(log), fit_scenario(), fit_steps=10, draws=200)
        for each in held.judgements:
            assert each.model.coverage is not None
            inside += round(each.model.coverage * each.model.steps)
            total += each.model.steps
    assert total > 300
    assert 0.88 <= inside / total <= 1.0


def test_runs_of_one_cluster_are_fitted_together_and_predict_another(tmp_path: Path) -> None:
    def other(batch: int) -> tuple[Path, object]:
        scenario = fit_scenario(rollout_batch_size=batch)
        return verl_log(tmp_path / f"{batch}.log", scenario, TRUTH, seed=batch, steps=12), scenario

    pairs = [other(64), other(96)]
    log, scenario = other(160)
    result = fit([path for path, _ in pairs], [each for _, each in pairs], judge=[(log, scenario)])  # type: ignore[list-item, misc]
    (judged,) = result.judged
    step = next(each for each in judged.judgements if each.column == TIMING_STEP)
    assert step.model.p90 < 0.06
    assert step.model.p90 < step.naive["mean"].p90 / 2
    assert len(result.held_out) == 2


def test_a_first_step_and_one_that_stalls_are_named(tmp_path: Path) -> None:
    terms = TRUTH.model_copy(update={"other_s": 0.02, "first_step_s": 40.0})
    scenario = fit_scenario()
    log = verl_log(
        tmp_path / "a.log", scenario, terms, extra={14: {"timing_s/ref": 4.0}, 18: {"timing_s/step": 900.0}}
    )
    result = fit(log, scenario, fit_steps=ALL)
    odd = {(each.step, each.column): each.reason for each in result.odd}
    assert "first step" in odd[1, "timing_s/gen"]
    assert (14, "timing_s/ref") in odd
    assert odd[18, "timing_s/step"] == "seconds that are of none of its stages"
    assert result.point.first_step_s == pytest.approx(40, rel=0.15)
    assert result.point.ref == pytest.approx(0.8, rel=0.05)


@short_chains()
def test_what_a_first_step_takes_outside_every_stage_is_told(tmp_path: Path) -> None:
    """Loading, compiling: seconds that no metric names, in a part of the step that takes hardly any later."""
    scenario = fit_scenario()
    log = verl_log(tmp_path / "a.log", scenario, TRUTH.model_copy(update={"other_s": 0.02}))
    first, *others = log.read_text().splitlines()
    before = float(first.split("timing_s/step:np.float64(")[1].split(")")[0])
    first = first.replace(f"timing_s/step:np.float64({before}", f"timing_s/step:np.float64({before + 9.0}")
    log.write_text("\n".join([first, *others]) + "\n", encoding="utf-8")
    result = fit(log, scenario, draws=200, fit_steps=ALL)
    assert result.point.first_step_s == pytest.approx(9.0, rel=0.15)
    assert result.point.other_s < 0.1


@short_chains()
def test_a_wait_for_tools_is_no_cost_of_decoding(tmp_path: Path) -> None:
    scenario = fit_scenario()
    log = verl_log(tmp_path / "plain.log", scenario, TRUTH, noise=0.005)
    plain = fit(log, scenario, draws=200, fit_steps=ALL)
    text = log.read_text().splitlines()
    waits = [0.0 if number % 3 else 5.0 for number in range(len(text))]
    changed = []
    for line, wait in zip(text, waits, strict=True):
        for name in ("gen", "step"):
            before = float(line.split(f"timing_s/{name}:np.float64(")[1].split(")")[0])
            line = line.replace(f"timing_s/{name}:np.float64({before})", f"timing_s/{name}:{before + wait}")  # noqa: PLW2901
        changed.append(f"{line} - timing_s/agent_loop/slowest/tool_calls:{wait}")
    (tmp_path / "tools.log").write_text("\n".join(changed) + "\n")
    waited = fit(tmp_path / "tools.log", scenario, draws=200, fit_steps=ALL)
    assert waited.wait_s == pytest.approx(np.mean(waits), rel=0.05)
    # A run with tools may decode fewer tokens than its lengths say, each in more seconds.
    assert waited.point.decode == pytest.approx(plain.point.decode, rel=0.25)
    assert waited.point.gen_phase_s == pytest.approx(plain.point.gen_phase_s + waited.wait_s, rel=0.25)


def test_a_wait_beside_a_longer_response_lengthens_no_step(tmp_path: Path) -> None:
    """In every third step a rollout of a fifth of the longest one's tokens waits until that one is done: the
    phase is as long as it would be without tools, however long the wait is."""
    scenario = fit_scenario()
    log = verl_log(tmp_path / "plain.log", scenario, TRUTH, noise=0.005)
    text = log.read_text().splitlines()
    assert TRUTH.gen_phase_s is not None
    changed, waits = [], []
    for number, line in enumerate(text):
        seconds, longest = (
            float(line.split(f"{name}:np.float64(")[1].split(")")[0])
            for name in ("timing_s/gen", "response_length/max")
        )
        if number % 3:
            slowest, wait = longest, 0.0
        else:
            slowest, wait = 0.2 * longest, 0.75 * (seconds - TRUTH.gen_phase_s)
        waits.append(wait)
        named = {"tool_calls": wait, "response_length": slowest}
        changed.append(line + "".join(f" - timing_s/agent_loop/slowest/{k}:{v}" for k, v in named.items()))
    (tmp_path / "tools.log").write_text("\n".join(changed) + "\n")
    waited = fit(tmp_path / "tools.log", scenario, draws=200, fit_steps=ALL)
    assert np.mean(waits) > 2.0
    assert abs(waited.wait_s) < 0.25 * np.mean(waits)


def test_lengths_of_every_rollout_are_taken_where_they_are_known(tmp_path: Path) -> None:
    scenario = fit_scenario(steps=8)
    costs = scenario.costs.model_copy(update={"terms": TRUTH})
    from oppo_sim.scenario.build import build_setup
    from oppo_sim.simulation_folder import SimulationRequest, simulate_to_folder

    setup = build_setup(scenario.model_copy(update={"costs": costs}))
    request = SimulationRequest(setup, "sequential", tmp_path / "run", False, (0, 0), True, False)
    simulate_to_folder(request, lambda _done: None)
    log = open_log(tmp_path / "run")
    assert log.lengths is not None
    held = judge_rest(log, scenario, fit_steps=5)
    assert all(each.model.worst < 0.02 for each in held.judgements if each.column != "timing_s/adv")


@short_chains()
def test_a_run_that_carries_rollouts_is_warned_of_since_its_decoding_comes_out_too_fast(
    tmp_path: Path,
) -> None:
    def fitted(policy: str, **settings: float) -> tuple[str, float]:
        scenario = fit_scenario(policy={"name": policy, **settings}, steps=12)
        log = verl_log(tmp_path / "a.log", scenario, TRUTH, steps=12, policy=policy)
        result = fit(log, scenario, draws=200, fit_steps=ALL)
        return " ".join(result.notes), result.point.decode

    notes, decode = fitted("april", overcommit=1.0)
    assert "policy 'april' carries unfinished rollouts" in notes
    assert decode < 0.7 * TRUTH.decode
    notes, decode = fitted("sequential")
    assert "carries" not in notes
    assert decode == pytest.approx(TRUTH.decode, rel=0.1)


def test_a_policy_that_overlaps_is_refused(tmp_path: Path) -> None:
    from oppo_sim.scenario.build import build_setup
    from oppo_sim.simulation_folder import SimulationRequest, simulate_to_folder

    setup = build_setup(fit_scenario(steps=3), policy="intra")
    simulate_to_folder(
        SimulationRequest(setup, "intra", tmp_path / "run", False, (0, 0), True, False), lambda _done: None
    )
    with pytest.raises(OppoError, match="overlap"):
        open_log(tmp_path / "run")


@short_chains()
def test_the_same_fit_gives_the_same_draws_whatever_is_held_back(small: Path) -> None:
    first, again = (fit(small, fit_scenario(), fit_steps=held) for held in (ALL, 15))
    assert first.draws == again.draws


def test_a_batch_that_the_run_did_not_have_is_refused(small: Path) -> None:
    with pytest.raises(OppoError, match="rollout_batch_size of the scenario is 32"):
        fit(small, fit_scenario(rollout_batch_size=32))


def test_the_fitted_costs_give_the_seconds_of_the_run(fitted: FitResult) -> None:
    assert seconds_of_a_step(fitted.point) == pytest.approx(seconds_of_a_step(TRUTH), rel=0.03)


@short_chains()
def test_filtered_groups_are_told_from_tokens_and_seconds_a_token(tmp_path: Path) -> None:
    """Half of the rollouts are trained: figures of lengths are of those, tokens of all."""
    scenario = fit_scenario()
    path = verl_log(tmp_path / "a.log", scenario, TRUTH, noise=0.005)
    lines = []
    for line in path.read_text().splitlines():
        row = dict(
            pair.split(":np.float64(") for pair in line.removesuffix(")").split(") - ")[1:] if "np" in pair
        )
        mean, update = float(row["response_length/mean"]), float(row["timing_s/update_actor"])
        tokens = 32 * (0.9 * mean + 100)
        # Of half the tokens: the base is 0.5 + 2e-4 · tokens, the run's terms 1.2 and 2 seconds.
        shorter = 1.2 * (0.5 + 2e-4 * tokens) + 2.0
        step = float(row["timing_s/step"]) - update + shorter
        changed = line.replace(f"mean:np.float64({mean})", f"mean:{0.9 * mean}")
        changed = changed.replace(f"update_actor:np.float64({update})", f"update_actor:{shorter}")
        changed = changed.replace(f"step:np.float64({row['timing_s/step']})", f"step:{step}")
        lines.append(f"{changed} - timing_per_token_ms/update_actor:{1000 * shorter / tokens}")
    (tmp_path / "b.log").write_text("\n".join(lines) + "\n")
    log = open_log(tmp_path / "b.log")
    assert set(log.frame["rollouts/trained"]) == {32}
    result = fit(log, scenario, draws=100, fit_steps=ALL)
    assert result.point.ref == pytest.approx(0.8, rel=0.1)
    assert result.point.update_actor == pytest.approx(1.2, rel=0.25)
    assert not any("how many" in note for note in result.notes)
    without = "\n".join(line.split(" - timing_per_token_ms")[0] for line in lines)
    (tmp_path / "c.log").write_text(without + "\n")
    untold = fit(tmp_path / "c.log", scenario, draws=50, fit_steps=ALL)
    assert any("how many" in note for note in untold.notes)
