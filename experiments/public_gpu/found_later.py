"""Scores the public runs that were found after everything else had been scored: each once, never fitted on.

    python experiments/public_gpu/found_later.py "reason"
    python experiments/public_gpu/found_later.py "reason" --unshipped dstack_h100 verl_demo.log
    python experiments/public_gpu/found_later.py "reason" --unshipped RUN LOG … --fitted-on RUN LOG …

Appends to scorings.csv and makes the page again. Rows: every stage and step unfitted; the step of
the rest of a run fitted on its first steps. The second form scores runs whose logs have no licence, from
copies of the logs that data/README.md names; the third predicts their steps from other runs of the cluster.
"""

import argparse
import tempfile
from pathlib import Path

import pandas as pd
from fitted import other_runs
from page import write_page
from rows import RESULTS, Row, log_scoring
from split import LATER
from steps import Run, later_runs
from tiers import first_steps_rows, stage_rows
from unshipped import UNSHIPPED, unshipped_run


def scored(runs: list[Run], folder: Path) -> tuple[list[Row], pd.DataFrame]:
    """Rows of `runs`, unfitted where their lengths are known, and fitted; and their steps, measured and
    predicted unfitted."""
    known = [run for run in runs if "trace" not in run.scenario]
    rows, steps = stage_rows(known, folder) if known else ([], pd.DataFrame())
    return rows + first_steps_rows(runs, folder), steps


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("reason", help="why, for the log of scorings")
    for option, what in (("--unshipped", "scored"), ("--fitted-on", "that those are predicted from")):
        parser.add_argument(
            option,
            nargs=2,
            action="append",
            default=[],
            metavar=("RUN", "LOG"),
            help=f"{what}; one of {', '.join(UNSHIPPED)}; again for more",
        )
    said = parser.parse_args()
    for run, _ in (*said.unshipped, *said.fitted_on):
        if run not in UNSHIPPED:
            parser.error(f"{run}: give one of {', '.join(UNSHIPPED)}")
    if said.fitted_on and not said.unshipped:
        parser.error("--fitted-on says from which runs, --unshipped which are predicted: give both")
    runs, known = (
        [unshipped_run(run, Path(log)) for run, log in given] for given in (said.unshipped, said.fitted_on)
    )
    with tempfile.TemporaryDirectory() as name:
        if known:
            rows = [each.row for each in other_runs(known, runs, Path(name))]
        elif runs:
            rows, _ = scored(runs, Path(name))
        else:
            rows, steps = scored(later_runs(), Path(name))
            steps.to_csv(RESULTS / f"steps_{LATER}.csv", index=False, float_format="%.6g")
    log_scoring(rows, said.reason)
    write_page()


if __name__ == "__main__":
    main()
