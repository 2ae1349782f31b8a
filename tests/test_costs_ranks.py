"""Rollout engines that divide experts among ranks, and attention by rollouts."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from oppo_sim.costs.devices import DEVICES
from oppo_sim.costs.hosts import HostOverheads
from oppo_sim.costs.kernels.composed_engine import ComposedEngine
from oppo_sim.costs.models import MODELS
from oppo_sim.costs.operators import touched_experts, touched_of_slowest
from oppo_sim.costs.profile import RangeCounter
from oppo_sim.costs.roofline_engine import RooflineEngine
from oppo_sim.errors import OppoError
from oppo_sim.scenario.build import build_parts
from oppo_sim.scenario.schema import Scenario
from tests.fast_setups import kernel_table

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments" / "served"))

import expert_ranks
import served_experts

ENGINE = RooflineEngine(MODELS["deepseek-v3"], DEVICES["H200"], 8, "fp8", host=HostOverheads())
EXPERTS = replace(ENGINE, expert_parallel=8)
ATTENTION = replace(EXPERTS, attention_data_parallel=8)


def test_ranks_of_experts_wait_for_the_one_that_reads_most() -> None:
    """A few tokens touch few experts, unevenly; many touch all."""
    assert EXPERTS.decode_time(1, 1000) > 1.01 * ENGINE.decode_time(1, 1000)
    assert EXPERTS.decode_time(2048, 2e6) == pytest.approx(ENGINE.decode_time(2048, 2e6), rel=1e-3)
    assert EXPERTS.prefill_time(4096, 4096 * 2048) == ENGINE.prefill_time(4096, 4096 * 2048)


def test_the_slowest_rank_by_hand() -> None:
    """Two ranks of one expert each, a token that uses one of them: one rank reads it. Independent ranks: one of
    two with chance 3/4."""
    assert touched_of_slowest(2, 1, 1.0, 2) == pytest.approx(2 * 0.75)
    assert touched_of_slowest(256, 8, 1.0, 1) == touched_experts(256, 8, 1.0)
    assert touched_of_slowest(256, 8, 1e6, 8) == pytest.approx(256)


def test_attention_of_ranks_pays_off_at_load_with_latents() -> None:
    """Weights of attention are read whole, latents of the past once in place of eight times."""
    assert ATTENTION.decode_time(8, 8e3) > EXPERTS.decode_time(8, 8e3)
    assert ATTENTION.decode_time(512, 2e6) < EXPERTS.decode_time(512, 2e6)


def test_the_rank_with_most_rollouts_is_waited_for() -> None:
    """Nine rollouts on eight ranks take as long as sixteen of the same length."""
    assert ATTENTION.decode_time(9, 9e3) == pytest.approx(ATTENTION.decode_time(16, 16e3))
    assert ATTENTION.decode_time(8, 8e3) < ATTENTION.decode_time(9, 9e3)
    work = [engine.decode_work(64, 64e3) for engine in (EXPERTS, ATTENTION)]
    assert work[0] is not None
    assert work[1] is not None
    assert work[0].flops == pytest.approx(work[1].flops)


def scenario(**rollout: object) -> Scenario:
    costs = {
        "kind": "roofline",
        "device": "H200",
        "actor_model": rollout.pop("model", "deepseek-v3"),
        "reward_model": {"kind": "verifier"},
        "rollout": {"tensor_parallel": 8, "dtype": "fp8", **rollout},
    }
    plain = {
        "rollout_batch_size": 8,
        "max_prompt_length": 16,
        "max_response_length": 16,
        "trace": {"synth": {"mean": 8.0, "p50": 7.0, "max_response_length": 16, "prompt_mean": 8.0}},
        "training": {"num_gpus": 1024, "critic": "none", "ref": False, "sharding": "full"},
        "placement": {"training": "separate"},
        "costs": costs,
    }
    return Scenario.model_validate_json(json.dumps(plain))


def test_ranks_of_attention_hold_more_latents() -> None:
    """Each GPU has all of attention's weights and an eighth of the tokens."""
    one = build_parts(scenario(expert_parallel=8)).costs.actor_kv_capacity_tokens
    ranks = build_parts(scenario(expert_parallel=8, attention_data_parallel=8)).costs.actor_kv_capacity_tokens
    assert one is not None
    assert ranks is not None
    assert 3 * one < ranks < 8 * one


@pytest.mark.parametrize(
    ("rollout", "said"),
    [
        ({"expert_parallel": 3}, "expert_parallel 3 does not divide the 8 GPUs of a replica"),
        ({"attention_data_parallel": 3}, "attention_data_parallel 3 does not divide the 8 GPUs"),
        ({"tensor_parallel": 12, "expert_parallel": 12}, "does not divide the 256 experts"),
        ({"model": "qwen2.5-7b", "expert_parallel": 2}, "the actor model has no experts"),
        ({"model": "qwen2.5-7b", "attention_data_parallel": 2}, "the actor model has no experts"),
    ],
)
def test_ranks_that_cannot_be_are_refused(rollout: dict[str, object], said: str) -> None:
    with pytest.raises(OppoError, match=said):
        build_parts(scenario(**rollout))


def test_measured_kernels_are_those_of_a_rank() -> None:
    """Two ranks with half of the rollouts and tokens each take as long as one of them."""
    shape = MODELS["qwen3-30b-a3b"]
    alone = RooflineEngine(shape, DEVICES["H200"], 2, host=HostOverheads())
    both = replace(alone, tensor_parallel=4, expert_parallel=4, attention_data_parallel=2)
    one, two = (ComposedEngine(each, kernel_table(shape), RangeCounter()) for each in (alone, both))
    for n in (2, 3, 4):
        assert two.decode_time(2 * n, 40.0 * n) == pytest.approx(one.decode_time(n, 20.0 * n))
    assert two.decode_time(3, 30.0) == pytest.approx(one.decode_time(2, 20.0))
    assert two.prefill_time(60, 600.0) == pytest.approx(one.prefill_time(30, 300.0))


def test_the_page_keeps_the_first_scoring_of_ranks() -> None:
    predicted = pd.read_csv(expert_ranks.FOLDER / "predicted_experts.csv.gz")
    rows = expert_ranks.rows()
    page = (expert_ranks.FOLDER / "README.md").read_text(encoding="utf-8")
    assert expert_ranks.page_table(predicted, rows, ["model", "attention", "kind"]) in page
    again = served_experts.errors(predicted, rows, ["kind", *expert_ranks.ENGINE, "half"])
    kept = pd.read_csv(expert_ranks.FOLDER / "scored_experts.csv")
    pd.testing.assert_frame_equal(again, kept, check_exact=False, rtol=1e-3, check_dtype=False)


def test_the_code_still_predicts_ranks_so() -> None:
    rows = expert_ranks.rows()
    some = rows[(rows["model"] == "deepseek-ai/DeepSeek-R1") & (rows["dp"] > 1)].groupby("system").head(2)
    known = pd.read_csv(expert_ranks.FOLDER / "predicted_experts.csv.gz").set_index(["row", "kind"])
    for one in served_experts.predictions(some, expert_ranks.ENGINE).itertuples():
        assert one.predicted_s == pytest.approx(known["predicted_s"][one.row, one.kind], rel=1e-3)
