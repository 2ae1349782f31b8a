"""Does the scenario that ``oppo fit --log-lengths`` writes take as long as the run that it was fitted to?

    python experiments/fit/simulated.py            # every public run that is shipped; writes simulated.csv

Each run is fitted on all of its steps, ``sequential`` of the written scenario is simulated for as many, and
mean seconds are compared. It shows that log, fit and simulator agree on one run; it predicts nothing.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1] / "public_gpu"))

from fitted import log_of
from steps import Run, later_runs, public_runs, scenario_of

from oppo_sim import columns as c
from oppo_sim.fit.call import fit
from oppo_sim.simulation import simulate

ROWS: Final = Path(__file__).parent / "simulated.csv"
COMPARED: Final = (c.TIMING_STEP, c.timing("gen"), c.timing("update_actor"))
_FEWEST: Final = 15
"""Steps of a run."""


def compared(run: Run, folder: Path) -> dict[str, Any]:
    """Logged and simulated mean seconds of a run."""
    folder.mkdir()
    log, scenario = log_of(run, folder), scenario_of(run, folder)
    result = fit(log, scenario, log_lengths=True, folder=folder / "fit", figures=False)
    logged, covers = result.parts[0].log.frame, result.parts[0].log.covers
    steps = simulate(folder / "fit" / "scenario.yaml", policy="sequential", steps=len(logged)).steps
    row: dict[str, Any] = {"run": f"{run.source} {run.name}", "steps": len(logged)}
    for name in COMPARED:
        seconds = logged[name].to_numpy(dtype=float)
        known = np.isfinite(seconds)
        row[f"{name} logged"] = seconds[known].mean()
        # A framework's generation may hold the sync of weights.
        columns = [c.timing(stage) for stage in covers.get(name, ())] or [name]
        row[f"{name} simulated"] = steps[columns].sum(axis=1).to_numpy()[known].mean()
    return row


def table(rows: pd.DataFrame) -> str:
    """For the page."""
    lines = ["| run | steps | step, logged | simulated | gen | update_actor |", "|---|---|---|---|---|---|"]
    for row in rows.to_dict("records"):
        off = [row[f"{name} simulated"] / row[f"{name} logged"] - 1 for name in COMPARED]
        logged = row[f"{c.TIMING_STEP} logged"]
        cells = [row["run"], row["steps"], f"{logged:.3g} s", *(f"{each:+.1%}" for each in off)]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


@click.command()
def main() -> None:
    """Fit and simulate every run, write the rows, print the table."""
    runs = [run for run in (*public_runs(), *later_runs()) if len(run.steps) >= _FEWEST]
    with tempfile.TemporaryDirectory() as root:
        rows = []
        for number, run in enumerate(runs):
            rows.append(compared(run, Path(root) / str(number)))
            click.echo(f"{run.name}: {number + 1} of {len(runs)}", err=True)
    frame = pd.DataFrame(rows)
    frame.to_csv(ROWS, index=False, float_format="%.4g")
    click.echo(table(pd.read_csv(ROWS)))


if __name__ == "__main__":
    main()
