"""Develop runs of the cluster predicted from every choice of the others: how intervals hold for a run that
was not fitted.

    python experiments/public_gpu/left_out.py   # three minutes of one core; writes results/left_out.csv
"""

import tempfile
from dataclasses import asdict
from itertools import combinations
from pathlib import Path

import pandas as pd
from fitted import LEAST_REST, other_runs
from rows import RESULTS, read_rows, write_rows
from steps import public_runs

TABLE = RESULTS / "left_out.csv"


def main() -> None:
    """Every choice of one to three runs of enough steps, each judged on those that it leaves out."""
    cluster = [run for run in public_runs() if run.source == "openagentrl" and not run.held_out]
    known = [run for run in cluster if len(run.steps) >= LEAST_REST]
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for size in range(1, len(known)):
            for fitted in combinations(known, size):
                judged = other_runs(fitted, [run for run in known if run not in fitted], Path(name))
                rows += [each.row for each in judged]
    write_rows(rows, TABLE)
    print(summary())


def summary() -> str:
    """A line a number of fitted runs; means over predictions of a run, so that a long run counts as a short
    one."""
    rows = pd.DataFrame([asdict(row) for row in read_rows(TABLE)])
    rows["fitted"] = rows["way"].str.count(r"\+") + 1
    heads = ["runs fitted", "predictions", "median", "p90", "in the 95 % interval", "least", "its width"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for fitted, part in rows.groupby("fitted"):
        mean = part[["median", "p90", "coverage"]].mean().tolist()
        shares = [*mean, part["coverage"].min(), part["width"].mean()]
        cells = [str(fitted), str(len(part)), *(f"{100 * share:.1f} %" for share in shares)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
