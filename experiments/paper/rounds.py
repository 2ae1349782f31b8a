"""What if a round of generate() costs seconds of its own? The fit's draws have none; here each gets its round
of the table of priors, whose source names the paper's chunk curve, and runs again: results/rounds.

    python experiments/paper/rounds.py
"""

import json
import os
import sys
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import pandas as pd
from fitting import draws_file
from oppo_runs import oppo_study
from predicting import predict, runs_file
from setups import SETUPS
from study import RESULTS
from timing import timed

from oppo_sim.costs.priors import log_priors

PART: Final = "rounds"
FOLDER: Final = RESULTS / "rounds"
FILES: Final = tuple(runs_file(name, FOLDER) for name in SETUPS)
_TERM: Final = "round_fixed_s"


def with_rounds(draws: pd.DataFrame) -> pd.DataFrame:
    """Draws, each with seconds of a round."""
    prior = log_priors()[_TERM]
    z = np.random.default_rng(6).standard_normal(len(draws))
    seconds = prior.median * np.exp(prior.sigma * z)
    terms = [
        json.dumps({**json.loads(text), _TERM: float(each)}, sort_keys=True)
        for text, each in zip(draws["terms"], seconds, strict=True)
    ]
    return draws.assign(terms=terms)


def ask() -> None:
    """Every run of every set-up again; what is there is kept. The fits are made before."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with timed(PART, not any(file.exists() for file in FILES)):
        for name in SETUPS:
            draws = with_rounds(pd.read_csv(draws_file(name)))
            predict(oppo_study(name), draws, FOLDER, lambda text: print(text, file=sys.stderr, flush=True))


if __name__ == "__main__":
    os.environ.setdefault("OPPO_ENGINE", "compiled")
    ask()
