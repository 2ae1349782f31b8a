"""``config.json`` files of models whose layers are not all attention: Mamba2 hybrids in the words of
``ModelShape``, and what cannot be described."""

from collections.abc import Mapping
from typing import Any, Final

from oppo_sim.errors import OppoError

LINEAR: Final = "linear_attention"
_MAMBA: Final = (LINEAR, "mamba", "mamba2")
_ATTENTION: Final = (
    "full_attention",
    "sliding_attention",
    "chunked_attention",
    "attention",
    "indexed_attention",
    "deepseek_sparse_attention",
    1,
)
"""Of a layer, in ``_KINDS_OF_LAYERS``; 1 is MiniMax's softmax attention."""
_KINDS_OF_LAYERS: Final = ("layer_types", "layers_block_type", "attn_type_list", "block_types")
_NEMOTRON: Final = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""Letters of ``hybrid_override_pattern``."""
_MAMBA2_NAMES: Final = {
    "linear_num_key_heads": ("n_groups", "mamba_n_groups"),
    "linear_num_value_heads": ("mamba_num_heads", "mamba_n_heads"),
    "linear_value_head_dim": ("mamba_head_dim", "mamba_d_head"),
    "linear_key_head_dim": ("ssm_state_size", "mamba_d_state"),
    "linear_conv_kernel_dim": ("conv_kernel", "mamba_d_conv"),
}
"""What each field is called in a config.json: Nemotron-H's word, and that of the others."""
_HYBRIDS: Final = ("nemotron_h", "granitemoehybrid", "bamba", "falcon_h1")
_OTHERS: Final = {
    "bailing": "lightning attention",
    "falcon_mamba": "Mamba, the first version",
    "jamba": "Mamba, the first version",
    "kimi_linear": "Kimi Delta Attention",
    "lfm2": "short convolutions",
    "mamba": "state spaces without any attention",
    "minimax": "lightning attention",
    "recurrent_gemma": "real-gated linear recurrence",
    "zamba": "attention that layers share, beside Mamba",
}
"""What layers without a KV cache are, by the model types that have them."""
_RECURRENT_FIELDS: Final = (
    "linear_num_value_heads",
    "linear_attn_config",
    "hybrid_override_pattern",
    "mamba_num_heads",
    "mamba_n_heads",
    "mamba_d_state",
    "ssm_state_size",
    "state_size",
    "conv_L_cache",
)
"""Which only models with such layers have."""


def mamba2_hybrid(config: Mapping[str, object], kind: str) -> dict[str, Any]:
    """A hybrid of Mamba2 and attention in the words of other configs and of ``ModelShape``; empty for other
    models. Raises OppoError."""
    if kind not in _HYBRIDS:
        return {}
    kinds = _layers(config, kind)
    mamba, attention = (sum(layer in of for layer in kinds) for of in (_MAMBA, _ATTENTION))
    if kind == "falcon_h1":  # both in each layer
        mamba = attention
    words: dict[str, Any] = {
        **_state_space(config, kind),
        "linear_kind": "mamba2",
        "num_hidden_layers": len(kinds),
        "num_linear_layers": mamba,
    }
    if mamba + attention != len(kinds):
        words["num_attention_layers"] = attention
    if kind == "nemotron_h":
        dense, moe = kinds.count("mlp"), kinds.count("moe")
        words |= {
            "head_dim": config.get("head_dim", config.get("attention_head_dim")),
            "num_mlp_layers": dense + moe,
            "first_k_dense_replace": dense,
            "shared_expert_intermediate_size": config.get("moe_shared_expert_intermediate_size"),
            "n_shared_experts": None,  # whose width is given
        }
        if not moe:
            words |= {"n_routed_experts": None, "num_local_experts": None}
    return words


def recurrent_layers(config: Mapping[str, object], kind: str) -> str | None:
    """Why some layers of a model cannot be described: those that keep a state in place of keys and values of
    each token. None: no layer does."""
    what = next((words for name, words in _OTHERS.items() if kind.startswith(name)), None)
    for name in _KINDS_OF_LAYERS:
        kinds = config.get(name)
        others = [each for each in kinds if each not in _ATTENTION] if isinstance(kinds, list | tuple) else ()
        if others:
            return f"{name}: {what or f'{others[0]!r}'}"
    field = next((name for name in _RECURRENT_FIELDS if config.get(name)), None)
    return field and f"{field}: {what or 'a state space, or linear attention that is no Gated DeltaNet'}"


def _layers(config: Mapping[str, object], kind: str) -> list[object]:
    """What each layer is."""
    layers = config.get("num_hidden_layers")
    pattern, listed = config.get("hybrid_override_pattern"), config.get("layers_block_type")
    listed = listed or config.get("layer_types")
    if isinstance(pattern, str) and not listed:
        kinds: list[object] = [_NEMOTRON.get(letter, letter) for letter in pattern]
    elif isinstance(listed, list | tuple):
        kinds = list(listed)
    elif kind == "falcon_h1" and isinstance(layers, int):
        kinds = ["attention"] * layers
    elif kind == "bamba" and isinstance(layers, int):
        full = config.get("attn_layer_indices")
        full = full if isinstance(full, list | tuple) else ()
        kinds = ["attention" if layer in full else "mamba" for layer in range(layers)]
    else:
        raise OppoError(
            f"model config ({kind}): nothing says what each layer is; give hybrid_override_pattern,"
            " layers_block_type or layer_types"
        )
    known = {*_MAMBA, *_ATTENTION, *(_NEMOTRON.values() if kind == "nemotron_h" else ())}
    if kind == "falcon_h1":
        return ["attention"] * len(kinds)  # which transformers calls "hybrid"
    if unknown := [each for each in kinds if each not in known]:
        raise OppoError(f"model config ({kind}): {unknown[0]!r} is no kind of layer that is known")
    return kinds


def _state_space(config: Mapping[str, object], kind: str) -> dict[str, object]:
    """The fields of linear attention."""
    found = {
        field: next((config[name] for name in names if config.get(name) is not None), None)
        for field, names in _MAMBA2_NAMES.items()
    }
    heads, width = found["linear_num_value_heads"], config.get("mamba_d_ssm")
    hidden, expand = config.get("hidden_size"), config.get("mamba_expand", 2)
    if width is None and isinstance(hidden, int) and isinstance(expand, int):
        width = expand * hidden
    if found["linear_value_head_dim"] in (None, "auto") and isinstance(heads, int) and heads > 0:
        found["linear_value_head_dim"] = width // heads if isinstance(width, int) else None
    missing = [_MAMBA2_NAMES[field][kind != "nemotron_h"] for field, value in found.items() if value is None]
    if missing:
        raise OppoError(f"model config ({kind}): Mamba2 layers need {', '.join(missing)}, too")
    return dict(found)
