"""The counts of README.md, from the journal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from oppo_sim.runs.journal import Entry

PAGE: Final = Path(__file__).parent / "README.md"
MARKS: Final = ("<!-- counts -->", "<!-- end of counts -->")
ROWS: Final = {
    "a replica killed": lambda case: _worker(case, "replica") and not _trains(case),
    "the scoring worker killed": lambda case: _worker(case, "scoring") and not _trains(case),
    "a worker killed in an update": lambda case: _worker(case, "") and _trains(case),
    "the driver killed at a message": lambda case: _first(case)["who"] == "driver" and not _trains(case),
    "the driver killed in an update": lambda case: _first(case)["who"] == "driver" and _trains(case),
    "the driver killed at a change of the disk": lambda case: _first(case)["who"] == "disk",
    "a worker that hangs": lambda case: _first(case)["hangs"],
    "a full disk": lambda case: _first(case)["who"] == "full",
}


def _first(case: Entry) -> Entry:
    first: Entry = case["faults"][0]
    return first


def _worker(case: Entry, name: str) -> bool:
    first = _first(case)
    return first["who"].startswith(("replica", "scoring")) and name in first["who"] and not first["hangs"]


def _trains(case: Entry) -> bool:
    return bool(_first(case).get("trains"))


def table(entries: Sequence[Entry]) -> str:
    """Of cases by what befell them first."""
    lines = [
        "| befallen first by | cases | blows that fell while the run went on | steps kept, least and most |"
        " in lock-step: same decisions | free-running: nothing lost, nothing twice | broke |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, belongs in ROWS.items():
        of = [entry for entry in entries if belongs(entry["case"])]
        held = [entry for entry in of if not entry["broke"]]
        steps = [entry["case"]["lock_step"] for entry in of]
        good = [entry["case"]["lock_step"] for entry in held]
        kept = [kept for entry in held for kept in entry["kept"]]
        lines.append(
            f"| {name} | {len(of)} | {sum(entry.get('struck', 0) for entry in of)} |"
            f" {f'{min(kept)}, {max(kept)}' if kept else '–'} | {sum(good)} of {sum(steps)} |"
            f" {len(good) - sum(good)} of {len(steps) - sum(steps)} | {len(of) - len(held)} |"
        )
    noticed = sorted(seconds for entry in entries for seconds in entry.get("noticed_s", ()))
    if noticed:
        lines += [
            "",
            f"Workers that hung were noticed {noticed[0]:.1f} to {noticed[-1]:.1f} s after they were stopped"
            f" ({len(noticed)} times; the limit was 3 s, ending the run is counted in).",
        ]
    return "\n".join(lines)


def write(entries: Sequence[Entry]) -> None:
    """Put the counts of the journal into the page."""
    text = PAGE.read_text("utf-8")
    before, _, rest = text.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    PAGE.write_text(f"{before}{MARKS[0]}\n{table(entries)}\n{MARKS[1]}{after}", "utf-8")
