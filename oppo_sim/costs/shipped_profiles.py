"""Measured profiles that come with the package, found by name:
``costs: {kind: profile, name: h200/qwen2.5-7b+1.5b/torch}``.

A folder with one file a profile, and ``index.json``: the names, where each file lies, and its SHA-256, so
that a damaged or edited profile is not taken for what was measured.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from oppo_sim.costs.profile import Profile, load_profile, samples_path
from oppo_sim.errors import OppoError
from oppo_sim.files import whole_file

SHIPPED_FOLDER: Final = Path(__file__).parent / "measured"
INDEX_FORMAT: Final = "oppo-profile-index/1"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.+_-]*(/[a-z0-9][a-z0-9.+_-]*)*")


def shipped_profiles(folder: Path = SHIPPED_FOLDER) -> list[str]:
    """Names of the profiles in a folder, sorted. Raises OppoError for an index that cannot be read."""
    return sorted(_entries(folder))


def load_shipped(name: str, folder: Path | None = None) -> Profile:
    """The profile of a name, of those that come with the package unless another ``folder`` is given.

    Raises OppoError if there is none, with the closest names, and for a file that is not the one registered.
    """
    folder = folder or SHIPPED_FOLDER
    entries = _entries(folder)
    if name not in entries:
        close = get_close_matches(name, entries, n=2)
        known = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(sorted(entries))}"
        if not entries:
            known = (
                "none is shipped yet: measure one with oppo calibrate and give its path (docs/calibrate.md),"
                " or take kind: roofline"
            )
        raise OppoError(f"costs.name: no measured profile {name!r}: {known}")
    path = folder / entries[name]["file"]
    if _digest(path) != entries[name]["sha256"]:
        raise OppoError(
            f"costs.name: {path} is not the profile that was registered as {name} (its SHA-256 differs):"
            " restore the file"
        )
    return load_profile(path)


def register_profile(source: Path, name: str, folder: Path = SHIPPED_FOLDER) -> Path:
    """Copy a profile into ``folder`` under ``name`` (in place of one of that name), and its samples where
    they lie beside it; returns the copy.

    ``name``: ``device/models/engine``, small letters, digits and ``. + _ -``. Raises OppoError for another,
    for a file that is no profile, for samples that are not the profile's, and for a disk that refuses.
    """
    if _NAME.fullmatch(name) is None:
        raise OppoError(
            f"a profile cannot be registered as {name!r}: use small letters, digits, . + _ - and / between"
            " parts"
        )
    profile = load_profile(source)
    content = source.read_bytes()
    samples = _samples_of(source, profile)
    entries = dict(_entries(folder)) if (folder / "index.json").exists() else {}
    file = f"{name}.json"
    target = folder / file
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OppoError(f"cannot make the folder {target.parent}: {error.strerror or error}") from None
    with whole_file(target) as copy:
        copy.write(content)
    if samples is not None:
        with whole_file(samples_path(target)) as copy:
            copy.write(samples)
    entries[name] = {"file": file, "sha256": hashlib.sha256(content).hexdigest()}
    with whole_file(folder / "index.json") as index:
        plain = {"format": INDEX_FORMAT, "profiles": {key: entries[key] for key in sorted(entries)}}
        index.write((json.dumps(plain, indent=1) + "\n").encode())
    return target


def _samples_of(source: Path, profile: Profile) -> bytes | None:
    """The samples that lie beside a profile, as ``oppo calibrate`` writes them; None: there are none."""
    path = samples_path(source)
    if not path.exists():
        return None
    if _digest(path) not in profile.measured.raw_samples:
        raise OppoError(
            f"{path} is not the samples of {source.name} (its SHA-256 differs): bring both together"
        )
    return path.read_bytes()


def _entries(folder: Path) -> Mapping[str, Mapping[str, str]]:
    path = folder / "index.json"
    try:
        plain: Any = json.loads(path.read_text(encoding="utf-8"))
        if plain["format"] != INDEX_FORMAT:
            raise ValueError(f"its format is {plain['format']!r}, not {INDEX_FORMAT}")
        return {
            str(name): {"file": str(entry["file"]), "sha256": str(entry["sha256"])}
            for name, entry in plain["profiles"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise OppoError(
            f"the index of measured profiles {path} cannot be read ({error}): restore it"
        ) from None


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise OppoError(f"cannot read the cost profile {path}: {error.strerror or error}") from None
