"""Other frameworks' names are translated, and never silently."""

from typing import Any

import pytest

from oppo_sim.costs.roofline_parts import RolloutEngine, TrainingDevices
from oppo_sim.errors import OppoError
from oppo_sim.scenario.aliases import ALIASES
from oppo_sim.scenario.build import build_setup
from oppo_sim.scenario.load import scenario_from_plain
from oppo_sim.scenario.schema import Scenario
from oppo_sim.scenario.yaml_text import parse_yaml

BASE = """
format: oppo-scenario/1
max_response_length: 1024
trace: {name: math_rl_llama3b_amc_aime}
costs: {kind: linear, decode: {fixed: 0.01}}
"""


def read(text: str) -> Scenario:
    sized = (
        "train_batch_size",
        "num_prompts_per_step",
        "rollout_batch_size",
        "{batch_size",
        "over_sampling_batch_size: 128",
    )
    extra = (
        ""
        if text.startswith(("batch_size", *sized)) or any(name in text for name in sized)
        else "rollout_batch_size: 112\n"
    )
    return scenario_from_plain(parse_yaml(BASE + extra + text, "f.yaml"), where="f.yaml")


def value_at(scenario: Scenario, path: str) -> Any:
    node: Any = scenario.to_plain()
    for part in path.split("."):
        node = node[part]
    return node


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("train_batch_size: 64", "rollout_batch_size", 64),
        ("batch_size: 64", "rollout_batch_size", 64),
        ("data: {train_batch_size: 64}", "rollout_batch_size", 64),
        ("data.train_batch_size: 64", "rollout_batch_size", 64),
        ("data: {train_batch_size: 8}\nactor_rollout_ref: {rollout: {n: 8}}", "rollout_batch_size", 64),
        ("num_prompts_per_step: 8\nnum_generations_per_prompt: 4", "rollout_batch_size", 32),
        ("rollout: {batch_size: 64}", "rollout_batch_size", 64),
        ("rollout: {n: 8}", "group_size", 8),
        ("n_samples_per_prompt: 8", "group_size", 8),
        ("over_sampling_batch_size: 128\nrollout_batch_size: 112", "policy.overcommit", 16),
        ("policy: {over_sampling_batch_size: 128}\nrollout_batch_size: 112", "policy.overcommit", 16),
        ("train_batch_size: 100\nover_sampling_batch_size: 128", "policy.overcommit", 28),
        ("max_additional_running_prompts: 4", "policy.overcommit", 4),
        ("max_additional_running_prompts: 4\ngroup_size: 8", "policy.overcommit", 32),
        (
            "trainer: {v1: {colocate_async: {num_warmup_batches: 2}}}\nrollout_batch_size: 112",
            "policy.overcommit",
            224,
        ),
        ("num_warmup_batches: 1.5\nrollout_batch_size: 64", "policy.overcommit", 96),
        ("num_warmup_batches: 0.67\nrollout_batch_size: 24\ngroup_size: 8", "policy.overcommit", 16),
        ("recompute_kv_cache_after_weight_updates: false", "rollout.clear_kv_cache_on_weight_sync", False),
        ("rollout: {clear_cache: false}", "rollout.clear_kv_cache_on_weight_sync", False),
        (
            "fully_async: {clear_kv_cache_on_weight_sync: false}",
            "rollout.clear_kv_cache_on_weight_sync",
            False,
        ),
        ("policy: async\nmax_staleness_steps: 4", "policy.max_staleness", 4),
        ("policy: {name: async, max_head_offpolicyness: 4}", "policy.max_staleness", 4),
        ("policy: async\nmax_off_policy_steps: 4", "policy.max_staleness", 4),
        (
            (
                "policy: async\ntrainer: {v1: {sampler: {max_off_policy_threshold: 4,"
                " max_off_policy_strategy: wait}}}"
            ),
            "policy.max_staleness",
            3,
        ),
        ("policy: async\nmax_trajectory_age_steps: 4", "policy.max_staleness", 4),
        ("policy: async\nmax_lag: 4", "policy.max_staleness", 4),
        (
            "policy: async\nasync_training: {staleness_threshold: 1.0, partial_rollout: true}",
            "policy.max_staleness",
            1,
        ),
        ("policies: {async: {max_lag: 4}}", "policies.async.max_staleness", 4),
        ("stream_interval: 64", "policy.chunk_size", 64),
        ("max_new_tokens: 1024", "max_response_length", 1024),
        ("data: {max_response_length: 1024, max_prompt_length: 77}", "max_prompt_length", 77),
        ("max_inflight: 64\nrollout: {num_replicas: 4}", "rollout.max_num_seqs", 16),
        ("max_concurrent_rollouts: 64", "rollout.max_num_seqs", 64),
        ("max_running_requests: 64\nrollout: {num_replicas: 4}", "rollout.max_num_seqs", 64),
        ("ppo_epochs: 2", "training.num_ppo_epochs", 2),
        ("training: {ppo_epochs: 2}", "training.num_ppo_epochs", 2),
        ("num_iterations: 2", "training.num_ppo_epochs", 2),
        ("train: {max_epochs: 2}", "training.num_ppo_epochs", 2),
        ("num_steps_per_rollout: 4", "training.num_mini_batches", 4),
        ("actor: {ppo_n_minibatches: 4, lora_rank: 8}", "training.num_mini_batches", 4),
        ("lora_r: 16", "training.lora_rank", 16),
        (
            "actor_rollout_ref: {model: {lora_rank: 8, lora: {merge: true}}}",
            "training.lora_merge",
            True,
        ),
        (
            "grpo: {num_prompts_per_step: 8, num_generations_per_prompt: 4}",
            "rollout_batch_size",
            32,
        ),
        (
            "policy: async\ngrpo: {async_grpo: {max_trajectory_age_steps: 2, in_flight_weight_updates: true,"
            " recompute_kv_cache_after_weight_updates: false}}",
            "policy.max_staleness",
            2,
        ),
        ("grpo: {use_dynamic_sampling: false}", "dynamic_sampling.enable", False),
        ("max_tokens_per_gpu: 20480", "training.micro_batch_tokens", 20480),
        ("log_probs_max_tokens_per_gpu: 40960", "training.log_prob_micro_batch_tokens", 40960),
        ("algorithm: {adv_estimator: grpo}", "training.critic", "none"),
        ("advantage_estimator: reinforce_plus_plus", "training.critic", "none"),
        ("tensor_model_parallel_size: 2", "training.tensor_parallel", 2),
        (
            "expert_tensor_parallel_size: 1\ntensor_model_parallel_size: 1",
            "training.expert_tensor_parallel",
            1,
        ),
        (
            "actor_rollout_ref: {actor: {ppo_epochs: 2, ppo_mini_batch_size: 28}}",
            "training.num_mini_batches",
            4,
        ),
    ],
)
def test_a_name_of_another_framework_is_translated_and_said(text: str, path: str, value: Any) -> None:
    scenario = read(text)
    found = value_at(scenario, path)
    assert (type(found), found) == (type(value), value)
    assert any(path in sentence for sentence in scenario.translations)


VERL = """
format: oppo-scenario/1
rollout_batch_size: 512
max_prompt_length: 2048
max_response_length: 8096
trace: {name: math_rl_llama3b_amc_aime}
training: {num_gpus: 4, critic: none}
placement: {training: rollout}
costs: {kind: roofline, device: A800-80, actor_model: qwen2.5-3b, reward_model: {kind: verifier}}
"""


def verl(rollout: str) -> Scenario:
    return scenario_from_plain(
        parse_yaml(f"{VERL}actor_rollout_ref: {{{rollout}}}", "f.yaml"), where="f.yaml"
    )


@pytest.mark.parametrize(
    ("rollout", "host"),
    [
        ("mode: async, enforce_eager: false, name: vllm", "vllm-async"),
        ("mode: sync, enforce_eager: true", "vllm-eager"),
        ("name: sglang", "sglang"),
        ("name: trtllm", "trtllm"),
        ("name: hf", "generate"),
        ("mode: sync, name: vllm, enforce_eager: false", "vllm"),
    ],
)
def test_an_engines_settings_choose_the_host_preset(rollout: str, host: str) -> None:
    scenario = verl(f"rollout: {{{rollout}}}")
    assert scenario.costs.rollout.host == host  # type: ignore[union-attr]
    assert len(scenario.translations) == rollout.count(":")


def test_an_engine_setting_that_stands_for_nothing_known_is_refused() -> None:
    with pytest.raises(
        OppoError, match=r"rollout\.name is 'tgi' but must be one of vllm, sglang, trtllm, hf; or give"
    ):
        verl("rollout: {name: tgi}")
    with pytest.raises(OppoError, match=r"disagrees with costs\.rollout\.host"):
        verl("rollout: {mode: async, enforce_eager: true}")


def test_an_estimator_of_advantages_says_whether_there_is_a_critic() -> None:
    for given in ("algorithm: {adv_estimator: gae}", "advantage_estimator: ppo"):
        scenario = read(given)
        assert scenario.training.critic == "separate"
        assert "is what training.critic stands for without it" in scenario.translations[-1]
    for given, words in (
        ("adv_estimator: mine", "'mine', of which it is not known whether it takes a critic: give training"),
        ("adv_estimator: remax", "one more response a prompt: that is not simulated"),
        ("adv_estimator: grpo\ntraining: {critic: separate}", "disagrees with training.critic"),
    ):
        with pytest.raises(OppoError, match=words):
            read(given)


def test_a_rollout_batch_size_that_counts_prompts_elsewhere_is_said() -> None:
    slime = read("rollout_batch_size: 32\nn_samples_per_prompt: 8")
    assert slime.rollout_batch_size == 32
    assert slime.translations[-1] == (
        "rollout_batch_size: 32 counts rollouts here, 4 prompts of 8; beside n_samples_per_prompt it counts"
        " prompts in slime, OpenRLHF and ROLL: for 32 prompts give 256"
    )
    for silent in ("rollout_batch_size: 32\ngroup_size: 8", "data: {train_batch_size: 32}\nrollout: {n: 8}"):
        assert not any("prompts of" in each for each in read(silent).translations)


def test_the_train_batch_size_of_openrlhf_is_told_from_a_batch_of_rollouts() -> None:
    said = "of OpenRLHF's, the rollouts of one update, give training"
    with pytest.raises(OppoError, match=rf"differ by group_size 8: {said}\.num_mini_batches: 8 instead"):
        read("rollout_batch_size: 1024\nn_samples_per_prompt: 8\ntrain_batch_size: 128")
    with pytest.raises(OppoError, match=rf"keep one; {said}\.num_mini_batches instead"):
        read("rollout_batch_size: 100\ntrain_batch_size: 64")
    with pytest.raises(OppoError, match="it is all of rollout_batch_size: remove it"):
        read("rollout_batch_size: 64\nn_samples_per_prompt: 8\ntrain_batch_size: 64")
    assert read("rollout_batch_size: 64\ntrain_batch_size: 64").rollout_batch_size == 64


def test_lengths_and_packing_by_the_flags_of_openrlhf_and_slime_are_answered() -> None:
    with pytest.raises(OppoError) as refused:
        read("generate_max_len: 64\npacking_samples: true\nasync_train: true")
    for said in (
        "generate_max_len (max_response_length)",
        "packing_samples (training.remove_padding)",
        "async_train (policy.name, true: one-step-off)",
    ):
        assert said in str(refused.value)
    with pytest.raises(OppoError, match="rollout_max_response_len: max_response_length says it, remove this"):
        read("rollout_max_response_len: 64")


def test_megatrons_settings_of_a_trainer_are_read() -> None:
    scenario = verl(
        "actor: {megatron: {override_transformer_config:"
        " {tp_comm_overlap: true, moe_token_dispatcher_type: flex}}}"
    )
    devices = scenario.costs.training  # type: ignore[union-attr]  # roofline, as written
    assert devices.tp_comm_overlap
    assert devices.expert_dispatch == "deepep"
    with pytest.raises(OppoError, match="is 'allgather' but must be one of alltoall, flex; or give"):
        verl("actor: {megatron: {override_transformer_config: {moe_token_dispatcher_type: allgather}}}")
    piped = "pipeline_model_parallel_size: 2\nvirtual_pipeline_model_parallel_size: 3"
    assert read(f"training: {{sharding: optimizer}}\n{piped}").training.virtual_pipeline_parallel == 3


def test_the_memory_settings_of_verl_are_read() -> None:
    scenario = verl(
        "rollout: {tensor_model_parallel_size: 4, gpu_memory_utilization: 0.6, free_cache_engine: true},"
        " model: {enable_gradient_checkpointing: true},"
        " actor: {ulysses_sequence_parallel_size: 4, ppo_max_token_len_per_gpu: 10144,"
        " fsdp_config: {param_offload: true, optimizer_offload: true}},"
        " ref: {log_prob_max_token_len_per_gpu: 40576, fsdp_config: {param_offload: true}}"
    )
    training = scenario.training
    assert training.gradient_checkpointing
    assert training.sequence_parallel == 4
    assert (training.micro_batch_tokens, training.ref_micro_batch_tokens) == (10144, 40576)
    assert training.param_offload
    assert training.optimizer_offload
    assert training.ref_param_offload
    assert scenario.costs.rollout.sleep_mode  # type: ignore[union-attr]
    assert scenario.costs.rollout.tensor_parallel == 4  # type: ignore[union-attr]
    assert build_setup(scenario).costs.actor_kv_capacity_tokens


MOE = VERL.replace("qwen2.5-3b", "qwen3-30b-a3b")


def engine(text: str, *overrides: str) -> tuple[int, int]:
    """GPUs and ranks of attention of an engine."""
    scenario = scenario_from_plain(parse_yaml(MOE + text, "f.yaml"), list(overrides), where="f.yaml")
    return value_at(scenario, "costs.rollout.tensor_parallel"), value_at(
        scenario, "costs.rollout.attention_data_parallel"
    )


def test_ranks_of_attention_are_among_sglangs_gpus_and_multiply_vllms() -> None:
    for name in ("sglang_dp_size", "sglang_data_parallel_size", "dp_size", "sglang.dp_size"):
        assert engine(f"rollout_num_gpus_per_engine: 8\n{name}: 4") == (8, 4)
    verl_names = "actor_rollout_ref: {rollout: {tensor_model_parallel_size: 2, data_parallel_size: 4}}"
    assert engine(verl_names) == (8, 4)
    assert engine(verl_names, "actor_rollout_ref.rollout.tensor_model_parallel_size=1") == (4, 4)
    assert engine("data_parallel_size: 2\nvllm_tensor_parallel_size: 2") == (4, 2)
    assert engine("data_parallel_size: 1\nvllm_tensor_parallel_size: 2") == (2, 1)
    both = ["actor_rollout_ref.rollout.data_parallel_size=2", "vllm_tensor_parallel_size=4"]
    assert engine("", *both) == (8, 2)


def test_ranks_beside_the_gpus_of_an_engine_are_refused() -> None:
    with pytest.raises(OppoError, match=r"data_parallel_size 2 multiplies the GPUs of an engine, and "
                       r"costs\.rollout\.tensor_parallel is 4, all of them: give both"):  # fmt: skip
        engine("rollout_num_gpus_per_engine: 4", "actor_rollout_ref.rollout.data_parallel_size=2")
    # No ranks where there were some: of how many GPUs an engine is then, nobody says.
    ranks = "actor_rollout_ref: {rollout: {tensor_model_parallel_size: 2, data_parallel_size: 4}}"
    with pytest.raises(OppoError, match="data_parallel_size 1 multiplies"):
        engine(ranks, "actor_rollout_ref.rollout.data_parallel_size=1")


def test_the_micro_batches_of_verl_are_read_in_rollouts() -> None:
    training = verl(
        "actor: {ppo_micro_batch_size_per_gpu: 16}, rollout: {log_prob_micro_batch_size_per_gpu: 8},"
        " ref: {log_prob_micro_batch_size_per_gpu: 4}, model: {use_remove_padding: false}"
    ).training
    assert not training.remove_padding
    assert training.micro_batch_rollouts == 16
    assert training.log_prob_micro_batch_rollouts == 8
    assert training.ref_micro_batch_rollouts == 4


def test_what_was_translated_is_said_word_by_word() -> None:
    scenario = read("train_batch_size: 112\nover_sampling_batch_size: 120\npartial_rollout: true")
    assert scenario.translations == (
        "train_batch_size: 112 was read as rollout_batch_size: 112",
        "over_sampling_batch_size: 120 was read as policy.overcommit: 8",
        "partial_rollout: true agrees with policy 'oppo'",
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "train_batch_size: 64\nrollout_batch_size: 112",
            (
                "train_batch_size: 64 (= rollout_batch_size: 64) disagrees with rollout_batch_size: 112:"
                " keep one"
            ),
        ),
        (
            "train_batch_size: 64\nbatch_size: 112",
            "disagrees with rollout_batch_size: 64 (given as train_batch_size): keep one",
        ),
        (
            "policy: {overcommit: 8}\nover_sampling_batch_size: 128\nrollout_batch_size: 112",
            "(= policy.overcommit: 16) disagrees with policy.overcommit: 8",
        ),
        ("policy: {name: async, max_staleness: 2}\nmax_lag: 3", "disagrees with policy.max_staleness: 2"),
        ("response_length: 53", "disagrees with max_response_length: 1024"),
        ("over_sampling_batch_size: 100\nrollout_batch_size: 112", "is below rollout_batch_size 112"),
        (
            "over_sampling_batch_size: '128'\nrollout_batch_size: 112",
            'over_sampling_batch_size is "128" but must be a whole number',
        ),
        ("over_sampling_batch_size: 128", "cannot be translated without rollout_batch_size"),
        (
            "over_sampling_batch_size: 128\nrollout_batch_size: x",
            'cannot be translated while rollout_batch_size is "x"',
        ),
        ("group_size: 8\ntrain_batch_size: 8", "counts prompts in some frameworks and rollouts in others"),
        ("group_size: 8\nover_sampling_batch_size: 128\nrollout_batch_size: 112", "give policy.overcommit"),
        (
            "max_inflight: 65\nrollout: {num_replicas: 4}",
            "cannot be shared evenly: give rollout.max_num_seqs",
        ),
        ("max_inflight: -1", "max_inflight is -1 but must be a whole number of at least 1"),
        (
            "max_staleness_steps: 4",
            "unknown field policy.max_staleness (given as max_staleness_steps) of policy 'oppo'",
        ),
        (
            "policy: async\nmax_lag: null",
            "policy.max_staleness (given as max_lag) is null but must be a whole number",
        ),
        ("policy: async\nstaleness_threshold: 0.5", "counts whole updates"),
        ("policy: async\nmax_staleness_strategy: drop", 'only "wait" is modelled'),
        ("partial_rollout: true\npolicy: sequential", "carries nothing over an update: choose april"),
        ("partial_rollout: false", "carries unfinished rollouts over an update: choose sequential"),
        ("partial_rollout: 'yes'", 'partial_rollout is "yes" but must be true or false'),
        ("partial_rollout: true\npolicy: 'a.py:A'", "decides itself what it carries"),
        ("ppo_mini_batch_size: 30", "does not divide rollout_batch_size 112"),
        ("stream_interval: 0", "policy.chunk_size (given as stream_interval) is 0 but must be at least 1"),
        (
            "rollout: 3\nmax_running_requests: 4",
            "rollout is 3 but must be a mapping, since max_running_requests belongs there",
        ),
        ("trainer: {logger: wandb}", "unknown field trainer.logger"),
    ],
)
def test_what_cannot_be_translated_is_refused_in_one_sentence(text: str, words: str) -> None:
    with pytest.raises(OppoError) as raised:
        read(text)
    message = str(raised.value)
    assert message.startswith("f.yaml: ")
    assert words in message
    assert "\n" not in message


def test_an_alias_beside_its_equal_is_harmless() -> None:
    assert read("train_batch_size: 112\nrollout_batch_size: 112").rollout_batch_size == 112


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("policy: async\nin_flight_weight_updates: false", "partial_rollout", False),
        ("policy: async\nasync_training: {partial_rollout: true}", "partial_rollout", True),
        ("policy: async\nmax_off_policy_strategy: wait", "max_staleness_strategy", "wait"),
    ],
)
def test_modes_of_async_by_the_names_of_other_frameworks(text: str, field: str, value: object) -> None:
    assert read(text).policy.settings[field] == value


def test_verls_sampler_says_nothing_to_a_policy_that_carries_nothing() -> None:
    """Its defaults are in every configuration of the v1 trainer, the synchronous ones included."""
    sampler = "trainer: {v1: {sampler: {max_off_policy_threshold: 8, max_off_policy_strategy: drop}}}"
    run = read(f"policy: sequential\n{sampler}")
    assert run.policy.settings == {}
    (said,) = (each for each in run.translations if "agree" in each)
    assert "threshold: 8 and " in said and said.endswith("\"drop\" agree with policy 'sequential'")
    with pytest.raises(OppoError, match='only "wait" is modelled'):
        read(f"policy: async\n{sampler}")


@pytest.mark.parametrize("policy", ["inter", "oppo", "april", "partial-rollout"])
def test_verls_threshold_bounds_the_deferrals_of_synchronous_policies(policy: str) -> None:
    """A response that is deferred twice spans three versions."""
    sampler = "trainer: {v1: {sampler: {max_off_policy_threshold: 3, max_off_policy_strategy: wait}}}"
    run = read(f"policy: {policy}\n{sampler}")
    assert run.policy.settings == {"max_deferrals": 2}
    assert "trainer.v1.sampler.max_off_policy_threshold: 3 was read as policy.max_deferrals: 2" in (
        run.translations
    )
    compared = read(f"policy: sequential\npolicies: {{{policy}: {{max_off_policy_threshold: 3}}}}")
    assert compared.policies[policy] == {"max_deferrals": 2}


def test_gpus_of_verls_recipe_one_step_off_are_answered_with_the_split() -> None:
    with pytest.raises(OppoError, match=r"rollout\.nnodes: cluster\.split says it, remove this"):
        read("policy: one-step-off\nrollout: {nnodes: 2}")


def test_of_verls_rollout_correction_only_what_takes_seconds_has_a_field() -> None:
    correction = "algorithm: {rollout_correction: {bypass_mode: true, rollout_is: token}}"
    with pytest.raises(OppoError) as refused:
        read(correction)
    assert "bypass_mode (training.old_log_prob, true: behaviour)" in str(refused.value)
    assert "rollout_is (" not in str(refused.value)


def test_a_setting_of_a_policy_is_no_alias_of_itself() -> None:
    compared = read("policies: {async: {partial_rollout: false}}")
    assert compared.policies["async"]["partial_rollout"] is False
    run = read("policy: {name: async, max_staleness_strategy: wait}")
    assert run.policy.settings == {"max_staleness_strategy": "wait"}
    assert compared.translations == run.translations == ()
    with pytest.raises(OppoError, match="partial_rollout"):
        read("policy: {name: async, partial_rollout: 'yes'}")


def test_settings_of_a_policy_of_ones_own_are_left_alone() -> None:
    scenario = read("policy: {name: 'a.py:A', max_lag: 3, stream_interval: 4}")
    assert scenario.policy.settings == {"max_lag": 3, "stream_interval": 4}
    assert scenario.translations == ()


def test_every_alias_leads_to_a_field_that_exists_or_is_a_checked_statement() -> None:
    statements = {"policy.partial_rollout", "policy.max_staleness_strategy"}
    settings_of_policies = {"policy.overcommit", "policy.chunk_size", "policy.max_staleness"}
    engines = {f"costs.rollout.{name}" for name in RolloutEngine.model_fields}
    engines |= {f"costs.training.{name}" for name in TrainingDevices.model_fields}
    for alias in ALIASES.values():
        section, _, field = alias.target.partition(".")
        inner = getattr(Scenario.model_fields[section].annotation, "model_fields", {})
        known = statements | settings_of_policies | engines
        assert alias.target in known or not field or field in inner
        assert alias.target not in statements or alias.convert is not None


def test_ranks_of_training_are_not_answered_with_those_of_an_engine() -> None:
    for section, said in (
        ("actor: {megatron: {data_parallel_size: 2}}", "is not read"),
        ("rollout: {engine_kwargs: {vllm: {data_parallel_size: 2}}}", "attention_data_parallel says it"),
    ):
        with pytest.raises(OppoError, match=said):
            engine(f"actor_rollout_ref: {{{section}}}")
