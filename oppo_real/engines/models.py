"""Models from a transformers configuration or a checkpoint folder: the actor, the reward model, the critic.
Nothing is downloaded."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from oppo_real.engines.device import free_gpu_bytes, usable_device
from oppo_real.engines.vllm_arguments import kv_numbers_of
from oppo_real.node import free_host_bytes
from oppo_real.quiet import without_bars
from oppo_sim.errors import OppoError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

ModelSource = Mapping[str, Any] | str | Path
"""A configuration as a mapping, the path of a ``config.json``, or of its folder, perhaps with weights."""

DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")
}

Kind = Literal["causal_lm", "score"]
"""A policy or reference, or a model with one output: reward, critic."""
_DRAWN_IN_PLACE = 200_000_000
"""Parameters."""
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
# Keys that published configurations carry beside the model's own.
_HARMLESS = {
    "architectures",
    "torch_dtype",
    "transformers_version",
    "_name_or_path",
    "model_type",
    "auto_map",
    "_attn_implementation",
}


def build_causal_lm(
    source: ModelSource, seed: int = 0, dtype: str = "float32", device: str | torch.device = "cpu"
) -> torch.nn.Module:
    """A causal language model (actor, reference) in evaluation mode: the weights of a checkpoint, or random
    ones of ``seed``.

    Raises OppoError for a wrong path, a configuration transformers does not understand, or a model that does
    not fit into free memory.
    """
    return _build("causal_lm", source, seed, dtype, device)


def build_reward_model(
    source: ModelSource, seed: int = 0, dtype: str = "float32", device: str | torch.device = "cpu"
) -> torch.nn.Module:
    """The transformer with a score head of one output; random (by ``seed``) where a checkpoint has none."""
    return _build("score", source, seed, dtype, device)


def build_value_model(
    source: ModelSource, seed: int = 0, dtype: str = "float32", device: str | torch.device = "cpu"
) -> torch.nn.Module:
    """A critic: built as a reward model is; its head is read at every token instead of the last."""
    return _build("score", source, seed, dtype, device)


def parameter_count(kind: Kind, source: ModelSource) -> int:
    """Parameters of a model, without building it. Raises OppoError as the functions that do."""
    shape, _, _ = _shape(kind, source)
    return sum(parameter.numel() for parameter in shape.parameters())


def kv_numbers(source: ModelSource) -> int:
    """Numbers of one KV token over all layers, by a model's configuration; 0 where it does not tell. Raises
    OppoError as the functions that build it do."""
    return kv_numbers_of(_configuration(source).get_text_config().to_dict()) or 0


def vocabulary_and_positions(source: ModelSource) -> tuple[int, int | None]:
    """Tokens that a model knows, and the longest sequence it takes (None: not bounded), from its
    configuration. Raises OppoError as the functions that build it do."""
    config: Any = _configuration(source).get_text_config()
    positions = getattr(config, "max_position_embeddings", None)
    return int(config.vocab_size), None if positions is None else int(positions)


def _shape(kind: Kind, source: ModelSource) -> "tuple[torch.nn.Module, PretrainedConfig, Any]":
    """The model without memory, its configuration, and what builds it."""
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    config = _configuration(source)
    if kind == "score":
        config.num_labels = 1
    auto: Any = AutoModelForCausalLM if kind == "causal_lm" else AutoModelForSequenceClassification
    what = f"A {config.model_type} model cannot be built from {_named(source)}"
    with torch.device("meta"):
        return _attempt(lambda: auto.from_config(config), what), config, auto


def _build(
    kind: Kind, source: ModelSource, seed: int, dtype: str, device: str | torch.device
) -> torch.nn.Module:
    precision = _dtype(dtype)
    place = usable_device(device)
    shape, config, auto = _shape(kind, source)
    name = f"A {config.model_type} model"
    _check_memory(shape, precision, place, name)
    count = sum(parameter.numel() for parameter in shape.parameters())
    # Random weights are drawn on the CPU, so that a seed gives the same ones on every device. Of large
    # models, whose random weights only take up room and time, they are drawn where they are needed: a CPU
    # takes a minute for 7 billion.
    drawn_on = place if count >= _DRAWN_IN_PLACE else torch.device("cpu")
    with torch.random.fork_rng(devices=[place] if place.type == "cuda" else []):
        torch.manual_seed(seed)
        if _has_weights(source):
            with without_bars():
                model = _attempt(
                    lambda: auto.from_pretrained(
                        str(source), config=config, dtype=precision, local_files_only=True
                    ),
                    f"The checkpoint {_named(source)} cannot be loaded",
                )
        else:
            model = _attempt(
                lambda: _drawn(auto, config, precision, drawn_on),
                f"{name} cannot be built from {_named(source)}",
            )
    moved = _attempt(lambda: model.to(place), f"{name} cannot be moved to {place}")
    assert isinstance(moved, torch.nn.Module)
    return moved.eval()


def _drawn(auto: Any, config: "PretrainedConfig", precision: torch.dtype, device: torch.device) -> Any:
    if device.type == "cpu":
        return auto.from_config(config, dtype=precision)
    with device:
        return auto.from_config(config, dtype=precision)


def _attempt(action: Callable[[], Any], what: str) -> Any:
    try:
        return action()
    except OppoError:
        raise
    except Exception as error:  # transformers and huggingface_hub raise many kinds
        raise OppoError(
            f"{what}: {str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__}"
        ) from error


def _named(source: ModelSource) -> str:
    return "the given configuration" if isinstance(source, Mapping) else str(source)


def _dtype(dtype: str) -> torch.dtype:
    if dtype not in DTYPES:
        raise OppoError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}.")
    return DTYPES[dtype]


def _has_weights(source: ModelSource) -> bool:
    if isinstance(source, Mapping) or not Path(source).is_dir():
        return False
    return any(next(Path(source).glob(pattern), None) is not None for pattern in _WEIGHTS)


def _configuration(source: ModelSource) -> "PretrainedConfig":
    if isinstance(source, Mapping):
        return _from_fields(dict(source), strict=True, where="the model configuration")
    path = Path(source)
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise OppoError(
            f"There is no model at {path}: give a configuration, a config.json, or a checkpoint folder that"
            " contains one."
        )
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OppoError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(fields, dict):
        raise OppoError(f"{file} is no model configuration: it must be a JSON object with a model_type.")
    return _from_fields(fields, strict=False, where=str(file))


def _from_fields(fields: dict[str, Any], strict: bool, where: str) -> "PretrainedConfig":
    from transformers import AutoConfig

    model_type = fields.pop("model_type", None)
    if not isinstance(model_type, str):
        raise OppoError(f"{where} names no model_type; add one, for instance model_type: qwen2.")
    blank = _attempt(
        lambda: AutoConfig.for_model(model_type),
        f"{where} has model_type {model_type!r}, which transformers does not know",
    )
    if strict:
        known = set(blank.to_dict()) | set(dir(blank)) | _HARMLESS
        unknown = sorted(set(fields) - known)
        if unknown:
            raise OppoError(
                f"{where} has a field {unknown[0]!r} that a {model_type} model does not have; remove it."
            )
    what = f"{where} is no valid {model_type} configuration"
    config: PretrainedConfig = _attempt(lambda: AutoConfig.for_model(model_type, **fields), what)
    text = config.get_text_config()
    heads, shared = (getattr(text, name, None) for name in ("num_attention_heads", "num_key_value_heads"))
    if isinstance(heads, int) and isinstance(shared, int) and shared > 0 and heads % shared:
        raise OppoError(
            f"{where} has num_attention_heads {heads}, which is no multiple of num_key_value_heads {shared}:"
            " give one that divides it."
        )
    return config


def _check_memory(shape: torch.nn.Module, dtype: torch.dtype, device: torch.device, name: str) -> None:
    needed = sum(parameter.numel() for parameter in shape.parameters()) * dtype.itemsize
    free = free_memory_bytes(device)
    if free is not None and needed > free:
        raise OppoError(
            f"{name} needs {needed / 2**30:.2f} GiB for its weights in {str(dtype).removeprefix('torch.')}"
            f" but {device} has {free / 2**30:.2f} GiB free; use a smaller model, bfloat16, or another"
            " device."
        )


def free_memory_bytes(device: torch.device) -> int | None:
    """Bytes free on a device now; None where the system does not say."""
    if device.type == "cuda":
        return free_gpu_bytes(device)
    if device.type != "cpu":
        return None
    if (free := free_host_bytes()) is not None:
        return free
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None
