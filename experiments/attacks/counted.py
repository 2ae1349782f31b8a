"""Does ``tests/broken_disk.py`` see every change that a command asks of the disk? Held against strace, which
sees the system calls: the same kinds, on the same files, in the same order.

    python -m experiments.attacks.counted        # needs strace
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.attack import COMMANDS
from tests.broken_disk import broken_disk
from tests.cli_runs import write_scenario
from tests.test_attacks import environment

_KINDS: Final = {
    "openat": "create",
    "write": "write",
    "pwrite64": "write",
    "writev": "write",
    "ftruncate": "truncate",
    "truncate": "truncate",
    "fsync": "sync",
    "fdatasync": "sync",
    "rename": "rename",
    "renameat": "rename",
    "renameat2": "rename",
    "unlink": "delete",
    "unlinkat": "delete",
    "rmdir": "delete",
    "mkdir": "folder",
    "mkdirat": "folder",
    "mmap": "mapped",
    "link": "link",
    "linkat": "link",
    "symlink": "link",
    "fallocate": "truncate",
    "sendfile": "write",
    "copy_file_range": "write",
}
_CALL: Final = re.compile(r"^\d+\s+(\w+)\((.*)\)\s+= (-?\d+)")


def system_calls(log: str, root: Path, there: set[str]) -> list[tuple[str, str]]:
    """Kind and file of each change below ``root``, as strace tells them; ``there``: files at first."""
    found = []
    for line in log.splitlines():
        match = _CALL.match(line)
        if match is None or match[1] not in _KINDS:
            continue
        call, arguments, result = match.groups()
        paths = [quoted or given for quoted, given in re.findall(r'"([^"]+)"|\d<([^>]+)>', arguments)]
        below = [os.path.normpath(root / path) for path in paths]
        below = [path for path in below if path == str(root) or path.startswith(f"{root}/")]
        if not below or (call == "mmap" and not ("MAP_SHARED" in arguments and "PROT_WRITE" in arguments)):
            continue
        path = below[-1]
        if call == "openat":
            creates = "O_CREAT" in arguments and ("O_TRUNC" in arguments or path not in there)
            if not creates or int(result) < 0:
                continue
            there.add(path)
        found.append((_KINDS[call], os.path.relpath(path, root)))
    return found


def check(name: str) -> bool:
    home = Path(tempfile.mkdtemp(prefix="counted-")).resolve()
    root = home / "root"
    root.mkdir()
    write_scenario(root)
    there = {str(path) for path in root.iterdir()}
    child = [sys.executable, "-m", "experiments.attacks.counted", str(home), *COMMANDS[name].arguments]
    calls = ",".join(_KINDS)
    strace = ["strace", "-f", "-y", "-s", "0", "-e", f"trace={calls}", "-o", str(home / "log")]
    subprocess.run([*strace, *child], cwd=root, env=environment(), check=True, stdout=subprocess.DEVNULL)
    counted = [tuple(pair) for pair in json.loads((home / "changes.json").read_text())]
    seen = system_calls((home / "log").read_text(errors="replace"), root, there)
    print(f"{name}: {len(counted)} changes counted, {len(seen)} system calls: ", end="")
    print("the same" if counted == seen else "DIFFERENT", flush=True)
    if counted != seen:
        first = next((i for i, pair in enumerate(zip(counted, seen, strict=False)) if len(set(pair)) > 1), -1)
        print(f"  first at {first}: {counted[first : first + 4]} {seen[first : first + 4]}")
    return counted == seen


def _child(home: Path, arguments: list[str]) -> None:
    from oppo_sim.cli.main import run

    root = home / "root"
    with broken_disk(root) as disk:
        assert run(arguments) == 0
    changes = [(change.kind, change.path.relative_to(root).as_posix()) for change in disk.changes]
    (home / "changes.json").write_text(json.dumps(changes))


if __name__ == "__main__":
    if sys.argv[1:]:
        _child(Path(sys.argv[1]), sys.argv[2:])
    else:
        sys.exit(len([name for name in COMMANDS if not check(name)]))
