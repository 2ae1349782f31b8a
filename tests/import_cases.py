"""Logs as the frameworks write them, and what importing them must give."""

import gzip
import json
import pickle
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import oppo_sim
from oppo_sim.errors import OppoError
from oppo_sim.traces.importers import import_log
from oppo_sim.traces.importers.provenance import save_imported
from oppo_sim.traces.storage import load_trace


def write_lines(path: Path, records: Iterable[Any], end: str = "\n") -> Path:
    """JSON lines, gzipped if the name says so."""
    text = "\n".join(json.dumps(record) for record in records) + end
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path


def write_archive(
    path: Path,
    value: Any,
    *,
    raw: bytes | None = None,
    compression: int = zipfile.ZIP_STORED,
    **entries: bytes,
) -> Path:
    """What ``torch.save`` writes for a value without tensors: a zip archive with a pickle of protocol 2."""
    packed = raw if raw is not None else pickle.dumps(value, protocol=2)
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr(f"{path.stem}/data.pkl", packed)
        archive.writestr(f"{path.stem}/byteorder", b"little")
        for key, data in entries.items():
            archive.writestr(f"{path.stem}/data/{key.removeprefix('_')}", data)
        archive.writestr(f"{path.stem}/version", b"3\n")
    return path


def refused(source: str, path: Path, **options: Any) -> str:
    """The one sentence with which an import is refused."""
    with pytest.raises(OppoError) as caught:
        import_log(source, path, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def column(frame: pd.DataFrame, name: str) -> list[Any]:
    """Values of a column, None where missing."""
    return [None if pd.isna(each) else each for each in frame[name]]


def simulated(
    frame: pd.DataFrame, provenance: dict[str, Any], folder: Path, *, sampling: str = "in_order"
) -> oppo_sim.Run:
    """Written, read again the same, and simulated: the trained rollouts come from it."""
    path = folder / "imported.parquet"
    save_imported(frame, provenance, path)
    pd.testing.assert_frame_equal(load_trace(path), frame)
    trace = json.dumps({"path": str(path), "sampling": sampling, "prompt_length": 64})
    run = oppo_sim.simulate(
        "h200-single",
        policy="oppo",
        steps=2,
        overrides=[f"trace={trace}", "rollout_batch_size=4", "policy.overcommit=2", "warmup_steps=0"],
    )
    assert len(run.rollouts) == 8
    assert set(run.rollouts["response_length"]) <= set(frame["response_length"].clip(lower=1))
    return run
