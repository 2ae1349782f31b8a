"""The grid of runs (``cells.py``): the journal of those that are done, and making the rest.

python experiments/staleness/grid.py                 # what is missing, then the page
python experiments/staleness/grid.py --minutes 30    # at most so long
python experiments/staleness/grid.py --page          # the page alone, from the runs that are done
python experiments/staleness/grid.py --page --accept # also the effect that oppo_sim ships
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from cells import SEEDS, Cell, cells
from learner import BATCH, EVALUATE_EVERY, EVALUATED, STEPS, run
from tasks import TASKS, fitted_actor

from oppo_sim.cli.progress import progress_bar
from oppo_sim.runs.journal import Entry, Journal

HERE: Final = Path(__file__).parent
RUNS: Final = HERE / "results" / "runs.jsonl"


def read(path: Path = RUNS) -> dict[Cell, Entry]:
    """The runs that are done, also while others are made."""
    lines = path.read_text("utf-8").splitlines(keepends=True)[1:] if path.exists() else []
    entries = [json.loads(line) for line in lines if line.endswith("\n")]
    return {_cell(entry): entry for entry in entries}


def _cell(entry: Entry) -> Cell:
    task, arm, treatment, seed = str(entry["key"]).split("|")
    return Cell(task, arm, treatment, int(seed))


def _about() -> Entry:
    """What all runs of one file share."""
    sizes = {"batch": BATCH, "steps": STEPS, "evaluate_every": EVALUATE_EVERY, "evaluated": EVALUATED}
    return sizes | {f"learning_rate/{name}": task.learning_rate for name, task in TASKS.items()}


def _differs(head: Entry) -> str | None:
    changed = [name for name, value in _about().items() if head.get(name) != value]
    if not changed:
        return None
    return f"{RUNS} holds runs with other settings ({', '.join(changed)}): move it away"


def make(wanted: list[Cell], minutes: float, actors: Path) -> None:
    """Make the runs that are missing, one after the other, each kept as soon as it is done."""
    done: set[Cell] = set()
    began = time.monotonic()
    with (
        Journal(RUNS, "grid", lambda entry: done.add(_cell(entry)), _about(), _differs) as journal,
        progress_bar("runs", len(wanted), quiet=False) as (progress, shown),
    ):
        progress.update(shown, completed=sum(cell in done for cell in wanted))
        for cell in wanted:
            if cell in done:
                continue
            if time.monotonic() - began > 60 * minutes:
                return
            weights = fitted_actor(TASKS[cell.task], cell.seed, actors)
            journal.append([{"key": cell.key, **run(cell.task, cell.run_arm(), cell.seed, weights)}])
            progress.update(shown, advance=1)


def main() -> None:
    """Make what is missing, then the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no run after so long")
    parser.add_argument("--actors", type=Path, default=Path(tempfile.gettempdir()) / "oppo-staleness-actors",
                        help="folder of the fitted actors")  # fmt: skip
    parser.add_argument("--page", action="store_true", help="no runs")
    parser.add_argument(
        "--accept", action="store_true", help="ship the fitted effect with oppo_sim (staleness_effect.json)"
    )
    chosen = parser.parse_args()
    if not chosen.page:
        chosen.actors.mkdir(parents=True, exist_ok=True)
        make(cells(chosen.seeds), chosen.minutes, chosen.actors)
    from page import write

    write(read(), chosen.accept)


if __name__ == "__main__":
    sys.exit(main())
