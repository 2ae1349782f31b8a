"""The fit of a set-up from its baseline alone: worlds of the prior weighed by how well they explain the
published numbers of the baseline, and draws of the costs in those that do.

Resumable: what is in ``results/`` is not made again.
"""

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from study import RESULTS, Progress, Study

from oppo_sim.costs.terms import CostTerms
from oppo_sim.errors import OppoError
from oppo_sim.fit.observe import log_evidence, observe
from oppo_sim.fit.tempering import resampled, weights_of, worth

WORLDS: Final = 400
"""Drawn of the prior, a set-up."""
DRAWS: Final = 80
"""Kept, a set-up."""
_PRIOR_DRAWS: Final = 2000


def worlds_file(name: str, results: Path = RESULTS) -> Path:
    """One row a world: its unknowns and the log evidence of the baseline's numbers."""
    return results / f"worlds_{name}.csv"


def draws_file(name: str, results: Path = RESULTS) -> Path:
    """One row a draw: the world it lies in, and its terms as JSON."""
    return results / f"draws_{name}.csv"


def weigh_worlds(study: Study, count: int, results: Path, say: Progress) -> pd.DataFrame:
    """The first ``count`` worlds with their log evidence."""
    path = worlds_file(study.name, results)
    known = pd.read_csv(path) if path.exists() else pd.DataFrame()
    rows = known.to_dict("records")
    for number in range(len(rows), count):
        world = study.world(number)
        found = log_evidence(study.scenario(world), study.known(world), draws=_PRIOR_DRAWS, seed=number)
        found += study.offset(world)
        rows.append({"world": number, **world, "log_evidence": found})
        if number % 10 == 9 or number == count - 1:
            _save(rows, path)
            say(f"{study.name}: {number + 1} of {count} worlds weighed")
    return pd.read_csv(path)


def draw_costs(study: Study, worlds: pd.DataFrame, count: int, results: Path, say: Progress) -> pd.DataFrame:
    """``count`` draws of world and costs that agree with the baseline's numbers."""
    path = draws_file(study.name, results)
    rows: list[dict[str, Any]] = pd.read_csv(path).to_dict("records") if path.exists() else []
    logs = worlds["log_evidence"].to_numpy(dtype=np.float64)
    chosen = resampled(weights_of(logs), count, np.random.default_rng(0))
    done = {int(row["world"]) for row in rows}
    places, times = np.unique(chosen, return_counts=True)
    left = [(place, n) for place, n in zip(places, times, strict=True) if int(place) not in done]
    for each, (place, times_here) in enumerate(left, start=1):
        world = study.world(int(place))
        try:
            fitted = observe(
                study.scenario(world), study.known(world), draws=int(times_here), seed=int(place)
            )
        except OppoError as error:
            # Its computed baseline agreed, the simulated one does not.
            say(f"{study.name}: world {place} left out: {error}")
            continue
        rows += [
            {"world": int(place), "terms": json.dumps(terms.stated(), sort_keys=True)}
            for terms in fitted.draws
        ]
        _save(rows, path)
        say(f"{study.name}: costs of {each} of {len(left)} worlds drawn")
    return pd.read_csv(path)


def terms_of(row: Any) -> CostTerms:
    """Of a row of ``draws_file``."""
    return CostTerms(**json.loads(row.terms))


def fit(study: Study, worlds: int, draws: int, results: Path, say: Progress) -> pd.DataFrame:
    """Both steps; the draws."""
    weighed = weigh_worlds(study, worlds, results, say)
    return draw_costs(study, weighed.head(worlds), draws, results, say)


def worlds_worth(worlds: pd.DataFrame) -> float:
    """Independent worlds that the weights stand for."""
    return worth(weights_of(worlds["log_evidence"].to_numpy(dtype=np.float64)))


def _save(rows: list[dict[str, Any]], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(path, index=False, float_format="%.6g")
