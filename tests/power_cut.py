"""What a disk may hold after a power cut: what was synced, and of everything else whatever part.

The weakest file system that POSIX allows: a file's bytes are on the disk when it was synced, its name when its
folder was; until then each change of a name may be there or not, whatever came before or after it, and bytes
may be lost, half there, or zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from tests.broken_disk import Change

Found = dict[str, bytes | None]
"""Below a folder: the bytes of each file, None for a folder."""

Bytes = Literal["kept", "lost", "torn", "zeros"]
"""What became of those that were not synced."""


@dataclass
class _File:
    synced: bytes = b""
    now: bytes = b""

    def after(self, unsynced: Bytes) -> bytes:
        if unsynced == "kept" or not self.now.startswith(self.synced):
            return self.synced if unsynced == "lost" else self.now
        more = self.now[len(self.synced) :]
        return (
            self.synced + {"lost": b"", "torn": more[: len(more) // 2], "zeros": bytes(len(more))}[unsynced]
        )


@dataclass
class _Folder:
    synced: dict[str, _File | _Folder] = field(default_factory=dict)
    now: dict[str, _File | _Folder] = field(default_factory=dict)
    pending: list[tuple[int, dict[str, _File | _Folder | None]]] = field(default_factory=list)
    """Number of the change, and what it gave to which names."""

    def set(self, number: int, names: dict[str, _File | _Folder | None]) -> None:
        self.pending.append((number, names))
        _apply(self.now, names)

    def sync(self) -> None:
        self.synced, self.pending = dict(self.now), []

    def after(self, is_there: Callable[[int], bool]) -> dict[str, _File | _Folder]:
        found = dict(self.synced)
        for number, names in self.pending:
            if is_there(number):
                _apply(found, names)
        return found


class Disk:
    """A folder of which every change is told."""

    def __init__(self, root: Path, before: Mapping[str, bytes]) -> None:
        """``before``: files that are on the disk, by their path below ``root``."""
        self._root = root
        self._top = _Folder()
        for name, data in before.items():
            folder = self._top
            for part in Path(name).parts[:-1]:
                inside = folder.now.setdefault(part, _Folder())
                assert isinstance(inside, _Folder)
                folder = inside
            folder.now[Path(name).name] = _File(data, data)
        for each in self._folders():
            each.sync()

    def make(self, change: Change) -> None:
        """A change that was made."""
        if change.path == self._root:
            if change.kind == "sync":
                self._top.sync()
            else:  # asked for, and there
                assert change.kind == "folder", change
            return
        folder, name = self._at(change.path.parent), change.path.name
        if folder is None:  # of what is not there nothing is deleted
            assert change.kind == "delete", change
            return
        found = folder.now.get(name)
        match change.kind:
            case "create" if isinstance(found, _File):  # opened anew
                found.now = b""
            case "create":
                folder.set(change.number, {name: _File()})
            case "folder":
                if found is None:
                    folder.set(change.number, {name: _Folder()})
            case "rename":
                assert change.source is not None
                assert change.source.parent == change.path.parent
                moved = folder.now[change.source.name]
                folder.set(change.number, {change.source.name: None, name: moved})
            case "delete":
                if found is not None:
                    folder.set(change.number, {name: None})
            case "sync" if isinstance(found, _Folder):
                found.sync()
            case "sync" if found is None:
                pass  # deleted, and closed then
            case _:
                assert isinstance(found, _File), change
                if change.kind == "write":
                    found.now += change.data
                elif change.kind == "truncate":
                    found.now = found.now[: change.size]
                else:
                    found.synced = found.now

    def states(self) -> Iterator[tuple[str, Found]]:
        """What may be found when the power goes now, each state once."""
        pending = sorted({number for each in self._folders() for number, _ in each.pending})
        seen: list[Found] = []
        for label, is_there, unsynced in _chosen(pending):
            found = dict(_below(self._top, is_there, unsynced))
            if found not in seen:
                seen.append(found)
                yield label, found

    def _at(self, path: Path) -> _Folder | None:
        folder = self._top
        for part in path.relative_to(self._root).parts:
            inside = folder.now.get(part)
            if inside is None:
                return None
            assert isinstance(inside, _Folder)
            folder = inside
        return folder

    def _folders(self) -> Iterator[_Folder]:
        todo = [self._top]
        while todo:
            folder = todo.pop()
            yield folder
            todo += [each for each in folder.now.values() if isinstance(each, _Folder)]


def put(found: Found, folder: Path) -> None:
    """Make the files and folders below a folder that has none."""
    for name, data in sorted(found.items()):
        if data is None:
            (folder / name).mkdir(parents=True, exist_ok=True)
        else:
            (folder / name).write_bytes(data)


def files(found: Found, below: str) -> dict[str, bytes]:
    """Those below a folder, by their path in it."""
    start = f"{below}/"
    return {
        name.removeprefix(start): data
        for name, data in found.items()
        if data is not None and name.startswith(start)
    }


_ALL: Final = ("kept", "lost", "torn", "zeros")


def _chosen(pending: Iterable[int]) -> Iterator[tuple[str, Callable[[int], bool], Bytes]]:
    """All changes of names or none, all but one, one alone, those up to one are those of a crash before."""
    for unsynced in _ALL:
        yield f"no names, bytes {unsynced}", lambda _: False, unsynced  # type: ignore[misc]
        yield f"all names, bytes {unsynced}", lambda _: True, unsynced  # type: ignore[misc]
    for one in pending:
        for unsynced in ("kept", "lost"):
            yield f"all but {one}, bytes {unsynced}", lambda number, one=one: number != one, unsynced  # type: ignore[misc]
            yield f"{one} alone, bytes {unsynced}", lambda number, one=one: number == one, unsynced  # type: ignore[misc]


def _apply(names: dict[str, _File | _Folder], change: Mapping[str, _File | _Folder | None]) -> None:
    for name, one in change.items():
        if one is None:
            names.pop(name, None)
        else:
            names[name] = one


def _below(
    folder: _Folder, is_there: Callable[[int], bool], unsynced: Bytes
) -> Iterator[tuple[str, bytes | None]]:
    for name, one in sorted(folder.after(is_there).items()):
        if isinstance(one, _File):
            yield name, one.after(unsynced)
        else:
            yield name, None
            for inner, data in _below(one, is_there, unsynced):
                yield f"{name}/{inner}", data
