"""What a foreign file may take: packed files, long lines, wide tables and slow texts are bounded."""

import gzip
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oppo_sim import unpacking
from oppo_sim.errors import OppoError
from oppo_sim.report.perfetto import read_trace
from oppo_sim.traces.importers import import_log, rows
from oppo_sim.traces.importers.metric_files import console_lines
from oppo_sim.traces.importers.options import ImportOptions
from oppo_sim.traces.importers.reading import Reading
from oppo_sim.traces.storage import load_trace
from tests.import_cases import refused


@pytest.fixture(name="little")
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that files of a test reach."""
    monkeypatch.setattr(unpacking, "LEAST_BYTES", 1 << 20)
    monkeypatch.setattr(rows, "MOST_LINE", 1 << 16)


def packed(path: Path, data: bytes) -> Path:
    path.write_bytes(gzip.compress(data))
    return path


@pytest.mark.usefixtures("little")
def test_what_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    lines = packed(tmp_path / "rollouts.jsonl.gz", b'{"response_length": 1}\n' * 200_000)
    assert "unpacks to more than" in refused("generic", lines)
    trace = packed(tmp_path / "trace.csv.gz", b"response_length\n" + b"1\n" * 2_000_000)
    with pytest.raises(OppoError, match="unpacks to more than"):
        load_trace(trace)
    with pytest.raises(OppoError, match="unpacks to more than"):
        read_trace(packed(tmp_path / "timeline.json.gz", b" " * (4 << 20)))


@pytest.mark.usefixtures("little")
def test_a_table_of_more_rows_than_its_bytes_can_hold_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    pq.write_table(pa.table({"response_length": np.ones(3_000_000, dtype="int64")}), path)
    assert path.stat().st_size < 20_000
    with pytest.raises(OppoError, match="unpacks to more than"):
        load_trace(path)
    assert "unpacks to more than" in refused("generic", path)


def test_what_is_no_gzip_is_not_called_a_disk_that_refuses(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl.gz"
    path.write_bytes(b'{"response_length": 1}\n')
    assert "is not a whole gzip file" in refused("generic", path)


@pytest.mark.usefixtures("little")
def test_a_line_that_is_no_line_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(b"[" * (1 << 17))
    assert "line 1: the line is longer than" in refused("generic", path)


def test_damaged_parquet_is_called_so_whatever_its_reader_raises(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    pq.write_table(pa.table({"response_length": np.arange(1, 50)}), path)
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        with suppress(OppoError):
            load_trace(path)
            continue
        with pytest.raises(OppoError, match=r"not a readable Parquet file|trace\.parquet has|data row"):
            load_trace(path)


@pytest.mark.parametrize("at", [0, 1])
def test_fields_that_no_csv_reader_takes(at: int, tmp_path: Path) -> None:
    lines = [b"step,response_length/mean\n", b"1,300.0\n"]
    lines[at] = b"x" * 200_000 + b"," + lines[at]
    path = tmp_path / "metrics.csv"
    path.write_bytes(b"".join(lines))
    message = refused("verl", path, rows_per_step=8)
    assert str(path) in message


def test_numbers_that_are_no_floats(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text(f'{{"response_length": {10**400}}}\n')
    assert "must be a whole number" in refused("generic", path)
    path.write_text(f'{{"response_length": 3, "reward": {10**400}}}\n')
    assert import_log("generic", path)[0]["reward"].isna().all()
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 1, "data": {{"response_length/mean": {10**400}}}}}\n')
    assert "holds neither rollouts nor metrics" in refused("verl", path, rows_per_step=8)


def test_a_table_of_a_hundred_thousand_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(b"response_length" + b",a" * 100_000 + b"\n1" + b",1" * 100_000 + b"\n")
    with pytest.raises(OppoError, match="more than 10,000 columns"):
        load_trace(path)


@pytest.mark.parametrize(
    "line",
    [
        b"a" * 200_000,
        b"a/b:" + b"1" * 200_000 + b"x",
        b"a:" + b" " * 200_000 + b"nanx",
        b"step " + b"9" * 9_000,
    ],
)
def test_the_time_of_a_line_grows_with_its_length(line: bytes) -> None:
    begun = time.process_time()
    list(console_lines([line + b" a/b:1\n"], Reading(ImportOptions())))
    assert time.process_time() - begun < 2
