"""Where a run that is being recorded lies, and how its files begin."""

from pathlib import Path
from typing import Final

FORMAT: Final = "oppo-recording/1"
SUFFIX: Final = ".journal"
LINES: Final = "*.jsonl"


def journal_of(folder: Path) -> Path:
    """Where a run that will be ``folder`` is written down meanwhile."""
    return folder.with_name(folder.name + SUFFIX)
