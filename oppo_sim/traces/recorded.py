"""A recorded run on disk: what a predictor may read (workload) apart from what was measured (outcomes)."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pandas as pd
import pyarrow as pa

from oppo_sim.columns import (
    FINISH_REASON,
    GROUP_ID,
    PROMPT_ID,
    PROMPT_LENGTH,
    RESPONSE_LENGTH,
    REWARD,
    ROLLOUT_ID,
    SAMPLE_ID,
    SOURCE,
    STEP,
)
from oppo_sim.errors import OppoError
from oppo_sim.files import file_errors, sha256_of
from oppo_sim.traces.schema import check_frame
from oppo_sim.traces.storage import read_parquet, write_parquet

FORMAT: Final = "oppo-recorded-run/1"
FORMAT_KEY: Final = b"oppo_recorded_run_format"
MANIFEST: Final = "manifest.json"
WORKLOAD: Final = "workload.parquet"
OUTCOMES: Final = "outcomes.parquet"
STEPS: Final = "steps.parquet"

WORKLOAD_COLUMNS: Final = (ROLLOUT_ID, GROUP_ID, SOURCE, STEP, PROMPT_ID, SAMPLE_ID, PROMPT_LENGTH)
"""All that is known of a rollout when it is admitted; a workload has no other column."""


@dataclass(frozen=True)
class RecordedRun:
    """A recorded run in memory; both frames have one row a rollout, in the same order of ``rollout_id``."""

    manifest: dict[str, Any]
    """What the recorder said: scenario, seed, versions, machine, …"""
    workload: pd.DataFrame
    """``rollout_id`` and any of ``WORKLOAD_COLUMNS``: what a predictor may read."""
    outcomes: pd.DataFrame
    """``rollout_id``, ``response_length``, and any of ``finish_reason``, ``reward``, measured columns."""
    steps: pd.DataFrame | None = None
    """``step``, and seconds of its stages (``timing_s/*``), where the recorder timed them: one row a step."""

    def as_trace(self) -> pd.DataFrame:
        """The rollouts as a checked trace, to be replayed; measured columns are kept beside."""
        joined = self.workload.merge(self.outcomes, on=ROLLOUT_ID, validate="one_to_one")
        return check_frame(joined, "the recorded run")


def write_recorded_run(
    folder: str | Path,
    manifest: Mapping[str, Any],
    workload: pd.DataFrame,
    outcomes: pd.DataFrame,
    steps: pd.DataFrame | None = None,
) -> None:
    """Write a run as a folder that appears whole or not at all.

    ``manifest`` is plain JSON data. Raises OppoError if the folder exists, the frames are not as in
    ``RecordedRun``, or the disk refuses.
    """
    folder = Path(folder)
    if os.path.lexists(folder):
        raise OppoError(f"{folder} exists: a recorded run is never overwritten, choose another folder")
    _check(workload, outcomes, "the run to be written")
    tables = [(WORKLOAD, workload, ROLLOUT_ID), (OUTCOMES, outcomes, ROLLOUT_ID)]
    if steps is not None:
        _check_steps(steps, "the run to be written")
        tables.append((STEPS, steps, STEP))
    try:
        text = json.dumps(dict(manifest), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise OppoError(
            f"the manifest of {folder} is not plain JSON data ({error}): give dicts, lists, text, finite"
            " numbers"
        ) from None
    with file_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".partial-{folder.name}-", dir=folder.parent))
    try:
        with file_errors(folder):
            files = {}
            for name, frame, order in tables:
                table = pa.Table.from_pandas(frame.sort_values(order), preserve_index=False)
                write_parquet(table.replace_schema_metadata({FORMAT_KEY: FORMAT}), partial / name)
                files[name] = {"sha256": sha256_of(partial / name), "rows": len(frame)}
            body = {"format": FORMAT, "files": files, "run": json.loads(text)}
            sealed = {**body, "sha256": _hash_of(body)}
            (partial / MANIFEST).write_text(
                json.dumps(sealed, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
            )
            partial.chmod(0o755)
            os.rename(partial, folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def read_recorded_run(folder: str | Path) -> RecordedRun:
    """Read a run, checked against its manifest. Raises OppoError for a missing or altered file."""
    folder = Path(folder)
    sealed = _manifest(folder)
    workload, outcomes = (_table(folder, name, sealed) for name in (WORKLOAD, OUTCOMES))
    _check(workload, outcomes, str(folder))
    steps = _table(folder, STEPS, sealed) if STEPS in sealed["files"] else None
    if steps is not None:
        _check_steps(steps, str(folder))
    return RecordedRun(dict(sealed["run"]), workload, outcomes, steps)


def read_workload(folder: str | Path) -> pd.DataFrame:
    """The workload alone; the outcomes are not opened. Raises OppoError for a missing or altered file."""
    folder = Path(folder)
    workload = _table(folder, WORKLOAD, _manifest(folder))
    _check_workload(workload, str(folder))
    return workload


def split_trace(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Workload and outcomes of a checked trace whose rows are rollouts 0, 1, 2, …"""
    numbered = frame.reset_index(drop=True)
    if ROLLOUT_ID not in numbered.columns:
        numbered = numbered.assign(**{ROLLOUT_ID: range(len(numbered))})
    given = [name for name in numbered.columns if name == ROLLOUT_ID or numbered[name].notna().any()]
    known = [name for name in WORKLOAD_COLUMNS if name in given]
    measured = [name for name in given if name not in WORKLOAD_COLUMNS]
    return numbered[known], numbered[[ROLLOUT_ID, *measured]]


def _hash_of(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        raise OppoError(f"{folder} is no recorded run: it has no {MANIFEST}")
    try:
        with file_errors(path):
            sealed = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise OppoError(f"{path} is not readable JSON: record the run again, or restore the file") from None
    if not isinstance(sealed, dict) or sealed.get("format") != FORMAT:
        found = sealed.get("format") if isinstance(sealed, dict) else None
        raise OppoError(
            f"{path} has format {found!r} but this version reads {FORMAT!r}: record the run again, or update"
            " the package"
        )
    body = {key: value for key, value in sealed.items() if key != "sha256"}
    files = set(body.get("files", {})) - {STEPS}
    if sealed.get("sha256") != _hash_of(body) or files != {WORKLOAD, OUTCOMES}:
        raise OppoError(
            f"{path} was altered after it was written (SHA-256 differs): restore it, or record the run again"
        )
    return sealed


def _table(folder: Path, name: str, sealed: Mapping[str, Any]) -> pd.DataFrame:
    path = folder / name
    if not path.is_file():
        raise OppoError(f"{folder} is incomplete: {name} is missing; restore it, or record the run again")
    if sha256_of(path) != sealed["files"][name]["sha256"]:
        raise OppoError(
            f"{path} was altered after it was written (SHA-256 differs): restore it, or record the run again"
        )
    frame: pd.DataFrame = read_parquet(path, FORMAT_KEY, FORMAT).to_pandas()
    return frame


def _check_workload(workload: pd.DataFrame, where: str) -> None:
    foreign = [name for name in workload.columns if name not in WORKLOAD_COLUMNS]
    if foreign:
        raise OppoError(
            f"the workload of {where} has column {foreign[0]}, which is not known at admission: put it into"
            f" the outcomes (a workload has {', '.join(WORKLOAD_COLUMNS)})"
        )
    _check_ids(workload, f"the workload of {where}")


def _check(workload: pd.DataFrame, outcomes: pd.DataFrame, where: str) -> None:
    _check_workload(workload, where)
    _check_ids(outcomes, f"the outcomes of {where}")
    shared = [name for name in outcomes.columns if name in WORKLOAD_COLUMNS and name != ROLLOUT_ID]
    if shared:
        raise OppoError(f"the outcomes of {where} repeat column {shared[0]} of the workload: leave it out")
    if sorted(workload[ROLLOUT_ID]) != sorted(outcomes[ROLLOUT_ID]):
        raise OppoError(
            f"workload and outcomes of {where} are about different rollouts: give both the same {ROLLOUT_ID}"
            " values"
        )
    measured = [name for name in (RESPONSE_LENGTH, FINISH_REASON, REWARD) if name in outcomes.columns]
    check_frame(outcomes[measured], f"the outcomes of {where}")
    check_frame(workload.assign(**{RESPONSE_LENGTH: 1}), f"the workload of {where}")


def _check_steps(steps: pd.DataFrame, where: str) -> None:
    if STEP not in steps.columns or steps[STEP].dtype.kind not in "iu" or steps[STEP].duplicated().any():
        raise OppoError(f"the steps of {where} must have a column {STEP} of whole numbers, each once")


def _check_ids(frame: pd.DataFrame, where: str) -> None:
    if ROLLOUT_ID not in frame.columns:
        raise OppoError(f"{where} has no column {ROLLOUT_ID}: number the rollouts from 0")
    ids = frame[ROLLOUT_ID]
    if ids.isna().any() or ids.dtype.kind not in "iu" or ids.duplicated().any() or (ids < 0).any():
        raise OppoError(
            f"{ROLLOUT_ID} of {where} must be whole numbers from 0, each once: number the rollouts anew"
        )
