"""A calibration for everybody: hardware, versions, settings and samples, and no names of its owner's.

What says whose it is (paths, repositories, the scenario's name) is left out; models are told by their shape.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oppo_real.calibrate.profile import samples_reference
from oppo_sim.costs.profile import Profile, samples_path, save_profile
from oppo_sim.errors import OppoError
from oppo_sim.files import write_errors

if TYPE_CHECKING:
    from oppo_real.config import ModelsConfig

_WORD: Final = re.compile(r"[A-Za-z0-9_.+:-]{1,40}")
"""A text that can be a setting: no path, no sentence."""
_KINDS: Final = {
    "attention", "attention_backend", "attention_path", "carried", "critic", "cuda_graphs", "device",
    "device_name",
    "distributed_executor_backend", "dtype", "engine", "kl_estimator", "kv_cache_dtype", "logprobs_mode",
    "lr_scheduler_type", "mode", "model_type", "quantization", "rollout", "scheduling_policy", "scorer",
    "scoring", "torch", "torch_version", "training", "training_dtype", "transformers", "vllm_version",
}  # fmt: skip
"""Keys whose text is one of a few words, a device or a version. Any other text may be a name or a token of
access, and is left out."""
_SHAPE: Final = {
    "attention_bias", "first_k_dense_replace", "head_dim", "hidden_size", "intermediate_size", "kv_lora_rank",
    "max_position_embeddings", "max_window_layers", "model_type", "moe_intermediate_size", "n_embd", "n_head",
    "n_layer", "n_routed_experts", "n_shared_experts", "num_attention_heads", "num_experts",
    "num_experts_per_tok", "num_hidden_layers", "num_key_value_heads", "num_labels", "num_local_experts",
    "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "rms_norm_eps", "rope_theta", "sliding_window",
    "text_config", "tie_word_embeddings", "use_sliding_window", "v_head_dim", "vocab_size",
}  # fmt: skip
"""What is told of a model's configuration: others' keys may be names, too."""
_GIVEN: Final = {"actor_args", "scorer_args"}
"""Arguments of engines, as their user gives them: single values only, since keys within may be names."""


@dataclass(frozen=True)
class Shared:
    """Files that can be given away."""

    name: str
    """Of the profile in a registry: device/models/engine."""
    profile: Path
    samples: Path


_FIGURE = re.compile(r"[a-z_]{1,20}|[0-9a-f]{64}|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00")


def shared_name(profile: Profile) -> str:
    """``device/actor+reward model/engine``, such as ``nvidia-h200/7.6b+1.5b/vllm``. Raises OppoError for a
    profile that does not say what was measured."""
    engine = profile.measured.engine
    actor, scorer = engine.get("actor"), engine.get("scorer")
    if not isinstance(actor, Mapping) or not isinstance(scorer, Mapping):
        raise OppoError(
            f"cost profile {profile.name} does not say which engines it was measured on, so it cannot be"
            " shared: measure it with oppo calibrate"
        )
    sizes = [_size(each.get("parameters")) for each in (actor, scorer)]
    device = profile.measured.hardware.split(",")[0]
    device = re.sub(r"^\d+ of \d+ ", "", device)
    return "/".join((_slug(device), "+".join(sizes), _slug(str(actor.get("engine", "engine")))))


def without_names(profile: Profile, samples: str) -> Profile:
    """The profile as it can be given away, its samples (``samples_text``) named with their SHA-256."""
    name = shared_name(profile)
    kept = _kept(profile.measured.engine)
    assert isinstance(kept, dict)
    reference = samples_reference(Path(f"{name}.json"), samples)
    measured = profile.measured.model_copy(update={"engine": kept, "raw_samples": reference})
    return profile.model_copy(update={"name": name, "measured": measured})


def with_parameters(profile: Profile, models: "ModelsConfig") -> Profile:
    """The numbers of parameters beside engines that do not tell them: they are part of a shared name. Raises
    OppoError for a model that cannot be read."""
    from oppo_real.engines.models import Kind, ModelSource, parameter_count

    told = dict(profile.measured.engine)
    sources: dict[str, tuple[Kind, ModelSource | None]] = {
        "actor": ("causal_lm", models.actor),
        "scorer": ("score", models.reward),
    }
    for name, (kind, source) in sources.items():
        engine = told.get(name)
        if source is not None and isinstance(engine, Mapping) and "parameters" not in engine:
            told[name] = {**engine, "parameters": parameter_count(kind, source)}
    return profile.model_copy(update={"measured": profile.measured.model_copy(update={"engine": told})})


def write_shared(profile: Profile, samples: str, folder: Path) -> Shared:
    """Write profile and samples below ``folder`` under the profile's shared name. Raises OppoError if they
    cannot be written, or if the samples hold more than figures."""
    for line in samples.splitlines():
        _only_figures(json.loads(line))
    shared = without_names(profile, samples)
    path = folder / f"{shared.name}.json"
    beside = samples_path(path)
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(samples, encoding="utf-8")
    save_profile(shared, path)
    return Shared(shared.name, path, beside)


# ---- inside ------------------------------------------------------------------------------------------------


_LEFT_OUT: Final = object()


def _kept(value: Any, key: str = "") -> Any:
    """A setting without what may be a name: numbers, and words where only kinds stand."""
    if isinstance(value, Mapping):
        if key == "models":
            return {name: _shape(each) if isinstance(each, Mapping) else None for name, each in value.items()}
        if key in _GIVEN:
            value = {
                name: each for name, each in value.items() if not isinstance(each, Mapping | list | tuple)
            }
        kept = {str(name): _kept(each, str(name)) for name, each in value.items()}
        return {name: each for name, each in kept.items() if each is not _LEFT_OUT}
    if isinstance(value, list | tuple):
        return [each for each in (_kept(each, key) for each in value) if each is not _LEFT_OUT]
    if isinstance(value, str):
        return value if key in _KINDS and _WORD.fullmatch(value) else _LEFT_OUT
    return value


def _shape(config: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, each in config.items():
        if name == "text_config" and isinstance(each, Mapping):
            found[name] = _shape(each)
        elif name in _SHAPE and (isinstance(each, int | float) or _known_type(name, each)):
            found[name] = each
    return found


def _known_type(name: str, value: Any) -> bool:
    """A model's type that everybody knows; another is its owner's word."""
    from transformers import CONFIG_MAPPING

    return name == "model_type" and value in CONFIG_MAPPING


def _only_figures(row: Any) -> None:
    """Raises OppoError where a sample holds a text that is no word of the format, no key of a batch and no
    time of a visit (of which the profile's date is the last)."""
    if isinstance(row, Mapping):
        for each in row.values():
            _only_figures(each)
    elif isinstance(row, list):
        for each in row:
            _only_figures(each)
    elif isinstance(row, str) and not _FIGURE.fullmatch(row):
        raise OppoError(f"a sample holds the text {row[:40]!r}, which is no figure: it is not shared")


def _size(parameters: Any) -> str:
    """7615616512 → 7.6b."""
    if not isinstance(parameters, int | float) or parameters <= 0:
        return "model"
    for unit, letter in ((1e9, "b"), (1e6, "m"), (1e3, "k")):
        if parameters >= unit:
            return f"{parameters / unit:.3g}{letter}"
    return f"{parameters:g}"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.") or "device"
