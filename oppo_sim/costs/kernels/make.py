"""Tables of measured kernels, made with ``aiconfigurator-core`` (extra ``kernels``).

A model is requested as the kinds of layers that it has: dense ones, mixtures of experts, and shared experts
as the MLPs of dense layers of their width.
"""

import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from math import ceil, floor
from pathlib import Path
from typing import Any, Final, NamedTuple

from oppo_sim.costs.kernels.table import (
    FORMAT,
    DecodeAttention,
    KernelDtype,
    KernelOrigin,
    KernelQuery,
    KernelTable,
    PrefillAttention,
    RowsTable,
)
from oppo_sim.costs.model_shape import INDEX_FIELDS, LATENT_FIELDS, LINEAR_FIELDS, ModelShape
from oppo_sim.errors import OppoError

PACKAGE: Final = "aiconfigurator-core"

_TILES: Final = (*range(32, 129, 16), *range(160, 257, 32), *range(512, 4353, 256))
_BETWEEN: Final = (20, 24, 320, 384, 448, 6144, 8192, 12288, 16384, *(2**k for k in range(15, 22)))
TOKENS: Final = tuple(sorted((*range(1, 18), *_BETWEEN, *_TILES, *(edge + 1 for edge in _TILES))))
"""Where the package has points of its own: both sides of a tile's edge, where one more token costs a tile."""
BATCHES: Final = tuple(2**k for k in range(14))
KV_PER_ROLLOUT: Final = (1, *(2**k - 1 for k in range(5, 18)))
_TIMES: Final = (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 512, 1024)
CHUNKS: Final = (1, 16, 32, 64, 128, 192, 256, 384, *(512 * k for k in (*_TIMES, 2048, 4096)))
CONTEXTS: Final = (0.5, 8, 16, 32, *(64 * k for k in sorted((*_TIMES, 48, 96, 2048))))

_PIECE: Final = 512
"""Tokens of a rollout that are computed together where it has a past."""
_COLLECTIVES: Final = frozenset(
    {"embedding_ar", "ar_1", "ar_2", "tp_allreduce", "moe_pre_dispatch", "moe_post_dispatch", "p2p"}
    | {"gdn_ar", "gdn_ffn_ar", "gdn_moe_pre_dispatch", "gdn_moe_post_dispatch"}
    | {"full_ar", "full_ffn_ar", "full_moe_pre_dispatch", "full_moe_post_dispatch"}
)
_ATTENTION: Final = ("attention", "mla_block", "gdn_conv1d", "gdn_recurrence", "gdn_scan")
"""Latent attention was measured with its projections, from hidden vector to hidden vector; linear attention
without them, a token by itself (decode) and in chunks (prefill)."""
_EXPERTS: Final = frozenset({"moe", "moe_overlap", "router_gemm", "moe_pre_dispatch", "moe_post_dispatch"})
_MLP: Final = frozenset({"gate_ffn1_gemm", "act_gate", "ffn2_gemm"})
_ONCE: Final = frozenset({"embedding", "embedding_ar", "logits_gemm", "p2p"})
"""Kernels of a model, not of a layer."""
_DIGITS: Final = 5
_QUANTIZATION: Final[dict[KernelDtype, tuple[str, str]]] = {
    "bf16": ("bfloat16", "bfloat16"),
    "fp8_static": ("fp8_static", "fp8"),
    "fp8_dynamic": ("fp8", "fp8"),
    "fp8_block": ("fp8_block", "fp8_block"),
}
"""The package's words for matrix products and for experts."""


class _Kernel(NamedTuple):
    """One kernel of one kind of layers; ``place`` in the package's list of a decode step or a prefill."""

    name: str
    place: int
    source: str


class _Layers(NamedTuple):
    """Layers of one kind as the package knows them. Milliseconds."""

    engine: Any
    decode: tuple[_Kernel, ...]
    prefill: tuple[_Kernel, ...]

    def decode_ms(
        self, wanted: Callable[[str], bool], batch: int, kv: int, tokens: int | None = None
    ) -> float:
        """Of the wanted kernels of a decode step; ``tokens`` computed, if not one of each of the batch."""
        places = [kernel.place for kernel in self.decode if wanted(kernel.name)]
        found = self.engine.evaluate_generation_ops(places, batch_size=batch, s=kv + 1, x=tokens)
        return float(sum(operator[1] for operator in found))

    def prefill_attention_ms(self, batch: int, new: int, past: int) -> float:
        places = [kernel.place for kernel in self.prefill if kernel.name in _ATTENTION]
        found = self.engine.evaluate_context_ops(places, batch_size=batch, s=new, prefix=past)
        return float(sum(operator[1] for operator in found))


def package_version() -> str | None:
    """Of the extra; None where it is not installed."""
    from importlib.util import find_spec

    return version(PACKAGE) if find_spec("aiconfigurator_core") is not None else None


def make_table(query: KernelQuery) -> KernelTable:
    """Query the package. Takes a second or two.

    Raises OppoError without the extra, and for what the package has not measured.
    """
    if package_version() is None:
        raise OppoError(
            f"costs: no table of measured kernels is shipped for this model on {query.system} with"
            f" {_divided(query)}: pip install 'oppo-toolkit[kernels]' to make it, or take kind: roofline"
        )
    with _asking(query):
        layers = [_layers(query, config, keep) for config, keep in _kinds(query.shape)]
        shape = query.shape
        decode = [[_decode_attention(layers, shape, n, kv) for kv in KV_PER_ROLLOUT] for n in BATCHES]
        prefill = [
            [_prefill_attention(layers, shape, tokens, mean) for mean in CONTEXTS] for tokens in CHUNKS
        ]
        return KernelTable(
            format=FORMAT,
            of=query,
            origin=_origin(layers),
            rows=_rows(layers),
            decode_attention=DecodeAttention(
                n_running=BATCHES, kv_per_rollout=KV_PER_ROLLOUT, seconds=_matrix(decode)
            ),
            prefill_attention=PrefillAttention(
                tokens=CHUNKS, mean_context=CONTEXTS, seconds=_matrix(prefill)
            ),
        )


def _divided(query: KernelQuery) -> str:
    """For messages."""
    names = ("tensor_parallel", "expert_parallel", "attention_data_parallel")
    said = [(name, getattr(query, name)) for name in names]
    return ", ".join(f"{name} {value}" for name, value in said if value > 1 or name == names[0])


@contextmanager
def _asking(query: KernelQuery) -> Iterator[None]:
    """The package's warnings are about operators of other models; its errors become one sentence."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    except OppoError:
        raise
    except Exception as error:  # it has error types of its own, some of the compiled part
        why = " ".join(str(error).split(" at /")[0].split(": tried")[0].split(". ")[0].split())
        # Experts that do not divide into blocks are refused by the engines, too.
        scales = (
            "kernels.fp8_scales static or dynamic, expert_parallel, " if query.dtype == "fp8_block" else ""
        )
        raise OppoError(
            f"costs: {PACKAGE} has no measured kernels for this model on {query.system} ({query.engine}"
            f" {query.version}, {query.dtype}, {_divided(query)}): {why}; take {scales}another"
            " kernels.engine, or kind: roofline"
        ) from None
    finally:
        logging.disable(before)


def _kinds(shape: ModelShape) -> Iterator[tuple[dict[str, object], Callable[[str], bool]]]:
    """A Hugging Face config for each kind of layers, and which of its kernels count."""
    if shape.linear_kind == "mamba2":
        # The package takes Mamba2's state for nothing: 9 µs of a step of 64 rollouts whose states alone are
        # 6 GB to move (Nemotron 3 Nano).
        raise OppoError("costs: kernels of Mamba2's state spaces were not measured; take kind: roofline")
    if shape.num_blocks != 2 * shape.num_hidden_layers or shape.moe_latent_size:
        raise OppoError(
            "costs: kernels of layers without attention or MLP, and of experts on a latent, were not"
            " measured; take kind: roofline"
        )
    if not shape.gated_mlp:
        raise OppoError(
            "costs: kernels of a model without a gated MLP were not measured; take kind: roofline"
        )
    common: dict[str, object] = {
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": 131072,
        "torch_dtype": "bfloat16",
    }
    if shape.latent:
        yield from _latent_kinds(shape, common)
        return
    if shape.num_linear_layers:
        yield _with_linear_layers(shape, common), lambda name: True
        return
    dense: dict[str, object] = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    experts = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_experts": shape.num_experts,
        "num_experts_per_tok": shape.num_experts_per_tok,
        "moe_intermediate_size": shape.moe_intermediate_size or shape.intermediate_size,
    }
    if shape.moe_layers:
        yield common | experts | {"num_hidden_layers": shape.moe_layers}, lambda name: True
        if shape.shared_expert_intermediate_size:
            shared = {
                "num_hidden_layers": shape.moe_layers,
                "intermediate_size": shape.shared_expert_intermediate_size,
            }
            yield common | dense | shared, lambda name: name in _MLP
    if shape.dense_layers:
        once = _ONCE if shape.moe_layers else frozenset()
        yield common | dense | {"num_hidden_layers": shape.dense_layers}, lambda name: name not in once


def _latent_kinds(
    shape: ModelShape, common: dict[str, object]
) -> Iterator[tuple[dict[str, object], Callable[[str], bool]]]:
    """Likewise of a model with latent attention, which the package knows of mixtures of experts alone, every
    layer one: shared experts and all, and beside them the MLPs of the dense layers."""
    if not shape.moe_layers:
        raise OppoError(
            "costs: kernels of latent attention were measured in mixtures of experts alone; take kind:"
            " roofline"
        )
    width = shape.moe_intermediate_size or shape.intermediate_size
    latent: dict[str, object] = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "n_routed_experts": shape.num_experts,
        "num_experts_per_tok": shape.num_experts_per_tok,
        "moe_intermediate_size": width,
        "n_shared_experts": shape.shared_expert_intermediate_size // width,
        "first_k_dense_replace": 0,
        **{name: getattr(shape, name) for name in LATENT_FIELDS},
    }
    if shape.index_topk:
        latent |= {"architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32"}
        latent |= {name: getattr(shape, name) for name in INDEX_FIELDS}
    yield common | latent | {"num_hidden_layers": shape.moe_layers}, lambda name: True
    if shape.dense_layers:
        of_experts = _ONCE | _EXPERTS
        layers: dict[str, object] = {"num_hidden_layers": shape.dense_layers}
        yield (
            common | latent | layers,
            lambda name: name not in of_experts and not name.startswith("shared_"),
        )
        dense = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
        yield common | dense | layers | {"num_key_value_heads": 1, "head_dim": 128}, lambda name: name in _MLP


def _with_linear_layers(shape: ModelShape, common: dict[str, object]) -> dict[str, object]:
    """The config of a model with layers of Gated DeltaNet, which the package knows as Qwen3.5."""
    if shape.dense_layers and shape.moe_layers:
        raise OppoError(
            "costs: kernels of linear attention were measured where all layers are dense or all have experts;"
            " take kind: roofline"
        )
    full = ["full_attention"] * shape.attention_layers
    text: dict[str, object] = {
        **common,
        **{name: getattr(shape, name) for name in LINEAR_FIELDS},
        "attn_output_gate": shape.attn_output_gate,
        "layer_types": ["linear_attention"] * shape.num_linear_layers + full,
        "mamba_ssm_dtype": "float32",
        "num_hidden_layers": shape.num_hidden_layers,
    }
    if not shape.moe_layers:
        text["model_type"] = "qwen3_5_text"
        return {
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "model_type": "qwen3_5",
            "text_config": text,
        }
    text |= {
        "model_type": "qwen3_5_moe_text",
        "num_experts": shape.num_experts,
        "num_experts_per_tok": shape.num_experts_per_tok,
        "moe_intermediate_size": shape.moe_intermediate_size,
        "shared_expert_intermediate_size": shape.shared_expert_intermediate_size,
    }
    return {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "text_config": text,
    }


def _layers(query: KernelQuery, config: dict[str, object], keep: Callable[[str], bool]) -> _Layers:
    from aiconfigurator_core.sdk.engine import EngineHandle

    degree, (matrices, experts) = query.tensor_parallel, _QUANTIZATION[query.dtype]
    ranks = query.attention_data_parallel
    if query.other_products:
        matrices = _QUANTIZATION["fp8_dynamic"][0]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
        engine = EngineHandle.compile(
            folder,
            query.system,
            query.engine,
            backend_version=query.version,
            tp_size=degree // ranks,
            attention_dp_size=ranks,
            moe_tp_size=degree // query.expert_parallel,
            moe_ep_size=query.expert_parallel,
            gemm_quant_mode=matrices,
            moe_quant_mode=experts,
            kvcache_quant_mode="fp8" if query.kv_cache_dtype == "fp8" else "bfloat16",
            fmha_quant_mode="bfloat16",
        )
    decode = engine.decode_step_per_op(8, 1023, 2)
    prefill, _ = engine.run_static_per_op(batch_size=1, isl=1024, osl=2, mode="static_ctx")
    total = engine.predict_decode_latency(8, 1023, 2)
    if abs(sum(op[1] for op in decode) - total) > 1e-3 * total:
        raise ValueError("its parts of a decode step do not add up to the whole")

    def kernels(operators: Sequence[tuple[str, float, float, str]], phase: str) -> tuple[_Kernel, ...]:
        named = (
            _Kernel(name.removeprefix(phase), place, source)
            for place, (name, _, _, source) in enumerate(operators)
        )
        return tuple(kernel for kernel in named if keep(kernel.name))

    return _Layers(engine, kernels(decode, "generation_"), kernels(prefill, "context_"))


def _origin(layers: Sequence[_Layers]) -> KernelOrigin:
    found = {kernel.name: kernel.source for each in layers for kernel in each.decode}
    prefill = {kernel.name: kernel.source for each in layers for kernel in each.prefill}
    for name in _ATTENTION:
        if name in prefill:
            found[f"prefill {name.removesuffix('_block')}"] = prefill[name]
    return KernelOrigin(
        package=PACKAGE,
        package_version=version(PACKAGE),
        licence="Apache-2.0",
        made=datetime.now(UTC).date().isoformat(),
        kernels=found,
    )


def _rows(layers: Sequence[_Layers]) -> RowsTable:
    def of(wanted: Callable[[str], bool]) -> tuple[float, ...]:
        # The head runs for the batch, everything else for the tokens.
        return tuple(_seconds(sum(each.decode_ms(wanted, n, 1, n) for each in layers)) for n in TOKENS)

    return RowsTable(
        tokens=TOKENS,
        seconds=of(lambda name: name not in _COLLECTIVES.union(_ATTENTION, ("logits_gemm",))),
        collectives=of(lambda name: name in _COLLECTIVES),
        head=of(lambda name: name == "logits_gemm"),
    )


def _decode_attention(layers: Sequence[_Layers], shape: ModelShape, n_running: int, kv: int) -> float:
    """Milliseconds."""
    window = _window(shape)

    def at(length: int) -> float:
        return sum(each.decode_ms(_ATTENTION.__contains__, n_running, length) for each in layers)

    return at(kv) if window is None or kv <= window else _mixed(shape, at(kv), at(window))


def _window(shape: ModelShape) -> int | None:
    return shape.sliding_window if shape.num_sliding_layers else None


def _mixed(shape: ModelShape, full: float, within: float) -> float:
    """Of all layers, where they all attended to all tokens, and all to those in the window."""
    share = shape.num_sliding_layers / shape.attention_layers
    return full + share * (within - full)


def pieces(tokens: float, mean_context: float) -> tuple[float, int, int]:
    """(rollouts, new tokens of each, past tokens of each) that represent tokens at a mean context.

    Whole rollouts where no past is needed to reach it, else pieces of at most 512 tokens.
    """
    if tokens >= 2.0 * mean_context:
        new = round(2.0 * mean_context)
        return tokens / new, new, 0
    new = round(min(tokens, _PIECE))
    return tokens / new, new, round(mean_context - new / 2.0)


def _prefill_attention(
    layers: Sequence[_Layers], shape: ModelShape, tokens: float, mean_context: float
) -> float:
    """Milliseconds; between whole numbers of rollouts it is linear."""
    window = _window(shape)

    def at(context: float) -> float:
        count, new, past = pieces(tokens, context)

        def of(rollouts: int) -> float:
            return sum(each.prefill_attention_ms(rollouts, new, past) for each in layers)

        low, high = max(1, floor(count)), max(1, ceil(count))
        return of(low) if low == high else of(low) + (of(high) - of(low)) * (count - low)

    if window is None or mean_context <= window:
        return at(mean_context)
    return _mixed(shape, at(mean_context), at(float(window)))


def _matrix(milliseconds: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
    """In seconds."""
    return tuple(tuple(_seconds(one) for one in row) for row in milliseconds)


def _seconds(milliseconds: float) -> float:
    return float(f"{milliseconds * 1e-3:.{_DIGITS}g}")
