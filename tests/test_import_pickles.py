"""Pickles are read without running them: what asks for more than plain data is refused."""

import os
import pickle
import struct
import subprocess
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oppo_sim.errors import OppoError
from oppo_sim.traces.importers import import_log
from oppo_sim.traces.importers.pickles import Array, load_pickle
from tests.import_cases import refused, write_archive


class Runs:
    """Pickles to a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> Any:
        return self._call


def attacks(marker: Path) -> dict[str, Any]:
    touch = f"open({str(marker)!r}, 'w').close()"
    return {
        "eval": Runs(eval, touch),
        "exec": Runs(exec, touch),
        "system": Runs(os.system, f"touch {marker}"),
        "import": Runs(__import__, "os"),
        "open": Runs(open, str(marker), "w"),
        "class": Runs(type, "x", (), {}),
        "nested": {"samples": [OrderedDict(a=Runs(eval, touch))]},
    }


@pytest.mark.parametrize("kind", ["eval", "exec", "system", "import", "open", "class", "nested"])
@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_pickle_that_runs_code_is_refused_and_runs_nothing(
    kind: str, protocol: int, tmp_path: Path
) -> None:
    marker = tmp_path / "ran"
    raw = pickle.dumps(attacks(marker)[kind], protocol=protocol)
    for path in (
        write_archive(tmp_path / "1.pt", None, raw=raw),
        tmp_path / "global_step_1_training_input.pkl",
    ):
        if path.suffix == ".pkl":
            path.write_bytes(raw)
        with pytest.raises(OppoError, match=r"could run code.*docs/importers\.md"):
            load_pickle(path)
    assert not marker.exists()


RAW = {
    "a global of an allowed module": b"ctorch._utils\n_import_dotted_name\n(S'os'\ntR.",
    "an allowed function renamed": b"ctorch\nload\n(S'x'\ntR.",
    "old-style instances": b"(ios\nsystem\n.",
    "objects by class": b"(cposix\nsystem\nS'true'\no.",
    "a dotted name": b"\x80\x04\x8c\x0bcollections\x8c\x0fOrderedDict.pop\x93.",
    "persistent data elsewhere": b"\x80\x02X\x01\x00\x00\x00aQ.",
    "changing a stand-in": (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n}X\x05\x00\x00\x00_makeX\x01\x00\x00\x00xsb."
    ),
    "changing an array's class": b"\x80\x02cnumpy\nndarray\n}X\x05\x00\x00\x00arrayX\x01\x00\x00\x00xsb.",
    "a call with odd arguments": b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.",
    "bytes in another encoding": b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R.",
    "the codec registry": b"\x80\x02c_codecs\nlookup\nX\x01\x00\x00\x00a\x85R.",
    "numpy objects": b"\x80\x02cnumpy\ndtype\nX\x02\x00\x00\x00O8\x85R.",
    "an extension number": b"\x80\x02\x82\x01.",
    "a frame cut off": b"\x80\x04\x95\xff\x00\x00\x00\x00\x00\x00\x00.",
    "no pickle": b"hello",
    "a huge string that is not there": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b"x.",
}


@pytest.mark.parametrize("kind", RAW)
def test_crafted_pickles_are_refused(kind: str, tmp_path: Path) -> None:
    with pytest.raises(OppoError) as caught:
        load_pickle(write_archive(tmp_path / "1.pt", None, raw=RAW[kind]))
    assert "1.pt" in str(caught.value)
    assert "docs/importers.md" in str(caught.value)


def nested(rounds: int) -> bytes:
    """A tuple of twice the same tuple, so many rounds deep."""
    return b")" + b"2\x86" * rounds


GREEDY = {
    "a memo of 4 GB": b"\x80\x04Nr" + struct.pack("<I", 1 << 28) + b".",
    "four million sets": b"\x80\x04(" + b"\x8f" * 4_000_000 + b"l.",
    "a key whose hash has no end": b"\x80\x04}" + nested(80) + b"Ns.",
    "bytes that are not there": b"\x80\x05\x96" + struct.pack("<Q", 1 << 20) + b"x.",
}
"""What asks for more memory, seconds or noise than a file of its size needs."""


@pytest.mark.parametrize("kind", GREEDY)
def test_what_a_pickle_takes_is_bounded(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "1.pt"
    path.write_bytes(GREEDY[kind])
    code = f"""
import resource, sys
from oppo_sim.traces.importers.formats import find_importer
from oppo_sim.traces.importers.confined import reader_of
from oppo_sim.traces.importers.reading import Reading
from oppo_sim.traces.importers.options import ImportOptions
from oppo_sim.errors import OppoError
from pathlib import Path
with reader_of(find_importer("slime")) as read:
    try:
        list(read(Path({str(path)!r}), Reading(ImportOptions())))
    except OppoError as error:
        print(error)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
assert used.ru_maxrss < 700_000, used.ru_maxrss  # kB: the interpreter and 512 MB
assert used.ru_utime + used.ru_stime < 8, used
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) == 1
    assert str(path) in lines[0]
    assert "docs/importers.md" in lines[0]


def test_no_module_is_imported_for_a_name(tmp_path: Path) -> None:
    raw = b"cthis\ns\n."
    with pytest.raises(OppoError, match=r"asks for this\.s"):
        load_pickle(write_archive(tmp_path / "1.pt", None, raw=raw))
    assert "this" not in sys.modules


def test_a_packed_archive_is_refused(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "1.pt", [0] * 1_000_000, compression=zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 10_000
    assert "torch.save never packs" in refused("slime", path)


def tensor(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    *,
    offset: int = 0,
    key: str = "0",
    kind: str = "LongStorage",
) -> bytes:
    """A tensor as torch.save pickles it, written out by hand."""

    def text(value: str) -> bytes:
        return b"X" + struct.pack("<I", len(value)) + value.encode()

    def whole(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    def numbers(values: tuple[int, ...]) -> bytes:
        return b"(" + b"".join(whole(each) for each in values) + b"t"

    storage = (
        b"(" + text("storage") + f"ctorch\n{kind}\n".encode() + text(key) + text("cpu") + whole(6) + b"tQ"
    )
    hooks = b"ccollections\nOrderedDict\n)R"
    return (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n("
        + storage
        + whole(offset)
        + numbers(shape)
        + numbers(strides)
        + b"\x89"
        + hooks
        + b"tR."
    )


def test_tensors_are_read_as_numbers(tmp_path: Path) -> None:
    data = np.arange(6, dtype="int64").tobytes()
    value = load_pickle(write_archive(tmp_path / "1.pt", None, raw=tensor((2, 3), (3, 1)), _0=data))
    assert isinstance(value, Array)
    assert value.values().tolist() == [[0, 1, 2], [3, 4, 5]]
    turned = load_pickle(
        write_archive(tmp_path / "2.pt", None, raw=tensor((2, 2), (1, 3), offset=1), _0=data)
    )
    assert turned.values().tolist() == [[1, 4], [2, 5]]


@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [((7,), (1,), 0), ((2, 3), (4, 1), 0), ((3,), (1,), 4), ((1 << 30,), (1 << 30,), 0), ((2,), (-1,), 1)],
)
def test_tensors_never_reach_beyond_their_data(
    shape: tuple[int, ...], strides: tuple[int, ...], offset: int, tmp_path: Path
) -> None:
    raw = tensor(shape, strides, offset=offset)
    path = write_archive(tmp_path / "1.pt", None, raw=raw, _0=np.arange(6, dtype="int64").tobytes())
    with pytest.raises(Exception, match=r"larger than its data|cannot be|not kept"):
        load_pickle(path).values()


def test_numpy_values_are_read(tmp_path: Path) -> None:
    samples = [
        {
            "response_length": np.int64(12),
            "reward": np.float32(0.5),
            "tokens": [1] * 20,
            "status": "completed",
        }
    ]
    for protocol in (2, 4, 5):
        path = write_archive(
            tmp_path / f"{protocol}.pt",
            None,
            raw=pickle.dumps({"rollout_id": np.int32(4), "samples": samples}, protocol=protocol),
        )
        frame, _ = import_log("slime", path)
        assert frame[["step", "prompt_length", "response_length", "reward"]].to_numpy().tolist() == [
            [4, 8, 12, 0.5]
        ]
    arrays = load_pickle(
        write_archive(
            tmp_path / "a.pt", {"values": np.arange(6, dtype="float32").reshape(2, 3), "raw": b"\xff\x00"}
        )
    )
    assert arrays["values"].values().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert arrays["raw"] == b"\xff\x00"


def test_the_format_before_archives_is_refused(tmp_path: Path) -> None:
    (tmp_path / "1.pt").write_bytes(
        b"".join(
            pickle.dumps(each, protocol=2)
            for each in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, {})
        )
    )
    assert "no list 'samples'" in refused("slime", tmp_path / "1.pt")
