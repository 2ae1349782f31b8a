"""What a fit computes of a step is what the simulator simulates."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oppo_sim.costs.terms import CostTerms
from oppo_sim.fit.baseline import Baseline, known_names
from oppo_sim.fit.observe import log_evidence
from oppo_sim.fit.terms.priors import priors_for
from tests.fit_logs import COSTS, fit_scenario

ROOFLINE: dict[str, Any] = {
    "kind": "roofline",
    "device": "H100",
    "actor_model": "qwen2.5-1.5b",
    "reward_model": {"kind": "model", "model": "qwen2.5-0.5b"},
}
OVER_PCIE: dict[str, Any] = {
    "kind": "roofline",
    "device": "A100-80-PCIe",
    "actor_model": "qwen2.5-7b",
    "rollout": {"sleep_mode": True},
    "reward_model": {"kind": "verifier"},
}
GATHERED = {"critic": "none", "num_ppo_epochs": 1, "num_gpus": 4, "micro_batch_rollouts": 2}
"""Its ranks wait for the weights of the others."""
ROUNDS = {"name": "sequential", "stop_check": "chunk", "chunk_size": 70}
CASES: list[tuple[dict[str, Any], float]] = [
    ({}, 1e-9),
    ({"rollout": {"num_replicas": 3}, "scoring": {"num_workers": 2, "max_scoring_tokens": 4000}}, 1e-9),
    ({"rollout": {"max_num_seqs": 20}}, 1e-9),
    ({"rollout": {"batching": "static"}}, 1e-9),
    ({"training": {"parallel_inference": True}, "costs": {**COSTS}}, 1e-9),
    ({"policy": ROUNDS}, 1e-9),
    ({"policy": ROUNDS, "rollout": {"keeps_kv_between_rounds": False, "max_num_seqs": 20}}, 1e-9),
    ({"policy": ROUNDS, "rollout": {"keeps_kv_between_rounds": False, "batching": "static"}}, 1e-9),
    ({"costs": ROOFLINE, "rollout": {"num_replicas": 2}, "rollout_batch_size": 32}, 1e-6),
    ({"costs": {**ROOFLINE, "rollout": {"host": "generate"}}, "rollout_batch_size": 16}, 0.03),
    ({"costs": OVER_PCIE, "rollout": {"num_replicas": 2}, "training": GATHERED}, 1e-6),
]
SMALL = {"iteration_s": 1e-3, "rollout_iteration_s": 1e-3, "piece_fixed_s": 1e-5}
"""Pieces change no worker's place: the slowest is taken to be that of the cost model's seconds."""
NAMES = [name for name in known_names() if not name.startswith("utilization/")]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_estimated_quantities_are_the_simulated_ones(case: int) -> None:
    changes, tolerance = CASES[case]
    baseline = Baseline(fit_scenario(**changes), NAMES)
    generator = np.random.default_rng(case)
    for _ in range(3):
        terms = {name: float(np.exp(0.4 * generator.standard_normal())) for name in baseline.terms}
        terms = {name: value * SMALL.get(name, 1.0) for name, value in terms.items()}
        estimated = baseline.estimated({name: np.array([value]) for name, value in terms.items()})[0]
        assert estimated == pytest.approx(baseline.simulated(CostTerms(**terms)), rel=tolerance, abs=1e-9)


@settings(max_examples=15, deadline=None)
@given(st.floats(0.3, 3.0), st.floats(0.0, 0.01), st.floats(0.0, 20.0))
def test_a_kv_cache_that_overflows_is_estimated_on_average(
    decode: float, iteration: float, phase: float
) -> None:
    scenario = fit_scenario(rollout={"kv_capacity_tokens": 8000})
    baseline = Baseline(scenario, ["timing_s/gen"])
    terms = CostTerms(decode=decode, iteration_s=iteration, gen_phase_s=phase)
    values = {name: np.array([getattr(terms, name)]) for name in baseline.terms}
    assert baseline.estimated(values)[0] == pytest.approx(baseline.simulated(terms), rel=0.15)


def test_utilization_counts_replicas_and_workers() -> None:
    baseline = Baseline(fit_scenario(rollout={"num_replicas": 2}), ["utilization/inference"])
    for terms in (CostTerms(score=20.0), CostTerms(score=20.0, gen_phase_s=30.0)):  # it wakes, and is idle
        values = {name: np.array([getattr(terms, name)]) for name in baseline.terms}
        assert baseline.estimated(values)[0] == pytest.approx(baseline.simulated(terms), rel=0.02)


def test_utilization_by_kernels_leaves_out_what_launches_wait_for() -> None:
    costs = {**ROOFLINE, "rollout": {"host": "generate"}}
    both = ["utilization/inference", "utilization/kernels"]
    baseline = Baseline(fit_scenario(costs=costs, rollout_batch_size=16), both)
    terms = CostTerms(decode=1.5, host=0.8, prefill=2.0, iteration_s=1e-3)
    values = {name: np.array([getattr(terms, name)]) for name in baseline.terms}
    busy, kernels = baseline.estimated(values)[0]
    assert kernels < 0.5 * busy  # 0.8 ms a layer to launch what takes a tenth of that
    assert kernels == pytest.approx(baseline.simulated(terms)[1], rel=0.03)


def test_evidence_is_the_share_of_the_prior_that_agrees() -> None:
    scenario = fit_scenario()
    assert log_evidence(scenario, ["share/gen=0..1"], draws=500) == pytest.approx(0.0, abs=1e-9)
    baseline = Baseline(scenario, ["timing_s/gen"], scenario.steps - 1)
    priors = priors_for([scenario])
    z = np.random.default_rng(5).standard_normal((4000, len(baseline.terms)))
    drawn = {
        name: priors[name].median * np.exp(priors[name].sigma * z[:, place])
        for place, name in enumerate(baseline.terms)
    }
    median = float(np.median(baseline.estimated(drawn)))
    half = log_evidence(scenario, [f"timing_s/gen=0..{median}"])
    assert np.log(0.5) < half < np.log(0.7)  # the end of a range is soft
    nearer, farther = (log_evidence(scenario, [f"timing_s/gen={f * median}"]) for f in (1.0, 2.0))
    assert nearer > farther + 2.0
