"""Gathers of weights at another rate than the scenario says: an unknown of its own, told by the log."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oppo_sim.costs.section import EXACT
from oppo_sim.costs.terms import CostTerms
from oppo_sim.fit.call import fit
from oppo_sim.fit.estimate import judge_rest
from oppo_sim.fit.log.reading import read_step_log
from oppo_sim.fit.log.step_log import StepLog
from oppo_sim.fit.sources import open_log
from oppo_sim.fit.terms import gathers
from oppo_sim.fit.terms.features import build_features
from oppo_sim.fit.terms.gathers import GATHER, gathers_of
from oppo_sim.scenario.build import build_parts
from oppo_sim.scenario.load import load_scenario
from oppo_sim.simulation import simulate
from tests.fit_logs import fit_scenario, verl_log

TRUTH = CostTerms(gen_phase_s=3.0, old_log_prob_s=0.2, update_actor_s=0.3, other_s=0.2)
STEPS = 40
SAID = 0.70


def sharded(
    link: float,
    device: str = "A100-80-PCIe",
    *,
    mean: float = 150.0,
    last_factor: float = 6.0,
    cluster: dict[str, float] | None = None,
    **training: Any,
) -> Any:
    """A 7B model on four devices whose micro-batches are few rollouts, so that gathers may be the slower; short
    responses first, six times as long at the end."""
    return fit_scenario(
        steps=STEPS,
        trace={
            "synth": {
                "distribution": "lognormal",
                "mean": mean,
                "p99": min(3.0 * mean, 1400.0),
                "rows": 64 * STEPS,
                "steps": STEPS,
                "drift": {"kind": "linear", "last_factor": last_factor},
            },
            "prompt_length": 100,
            "sampling": "by_step",
        },
        training={
            "critic": "none",
            "ref": False,
            "num_gpus": 4,
            "gradient_checkpointing": True,
            "micro_batch_rollouts": 8,
            "weight_sync": {"kind": "reshard"},
            **training,
        },
        costs={
            "kind": "roofline",
            "device": device,
            "actor_model": "qwen2.5-7b",
            "reward_model": {"kind": "verifier"},
            "rollout": {"sleep_mode": True},
            "training": {"achievable": {"link": link}},
        },
        **({"cluster": cluster, "rollout": {"num_replicas": 4}} if cluster else {}),
    )


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a cluster whose gathers reach half of the rate that is assumed."""
    return verl_log(
        tmp_path_factory.mktemp("log") / "a.log", sharded(SAID / 2), TRUTH, steps=STEPS, noise=0.004
    )


def features_of(log: Path, scenario: Any) -> tuple[Any, StepLog]:
    return build_features(read_step_log(log, "verl"), scenario)


def test_a_factor_on_gathers_is_that_of_their_rate(log: Path) -> None:
    believed, _ = features_of(log, sharded(SAID))
    assert set(believed.gathers) == {"old_log_prob", "update_actor"}
    for factor in (0.8, 1.0, 2.0, 6.0):
        other, _ = features_of(log, sharded(SAID / factor))
        for stage, one in believed.gathers.items():
            found = one.seconds(np.ones(1), np.full(1, factor))
            assert found == pytest.approx(other.stages[stage], rel=1e-7)


def test_nothing_is_unknown_where_nothing_waits_for_gathers(log: Path) -> None:
    over_nvlink = sharded(SAID, "A100-80", micro_batch_rollouts=16)
    assert not features_of(log, over_nvlink)[0].gathers
    whole = build_parts(sharded(SAID, sharding="optimizer")).costs.training
    linear = build_parts(fit_scenario()).costs.training
    for training in (whole, linear):
        assert gathers_of(training, pytest.fail) == {}


def test_a_run_whose_gathers_are_slower_than_said_is_predicted_where_it_computes(
    log: Path, tmp_path: Path
) -> None:
    result = fit(log, sharded(SAID), fit_steps=15, draws=200, folder=tmp_path / "fit")
    (held,) = result.held_out
    update = next(each for each in held.judgements if each.column == "timing_s/update_actor").model
    assert update.p90 < 0.06
    assert float(np.median(result.posterior.terms[GATHER])) == pytest.approx(2.0, rel=0.1)
    # The written scenario has the link as it was: factors and seconds stand for it.
    written = load_scenario(tmp_path / "fit" / "scenario.yaml")
    point = written.costs.model_copy(update={"draws": EXACT})
    again = simulate(written.model_copy(update={"costs": point}), policy="sequential").steps
    true = sharded(SAID / 2)
    truth = true.costs.model_copy(update={"terms": TRUTH})
    before = simulate(true.model_copy(update={"costs": truth}), policy="sequential").steps
    for stage in ("old_log_prob", "update_actor"):
        ratio = (again[f"timing_s/{stage}"] / before[f"timing_s/{stage}"]).to_numpy()
        assert np.median(np.abs(ratio - 1.0)) < 0.1
        assert ratio.mean() == pytest.approx(1.0, abs=0.05)


def test_between_nodes_intervals_hold_gathers_at_a_third_of_the_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hidden behind the arithmetic of long responses, all of an update of short ones."""

    def scenario(link_bytes_per_s: float) -> Any:
        nodes = {"num_gpus_per_node": 2, "node_link_bytes_per_s": link_bytes_per_s}
        return sharded(SAID, "A100-80", mean=900.0, last_factor=0.03, cluster=nodes, micro_batch_rollouts=16)

    path = verl_log(tmp_path / "nodes.log", scenario(1.67e10), TRUTH, steps=STEPS, noise=0.004)

    def share_inside() -> float:
        held = judge_rest(open_log(path), scenario(5e10), fit_steps=15, draws=400)
        found = next(each for each in held.judgements if each.column == "timing_s/update_actor").prediction
        return float(np.mean((found.low <= found.measured) & (found.measured <= found.high)))

    assert share_inside() > 0.9
    monkeypatch.setattr(gathers, "BETWEEN_NODES", gathers.PRIOR)  # as within a node
    assert share_inside() < 0.8
