"""Public GPU measurements beside what the simulator says, tier by tier; writes results/ and README.md.

    python experiments/public_gpu/run.py                       # all tiers on develop units
    python experiments/public_gpu/run.py --part served         # one part, the rest as stored
    python experiments/public_gpu/run.py --held-out "reason"   # also scores held-out units, and logs it

Held-out units are scored when a person asks for it, never else. Part `composed` needs the extra `kernels`.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

from page import write_page
from rows import RESULTS, Row, log_scoring, read_rows, write_rows
from tiers import composed_rows, engine_rows, fitted_rows, kernel_rows, range_rows, unfitted_rows

PARTS = ("kernels", "served", "composed", "steps", "fitted", "ranges")


def rows_of(part: str, held_out: bool, folder: Path) -> list[Row]:
    """The rows of one part; those of the steps and ranges also write these."""
    made: dict[str, Callable[[], list[Row]]] = {
        "kernels": lambda: list(kernel_rows(held_out)),
        "served": lambda: list(engine_rows(held_out)),
        "composed": lambda: list(composed_rows(held_out)),
        "steps": lambda: _steps(held_out, folder),
        "fitted": lambda: fitted_rows(held_out, folder),
        "ranges": lambda: _ranges(held_out, folder),
    }
    return made[part]()


def _ranges(held_out: bool, folder: Path) -> list[Row]:
    rows, table = range_rows(held_out, folder)
    table.to_csv(RESULTS / f"ranges{'_held_out' if held_out else ''}.csv", index=False, float_format="%.4g")
    return rows


def _steps(held_out: bool, folder: Path) -> list[Row]:
    rows, table = unfitted_rows(held_out, folder)
    table.to_csv(RESULTS / f"steps{'_held_out' if held_out else ''}.csv", index=False, float_format="%.6g")
    return rows


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=PARTS, action="append", help="only this part; several times")
    parser.add_argument("--held-out", metavar="REASON", help="also score held-out units; why, for the log")
    said = parser.parse_args()
    parts = said.part or PARTS
    RESULTS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = {row.key: row for part in parts for row in rows_of(part, False, folder)}
        kept = {} if set(parts) == set(PARTS) else {row.key: row for row in read_rows()}
        write_rows((kept | made).values())
        if said.held_out:
            log_scoring([row for part in parts for row in rows_of(part, True, folder)], said.held_out)
    write_page()


if __name__ == "__main__":
    main()
