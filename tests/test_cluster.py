"""How many GPUs there are, who has which, what they cost."""

from __future__ import annotations

import pytest

from oppo_sim.errors import OppoError
from oppo_sim.results.summary import gpu_hours
from oppo_sim.scenario.build import build_parts, cost_context
from oppo_sim.scenario.cluster import Split
from oppo_sim.scenario.load import load_scenario, shipped_scenarios
from oppo_sim.scenario.splits import possible_splits
from oppo_sim.sweep.axes import GridAxis
from oppo_sim.sweep.resolve import with_splits
from oppo_sim.tune.space import build_space, parse_knob

SCENARIO = "h200x8-vllm"
APART = "cluster.split=rollout:2xTP2 scoring:rollout training:4"


def test_a_split_stands_for_the_fields_that_say_it() -> None:
    scenario = load_scenario(SCENARIO, [APART])
    assert (scenario.rollout.num_replicas, scenario.costs.rollout.tensor_parallel) == (2, 2)  # type: ignore[union-attr]
    assert (scenario.placement.scoring, scenario.placement.training) == ("rollout", "separate")
    assert (scenario.scoring.num_workers, scenario.training.num_gpus) == (2, 4)
    assert scenario.num_gpus == 8
    own = load_scenario(SCENARIO, ["cluster.split=rollout:5xTP1 scoring:3 training:rollout"])
    assert (own.placement.scoring, own.scoring.num_workers, own.training.num_gpus) == ("separate", 3, None)


def test_every_shipped_scenario_has_the_split_that_its_fields_say() -> None:
    for name in shipped_scenarios():
        scenario = load_scenario(name)
        again = load_scenario(name, [f"cluster.split={scenario.split}"])
        before, after = scenario.to_plain(), again.to_plain()
        assert before | {"cluster": None} == after | {"cluster": None}, name
        assert Split.parse(str(scenario.split)) == scenario.split


def test_splits_that_cannot_be_are_refused() -> None:
    for text, said in (
        ("4 and 4", "must be such as rollout:4xTP2"),
        ("rollout:4xTP1 scoring:0 training:4", "gives a part no GPU"),
        ("rollout:4xTP1 scoring:cpu training:4", "a reward model scores"),
    ):
        with pytest.raises(OppoError, match=said):
            load_scenario(SCENARIO, [f"cluster.split={text}"])
    with pytest.raises(OppoError, match=r"cluster.num_gpus 4 is less than the 8"):
        cost_context(load_scenario(SCENARIO, ["cluster.num_gpus=4"]))
    with pytest.raises(OppoError, match="a tensor-parallel group does not span nodes"):
        cost_context(load_scenario(SCENARIO, [APART, "cluster.num_gpus_per_node=2"]))
    with pytest.raises(OppoError, match="a replica does not span nodes"):
        cost_context(load_scenario(SCENARIO, [APART, "cluster.num_gpus_per_node=1"]))


def test_all_splits_fit_and_the_others_are_counted() -> None:
    found = possible_splits(load_scenario(SCENARIO))
    assert str(load_scenario(SCENARIO).split) in found.possible
    assert all(Split.parse(text).num_gpus == 8 for text in found.possible)
    # Three GPUs cannot train with a tensor-parallel degree of 4.
    assert not any("training:3" in text for text in found.possible)
    assert f"{len(found.possible)} splits of 8 GPUs" in found.sentence
    assert sum(found.left_out.values()) > 0
    # The sweep and the search look at the same ones.
    axes, seen = with_splits(load_scenario(SCENARIO), [GridAxis("cluster.split", ("auto",))])
    assert axes[0].values == found.possible == (seen.possible if seen else None)
    space = build_space(load_scenario(SCENARIO), ["oppo"], [parse_knob("cluster.split=auto")], None)
    assert (
        next(knob for knob in space.knobs["oppo"] if knob.field == "cluster.split").choices == found.possible
    )
    assert space.starts["oppo"].knobs["cluster.split"] == str(load_scenario(SCENARIO).split)


def test_links_between_nodes_slow_gradients_and_new_weights() -> None:
    def seconds(*overrides: str) -> tuple[float, float]:
        thrifty = ("training.tensor_parallel=2", "training.gradient_checkpointing=true")
        scenario = load_scenario(SCENARIO, [APART, *thrifty, *overrides])
        costs = build_parts(scenario).costs
        times = costs.training.stage_times(cost_context(scenario).nominal_batch)
        return times.update_actor, times.update_weights

    one, apart, both = (
        seconds(),
        seconds("cluster.num_gpus_per_node=4"),
        seconds("cluster.num_gpus_per_node=2"),
    )
    # Four GPUs train: in a node of four only the new weights leave it.
    assert apart[0] == one[0]
    assert apart[1] > one[1]
    # 15.2 GB of Qwen2.5-7B in bf16 at 50 GB/s and the achievable share, instead of 450.
    assert both[1] == apart[1]
    # Gathered layers hide behind the arithmetic at 50 GB/s; at half a GB/s they do not.
    assert both[0] == one[0]
    slow = seconds("cluster.num_gpus_per_node=2", "cluster.node_link_bytes_per_s=5e8")
    assert slow[0] > both[0]
    assert slow[1] > both[1]


def test_gpu_hours_of_a_thousand_steps() -> None:
    assert gpu_hours(36.0, 16) == pytest.approx(160.0)
