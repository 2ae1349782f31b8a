"""Starting, describing and stopping vLLM engines inside this process.

Engines of one process share vLLM's process groups, and shutting one down tears the groups down for all. So an
engine that is closed while others are open keeps its memory until the last one is closed.
"""

import contextlib
import importlib
import random
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, cast

from oppo_real.engines.vllm_probe import VllmFeatures, require_vllm
from oppo_sim.errors import OppoError

_open: list[Any] = []
_closed: list[Any] = []


def model_folder(model: str | Path) -> Path:
    """The folder, checked: it was written by ``save_pretrained``. Raises ``OppoError`` otherwise."""
    folder = Path(model)
    if not (folder / "config.json").is_file():
        raise OppoError(
            f"The model folder {str(folder)!r} has no config.json: give a folder written by save_pretrained."
        )
    return folder


def start_engine(settings: Mapping[str, Any], features: VllmFeatures) -> Any:
    """A ``vllm.LLMEngine`` in this process. The random states of Python, numpy and torch, which vLLM seeds at
    its start, are put back.

    Raises ``OppoError`` with vLLM's reason when the engine does not start, or when an argument is unknown to
    this vLLM.
    """
    vllm = require_vllm()
    unknown = sorted(set(settings) - features.engine_args)
    if unknown:
        raise OppoError(
            f"vLLM {features.vllm_version} does not know the engine argument(s) {', '.join(unknown)}: "
            "leave them out or install a newer vLLM."
        )
    with _random_states_kept():
        try:
            engine = vllm.LLMEngine.from_engine_args(vllm.EngineArgs(**settings))
        except Exception as error:  # also what compilers, drivers and missing libraries raise under it
            reason = _reason(error, 4)
            # vLLM names its own settings.
            own = "num_gpu_blocks_override" in settings and "kv" in reason.lower()
            raise OppoError(
                f"vLLM did not start on the model folder {settings['model']!r}: {reason}"
                + (" (a replica's KV is rollout.kv_capacity_tokens.)" if own else "")
                + _mend(reason)
            ) from error
    _open.append(engine)
    return engine


def stop_engine(engine: Any) -> None:
    """Close an engine; closing twice is harmless. Memory is freed once no engine of this process is open."""
    if engine not in _open:
        return
    _open.remove(engine)
    _closed.append(engine)
    if not _open:
        while _closed:
            _closed.pop().engine_core.shutdown()


def describe_engine(engine: Any, features: VllmFeatures) -> dict[str, Any]:
    """What the engine really runs with. Sizes in tokens unless the name says otherwise."""
    config = engine.vllm_config
    model, cache, scheduler = config.model_config, config.cache_config, config.scheduler_config
    text = model.hf_text_config
    blocks = cache.num_gpu_blocks - 1
    return {
        "engine": "vllm",
        "vllm_version": features.vllm_version,
        "torch_version": features.torch_version,
        "device": features.device_type,
        "dtype": str(model.dtype).removeprefix("torch."),
        "architecture": (model.hf_config.architectures or [type(model.hf_config).__name__])[0],
        "num_hidden_layers": text.num_hidden_layers,
        "hidden_size": text.hidden_size,
        "num_attention_heads": text.num_attention_heads,
        "num_key_value_heads": getattr(text, "num_key_value_heads", text.num_attention_heads),
        "vocab_size": text.vocab_size,
        "max_model_len": model.max_model_len,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "kv_blocks": blocks,
        "kv_block_tokens": cache.block_size,
        "kv_capacity_tokens": blocks * cache.block_size,
        "prefix_caching": bool(cache.enable_prefix_caching),
        "async_scheduling": bool(scheduler.async_scheduling),
        "enforce_eager": bool(model.enforce_eager),
        "attention": _attention(engine),
    }


def step_engine(engine: Any, features: VllmFeatures) -> list[Any]:
    """One ``engine.step()``. Raises ``OppoError`` with vLLM's reason when the model does not run."""
    try:
        with _without_compiling(engine, features):
            return list(engine.step())
    except Exception as error:  # as above
        reason = _reason(error, 1)
        raise OppoError(
            f"vLLM failed in an iteration ({reason}): see its log (VLLM_LOGGING_LEVEL=INFO), or use the"
            f" torch engine.{_mend(reason)}"
        ) from error


def _reason(error: Exception, most: int) -> str:
    """Its first lines; of what says little by itself, with its name."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()][:most]
    plain = isinstance(error, RuntimeError | ValueError | OSError | AssertionError) and lines
    return " ".join(lines) if plain else " ".join([f"{type(error).__name__}:", *lines]).rstrip(":")


def _mend(reason: str) -> str:
    lower = reason.lower()
    if any(word in lower for word in ("gcc", "c compiler", "python.h", "ninja", "nvcc")):
        return (
            " Kernels are compiled on this machine: install a C compiler and Python's headers (gcc,"
            " python3-dev; where nvcc is named, CUDA's toolkit)."
        )
    return ""


def _without_compiling(engine: Any, features: VllmFeatures) -> AbstractContextManager[Any]:
    """On a CPU vLLM in eager mode would still compile a helper for log-probabilities, for many seconds."""
    stance = getattr(importlib.import_module("torch").compiler, "set_stance", None)
    if stance is None or features.device_type != "cpu" or not engine.vllm_config.model_config.enforce_eager:
        return contextlib.nullcontext()
    return cast("AbstractContextManager[Any]", stance("force_eager"))


def _attention(engine: Any) -> str:
    found = engine.model_executor
    for name in ("driver_worker", "model_runner", "attn_groups"):
        found = getattr(found, name, None)
    names = {group.backend.get_name() for row in found or () for group in row}
    return "+".join(sorted(names)) if names else "unknown"


@contextlib.contextmanager
def _random_states_kept() -> Iterator[None]:
    from oppo_real.engines.device import gpus_in_use

    numpy_random = importlib.import_module("numpy").random
    torch = importlib.import_module("torch")
    python_state, numpy_state = random.getstate(), numpy_random.get_state()
    with torch.random.fork_rng(devices=gpus_in_use()):
        try:
            yield
        finally:
            random.setstate(python_state)
            numpy_random.set_state(numpy_state)
