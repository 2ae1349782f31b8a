"""The provenance of an imported trace, in a file beside it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pandas as pd

from oppo_sim.errors import OppoError
from oppo_sim.files import file_errors, new_file, refuse_existing
from oppo_sim.traces.importers.importing import FORMAT
from oppo_sim.traces.schema import content_hash
from oppo_sim.traces.storage import save_trace

SUFFIX: Final = ".provenance.json"


def provenance_path(trace: Path) -> Path:
    """``my.parquet.provenance.json`` beside ``my.parquet``."""
    return trace.with_name(trace.name + SUFFIX)


def save_imported(
    frame: pd.DataFrame, provenance: Mapping[str, Any], path: str | Path, *, overwrite: bool = False
) -> None:
    """Write an imported trace and, beside it, its provenance. Raises OppoError as ``save_trace``."""
    path = Path(path)
    refuse_existing(provenance_path(path), overwrite=overwrite)
    save_trace(frame, path, overwrite=overwrite)
    record = {**provenance, "content_sha256": content_hash(frame)}
    with new_file(provenance_path(path), overwrite=overwrite) as partial:
        partial.write_text(
            json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
        )


def read_provenance(trace: str | Path, frame: pd.DataFrame) -> dict[str, Any] | None:
    """The provenance beside a trace; None if there is none or the trace was changed. Raises OppoError."""
    path = provenance_path(Path(trace))
    if not path.is_file():
        return None
    try:
        with file_errors(path):
            record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise OppoError(f"{path} is no JSON: restore it, or remove it") from None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise OppoError(f"{path} is not of format {FORMAT}: import the log again, or remove the file")
    return record if record.get("content_sha256") == content_hash(frame) else None
