"""Draws given a few numbers, where several causes explain them: every cause in its proportion."""

import numpy as np
import pytest

from oppo_sim.columns import timing
from oppo_sim.costs.section import EXACT
from oppo_sim.costs.terms import FACTORS, CostTerms
from oppo_sim.fit.baseline import Baseline
from oppo_sim.fit.call import observe
from oppo_sim.fit.inference.tempering import Floats, resampled, tempered, weights_of, worth
from oppo_sim.fit.terms.priors import priors_for
from oppo_sim.scenario.load import load_scenario
from oppo_sim.simulation import simulate
from tests.fit_logs import fit_scenario


def test_each_of_several_modes_has_the_draws_that_it_is_worth() -> None:
    """A sum of two log-normal numbers is far above both medians: either one of them is, or the other; the
    wider is it more often. Third and fourth coordinates are not told."""
    told, spread = 40.0, 1.2

    def of(z: Floats) -> Floats:
        return np.asarray(np.exp(1.5 * z[:, 0]) + np.exp(1.3 * z[:, 1]))

    def log_likelihood(z: Floats) -> Floats:
        return np.asarray(-0.5 * ((of(z) - told) / spread) ** 2)

    found = tempered(log_likelihood, 4, 2000, np.random.default_rng(3))
    assert found.shape == (2000, 4)
    assert np.median(of(found)) == pytest.approx(told, rel=0.02)
    # By quadrature over the first coordinate, the second follows from the sum.
    sums = np.linspace(told - 5 * spread, told + 5 * spread, 201)[:, None]
    first = np.linspace(1e-4, 1.0 - 1e-4, 40_001)[None, :] * sums
    z0, z1 = np.log(first) / 1.5, np.log(sums - first) / 1.3
    density = (
        np.exp(-0.5 * (z0**2 + z1**2) - 0.5 * ((sums - told) / spread) ** 2) / (first * (sums - first)) * sums
    )
    mine = first > sums / 2
    wanted = float((density * mine).sum() / density.sum())
    assert 0.6 < wanted < 0.85
    larger = np.exp(1.5 * found[:, 0]) > np.exp(1.3 * found[:, 1])
    assert float(larger.mean()) == pytest.approx(wanted, abs=0.05)
    assert found[:, 2:].mean(axis=0) == pytest.approx(0.0, abs=0.1)
    assert found[:, 2:].std(axis=0) == pytest.approx(1.0, abs=0.08)
    # Any part of the draws is of the whole: a comparison takes the first of them.
    assert float(larger[:400].mean()) == pytest.approx(wanted, abs=0.1)


def test_a_long_generation_may_have_a_long_wait_or_long_iterations() -> None:
    """``oppo fit --observe`` keeps both, as often as draws of the priors that agree have them."""
    scenario = fit_scenario()
    baseline = Baseline(scenario, [timing("gen")], scenario.steps - 1)
    priors = priors_for([scenario])
    z = np.random.default_rng(5).standard_normal((100_000, len(baseline.terms)))
    values = {
        name: priors[name].median * np.exp(priors[name].sigma * z[:, place])
        for place, name in enumerate(baseline.terms)
    }
    means, apart = baseline.estimated_apart(values)
    seconds, variance = means[:, 0], apart[:, 0, 0]
    told = float(np.percentile(seconds, 99))
    variance = variance + (0.03 * told) ** 2
    agree = weights_of(-0.5 * (seconds - told) ** 2 / variance - 0.5 * np.log(variance))
    assert worth(agree) > 500
    result = observe(scenario, [f"timing_s/gen={told!r}"], draws=150, seed=2)
    for name in ("gen_phase_s", "iteration_s"):
        middle = float(np.average(np.log(values[name]), weights=agree))
        spread = float(np.sqrt(np.average((np.log(values[name]) - middle) ** 2, weights=agree)))
        drawn = np.log([getattr(draw, name) for draw in result.draws])
        assert drawn.mean() == pytest.approx(middle, abs=0.35 * spread)
        assert drawn.std() == pytest.approx(spread, rel=0.3)


def test_equal_weights_give_every_point_once() -> None:
    generator = np.random.default_rng(1)
    assert sorted(resampled(np.full(50, 0.02), 50, generator)) == list(range(50))
    half = resampled(np.full(80, 1 / 80), 40, generator)
    assert len(set(half.tolist())) == 40
    counts = np.bincount(resampled(np.array([0.5, 0.3, 0.2]), 1000, generator))
    assert counts == pytest.approx([500, 300, 200], abs=1)
    assert worth(np.array([0.5, 0.5, 0.0])) == pytest.approx(2.0)


def test_what_a_run_does_not_tell_is_drawn_as_before_or_kept() -> None:
    """First steps are not looked at; a round costs what the scenario says."""
    scenario = load_scenario("h200-single", ["rollout_batch_size=16", "costs.terms={round_fixed_s: 0.25}"])
    result = observe(scenario, ["share/gen=0.5..0.7"], draws=40, seed=1)
    first = np.log([draw.first_step_s for draw in result.draws])
    prior = priors_for([scenario])["first_step_s"]
    assert first.mean() == pytest.approx(np.log(prior.median), abs=3.5 * prior.sigma / 40**0.5)
    assert first.std() == pytest.approx(prior.sigma, rel=0.4)
    assert {draw.round_fixed_s for draw in result.draws} == {0.25}


def test_a_simulated_baseline_is_the_run_under_these_terms() -> None:
    scenario = fit_scenario()
    terms = CostTerms(decode=1.3, iteration_s=0.002, gen_phase_s=1.5, update_actor=0.7, other_s=0.4)
    found = Baseline(scenario, [timing("step"), timing("gen")]).simulated(terms)
    costs = scenario.costs.model_copy(update={"terms": terms, "draws": EXACT})
    run = simulate(scenario.model_copy(update={"costs": costs}), policy="sequential", steps=4).steps.iloc[1:]
    assert found == [float(run[timing(name)].mean()) for name in ("step", "gen")]


def test_runs_with_other_lengths_lie_as_far_apart_as_they_are_said_to() -> None:
    """Lengths of the scenario grow over its steps, in every run alike."""
    names = [timing("step"), timing("gen"), "share/gen", "tokens_per_s"]
    means, apart = [], []
    for seed in range(60):
        baseline = Baseline(fit_scenario(seed=seed), names, 12)
        terms = {name: np.array([1.0 if name in FACTORS else 0.01]) for name in baseline.terms}
        mean, covariance = baseline.estimated_apart(terms)
        means.append(mean[0])
        apart.append(covariance[0])
    said, real = np.mean(apart, axis=0), 2.0 * np.cov(np.array(means).T)
    ratio = np.sqrt(np.diag(said) / np.diag(real))
    assert ratio == pytest.approx(1.0, abs=0.3)
    correlations = said / np.sqrt(np.outer(np.diag(said), np.diag(said)))
    assert correlations[0, 1] > 0.8  # a long generation is a long step
    assert correlations == pytest.approx(real / np.sqrt(np.outer(np.diag(real), np.diag(real))), abs=0.3)
