"""A calibration for everybody: hardware, versions, settings and samples, and no names of its owner's.

What says whose it is (paths, repositories, the scenario's name) is left out; models are told by their shape.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from oppo_real.calibrate.profile import samples_reference
from oppo_sim.costs.profile import Profile, samples_path, save_profile
from oppo_sim.errors import OppoError
from oppo_sim.files import write_errors

_WORD: Final = re.compile(r"[A-Za-z0-9_.+:-]{1,40}")
"""A text that can be a setting: no path, no sentence."""
_NAMED: Final = {"model", "name", "path", "revision", "run", "source", "tokenizer", "url", "user"}
"""Parts of a key under which a name stands."""
_KINDS: Final = {"attention_path", "model_type"}
"""Keys that look like one and are a kind."""


@dataclass(frozen=True)
class Shared:
    """Files that can be given away."""

    name: str
    """Of the profile in a registry: device/models/engine."""
    profile: Path
    samples: Path


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


def _kept(value: Any) -> Any:
    """A setting without what may be a name: mappings and lists of numbers and single words."""
    if isinstance(value, Mapping):
        kept = {str(key): _kept(each) for key, each in value.items() if not _names(str(key), each)}
        return {key: each for key, each in kept.items() if each is not _LEFT_OUT}
    if isinstance(value, list | tuple):
        return [each for each in map(_kept, value) if each is not _LEFT_OUT]
    if isinstance(value, str):
        return value if _WORD.fullmatch(value) else _LEFT_OUT
    return value


_LEFT_OUT: Final = object()


def _names(key: str, value: Any) -> bool:
    if not isinstance(value, str) or key in _KINDS:
        return False
    # ``actor: Qwen/Qwen2.5-7B`` of the models is a name too: a repository, or a folder.
    return bool(_NAMED & set(key.lower().split("_"))) or key in ("actor", "reward", "reference", "critic")


def _only_figures(row: Any) -> None:
    """Raises OppoError where a sample holds a text that is no word of the format."""
    if isinstance(row, Mapping):
        for each in row.values():
            _only_figures(each)
    elif isinstance(row, list):
        for each in row:
            _only_figures(each)
    elif isinstance(row, str) and not re.fullmatch(r"[a-z_]{1,20}", row):
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
