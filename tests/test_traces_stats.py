"""Statistics against values worked out by hand, and fits against the distributions the data came from."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oppo_sim.errors import OppoError
from oppo_sim.traces.catalog import load_named
from oppo_sim.traces.config import SynthConfig
from oppo_sim.traces.fit import Fit, fit_trace
from oppo_sim.traces.schema import check_frame
from oppo_sim.traces.stats import drift_by_step, expected_longest, trace_stats
from oppo_sim.traces.synth import synthesise


def test_by_hand() -> None:
    frame = check_frame(
        pd.DataFrame(
            {
                "response_length": [0, 1, 2, 8, 500],
                "finish_reason": ["stop", "stop", "length", None, "abort"],
                "prompt_length": [10, 20, None, 30, 5],
                "prompt_id": ["a", "a", "a", "b", "b"],
                "step": [0, 0, 1, 1, 1],
                "reward": [0.0, 1.0, 1.0, 0.0, 9.0],
            }
        )
    )
    stats = trace_stats(frame)
    assert (stats.rows, stats.aborted, stats.zero_length, stats.steps) == (4, 1, 1, 2)
    assert stats.mean == 3
    assert stats.p50 == 1.5
    assert stats.max == 8
    assert stats.cv == pytest.approx(np.sqrt((4 + 4 + 1 + 25) / 4) / 3)
    assert stats.max_over_mean == pytest.approx(8 / 3)
    assert stats.top_1_percent_share == pytest.approx(8 / 12)
    assert stats.clip_ratio == 0.25
    assert stats.finish_reason_known == 0.75
    assert stats.prompt_mean == 20
    assert stats.prompt_known == 0.75
    assert stats.reward_mean == 0.5
    assert stats.group_cv is None, "no prompt has three samples in one step"


def test_spread_within_a_prompt() -> None:
    frame = check_frame(
        pd.DataFrame({"response_length": [1, 2, 3, 10, 10, 10, 7, 9], "prompt_id": [*"aaabbbcc"]})
    )
    stats = trace_stats(frame)
    assert stats.group_cv == pytest.approx(np.mean([np.sqrt(2 / 3) / 2, 0.0]))
    assert stats.group_samples == 3


@settings(max_examples=30, deadline=None)
@given(lengths=st.lists(st.integers(1, 50), min_size=1, max_size=6), batch=st.integers(1, 3))
def test_the_expected_longest_is_that_of_all_batches(lengths: list[int], batch: int) -> None:
    every_batch = np.stack(np.meshgrid(*[lengths] * batch)).reshape(batch, -1)
    assert expected_longest(np.sort(lengths), batch) == pytest.approx(every_batch.max(axis=0).mean())


def test_drift_by_step() -> None:
    frame = check_frame(
        pd.DataFrame(
            {
                "response_length": [10, 20, 30, 40, 50, 60],
                "step": [0, 0, 5, 7, 7, None],
                "finish_reason": "stop",
            }
        )
    )
    every = drift_by_step(frame, bins=None)
    assert every["first_step"].tolist() == [0, 5, 7]
    assert every["mean"].tolist() == [15, 30, 45]
    assert every["rows"].tolist() == [2, 1, 2]
    assert every["clip_ratio"].tolist() == [0, 0, 0]
    two = drift_by_step(frame, bins=2)
    assert (two["first_step"].tolist(), two["last_step"].tolist()) == ([0, 7], [5, 7])
    assert drift_by_step(check_frame(pd.DataFrame({"response_length": [1]}))).empty


PUBLISHED = {
    # n, mean, p50, p90, p99, max, CV, longest 1 %, cut, CV within a prompt: from the traces' origin notes.
    "rl_reinforcepp_logic_qwen3b": (840, 598, 412, 1009, 4096, 4096, 1.12, 0.065, 0.033, 0.23),
    "math_rl_llama3b_amc_aime": (7000, 485, 368, 793, 2048, 2048, 0.78, 0.042, 0.035, 0.57),
    "reason_longcot_misguided": (2627, 3431, 1810, 8599, 18042, 32000, 1.20, 0.069, 0.013, 0.18),
    "code_codet_humaneval": (41050, 77, 37, 300, 300, 300, 1.26, 0.039, 0.116, 0.89),
    "serving_servegen_r1": (20000, 1526, 781, 3535, 12592, 32768, 1.52, 0.107, None, 0.45),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_known_statistics_of_shipped_traces(name: str) -> None:
    stats = trace_stats(load_named(name))
    found = (
        stats.rows,
        stats.mean,
        stats.p50,
        stats.p90,
        stats.p99,
        stats.max,
        stats.cv,
        stats.top_1_percent_share,
    )
    assert found == pytest.approx(PUBLISHED[name][:8], rel=0.01)
    assert stats.clip_ratio == pytest.approx(PUBLISHED[name][8], abs=6e-4)
    assert stats.group_cv == pytest.approx(PUBLISHED[name][9], abs=6e-3)


KNOWN = {
    "lognormal": {"mu": 6.0, "sigma": 0.9},
    "weibull": {"shape": 0.8, "scale": 700.0},
    "mixture": {"mu_1": 5.0, "sigma_1": 0.4, "mu_2": 7.5, "sigma_2": 0.6, "weight_2": 0.25},
}


@pytest.mark.parametrize("cut", [None, 2000], ids=["whole", "cut"])
@pytest.mark.parametrize("name", KNOWN)
def test_the_fit_finds_the_distribution_even_through_a_cut(name: str, cut: int | None) -> None:
    config = SynthConfig.model_validate(
        {"distribution": name, "parameters": KNOWN[name], "rows": 20_000, "max_response_length": cut}
    )
    result = fit_trace(synthesise(config))
    assert (result.cut_rows > 500) == (cut is not None)
    fit = next(each for each in result.fits if each.distribution == name)
    for key, value in KNOWN[name].items():
        assert fit.parameters[key] == pytest.approx(value, rel=0.08 if name == "mixture" else 0.03)
    assert fit.ks_distance < 0.01
    assert fit.aic <= result.best.aic + 20
    assert result.best.aic == min(each.aic for each in result.fits)
    wrong = [each for each in result.fits if each.distribution not in (name, "mixture")]
    assert all(each.ks_distance > 2 * fit.ks_distance for each in wrong)


def test_the_likelihood_counts_whole_tokens_and_cut_rows() -> None:
    from scipy import stats as reference

    frame = check_frame(
        pd.DataFrame(
            {
                "response_length": [1, 5, 9, 20, 40, 40, 3, 8, 12, 60],
                "finish_reason": ["stop"] * 8 + ["length"] * 2,
            }
        )
    )
    fit = next(each for each in fit_trace(frame).fits if each.distribution == "lognormal")

    def likelihood(mu: float, sigma: float) -> float:
        law = reference.lognorm(s=sigma, scale=np.exp(mu))
        finished = sum(
            np.log(law.cdf(n + 0.5) - (law.cdf(n - 0.5) if n > 1 else 0.0))
            for n in (1, 5, 9, 20, 40, 40, 3, 8)
        )
        return float(finished + sum(np.log(law.sf(n - 0.5)) for n in (12, 60)))

    mu, sigma = fit.parameters["mu"], fit.parameters["sigma"]
    assert fit.log_likelihood == pytest.approx(likelihood(mu, sigma))
    assert fit.aic == pytest.approx(4 - 2 * fit.log_likelihood)
    for step in (-0.02, 0.02):
        assert likelihood(mu + step, sigma) < fit.log_likelihood
        assert likelihood(mu, sigma + step) < fit.log_likelihood


def test_fits_of_awkward_traces() -> None:
    same = fit_trace(check_frame(pd.DataFrame({"response_length": [700] * 50})))
    assert same.best.p50 == pytest.approx(700, rel=0.02)
    # A mode of one-token answers and a spike at the maximum must not end in absurd lengths.
    spiked = fit_trace(load_named("rl_grpo_openagentrl_val"))
    assert spiked.best.mean_to_longest == pytest.approx(1977, rel=0.03)
    assert spiked.best.mean < 10_000
    unmarked = fit_trace(check_frame(pd.DataFrame({"response_length": [*range(100, 150), *[200] * 20]})))
    assert "20 responses are exactly 200 tokens long" in unmarked.warnings[0]
    assert isinstance(unmarked.best, Fit)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"response_length": [5] * 9}, "too few"),
        ({"response_length": [5] * 20, "finish_reason": "length"}, "every response .* was cut"),
    ],
)
def test_what_cannot_be_fitted(columns: dict[str, object], said: str) -> None:
    with pytest.raises(OppoError, match=said):
        fit_trace(check_frame(pd.DataFrame(columns)))


def test_nothing_left_to_describe() -> None:
    with pytest.raises(OppoError, match="no finished rollouts"):
        trace_stats(check_frame(pd.DataFrame({"response_length": [5], "finish_reason": "abort"})))
