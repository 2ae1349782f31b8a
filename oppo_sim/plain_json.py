"""JSON of results: numpy and paths made plain, numbers that JSON does not have written as null."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence, Set
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from oppo_sim.files import reading


def plain(value: Any) -> Any:
    """``value`` in terms of dict, list, str, int, float, bool and None; NaN, infinities and missing values of
    pandas become None, sets are sorted.

    Raises TypeError for an object that has no plain form.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist())
    if type(value).__name__ == "NAType":  # of pandas, whose import takes long
        return None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Set):
        return [plain(item) for item in sorted(value)]
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    if isinstance(value, PurePath):
        return value.as_posix()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} has no plain JSON form")


def read_json(path: Path, mend: str) -> Any:
    """JSON that this program wrote. Raises OppoError when it is missing or damaged; ``mend`` says what then
    helps."""
    with reading(path, mend):
        try:
            return json.loads(path.read_bytes())
        except RecursionError:
            raise ValueError("nested too deeply") from None


def json_bytes(value: Any) -> bytes:
    """Indented UTF-8 JSON, keys in the order given: the same value gives the same bytes."""
    return (json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
