"""TensorBoard's event files, read without TensorBoard."""

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from oppo_sim.errors import OppoError
from oppo_sim.files import file_errors
from oppo_sim.traces.importers.logged_steps import Figures
from oppo_sim.traces.importers.reading import Reading

_MOST_RECORD: Final = 64 << 20
"""Bytes."""


def event_figures(path: Path, reading: Reading) -> Iterator[Figures]:
    """Scalars of a TensorBoard event file: records of (length, check, data: an ``Event`` message, check).

    Raises OppoError for a damaged file.
    """
    with file_errors(path), path.open("rb") as file:
        while head := file.read(12):
            if len(head) < 12:
                return
            (length,) = struct.unpack("<Q", head[:8])
            if length > _MOST_RECORD:
                raise OppoError(f"{path} is no TensorBoard event file, or a damaged one: copy it again")
            data = file.read(length)
            if len(data) < length or len(file.read(4)) < 4:
                return  # a run that was still writing
            try:
                step, figures = _event(data)
            except (ValueError, IndexError, struct.error):
                raise OppoError(
                    f"{path} is no TensorBoard event file, or a damaged one: copy it again"
                ) from None
            known = {name: value for name, value in figures.items() if math.isfinite(value)}
            reading.valueless.update(figures.keys() - known.keys())
            if known:
                yield step, known


def _event(data: bytes) -> tuple[int, dict[str, float]]:
    # tensorflow/core/util/event.proto: 2 step, 5 summary; summary.proto: 1 value with 1 tag, 2 simple_value,
    # 8 tensor.
    step, figures = 0, dict[str, float]()
    for number, value in _message(data):
        if number == 2 and isinstance(value, int):
            step = value
        elif number == 5 and isinstance(value, bytes):
            for inner, part in _message(value):
                if inner == 1 and isinstance(part, bytes):
                    fields = dict(_message(part))
                    scalar = _scalar(fields)
                    if scalar is not None:
                        figures[bytes(fields.get(1, b"")).decode("utf-8", "replace")] = scalar
    return step, figures


def _scalar(fields: dict[int, int | bytes]) -> float | None:
    simple, tensor = fields.get(2), fields.get(8)
    if isinstance(simple, bytes) and len(simple) == 4:
        return float(struct.unpack("<f", simple)[0])
    if not isinstance(tensor, bytes):
        return None
    inside = dict(_message(tensor))
    raw = inside.get(4) or inside.get(5)  # tensor_content or float_val
    return (
        float(struct.unpack("<f", raw)[0])
        if inside.get(1) == 1 and isinstance(raw, bytes) and len(raw) == 4
        else None
    )


def _message(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) of a protocol buffer message; fixed-width numbers as their bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError("unknown wire type")
        if at + size > len(data):
            raise ValueError("beyond the end")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at
        if shift > 63:
            raise ValueError("too long a number")
