"""Finished visits on disk, keyed by everything that they depend on: an interrupted calibration goes on where
it was."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oppo_real.calibrate.measure import Visit, visit_from_plain
from oppo_real.calibrate.plan import TIMED_ITERATIONS, WARM_ITERATIONS, Point
from oppo_sim.errors import OppoError

_METHOD = 1
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
        self._folder = folder / self._context[:16]
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OppoError(
                f"cannot make the folder {self._folder} for measured points: {error.strerror or error}"
            ) from None

    def get(self, point: Point, number: int) -> Visit | None:
        """A visit measured before; None where there is none, or its file is damaged or of another context."""
        try:
            plain = json.loads(self._path(point.key, number).read_text(encoding="utf-8"))
            if plain["context"] != self._context or plain["point"] != point.key:
                return None
            return visit_from_plain(plain["visit"], point, number)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put(self, visit: Visit) -> None:
        """Keep a visit; the file is whole or absent. Raises OppoError if it cannot be written."""
        self.put_plain(visit.point.key, visit.number, {"point": visit.point.key, "visit": visit.to_plain()})

    def get_plain(self, key: str, number: int) -> Any:
        """As ``get``, for a result that is not a visit."""
        try:
            plain = json.loads(self._path(key, number).read_text(encoding="utf-8"))
            return plain["result"] if plain["context"] == self._context else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put_plain(self, key: str, number: int, content: Mapping[str, Any]) -> None:
        """As ``put``; ``content`` is JSON, under ``result`` where ``get_plain`` is to find it."""
        path = self._path(key, number)
        partial = path.with_suffix(f".{os.getpid()}.part")
        try:
            partial.write_text(json.dumps({"context": self._context, **content}), encoding="utf-8")
            partial.replace(path)
        except OSError as error:
            raise OppoError(f"cannot keep a measured point in {path}: {error.strerror or error}") from None

    def _path(self, key: str, number: int) -> Path:
        return self._folder / f"{key[:24]}-{number}.json"


def without_volatile(value: Any) -> Any:
    """A resolved configuration without what changes while the engine runs, and without seeds."""
    if isinstance(value, Mapping):
        return {key: without_volatile(inner) for key, inner in value.items() if key not in _VOLATILE}
    if isinstance(value, list | tuple):
        return [without_volatile(inner) for inner in value]
    return value
