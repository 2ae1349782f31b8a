"""Where results lie, which machine this is, and the gate that keeps an unverified attention from being
timed."""

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from oppo_sim.errors import OppoError
from oppo_sim.files import whole_file

HERE: Final = Path(__file__).parent
ATTENTION: Final = "attention.json"
ATTENTION_FORMAT: Final = "oppo-gpu-attention/1"
REHEARSED: Final = Path("runs/gpu-rehearsal")


@dataclass(frozen=True)
class Workplace:
    """A folder of results, and the device they come from."""

    folder: Path
    device: str
    hardware: str
    versions: dict[str, str]
    rehearse: bool

    @property
    def device_name(self) -> str:
        """First part of a profile's name: ``h200`` of "1 of 1 NVIDIA H200, …"; ``cpu`` in a rehearsal."""
        return "cpu" if self.device == "cpu" else device_name(self.hardware)

    def profile(self, pair_name: str) -> Path:
        """Where the profile of a pair lies; its samples and fit lie beside it."""
        return self.folder / "profiles" / self.device_name / f"{pair_name}.json"

    def journal(self, configuration: str) -> Path:
        """Finished runs of a configuration."""
        return self.folder / "runs" / f"{re.sub(r'[^a-z0-9.+_-]+', '_', configuration.lower())}.runs.jsonl"


def device_name(hardware: str) -> str:
    """Of a GPU as ``oppo calibrate`` describes it, in small letters without the maker's name."""
    found = re.search(r"\d+ of \d+ (?:NVIDIA )?([^,]+)", hardware)
    return re.sub(r"[^a-z0-9.+_-]+", "-", (found.group(1) if found else hardware).lower()).strip("-")


def open_workplace(folder: Path | None, device: str | None, rehearse: bool) -> Workplace:
    """The folder and the machine. Raises OppoError where there is no CUDA device to measure on."""
    if not rehearse:
        # Arenas grow and shrink in many sizes; segments that expand do not break the memory into pieces. Read
        # when torch is imported.
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    import torch

    from oppo_real.calibrate.subject import hardware, software_versions

    place = "cpu" if rehearse else device or "cuda:0"
    if not rehearse:
        if torch.device(place).type != "cuda":
            raise OppoError(
                f"--device {place} is no GPU: give cuda:0, or rehearse on the CPU with --rehearse"
            )
        if not torch.cuda.is_available():
            raise OppoError(
                "PyTorch finds no usable CUDA device here: run this on a machine with a GPU, or rehearse it"
                " with --rehearse"
            )
    else:
        torch.set_num_threads(1)
    return Workplace(
        folder or (REHEARSED if rehearse else HERE), place, hardware(place), software_versions(), rehearse
    )


def workplace_given(description: str, arguments: Sequence[str] | None) -> Workplace:
    """Of a script that takes no more than where and on what. Raises OppoError."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--device")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, with tiny models or shapes")
    given = parser.parse_args(arguments)
    return open_workplace(given.work, given.device, given.rehearse)


def device_bytes(place: Workplace) -> float | None:
    """Memory of the device; None in a rehearsal."""
    if place.rehearse:
        return None
    import torch

    return float(torch.cuda.get_device_properties(place.device).total_memory)


def write_json(path: Path, content: Any) -> None:
    """Whole or not at all. Raises OppoError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OppoError(f"cannot make the folder {path.parent}: {error.strerror or error}") from None
    with whole_file(path) as file:
        file.write((json.dumps(content, indent=1) + "\n").encode())


def read_attention(folder: Path) -> dict[str, Any]:
    """What part 0 found. Raises OppoError where it has not run."""
    path = folder / ATTENTION
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != ATTENTION_FORMAT:
            raise ValueError(f"its format is {found['format']!r}")
        return dict(found)
    except FileNotFoundError:
        raise OppoError(
            f"{path} is missing: run part0_attention.py first; nothing is timed with an unverified attention"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OppoError(f"{path} cannot be read ({error}): run part0_attention.py anew") from None


def require_verified(place: Workplace) -> None:
    """Raises OppoError unless part 0 passed on this device with these versions."""
    found = read_attention(place.folder)
    for what, there, here in (
        ("device", found.get("hardware"), place.hardware),
        *(
            (name, found.get("versions", {}).get(name), place.versions.get(name))
            for name in ("torch", "transformers")
        ),
    ):
        if there != here:
            raise OppoError(
                f"the attention was verified with {what} {there!r} and here it is {here!r}: run"
                " part0_attention.py anew"
            )
    if not found.get("passed"):
        raise OppoError(
            "the attention differs from plain attention on this device (attention.json says where): nothing"
            " is timed with it"
        )


def require_shared_memory(needed: float) -> None:
    """Weights go to the replica through shared memory. Raises OppoError where there is too little of it."""
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return
    free = found.f_bavail * found.f_frsize
    if free < needed:
        raise OppoError(
            f"/dev/shm has {free / 2**30:.1f} GiB free and the policy's weights take {needed / 2**30:.1f}:"
            " enlarge it (mount -o remount,size=40G /dev/shm)"
        )


def free_device_memory() -> None:
    """Between runs: what this process holds of the device is needed by the next run's processes."""
    import gc

    import torch

    gc.unfreeze()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def say_progress(text: str) -> None:
    """On a terminal, one line that replaces itself."""
    if sys.stdout.isatty():
        print(f"\r\033[K{text}", end="", flush=True)


def run_main(main: Callable[[Sequence[str] | None], None]) -> None:
    """A script's end: one sentence for what cannot go on."""
    try:
        main(None)
    except OppoError as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted: what was finished is kept, the same command goes on from there")
