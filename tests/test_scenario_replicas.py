"""verl's GPUs and those of an engine say how many engines there are."""

from pathlib import Path

import pytest

from oppo_sim.errors import OppoError
from oppo_sim.runs.evaluate import scenario_of
from oppo_sim.scenario.load import load_scenario, scenario_from_plain
from oppo_sim.scenario.schema import Scenario
from oppo_sim.scenario.yaml_text import parse_yaml
from oppo_sim.sweep.resolve import Resolver

VERL = """
format: oppo-scenario/1
rollout_batch_size: 64
max_response_length: 2048
trace: {name: reason_r1distill_math, prompt_length: 100}
training: {critic: none}
costs: {kind: roofline, device: H100, actor_model: qwen2.5-3b, reward_model: {kind: verifier}}
"""


def verl(text: str, *overrides: str) -> Scenario:
    return scenario_from_plain(parse_yaml(VERL + text, "f.yaml"), list(overrides), where="f.yaml")


def said(scenario: Scenario) -> list[str]:
    return [each for each in scenario.translations if "num_replicas" in each]


TWO = "trainer: {n_gpus_per_node: 8, nnodes: 2}\n"
ENGINE = "actor_rollout_ref: {rollout: {tensor_model_parallel_size: 4}}\n"


def test_all_gpus_of_a_verl_run_are_in_its_engines() -> None:
    scenario = verl(TWO + ENGINE)
    assert (scenario.num_gpus, scenario.rollout.num_replicas) == (16, 4)
    assert str(scenario.split) == "rollout:4xTP4 scoring:cpu training:rollout"
    assert said(scenario) == ["16 GPUs in engines of 4 GPUs are rollout.num_replicas: 4, as verl starts them"]
    assert verl(TWO + ENGINE, "costs.rollout.tensor_parallel=2").rollout.num_replicas == 8
    assert verl(TWO + ENGINE, "trainer.nnodes=1").rollout.num_replicas == 2


def test_settings_that_are_laid_over_a_file_decide_again(tmp_path: Path) -> None:
    """Nodes of another size are as many; sweeps have the engines that --set has."""
    assert verl(TWO + ENGINE, "trainer.n_gpus_per_node=4").num_gpus == 8
    larger = verl("trainer: {n_gpus_per_node: 8, nnodes: 1}\n" + ENGINE, "trainer.n_gpus_per_node=16")
    assert (larger.num_gpus, larger.rollout.num_replicas) == (16, 4)
    assert "trainer.nnodes 1 with trainer.n_gpus_per_node 16 is cluster.num_gpus: 16" in larger.translations
    (tmp_path / "f.yaml").write_text(VERL + "trainer: {n_gpus_per_node: 8}\n" + ENGINE)
    for field, values, splits in (
        ("costs.rollout.tensor_parallel", [1, 2, 8], [(8, 8), (4, 8), (1, 8)]),
        ("trainer.n_gpus_per_node", [4, 8, 16], [(1, 4), (2, 8), (4, 16)]),
        ("rollout.num_replicas", [1, 2], [(1, 8), (2, 8)]),  # given
    ):
        resolver = Resolver(load_scenario(tmp_path / "f.yaml"), steps=3)
        found = [
            scenario_of(resolver.resolve({field: value, "policy.name": "inter"}).request) for value in values
        ]
        assert [(each.rollout.num_replicas, each.num_gpus) for each in found] == splits, field
        for value, each in zip(values, found, strict=True):
            assert load_scenario(tmp_path / "f.yaml", [f"{field}={value}"]).split == each.split


@pytest.mark.parametrize("given", ["file", "set"])
def test_gpus_that_are_given_stay_under_nodes_of_another_size(given: str, tmp_path: Path) -> None:
    """In a sweep, too, whether the file gives them or --set."""
    file, overrides = tmp_path / "f.yaml", [] if given == "file" else ["cluster.num_gpus=16"]
    cluster = "cluster: {num_gpus: 16}\n" if given == "file" else ""
    nodes = (
        "trainer: {n_gpus_per_node: 8}\n" if given == "file" else "trainer: {n_gpus_per_node: 8, nnodes: 1}\n"
    )
    file.write_text(VERL + cluster + nodes + ENGINE)
    resolver = Resolver(load_scenario(file, overrides), steps=3)
    found = scenario_of(resolver.resolve({"trainer.n_gpus_per_node": 4}).request)
    alone = load_scenario(file, [*overrides, "trainer.n_gpus_per_node=4"])
    assert (found.num_gpus, found.rollout.num_replicas) == (16, alone.rollout.num_replicas) == (16, 4)
    with pytest.raises(OppoError, match=r"cluster.num_gpus_per_node 12 does not divide cluster.num_gpus 16"):
        resolver.resolve({"cluster.num_gpus_per_node": 12})


def test_gpus_that_are_no_whole_nodes_of_the_size_laid_over_them_are_refused() -> None:
    given = "cluster: {num_gpus: 8}\nrollout: {num_replicas: 2}\n" + ENGINE
    with pytest.raises(
        OppoError, match=r"n_gpus_per_node 16 does not divide cluster.num_gpus 8, .* give trainer"
    ):
        verl(given, "trainer.n_gpus_per_node=16")
    assert verl(given, "trainer.n_gpus_per_node=4").rollout.num_replicas == 2
    assert verl(given, "trainer.n_gpus_per_node=16", "trainer.nnodes=1").num_gpus == 16


def test_defaults_of_verl_are_said() -> None:
    scenario = verl("trainer: {n_gpus_per_node: 8}")
    assert (scenario.cluster.num_gpus, scenario.rollout.num_replicas) == (8, 8)
    assert "trainer.n_gpus_per_node without trainer.nnodes is one node: cluster.num_gpus: 8" in (
        scenario.translations
    )
    assert "engines of one GPU (costs.rollout.tensor_parallel; verl's own default is 2)" in said(scenario)[0]


@pytest.mark.parametrize(
    ("text", "replicas"),
    [
        (f"{TWO}rollout: {{num_replicas: 2}}\n", 2),
        (f"{TWO}cluster: {{split: 'rollout:3xTP1 scoring:cpu training:rollout'}}\n", 3),
        (f"{TWO}placement: {{training: separate}}\n", 1),
        ("cluster: {num_gpus: 16}\n", 1),  # of no framework: some may be idle
        ("trainer: {n_gpus_per_node: 6, nnodes: 1}\n" + ENGINE, 1),  # no whole engines
    ],
)
def test_what_is_given_or_not_decided_stays(text: str, replicas: int) -> None:
    scenario = verl(text)
    assert scenario.rollout.num_replicas == replicas
    assert not said(scenario)


def test_gpus_that_only_score_are_of_no_engine() -> None:
    model = "{kind: model, model: qwen2.5-1.5b}"
    scored = VERL.replace("{kind: verifier}", model) + TWO
    apart = scenario_from_plain(parse_yaml(scored, "f.yaml"), where="f.yaml")
    assert apart.rollout.num_replicas == 1
    shared = scenario_from_plain(parse_yaml(scored, "f.yaml"), ["placement.scoring=rollout"], where="f.yaml")
    assert shared.rollout.num_replicas == 16


def test_a_rollout_section_that_is_none_is_refused_all_the_same() -> None:
    for value in ("x", "null"):
        with pytest.raises(OppoError, match=r"rollout is \S+ but must be a mapping"):
            verl(TWO + ENGINE, f"rollout={value}")
