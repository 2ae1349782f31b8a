"""The shipped scenarios load, validate, round trip and run."""

import re
from pathlib import Path

import jsonschema
import pytest

from oppo_sim.errors import OppoError
from oppo_sim.policies.registry import SHIPPED
from oppo_sim.scenario.aliases import ALIASES
from oppo_sim.scenario.build import build_setup, policy_settings_of
from oppo_sim.scenario.json_schema import json_schema
from oppo_sim.scenario.load import SHIPPED_FOLDER, load_scenario, scenario_from_plain, shipped_scenarios
from oppo_sim.scenario.schema import Scenario
from oppo_sim.scenario.template import scenario_text
from oppo_sim.scenario.yaml_text import parse_yaml
from oppo_sim.simulation import simulate

PAPER = ("paper-gsm8k-7b", "paper-opencoder-3b", "paper-stackexchange-3b", "paper-stackexchange-7b")
DOCS = Path(__file__).parent.parent / "docs" / "scenarios.md"


def minimal(extra: str = "", *overrides: str) -> Scenario:
    text = """
format: oppo-scenario/1
steps: 3
rollout_batch_size: 4
max_prompt_length: 64
max_response_length: 128
trace: {synth: {parameters: {mu: 3.0, sigma: 0.5}, rows: 50}, prompt_length: 16}
costs: {kind: linear, decode: {fixed: 0.01}}
rewards: {kind: saturating}
"""
    return scenario_from_plain(parse_yaml(text + extra, "f.yaml"), overrides, where="f.yaml")


def test_what_is_asked_for_is_shipped() -> None:
    one_node = ("agentic-a800x4", "grpo-h200x8", "h200-single", "h200x8-async", "h200x8-moe", "h200x8-vllm")
    assert shipped_scenarios() == sorted([*PAPER, *one_node, "a100x16-10b", "h100x16-2nodes", "h100x64-32b"])


@pytest.mark.parametrize("name", shipped_scenarios())
def test_a_shipped_scenario_loads_validates_and_round_trips(name: str) -> None:
    plain = parse_yaml((SHIPPED_FOLDER / f"{name}.yaml").read_text(encoding="utf-8"), name)
    validator = jsonschema.Draft202012Validator(json_schema())
    validator.validate(plain)
    scenario = load_scenario(name)
    validator.validate(scenario.to_plain())
    assert scenario.name == name
    assert scenario.description.endswith(".")
    assert scenario.translations == ()
    again = scenario_from_plain(parse_yaml(scenario.to_yaml(), name))
    assert again == scenario
    assert again.content_hash == scenario.content_hash


@pytest.mark.parametrize("name", shipped_scenarios())
def test_a_shipped_scenario_can_run_and_its_policy_is_fresh_each_time(name: str) -> None:
    setup = build_setup(load_scenario(name))
    assert setup.policy_factory() is not setup.policy_factory()
    assert setup.policy_factory().name == setup.scenario.policy.name
    assert setup.batch.rollout_batch_size == setup.scenario.rollout_batch_size
    assert max(setup.replay.response_lengths) <= setup.scenario.max_response_length
    assert max(setup.replay.prompt_lengths) <= setup.scenario.max_prompt_length
    assert setup.costs.provenance["measured"] is False


@pytest.mark.parametrize("name", shipped_scenarios())
def test_the_step_time_in_the_comments_is_what_comes_out(name: str) -> None:
    stated = re.search(
        r"sequential policy takes about ([0-9.]+) s a step",
        " ".join(scenario_text(name).replace("\n#", " ").split()),
    )
    assert stated is not None
    documented = re.search(rf"`{name}` .* ([0-9.]+) \|\n", DOCS.read_text(encoding="utf-8"))
    assert documented is not None
    assert documented.group(1) == stated.group(1)
    step_s = simulate(name, policy="sequential", keep_rollouts=False).step_s
    assert step_s == pytest.approx(float(stated.group(1)), rel=0.005)


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_machine_is_seven_gpus_and_one(name: str) -> None:
    setup = build_setup(load_scenario(name))
    machine = setup.machine
    assert (machine.num_replicas, machine.num_workers, setup.batch.rollout_batch_size) == (7, 1, 112)
    assert (machine.training_on, machine.scoring_on, machine.batching) == ("rollout", "separate", "static")


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_machine_runs_with_an_engine_as_documented(name: str) -> None:
    overrides = ["rollout.batching=continuous", "costs.rollout.host=vllm", "rollout.kv_capacity_tokens=auto"]
    machine = build_setup(load_scenario(name, overrides)).machine
    assert machine.batching == "continuous"
    assert machine.kv_capacity_tokens is not None
    assert machine.kv_capacity_tokens > 100_000


def test_the_system_before_runs_as_its_comments_say() -> None:
    comments = [line for line in scenario_text("a100x16-10b").splitlines() if line.startswith("#   --set")]
    overrides = [
        part.strip() for line in comments for part in line.removeprefix("#").split("--set ") if part.strip()
    ]
    assert len(overrides) == 8
    setup = build_setup(load_scenario("a100x16-10b", overrides))
    assert setup.machine.batching == "static"
    assert setup.costs.training.stage_times is not None
    assert load_scenario("a100x16-10b", overrides).training.weight_sync.kind == "full_export"


@pytest.mark.parametrize("policy", SHIPPED)
def test_every_policy_either_runs_on_a_single_gpu_or_says_what_it_lacks(policy: str) -> None:
    scenario = load_scenario("h200-single")
    if SHIPPED[policy].schedule != "synchronous":
        with pytest.raises(OppoError, match=r"placement\.training: separate"):
            build_setup(scenario, policy=policy)
    else:
        assert build_setup(scenario, policy=policy).policy_factory().name == policy


def test_the_template_is_a_scenario_that_runs() -> None:
    plain = parse_yaml(scenario_text(None), "template")
    jsonschema.validate(plain, json_schema())
    setup = build_setup(scenario_from_plain(plain))
    assert setup.warnings == ()


def test_the_schema_is_valid_and_refuses_what_the_reader_refuses() -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    plain = minimal().to_plain()
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid(plain)
    assert validator.is_valid({**plain, "policy": "april"})
    assert validator.is_valid({**plain, "policy": {"name": "mine.py:Mine", "whatever": 3}})
    for broken in (
        {"stepps": 3},
        {"steps": "8"},
        {"steps": True},
        {"policy": {"name": "oppo", "overcomit": 3}},
        {"policy": {"name": "sequential", "overcommit": 3}},
        {"policies": {"april": {"overcommit": -1}}},
        {"rewards": {"kind": "seres"}},
        {"rollout": {"kv_capacity_tokens": "automatic"}},
        {"format": "oppo-scenario/2"},
    ):
        assert not validator.is_valid({**plain, **broken}), broken
    assert not validator.is_valid({key: value for key, value in plain.items() if key != "format"})


def test_another_policy_takes_what_both_share_and_what_policies_says() -> None:
    scenario = minimal(
        "policy: {name: oppo, chunk_size: 64, overcommit: 2, stop_check: chunk}\npolicies: {april:"
        " {overcommit: 0.5}}"
    )
    assert policy_settings_of(scenario, "oppo") == {"chunk_size": 64, "overcommit": 2, "stop_check": "chunk"}
    assert policy_settings_of(scenario, "sequential") == {"chunk_size": 64, "stop_check": "chunk"}
    assert policy_settings_of(scenario, "april") == {"chunk_size": 64, "overcommit": 0.5}
    setup = build_setup(scenario, policy="inter", policy_settings={"overcommit": 1}, seed=7, steps=2)
    assert setup.policy_factory().stop_check == "token"
    assert (setup.seed, setup.steps) == (7, 2)


@pytest.mark.parametrize(
    ("extra", "arguments", "words"),
    [
        (
            "rollout: {kv_capacity_tokens: auto}",
            {},
            "rollout.kv_capacity_tokens auto needs a cost model that knows device memory",
        ),
        (
            "rollout: {kv_capacity_tokens: 100}",
            {},
            "cannot hold a rollout of 16 prompt + 128 response tokens",
        ),
        (
            "rollout: {batching: static, kv_capacity_tokens: 1000}",
            {},
            "static cannot have kv_capacity_tokens",
        ),
        (
            "rollout: {batching: static, kv_capacity_tokens: auto}",
            {},
            "static cannot have kv_capacity_tokens",
        ),
        (
            "rollout: {batching: static}\nplacement: {training: separate}\npolicy: async",
            {},
            "use batching continuous",
        ),
        ("policy: async", {}, "give training its own devices"),
        (
            "policy: {name: oppo, overcommit: 3}\ngroup_size: 2",
            {},
            "overcommit 3 is not a multiple of group_size 2",
        ),
        ("policy: 'nowhere.py:Mine'", {}, "nowhere.py does not exist"),
        ("", {"policy": "aprl"}, "unknown policy 'aprl'"),
        ("", {"policy": "april", "policy_settings": {"overcomit": 3}}, "has no field 'overcomit'"),
        ("", {"seed": -1}, "seed -1 is out of range"),
        ("", {"steps": 0}, "steps 0 is out of range"),
        ("warmup_steps: 2", {"steps": 2}, "leaves nothing after the warm-up of 2 steps"),
    ],
)
def test_what_cannot_run_is_refused_before_it_runs(
    extra: str, arguments: dict[str, object], words: str
) -> None:
    with pytest.raises(OppoError) as raised:
        build_setup(minimal(extra), **arguments)  # type: ignore[arg-type]
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_trace_without_rewards_cannot_give_them() -> None:
    with pytest.raises(OppoError, match="no reward column"):
        build_setup(minimal("", "rewards={kind: trace}"))


def test_a_verifier_is_not_streamed() -> None:
    scenario = load_scenario("paper-gsm8k-7b")
    assert build_setup(scenario).machine.streamable is False
    assert any("scored when a rollout has finished" in text for text in build_setup(scenario).warnings)
    with pytest.raises(OppoError, match=r"does not fit costs\.reward_model\.kind verifier"):
        build_setup(load_scenario("paper-gsm8k-7b", ["scoring.streamable=true"]))
    assert build_setup(load_scenario("paper-stackexchange-7b")).machine.streamable is True


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["trace.sampling=in_order", "rewards={kind: none}", "policy.overcommit=1"],
            "replays the same rollouts under every seed: the seed changes nothing",
        ),
        (["trace.sampling=in_order"], "only the noise of rewards depends on the seed"),
        (["rewards={kind: none}"], "controls overcommit by rewards, but rewards.kind is none"),
        (["placement.scoring=rollout"], "scoring shares devices and its interference was not measured"),
        (["placement.shares_host=true"], "scoring shares a machine and its interference was not measured"),
        (["scoring.streamable=false"], "streams chunks, but this reward model"),
    ],
)
def test_what_is_likely_not_meant_is_warned_of(overrides: list[str], words: str) -> None:
    assert any(words in text for text in build_setup(minimal("", *overrides)).warnings)
    assert build_setup(minimal()).warnings == ()


def test_epochs_that_nobody_gave_are_said_where_there_is_no_critic() -> None:
    """4 is TRL's PPO; whoever writes a GRPO run in the names of verl leaves ``ppo_epochs`` at 1."""

    def said(training: str) -> list[str]:
        warnings = build_setup(load_scenario("h200x8-vllm", [f"training={training}"])).warnings
        return [text for text in warnings if "num_ppo_epochs is not given" in text]

    shared = "gradient_checkpointing: true, offload: true, micro_batch_tokens: 20000"
    (text,) = said(f"{{critic: none, {shared}}}")
    assert "every batch is trained 4 times, as TRL's PPO does" in text
    assert "(training.num_ppo_epochs=1)" in text
    assert said(f"{{critic: none, num_ppo_epochs: 4, {shared}}}") == []
    assert said(f"{{{shared}}}") == []


def test_the_documentation_names_every_alias_and_every_shipped_scenario() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for name in (*ALIASES, *shipped_scenarios()):
        assert f"`{name}`" in text


def test_a_policy_of_ones_own_is_found_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from oppo_sim.policies import Policy\n\n\nclass Mine(Policy):\n    name = 'mine'\n    extra = 1\n\n"
        "    def plan(self, pool):\n        return self.refill(pool, overcommit=self.extra, chunk_size=64)\n"
    )
    path = tmp_path / "s.yaml"
    path.write_text(minimal().to_yaml())
    setup = build_setup(load_scenario(path, ["policy={name: 'mine.py:Mine', extra: 2}"]))
    assert setup.policy_factory().extra == 2  # type: ignore[attr-defined]
    with pytest.raises(OppoError, match="has no setting 'extras'"):
        build_setup(load_scenario(path, ["policy={name: 'mine.py:Mine', extras: 2}"]))
