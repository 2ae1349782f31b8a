"""Shapes and devices against public totals, and config.json files as they are found."""

import json
import re
from pathlib import Path

import pytest

from oppo_sim.costs.devices import DEVICES, Device, find_device
from oppo_sim.costs.hf_config import shape_of_config
from oppo_sim.costs.memory import weight_bytes
from oppo_sim.costs.models import MODELS, find_model
from oppo_sim.costs.operators import touched_experts
from oppo_sim.costs.roofline_engine import RooflineEngine
from oppo_sim.errors import OppoError

QWEN25_05B = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_act": "silu",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "vocab_size": 151936,
}

MIXTRAL_8X7B = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
}
MOONLIGHT: dict[str, object] = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 27,
    "hidden_size": 2048,
    "intermediate_size": 11264,
    "moe_intermediate_size": 1408,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 163840,
    "tie_word_embeddings": False,
}
QWEN35: dict[str, object] = {
    "model_type": "qwen3_5_moe_text",
    "num_hidden_layers": 40,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 10,
    "hidden_size": 2048,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "attn_output_gate": True,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "vocab_size": 248320,
}
NEMOTRON_NANO: dict[str, object] = {
    "model_type": "nemotron_h",
    "hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
    "num_hidden_layers": 56,
    "hidden_size": 4480,
    "intermediate_size": 15680,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "mamba_num_heads": 128,
    "mamba_head_dim": 80,
    "n_groups": 8,
    "ssm_state_size": 128,
    "conv_kernel": 4,
    "vocab_size": 131072,
    "tie_word_embeddings": False,
}
MAMBA2: dict[str, object] = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128000,
    "mamba_n_heads": 128,
    "mamba_d_head": 64,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
}
GRANITE: dict[str, object] = MAMBA2 | {
    "model_type": "granitemoehybrid",
    "num_hidden_layers": 40,
    "layer_types": (["mamba"] * 9 + ["attention"]) * 4,
    "vocab_size": 100352,
    "mamba_d_state": 128,
    "tie_word_embeddings": True,
}


# Totals of the safetensors headers as shown on the models' public pages; of the smallest two of Qwen3 without
# the output head, which their files repeat.
@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("qwen2.5-0.5b", 0.494033),
        ("qwen2.5-1.5b", 1.543714),
        ("qwen2.5-3b", 3.085939),
        ("qwen2.5-7b", 7.615617),
        ("qwen2.5-14b", 14.770034),
        ("qwen2.5-32b", 32.763876),
        ("qwen2.5-72b", 72.706204),
        ("qwen2-7b", 7.615617),
        ("qwen3-0.6b", 0.596050),
        ("qwen3-1.7b", 1.720575),
        ("qwen3-4b", 4.022468),
        ("qwen3-8b", 8.190735),
        ("qwen3-14b", 14.768307),
        ("qwen3-32b", 32.762123),
        ("qwen3-30b-a3b", 30.532123),
        ("qwen3-235b-a22b", 235.093635),
        ("deepseek-r1-distill-qwen-1.5b", 1.777088),
        ("llama-3-8b", 8.030261),
        ("llama-3-70b", 70.553706),
        ("llama-3.2-1b", 1.235814),
        ("llama-3.2-3b", 3.212750),
    ],
)
def test_preset_has_the_public_number_of_parameters(name: str, billions: float) -> None:
    assert MODELS[name].parameters == pytest.approx(billions * 1e9, abs=600)


def test_mixture_of_experts_counts_total_and_active_parameters() -> None:
    shape = shape_of_config(MIXTRAL_8X7B)
    assert shape.parameters == 46_702_792_704
    # 12.88e9 active with both embeddings (2 · 131.1e6) and norms; matrices of the layers alone: 12.61e9.
    assert shape.active_matrix_params == pytest.approx(12.61e9, rel=0.002)
    assert MODELS["qwen3-30b-a3b"].active_matrix_params == pytest.approx(
        2.7e9, rel=0.03
    )  # "A3B" counts one embedding more


def test_touched_experts_grow_from_one_tokens_to_all() -> None:
    assert touched_experts(8, 2, 1) == pytest.approx(2)
    assert touched_experts(4, 2, 2) == pytest.approx(3)  # 4·(1 − (1/2)²)
    assert touched_experts(8, 2, 1000) == pytest.approx(8)


def test_config_json_gives_the_preset(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN25_05B))
    expected = MODELS["qwen2.5-0.5b"]
    assert find_model("config.json", tmp_path) == expected
    assert find_model(str(tmp_path)) == expected
    assert find_model("Qwen/Qwen2.5-0.5B-Instruct") == expected
    assert find_model("Qwen/Qwen2.5-Coder-0.5B-Instruct") == expected
    assert find_model("Qwen/Qwen3-30B-A3B-Thinking-2507") == MODELS["qwen3-30b-a3b"]
    assert find_model("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B") == MODELS["qwen2.5-7b"]
    assert find_model(expected) is expected
    assert shape_of_config({"model_type": "qwen2_5_vl", "text_config": QWEN25_05B}) == expected


def test_dense_layers_of_a_mixture_are_recognised() -> None:
    base = {**MIXTRAL_8X7B, "num_hidden_layers": 6}
    assert shape_of_config({**base, "first_k_dense_replace": 2}).num_dense_layers == 2
    assert shape_of_config({**base, "mlp_only_layers": [0, 5]}).num_dense_layers == 2
    assert shape_of_config({**base, "decoder_sparse_step": 2}).num_dense_layers == 3
    shared = shape_of_config({**base, "moe_intermediate_size": 512, "n_shared_experts": 2})
    assert shared.shared_expert_intermediate_size == 1024


def test_llama_4_has_a_shared_expert_that_its_config_does_not_name() -> None:
    text: dict[str, object] = {
        "model_type": "llama4_text", "num_hidden_layers": 48, "hidden_size": 5120, "intermediate_size": 8192,
        "intermediate_size_mlp": 16384, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 202048, "num_local_experts": 16, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1,
    }  # fmt: skip
    scout = shape_of_config({"model_type": "llama4", "text_config": text})
    # Published: 17B active, 109B in all, pictures' 1B among them.
    assert scout.parameters / 1e9 == pytest.approx(107.8, abs=0.1)
    assert (scout.active_matrix_params + 2 * scout.lm_head_params) / 1e9 == pytest.approx(17.2, abs=0.1)
    wide = {**text, "num_local_experts": 128, "interleave_moe_layer_step": 2}
    maverick = shape_of_config(wide)
    assert maverick.num_dense_layers == 24
    assert maverick.parameters / 1e9 == pytest.approx(400, abs=2)


def test_full_and_sliding_attention_are_no_recurrent_layers() -> None:
    named = {**QWEN25_05B, "layer_types": ["sliding_attention", "full_attention"], "attn_type_list": [1, 1]}
    assert shape_of_config(named) == MODELS["qwen2.5-0.5b"]


def test_short_windows_keep_as_much_however_long_a_rollout_is() -> None:
    # gpt-oss-20b: every other layer sees 128 tokens.
    kinds = ["sliding_attention", "full_attention"] * 12
    config = {"model_type": "gpt_oss", "num_hidden_layers": 24, "hidden_size": 2880, "head_dim": 64}
    config |= {"intermediate_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8}
    config |= {"num_local_experts": 32, "num_experts_per_tok": 4, "vocab_size": 201088}
    shape = shape_of_config({**config, "layer_types": kinds, "sliding_window": 128})
    assert shape.full_layers == shape.num_sliding_layers == 12
    assert shape.kv_bytes_per_token(2.0) == 12 * 2 * 8 * 64 * 2
    assert shape.state_bytes_per_rollout(2.0) == 128 * 12 * 2 * 8 * 64 * 2
    # Longer windows, and windows that are not used, count as attention to all tokens.
    assert shape_of_config({**config, "layer_types": kinds, "sliding_window": 4096}).full_layers == 24
    # Gemma 3 says every how many layers one is full.
    gemma = {**config, "sliding_window": 1024, "sliding_window_pattern": 6}
    assert shape_of_config(gemma).full_layers == 4
    preset = MODELS["gpt-oss-20b"]
    assert preset == shape_of_config(
        {**config, "layer_types": kinds, "sliding_window": 128, "attention_bias": True}
    )
    # transformers' GptOssForCausalLM has biases of experts and sinks of attention more.
    assert preset.parameters == pytest.approx(20_914_757_184, rel=5e-4)
    assert MODELS["gpt-oss-120b"].parameters == pytest.approx(116_829_156_672, rel=5e-4)
    with pytest.raises(OppoError, match="must leave some of 24 layers that attend to all tokens"):
        shape_of_config({**config, "layer_types": ["sliding_attention"] * 24, "sliding_window": 128})


# Counted by transformers' DeepseekV2ForCausalLM and DeepseekV3ForCausalLM of the public config.json. Ours has a
# gate of the shared experts more, hidden_size of each layer with experts, which Qwen's have.
@pytest.mark.parametrize(
    ("name", "parameters", "gates"),
    [
        ("deepseek-ai/DeepSeek-V2-Lite", 15_706_484_224, 26 * 2048),
        ("moonshotai/Moonlight-16B-A3B-Instruct", 15_960_108_544, 26 * 2048),
        ("deepseek-ai/DeepSeek-R1-0528", 671_026_404_352, 58 * 7168),
        ("moonshotai/Kimi-K2-Instruct-0905", 1_026_408_209_408, 60 * 7168),
        # DeepseekV32ForCausalLM and GlmMoeDsaForCausalLM.
        ("deepseek-ai/DeepSeek-V3.2", 671_877_929_216, 58 * 7168),
        ("zai-org/GLM-5", 743_911_199_232, 75 * 6144),
    ],
)
def test_latent_attention_has_the_parameters_of_the_public_models(
    name: str, parameters: int, gates: int
) -> None:
    assert find_model(name).parameters == parameters + gates


def test_latent_attention_caches_a_latent_and_a_rotary_key_on_every_device() -> None:
    shape = shape_of_config(MOONLIGHT)
    assert shape == MODELS["moonlight-16b-a3b"]
    assert shape.kv_bytes_per_token(2.0) == shape.kv_bytes_per_token(2.0, 8) == 27 * (512 + 64) * 2
    # 16 heads, each with the latent and the rotary key, then with the latent again.
    assert shape.decode_attention_flops == 2 * 16 * (576 + 512)
    assert shape.pair_attention_flops == 2 * 16 * (192 + 128)
    # q: 2048 x 16 x 192, down: 2048 x 576, up: 512 x 16 x 256, output: 16 x 128 x 2048
    assert shape.attention_matrix_params == 6_291_456 + 1_179_648 + 2_097_152 + 4_194_304
    assert shape.replicated_attention_params == 1_179_648
    large = MODELS["deepseek-v3"]
    # "37B activated": the head counts, the embedding does not.
    assert large.active_matrix_params + large.lm_head_params == pytest.approx(37e9, rel=0.015)


def test_sparse_attention_keeps_all_tokens_and_attends_to_some() -> None:
    shape, dense = MODELS["deepseek-v3.2"], MODELS["deepseek-v3"]
    # A key of 128 columns in 8 bits with its scale beside the latent, on every device.
    assert shape.kv_bytes_per_token(2.0, 8) == dense.kv_bytes_per_token(2.0, 8) + 61 * (128 + 4)
    assert shape.state_bytes_per_rollout(2.0) == 0.0
    assert (shape.window_layers, shape.window) == (61, 2048)
    # 1536 x 64 x 128 of queries from their latent, 7168 x 128 of the key, 7168 x 64 of the heads' weights
    added = 12_582_912 + 917_504 + 458_752
    assert shape.attention_matrix_params - dense.attention_matrix_params == added
    assert shape.replicated_attention_params - dense.replicated_attention_params == added


# Counted by transformers' Qwen3NextForCausalLM, Qwen3_5ForCausalLM and Qwen3_5MoeForCausalLM of the public
# config.json, text alone.
@pytest.mark.parametrize(
    ("name", "parameters", "active"),
    [
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 79_674_391_296, 3e9),
        ("Qwen/Qwen3.5-27B", 26_895_998_464, 27e9),
        ("Qwen/Qwen3.5-35B-A3B", 34_660_610_688, 3e9),
        ("Qwen/Qwen3.5-122B-A10B", 122_111_526_912, 10e9),
        ("Qwen/Qwen3.5-397B-A17B", 396_346_350_336, 17e9),
    ],
)
def test_linear_attention_has_the_parameters_of_the_public_models(
    name: str, parameters: int, active: float
) -> None:
    shape = find_model(name)
    assert shape.parameters == parameters
    assert shape.active_matrix_params + shape.lm_head_params == pytest.approx(active, rel=0.2)
    assert shape.num_linear_layers == 3 * shape.attention_layers


def test_linear_attention_keeps_a_state_of_each_rollout_in_place_of_keys_and_values() -> None:
    shape = shape_of_config(QWEN35)
    assert shape == MODELS["qwen3.5-35b-a3b"]
    assert shape.kv_bytes_per_token(2.0) == 10 * 2 * 2 * 256 * 2
    # 32 heads of 128 x 128 in 32 bits; three inputs of a convolution of 2 x 2048 + 4096 columns in 16.
    assert shape.state_bytes_per_rollout(2.0) == 30 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)
    assert shape.state_bytes_per_rollout(2.0, 4) == shape.state_bytes_per_rollout(2.0) / 4
    # Qwen3-Next says how often a layer has full attention, not which.
    by_interval = {**QWEN35, "layer_types": None, "full_attention_interval": 4}
    assert shape_of_config(by_interval) == shape


# Counted by transformers' NemotronHForCausalLM of the public config.json; 0 where no layer has experts.
@pytest.mark.parametrize(
    ("name", "parameters", "active", "gates"),
    [
        ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", 8_888_227_328, 8.9e9, 0),
        ("nvidia/NVIDIA-Nemotron-Nano-12B-v2-Base", 12_310_001_152, 12.3e9, 0),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 31_577_937_344, 3.2e9, 23 * 2688),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16", 120_668_687_360, 12e9, 40 * 4096),
    ],
)
def test_mamba2_hybrids_have_the_parameters_of_the_public_models(
    name: str, parameters: int, active: float, gates: int
) -> None:
    shape = find_model(name)
    assert shape.parameters == parameters + gates
    assert shape.active_matrix_params + shape.lm_head_params == pytest.approx(active, rel=0.08)


def test_a_pattern_says_which_layers_are_state_spaces_attention_mlps_or_experts() -> None:
    shape = shape_of_config(NEMOTRON_NANO)
    assert shape == MODELS["nemotron-nano-9b-v2"]
    assert shape_of_config({"model_type": "NemotronH_Nano_VL_V2", "llm_config": NEMOTRON_NANO}) == shape
    words = {"M": "mamba", "*": "attention", "-": "mlp"}
    listed = [words[letter] for letter in str(NEMOTRON_NANO["hybrid_override_pattern"])]
    saved = {
        **NEMOTRON_NANO,
        "hybrid_override_pattern": None,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
    }
    assert shape_of_config({**saved, "layers_block_type": listed}) == shape  # as transformers saves it
    # Four layers of attention have keys and values; a block is a layer, so that 56 are worth 28.
    assert shape.kv_bytes_per_token(2.0) == 4 * 2 * 8 * 128 * 2
    assert (shape.attention_layers, shape.mlp_layers, shape.block_pairs) == (4, 25, 28)
    # 128 heads of 80 x 128 in 32 bits; three inputs of a convolution of 10240 + 2 x 8 x 128 columns in 16.
    assert shape.state_bytes_per_rollout(2.0) == 27 * (128 * 80 * 128 * 4 + 3 * 12288 * 2)
    assert shape.state_bytes_per_rollout(2.0, 4) == shape.state_bytes_per_rollout(2.0) / 4
    experts = shape_of_config(
        {
            **NEMOTRON_NANO,
            "hybrid_override_pattern": "MEM*E-",
            "n_routed_experts": 16,
            "num_experts_per_tok": 2,
        }
        | {"moe_intermediate_size": 512, "moe_shared_expert_intermediate_size": 1024, "moe_latent_size": 256}
    )
    assert (experts.moe_layers, experts.dense_layers, experts.mlp_layers) == (2, 1, 3)
    assert experts.expert_params == 2 * 256 * 512
    assert experts.shared_mlp_params == 4480 * (16 + 2 * 256 + 2 * 1024 + 1)


# Counted by transformers' GraniteMoeHybridForCausalLM (shapes like those of Granite 4), BambaForCausalLM and
# FalconH1ForCausalLM.
@pytest.mark.parametrize(
    ("config", "parameters", "more"),
    [
        (
            GRANITE | {"hidden_size": 4096, "intermediate_size": 768, "shared_intermediate_size": 1536}
            | {"num_local_experts": 72, "num_experts_per_tok": 10, "mamba_n_heads": 128},
            32_207_337_984,
            40 * 4096,
        ),
        (
            GRANITE | {"hidden_size": 2048, "intermediate_size": 8192, "shared_intermediate_size": 8192}
            | {"num_local_experts": 0, "mamba_n_heads": 64},
            3_191_396_096,
            0,
        ),
        (
            MAMBA2 | {"model_type": "bamba", "attn_layer_indices": [9, 18, 27], "mamba_d_head": "auto"},
            9_808_584_064,
            0,
        ),
        # Ours has the norm of the state space's output, which is an option.
        (
            MAMBA2 | {"model_type": "falcon_h1", "mamba_d_ssm": 2048, "mamba_n_heads": 32},
            8_905_186_304,
            32 * 2048,
        ),
    ],
    ids=["granite-with-experts", "granite-dense", "bamba", "falcon-h1"],
)  # fmt: skip
def test_other_mamba2_hybrids_have_the_parameters_of_transformers(
    config: dict[str, object], parameters: int, more: int
) -> None:
    assert shape_of_config(config).parameters == parameters + more


def test_falcon_h1_has_attention_and_a_state_space_in_each_layer() -> None:
    shape = shape_of_config(MAMBA2 | {"model_type": "falcon_h1", "mamba_d_ssm": 2048, "mamba_n_heads": 32})
    assert (shape.attention_layers, shape.num_linear_layers, shape.mlp_layers) == (32, 32, 32)
    assert shape.num_blocks == 64  # both between one norm and one residual


def test_kv_bytes_per_token() -> None:
    # Qwen2.5-7B: 2 (K and V) · 28 layers · 4 heads · 128 · 2 bytes
    assert MODELS["qwen2.5-7b"].kv_bytes_per_token(2.0) == 57_344
    assert MODELS["qwen2.5-7b"].kv_bytes_per_token(2.0, 4) == 14_336
    assert MODELS["qwen2.5-7b"].kv_bytes_per_token(2.0, 8) == 14_336  # a head is the least a device can hold


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "gpt2", "n_layer": 12}, "num_hidden_layers"),
        ({**QWEN25_05B, "num_key_value_heads": 3}, "not a multiple of 3 KV heads"),
        ({**QWEN25_05B, "hidden_size": 897}, "give head_dim"),
        ({**QWEN25_05B, "num_hidden_layers": "24"}, "num_hidden_layers"),
        ({**MIXTRAL_8X7B, "num_experts_per_tok": 9}, "num_experts_per_tok must be 1 to 8"),
        ({**MIXTRAL_8X7B, "decoder_sparse_step": 0}, "decoder_sparse_step"),
        ({**QWEN25_05B, "kv_lora_rank": 512}, "needs qk_nope_head_dim, qk_rope_head_dim, v_head_dim, too"),
        ({**MOONLIGHT, "index_topk": 2048}, "sparse attention needs index_n_heads, index_head_dim, too"),
        (
            {**MOONLIGHT, "index_topk": 2048, "index_n_heads": 64, "index_head_dim": 128},
            "latent attention with a q_lora_rank",
        ),
        # Qwen3-Next: three of four layers keep a state, and four times its KV was counted.
        ({**QWEN25_05B, "linear_num_value_heads": 32}, "without a KV cache .linear_num_value_heads"),
        ({**QWEN25_05B, "layer_types": ["linear_attention", "full_attention"]}, "layer_types"),
        ({**QWEN25_05B, "attn_type_list": [0, 0, 1]}, "attn_type_list"),
        ({**QWEN25_05B, "ssm_state_size": 128}, "ssm_state_size"),
        ({**QWEN25_05B, "layer_types": ["conv", "full_attention"]}, "layer_types: 'conv'. are not modelled"),
        (
            {"model_type": "jamba", "mamba_d_state": 16},
            "jamba.*Mamba, the first version.*it would need their",
        ),
        ({"model_type": "kimi_linear", "linear_attn_config": {"a": 1}}, "kimi_linear.*Kimi Delta Attention"),
        ({"model_type": "minimax", "attn_type_list": [0, 1]}, "minimax.*lightning attention"),
        ({"model_type": "mamba2", "state_size": 128}, "mamba2.*state spaces without any attention"),
        ({**NEMOTRON_NANO, "hybrid_override_pattern": "M-X*"}, "'X' is no kind of layer that is known"),
        ({**NEMOTRON_NANO, "hybrid_override_pattern": None}, "give hybrid_override_pattern"),
        ({**NEMOTRON_NANO, "hybrid_override_pattern": "M-M-"}, "some of 4 layers that attend to all tokens"),
        ({**NEMOTRON_NANO, "ssm_state_size": None}, "Mamba2 layers need ssm_state_size, too"),
        ({**GRANITE, "mamba_n_heads": None}, "Mamba2 layers need mamba_n_heads, too"),
    ],
)
def test_a_config_that_cannot_be_described_is_refused(config: dict[str, object], words: str) -> None:
    with pytest.raises(OppoError, match=words):
        shape_of_config(config)


def test_unknown_names_and_broken_files_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(OppoError, match=r"no model 'falcon-180b'; give .* 'oppo scenario models' lists"):
        find_model("falcon-180b")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(OppoError, match="cannot read the model config"):
        find_model("broken.json", tmp_path)
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(OppoError, match="not a JSON object"):
        find_model("list.json", tmp_path)
    (tmp_path / "other.json").write_text('{"model_type": "bert"}')
    with pytest.raises(OppoError, match=r"other\.json: model config"):
        find_model("other.json", tmp_path)
    with pytest.raises(OppoError, match=r"no device 'B9'; give a name that 'oppo scenario devices' lists"):
        find_device("B9")
    with pytest.raises(OppoError, match=r"did you mean 'A100-40' or 'A100-80' or 'A100-80-PCIe'\?"):
        find_device("A100")
    with pytest.raises(OppoError, match=r"did you mean 'H100'\?"):
        find_device("NVIDIA H100 80GB HBM3")


def test_devices_carry_their_sources_and_plausible_balances() -> None:
    wanted = "A100-40 A100-80 A800-40 A800-80 H100 H200 H800 H20 GH200 B200 GB200 A40 L20 L40S MI300X"
    assert set(wanted.split()) <= set(DEVICES)
    for device in DEVICES.values():
        assert re.search("datasheet|product brief", device.source)
        assert 30 < device.bf16_flops / device.hbm_bytes_per_s < 500  # operations a byte
        assert device.tf32_flops is not None and device.float32_flops is not None
        assert device.float32_flops <= device.tf32_flops < device.bf16_flops
        assert device.fp8_flops is None or device.fp8_flops == pytest.approx(2 * device.bf16_flops, rel=0.02)
    assert find_device("h200") is DEVICES["H200"]
    own = Device(
        name="own",
        hbm_bytes=1e9,
        hbm_bytes_per_s=1e9,
        bf16_flops=1e12,
        link_bytes_per_s=1e9,
        host_link_bytes_per_s=1e9,
        source="me",
    )
    assert find_device(own) is own


def test_fp8_needs_a_device_that_has_it() -> None:
    assert DEVICES["H100"].flops("fp8") == pytest.approx(2 * DEVICES["H100"].flops("bf16"))
    with pytest.raises(OppoError, match="A100-80 has no fp8"):
        DEVICES["A100-80"].flops("fp8")


def test_32_bit_dtypes_have_rates_of_their_own_and_twice_the_bytes() -> None:
    a100, shape = DEVICES["A100-80"], find_model("qwen2.5-7b")
    assert (a100.flops("tf32"), a100.flops("float32")) == (156e12, 19.5e12)
    for dtype in ("tf32", "float32"):
        assert weight_bytes(shape, dtype, True) == 2 * weight_bytes(shape, "bf16", True)
    own = a100.model_copy(update={"tf32_flops": None})
    with pytest.raises(OppoError, match="A100-80 has no tf32"):
        own.flops("tf32")


def test_a_float32_engine_multiplies_slower_and_reads_twice_as_much() -> None:
    shape, a100 = find_model("qwen2.5-7b"), DEVICES["A100-80"]
    half, full = (RooflineEngine(shape, a100, dtype=dtype) for dtype in ("bf16", "float32"))
    assert full.split.weight_bytes_per_param == full.split.activation_bytes == 4.0
    assert full.split.rates.gemm == half.split.rates.gemm * 19.5 / 312
    n, kv = 1, 0.0  # bound by memory: weights and activations are twice the bytes
    bytes_of = [engine.decode_work(n, kv) for engine in (half, full)]
    assert bytes_of[0] is not None and bytes_of[1] is not None
    assert bytes_of[1].bytes == pytest.approx(2 * bytes_of[0].bytes, rel=0.001)
    assert full.prefill_time(8192, 8192**2 / 2) > 10 * half.prefill_time(8192, 8192**2 / 2)
