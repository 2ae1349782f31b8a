"""Costs of measured kernels: what an iteration and a forward are put together from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oppo_sim.costs.achieved import Achievable
from oppo_sim.costs.devices import find_device
from oppo_sim.costs.hosts import HostOverheads
from oppo_sim.costs.kernels.composed_config import ComposedCostConfig
from oppo_sim.costs.kernels.composed_engine import ComposedEngine, ComposedPrefill
from oppo_sim.costs.models import MODELS
from oppo_sim.costs.profile import ProfileRangeWarning, RangeCounter
from oppo_sim.costs.roofline_config import RooflineCostConfig
from oppo_sim.costs.roofline_engine import RooflineEngine
from oppo_sim.scenario.build import build_parts
from oppo_sim.scenario.load import load_scenario, shipped_scenarios
from tests.fast_setups import kernel_table

SHAPE = MODELS["llama-3.2-1b"]
HOST = HostOverheads(per_iteration_s=1e-3, per_rollout_s=1e-5, captured_batch_sizes=(4, 9))


def engine(host: HostOverheads = HOST, logits: Any = "last", gap: float = 0.0) -> ComposedEngine:
    reached = Achievable(memory=0.85)
    roofline = RooflineEngine(SHAPE, find_device("H200"), 2, achievable=reached, host=host, logits=logits)
    return ComposedEngine(roofline, kernel_table(SHAPE), RangeCounter(), gap)


def softmax_s(rows: int) -> float:
    """24 bytes a logit at the share of the memory's bandwidth that is taken as reached, on two devices."""
    return rows * SHAPE.vocab_size * 24 / 2 / (4800e9 * 0.85)


def test_an_iteration_is_its_kernels_and_the_host() -> None:
    # Three rollouts: rows and collectives of the captured batch of 4, head of 3; attention between the rows of 2
    # and 5, at 9 cached tokens each.
    head = 4e-6 * 1 / 5 + 4e-6 * 4 / 5
    between = (1e-6 + 2 * 1.5e-6) * 2 / 3 + (1e-6 + 5 * 1.5e-6) / 3
    kernels = 2.1e-5 + 1e-5 + head + softmax_s(3) + between
    assert engine().decode_time(3, 27) == pytest.approx(kernels + 1e-3 + 3e-5, rel=1e-9)


def test_without_padding_rows_are_those_that_there_are() -> None:
    padded, exact = engine(), engine().without_padding()
    rows = 2e-5 + (2.1e-5 - 2e-5) * 2 / 3  # of three tokens, between those of 1 and 4
    assert padded.decode_time(3, 27) - exact.decode_time(3, 27) == pytest.approx(2.1e-5 - rows, rel=1e-6)


def test_a_gap_between_kernels_counts_a_layer() -> None:
    assert engine(gap=1e-6).decode_time(2, 20) - engine().decode_time(2, 20) == pytest.approx(16e-6)
    assert engine(gap=1e-6).prefill_time(20, 100) - engine().prefill_time(20, 100) == pytest.approx(16e-6)


def test_launches_bound_an_iteration_from_below() -> None:
    slow = engine(HostOverheads(launch_per_layer_s=1e-2))
    assert slow.decode_time(2, 20) == pytest.approx(0.16)
    assert slow.prefill_time(20, 100) == pytest.approx(0.16)


def test_a_cache_that_is_concatenated_moves_more() -> None:
    plain, moved = engine(HostOverheads()), engine(HostOverheads(kv_traffic_factor=3.0))
    assert moved.decode_time(2, 18) - plain.decode_time(2, 18) == pytest.approx(2 * (1e-6 + 2 * 1.5e-6))


@pytest.mark.parametrize(("logits", "head"), [("none", 0.0), ("last", 4e-6), ("all", 9e-6 + softmax_s(30))])
def test_a_forward_is_rows_attention_and_its_head(logits: Any, head: float) -> None:
    seconds = engine(logits=logits).prefill_time(30, 300)
    assert seconds == pytest.approx(5e-5 + 2e-5 + head + 1e-6 + 1e-8 * 30 * 40 + 1e-3, rel=1e-9)


@given(n=st.integers(1, 8), kv=st.floats(0, 400), launch=st.sampled_from([0.0, 2e-6, 3e-6, 4e-6]))
def test_lines_join_and_say_what_is_asked(n: int, kv: float, launch: float) -> None:
    found = engine(HOST.model_copy(update={"launch_per_layer_s": launch}))
    lines = found.decode_lines(n).lines
    assert [line.kv_until for line in lines] == sorted(line.kv_until for line in lines)
    for before, after in pairwise(lines):
        at = before.kv_until
        ends = before.fixed + before.per_kv_token * at, after.fixed + after.per_kv_token * at
        assert ends[0] == pytest.approx(ends[1], rel=1e-9)
    line = next(line for line in lines if kv <= line.kv_until)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ProfileRangeWarning)
        assert found.decode_time(n, kv) == pytest.approx(line.fixed + line.per_kv_token * kv, rel=1e-12)


def test_work_is_the_roofline_s_and_demands_are_its_shares_of_these_seconds() -> None:
    composed, roofline = engine(), engine().roofline
    assert composed.decode_work(3, 27) == roofline.decode_work(3, 27)
    assert composed.prefill_work(30, 300) == roofline.prefill_work(30, 300)
    assert composed.peak == roofline.peak
    one, other = composed.decode_demand(3, 27), roofline.decode_demand(3, 27)
    ratio = roofline.decode_time(3, 27) / composed.decode_time(3, 27)
    assert one.arithmetic == pytest.approx(other.arithmetic * ratio)
    one, other = composed.prefill_demand(30, 300), roofline.prefill_demand(30, 300)
    ratio = roofline.prefill_time(30, 300) / composed.prefill_time(30, 300)
    assert one.arithmetic == pytest.approx(other.arithmetic * ratio)


def test_answers_outside_the_table_are_counted_and_said_once() -> None:
    found = engine()
    with pytest.warns(ProfileRangeWarning, match="decode asked at n_running 3"):
        found.decode_time(3, 1000)
    found.decode_time(9, 30)
    with pytest.warns(ProfileRangeWarning, match="prefill asked at 500 tokens"):
        found.prefill_time(500, 500)
    assert found.ranges.counts == {"decode": 2, "prefill": 1}


# ---- the section -------------------------------------------------------------------------------------------


def built(kind: str = "composed", **costs: object) -> Any:
    scenario = load_scenario("h200-single")
    plain = {**scenario.costs.to_plain(), **costs, "kind": kind}
    if kind == "roofline":
        plain.pop("kernels", None)
    section: Any = {"composed": ComposedCostConfig, "roofline": RooflineCostConfig}[kind]
    costs_section = section.model_validate_json(json.dumps(plain))
    return build_parts(scenario.model_copy(update={"costs": costs_section})).costs


def test_memory_and_training_are_the_roofline_s() -> None:
    composed, roofline = built(), built(kind="roofline")
    assert isinstance(composed.actor, ComposedEngine)
    assert isinstance(composed.scorer, ComposedPrefill)
    assert composed.actor.roofline == roofline.actor
    assert composed.scorer.roofline == roofline.scorer
    assert composed.training == roofline.training
    assert composed.actor_kv_capacity_tokens == roofline.actor_kv_capacity_tokens
    said = composed.provenance["kernels"]["rollout"]
    assert (said["engine"], said["system"], said["scaled_from"]) == ("vllm", "h200_sxm", None)
    assert said["origin"]["kernels"]["attention"] == "silicon"


@pytest.mark.parametrize(
    ("device", "evidence", "scaled_from"),
    [("H100", "composed", None), ("A800-80", "composed", "A100-80"), ("H20", "assumed", "H100")],
)
def test_kernels_of_another_chip_are_a_guess(device: str, evidence: str, scaled_from: str | None) -> None:
    found = built(
        rollout={"device": device, "gpu_memory_utilization": 0.99}, reward_model={"kind": "verifier"}
    )
    assert (found.evidence["gen"], found.evidence["host"]) == (evidence, "assumed")
    assert found.provenance["kernels"]["rollout"]["scaled_from"] == scaled_from


def test_a_gap_between_layers_that_is_given_comes_on_top() -> None:
    plain, slow = built(kernels={}), built(kernels={"layer_gap_s": 1e-4})
    layers = plain.actor.roofline.shape.num_hidden_layers
    assert slow.actor.decode_time(8, 8000) - plain.actor.decode_time(8, 8000) == pytest.approx(layers * 1e-4)
    assert slow.scorer.prefill_time(800, 80000) > plain.scorer.prefill_time(800, 80000)


def test_shipped_scenarios_need_no_package(tmp_path: Path) -> None:
    ask = (
        "import sys; sys.modules['aiconfigurator_core'] = None\n"
        "from oppo_sim.scenario.build import build_parts\n"
        "from oppo_sim.scenario.load import load_scenario\n"
        f"for name in {shipped_scenarios()!r}:\n"
        "    parts = build_parts(load_scenario(name))\n"
        "    kind = 'roofline' if name.startswith('paper-') else 'composed'\n"
        "    assert parts.costs.provenance['kind'] == kind, name\n"
        "    parts.costs.actor.decode_time(8, 8000)\n"
    )
    subprocess.run(
        [sys.executable, "-c", ask], check=True, env={**os.environ, "OPPO_CACHE_DIR": str(tmp_path)}
    )
    assert not list(tmp_path.iterdir())
