"""How many GPUs there are, who has which, what they cost."""

from __future__ import annotations

from math import ceil

import pytest

from oppo_sim.costs.interface import StageTimes
from oppo_sim.costs.models import MODELS
from oppo_sim.errors import OppoError
from oppo_sim.results.summary import gpu_hours
from oppo_sim.scenario.build import Parts, build_parts, build_setup, cost_context
from oppo_sim.scenario.cluster import Split
from oppo_sim.scenario.load import load_scenario, scenario_from_plain, shipped_scenarios
from oppo_sim.scenario.splits import possible_splits
from oppo_sim.scenario.yaml_text import parse_yaml
from oppo_sim.simulation import simulate
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


def test_the_parts_of_a_split_come_in_any_order() -> None:
    assert str(Split.parse(" training:6 rollout:4xTP2  scoring:2")) == "rollout:4xTP2 scoring:2 training:6"


def test_splits_that_cannot_be_are_refused() -> None:
    for text, said in (
        ("4 and 4", "must be such as rollout:4xTP2"),
        ("rollout:4xTP1 scoring:0 training:4", "gives a part no GPU"),
        ("rollout:4xTP1 training:4 training:4", "must be such as rollout:4xTP2"),
        ("rollout:4xTP1 scoring:cpu training:4", "a reward model scores"),
    ):
        with pytest.raises(OppoError, match=said):
            load_scenario(SCENARIO, [f"cluster.split={text}"])
    with pytest.raises(OppoError, match=r"cluster.num_gpus 4 is less than the 8"):
        cost_context(load_scenario(SCENARIO, ["cluster.num_gpus=4"]))
    with pytest.raises(OppoError, match="a tensor-parallel group does not span nodes"):
        cost_context(load_scenario(SCENARIO, [APART, "cluster.num_gpus_per_node=2"]))
    with pytest.raises(OppoError, match=r"spans 2 nodes of 1 GPUs, .* take costs.kind roofline"):
        cost_context(load_scenario(SCENARIO, [APART, "cluster.num_gpus_per_node=1"]))
    wide = ["cluster.num_gpus_per_node=8", "costs.reward_model.tensor_parallel=16"]
    with pytest.raises(OppoError, match="a scoring worker does not span nodes"):
        cost_context(load_scenario(SCENARIO, wide))


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ("rollout.num_replicas=7", "rollout.num_replicas"),
        ("vllm_num_engines=7", "rollout.num_replicas"),
        ("costs.rollout.tensor_parallel=8", "costs.rollout.tensor_parallel"),
        ("placement.scoring=training", "placement.scoring"),
        ("training.num_gpus=8", "training.num_gpus"),
    ],
)
def test_a_setting_that_the_split_would_overrule_is_refused(given: str, field: str) -> None:
    """It would have gone unheeded, and a sweep over it would have compared a point with itself."""
    with pytest.raises(OppoError, match=f"--set {given}: {field} is what cluster.split decides"):
        load_scenario("h100x64-32b", ["steps=3", "warmup_steps=0", given])
    with pytest.raises(OppoError, match=r"is what cluster\.split decides"):
        load_scenario("h100x64-32b", [given, "cluster.split=rollout:14xTP4 scoring:8 training:rollout"])
    assert load_scenario("h100x64-32b", ["rollout.num_replicas=28"]).rollout.num_replicas == 28
    taken_away = load_scenario("h100x64-32b", ["cluster.split=null", given])
    assert taken_away.cluster.split is None


def test_all_splits_fit_and_the_others_are_counted() -> None:
    found = possible_splits(load_scenario(SCENARIO))
    assert str(load_scenario(SCENARIO).split) in found.possible
    assert all(Split.parse(text).num_gpus == 8 for text in found.possible)
    # Scoring may share the GPUs of training, where these are its own.
    assert any("scoring:training training:4" in text for text in found.possible)
    assert not any("scoring:training training:rollout" in text for text in found.possible)
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


def test_splits_are_counted_by_what_does_not_divide_their_gpus() -> None:
    """A mixture of experts: its experts and its tensors are divided differently."""
    ways = "tensor_parallel: 2, expert_parallel: 8, expert_tensor_parallel: 1, sharding: optimizer"
    given = load_scenario("h200x8-moe", [f"training={{{ways}, offload: true, gradient_checkpointing: true}}"])
    with pytest.raises(OppoError, match="no split of 8 GPUs can run") as refused:
        possible_splits(given)
    text = str(refused.value)
    assert "the GPUs that train are no multiple of tensor_parallel 2" in text
    assert "the GPUs that train are no multiple of expert_parallel 8 times expert_tensor_parallel 1" in text
    assert "sequence_parallel" not in text
    pairs = load_scenario(
        SCENARIO, ["costs.reward_model={kind: model, model: qwen2.5-7b, tensor_parallel: 2}"]
    )
    one = " × costs.reward_model.tensor_parallel 2 does not divide the GPUs that score"
    assert possible_splits(pairs).sentence.count(one) == 1


def test_training_apart_is_sent_its_weights_whatever_shared_gpus_did() -> None:
    """Files of ``oppo scenario init`` reshard, and a search over all splits left out asynchronous training."""
    own = "training.weight_sync={kind: reshard}"
    given = load_scenario(SCENARIO, [own])
    # As of a file: an override that the split would change is refused.
    apart = scenario_from_plain(given.to_plain(), [APART], where="f.yaml")
    assert apart.training.weight_sync.kind == "online_refit"
    assert apart.translations == (
        "training.weight_sync: reshard needs training on the rollout devices, online_refit is read",
    )
    with pytest.raises(OppoError, match=r"weight_sync\.kind is what cluster\.split decides"):
        load_scenario(SCENARIO, [own, APART])
    splits = possible_splits(given)
    assert set(splits.possible) == set(possible_splits(load_scenario(SCENARIO)).possible)
    assert "with training apart weight_sync online_refit in place of reshard" in splits.sentence
    shared = "cluster.split=rollout:4xTP2 scoring:rollout training:rollout"
    stays = scenario_from_plain(given.to_plain(), [shared], where="f.yaml")
    assert (stays.training.weight_sync.kind, stays.translations) == ("reshard", ())


def test_gpus_that_do_nothing_are_named_with_what_takes_them_also_where_memory_is_short() -> None:
    shared = {
        "format": "oppo-scenario/1",
        "rollout_batch_size": 64,
        "max_response_length": 4096,
        "trace": {"name": "reason_r1distill_math", "prompt_length": 100},
        "cluster": {"num_gpus": 8},
        "placement": {"training": "rollout"},
        "training": {"num_ppo_epochs": 1, "offload": True},
        "costs": {
            "kind": "roofline",
            "device": "H20",
            "actor_model": "qwen2.5-7b",
            "reward_model": {"kind": "verifier"},
            "rollout": {"tensor_parallel": 2},
        },
    }
    words = "6 of cluster.num_gpus 8 GPUs do nothing under rollout:1xTP2 scoring:cpu training:rollout"
    mend = 'cluster.split: "rollout:4xTP2 scoring:cpu training:rollout" has them all'
    with pytest.raises(OppoError, match=f"GB short; .*; {words}: {mend}$"):
        build_setup(scenario_from_plain(shared, where="f.yaml"))
    enough = scenario_from_plain(shared, ["rollout.num_replicas=4"], where="f.yaml")
    assert not any("do nothing" in each for each in build_setup(enough).warnings)
    lean = scenario_from_plain(shared, ["training.critic=none", "training.lora_rank=16"], where="f.yaml")
    assert f"{words}: {mend}" in build_setup(lean).warnings
    apart = scenario_from_plain(
        shared,
        ["placement.training=separate", "training.num_gpus=4", "training.lora_rank=16"],
        where="f.yaml",
    )
    (idle,) = (each for each in build_setup(apart).warnings if "do nothing" in each)
    assert idle == (
        "2 of cluster.num_gpus 8 GPUs do nothing under rollout:1xTP2 scoring:cpu training:4: cluster.split:"
        ' "rollout:2xTP2 scoring:cpu training:4" or "rollout:1xTP2 scoring:cpu training:6" has them all'
    )
    for split in ("rollout:2xTP2 scoring:cpu training:4", "rollout:1xTP2 scoring:cpu training:6"):
        whole = scenario_from_plain(
            shared, ["training.lora_rank=16", f"cluster.split={split}"], where="f.yaml"
        )
        assert not any("do nothing" in each for each in build_setup(whole).warnings)


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


def test_what_crosses_two_nodes_by_hand() -> None:
    def built(*overrides: str) -> tuple[Parts, StageTimes]:
        scenario = load_scenario("h100x16-2nodes", ["costs.draws=none", *overrides])
        parts = build_parts(scenario)
        return parts, parts.costs.training.stage_times(cost_context(scenario).nominal_batch)

    parts, times = built()
    # Weights: 14.77 billion parameters in 16 bits, converted at 20 GB/s, over 0.7 of 50 GB/s.
    weights = 2.0 * MODELS["qwen2.5-14b"].parameters
    assert times.update_weights == pytest.approx(0.5 + weights / 2e10 + weights / (0.7 * 5e10))
    # Pieces: 8 bytes a token over the link between nodes, since scoring has GPUs of its own.
    assert parts.machine.send_s_per_token == pytest.approx(8 / 5e10)
    assert built("scoring.link_bytes_per_s=1e9")[0].machine.send_s_per_token == pytest.approx(8e-9)
    for same in (
        "cluster.num_gpus_per_node=16",
        "cluster.split=rollout:8xTP2 scoring:rollout training:rollout",
    ):
        assert built(same)[0].machine.send_s_per_token == 0.0
    # Layers gathered for forward and backward and gradients reduced, (d − 1)/d of the weights each: where the
    # link is so slow that it is all that counts, half the link takes the same again.
    # Fourteen GPUs train, eight in a node: eight links cross side by side.
    slow, slower = (built(f"cluster.node_link_bytes_per_s={rate}")[1] for rate in ("1.25e8", "6.25e7"))
    tokens = 224 / 14 / 4 * (512 + 1024)
    micro = parts.costs.provenance["derived"]["actor_micro_batch_tokens"]  # type: ignore[index]
    gathered = 4 * ceil(tokens / micro) * 3 * weights * 13 / 14 / (0.7 * 8 * 1.25e8)
    assert slower.update_actor - slow.update_actor == pytest.approx(gathered)


def test_pieces_reach_the_scorer_over_the_link_between_nodes() -> None:
    """One rollout of 16 + 4 tokens: decoded in 4 s, its piece of 20 tokens on its way for 20 · 8 / 16 s, scored
    in 1 s."""
    text = """
format: oppo-scenario/1
steps: 1
rollout_batch_size: 1
max_prompt_length: 16
max_response_length: 4
"""
    plain = parse_yaml(text, "f.yaml") | {
        "trace": {"synth": {"parameters": {"mu": 9.0, "sigma": 0.01}, "rows": 4}, "prompt_length": 16},
        "costs": {
            "kind": "linear",
            "decode": {"fixed": 1.0},
            "score": {"fixed": 1.0},
            "terms": {"other_s": 0.0},
        },
        "cluster": {"num_gpus": 2, "num_gpus_per_node": 1, "node_link_bytes_per_s": 16.0},
        "policy": {"name": "rollout-overlap"},
    }
    run = simulate(scenario_from_plain(plain, [], where="f.yaml"))
    assert float(run.steps["timing_s/gen"].iloc[0]) == 4.0
    assert float(run.steps["timing_s/reward"].iloc[0]) == 20 * 8 / 16 + 1.0


def test_gpu_hours_of_a_thousand_steps() -> None:
    assert gpu_hours(36.0, 16) == pytest.approx(160.0)
