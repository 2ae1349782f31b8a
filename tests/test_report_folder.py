"""Run folders and streamed tables: complete or recognisably not, never over something else."""

import errno
import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from matplotlib.figure import Figure

from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.files import disk_error, partial_path
from oppo_sim.finished_run import read_run_folder
from oppo_sim.report.perfetto import write_trace
from oppo_sim.results.spans import Span
from oppo_sim.run_folder import open_run_folder
from oppo_sim.run_kinds import FIT, SIMULATED
from oppo_sim.tables import ParquetTable

FULL = Path("/dev/full")
"""Linux: a device on which every write says that no space is left."""


def write_run(path: Path, force: bool = False) -> None:
    folder = open_run_folder(path, SIMULATED, force=force)
    folder.write_json(
        "summary.json",
        {"speedup": np.float64(1.25), "unknown": float("nan"), "policies": ("a", "b"), "path": Path("x/y")},
    )
    folder.write_frame("steps.parquet", pd.DataFrame({c.STEP: [0, 1], c.STALENESS_HISTOGRAM: [[3, 1], [4]]}))
    folder.write_frame(
        "comparison.parquet", pd.DataFrame({"step_s": [1.0]}, index=pd.Index(["oppo"], name="policy"))
    )
    figure = Figure(figsize=(2, 1), dpi=150)
    figure.subplots().plot([0, 1])
    folder.write_figure("figures/line.png", figure)
    folder.write_text("notes.txt", "Δ = 0\n")
    folder.finish({"kind": SIMULATED, "seed": 7})


def contents(path: Path) -> dict[str, bytes]:
    return {
        file.relative_to(path).as_posix(): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def test_a_run_is_written_and_read_back(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "run"
    write_run(root)
    run = read_run_folder(root)
    assert run.manifest["seed"] == 7
    assert run.files == (
        "comparison.parquet",
        "figures/line.png",
        "notes.txt",
        "steps.parquet",
        "summary.json",
    )
    assert run.frames == ("comparison.parquet", "steps.parquet")
    assert [list(row) for row in run.frame("steps.parquet")[c.STALENESS_HISTOGRAM]] == [[3, 1], [4]]
    assert run.frame("comparison.parquet")["policy"].tolist() == ["oppo"]
    assert run.frame("comparison.parquet", columns=["step_s"]).columns.tolist() == ["step_s"]
    assert run.json("summary.json") == {
        "speedup": 1.25,
        "unknown": None,
        "policies": ["a", "b"],
        "path": "x/y",
    }
    assert run.path("figures/line.png").read_bytes().startswith(b"\x89PNG")
    run.verify()
    with pytest.raises(OppoError, match=r"no file 'rollouts.parquet': it has comparison.parquet"):
        run.frame("rollouts.parquet")


def test_the_manifest_has_size_and_hash_of_every_file_and_nothing_else_is_left(tmp_path: Path) -> None:
    write_run(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_bytes())
    files = contents(tmp_path)
    del files["manifest.json"]
    assert manifest["files"] == {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()
    }


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_a_folder_that_holds_anything_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    for force in (False, True):
        with pytest.raises(OppoError, match=r"thesis\.tex"):
            open_run_folder(tmp_path, SIMULATED, force=force)
    assert contents(tmp_path) == {"thesis.tex": b"years of work"}
    with pytest.raises(OppoError, match="a file stands where a folder is needed"):
        open_run_folder(tmp_path / "thesis.tex", SIMULATED)


def test_a_finished_run_is_replaced_only_by_force_and_foreign_files_stay(tmp_path: Path) -> None:
    write_run(tmp_path)
    (tmp_path / "figures" / "mine.png").write_bytes(b"mine")
    before = contents(tmp_path)
    with pytest.raises(OppoError, match=r"holds a finished run: .* --force"):
        open_run_folder(tmp_path, SIMULATED)
    assert contents(tmp_path) == before
    folder = open_run_folder(tmp_path, SIMULATED, force=True)
    assert set(contents(tmp_path)) == {"figures/mine.png", "unfinished.jsonl"}
    with pytest.raises(OppoError, match="exists already and is not overwritten"):
        folder.path("figures/mine.png")
    folder.finish({})
    assert read_run_folder(tmp_path).files == ()
    assert (tmp_path / "figures" / "mine.png").read_bytes() == b"mine"


def test_an_unfinished_run_is_recognised_and_can_be_replaced(tmp_path: Path) -> None:
    with open_run_folder(tmp_path, SIMULATED) as folder:
        folder.write_json("summary.json", {})
        partial_path(folder.path("rollouts.parquet")).write_bytes(b"half")
        with pytest.raises(OppoError, match="never finished"):
            read_run_folder(tmp_path)
        with pytest.raises(OppoError, match="holds a run that never finished"):
            open_run_folder(tmp_path, SIMULATED)
        with pytest.raises(OppoError, match="another run is writing"):
            open_run_folder(tmp_path, SIMULATED, force=True)
        with pytest.raises(OppoError, match=r"lacks rollouts\.parquet, claimed but never completed"):
            folder.finish({})
    write_run(tmp_path, force=True)
    read_run_folder(tmp_path).verify()
    assert not (tmp_path / "rollouts.parquet.partial").exists()


def test_a_run_that_is_withdrawn_leaves_what_is_not_its_own(tmp_path: Path) -> None:
    for others in ((), ("mine.txt",)):
        folder = open_run_folder(tmp_path / "run", SIMULATED)
        folder.write_json("summary.json", {"a": 1})
        folder.path("figures/one.png").with_name("one.png.partial").write_bytes(b"half")
        for name in others:
            (tmp_path / "run" / name).write_text("keep")
        folder.withdraw()
        left = set(contents(tmp_path / "run")) if (tmp_path / "run").exists() else None
        assert left == (set(others) if others else None)


@pytest.mark.parametrize(
    "name", ["../outside", "/etc/outside", "a/../../b", "manifest.json", "unfinished.jsonl", ".", "", "a//b"]
)
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(OppoError, match="plain relative name"):
        open_run_folder(tmp_path, SIMULATED).path(name)


def test_force_deletes_nothing_outside_whatever_a_manifest_says(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside.txt", tmp_path / "run"
    outside.write_text("keep")
    write_run(root)
    manifest = json.loads((root / "manifest.json").read_bytes())
    manifest["files"]["../outside.txt"] = {}
    (root / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(OppoError, match="plain relative name"):
        open_run_folder(root, SIMULATED, force=True)
    manifest["files"] = {"link/outside.txt": {}}
    (root / "manifest.json").write_text(json.dumps(manifest))
    (root / "link").symlink_to(tmp_path)
    with pytest.raises(OppoError, match="behind a link"):
        open_run_folder(root, SIMULATED, force=True)
    assert outside.read_text() == "keep"


def test_reading_says_what_is_wrong_with_a_folder(tmp_path: Path) -> None:
    with pytest.raises(OppoError, match="there is no run folder"):
        read_run_folder(tmp_path / "none")
    with pytest.raises(OppoError, match="is not a run folder"):
        read_run_folder(tmp_path)
    root = tmp_path / "run"
    write_run(root)
    (root / "steps.parquet").write_bytes(b"PAR1 torn")
    run = read_run_folder(root)
    with pytest.raises(OppoError, match=r"steps\.parquet was changed"):
        run.verify()
    with pytest.raises(OppoError, match=r"steps\.parquet is damaged"):
        run.frame("steps.parquet")
    (root / "steps.parquet").unlink()
    with pytest.raises(OppoError, match=r"steps\.parquet is missing"):
        run.frame("steps.parquet")
    (root / "manifest.json").write_text("{")
    with pytest.raises(OppoError, match=r"manifest\.json is damaged"):
        read_run_folder(root)
    (root / "manifest.json").write_text("[]")
    with pytest.raises(OppoError, match="lists no files"):
        read_run_folder(root)


def test_a_finished_folder_takes_no_more_and_the_files_key_is_reserved(tmp_path: Path) -> None:
    folder = open_run_folder(tmp_path, SIMULATED)
    with pytest.raises(OppoError, match="may not have a key 'files'"):
        folder.finish({"files": {}})
    folder.finish({})
    with pytest.raises(OppoError, match=r"write 'late\.json' before finish"):
        folder.write_json("late.json", {})
    with pytest.raises(OppoError, match="finished already"):
        folder.finish({})


# ---- disks that refuse -------------------------------------------------------------------------------------


def test_a_full_disk_is_said_and_what_was_written_stays(tmp_path: Path) -> None:
    folder = open_run_folder(tmp_path, SIMULATED)
    first = folder.write_json("summary.json", {"a": 1})
    partial_path(tmp_path / "steps.parquet").symlink_to(FULL)
    with pytest.raises(OppoError, match=r"no space left for .*steps\.parquet: free some"):
        folder.write_frame("steps.parquet", pd.DataFrame({"x": np.arange(10_000)}))
    partial_path(tmp_path / "t.json").symlink_to(FULL)
    with pytest.raises(OppoError, match=r"no space left for .*t\.json"):
        write_trace({"": ([Span("rollout", 0, "decode", 0.0, 1.0, 0, {"n": 1})], [])}, folder.path("t.json"))
    partial_path(tmp_path / "a.png").symlink_to(FULL)
    with pytest.raises(OppoError, match=r"no space left for .*a\.png"):
        folder.write_figure("a.png", Figure(figsize=(1, 1)))
    assert json.loads(first.read_bytes()) == {"a": 1}
    assert set(contents(tmp_path)) == {"summary.json", "unfinished.jsonl"}
    with pytest.raises(OppoError, match="never finished"):
        read_run_folder(tmp_path)


def test_a_disk_that_fills_up_at_the_manifest_leaves_an_unfinished_run(tmp_path: Path) -> None:
    folder = open_run_folder(tmp_path, SIMULATED)
    folder.write_json("summary.json", {})
    partial_path(tmp_path / "manifest.json").symlink_to(FULL)
    with pytest.raises(OppoError, match=r"no space left for .*manifest\.json"):
        folder.finish({})
    with pytest.raises(OppoError, match="never finished"):
        read_run_folder(tmp_path)
    folder.finish({})
    read_run_folder(tmp_path).verify()


@pytest.mark.parametrize(
    ("code", "mend"),
    [
        (errno.ENOSPC, "free some"), (errno.EDQUOT, "free some"), (errno.EACCES, "no permission to write"),
        (errno.EROFS, "read-only file system"),
        (errno.ENAMETOOLONG, "choose another path"),
    ],
)  # fmt: skip
def test_every_refusal_names_the_path_and_the_mend(code: int, mend: str) -> None:
    message = str(disk_error(Path("runs/one"), OSError(code, os.strerror(code))))
    assert "runs/one" in message
    assert mend in message
    assert "\n" not in message


# ---- streamed tables ---------------------------------------------------------------------------------------


def rollout_rows(first: int, count: int) -> dict[str, object]:
    ids = np.arange(first, first + count)
    rows: dict[str, object] = dict.fromkeys(c.ROLLOUT_COLUMNS, ids)
    rows |= {
        c.FINISH_REASON: ["stop" if i % 2 else None for i in ids],
        c.PROMPT_LENGTH: np.where(ids % 3 == 0, np.nan, ids),
    }
    return rows | dict.fromkeys((c.ADMITTED_S, c.FINISHED_S, c.SCORED_S), ids * 0.5)


def test_rollouts_stream_into_row_groups_of_one_schema(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.parquet"
    with ParquetTable(path, c.ROLLOUT_COLUMNS, row_group_rows=250) as table:
        for step in range(10):
            table.append(rollout_rows(step * 100, 100))
        assert not path.exists()
    file = pq.ParquetFile(path)
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [300, 300, 300, 100]
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    frame = file.read().to_pandas()
    assert frame.columns.tolist() == list(c.ROLLOUT_COLUMNS)
    assert frame[c.ROLLOUT_ID].tolist() == list(range(1000))
    assert frame[c.ROLLOUT_ID].dtype == np.int64
    assert frame[c.PROMPT_LENGTH].isna().sum() == 334
    assert frame[c.FINISH_REASON].isna().sum() == 500
    assert frame[c.SCORED_S].dtype == np.float64
    assert [entry.name for entry in tmp_path.iterdir()] == ["rollouts.parquet"]


def test_the_bytes_of_a_streamed_table_do_not_depend_on_the_pieces(tmp_path: Path) -> None:
    for name, piece in (("a", 50), ("b", 100)):
        with ParquetTable(tmp_path / name, c.ROLLOUT_COLUMNS, row_group_rows=100) as table:
            for first in range(0, 300, piece):
                table.append(rollout_rows(first, piece))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_caller_may_use_its_arrays_again(tmp_path: Path) -> None:
    buffer = np.arange(3)
    with ParquetTable(tmp_path / "t", {"x": "int64"}) as table:
        table.append({"x": buffer})
        buffer[:] = -1
        table.append({"x": buffer})
    assert pq.read_table(tmp_path / "t")["x"].to_pylist() == [0, 1, 2, -1, -1, -1]


def test_a_table_without_rows_still_has_its_columns(tmp_path: Path) -> None:
    ParquetTable(tmp_path / "t", [c.ROLLOUT_ID, c.FINISH_REASON, "mine"]).close()
    assert [str(field.type) for field in pq.read_schema(tmp_path / "t")] == ["int64", "string", "double"]


def test_rows_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    table = ParquetTable(tmp_path / "t", [c.ROLLOUT_ID, "note"], row_group_rows=2)
    with pytest.raises(OppoError, match="differ from its columns in extra, note"):
        table.append({c.ROLLOUT_ID: [1], "extra": [1]})
    with pytest.raises(OppoError, match=r"columns of \[1, 2\] values"):
        table.append({c.ROLLOUT_ID: [1], "note": ["a", "b"]})
    table.append({c.ROLLOUT_ID: [1, 2], "note": [None, "b"]})
    with pytest.raises(OppoError, match=r"column 'note' .* takes string values"):
        table.append({c.ROLLOUT_ID: [3, 4], "note": [1.5, 2.5]})
    assert not (tmp_path / "t").exists()
    assert pq.read_table(partial_path(tmp_path / "t"))["note"].to_pylist() == [None, "b"]
    with pytest.raises(OppoError, match="closed already"):
        table.append({c.ROLLOUT_ID: [5], "note": ["c"]})


def test_an_interrupted_table_gets_no_name(tmp_path: Path) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        ParquetTable(tmp_path / "t", {"x": "int64"}, row_group_rows=1) as table,
    ):
        table.append({"x": [1]})
        raise KeyboardInterrupt
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.partial"]
    assert pq.read_table(tmp_path / "t.partial").num_rows == 1


@pytest.mark.parametrize("row_group_rows", [10, 1_000_000])
def test_a_streamed_table_says_a_full_disk_once(tmp_path: Path, row_group_rows: int) -> None:
    partial_path(tmp_path / "t").symlink_to(FULL)
    values = np.random.default_rng(0).integers(0, 1 << 60, 50_000)
    with (
        pytest.raises(OppoError, match="no space left for"),
        ParquetTable(tmp_path / "t", {"x": "int64"}, row_group_rows=row_group_rows) as table,
    ):
        for _ in range(4):
            table.append({"x": values})
    assert not (tmp_path / "t").exists()
    table.close()


def test_a_table_in_a_missing_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(OppoError, match="cannot write"):
        ParquetTable(tmp_path / "none" / "t", ["x"])


def test_what_mends_a_damaged_folder_is_the_command_that_wrote_it(tmp_path: Path) -> None:
    """Not every folder is of a simulation."""
    with open_run_folder(tmp_path, FIT) as folder:
        folder.write_json("fit.json", {"terms": []})
        folder.finish({"kind": FIT})
    (tmp_path / "fit.json").write_text("{")
    run = read_run_folder(tmp_path)
    with pytest.raises(OppoError, match=r"fit.json is damaged .*: run the command that wrote it again"):
        run.json("fit.json")
    with pytest.raises(OppoError, match="changed after the run finished: run the command that wrote it"):
        run.verify()


@pytest.mark.parametrize("files", [5, [1], None])
def test_a_manifest_that_lists_no_names_is_replaced_by_force(files: object, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"kind": SIMULATED, "files": files}))
    (tmp_path / "mine.txt").write_text("stays")
    write_run(tmp_path, force=True)
    read_run_folder(tmp_path).verify()
    assert (tmp_path / "mine.txt").read_text() == "stays"
