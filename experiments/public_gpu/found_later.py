"""Scores the public runs that were found after everything else had been scored: each once, never fitted on.

    python experiments/public_gpu/found_later.py "reason"
    python experiments/public_gpu/found_later.py "reason" --unshipped dstack_h100 verl_demo.log

Appends to scorings.csv and makes the page again. Rows: every stage and step unfitted; the step of
the rest of a run fitted on its first steps. The second form scores a run whose log has no licence, from a
copy of the log that data/README.md names.
"""

import argparse
import tempfile
from pathlib import Path

import pandas as pd
from page import write_page
from rows import RESULTS, Row, log_scoring
from split import LATER
from steps import Run, later_runs
from tiers import first_steps_rows, stage_rows
from unshipped import UNSHIPPED, unshipped_run


def scored(runs: list[Run], folder: Path) -> tuple[list[Row], pd.DataFrame]:
    """Rows of `runs`, unfitted and fitted; and their steps, measured and predicted unfitted."""
    rows, steps = stage_rows(runs, folder)
    return rows + first_steps_rows(runs, folder), steps


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("reason", help="why, for the log of scorings")
    parser.add_argument("--unshipped", nargs=2, metavar=("RUN", "LOG"), help=f"one of {', '.join(UNSHIPPED)}")
    said = parser.parse_args()
    if said.unshipped and said.unshipped[0] not in UNSHIPPED:
        parser.error(f"--unshipped {said.unshipped[0]}: give one of {', '.join(UNSHIPPED)}")
    with tempfile.TemporaryDirectory() as name:
        if said.unshipped:
            rows, _ = scored([unshipped_run(said.unshipped[0], Path(said.unshipped[1]))], Path(name))
        else:
            rows, steps = scored(later_runs(), Path(name))
            steps.to_csv(RESULTS / f"steps_{LATER}.csv", index=False, float_format="%.6g")
    log_scoring(rows, said.reason)
    write_page()


if __name__ == "__main__":
    main()
