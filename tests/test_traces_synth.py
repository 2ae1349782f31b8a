"""Synthetic traces meet their targets, impossible ones are refused; resampling."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oppo_sim.draws import draw_index, draw_uniform, indices, stream_key, uniforms
from oppo_sim.errors import OppoError
from oppo_sim.traces.catalog import length_factors, load_named
from oppo_sim.traces.config import PARAMETERS, DriftConfig, SynthConfig
from oppo_sim.traces.distributions import Mixture, make_distribution
from oppo_sim.traces.stats import trace_stats
from oppo_sim.traces.synth import drift_factors, resample, synthesise
from oppo_sim.traces.targets import solve

PAIRS = [
    {"mean": 1000, "p50": 500},
    {"mean": 1000, "p99": 5000},
    {"p50": 500, "p99": 5000},
    {"mean": 1000, "clip_ratio": 0.05, "max_response_length": 4096},
    {"p50": 500, "clip_ratio": 0.05, "max_response_length": 4096},
    {"p99": 3000, "clip_ratio": 0.002, "max_response_length": 4096},
    {"mean": 1000, "p99": 3900, "max_response_length": 4096},
]
MIXTURES = [
    {"mean": 1000, "p50": 500, "p99": 5000},
    {"mean": 1000, "p50": 400, "clip_ratio": 0.05, "max_response_length": 8192},
    {"mean": 600, "p50": 400, "p99": 4000, "clip_ratio": 0.005, "max_response_length": 8192},
]
CASES = [*(({"distribution": name, **pair}) for name in ("lognormal", "weibull") for pair in PAIRS)] + [
    {"distribution": "mixture", **targets} for targets in MIXTURES
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_targets_are_met_after_the_cut(case: dict[str, float]) -> None:
    stats = trace_stats(synthesise(SynthConfig.model_validate({**case, "rows": 20_000})))
    for name in ("mean", "p50", "p99", "clip_ratio"):
        if name in case:
            assert getattr(stats, name) == pytest.approx(case[name], rel=0.01)
    assert stats.max <= case.get("max_response_length", np.inf)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(["lognormal", "weibull"]),
    p50=st.floats(5, 5000),
    ratio=st.floats(1.05, 50),
    cut=st.floats(1.1, 20),
)
def test_a_mean_leads_back_to_the_distribution_that_had_it(
    name: str, p50: float, ratio: float, cut: float
) -> None:
    known = solve(SynthConfig.model_validate({"distribution": name, "p50": p50, "p99": p50 * ratio}))
    limit = max(2, int(p50 * cut))
    clip = float(known.sf(limit))
    if not 1e-6 < clip < 0.45 or known.mean(limit) < 1:
        return
    asked = {
        "distribution": name,
        "mean": known.mean(limit),
        "clip_ratio": clip,
        "max_response_length": limit,
    }
    found = solve(SynthConfig.model_validate(asked))
    assert found.mean(limit) == pytest.approx(known.mean(limit), rel=1e-6)
    assert float(found.sf(limit)) == pytest.approx(clip, rel=1e-6)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"mean": 50, "p50": 100}, "its mean is at least 100"),
        ({"mean": 10, "p99": 5000}, "its mean is at least"),
        ({"mean": 3000, "p50": 100, "max_response_length": 4096}, "its mean is at most"),
        ({"distribution": "mixture", "mean": 240, "p50": 500, "p99": 600}, "the nearest has mean"),
    ],
)
def test_impossible_targets_say_what_is_possible(settings: dict[str, object], said: str) -> None:
    with pytest.raises(OppoError, match=said):
        synthesise(SynthConfig.model_validate(settings))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"mean": 100}, "two of the targets"),
        ({"mean": 100, "p50": 90, "p99": 300}, "distribution mixture"),
        ({"distribution": "mixture", "mean": 100, "p50": 50}, "three or four"),
        ({"mean": 100, "clip_ratio": 0.1}, "needs max_response_length"),
        ({"mean": 100, "p99": 90}, "not below p99"),
        ({"p50": 100, "p99": 5000, "max_response_length": 4096}, "give clip_ratio instead"),
        ({"p50": 100, "clip_ratio": 0.6, "max_response_length": 4096}, "median at the cut"),
        ({"p99": 100, "clip_ratio": 0.02, "max_response_length": 4096}, "p99 at the cut"),
        ({"parameters": {"mu": 3.0}}, "mu, sigma"),
        ({"parameters": {"mu": 3.0, "sigma": 0.0}}, "above 0"),
        ({"parameters": {"mu": 3.0, "sigma": 1.0}, "mean": 30}, "either parameters or targets"),
        ({"mean": 100, "p50": 50, "steps": 20, "rows": 10}, "do not fill"),
        ({"mean": 100, "p50": 50, "drift": {"kind": "linear", "last_factor": 2.0}}, "drift needs steps"),
        ({"mean": 100, "p50": 50, "steps": 5, "drift": {"kind": "linear"}}, "last_factor"),
        ({"mean": 100, "p50": 50, "steps": 5, "drift": {"kind": "table", "last_factor": 2.0}}, "takes table"),
        ({"mean": 100, "p50": 50, "prompt_correlation": 0.5}, "samples_per_prompt"),
        ({"mean": 100, "p50": 50, "prompt_p99": 10.0}, "prompt_mean"),
    ],
)
def test_settings_that_contradict_themselves(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SynthConfig.model_validate(settings)


def test_drift_multiplies_the_first_steps_lengths() -> None:
    config = SynthConfig(
        p50=500, p99=2000, rows=20_000, steps=10, drift=DriftConfig(kind="linear", last_factor=4.0)
    )
    means = synthesise(config).groupby("step")["response_length"].mean().to_numpy()
    np.testing.assert_allclose(means / means[0], np.linspace(1, 4, 10), rtol=0.03)
    growing = drift_factors(DriftConfig(kind="exponential", last_factor=8.0), 4)
    np.testing.assert_allclose(growing, [1, 2, 4, 8])


def test_drift_follows_a_recorded_run() -> None:
    run = "openagentrl/run-20251202_120842-do7bl4gg"
    factors = length_factors("rl_steps_openagentrl", run, 144, 1)
    assert factors[0] == 1
    assert 3.5 < factors[-14:].mean() < 5.5, "the run's mean length grows more than fourfold"
    drift = DriftConfig(kind="table", table="rl_steps_openagentrl", source=run)
    frame = synthesise(SynthConfig(p50=500, p99=2000, rows=14_400, steps=144, drift=drift))
    means = frame.groupby("step")["response_length"].mean().to_numpy()
    np.testing.assert_allclose(
        means[-20:].mean() / means[:1].mean(), drift_factors(drift, 144)[-20:].mean(), rtol=0.1
    )
    with pytest.raises(OppoError, match="holds 8 runs"):
        length_factors("rl_steps_openagentrl", None, 10, 1)
    with pytest.raises(OppoError, match="has no run 'x'"):
        length_factors("rl_steps_openagentrl", "x", 10, 1)
    with pytest.raises(OppoError, match="has 144 steps but 145"):
        length_factors("rl_steps_openagentrl", run, 145, 1)


def test_samples_of_a_prompt_can_be_alike() -> None:
    settings = {
        "p50": 500,
        "p99": 3000,
        "rows": 8000,
        "samples_per_prompt": 8,
        "prompt_mean": 100,
        "prompt_p99": 400,
    }
    found = {}
    for share in (0.0, 0.8, 1.0):
        frame = synthesise(SynthConfig.model_validate({**settings, "prompt_correlation": share}))
        stats = trace_stats(frame)
        assert stats.p50 == pytest.approx(500, rel=0.08)
        assert stats.group_samples == 8
        assert frame.groupby("prompt_id")["prompt_length"].nunique().max() == 1
        assert stats.prompt_mean == pytest.approx(100, rel=0.03)
        found[share] = stats.group_cv
    assert found[1.0] == 0
    assert found[0.0] > 1.5 * found[0.8] > 0  # type: ignore[operator]


def test_same_settings_same_rows_and_another_seed_others() -> None:
    config = SynthConfig(mean=300, p50=200, rows=500)
    first, again = synthesise(config), synthesise(config)
    assert first.equals(again)
    assert not first["response_length"].equals(
        synthesise(config.model_copy(update={"seed": 1}))["response_length"]
    )


@settings(max_examples=30, deadline=None)
@given(
    mu=st.floats(0, 8),
    sigma=st.floats(0.05, 2),
    gap=st.floats(0, 4),
    sigma_2=st.floats(0.05, 2),
    weight=st.floats(0.01, 0.99),
    u=st.floats(1e-6, 1 - 1e-6),
)
def test_the_quantile_of_a_mixture_inverts_its_distribution_function(
    mu: float, sigma: float, gap: float, sigma_2: float, weight: float, u: float
) -> None:
    mixture = Mixture(mu, sigma, mu + gap, sigma_2, weight)
    x = mixture.quantile(u)
    assert float(mixture.cdf(x)) == pytest.approx(u, rel=2e-3, abs=1e-6)


def test_parameters_are_taken_as_they_are() -> None:
    values = {"lognormal": (6.0, 0.8), "weibull": (0.9, 500.0), "mixture": (5.0, 0.4, 7.0, 0.6, 0.2)}
    for name, numbers in values.items():
        parameters = dict(zip(PARAMETERS[name], numbers, strict=True))
        frame = synthesise(
            SynthConfig.model_validate({"distribution": name, "parameters": parameters, "rows": 20_000})
        )
        assert frame["response_length"].mean() == pytest.approx(
            make_distribution(name, parameters).mean(), rel=0.01
        )


def test_array_draws_are_the_scalar_draws() -> None:
    key = stream_key(11, "x")
    assert uniforms(key, 50).tolist() == [draw_uniform(key, i) for i in range(50)]
    for size in (1, 7, 48_000, 2**31 - 1):
        assert indices(key, 50, size).tolist() == [draw_index(key, i, size) for i in range(50)]


def test_resampling_keeps_rows_whole_and_begins_alike() -> None:
    frame = load_named("math_rl_llama3b_amc_aime")
    drawn = resample(frame, 20_000, 5)
    assert drawn["response_length"].mean() == pytest.approx(frame["response_length"].mean(), rel=0.03)
    columns = ["source", "step", "prompt_id", "sample_id", "prompt_length", "response_length"]
    assert set(drawn[columns].itertuples(index=False)) <= set(frame[columns].itertuples(index=False))
    assert drawn.iloc[:200].equals(resample(frame, 200, 5))
    assert not drawn.iloc[:200].equals(resample(frame, 200, 6))
    with pytest.raises(OppoError, match="at least 1"):
        resample(frame, 0, 1)
