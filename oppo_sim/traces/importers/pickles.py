"""Pickled rollout dumps read without running anything in them.

A pickle is a program. Here it may build lists, tables, numbers and text, and of all named objects only
stand-ins written in this
module: tensors, their storages, numpy arrays and scalars. Any other name, a compressed archive or an object
    that is not a plain
value is refused.
"""

import io
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from oppo_sim.errors import OppoError
from oppo_sim.files import file_errors

HOW_TO_CONVERT: Final = (
    "convert it to JSON lines where you trust it (docs/importers.md shows how) and import that with --from"
    " generic"
)

_ZIP_MAGIC: Final = b"PK\x03\x04"
_STORAGE_TYPES: Final = {
    "FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16", "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16", "CharStorage": "int8", "ByteStorage": "uint8", "BoolStorage": "bool",
    "BFloat16Storage": "bfloat16",
    "UntypedStorage": "uint8",
}  # fmt: skip
_PLAIN_TYPES: Final = frozenset(
    {"bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"}
)
_NUMPY_CODES: Final = {
    "b1": "bool", "u1": "uint8", "i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64",
    "f2": "float16", "f4": "float32", "f8": "float64",
}  # fmt: skip


class Refused(Exception):
    """The pickle asks for what is not built here; the message says what."""


@dataclass(frozen=True)
class _Storage:
    """Where a tensor's numbers lie: bytes, or an entry of the archive."""

    kind: str
    key: str
    archive: zipfile.ZipFile | None

    def bytes(self) -> bytes | None:
        if self.archive is None or self.archive.fp is None or self.kind not in _PLAIN_TYPES:
            return None
        return _entry(self.archive, f"data/{self.key}")


@dataclass(frozen=True)
class Array:
    """A tensor or numpy array: its shape, and its numbers where they can be read."""

    shape: tuple[int, ...]
    kind: str
    load: Callable[[], bytes | None]
    offset: int = 0
    strides: tuple[int, ...] | None = None
    """In elements; None: one row behind the other."""

    def values(self) -> Any:
        """A numpy array. Raises Refused if the numbers are not there, or do not fill the shape."""
        raw = self.load()
        if self.kind not in _PLAIN_TYPES:
            raise Refused(f"numbers of type {self.kind}")
        if raw is None:
            raise Refused("numbers that were not kept")
        kind = np.dtype(self.kind)
        flat = np.frombuffer(raw[: len(raw) // kind.itemsize * kind.itemsize], dtype=kind)
        if 0 in self.shape:
            return np.zeros(self.shape, dtype=kind)
        strides = self.strides or tuple(prod(self.shape[at + 1 :]) for at in range(len(self.shape)))
        last = self.offset + sum(
            (size - 1) * stride for size, stride in zip(self.shape, strides, strict=True)
        )
        if self.offset < 0 or min(strides, default=0) < 0 or last >= len(flat):
            raise Refused("a tensor that is larger than its data")
        return np.lib.stride_tricks.as_strided(
            flat[self.offset :],
            self.shape,
            tuple(stride * kind.itemsize for stride in strides),
            writeable=False,
        )


class StandInBatch(dict[Any, Any]):
    """Stand-in for a class that is a table with a state, such as a training batch."""

    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Named:
    """Stand-in for a function or class that a pickle names: may be called, cannot be altered."""

    __slots__ = ("_make", "_name")

    def __init__(self, name: str, make: Callable[..., Any]) -> None:
        self._name = name
        self._make = make

    def __call__(self, *arguments: Any) -> Any:
        try:
            return self._make(*arguments)
        except Refused:
            raise
        except Exception as error:  # whatever odd arguments lead to
            raise Refused(f"{self._name} with arguments that do not fit ({type(error).__name__})") from None

    def __setstate__(self, state: Any) -> None:
        raise Refused(f"a change of {self._name}")


class _NumpyType:
    """Stand-in for a numpy dtype; its state (byte order) must be the common one."""

    __slots__ = ("kind",)

    def __init__(self, code: str) -> None:
        self.kind = _NUMPY_CODES.get(code.lstrip("<|="), "")
        if not self.kind:
            raise Refused(f"numpy numbers of type {code[:20]}")

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) < 2 or state[1] not in ("<", "|", "="):
            raise Refused("numpy numbers in another byte order")


class _NumpyArray:
    """Stand-in for a numpy array that is filled by its state."""

    __slots__ = ("array",)

    def __init__(self) -> None:
        self.array: Array | None = None

    def __setstate__(self, state: Any) -> None:
        _version, shape, kind, fortran, raw = state
        if fortran or not isinstance(kind, _NumpyType) or not isinstance(raw, bytes):
            raise Refused("a numpy array of another layout")
        self.array = Array(_shape(shape), kind.kind, lambda: raw)


class _Reader(pickle.Unpickler):
    """Builds plain values and the stand-ins of this module, nothing else."""

    def __init__(self, file: IO[bytes], archive: zipfile.ZipFile | None) -> None:
        super().__init__(file)
        self._archive = archive

    def find_class(self, module: str, name: str, /) -> Any:
        made = _stand_in(module, name)
        if made is None:
            raise Refused(f"{module}.{name}"[:80])
        return made

    def persistent_load(self, pid: Any, /) -> Any:
        if (
            isinstance(pid, tuple)
            and len(pid) >= 3
            and pid[0] == "storage"
            and isinstance(pid[1], str)
            and isinstance(pid[2], str)
        ):
            return _Storage(pid[1], pid[2], self._archive)
        raise Refused("a reference to data outside the file")


def load_pickle(path: Path) -> Any:
    """The value of a ``torch.save`` archive or a plain pickle. Raises OppoError: how to convert it.

    Nothing is run, but memory and time are as the file asks: ``confined`` bounds them.
    """
    try:
        with file_errors(path), path.open("rb") as file:
            if file.read(len(_ZIP_MAGIC)) == _ZIP_MAGIC:
                return _load_archive(file)
            file.seek(0)
            return _Reader(file, None).load()
    except Refused as error:
        raise OppoError(
            f"{path} was not read: it is a pickle that asks for {error}, which could run code;"
            f" {HOW_TO_CONVERT}"
        ) from None
    except zipfile.BadZipFile as error:
        raise OppoError(f"{path} is not a whole archive of torch.save ({error}): copy it again") from None
    except (OppoError, MemoryError):
        raise
    except Exception as error:  # a damaged pickle fails in many ways
        raise OppoError(
            f"{path} is no pickle that can be read ({type(error).__name__}): copy it again, or"
            f" {HOW_TO_CONVERT}"
        ) from None


def _load_archive(file: IO[bytes]) -> Any:
    with zipfile.ZipFile(file) as archive:
        if any(each.compress_type != zipfile.ZIP_STORED for each in archive.infolist()):
            raise Refused("unpacking, although torch.save never packs")
        return _plain(_Reader(io.BytesIO(_entry(archive, "data.pkl")), archive).load())


def _plain(value: Any) -> Any:
    """``value``, single numbers out of their tensors, small arrays read while the archive is open."""
    done: dict[int, Any] = {}
    held: list[Any] = []
    """What ``done`` knows by its address."""

    def walk(each: Any, depth: int) -> Any:
        if depth > 50:
            raise Refused("values nested very deeply")
        if isinstance(each, _NumpyArray):
            each = each.array
        if isinstance(each, Array) and prod(each.shape) <= 1000:
            raw = each.load()
            if not each.shape and raw is not None and each.kind in _PLAIN_TYPES:
                return each.values().item()
            return Array(each.shape, each.kind, lambda: raw, each.offset, each.strides)
        if isinstance(each, StandInBatch):
            each.state = walk(each.state, depth + 1)
            return each
        if not isinstance(each, dict | list | tuple) or id(each) in done:
            return done.get(id(each), each)
        if isinstance(each, dict):
            done[id(each)] = each
            for key in each:
                each[key] = walk(each[key], depth + 1)
            return each
        if isinstance(each, list):
            done[id(each)] = each
            if not all(isinstance(item, int | float | str) for item in each):
                each[:] = [walk(item, depth + 1) for item in each]
            return each
        # Walked once, however often it is held: tuples of the same tuples have no end otherwise.
        held.append(each)
        done[id(each)] = tuple(walk(item, depth + 1) for item in each)
        return done[id(each)]

    return walk(value, 0)


def _entry(archive: zipfile.ZipFile, name: str) -> bytes:
    # All entries lie in one folder, named after the file.
    found = [each for each in archive.namelist() if each.split("/", 1)[-1] == name]
    if len(found) != 1:
        raise Refused(f"the entry {name}, which is not in the archive")
    return archive.read(found[0])


def _stand_in(module: str, name: str) -> Any:
    full = f"{module}.{name}"
    if module in ("torch", "torch.storage") and name in _STORAGE_TYPES:
        return _STORAGE_TYPES[name]
    if module == "torch" and name in ("device", "Size"):
        return _Named(full, _Opaque if name == "device" else tuple)
    if module == "numpy" and name == "ndarray":
        return _NumpyArray
    if name in ("TrainingInputBatch", "TensorBatch") and module.startswith("skyrl"):
        return StandInBatch
    if name == "_rebuild_tensor_batch" and module.startswith("skyrl"):
        return _Named(full, _rebuilt_batch)
    made = _FUNCTIONS.get(full)
    return None if made is None else _Named(full, made)


class _Opaque:
    """A value that nobody needs, kept from failing."""

    __slots__ = ()

    def __init__(self, *_arguments: Any) -> None:
        pass


def _shape(value: Any) -> tuple[int, ...]:
    if not all(type(size) is int and size >= 0 for size in value):
        raise Refused("a tensor of a shape that cannot be")
    return tuple(value)


def _tensor(storage: Any, offset: int, size: Any, stride: Any, *_others: Any) -> Any:
    if not isinstance(storage, _Storage):
        return _Opaque()
    return Array(_shape(size), storage.kind, storage.bytes, int(offset), _shape(stride))


def _rebuilt_batch(kind: Any, state: Any) -> StandInBatch:
    if kind is not StandInBatch:
        raise Refused("a batch of another class")
    batch = StandInBatch()
    batch.state = state
    return batch


def _encoded(text: Any, encoding: Any = "latin1") -> bytes:
    # How the older pickle protocols write bytes.
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1", "bytes"):
        raise Refused("text in another encoding")
    return text.encode("latin1")


def _scalar(kind: Any, raw: Any) -> Any:
    if not isinstance(kind, _NumpyType) or not isinstance(raw, bytes):
        raise Refused("a numpy number of another kind")
    return Array((), kind.kind, lambda: raw).values().item()


def _new_array(kind: Any, *_others: Any) -> _NumpyArray:
    if kind is not _NumpyArray:
        raise Refused("an array of another class")
    return _NumpyArray()


_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor": _tensor,
    "torch.storage._load_from_bytes": _Opaque,
    "collections.OrderedDict": dict,
    "_codecs.encode": _encoded,
    "numpy.dtype": lambda code, *_others: _NumpyType(code),
    "numpy.core.multiarray.scalar": _scalar,
    "numpy._core.multiarray.scalar": _scalar,
    "numpy.core.multiarray._reconstruct": _new_array,
    "numpy._core.multiarray._reconstruct": _new_array,
}
