"""Files that are programs, read in a process of their own with limits: memory, seconds, and nothing on the
terminal.

A pickle of a few bytes may ask for gigabytes, never end, or have the interpreter print. One process reads the
files of one import, one after another; it is told which in pickles (those of this program, not the file's)
and answers in lines of JSON: a list for a rollout, then an object.
"""

import gc
import json
import pickle
import signal
import subprocess
import sys
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from oppo_sim.errors import OppoError
from oppo_sim.files import file_errors
from oppo_sim.own_python import own_python
from oppo_sim.traces.importers.formats import find_importer
from oppo_sim.traces.importers.importer import Importer
from oppo_sim.traces.importers.reading import Reading, Rollout

if TYPE_CHECKING:
    import pyarrow as pa

    Read = Callable[[Path, Reading], Iterator[Rollout | pa.Table]]

LEAST_BYTES: Final = 512 << 20
BYTES_A_BYTE: Final = 20
"""Memory a file may take: so much, and so many times its size (a list of token ids takes 13)."""
LEAST_SECONDS: Final = 2
SECONDS_A_MEGABYTE: Final = 1.0
"""Likewise processor time; whole dumps take 0.05."""
_LONGEST_LINE: Final = 1 << 20
_MEND: Final = "copy it again, or convert it where you trust it (docs/importers.md shows how)"


@contextmanager
def reader_of(importer: Importer) -> "Iterator[Read]":
    """How the importer's files are read, one after another: here, or in a process with limits."""
    if not importer.confined:
        yield importer.read
        return
    child: list[_Child] = []

    def read(path: Path, reading: Reading) -> Iterator[Rollout]:
        if not child:
            child.append(_Child(importer.name, reading))
        return child[0].read(path, reading)

    try:
        yield read
    finally:
        for each in child:
            each.end()


class _Child:
    def __init__(self, importer: str, reading: Reading) -> None:
        command, environment = own_python(__name__)
        try:
            self._process = subprocess.Popen(
                command,
                # Threads of a linear algebra that is not used here would count as memory.
                env={**environment, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            raise OppoError(
                f"pickles are read in a process of their own, which could not be started ({error}): free"
                " memory, or convert the files to JSON lines (docs/importers.md shows how)"
            ) from None
        self._tell((importer, reading.options))

    def read(self, path: Path, reading: Reading) -> Iterator[Rollout]:
        self._tell(path)
        assert self._process.stdout is not None
        while line := self._process.stdout.readline(_LONGEST_LINE):
            try:
                answer = json.loads(line)
            except ValueError:
                break
            if isinstance(answer, list):
                yield Rollout(*answer)
                continue
            if "error" in answer:
                raise OppoError(answer["error"])
            reading.left_out.update(Tally(answer["left_out"]))
            reading.notes.update(Tally(answer["notes"]))
            reading.used_fields.update(answer["used_fields"])
            return
        raise self._died(path)

    def end(self) -> None:
        """Whatever it is doing."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()
        self._process.wait()

    def _tell(self, what: Any) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the answer then ends early, too
            pickle.dump(what, self._process.stdin)
            self._process.stdin.flush()

    def _died(self, path: Path) -> OppoError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1)
        if self._process.returncode == -signal.SIGXCPU:
            return OppoError(f"{path} was not read: after {_seconds(path)} s there was no end of it: {_MEND}")
        return OppoError(f"{path} was not read: reading it ended the process that did: {_MEND}")


# ---- inside the process ------------------------------------------------------------------------------------


def _serve(asked: IO[bytes], answers: IO[str]) -> None:
    name, options = pickle.load(asked)
    importer = find_importer(name)
    base = _address_space()
    gc.disable()  # looking for cycles among millions of values takes longer than reading them
    while True:
        try:
            path: Path = pickle.load(asked)
        except EOFError:
            return
        answers.write(json.dumps(_answer(importer, path, Reading(options), base, answers)) + "\n")
        answers.flush()
        gc.collect()


def _answer(importer: Importer, path: Path, reading: Reading, base: int, answers: IO[str]) -> dict[str, Any]:
    try:
        with file_errors(path):
            _limit(path, base)
        for rollout in importer.read(path, reading):
            answers.write(json.dumps(rollout) + "\n")
    except OppoError as error:
        return {"error": str(error)}
    except MemoryError:
        return {
            "error": f"{path} was not read: it takes more than {_bytes(path) >> 20:,} MB of memory: {_MEND}"
        }
    except Exception as error:  # what a damaged file holds is not foreseen
        return {"error": f"{path} holds what cannot be read ({type(error).__name__}): {_MEND}"}
    return {
        "left_out": reading.left_out,
        "notes": reading.notes,
        "used_fields": sorted(reading.used_fields),
    }


def _limit(path: Path, base: int) -> None:
    import resource

    spent = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(spent.ru_utime + spent.ru_stime) + _seconds(path)
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, base + _bytes(path)),
    ):
        hard = resource.getrlimit(kind)[1]
        with suppress(ValueError, OSError):  # systems without that limit, or where it is lower
            resource.setrlimit(kind, (most, hard))


def _address_space() -> int:
    """Bytes that the interpreter and its libraries have mapped; where nobody says, what they usually have."""
    with suppress(OSError, ValueError, IndexError):
        import resource

        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return 1 << 30


def _bytes(path: Path) -> int:
    return LEAST_BYTES + BYTES_A_BYTE * path.stat().st_size


def _seconds(path: Path) -> int:
    return LEAST_SECONDS + int(SECONDS_A_MEGABYTE * path.stat().st_size / 1e6)


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout)
