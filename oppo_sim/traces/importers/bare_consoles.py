"""Consoles that print neither lengths nor seconds of a stage, and where their trainers write these."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from oppo_sim.errors import OppoError
from oppo_sim.traces.importers.rows import raw_lines

_PRIME_RL: Final = re.compile(
    rb"(?<!Micro )Step \d{1,18} \| +[\d.]{1,18}(?:ms|[smhd])(?: \d+[smh])? \| (?:Reward|Loss) -?[\d.]"
)
_LINES: Final = 10_000


def refused_console(files: Iterable[Path]) -> OppoError | None:
    """What to give instead of prime-rl's console; None for files of other kinds."""
    for file in files:
        for _, line in zip(range(_LINES), raw_lines(file), strict=False):
            if _PRIME_RL.search(line):
                return OppoError(
                    f"{file} is prime-rl's console, which names neither lengths nor seconds of a stage: give"
                    " the metrics.jsonl in the folder of the run (its file monitor), or wandb's history"
                )
    return None
