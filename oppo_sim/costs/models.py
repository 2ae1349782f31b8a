"""Shapes of decoder-only transformers. Presets from the public ``config.json`` files."""

import difflib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError, model_validator

from oppo_sim.costs.strict import Count, Strict
from oppo_sim.errors import OppoError

_NOT_GATED = frozenset({"falcon", "gpt_bigcode", "gpt_neox", "phi", "starcoder2"})
_TIED_BY_DEFAULT = frozenset({"cohere", "cohere2", "gemma", "gemma2", "gemma3_text"})
_FIELDS = (
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "hidden_size",
    "intermediate_size",
    "vocab_size",
    "head_dim",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "kv_lora_rank",
    "q_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
)


LATENT_FIELDS: Final = ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
"""Of multi-head latent attention (MLA)."""
LINEAR_FIELDS: Final = (
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
)
"""Of layers with linear attention (Gated DeltaNet)."""
_STATE_BYTES: Final = 4.0
"""Of an element of a linear-attention layer's state, which engines keep in 32 bits."""
_KINDS_OF_LAYERS: Final = ("layer_types", "layers_block_type", "attn_type_list")
_LINEAR: Final = "linear_attention"
_RECURRENT_KINDS: Final = (_LINEAR, "mamba", "mamba2", "recurrent", 0)
"""Of a layer, in these lists; 0 is MiniMax's lightning attention."""
_RECURRENT_FIELDS: Final = (
    "linear_num_value_heads",
    "linear_attn_config",
    "hybrid_override_pattern",
    "mamba_num_heads",
    "mamba_d_state",
    "ssm_state_size",
)
"""Which only models with such layers have."""


class ModelShape(Strict):
    """A decoder-only transformer with grouped-query or latent attention, in the words of a Hugging Face
    config.

    Latent attention (DeepSeek-AI, "DeepSeek-V2", 2024, §2.1) where ``kv_lora_rank`` is given: the cache holds
    a token's latent and one rotary key for all heads. Training and prefills make keys and values of it; a
    decode step works on the latent itself, with their matrix on the side of the queries.
    """

    num_hidden_layers: Count
    hidden_size: Count
    intermediate_size: Count
    num_attention_heads: Count
    vocab_size: Count
    num_key_value_heads: Count | None = None
    """None: one per attention head."""
    head_dim: Count | None = None
    """None: hidden_size / num_attention_heads."""
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    gated_mlp: bool = True
    num_experts: int = 0
    """0: a dense model."""
    num_experts_per_tok: int = 0
    moe_intermediate_size: Count | None = None
    """Of one expert; None: intermediate_size."""
    shared_expert_intermediate_size: int = 0
    num_dense_layers: int = 0
    """Layers without experts in a mixture-of-experts model."""
    kv_lora_rank: Count | None = None
    """Columns of the latent of keys and values; None: keys and values of each KV head."""
    q_lora_rank: Count | None = None
    """Likewise of the queries; None: they have none."""
    qk_nope_head_dim: Count | None = None
    """Columns of a query without rotary positions; those with them are ``qk_rope_head_dim``."""
    qk_rope_head_dim: Count | None = None
    v_head_dim: Count | None = None
    """Columns of a value."""
    attn_output_gate: bool = False
    """Whether attention's output is multiplied with a gate, as wide as the queries."""
    num_linear_layers: int = 0
    """Layers with linear attention (Yang et al., "Gated Delta Networks", 2024), which keep a state of each
    rollout in place of keys and values."""
    linear_num_key_heads: Count | None = None
    linear_num_value_heads: Count | None = None
    linear_key_head_dim: Count | None = None
    linear_value_head_dim: Count | None = None
    linear_conv_kernel_dim: Count | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "ModelShape":
        given = [name for name in LATENT_FIELDS if getattr(self, name) is not None]
        needed = [name for name in LATENT_FIELDS if name != "q_lora_rank"]
        if given and (missing := [name for name in needed if name not in given]):
            raise ValueError(f"latent attention needs {', '.join(missing)}, too")
        given = [name for name in LINEAR_FIELDS if getattr(self, name) is not None]
        if self.num_linear_layers and (missing := [name for name in LINEAR_FIELDS if name not in given]):
            raise ValueError(f"layers with linear attention need {', '.join(missing)}, too")
        if not 0 <= self.num_linear_layers < self.num_hidden_layers:
            raise ValueError(
                f"num_linear_layers must be 0 to {self.num_hidden_layers - 1}, not {self.num_linear_layers}"
            )
        if given and not self.num_linear_layers:
            raise ValueError(f"{given[0]} is given, and num_linear_layers is 0")
        if not self.latent and self.head_dim is None and self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of {self.num_attention_heads} heads; give"
                " head_dim"
            )
        if self.num_attention_heads % self.kv_heads:
            raise ValueError(
                f"{self.num_attention_heads} attention heads are not a multiple of {self.kv_heads} KV heads"
            )
        if self.num_experts and not 1 <= self.num_experts_per_tok <= self.num_experts:
            raise ValueError(
                f"num_experts_per_tok must be 1 to {self.num_experts}, not {self.num_experts_per_tok}"
            )
        if not 0 <= self.num_dense_layers <= self.num_hidden_layers:
            raise ValueError(
                f"num_dense_layers must be 0 to {self.num_hidden_layers}, not {self.num_dense_layers}"
            )
        if min(self.num_experts, self.shared_expert_intermediate_size) < 0:
            raise ValueError("num_experts and shared_expert_intermediate_size must not be negative")
        return self

    @classmethod
    def from_hf_config(cls, config: Mapping[str, object]) -> "ModelShape":
        """The shape of a Hugging Face ``config.json``. Raises OppoError for a missing field or an
        architecture it cannot describe."""
        inner = config.get("text_config")
        if isinstance(inner, Mapping):
            config = inner
        kind = str(config.get("model_type", ""))
        if config.get("index_topk"):
            raise OppoError(
                f"model config ({kind}): sparse attention (index_topk) is not modelled; measure a profile"
                " instead"
            )
        linear = _linear_layers(config)
        if not linear and (recurrent := _recurrent_layers(config)) is not None:
            raise OppoError(
                f"model config ({kind}): layers without a KV cache ({recurrent}: a state space, or linear"
                " attention that is no Gated DeltaNet) are not modelled; measure a profile instead"
            )
        config = _with_llama4_experts(config, kind)
        fields: dict[str, object] = {name: config[name] for name in _FIELDS if config.get(name) is not None}
        if config.get("kv_lora_rank"):
            fields.pop("head_dim", None)  # that of the rotary part, or none: the five fields tell all
        else:
            for name in LATENT_FIELDS:
                fields.pop(name, None)
        if linear:
            fields["num_linear_layers"] = linear
        else:
            for name in LINEAR_FIELDS:
                fields.pop(name, None)
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
            for name in ("num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size"):
                fields.pop(name, None)
        fields["tie_word_embeddings"] = config.get("tie_word_embeddings", kind in _TIED_BY_DEFAULT)
        fields["qkv_bias"] = bool(
            config.get("attention_bias", config.get("qkv_bias", kind in ("qwen2", "qwen2_moe")))
        )
        fields["qk_norm"] = kind.startswith("qwen3")
        fields["attn_output_gate"] = bool(config.get("attn_output_gate", kind.startswith("qwen3_next")))
        fields["gated_mlp"] = kind not in _NOT_GATED
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise OppoError(f"model config ({kind or 'no model_type'}): {first_problem(error)}") from None

    @property
    def kv_heads(self) -> int:
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def latent(self) -> bool:
        """Whether attention is latent."""
        return self.kv_lora_rank is not None

    @property
    def head_size(self) -> int:
        """Columns of a query and of a key."""
        if self.latent:
            return (self.qk_nope_head_dim or 0) + (self.qk_rope_head_dim or 0)
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def query_width(self) -> int:
        """Columns of all queries of a layer."""
        return self.num_attention_heads * self.head_size

    @property
    def kv_width(self) -> int:
        """Columns of all keys of a layer; with latent attention as training and prefills make them."""
        return self.kv_heads * self.head_size

    @property
    def value_width(self) -> int:
        """Columns of all values of a layer."""
        return self.kv_heads * (self.v_head_dim or self.head_size)

    @property
    def output_width(self) -> int:
        """Columns of what attention gives, of all heads of a layer."""
        return self.num_attention_heads * (self.v_head_dim or self.head_size)

    @property
    def turned_width(self) -> int:
        """Columns of queries and keys that get rotary positions."""
        if self.latent:
            return (self.num_attention_heads + 1) * (self.qk_rope_head_dim or 0)
        return self.query_width + self.kv_width

    @property
    def latent_width(self) -> int:
        """Columns of a token's latents and of its rotary key, which no device shares with another; 0 without
        latent attention."""
        if not self.latent:
            return 0
        return (self.q_lora_rank or 0) + (self.kv_lora_rank or 0) + (self.qk_rope_head_dim or 0)

    @property
    def cached_width(self) -> int:
        """Columns of a token's entry in the KV cache of a layer."""
        if self.latent:
            return (self.kv_lora_rank or 0) + (self.qk_rope_head_dim or 0)
        return self.kv_width + self.value_width

    @property
    def decode_attention_flops(self) -> float:
        """Of a new token's attention to one token of the past, in a layer: to the latent itself, where there
        is one, by every head."""
        if self.latent:
            return 2.0 * self.num_attention_heads * (self.cached_width + (self.kv_lora_rank or 0))
        return 2.0 * (self.query_width + self.output_width)

    @property
    def pair_attention_flops(self) -> float:
        """Of a query-key pair of a prefill or of training, in a layer."""
        return 2.0 * (self.query_width + self.output_width)

    @property
    def attention_layers(self) -> int:
        """Layers with keys and values."""
        return self.num_hidden_layers - self.num_linear_layers

    @property
    def linear_key_width(self) -> int:
        """Columns of all keys of a linear-attention layer; as many of the queries."""
        return (self.linear_num_key_heads or 0) * (self.linear_key_head_dim or 0)

    @property
    def linear_value_width(self) -> int:
        """Columns of all its values; as many of its output and of the output's gate."""
        return (self.linear_num_value_heads or 0) * (self.linear_value_head_dim or 0)

    @property
    def linear_matrices(self) -> tuple[tuple[int, int], ...]:
        """(Inputs, outputs) of the projections of a linear-attention layer: queries, keys, values and gate;
        decay and rate of each value head; output."""
        made = 2 * self.linear_key_width + 2 * self.linear_value_width
        heads = 2 * (self.linear_num_value_heads or 0)
        return (
            (self.hidden_size, made),
            (self.hidden_size, heads),
            (self.linear_value_width, self.hidden_size),
        )

    @property
    def linear_matrix_params(self) -> int:
        """Of these projections; 0 without such layers."""
        return (
            sum(inputs * outputs for inputs, outputs in self.linear_matrices) if self.num_linear_layers else 0
        )

    @property
    def linear_state_size(self) -> int:
        """Elements of a rollout's state in a linear-attention layer."""
        return self.linear_value_width * (self.linear_key_head_dim or 0)

    def state_bytes_per_rollout(self, tensor_parallel: int = 1) -> float:
        """What linear-attention layers keep of a rollout on one device: the state, and the last inputs of the
        convolution in 16 bits."""
        inputs = 2 * self.linear_key_width + self.linear_value_width
        kept = _STATE_BYTES * self.linear_state_size + 2.0 * inputs * ((self.linear_conv_kernel_dim or 1) - 1)
        return self.num_linear_layers * kept / tensor_parallel

    @property
    def moe_layers(self) -> int:
        return self.num_hidden_layers - self.num_dense_layers if self.num_experts else 0

    @property
    def dense_layers(self) -> int:
        return self.num_hidden_layers - self.moe_layers

    @property
    def mlp_matrices(self) -> int:
        """Matrices of an MLP: gate, up and down; up and down without a gate."""
        return 3 if self.gated_mlp else 2

    @property
    def attention_matrices(self) -> tuple[tuple[int, int], ...]:
        """(Inputs, outputs) of the projections of one layer: queries, keys, values, output; with latent
        attention down to the latents and up from them."""
        hidden, out = self.hidden_size, (self.output_width, self.hidden_size)
        if not self.latent:
            kv, gated = (hidden, self.kv_width), 2 if self.attn_output_gate else 1
            return (hidden, gated * self.query_width), kv, (hidden, self.value_width), out
        rank, made = self.kv_lora_rank or 0, (self.qk_nope_head_dim or 0) + (self.v_head_dim or 0)
        down, up = (hidden, self.cached_width), (rank, self.num_attention_heads * made)
        query = (hidden, self.query_width)
        if self.q_lora_rank is None:
            return query, down, up, out
        return (hidden, self.q_lora_rank), (self.q_lora_rank, self.query_width), down, up, out

    @property
    def attention_matrix_params(self) -> int:
        """Of the projections of one layer."""
        return sum(inputs * outputs for inputs, outputs in self.attention_matrices)

    @property
    def replicated_attention_params(self) -> int:
        """Of these, what every tensor-parallel device holds whole: the projections down to latents."""
        return self.hidden_size * self.latent_width

    @property
    def dense_mlp_params(self) -> int:
        return self.mlp_matrices * self.hidden_size * self.intermediate_size

    @property
    def expert_params(self) -> int:
        """Of one expert."""
        return self.mlp_matrices * self.hidden_size * (self.moe_intermediate_size or self.intermediate_size)

    @property
    def shared_mlp_params(self) -> int:
        """Per mixture-of-experts layer: router and shared expert with its gate, which every token uses."""
        shared = self.shared_expert_intermediate_size
        return self.hidden_size * self.num_experts + (
            self.mlp_matrices * self.hidden_size * shared + self.hidden_size if shared else 0
        )

    @property
    def routed_params(self) -> int:
        """Of all experts that tokens are routed to, in all layers."""
        return self.moe_layers * self.num_experts * self.expert_params

    @property
    def lm_head_params(self) -> int:
        return self.vocab_size * self.hidden_size

    @property
    def layer_params(self) -> int:
        """All layers, with norms and biases, without embeddings, final norm and head."""
        per_layer = self.attention_matrix_params
        per_layer += self.query_width + 2 * self.kv_width if self.qkv_bias else 0
        per_layer += 2 * self.head_size if self.qk_norm else 0
        per_layer += (self.q_lora_rank or 0) + (self.kv_lora_rank or 0)  # their norms
        moe = self.routed_params + self.moe_layers * self.shared_mlp_params
        linear = self.linear_matrix_params
        if self.num_linear_layers:
            inputs = 2 * self.linear_key_width + self.linear_value_width
            linear += inputs * (self.linear_conv_kernel_dim or 1) + 2 * (self.linear_num_value_heads or 0)
            linear += self.linear_value_head_dim or 0
        return (
            self.num_hidden_layers * 2 * self.hidden_size
            + self.attention_layers * per_layer
            + self.num_linear_layers * linear
            + self.dense_layers * self.dense_mlp_params
            + moe
        )

    @property
    def parameters(self) -> int:
        """All parameters of the causal language model (tied embeddings counted once)."""
        embeddings = self.lm_head_params * (1 if self.tie_word_embeddings else 2)
        return self.layer_params + embeddings + self.hidden_size

    @property
    def parameters_without_head(self) -> int:
        """Of a reward model or critic: a scalar head in place of the output head."""
        return self.layer_params + self.lm_head_params + self.hidden_size

    @property
    def active_matrix_params(self) -> int:
        """Matrix parameters of the layers that one token is multiplied with."""
        moe = self.moe_layers * (self.num_experts_per_tok * self.expert_params + self.shared_mlp_params)
        return (
            self.attention_layers * self.attention_matrix_params
            + self.num_linear_layers * self.linear_matrix_params
            + self.dense_layers * self.dense_mlp_params
            + moe
        )

    def kv_bytes_per_token(self, bytes_per_element: float, tensor_parallel: int = 1) -> float:
        """Keys and values of one token on one device; KV heads are replicated where there are too few, and a
        latent always is."""
        width = float(self.cached_width)
        if not self.latent:
            width *= max(1.0, self.kv_heads / tensor_parallel) / self.kv_heads
        return self.attention_layers * width * bytes_per_element


def _linear_layers(config: Mapping[str, object]) -> int:
    """Layers of Gated DeltaNet; 0 for a model of another kind."""
    if not all(config.get(name) for name in LINEAR_FIELDS):
        return 0
    layers, kinds = config.get("num_hidden_layers"), config.get("layer_types")
    if isinstance(kinds, list | tuple):
        return sum(kind == _LINEAR for kind in kinds)
    stride = config.get("full_attention_interval", 4)  # Qwen3-Next's default
    if not isinstance(layers, int) or not isinstance(stride, int) or stride < 1:
        raise OppoError("model config: full_attention_interval is not what a config.json holds")
    return layers - layers // stride


def _recurrent_layers(config: Mapping[str, object]) -> str | None:
    """The field that says that some layers keep a state in place of keys and values; None: no layer does."""
    for name in _KINDS_OF_LAYERS:
        kinds = config.get(name)
        if isinstance(kinds, list | tuple) and any(kind in _RECURRENT_KINDS for kind in kinds):
            return name
    return next((name for name in _RECURRENT_FIELDS if config.get(name)), None)


def _with_llama4_experts(config: Mapping[str, object], kind: str) -> Mapping[str, object]:
    """Llama 4 in the words of the others: ``intermediate_size`` is an expert's there, of which each layer has
    a shared one that no field names, and dense layers have ``intermediate_size_mlp``."""
    if not kind.startswith("llama4"):
        return config
    width = config.get("intermediate_size")
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


def first_problem(error: ValidationError) -> str:
    """The first complaint of a validation in words: where, what, and how many more there are."""
    problems = error.errors()
    place = ".".join(str(part) for part in problems[0]["loc"])
    message = problems[0]["msg"].removeprefix("Value error, ")
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return (f"{place}: " if place else "") + message + more


def _shape(
    layers: int, hidden: int, mlp: int, heads: int, kv_heads: int, vocab: int, tied: bool = False, **more: Any
) -> ModelShape:
    return ModelShape(
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=mlp,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=vocab,
        tie_word_embeddings=tied,
        **more,
    )


_QWEN3: dict[str, Any] = {"head_dim": 128, "qk_norm": True}
_EXPERTS: dict[str, Any] = _QWEN3 | {"num_experts": 128, "num_experts_per_tok": 8}
_MLA: dict[str, Any] = {
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_intermediate_size": 2048,
    "num_experts_per_tok": 8,
    "shared_expert_intermediate_size": 2048,
}
_MLA_SMALL: dict[str, Any] = _MLA | {
    "moe_intermediate_size": 1408,
    "num_experts": 64,
    "num_experts_per_tok": 6,
    "shared_expert_intermediate_size": 2816,
    "num_dense_layers": 1,
}
_GDN: dict[str, Any] = {
    "head_dim": 256,
    "qk_norm": True,
    "attn_output_gate": True,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}


def _qwen35_moe(layers: int, hidden: int, heads: int, experts: int, width: int, **more: Any) -> ModelShape:
    """With linear attention in three of four layers, and experts in all, one of them shared."""
    return _shape(
        layers, hidden, width, heads, 2, 248320, **_GDN, num_experts=experts, moe_intermediate_size=width,
        shared_expert_intermediate_size=width, num_linear_layers=layers * 3 // 4, **more,
    )  # fmt: skip


MODELS: dict[str, ModelShape] = {
    "qwen2.5-0.5b": _shape(24, 896, 4864, 14, 2, 151936, True, qkv_bias=True),
    "qwen2.5-1.5b": _shape(28, 1536, 8960, 12, 2, 151936, True, qkv_bias=True),
    "qwen2.5-3b": _shape(36, 2048, 11008, 16, 2, 151936, True, qkv_bias=True),
    "qwen2.5-7b": _shape(28, 3584, 18944, 28, 4, 152064, qkv_bias=True),
    "qwen2.5-14b": _shape(48, 5120, 13824, 40, 8, 152064, qkv_bias=True),
    "qwen2.5-32b": _shape(64, 5120, 27648, 40, 8, 152064, qkv_bias=True),
    "qwen2.5-72b": _shape(80, 8192, 29568, 64, 8, 152064, qkv_bias=True),
    "qwen3-0.6b": _shape(28, 1024, 3072, 16, 8, 151936, True, **_QWEN3),
    "qwen3-1.7b": _shape(28, 2048, 6144, 16, 8, 151936, True, **_QWEN3),
    "qwen3-4b": _shape(36, 2560, 9728, 32, 8, 151936, True, **_QWEN3),
    "qwen3-8b": _shape(36, 4096, 12288, 32, 8, 151936, **_QWEN3),
    "qwen3-14b": _shape(40, 5120, 17408, 40, 8, 151936, **_QWEN3),
    "qwen3-32b": _shape(64, 5120, 25600, 64, 8, 151936, **_QWEN3),
    "qwen3-30b-a3b": _shape(48, 2048, 6144, 32, 4, 151936, **_EXPERTS, moe_intermediate_size=768),
    "qwen3-235b-a22b": _shape(94, 4096, 12288, 64, 4, 151936, **_EXPERTS, moe_intermediate_size=1536),
    "llama-3-8b": _shape(32, 4096, 14336, 32, 8, 128256),
    "llama-3-70b": _shape(80, 8192, 28672, 64, 8, 128256),
    "llama-3.1-8b": _shape(32, 4096, 14336, 32, 8, 128256),
    "llama-3.1-70b": _shape(80, 8192, 28672, 64, 8, 128256),
    "llama-3.2-1b": _shape(16, 2048, 8192, 32, 8, 128256, True),
    "llama-3.2-3b": _shape(28, 3072, 8192, 24, 8, 128256, True),
    "llama-3.3-70b": _shape(80, 8192, 28672, 64, 8, 128256),
    "deepseek-r1-distill-qwen-1.5b": _shape(28, 1536, 8960, 12, 2, 151936, qkv_bias=True),
    "mixtral-8x7b": _shape(32, 4096, 14336, 32, 8, 32000, num_experts=8, num_experts_per_tok=2),
    "deepseek-v2-lite": _shape(27, 2048, 10944, 16, 16, 102400, **_MLA_SMALL),
    "moonlight-16b-a3b": _shape(27, 2048, 11264, 16, 16, 163840, **_MLA_SMALL),
    "deepseek-v3": _shape(
        61, 7168, 18432, 128, 128, 129280, **_MLA, q_lora_rank=1536, num_experts=256, num_dense_layers=3
    ),
    "kimi-k2": _shape(
        61, 7168, 18432, 64, 64, 163840, **_MLA, q_lora_rank=1536, num_experts=384, num_dense_layers=1
    ),
}
MODELS |= {f"deepseek-{name}": MODELS["deepseek-v3"] for name in ("v3.1", "r1")}
MODELS |= {
    "qwen3-next-80b-a3b": _qwen35_moe(
        48, 2048, 16, 512, 512, num_experts_per_tok=10, linear_num_value_heads=32
    ).model_copy(update={"vocab_size": 151936}),
    "qwen3.5-27b": _shape(
        64, 5120, 17408, 24, 4, 248320, **_GDN, linear_num_value_heads=48, num_linear_layers=48
    ),
    "qwen3.5-35b-a3b": _qwen35_moe(40, 2048, 16, 256, 512, num_experts_per_tok=8, linear_num_value_heads=32),
    "qwen3.5-122b-a10b": _qwen35_moe(
        48, 3072, 32, 256, 1024, num_experts_per_tok=8, linear_num_value_heads=64
    ),
    "qwen3.5-397b-a17b": _qwen35_moe(
        60, 4096, 32, 512, 1024, num_experts_per_tok=10, linear_num_value_heads=64
    ),
}
MODELS |= {f"qwen2-{size}": MODELS[f"qwen2.5-{size}"] for size in ("0.5b", "1.5b", "7b", "72b")}
MODELS |= {f"deepseek-r1-distill-qwen-{size}": MODELS[f"qwen2.5-{size}"] for size in ("7b", "14b", "32b")}
MODELS |= {f"deepseek-r1-distill-llama-{size}": MODELS[f"llama-3.1-{size}"] for size in ("8b", "70b")}
_TUNED: Final = re.compile(r"(-(instruct|base|thinking))?(-\d{4}|-v0\.\d)?$")
"""What names end with that have a preset's shape."""


def find_model(model: str | ModelShape, base_dir: Path | None = None) -> ModelShape:
    """A shape from a preset's name, a path to a ``config.json`` (or its folder; relative to ``base_dir``), or
    given inline.

    Names may carry an organisation, a subject and a tuning suffix: "Qwen/Qwen2.5-Math-7B-Instruct" is
    "qwen2.5-7b". Raises OppoError.
    """
    if isinstance(model, ModelShape):
        return model
    name = _TUNED.sub("", model.rsplit("/", 1)[-1].lower().removeprefix("meta-"), count=1)
    name = name.replace("qwen2.5-math-", "qwen2.5-").replace("qwen2.5-coder-", "qwen2.5-")
    name = name.replace("qwen3-coder-", "qwen3-")
    if name in MODELS:
        return MODELS[name]
    path = (base_dir or Path()) / model
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        close = difflib.get_close_matches(name, MODELS, n=1, cutoff=0.8)
        hint = f"did you mean {close[0]!r}? " if close else ""
        if not close and (model.endswith(".json") or Path(model).is_absolute()):
            raise OppoError(
                f"costs: there is no file {path}: check the path of the model's config.json ('oppo scenario"
                " models' lists those that are known by name)"
            )
        raise OppoError(
            f"costs: no model {model!r}; {hint}give a config.json, a shape inline, or one of"
            f" {', '.join(MODELS)}"
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OppoError(f"costs: cannot read the model config {path}: {error}") from None
    if not isinstance(config, dict):
        raise OppoError(
            f"costs: the model config {path} is not a JSON object; give a Hugging Face config.json"
        )
    try:
        return ModelShape.from_hf_config(config)
    except OppoError as error:
        raise OppoError(f"costs: {path}: {error}") from None
