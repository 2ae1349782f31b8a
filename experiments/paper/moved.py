"""What would have to be true of verl's asynchronous gains on 64 and 128 GPUs: if so many seconds of the
colocated update are weights and optimizer on their way to host memory and back, what does the rest predict?
The seconds are read from the published results, so this is no check. Written to results/moved.csv.

    python experiments/paper/moved.py
"""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent))

import pandas as pd
from fitting import fit, independent
from others import POLICY, other_study, read_others
from predicting import by_run, predict
from study import RESULTS
from timing import timed

from oppo_sim.runs.ranges import machine_interval

PART: Final = "moved"
FILE: Final = RESULTS / "moved.csv"
"""One row a baseline: seconds that are moved, and the range of the gain."""
MOVED_S: Final = {"verl-7b-64": 55.0, "verl-7b-128": 57.0}
WORLDS, DRAWS = 120, 40


def without(observed: str, seconds: float) -> str:
    """An observation of a time with so many seconds less; its error stays."""
    name, _, told = observed.partition("=")
    value, _, error = told.partition("±")
    return f"{name}={float(value) - seconds:g}±{error}"


def gain(name: str, seconds: float) -> dict[str, Any]:
    """Of training apart, where the colocated step takes so many seconds more than is fitted."""
    other = read_others()[name]
    longer = ("timing_s/update_actor=", "timing_s/step=")
    told = tuple(without(each, seconds) if each.startswith(longer) else each for each in other.observe)
    study = other_study(other._replace(observe=told))
    with TemporaryDirectory() as folder:
        draws = fit(study, WORLDS, DRAWS, Path(folder), _say)
        steps = by_run(predict(study, draws, Path(folder), _say), "step_s")
    gains = pd.Series((steps["sequential"] + seconds) / steps[POLICY])
    low, high = machine_interval(gains.tolist(), independent(draws["world"]))
    return {"study": name, "moved_s": seconds, "low": low, "median": gains.median(), "high": high}


def ask() -> None:
    """Both."""
    with timed(PART, not FILE.exists()):
        rows = [gain(name, seconds) for name, seconds in MOVED_S.items()]
    pd.DataFrame(rows).to_csv(FILE, index=False, float_format="%.4g")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OPPO_ENGINE", "compiled")
    ask()
