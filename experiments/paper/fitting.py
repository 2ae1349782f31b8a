"""The fit of a set-up from its baseline alone: worlds of the prior weighed by how well they explain the
published numbers of the baseline, and draws of the costs in those that do.

Resumable: what is in ``results/`` is not made again.
"""

import json
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from study import RESULTS, Progress, Study

from oppo_sim.costs.terms import CostTerms
from oppo_sim.errors import OppoError
from oppo_sim.fit.call import observe
from oppo_sim.fit.inference.tempering import resampled, weights_of, worth
from oppo_sim.fit.observe import log_evidence
from oppo_sim.fit.terms.priors import priors_for
from oppo_sim.scenario.schema import Scenario

WORLDS: Final = 2000
"""Drawn of the prior, a set-up: one in 15 agrees with the numbers of its baseline, and a range of 95 % needs
39 that do."""
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
    for number in range(study.first + len(rows), study.first + count):
        world = study.world(number)
        found = log_evidence(study.scenario(world), study.known(world), draws=_PRIOR_DRAWS, seed=number)
        found += study.offset(world)
        rows.append({"world": number, **world, "log_evidence": found})
        if len(rows) % 10 == 0 or len(rows) == count:
            _save(rows, path)
            say(f"{study.name}: {len(rows)} of {count} worlds weighed")
    return pd.read_csv(path)


def draw_costs(study: Study, worlds: pd.DataFrame, count: int, results: Path, say: Progress) -> pd.DataFrame:
    """``count`` draws of world and costs that agree with the baseline's numbers."""
    path = draws_file(study.name, results)
    rows: list[dict[str, Any]] = pd.read_csv(path).to_dict("records") if path.exists() else []
    logs = worlds["log_evidence"].to_numpy(dtype=np.float64)
    chosen = resampled(weights_of(logs), count, np.random.default_rng(study.first))
    done = {int(row["world"]) for row in rows}
    numbers, times = np.unique(worlds["world"].to_numpy()[chosen], return_counts=True)
    left = [(int(number), int(n)) for number, n in zip(numbers, times, strict=True) if number not in done]
    for each, (number, times_here) in enumerate(left, start=1):
        world = study.world(number)
        scenario = study.scenario(world)
        try:
            fitted = observe(scenario, study.known(world), draws=times_here, seed=number)
        except OppoError as error:
            # Its computed baseline agreed, the simulated one does not.
            say(f"{study.name}: world {number} left out: {error}")
            continue
        beside = _beside(study, scenario, times_here, number)
        rows += [
            {"world": number, "terms": json.dumps({**terms.stated(), **one}, sort_keys=True)}
            for terms, one in zip(fitted.draws, beside, strict=True)
        ]
        _save(rows, path)
        say(f"{study.name}: costs of {each} of {len(left)} worlds drawn")
    return pd.read_csv(path)


def _beside(study: Study, scenario: Scenario, count: int, number: int) -> list[dict[str, float]]:
    """What the baseline does not have, ``count`` draws of its priors."""
    priors, generator = priors_for([scenario]), np.random.default_rng([number, 6])
    drawn = {
        name: priors[name].median * np.exp(priors[name].sigma * generator.standard_normal(count))
        for name in study.beside
    }
    return [{name: float(values[place]) for name, values in drawn.items()} for place in range(count)]


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


def independent(worlds: "Sequence[int] | pd.Series[int]") -> float:
    """Independent draws that draws in these worlds stand for: those of one world share its lengths."""
    counts = pd.Series(worlds).value_counts().to_numpy(dtype=np.float64)
    return worth(counts)


def digest(names: Iterable[str], results: Path = RESULTS) -> str:
    """Of worlds and draws: another fit has another."""
    found = sha256()
    for name in names:
        for path in (worlds_file(name, results), draws_file(name, results)):
            found.update(path.read_bytes())
    return found.hexdigest()[:12]


def _save(rows: list[dict[str, Any]], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(path, index=False, float_format="%.6g")
