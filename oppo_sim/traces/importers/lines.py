"""JSON lines, plain or gzipped, one line in memory at a time."""

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from oppo_sim.errors import OppoError
from oppo_sim.files import file_errors
from oppo_sim.traces.importers.places import Place
from oppo_sim.traces.importers.reading import Reading

CUT_OFF: Final = "last line cut off in the middle, as by a run that was stopped"


def raw_lines(path: Path) -> Iterator[bytes]:
    """Lines with their ends, unpacked if the name ends in ``.gz``. Raises OppoError."""
    with file_errors(path):
        raw = path.open("rb")
    with raw:
        file: Iterable[bytes] = gzip.GzipFile(fileobj=raw) if path.name.endswith(".gz") else raw
        try:
            with file_errors(path):
                yield from file
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise OppoError(
                f"{path} is not a whole gzip file ({error}): copy it again, or unpack what is there first"
            ) from None


def json_values(path: Path, reading: Reading) -> Iterator[tuple[int, Any]]:
    """(line from 1, value) of every line that is not blank. A last line cut off in the middle is left out and
    counted.

    Raises OppoError naming file and line for another line that is no JSON.
    """
    for number, line in enumerate(raw_lines(path), start=1):
        stripped = line.strip()
        if not stripped:
            continue
        try:
            value = json.loads(stripped)
        except (ValueError, RecursionError) as error:
            if not line.endswith(b"\n") and number > 1:
                reading.left_out[CUT_OFF] += 1
                return
            reason = str(error).splitlines()[0][:80]
            raise Place(path, number).error(
                f"this is no JSON ({reason}): correct the line, or remove it"
            ) from None
        yield number, value


def json_records(path: Path, reading: Reading) -> Iterator[tuple[Place, dict[str, Any]]]:
    """As ``json_values``, of a file whose every line is an object. Raises OppoError."""
    for number, value in json_values(path, reading):
        place = Place(path, number)
        if not isinstance(value, dict):
            raise place.error("this is not a JSON object with named fields: is it the right file?")
        yield place, value


def plain_name(path: Path) -> str:
    """The file's name without ``.gz``."""
    return path.name.removesuffix(".gz")
