"""Model shapes from Hugging Face ``config.json`` files."""

from collections.abc import Mapping
from typing import Final

from pydantic import ValidationError

from oppo_sim.costs.hf_hybrids import LINEAR, mamba2_hybrid, recurrent_layers
from oppo_sim.costs.model_shape import INDEX_FIELDS, LATENT_FIELDS, LINEAR_FIELDS, ModelShape
from oppo_sim.costs.strict import first_problem
from oppo_sim.errors import OppoError

_NOT_GATED = frozenset(
    {"falcon", "gpt_bigcode", "gpt_neox", "phi", "starcoder2"} | {"nemotron", "nemotron_h"}
)
_TIED_BY_DEFAULT = frozenset({"cohere", "cohere2", "gemma", "gemma2", "gemma3_text"})
_OF_EXPERTS: Final = (
    "num_experts_per_tok",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "moe_latent_size",
)
_FIELDS = (
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "hidden_size",
    "intermediate_size",
    "vocab_size",
    "head_dim",
    *_OF_EXPERTS,
    "linear_kind",
    "num_attention_layers",
    "num_mlp_layers",
    *LATENT_FIELDS,
    *LINEAR_FIELDS,
    *INDEX_FIELDS,
)
_SHORT_WINDOW: Final = 1024
"""Tokens: gpt-oss has 128, Gemma 3 512 or 1024."""


def shape_of_config(config: Mapping[str, object]) -> ModelShape:
    """The shape of a Hugging Face ``config.json``. Raises OppoError for a missing field or an
    architecture it cannot describe."""
    for name in ("text_config", "llm_config"):
        if isinstance(inner := config.get(name), Mapping):
            config = inner
    kind = str(config.get("model_type", ""))
    mamba2 = mamba2_hybrid(config, kind)
    linear = mamba2.get("num_linear_layers") or _linear_layers(config)
    if not linear and (recurrent := recurrent_layers(config, kind)) is not None:
        raise OppoError(
            f"model config ({kind}): layers without a KV cache ({recurrent}) are not modelled: it would need"
            " their state and their operations of a token; measure a profile instead"
        )
    config = {**_with_common_experts(config, kind), **mamba2}
    fields: dict[str, object] = {name: config[name] for name in _FIELDS if config.get(name) is not None}
    if config.get("kv_lora_rank"):
        fields.pop("head_dim", None)  # that of the rotary part, or none: the five fields say all
    else:
        for name in (*LATENT_FIELDS, *INDEX_FIELDS):
            fields.pop(name, None)
    if sliding := _sliding_layers(config):
        fields |= {"num_sliding_layers": sliding, "sliding_window": config["sliding_window"]}
    if linear:
        fields["num_linear_layers"] = linear
    else:
        for name in LINEAR_FIELDS:
            fields.pop(name, None)
    _set_experts(fields, config)
    fields["tie_word_embeddings"] = config.get("tie_word_embeddings", kind in _TIED_BY_DEFAULT)
    fields["qkv_bias"] = bool(
        config.get("attention_bias", config.get("qkv_bias", kind in ("qwen2", "qwen2_moe")))
    )
    fields["qk_norm"] = kind.startswith("qwen3")
    fields["attn_output_gate"] = bool(config.get("attn_output_gate", kind.startswith("qwen3_next")))
    fields["gated_mlp"] = kind not in _NOT_GATED
    try:
        return ModelShape.model_validate(fields)
    except ValidationError as error:
        raise OppoError(f"model config ({kind or 'no model_type'}): {first_problem(error)}") from None


def _set_experts(fields: dict[str, object], config: Mapping[str, object]) -> None:
    """Fields of experts, under their names in any family; none where a model has none."""
    experts = next(
        (config[n] for n in ("num_experts", "num_local_experts", "n_routed_experts") if config.get(n)), 0
    )
    layers = config.get("num_hidden_layers", 0)
    if experts:
        fields["num_experts"] = experts
        fields["num_dense_layers"] = _dense_layers(config, layers if isinstance(layers, int) else 0)
        if not fields["num_dense_layers"] and "moe_intermediate_size" in fields:
            fields.setdefault("intermediate_size", fields["moe_intermediate_size"])  # of no layer
        shared, width = config.get("n_shared_experts"), fields.get("moe_intermediate_size")
        if isinstance(shared, int) and isinstance(width, int):
            fields["shared_expert_intermediate_size"] = shared * width
    else:
        for name in _OF_EXPERTS:
            fields.pop(name, None)


def _linear_layers(config: Mapping[str, object]) -> int:
    """Layers of Gated DeltaNet; 0 for a model of another kind."""
    if not all(config.get(name) for name in LINEAR_FIELDS):
        return 0
    layers, kinds = config.get("num_hidden_layers"), config.get("layer_types")
    if isinstance(kinds, list | tuple):
        return sum(kind == LINEAR for kind in kinds)
    stride = config.get("full_attention_interval", 4)  # Qwen3-Next's default
    if not isinstance(layers, int) or not isinstance(stride, int) or stride < 1:
        raise OppoError("model config: full_attention_interval is not what a config.json holds")
    return layers - layers // stride


def _sliding_layers(config: Mapping[str, object]) -> int:
    """Layers with a window short enough to be of one length in all rollouts; longer ones count as full."""
    window, layers = config.get("sliding_window"), config.get("num_hidden_layers")
    if not isinstance(window, int) or not isinstance(layers, int) or not 0 < window <= _SHORT_WINDOW:
        return 0
    kinds, stride = config.get("layer_types"), config.get("sliding_window_pattern")
    if isinstance(kinds, list | tuple):
        return sum(kind == "sliding_attention" for kind in kinds)
    return layers - layers // stride if isinstance(stride, int) and stride > 0 else 0


def _with_common_experts(config: Mapping[str, object], kind: str) -> Mapping[str, object]:
    """The words for experts of Llama 4 and Granite in those of the others: ``intermediate_size`` is an
    expert's, and each layer of Llama 4 has a shared one that no field names."""
    width = config.get("intermediate_size")
    if kind.startswith("granitemoe") and (shared := config.get("shared_intermediate_size")):
        if not config.get("num_local_experts"):
            return {**config, "intermediate_size": shared}
        return {**config, "moe_intermediate_size": width, "shared_expert_intermediate_size": shared}
    if not kind.startswith("llama4"):
        return config
    return {
        **config,
        "moe_intermediate_size": width,
        "shared_expert_intermediate_size": width,
        "intermediate_size": config.get("intermediate_size_mlp", width),
        "decoder_sparse_step": config.get("interleave_moe_layer_step", 1),
    }


def _dense_layers(config: Mapping[str, object], layers: int) -> int:
    first = config.get("first_k_dense_replace", 0)
    listed = config.get("mlp_only_layers") or ()
    stride = config.get("decoder_sparse_step", 1)
    if (
        not isinstance(first, int)
        or not isinstance(listed, list | tuple)
        or not isinstance(stride, int)
        or stride < 1
    ):
        raise OppoError(
            "model config: first_k_dense_replace, mlp_only_layers or decoder_sparse_step is not what a"
            " config.json holds"
        )
    return sum(1 for layer in range(layers) if layer < first or layer in listed or (layer + 1) % stride)
