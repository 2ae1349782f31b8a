"""Every claim against what the posterior of its baseline predicts. The only file that reads the paper's
results."""

import csv
from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from fitting import draws_file, independent, worlds_file
from predicting import by_run, runs_file, steps_ratio
from study import FOLDER, RESULTS

from oppo_sim.learning import measured_effect
from oppo_sim.runs.ranges import FULL_DRAWS, machine_interval

CLAIMS: Final = (FOLDER / "data" / "claims.csv", FOLDER / "data" / "others_published.csv")
COMPARED: Final = RESULTS / "claims.csv"
_LEAST: Final = 0.05
"""A claim of more or less is inside where at least this share of the draws agrees."""
_FEWEST: Final = 20
"""Draws below which nothing is said."""
_NEAREST: Final = 0.15
"""Share of the draws, nearest to the paper's value, that say what would have to be true."""
Floats = npt.NDArray[np.float64]


class Claim(NamedTuple):
    """A row of ``CLAIMS``."""

    id: str
    study: str
    claim: str
    quantity: str
    run: str
    against: str
    paper: str
    where: str


class Compared(NamedTuple):
    """A claim, and what the draws say of it."""

    claim: Claim
    values: Floats
    """One a draw; NaN where a draw says nothing."""
    low: float
    middle: float
    high: float
    inside: str
    """yes, no, or why there is no answer."""
    needed: str
    """Where the paper's value is outside or near an end: what the nearest draws have in common."""

    @property
    def answered(self) -> bool:
        """There are a published value and a range."""
        return self.inside.split()[0] in ("yes", "no")


def read_claims() -> list[Claim]:
    """All, of others too."""
    found = []
    for path in CLAIMS:
        with path.open(encoding="utf-8", newline="") as file:
            found += [Claim(**row) for row in csv.DictReader(file)]
    return found


def has_runs(study: str) -> bool:
    """All draws have been run."""
    if not runs_file(study).exists():
        return False
    return int(pd.read_csv(runs_file(study))["draw"].nunique()) == len(pd.read_csv(draws_file(study)))


def values_of(claim: Claim, runs: pd.DataFrame, worlds: pd.DataFrame) -> Floats:
    """The claimed quantity, one a draw."""
    kind, _, number = claim.quantity.partition(" ")
    of_run: Callable[[str], Floats] = lambda column: by_run(runs, column)[claim.run]  # noqa: E731
    if kind in ("speedup", "slower", "minutes"):
        steps = by_run(runs, "step_s")
        faster = steps[claim.against] / steps[claim.run]
        return {"speedup": faster, "slower": 1.0 / faster}.get(kind, float(number or 1) / faster)
    if kind in ("gpu_use", "gpu_use_gain"):
        used = _gpu_use(runs, worlds, claim.run)
        return used if kind == "gpu_use" else used / _gpu_use(runs, worlds, claim.against)
    if kind == "one_step_of_deferred":
        own = of_run("own_step")
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(of_run("one_step") / (1.0 - own))
    if kind == "steps_ratio":
        return np.asarray(steps_ratio(runs[runs["run"] == claim.run].sort_values("draw")))
    if kind == "steps_at_staleness":
        drawn = [measured_effect().drawn(place).staleness for place in range(len(of_run("step_s")))]
        return np.exp(float(number) * np.array(drawn))
    return np.asarray(of_run(kind), dtype=np.float64)


def _gpu_use(runs: pd.DataFrame, worlds: pd.DataFrame, run: str) -> Floats:
    """As the world of each draw has it; NaN where it is something else."""
    rows = runs[runs["run"] == run].sort_values("draw")
    meant = worlds.set_index("world").loc[rows["world"], "gpu_use"].to_numpy()
    busy, kernels = rows["utilization"].to_numpy(), rows["kernels"].to_numpy()
    found = np.where(meant == "utilization/kernels", kernels, np.nan)
    return np.asarray(np.where(meant == "utilization/inference", busy, found))


def compare(claim: Claim, results: Path = RESULTS) -> Compared:
    """A claim whose study has its predictions in ``results``."""
    runs, worlds = pd.read_csv(runs_file(claim.study, results)), pd.read_csv(worlds_file(claim.study))
    values = values_of(claim, runs, worlds)
    told = values[np.isfinite(values)]
    of_worlds = runs.drop_duplicates("draw").sort_values("draw")["world"][np.isfinite(values)]
    if len(told) < _FEWEST:
        middle = float(np.median(told)) if len(told) else float("nan")
        return Compared(claim, values, float("nan"), middle, float("nan"), f"only {len(told)} draws", "")
    few = "" if len(told) >= FULL_DRAWS else f" (least and largest of {len(told)} draws)"
    (low, high), middle = machine_interval(told.tolist(), independent(of_worlds)), float(np.median(told))
    if not claim.paper:
        return Compared(claim, values, low, middle, high, "without a number", "")
    if claim.paper[0] in "<>":
        bound = float(claim.paper[1:])
        share = float((told > bound if claim.paper[0] == ">" else told < bound).mean())
        inside = "yes" if share >= _LEAST else "no"
        return Compared(claim, values, low, middle, high, f"{inside} ({share:.0%} of the draws)", "")
    paper = float(claim.paper)
    inside = ("yes" if low <= paper <= high else "no") + few
    place = float((told < paper).mean())
    needed = "" if 0.1 <= place <= 0.9 else _needed(claim, values, paper, runs)
    return Compared(claim, values, low, middle, high, inside, needed)


def _needed(claim: Claim, values: Floats, paper: float, runs: pd.DataFrame) -> str:
    """What the draws nearest to the paper's value have and the others have not."""
    table = unknowns_of(claim.study)
    usable = np.isfinite(values) & (values > 0)
    far = np.where(usable, np.abs(np.log(np.where(usable, values, 1.0) / paper)), np.inf)
    nearest = np.argsort(far, kind="stable")[: max(5, round(_NEAREST * int(usable.sum())))]
    best = float(values[nearest[0]])
    told = sorted(
        (found for name in table for found in (_difference(table[name], nearest, name),) if found),
        reverse=True,
    )
    words = "; ".join(text for _, text in told[:3])
    return f"nearest draw {best:.3g}; there: {words}" if words else f"nearest draw {best:.3g}"


def _difference(
    column: "pd.Series[Any]", nearest: npt.NDArray[np.int64], name: str
) -> tuple[float, str] | None:
    """How far the nearest draws lie from all, in standard errors, and the words for it."""
    if not pd.api.types.is_float_dtype(column) or column.nunique() <= 4:
        common = column.iloc[nearest].mode()
        if common.empty:
            return None
        value = common.iloc[0]
        share, there = float((column == value).mean()), float((column.iloc[nearest] == value).mean())
        error = (max(share * (1 - share), 1e-9) / len(nearest)) ** 0.5
        far = (there - share) / error
        return (far, f"{name} {value} ({there:.0%}, of all {share:.0%})") if far > 2 else None
    middle, spread = float(column.median()), float(column.std())
    there = float(column.iloc[nearest].median())
    far = abs(there - middle) / (spread / len(nearest) ** 0.5) if spread > 0 else 0.0
    return (far, f"{name} {there:.3g} (of all {middle:.3g})") if far > 2 and isfinite(far) else None


def unknowns_of(study: str) -> pd.DataFrame:
    """One row a draw: its world's unknowns and its terms."""
    import json

    draws, worlds = pd.read_csv(draws_file(study)), pd.read_csv(worlds_file(study))
    unknowns = (
        worlds.set_index("world").drop(columns="log_evidence").loc[draws["world"]].reset_index(drop=True)
    )
    terms = pd.DataFrame([json.loads(text) for text in draws["terms"]])
    same = {name: f"{name} (factor)" for name in terms.columns.intersection(unknowns.columns)}
    both = pd.concat([unknowns, terms.rename(columns=same)], axis=1)
    return both.loc[:, both.nunique() > 1]


def compare_all() -> list[Compared]:
    """Those whose studies have been run."""
    return [compare(claim) for claim in read_claims() if has_runs(claim.study)]


def store(compared: Sequence[Compared]) -> None:
    """The table of results."""
    rows = [
        {
            **one.claim._asdict(),
            "low": round(one.low, 4),
            "median": round(one.middle, 4),
            "high": round(one.high, 4),
            "inside": one.inside,
            "needed": one.needed,
        }
        for one in compared
    ]
    pd.DataFrame(rows).to_csv(COMPARED, index=False)
