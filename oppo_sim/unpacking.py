"""Packed files of somebody else: how much they may unpack to, and what is said of more.

A few bytes of gzip stand for a thousand, a few of Parquet for any number of rows.
"""

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oppo_sim.errors import OppoError

if TYPE_CHECKING:
    import pyarrow.parquet as pq

LEAST_BYTES: Final = 2 << 30
RATIO: Final = 200
"""A file may unpack to so much, or to so many times its size; logs are packed 5 to 50 fold."""
_BYTES_A_VALUE: Final = 8
_PIECE: Final = 1 << 20


def most_unpacked(path: Path) -> int:
    """Bytes that a file may unpack to. Raises OSError."""
    return max(LEAST_BYTES, RATIO * path.stat().st_size)


def unpacks_to_too_much(path: Path) -> OppoError:
    """What is said of a file that unpacks to more."""
    most = most_unpacked(path)
    return OppoError(
        f"{path} unpacks to more than {most / 1e9:.1f} GB, over {most // max(1, path.stat().st_size):,} times"
        " its size, as no real one does: check where it is from, or unpack it first"
    )


def gunzipped(path: Path) -> bytes:
    """The contents of a gzip file. Raises OppoError for too much, and what gzip raises."""
    most = most_unpacked(path)
    with gzip.open(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise unpacks_to_too_much(path)
    return data


def check_gzip(path: Path) -> None:
    """Raises OppoError for a gzip file that unpacks to too much, and what gzip raises; looks only into one
    that could."""
    most = most_unpacked(path)
    if path.stat().st_size * 1032 <= most:  # the format's greatest ratio
        return
    unpacked = 0
    with gzip.open(path) as file:
        while piece := file.read(_PIECE):
            unpacked += len(piece)
            if unpacked > most:
                raise unpacks_to_too_much(path)


@contextmanager
def damage_not_disk() -> Iterator[None]:
    """Parquet's reader raises OSError for damaged bytes, which no disk refused: raises ValueError instead."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            raise
        raise ValueError(" ".join(str(error).split())) from None


def check_parquet(path: Path, file: "pq.ParquetFile") -> None:
    """Raises OppoError for a table whose numbers alone would take too much."""
    facts = file.metadata
    if facts.num_rows * facts.num_columns * _BYTES_A_VALUE > most_unpacked(path):
        raise unpacks_to_too_much(path)
