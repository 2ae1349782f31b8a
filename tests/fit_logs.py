"""Logs of runs whose costs are known: simulated steps as a framework would print them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oppo_sim.columns import RESPONSE_LENGTH, STAGES, TIMING_STEP, TRAINED_STEP
from oppo_sim.costs.terms import CostTerms
from oppo_sim.fit.inference import posterior
from oppo_sim.scenario.load import scenario_from_plain
from oppo_sim.scenario.schema import Scenario
from oppo_sim.simulation import simulate

COSTS: Mapping[str, Any] = {
    "kind": "linear",
    "decode": {"fixed": 0.01, "per_rollout": 4e-5, "per_kv_token": 2e-8},
    "prefill": {"fixed": 0.01, "per_token": 1e-5},
    "score": {"fixed": 0.05, "per_token": 1e-5},
    "stages": {
        "old_log_prob": {"per_token": 5e-5},
        "ref": {"per_token": 6e-5},
        "update_actor": {"fixed": 0.5, "per_token": 2e-4},
        "update_weights": 1.0,
    },
}
ALL = 24
"""Steps of a log here. All of them fitted, none is held back and judged, which takes half of the seconds."""
TRUTH = CostTerms(
    decode=1.3,
    old_log_prob=1.5,
    old_log_prob_s=0.4,
    ref=0.8,
    ref_s=0.4,
    adv_s=0.05,
    update_actor=1.2,
    update_actor_s=2.0,
    update_weights_s=0.3,
    gen_phase_s=4.0,
    other_s=0.7,
)


@contextmanager
def short_chains() -> Iterator[None]:
    """A seventh of the sweeps, for fits of whose draws nothing is judged but their middle, coarsely: a test of
    words, files, widths or what is left out. Accuracy and intervals are judged of whole chains."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(posterior, "_SWEEPS", (25, 8))
        yield


def fit_scenario(**changes: Any) -> Scenario:
    """64 rollouts a step, lengths that grow over the steps."""
    plain: dict[str, Any] = {
        "format": "oppo-scenario/1",
        "name": "small",
        "steps": ALL,
        "rollout_batch_size": 64,
        "max_response_length": 1500,
        "trace": {
            "synth": {"distribution": "lognormal", "mean": 250.0, "p99": 1200.0, "rows": 4000},
            "prompt_length": 100,
        },
        "training": {"critic": "none", "num_ppo_epochs": 1},
        "costs": dict(COSTS),
        "policy": "sequential",
        **changes,
    }
    return scenario_from_plain(plain)


def verl_log(
    path: Path,
    scenario: Scenario,
    terms: CostTerms,
    *,
    steps: int = ALL,
    noise: float = 0.01,
    seed: int = 0,
    policy: str = "sequential",
    extra: Mapping[int, Mapping[str, float]] | None = None,
) -> Path:
    """What verl would print of a run of ``scenario`` under ``terms``, a line a step."""
    costs = scenario.costs.model_copy(update={"terms": terms})
    run = simulate(scenario.model_copy(update={"costs": costs}), policy=policy, steps=steps, seed=seed)
    generator = np.random.default_rng(seed)
    lines = []
    for number, row in enumerate(run.steps.to_dict("records"), start=1):
        lengths = run.rollouts[run.rollouts[TRAINED_STEP] == number - 1][RESPONSE_LENGTH].to_numpy()
        seconds = {
            stage: float(row[f"timing_s/{stage}"]) * float(np.exp(noise * generator.standard_normal()))
            for stage in STAGES
            if row[f"timing_s/{stage}"] > 0
        }
        figures = {f"timing_s/{stage}": value for stage, value in seconds.items() if stage != "other"}
        figures["timing_s/step"] = sum(seconds.values())
        figures |= {
            "response_length/mean": float(lengths.mean()),
            "response_length/max": float(lengths.max()),
            "response_length/min": float(lengths.min()),
            "response_length/clip_ratio": float((lengths == scenario.max_response_length).mean()),
            "prompt_length/mean": 100.0,
            "perf/total_num_tokens": float(lengths.sum() + 100 * len(lengths)),
            **(extra or {}).get(number, {}),
        }
        listed = " - ".join(f"{name}:np.float64({value})" for name, value in figures.items())
        lines.append(f"(TaskRunner pid=7) step:{number} - {listed}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def seconds_of_a_step(terms: CostTerms) -> float:
    """Simulated, the mean after the first."""
    scenario = fit_scenario()
    costs = scenario.costs.model_copy(update={"terms": terms})
    run = simulate(scenario.model_copy(update={"costs": costs}), policy="sequential", seed=7, steps=12)
    return float(run.steps[TIMING_STEP].to_numpy()[1:].mean())
