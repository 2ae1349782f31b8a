"""Models by name, by their ``config.json``, or inline. Presets from the public ``config.json`` files."""

import difflib
import json
import re
from pathlib import Path
from typing import Any, Final

from oppo_sim.costs.hf_config import shape_of_config
from oppo_sim.costs.model_shape import ModelShape
from oppo_sim.errors import OppoError


def plain_shape(
    layers: int, hidden: int, mlp: int, heads: int, kv_heads: int, vocab: int, tied: bool = False, **more: Any
) -> ModelShape:
    """A decoder by the six sizes that a table of models has; ``more``: other fields of its shape."""
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
    return plain_shape(
        layers, hidden, width, heads, 2, 248320, **_GDN, num_experts=experts, moe_intermediate_size=width,
        shared_expert_intermediate_size=width, num_linear_layers=layers * 3 // 4, **more,
    )  # fmt: skip


_MAMBA2: dict[str, Any] = {
    "head_dim": 128,
    "gated_mlp": False,
    "linear_kind": "mamba2",
    "linear_num_key_heads": 8,
    "linear_key_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}


def _nemotron3(layers: int, hidden: int, width: int, attention: int, **more: Any) -> ModelShape:
    """With as many layers of experts as of Mamba2, and few of attention; a shared expert is twice as wide."""
    each = (layers - attention) // 2
    return plain_shape(
        layers, hidden, width, 32, 2, 131072, **_MAMBA2, linear_value_head_dim=64, num_linear_layers=each,
        num_attention_layers=attention, num_mlp_layers=each, moe_intermediate_size=width,
        shared_expert_intermediate_size=2 * width, **more,
    )  # fmt: skip


def _gpt_oss(layers: int, experts: int) -> ModelShape:
    """With a window of 128 tokens in every other layer; without biases of experts and sinks of attention."""
    return plain_shape(
        layers, 2880, 2880, 64, 8, 201088, head_dim=64, qkv_bias=True, num_experts=experts,
        num_experts_per_tok=4, num_sliding_layers=layers // 2, sliding_window=128,
    )  # fmt: skip


MODELS: dict[str, ModelShape] = {
    "qwen2.5-0.5b": plain_shape(24, 896, 4864, 14, 2, 151936, True, qkv_bias=True),
    "qwen2.5-1.5b": plain_shape(28, 1536, 8960, 12, 2, 151936, True, qkv_bias=True),
    "qwen2.5-3b": plain_shape(36, 2048, 11008, 16, 2, 151936, True, qkv_bias=True),
    "qwen2.5-7b": plain_shape(28, 3584, 18944, 28, 4, 152064, qkv_bias=True),
    "qwen2.5-14b": plain_shape(48, 5120, 13824, 40, 8, 152064, qkv_bias=True),
    "qwen2.5-32b": plain_shape(64, 5120, 27648, 40, 8, 152064, qkv_bias=True),
    "qwen2.5-72b": plain_shape(80, 8192, 29568, 64, 8, 152064, qkv_bias=True),
    "qwen3-0.6b": plain_shape(28, 1024, 3072, 16, 8, 151936, True, **_QWEN3),
    "qwen3-1.7b": plain_shape(28, 2048, 6144, 16, 8, 151936, True, **_QWEN3),
    "qwen3-4b": plain_shape(36, 2560, 9728, 32, 8, 151936, True, **_QWEN3),
    "qwen3-8b": plain_shape(36, 4096, 12288, 32, 8, 151936, **_QWEN3),
    "qwen3-14b": plain_shape(40, 5120, 17408, 40, 8, 151936, **_QWEN3),
    "qwen3-32b": plain_shape(64, 5120, 25600, 64, 8, 151936, **_QWEN3),
    "qwen3-30b-a3b": plain_shape(48, 2048, 6144, 32, 4, 151936, **_EXPERTS, moe_intermediate_size=768),
    "qwen3-235b-a22b": plain_shape(94, 4096, 12288, 64, 4, 151936, **_EXPERTS, moe_intermediate_size=1536),
    "llama-3-8b": plain_shape(32, 4096, 14336, 32, 8, 128256),
    "llama-3-70b": plain_shape(80, 8192, 28672, 64, 8, 128256),
    "llama-3.1-8b": plain_shape(32, 4096, 14336, 32, 8, 128256),
    "llama-3.1-70b": plain_shape(80, 8192, 28672, 64, 8, 128256),
    "llama-3.2-1b": plain_shape(16, 2048, 8192, 32, 8, 128256, True),
    "llama-3.2-3b": plain_shape(28, 3072, 8192, 24, 8, 128256, True),
    "llama-3.3-70b": plain_shape(80, 8192, 28672, 64, 8, 128256),
    "deepseek-r1-distill-qwen-1.5b": plain_shape(28, 1536, 8960, 12, 2, 151936, qkv_bias=True),
    "mixtral-8x7b": plain_shape(32, 4096, 14336, 32, 8, 32000, num_experts=8, num_experts_per_tok=2),
    "deepseek-v2-lite": plain_shape(27, 2048, 10944, 16, 16, 102400, **_MLA_SMALL),
    "moonlight-16b-a3b": plain_shape(27, 2048, 11264, 16, 16, 163840, **_MLA_SMALL),
    "deepseek-v3": plain_shape(
        61, 7168, 18432, 128, 128, 129280, **_MLA, q_lora_rank=1536, num_experts=256, num_dense_layers=3
    ),
    "kimi-k2": plain_shape(
        61, 7168, 18432, 64, 64, 163840, **_MLA, q_lora_rank=1536, num_experts=384, num_dense_layers=1
    ),
}
MODELS |= {f"deepseek-{name}": MODELS["deepseek-v3"] for name in ("v3.1", "r1")}
MODELS |= {
    "deepseek-v3.2": MODELS["deepseek-v3"].model_copy(
        update={"index_topk": 2048, "index_n_heads": 64, "index_head_dim": 128}
    ),
    "glm-5": plain_shape(
        78,
        6144,
        12288,
        64,
        64,
        154880,
        kv_lora_rank=512,
        q_lora_rank=2048,
        qk_nope_head_dim=192,
        qk_rope_head_dim=64,
        v_head_dim=256,
        index_topk=2048,
        index_n_heads=32,
        index_head_dim=128,
        num_experts=256,
        num_experts_per_tok=8,
        moe_intermediate_size=2048,
        shared_expert_intermediate_size=2048,
        num_dense_layers=3,
    ),
    "gpt-oss-20b": _gpt_oss(24, 32),
    "gpt-oss-120b": _gpt_oss(36, 128),
    "qwen3-next-80b-a3b": _qwen35_moe(
        48, 2048, 16, 512, 512, num_experts_per_tok=10, linear_num_value_heads=32
    ).model_copy(update={"vocab_size": 151936}),
    "qwen3.5-27b": plain_shape(
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
MODELS |= {
    "nemotron-nano-9b-v2": plain_shape(
        56, 4480, 15680, 40, 8, 131072, **_MAMBA2, linear_num_value_heads=128, linear_value_head_dim=80,
        num_linear_layers=27, num_attention_layers=4, num_mlp_layers=25,
    ),
    "nemotron-nano-12b-v2": plain_shape(
        62, 5120, 20480, 40, 8, 131072, **_MAMBA2, linear_num_value_heads=128, linear_value_head_dim=80,
        num_linear_layers=28, num_attention_layers=6, num_mlp_layers=28,
    ),
    "nemotron-3-nano-30b-a3b": _nemotron3(
        52, 2688, 1856, 6, linear_num_value_heads=64, num_experts=128, num_experts_per_tok=6
    ),
    "nemotron-3-super-120b-a12b": _nemotron3(
        88, 4096, 2688, 8, linear_num_value_heads=128, num_experts=512, num_experts_per_tok=22,
        moe_latent_size=1024,
    ),
}  # fmt: skip
MODELS |= {f"qwen2-{size}": MODELS[f"qwen2.5-{size}"] for size in ("0.5b", "1.5b", "7b", "72b")}
MODELS |= {f"deepseek-r1-distill-qwen-{size}": MODELS[f"qwen2.5-{size}"] for size in ("7b", "14b", "32b")}
MODELS |= {f"deepseek-r1-distill-llama-{size}": MODELS[f"llama-3.1-{size}"] for size in ("8b", "70b")}
_TUNED: Final = re.compile(r"(-(instruct|base|thinking))?(-\d{4}|-v0\.\d|-bf16)?$")
"""What names end with that have a preset's shape."""


def find_model(model: str | ModelShape, base_dir: Path | None = None) -> ModelShape:
    """A shape from a preset's name, a path to a ``config.json`` (or its folder; relative to ``base_dir``), or
    given inline.

    Names may carry an organisation, a subject and a tuning suffix: "Qwen/Qwen2.5-Math-7B-Instruct" is
    "qwen2.5-7b". Raises OppoError.
    """
    if isinstance(model, ModelShape):
        return model
    name = _TUNED.sub("", model.rsplit("/", 1)[-1].lower(), count=1)
    name = name.removeprefix("meta-").removeprefix("nvidia-")
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
            f"costs: no model {model!r}; {hint}give a config.json, a shape inline, or a name that 'oppo"
            " scenario models' lists"
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
        return shape_of_config(config)
    except OppoError as error:
        raise OppoError(f"costs: {path}: {error}") from None
