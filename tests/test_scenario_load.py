"""Scenario files are read strictly, and every mistake is said in one sentence."""

import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oppo_sim.errors import OppoError
from oppo_sim.scenario.load import load_scenario, scenario_from_plain
from oppo_sim.scenario.schema import Scenario
from oppo_sim.scenario.yaml_text import dump_yaml, parse_yaml
from oppo_sim.simulation import simulate

BASE = """
format: oppo-scenario/1
rollout_batch_size: 112
max_response_length: 1024
trace: {name: math_rl_llama3b_amc_aime}
costs: {kind: linear, decode: {fixed: 0.01}}
"""


def read(extra: str = "", *overrides: str) -> Scenario:
    return scenario_from_plain(parse_yaml(BASE + extra, "f.yaml"), overrides, where="f.yaml")


def refusal(extra: str = "", *overrides: str) -> str:
    with pytest.raises(OppoError) as raised:
        read(extra, *overrides)
    message = str(raised.value)
    assert "\n" not in message
    assert "pydantic" not in message
    return message


def test_a_minimal_file_takes_the_documented_defaults() -> None:
    scenario = read()
    assert scenario.policy.name == "oppo"
    assert scenario.policy.settings == {}
    assert scenario.group_size == 1
    assert scenario.rollout.num_replicas == 1
    assert scenario.rollout.kv_capacity_tokens is None
    assert scenario.rewards.kind == "none"
    assert scenario.translations == ()


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("steps: '8'", 'steps is "8" but must be a whole number'),
        ("steps: true", "steps is true but must be a whole number"),
        ("steps: 8.0", "steps is 8.0 but must be a whole number"),
        ("steps: 0", "steps is 0 but must be at least 1"),
        ("steps:", "steps is null but must be a whole number"),
        ("steps: 99999999", "must be at most 1000000"),
        ("seed: -1", "seed is -1 but must be at least 0"),
        ("description: 3", "description is 3 but must be text"),
        ("name: ''", 'name is "" but must have at least 1 character'),
        ("stepps: 3", "unknown field stepps: did you mean 'steps'?"),
        ("chunk_size: 3", "unknown field chunk_size: did you mean policy.chunk_size?"),
        ("num_replicas: 3", "did you mean rollout.num_replicas?"),
        ("overcomit: 3", "unknown field overcomit: did you mean policy.overcommit?"),
        ("num_repilcas: 3", "unknown field num_repilcas: did you mean rollout.num_replicas?"),
        ("chunk: 3", "unknown field chunk: did you mean policy.chunk_size?"),
        ("over_issue: 2", "unknown field over_issue: did you mean policy.over_issue?"),
        ("blue: 3", "unknown field blue: there are format, name"),
        ("rolout: {}", "unknown field rolout: did you mean 'rollout'?"),
        ("rollout: {num_replica: 3}", "unknown field rollout.num_replica: did you mean 'num_replicas'?"),
        ("rollout: {num_replicas: 0}", "rollout.num_replicas is 0 but must be at least 1"),
        ("rollout: {kv_capacity_tokens: automatic}", "must be a whole number or 'auto'"),
        ("rollout: {kv_capacity_tokens: -1}", "rollout.kv_capacity_tokens is -1 but must be at least 1"),
        ("rollout: {batching: dynamic}", "must be 'continuous' or 'static'"),
        ("rollout: {clear_kv_cache_on_weight_sync: no}", 'is "no" but must be true or false'),
        ("rollout: {clear_kv_cache_on_weight_sync: 1}", "is 1 but must be true or false"),
        ("rollout: 3", "rollout is 3 but must be a mapping"),
        ("rollout: [1]", "rollout is [1] but must be a mapping"),
        ("rollout:", "rollout is null but must be a mapping"),
        ("scoring: {max_scoring_tokens: 0}", "scoring.max_scoring_tokens is 0 but must be at least 1"),
        ("placement: {scoring: rollouts}", "must be 'separate', 'rollout' or 'training'"),
        ("placement: {interference: 0.5}", "placement.interference is 0.5 but must be at least 1"),
        ("placement: {scoring: rollout, shares_host: true}", "scoring rollout shares a device already"),
        ("policy: opo", "unknown policy 'opo': did you mean 'oppo'?"),
        ("policy: 3", "policy is 3 but must be a mapping"),
        ("policy: {name: 3}", "policy.name is 3 but must be text"),
        (
            "policy: {overcomit: 3}",
            "unknown field policy.overcomit of policy 'oppo': did you mean 'overcommit'?",
        ),
        ("policy: {overcommit: 8.0}", "8.0 means 8 times the batch: give rollouts as a whole number"),
        ("policy: {overcommit: -1}", "policy.overcommit is -1 but must be at least 0"),
        ("policy: {overcommit: '8'}", 'policy.overcommit is "8" but must be a number or a mapping'),
        ("policy: {overcommit: {min: -1}}", "policy.overcommit.min is -1 but must be at least 0"),
        ("policy: {overcommit: {min: '1'}}", 'policy.overcommit.min is "1" but must be a whole number'),
        ("policy: {overcommit: {min: 9, max: 3}}", "overcommit min 9 is above max 3"),
        ("policy: {overcommit: {minimum: 9}}", "unknown field policy.overcommit.minimum"),
        ("policy: {chunk_size: true}", "policy.chunk_size is true but must be a whole number or a mapping"),
        (
            "policy: {chunk_size: {candidates: [1, 2]}}",
            "policy.chunk_size.control is missing: it must be one of explore, race",
        ),
        (
            "policy: {chunk_size: {control: none}}",
            "policy.chunk_size.control is \"none\" but must be one of 'race', 'explore'",
        ),
        (
            "policy: {chunk_size: {control: race, candidates: [1, '2']}}",
            'policy.chunk_size.candidates[1] is "2" but must be a whole number',
        ),
        (
            "policy: {name: sequential, overcommit: 3}",
            "unknown field policy.overcommit of policy 'sequential': april, inter, oppo, … have it: set"
            " policy.name to one, or policies.NAME.overcommit where policies are compared",
        ),
        ("policies: {oppo: {}}", "policies.oppo is the scenario's own policy"),
        ("policies: {aprl: {}}", "unknown policy 'aprl': did you mean 'april'?"),
        ("policies: {april: {overcommit: x}}", 'policies.april.overcommit is "x" but must be a number'),
        ("policies: {april: 3}", "policies.april is 3 but must be a mapping"),
        ("policies: 3", "policies is 3 but must be a mapping"),
        (
            "rewards: {kind: seres}",
            "rewards.kind is \"seres\" but must be one of 'saturating', 'series', 'trace', 'none'",
        ),
        ("rewards: {}", "rewards.kind is missing: it must be one of none, saturating, series, trace"),
        ("rewards: none", 'rewards is "none" but must be a mapping'),
        ("rewards: {kind: series}", "rewards.values is missing"),
        ("rewards: {kind: series, values: []}", "rewards.values is [] but must have at least 1 item"),
        ("rewards: {kind: series, values: [1, '2']}", 'rewards.values[1] is "2" but must be a number'),
        ("rewards: {kind: series, series: [1]}", "rewards.values is missing; 1 more problem after that"),
        (
            "rewards: {kind: none, start: 3}",
            "unknown field rewards.start: there are staleness_effect, target_steps, kind",
        ),
        ("training: {weight_sync: {kind: x}}", 'training.weight_sync.kind is "x" but must be one of'),
        ("training: {critic: values_head}", "must be 'separate', 'value_head' or 'none'"),
        ("training: {stream_ref: true, ref: false}", "stream_ref: true needs ref: true"),
        ("warmup_steps: 100", "warmup_steps 100 leaves nothing of steps 100"),
        ("group_size: 5", "rollout_batch_size 112 is not a multiple of group_size 5"),
        ("steps: x\nseed: x\nname: 3", "2 more problems after that"),
        ("a.b: 3", "unknown field a.b"),
        (
            "data: {train_batch_size: 112, shuffle: true}",
            "unknown field data.shuffle: of data there are data.train_batch_size",
        ),
        (
            "actor_rollout_ref: {rollout: {n: 1, max_model_len: 9216}}",
            "unknown field actor_rollout_ref.rollout.max_model_len: it is not read, remove it",
        ),
        (
            "actor_rollout_ref: {actor: {use_kl_loss: true}}",
            "unknown field actor_rollout_ref.actor.use_kl_loss: training.ref says it, remove this",
        ),
        (
            "global_batch_size: 64",
            "unknown field global_batch_size: training.num_mini_batches says it, remove",
        ),
        (
            "beta: 0.04\nvllm_mode: server\nlearning_rate: 0.1\nchunk_size: 3",
            "3 settings are not read, remove them (in brackets what says it instead): beta (training.ref),"
            " vllm_mode (placement.training, server: separate, colocate: rollout), learning_rate; 1 more",
        ),
        (
            "cluster: {node_link_bytes_per_s: 400Gb}",
            "must be a number (bytes a second per GPU and direction between nodes, before achievable shares;"
            " 5e10 is the 400 Gb/s of DGX H100 and H200)",
        ),
        ("dynamic_sampling: {pass_rate: 0.4}", "must be a mapping (alpha and beta of how often a prompt"),
        ("rollout: {tensor_parallel: 2}", "did you mean costs.rollout.tensor_parallel?"),
        ("rollout: {dtype: fp8}", "did you mean costs.rollout.dtype?"),
    ],
)
def test_a_mistake_names_file_field_value_and_what_is_allowed(extra: str, words: str) -> None:
    message = refusal(extra)
    assert message.startswith("f.yaml: ")
    assert words in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty: start it with 'format: oppo-scenario/1'"),
        ("[1, 2]", "is not a mapping"),
        ("just text", "is not a mapping"),
        ("steps: 3", "format is missing but must be oppo-scenario/1"),
        ("format: oppo-scenario/2", 'format is "oppo-scenario/2" but must be oppo-scenario/1'),
        ("format: oppo-scenario/1", "rollout_batch_size is missing"),
        (
            BASE.replace("rollout_batch_size", "rollout_batch_sizes"),
            "unknown field rollout_batch_sizes: did you mean 'rollout_batch_size'?",
        ),
        (BASE.replace("{fixed: 0.01}", "{fixed: 0}"), "costs.decode.fixed is 0 but must be above 0"),
        (BASE.replace("linear", "linaer"), 'costs.kind is "linaer" but must be one of'),
        (
            BASE.replace("{kind: linear, decode: {fixed: 0.01}}", "{}"),
            "costs.kind is missing: it must be one of composed, linear, profile, roofline",
        ),
        (
            BASE.replace("decode: {fixed: 0.01}", "decoded: {fixed: 0.01}"),
            "unknown field costs.decoded: did you mean 'decode'?",
        ),
    ],
)
def test_a_file_that_is_no_scenario_is_refused(text: str, words: str) -> None:
    with pytest.raises(OppoError) as raised:
        scenario_from_plain(parse_yaml(text, "f.yaml"), where="f.yaml")
    assert str(raised.value).startswith("f.yaml")
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["steps"], "is not of the form field=value"),
        (["=3"], "is not of the form field=value"),
        (["a..b=3"], "is not of the form field=value"),
        (["steps=x"], '--set steps=x: steps is "x" but must be a whole number'),
        (["steps="], "--set steps=: steps is null"),
        (["steps=[1"], "--set steps=[1 line 1"),
        (["steps.a=3"], '--set steps.a=3: steps is {"a": 3} but must be a whole number'),
        (["steps=3", "steps.a=3"], "--set steps.a=3: steps was set to 3, which has no fields"),
        (
            ["rollout.num_replica=3"],
            "--set rollout.num_replica=3: unknown field rollout.num_replica: did you mean 'num_replicas'?",
        ),
        (["policy.overcommit=-1"], "--set policy.overcommit=-1: policy.overcommit is -1"),
        (["steps=2", "rollout.num_replicas=x"], "--set rollout.num_replicas=x: "),
        (["warmup_steps=700"], "f.yaml with --set warmup_steps=700: warmup_steps 700 leaves nothing"),
        (["train_batch_size=64", "rollout_batch_size=32"], "disagrees with rollout_batch_size: 32"),
        (
            ["max_lag=3"],
            "--set max_lag=3: unknown field policy.max_staleness (given as max_lag) of policy 'oppo'",
        ),
        (["over_sampling_batch_size=10"], "over_sampling_batch_size 10 is below rollout_batch_size 112"),
    ],
)
def test_a_wrong_override_is_named_before_the_file(overrides: list[str], words: str) -> None:
    assert words in refusal("", *overrides)


def test_an_override_wins_over_the_file_and_a_later_one_over_an_earlier_one() -> None:
    scenario = read(
        "steps: 5\nrollout: {num_replicas: 2, max_num_seqs: 8}",
        "steps=6",
        "steps=7",
        "rollout.num_replicas=3",
    )
    assert scenario.steps == 7
    assert (scenario.rollout.num_replicas, scenario.rollout.max_num_seqs) == (3, 8)


def test_an_override_in_other_words_replaces_instead_of_disagreeing() -> None:
    scenario = read("", "train_batch_size=64", "over_sampling_batch_size=80")
    assert scenario.rollout_batch_size == 64
    assert scenario.policy.settings == {"overcommit": 16}


def test_setting_a_mapping_replaces_the_section() -> None:
    scenario = read(
        "rewards: {kind: saturating, start: 1}\npolicy: {chunk_size: 64}",
        "rewards={kind: none}",
        "policy=april",
    )
    assert scenario.rewards.kind == "none"
    assert (scenario.policy.name, scenario.policy.settings) == ("april", {})
    assert read("policy: april", "policy.overcommit=8").policy.settings == {"overcommit": 8}
    assert read("", "policy={name: april, overcommit: 4}", "policy.chunk_size=64").policy.settings == {
        "overcommit": 4,
        "chunk_size": 64,
    }


def test_setting_another_policy_by_its_name_drops_what_is_not_its_own() -> None:
    text = "policy: {name: april, overcommit: 8, max_deferrals: 3}\npolicies: {inter: {overcommit: 2}}"
    renamed = read(text, "policy.name=sequential")
    assert (renamed.policy.name, renamed.policy.settings) == ("sequential", {})
    assert read(text, "policy.name=inter").policy.settings == {"max_deferrals": 3, "overcommit": 2}
    assert read(text, "policy.overcommit=4", "policy.name=inter").policy.settings["overcommit"] == 4
    assert read(text, "policy.name=april").policy.settings == {"overcommit": 8, "max_deferrals": 3}
    assert read(text, "policy.name=mine.py:Mine").policy.settings == {}


simple_values: dict[str, st.SearchStrategy[Any]] = {
    "steps": st.integers(1, 1000),
    "seed": st.integers(0, 2**63 - 1),
    "name": st.text("abc é:#'\"-01", min_size=1, max_size=10),
    "description": st.text("abc é:#'\"-01\n", max_size=10),
    "max_response_length": st.integers(1, 10_000),
    "rollout.num_replicas": st.integers(1, 64),
    "rollout.kv_capacity_tokens": st.none() | st.just("auto") | st.integers(1, 10_000_000),
    "rollout.clear_kv_cache_on_weight_sync": st.booleans(),
    "placement.interference": st.floats(1.0, 100.0),
    "policy.overcommit": st.integers(0, 100) | st.floats(0.0, 1.0),
    "policy.chunk_size": st.integers(1, 4096),
    "training.micro_batch_tokens": st.just("auto") | st.integers(1, 10**6),
}


@settings(max_examples=50, deadline=None)
@given(st.fixed_dictionaries({}, optional=simple_values))
def test_overrides_arrive_as_given_and_the_scenario_round_trips(wanted: dict[str, Any]) -> None:
    overrides = [
        f"{path}={dump_yaml(value).strip().removesuffix('...').strip()}" for path, value in wanted.items()
    ]
    scenario = read("", *overrides)
    plain = scenario.to_plain()
    for path, value in wanted.items():
        node: Any = plain
        for part in path.split("."):
            node = node[part]
        assert (type(node), node) == (type(value), value)
    again = scenario_from_plain(parse_yaml(scenario.to_yaml(), "again"))
    assert again == scenario
    assert again.content_hash == scenario.content_hash


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from(
        [
            *simple_values,
            "trace.name",
            "costs.kind",
            "policies.april.overcommit",
            "rewards.kind",
            "nonsense.deep.path",
        ]
    ),
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False)
    | st.text("ab1.-{}[]:'", max_size=6)
    | st.lists(st.integers(0, 3)),
)
def test_any_override_is_accepted_or_refused_in_one_sentence(path: str, value: Any) -> None:
    try:
        scenario = read("", f"{path}={value}")
    except OppoError as error:
        assert "\n" not in str(error)
        assert path.partition(".")[0] in str(error)
    else:
        assert scenario_from_plain(parse_yaml(scenario.to_yaml(), "again")) == scenario


def test_the_hash_is_of_the_content_alone() -> None:
    scenario = read()
    assert read("name: other\ndescription: words").content_hash == scenario.content_hash
    assert read("group_size: 1").content_hash == scenario.content_hash
    assert read("train_batch_size: 112").content_hash == scenario.content_hash
    assert read("seed: 1").content_hash != scenario.content_hash
    assert read("policy: {overcommit: 1}").content_hash != read("policy: {overcommit: 1.0}").content_hash


def test_a_scenario_cannot_be_changed_and_travels_between_processes() -> None:
    scenario = read("max_new_tokens: 1024")
    with pytest.raises(ValueError, match="frozen"):
        scenario.steps = 3  # type: ignore[misc]
    copy = pickle.loads(pickle.dumps(scenario))
    assert copy == scenario
    assert copy.translations == scenario.translations


def test_a_file_takes_its_name_and_folder(tmp_path: Path) -> None:
    path = tmp_path / "my-run.yaml"
    path.write_text(BASE, encoding="utf-8-sig")
    scenario = load_scenario(path)
    assert scenario.name == "my-run"
    assert scenario.base_dir == tmp_path
    assert scenario.source == str(path)


def test_files_that_cannot_be_read_are_one_sentence(tmp_path: Path) -> None:
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * 1_000_001)
    for path, words in [
        (binary, "is not UTF-8 text"),
        (large, "more than 200000 bytes"),
        (tmp_path, "is a folder"),
        (tmp_path / "missing.yaml", "there is no file"),
        (Path("paper-gsm8k"), "did you mean paper-gsm8k-7b"),
        (Path("zzz"), "shipped are"),
        (Path(""), "is a folder"),
    ]:
        with pytest.raises(OppoError, match=words):
            load_scenario(path)


def test_reading_a_scenario_runs_no_code_of_its_policy(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit('ran')")
    path = tmp_path / "s.yaml"
    path.write_text(BASE + "policy: {name: 'mine.py:Mine', anything: 3}\n")
    assert load_scenario(path).policy.settings == {"anything": 3}


def test_files_asked_for_beside_a_shipped_scenario_lie_where_the_user_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(
        "from oppo_sim import Policy\n\n\nclass Mine(Policy):\n"
        "    def plan(self, pool):\n        return self.refill(pool, overcommit=2, chunk_size=256)\n",
        encoding="utf-8",
    )
    (tmp_path / "lengths.csv").write_text("prompt_length,response_length\n10,20\n10,30\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    overrides = ["trace.name=null", "trace.sources=null", "trace.path=lengths.csv"]
    run = simulate("h200-single", policy="mine.py:Mine", steps=3, overrides=[*overrides, "warmup_steps=0"])
    assert set(run.rollouts["response_length"]) == {20, 30}


def test_a_pasted_configuration_is_told_of_all_that_is_not_read_at_once() -> None:
    message = refusal(
        "data: {train_files: a.parquet}\n"
        "actor_rollout_ref:\n"
        "  model: {path: Qwen/Qwen2.5-7B}\n"
        "  actor: {use_kl_loss: true, ulysses_sequence_paralel_size: 2}\n"
        "  rollout: {n: 1, multi_turn: {enable: true}}\n"
        "algorithm: {use_kl_in_reward: false}\n"
        "trainer.critic_warmup: 0\n"
        "stepps: 3"
    )
    assert message == (
        "f.yaml: 7 settings are not read, remove them (in brackets what says it instead): data.train_files,"
        " actor_rollout_ref.model.path (costs.actor_model), actor_rollout_ref.actor.use_kl_loss"
        " (training.ref), actor_rollout_ref.actor.ulysses_sequence_paralel_size (did you mean"
        " actor_rollout_ref.actor.ulysses_sequence_parallel_size?),"
        " actor_rollout_ref.rollout.multi_turn.enable (turns and tools of the trace),"
        " algorithm.use_kl_in_reward (training.ref), trainer.critic_warmup; 1 more problem after that"
    )


def test_verls_section_of_rewards_is_answered_with_what_says_it() -> None:
    message = refusal(
        "critic: {model: {path: Qwen/Qwen2.5-7B}}\n"
        "actor_rollout_ref: {rollout: {nnodes: 1, pipeline_model_parallel_size: 1}}\n"
        "reward: {num_workers: 8, reward_model: {enable_resource_pool: true, nnodes: 1,"
        " rollout: {dtype: bfloat16, tensor_model_parallel_size: 2}}}"
    )
    assert message == (
        "f.yaml: 8 settings are not read, remove them (in brackets what says it instead): critic.model.path"
        " (costs.critic_model), actor_rollout_ref.rollout.nnodes (cluster.split),"
        " actor_rollout_ref.rollout.pipeline_model_parallel_size, reward.num_workers (scoring.num_workers),"
        " reward.reward_model.enable_resource_pool (placement.scoring, true: separate, false: rollout),"
        " reward.reward_model.nnodes (cluster.split), reward.reward_model.rollout.dtype,"
        " reward.reward_model.rollout.tensor_model_parallel_size (costs.reward_model.tensor_parallel)"
    )


def test_nemo_rls_section_of_a_model_is_no_policy() -> None:
    message = refusal(
        "policy:\n"
        "  model_name: Qwen/Qwen3-8B\n"
        "  generation: {vllm_cfg: {tensor_parallel_size: 2}, colocated: {enabled: false}}\n"
        "grpo: {async_grpo: {enabled: true, max_trajectory_age_steps: 1}}"
    )
    assert message == (
        "f.yaml: policy is the scheduling policy here (policy: sequential), not NeMo RL's model; of it 3"
        " settings are not read, remove them (in brackets what says it instead): policy.model_name"
        " (costs.actor_model), policy.generation.vllm_cfg.tensor_parallel_size"
        " (costs.rollout.tensor_parallel), policy.generation.colocated.enabled (placement.training); 1 more"
        " problem after that"
    )
