"""How a file is broken: its bytes, its lines, the values it holds, the columns of a table. Seeded draws."""

import csv
import gzip
import io
import json
import math
import pickle
import random
import zipfile
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from ruamel.yaml.error import YAMLError

from experiments.attacks.batch import TrainingInputBatch
from oppo_sim.scenario.yaml_text import dump_yaml, parse_yaml

TEXTS = (
    "", "x", "NaN", "null", "1e999", "-1", "../../etc/passwd", "/dev/zero", "\u202etxt.exe", "a\0b",
    "é" * 3000, "</script>", "\ud800", "9" * 5000, "0x10", "true", "nan\ninf",
)  # fmt: skip
NUMBERS = (
    -1, 0, 1, 2, 0.5, -0.0, 1e308, -1e308, 1e-308, 2**31, 2**53, 2**63, 2**64, 10**30, 10**400, -(10**30),
    math.nan, math.inf, -math.inf, True, False,
)  # fmt: skip


DEEPEST = "nested three thousand times"


def hostile(rng: random.Random) -> Any:
    """A value that nobody expects."""
    kind = rng.randrange(6)
    if kind < 3:
        return rng.choice(NUMBERS)
    if kind == 3:
        return rng.choice(TEXTS)
    deep: Any = rng.choice((None, 1, "x"))
    for _ in range(rng.choice((1, 2, 40))):
        deep = [deep] if kind == 4 else {"a": deep}
    return rng.choice((None, [], {}, deep, DEEPEST))


def _text(value: Any) -> str:
    """As JSON, in which ``DEEPEST`` is what Python's own writer has no stack for."""
    return json.dumps(value).replace(json.dumps(DEEPEST), "[" * 3000 + "]" * 3000)


# ---- bytes and lines ---------------------------------------------------------------------------------------


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _swap(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 2, 10, 100))):
        if changed:
            one, other = rng.randrange(len(changed)), rng.randrange(len(changed))
            changed[one], changed[other] = changed[other], changed[one]
    return bytes(changed)


def _noise(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 4, 50))):
        if changed:
            changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _insert(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    added = rng.choice(
        (b"\0", b"\0" * 100, b"\xff\xfe", b"\r", b"\n\n", "\u202eé".encode(), b'"', b"{", b"]", b"9" * 5000)
    )
    return data[:at] + added + data[at:]


def _marked(data: bytes, rng: random.Random) -> bytes:
    return rng.choice(
        (b"\xef\xbb\xbf" + data, data.decode("latin1").encode("utf-16"), data.replace(b"\n", b"\r\n"), b"")
    )


def _lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    for _ in range(rng.choice((1, 1, 3))):
        if lines:
            at = rng.randrange(len(lines))
            lines[at : at + 1] = rng.choice(([], [lines[at]] * 2, [lines[at]] * 500, [lines[at].upper()]))
            if rng.random() < 0.2:
                rng.shuffle(lines)
    return b"".join(lines)


_RAW: tuple[Callable[[bytes, random.Random], bytes], ...] = (_cut, _swap, _noise, _insert, _marked, _lines)

# ---- values ------------------------------------------------------------------------------------------------


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(holder, key) of everything inside, in a fixed order."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def change_values(value: Any, rng: random.Random) -> Any:
    """A copy with one to three of its values replaced, retyped, removed or renamed."""
    value = deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 3))):
        places = list(_places(value))
        if not places:
            return hostile(rng)
        holder, key = rng.choice(places)
        how = rng.randrange(8)
        if how == 0:
            del holder[key]
        elif how == 1 and isinstance(holder, dict):
            holder[rng.choice(("x", f"{key} ", str(key).upper(), *TEXTS))] = holder.pop(key)
        elif how == 2:
            holder[key] = str(holder[key])
        elif how == 3:
            holder[key] = [holder[key]]
        elif how == 4 and isinstance(holder, list):
            holder += [holder[key]] * rng.choice((1, 1000))
        else:
            holder[key] = hostile(rng)
    return value


def _json(data: bytes, rng: random.Random) -> bytes:
    text = _text(change_values(json.loads(data), rng))
    if rng.random() < 0.1:  # a key given twice
        text = (
            text.replace("{", '{"format": 3, "steps": [], ', 1)
            if rng.random() < 0.5
            else text.replace("{", "{{", 1)
        )
    return text.encode()


def _json_lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines()
    for at in rng.sample(range(len(lines)), min(len(lines), rng.choice((1, 1, 5)))):
        lines[at] = _text(change_values(json.loads(lines[at]), rng)).encode()
    return b"\n".join(lines) + b"\n"


def _yaml(data: bytes, rng: random.Random) -> bytes:
    value = change_values(parse_yaml(data.decode(), "the corpus"), rng)
    if rng.random() < 0.5:  # JSON is YAML, and holds what the writer of YAML refuses
        return _text(value).encode()
    try:
        text = dump_yaml(value)
    except (YAMLError, ValueError):
        return _text(value).encode()
    odd = (
        "steps: 3\nsteps: 4\n",
        "x: &a [*a]\n",
        "x: !!python/object/apply:os.system [ls]\n",
        "<<: {a: 1}\n",
        "? [1]\n: 2\n",
        "\t- 1\n",
    )
    return (text + rng.choice(odd) if rng.random() < 0.2 else text).encode("utf-8", "surrogatepass")


def _csv(data: bytes, rng: random.Random) -> bytes:
    rows = list(csv.reader(io.StringIO(data.decode())))
    for _ in range(rng.choice((1, 1, 5))):
        row = rng.choice(rows)
        at = rng.randrange(len(row))
        how = rng.randrange(5)
        if how == 0:
            del row[at]
            if not row:
                row.append("")
        elif how == 1:
            row.insert(at, str(rng.choice(NUMBERS)))
        else:
            row[at] = str(hostile(rng))[:9000]
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode("utf-8", "replace")


def _column(column: pa.ChunkedArray, rng: random.Random) -> pa.ChunkedArray:
    rows = len(column)
    made: tuple[Callable[[], Any], ...] = (
        lambda: pa.nulls(rows),
        lambda: pa.nulls(rows, column.type),
        lambda: pc.cast(column, pa.string()),
        lambda: pa.array([[1, None]] * rows),
        lambda: pa.array([{"a": 1}] * rows),
        lambda: pa.array([rng.choice(TEXTS[:9]) for _ in range(rows)]),
        lambda: pa.array([b"\xff\xfe"] * rows),
        lambda: pa.array([float(rng.choice(NUMBERS[:8] + NUMBERS[-5:])) for _ in range(rows)]),
        lambda: pa.array([rng.choice((-1, 0, 2**31, 2**53, 2**63 - 1)) for _ in range(rows)]),
        lambda: pa.array([True] * rows),
        lambda: pa.array([1] * rows, pa.timestamp("us")),
        lambda: pa.array([rng.choice((0, 1, 2**64 - 1)) for _ in range(rows)], pa.uint64()),
        lambda: pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int8()), pa.array(["x"])),
    )
    try:
        return rng.choice(made)()
    except (pa.ArrowException, ValueError, OverflowError):
        return pa.nulls(rows)


def _parquet(data: bytes, rng: random.Random) -> bytes:
    table = pq.read_table(io.BytesIO(data))
    for _ in range(rng.choice((1, 1, 3))):
        if not table.num_columns:
            break
        at = rng.randrange(table.num_columns)
        name, how = table.column_names[at], rng.randrange(7)
        if how == 0:
            table = table.remove_column(at)
        elif how == 1:
            table = table.rename_columns(
                [*table.column_names[:at], rng.choice(("x", "é", "")), *table.column_names[at + 1 :]]
            )
        elif how == 2:
            table = table.append_column(name, table.column(at))
        elif how == 3:
            table = table.slice(0, rng.choice((0, 1)))
        else:
            table = table.set_column(at, name, _column(table.column(at), rng))
    file = io.BytesIO()
    pq.write_table(table, file)
    return file.getvalue()


def _pickle(data: bytes, rng: random.Random) -> bytes:
    value = pickle.loads(data)
    if isinstance(value, TrainingInputBatch):
        value.fields = change_values(value.fields, rng)
    else:
        value = change_values(value, rng)
    return pickle.dumps(value, protocol=rng.choice((2, 4)))


def _archive(data: bytes, rng: random.Random) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as read, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as written:
        for name in read.namelist():
            held = read.read(name)
            written.writestr(
                name, rng.choice((_pickle, _cut, _noise))(held, rng) if name.endswith(".pkl") else held
            )
    return file.getvalue()


_BY_ENDING: dict[str, Callable[[bytes, random.Random], bytes]] = {
    ".jsonl": _json_lines, ".json": _json, ".yaml": _yaml, ".csv": _csv,
    ".parquet": _parquet, ".pkl": _pickle, ".pt": _archive,
}  # fmt: skip


def mutate(path: Path, rng: random.Random) -> str:
    """Break the file in place, or take it away; says how."""
    data = path.read_bytes()
    if rng.random() < 0.03:
        path.unlink()
        if rng.random() < 0.5:
            path.mkdir()
        return "gone, or a folder"
    packed = path.name.endswith(".gz") and rng.random() < 0.8
    inside = gzip.decompress(data) if packed else data
    change = _BY_ENDING.get("".join(path.suffixes[-2:]).removesuffix(".gz") if packed else path.suffix)
    if change is None or rng.random() < 0.35:
        change = rng.choice(_RAW)
    changed = change(inside, rng)
    path.write_bytes(gzip.compress(changed, mtime=0) if packed else changed)
    return change.__name__.strip("_")
