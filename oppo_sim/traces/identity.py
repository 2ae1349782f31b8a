"""What makes two traces the same: their rows, not the file they came from."""

import hashlib
from typing import TYPE_CHECKING

from oppo_sim.columns import REWARD, TRACE_COLUMNS
from oppo_sim.traces.schema import TEXT_COLUMNS

if TYPE_CHECKING:
    import pandas as pd


def content_hash(frame: "pd.DataFrame") -> str:
    """SHA-256 (hex) over the ``TRACE_COLUMNS`` of a checked frame, row by row; a column that is absent hashes
    as one that is missing throughout. The same for CSV and Parquet, and on every machine.
    """
    import numpy as np
    import pyarrow as pa

    digest = hashlib.sha256(f"oppo-trace-rows/1:{len(frame)}".encode())
    for name in TRACE_COLUMNS:
        if name not in frame.columns or frame[name].isna().all():
            continue
        column = frame[name]
        missing = column.isna().to_numpy(dtype=bool)
        digest.update(f"|{name}:".encode())
        digest.update(np.packbits(missing).tobytes())
        if name in TEXT_COLUMNS:
            text = pa.array(column.fillna(""), type=pa.large_string())
            text = text.combine_chunks() if isinstance(text, pa.ChunkedArray) else text
            _, offsets, data = text.buffers()
            bounds = np.frombuffer(offsets, dtype="<i8", count=len(text) + text.offset + 1)[text.offset :]
            digest.update((bounds - bounds[0]).astype("<i8").tobytes())
            digest.update(memoryview(data)[bounds[0] : bounds[-1]] if data is not None else b"")
        elif name == REWARD:
            # Adding zero makes one of −0.0 and 0.0, which are equal but differ in their bytes.
            digest.update(
                (np.where(missing, 0.0, column.to_numpy(dtype="float64")) + 0.0).astype("<f8").tobytes()
            )
        else:
            digest.update(column.fillna(0).to_numpy(dtype="<i8").tobytes())
    return digest.hexdigest()
