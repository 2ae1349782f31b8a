"""What the engines give vLLM: arguments of engines, of sampled requests, of scored ones. Nothing of vLLM is
needed to say so; tests/real/test_vllm_arguments.py looks for the names in each version."""

import ast
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from oppo_real.engines.interface import Request, Sampling
from oppo_sim.draws import stream_key
from oppo_sim.errors import OppoError

POOLING: Final[Mapping[str, Any]] = {"task": "classify", "use_activation": False}
"""Of a scored request: the raw logit."""
_ITEM_BYTES = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2}
CPU_KV_BYTES = 1 << 30
"""KV cache of an engine on a CPU whose capacity is not given."""
_CPU_BUDGET = 2048
"""Tokens of an iteration, as vLLM has by default."""


@dataclass(frozen=True)
class Sizes:
    """Of an engine. Tokens, sequences."""

    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    kv_capacity_tokens: int | None = None
    """Rounded up to whole blocks; None: what vLLM finds free on a GPU, 1 GiB on a CPU."""


def installed_arguments() -> frozenset[str] | None:
    """Names that ``EngineArgs`` of the installed vLLM takes, read from its file: to import it takes many
    seconds. None where they are not found there."""
    found = find_spec("vllm")
    if found is None or found.origin is None:
        return None
    try:
        text = (Path(found.origin).parent / "engine" / "arg_utils.py").read_text(encoding="utf-8")
        bodies = [
            node.body
            for node in ast.parse(text).body
            if isinstance(node, ast.ClassDef) and node.name == "EngineArgs"
        ]
    except (OSError, ValueError, SyntaxError):
        return None
    fields = (line.target for body in bodies for line in body if isinstance(line, ast.AnnAssign))
    return frozenset(target.id for target in fields if isinstance(target, ast.Name)) or None


def actor_arguments(
    folder: Path,
    device_type: str,
    sizes: Sizes,
    *,
    lock_step: bool,
    samples: bool,
    caches: bool,
    own: Mapping[str, Any],
) -> dict[str, Any]:
    """Of ``EngineArgs``, for an actor; ``own`` ones win.

    ``device_type``: ``cuda``, ``cpu``, …; ``samples``: at a temperature above 0; ``caches``: prefixes. Raises
    ``OppoError`` for a capacity below 1, or a model without a greatest length.
    """
    found: dict[str, Any] = {
        "generation_config": "vllm",
        "enable_prefix_caching": caches,
        "logprobs_mode": "processed_logprobs",
        "scheduling_policy": "priority",
    }
    length = sizes.max_model_len or _positions(folder)
    if lock_step:
        joined = sizes.max_num_seqs * length
        budget = min(joined, max(sizes.kv_capacity_tokens or joined, length) + sizes.max_num_seqs)
        found |= {"async_scheduling": False, "max_num_batched_tokens": budget}
    elif device_type == "cpu" and samples:
        # After a part of a prefill vLLM sets a rollout's generator back; those of torch on a CPU cannot.
        found |= {"enable_chunked_prefill": False, "max_num_batched_tokens": max(_CPU_BUDGET, length)}
    return _engine_arguments(folder, device_type, sizes, {**found, **own})


def scorer_arguments(folder: Path, device_type: str, sizes: Sizes, own: Mapping[str, Any]) -> dict[str, Any]:
    """As ``actor_arguments``, for a scorer."""
    found = {"runner": "pooling", "convert": "classify", "enable_prefix_caching": True}
    return _engine_arguments(folder, device_type, sizes, {**found, **own})


def sampling_arguments(request: Request, sampling: Sampling, made: int) -> dict[str, Any]:
    """Of ``SamplingParams``, for a rollout with ``made`` response tokens; without its kind of output, which
    is a type of vLLM's own."""
    greedy = sampling.temperature == 0.0
    found: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": 1.0 if greedy else sampling.top_p,
        "max_tokens": request.turn_end - made,
        "ignore_eos": True,
        "logprobs": 0,
        "detokenize": False,
    }
    if not greedy:
        found["seed"] = stream_key(sampling.seed, f"vllm actor {request.rollout_id} {made}") >> 1
    if request.forced_length is not None or request.call_after is not None:
        found["min_tokens"] = found["max_tokens"]
    elif sampling.stop_token_id is not None:
        found["stop_token_ids"] = [sampling.stop_token_id]
    return found


def _engine_arguments(folder: Path, device_type: str, sizes: Sizes, own: Mapping[str, Any]) -> dict[str, Any]:
    on_cpu = device_type == "cpu"
    settings: dict[str, Any] = {
        "model": str(folder),
        "skip_tokenizer_init": True,
        "dtype": sizes.dtype,
        "max_num_seqs": sizes.max_num_seqs,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
    }
    if sizes.max_model_len is not None:
        settings["max_model_len"] = sizes.max_model_len
    if (kv_capacity_tokens := sizes.kv_capacity_tokens) is not None:
        if kv_capacity_tokens < 1:
            raise OppoError(f"kv_capacity_tokens is {kv_capacity_tokens}: give at least 1 token.")
        size = own.get("block_size") or (128 if on_cpu else 16)
        # One block more: vLLM keeps block 0 for padding.
        blocks = math.ceil(kv_capacity_tokens / size) + 1
        settings |= {"block_size": size, "num_gpu_blocks_override": blocks}
        if (needed := _kv_bytes(folder, sizes.dtype, blocks * size)) is not None:
            settings["kv_cache_memory_bytes"] = needed
    elif on_cpu:
        settings["kv_cache_memory_bytes"] = CPU_KV_BYTES
    return {**settings, **own}


def _positions(folder: Path) -> int:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    length = config.get("max_position_embeddings")
    if not length:
        raise OppoError(
            f"The config.json in {str(folder)!r} names no max_position_embeddings: give max_model_len."
        )
    return int(length)


def _kv_bytes(folder: Path, dtype: str, tokens: int) -> int | None:
    """Bytes of ``tokens`` KV tokens; None if the config does not tell."""
    numbers = kv_numbers_of(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    # Unknown ("auto") counts as the widest: the blocks are given, this only has to be enough for them.
    return None if numbers is None else numbers * _ITEM_BYTES.get(dtype, 4) * tokens


def kv_numbers_of(config: Mapping[str, Any]) -> int | None:
    """Numbers of one KV token by a model's configuration (K and V · layers · heads · size, or latents); None
    if it does not tell."""
    heads, layers, hidden = map(config.get, ("num_attention_heads", "num_hidden_layers", "hidden_size"))
    if not (heads and layers and hidden):
        return None
    if latent := config.get("kv_lora_rank"):
        return int(layers * (latent + (config.get("qk_rope_head_dim") or 0)))
    head_size = config.get("head_dim") or hidden // heads
    return int(2 * layers * (config.get("num_key_value_heads") or heads) * head_size)
