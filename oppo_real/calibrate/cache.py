"""Finished measurements on disk, keyed by all that they depend on: an interrupted calibration goes on."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oppo_real.calibrate.plan import TIMED_ITERATIONS, WARM_ITERATIONS
from oppo_sim.files import whole_file, write_errors

_METHOD = 4
"""Raised when what is timed changes."""
_VOLATILE = frozenset({"seed", "weight_version", "kv_bytes_per_token", "cuda_graphs"})
"""Entries of a resolved configuration that change while the engine runs, or that no second depends on."""


class VisitCache:
    """A folder with one small JSON file a visit."""

    def __init__(self, folder: Path, context: Mapping[str, Any]) -> None:
        """``context``: hardware, versions, resolved configurations: whatever can change a second.

        Raises OppoError if the folder cannot be made.
        """
        fixed = {"method": [_METHOD, WARM_ITERATIONS, TIMED_ITERATIONS], "context": without_volatile(context)}
        self._context = hashlib.sha256(json.dumps(fixed, sort_keys=True, default=str).encode()).hexdigest()
        self.folder = folder / self._context[:16]
        with write_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)

    def get(self, key: str, number: int) -> Any:
        """What ``put`` kept; None where there is nothing, or its file is damaged or of another context."""
        try:
            plain = json.loads(self._path(key, number).read_text(encoding="utf-8"))
            return plain["result"] if (plain["context"], plain["key"]) == (self._context, key) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put(self, key: str, number: int, result: Mapping[str, Any]) -> None:
        """Keep a result, as JSON; the file is whole or absent. Raises OppoError if it cannot be written."""
        content = {"context": self._context, "key": key, "result": result}
        with whole_file(self._path(key, number)) as file:
            file.write(json.dumps(content).encode())

    def _path(self, key: str, number: int) -> Path:
        return self.folder / f"{key[:24]}-{number}.json"


def without_volatile(value: Any) -> Any:
    """A resolved configuration without what changes while the engine runs, and without seeds."""
    if isinstance(value, Mapping):
        return {key: without_volatile(inner) for key, inner in value.items() if key not in _VOLATILE}
    if isinstance(value, list | tuple):
        return [without_volatile(inner) for inner in value]
    return value
