"""The stored copy of each framework's option names: what advice may say, and of which version that is.

``experiments/framework_names.py`` makes the files again from a source tree.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

_SWITCH: Final = " switch"


@dataclass(frozen=True)
class StoredNames:
    """The options of one version of a framework."""

    framework: str
    version: str
    date: str
    """Of the release or commit, ISO."""
    source: str
    options: Mapping[str, bool]
    """Name, as the framework writes it → whether it is a switch, a flag that takes no value."""

    @property
    def said(self) -> str:
        """Version and date, for people."""
        return f"{self.framework} {self.version} of {self.date} ({self.source})"

    def knows(self, name: str) -> bool:
        """There is such an option, or a section that takes keys of its own (``vllm_kwargs``)."""
        plain = name.lstrip("+")
        return plain in self.options or (name != plain and plain.rpartition(".")[0] in self.options)


@cache
def stored_names(framework: str) -> StoredNames:
    """Of a framework by the name of its file, ``verl``."""
    text = files(__package__).joinpath("names", f"{framework}.txt").read_text(encoding="utf-8")
    lines = text.splitlines()
    head = dict(line[2:].split(": ", 1) for line in lines if line.startswith("# "))
    options = {
        line.removesuffix(_SWITCH): line.endswith(_SWITCH) for line in lines if not line.startswith("#")
    }
    return StoredNames(head["framework"], head["version"], head["date"], head["source"], options)
