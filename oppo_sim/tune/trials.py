"""Trials: how they are kept (in the journal of the search's runs) and ranked; and what a search ends with."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, inf
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.runs.differing import differing
from oppo_sim.runs.journal import Entry
from oppo_sim.runs.store import RunStore
from oppo_sim.scenario.schema import Scenario
from oppo_sim.tune.request import Robust
from oppo_sim.tune.space import Setting

if TYPE_CHECKING:
    import pandas as pd

RUNS = "runs.jsonl"
QUANTILE = 0.9

Status = Literal["ok", "infeasible", "stopped", "failed"]


@dataclass(frozen=True)
class Trial:
    """A setting that was tried on the search's seeds."""

    number: int
    setting: Setting
    status: Status
    """``stopped``: clearly worse, or beyond a bound, after some of the seeds; ``failed``: it cannot run."""
    costs: tuple[tuple[float, ...], ...] = ()
    """World by world, seed by seed: seconds per unit of the objective; fewer seeds where it was stopped."""
    measures: Mapping[str, float] = field(default_factory=dict)
    """What bounds are measured on, the worst of all worlds."""
    violations: Mapping[str, float] = field(default_factory=dict)
    """Bound → share by which it is broken, at most 0 where it is kept."""
    error: str | None = None

    def to_plain(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "number": self.number,
            "policy": self.setting.policy,
            "values": [list(pair) for pair in self.setting.values],
            "status": self.status,
            "costs": [list(world) for world in self.costs],
            "measures": dict(self.measures),
            "violations": dict(self.violations),
            "error": self.error,
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Trial":
        """The reverse of ``to_plain``."""
        return cls(
            plain["number"],
            Setting(plain["policy"], tuple((name, value) for name, value in plain["values"])),
            plain["status"],
            tuple(tuple(float(cost) for cost in world) for world in plain["costs"]),
            plain["measures"],
            plain["violations"],
            plain["error"],
        )


def mean_cost(trial: Trial, world: int) -> float:
    """Seconds per unit of the objective in a world, over the seeds that the trial has."""
    return fmean(trial.costs[world])


def best_in(trials: Sequence[Trial], world: int) -> Trial | None:
    """The best trial of a world that keeps all bounds; the earlier of two equal ones. None: no trial does."""
    kept = [trial for trial in trials if trial.status == "ok"]
    return min(kept, key=lambda trial: (mean_cost(trial, world), trial.number), default=None)


def least_costs(trials: Sequence[Trial], worlds: int) -> list[float]:
    """The least cost in each world, of trials that keep all bounds, else of any; inf where nothing ran."""
    found = []
    for world in range(worlds):
        best = best_in(trials, world)
        ran = [mean_cost(trial, world) for trial in trials if trial.costs]
        found.append(mean_cost(best, world) if best is not None else min(ran, default=inf))
    return found


def regrets(trial: Trial, least: Sequence[float]) -> list[float]:
    """World by world, a share: 0.02 is 2 % slower than the best known there."""
    return [mean_cost(trial, world) / cost - 1.0 for world, cost in enumerate(least)]


def together(values: Sequence[float], how: Robust) -> float:
    """Regrets of all worlds as one number."""
    if how == "mean":
        return fmean(values)
    if how == "worst":
        return max(values)
    ordered = sorted(values)
    place = QUANTILE * (len(ordered) - 1)
    below, above = ordered[floor(place)], ordered[ceil(place)]
    return below + (above - below) * (place - floor(place))


def ranked(trials: Sequence[Trial], worlds: int, how: Robust) -> list[Trial]:
    """Trials that keep all bounds, the best first."""
    least = least_costs(trials, worlds)
    kept = [trial for trial in trials if trial.status == "ok"]
    return sorted(kept, key=lambda trial: (together(regrets(trial, least), how), trial.number))


def require_optuna() -> Any:
    """The module, quiet. Raises OppoError naming the extra where it is not installed."""
    try:
        import optuna
    except ImportError:
        raise OppoError(
            "oppo tune needs Optuna, which is not installed: pip install 'oppo-toolkit[tune]'"
        ) from None
    if not hasattr(optuna.trial.FrozenTrial, "set_constraint"):
        raise OppoError(
            f"oppo tune needs Optuna 5 or later, and {optuna.__version__} is installed: pip install -U"
            " 'oppo-toolkit[tune]'"
        )
    optuna.logging.set_verbosity(logging.ERROR)
    return optuna


class SearchStore(RunStore):
    """The runs and the trials of one search, kept as they come in one journal. A context manager."""

    def __init__(
        self, folder: Path | None, identity: Mapping[str, Any], settings: Mapping[str, Any], *, replace: bool
    ) -> None:
        """Open or begin the journal of the search ``identity``, of a scenario with these ``settings``;
        without a folder all is kept in memory only.

        ``replace`` empties the journal of another search. Raises OppoError where the folder holds something
        else, as ``Journal``, and while another process searches there.
        """
        self.trials: list[Trial] = []
        wanted, given = json.loads(json.dumps([identity, settings]))
        path = None if folder is None else folder / RUNS

        def differs(head: Entry) -> str | None:
            if "search" not in head:  # not even --force replaces what another command keeps
                raise OppoError(
                    f"{folder} holds runs of another command than a search: choose another folder with -o"
                )
            known = dict(head.get("search") or {})
            if all(known.get(name) == value for name, value in wanted.items()):
                return None
            what = _differs_in((known, head.get("scenario")), (wanted, given))
            return (
                f"{folder} holds another search ({what}): choose another folder with -o, or replace it with"
                " --force"
            )

        if folder is not None and folder.is_dir():
            present = sorted(entry.name for entry in folder.iterdir())
            if present and RUNS not in present:
                raise OppoError(
                    f"{folder} holds no search, but other files ({', '.join(present[:3])}): choose another"
                    " folder with -o"
                )
        super().__init__(path, "search", {"search": wanted, "scenario": given}, differs, replace=replace)
        if folder is not None:
            self.give_way()

    def add(self, trial: Trial) -> None:
        """Keep a trial. Raises OppoError when the disk refuses."""
        self.append([{"trial": trial.to_plain()}])
        self.trials.append(trial)

    def _take(self, entry: Entry) -> None:
        if "trial" not in entry:
            super()._take(entry)
            return
        trial = Trial.from_plain(entry["trial"])
        # What follows a gap (a line was deleted) is made again, from runs that are there.
        if trial.number == len(self.trials):
            self.trials.append(trial)


_Search = tuple[Mapping[str, Any], Mapping[str, Any] | None]
"""Its identity, and the settings of its scenario."""


def _differs_in(kept: _Search, given: _Search) -> str:
    """Options and settings of two searches, with both values; without settings, as before they were kept,
    that there are others."""
    options = [
        {name: value for name, value in search.items() if name not in ("scenario_sha256", "inputs")}
        for search, _ in (kept, given)
    ]
    found = [differing(*options)]
    if kept[0].get("scenario_sha256") != given[0]["scenario_sha256"]:
        found.append("another scenario" if kept[1] is None else differing(kept[1], given[1] or {}))
    if any(found):
        return "; ".join(each for each in found if each)
    return "it differs in the contents of its files, or this program"


# ---- what a search ends with -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Checked:
    """A setting on seeds that no trial saw."""

    setting: Setting
    why: str
    """Why it is looked at: ``trial 17``, ``as the scenario has it``, ``the baseline``."""
    rows: tuple[Mapping[str, float], ...]
    """World by world: the columns of a comparison (``columns.py``), and what bounds are measured on."""
    costs: tuple[tuple[float, ...], ...]
    """World by world, seed by seed: seconds per unit of the objective."""
    baseline: str
    """Label of the baseline that its speed-up is against."""
    measures: Mapping[str, float]
    violations: Mapping[str, float]
    number: int | None = None
    """Of the trial."""


@dataclass(frozen=True)
class PairedResult:
    """A setting beside the chosen one, on the same seeds."""

    checked: Checked
    relative: tuple[float, float, float]
    """Cost over the chosen one's, mean over the worlds, minus 1, with its 95 % interval."""
    alike: bool
    """It cannot be told apart from the chosen one, given seeds and, where it was drawn, draws."""
    keeps_bounds: bool
    regrets: tuple[float, ...]
    """World by world, against the best trial that was checked there."""
    ranges: Mapping[str, Any] = field(default_factory=dict)
    """Columns that rest on draws of the machine; empty: it was not drawn."""

    @property
    def difference(self) -> tuple[float, float, float]:
        """``relative``; its interval is of seeds and machine where the machine was drawn."""
        mean, low, high = self.relative
        known = self.ranges
        return mean, known.get(c.DIFFERENCE_BOTH_LOW, low), known.get(c.DIFFERENCE_BOTH_HIGH, high)


@dataclass(frozen=True)
class KnobEffect:
    """One knob swept around the chosen setting, everything else as chosen."""

    field: str
    chosen: Any
    flat: tuple[Any, Any] | None
    """From and to which value the cost stays within 1 % of the least of the sweep: values next to each other,
    around the chosen one. None: the chosen one itself does not."""
    least: Any
    """The value of the least cost of the sweep that keeps all bounds."""
    below: float
    """That cost over the chosen one's, minus 1: 0 or less."""
    most: float
    """Largest cost of the sweep over the chosen one's, minus 1."""
    share: float
    """Of the variance (of the logarithm of the cost) of all these sweeps."""
    importance: float | None
    """PED-ANOVA over the trials of the policy; None: too few."""
    better: Any = None
    """A value that is significantly better than the chosen one and keeps all bounds."""
    others_break: bool = False
    """Some of the sweep break a bound."""


@dataclass(frozen=True)
class Interaction:
    """Two knobs changed together against each changed alone."""

    fields: tuple[str, str]
    values: tuple[Any, Any]
    effect: float
    """Cost of both changes beyond the product of the two single ones, a share."""
    low: float
    high: float
    """95 % interval."""

    @property
    def real(self) -> bool:
        """The interval excludes 0."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Infeasible:
    """Nothing kept all bounds: the nearest setting, and what binds."""

    nearest: Trial
    binding: tuple[str, ...]
    """Bounds that it breaks, the worst first."""
    sentence: str


_SHOWN = (
    c.STEP_S,
    c.SPEEDUP,
    c.SPEEDUP_LOW,
    c.SPEEDUP_HIGH,
    c.COMPARED_STALENESS_MEAN,
    c.COMPARED_STALENESS_MAX,
    c.LENGTH_BIAS_PAIRED,
)


@dataclass(frozen=True, repr=False)
class Tuned:
    """The result of ``tune``.

    ``best`` is the scenario with the choice in it, ``advice()`` says it in words. ``settings`` has a row for
    each setting on fresh seeds: ``step_s`` (seconds a step), ``speedup`` (ratio to the sequential baseline),
    ``difference`` (share: cost over the choice's, minus 1). ``trials`` has a row for each trial,
    ``sensitivity`` for each value of a knob that was tried around the choice. All columns with units:
    ``oppo_sim.explain(tuned.settings)``, docs/columns.md.
    """

    scenario: Scenario
    best: Scenario | None
    """The scenario with the chosen policy and knobs in it; None: nothing kept all bounds."""
    chosen: PairedResult | None
    others: Sequence[PairedResult]
    """Everything else that was checked on fresh seeds, the best first."""
    knobs: Sequence[KnobEffect]
    interactions: Sequence[Interaction]
    infeasible: Infeasible | None
    trials: "pd.DataFrame"
    """One row a trial (``oppo_sim.explain(tuning.trials)``)."""
    sensitivity: "pd.DataFrame"
    """One row a value of a knob that was swept."""
    advised: Mapping[str, Any]
    """The advice in words and as values; ``advice_markdown`` makes a page of it."""
    record: Mapping[str, Any]
    """What ``tune.json`` holds."""
    folder: Path | None = field(default=None)

    def __repr__(self) -> str:
        found = "nothing keeps all bounds" if self.chosen is None else self.chosen.checked.setting.label
        return f"Tuned({self.scenario.name}, {len(self.trials):,} trials: {found})"

    @property
    def settings(self) -> "pd.DataFrame":
        """One row a setting that was looked at on fresh seeds, the choice first, in the scenario as given;
        ``difference`` is the paired cost over the choice's, minus 1. Empty where nothing keeps all bounds."""
        import pandas as pd

        rows = [
            {
                "setting": one.checked.setting.label,
                "why": "choice" if one is self.chosen else one.checked.why,
                **{name: one.checked.rows[0][name] for name in _SHOWN if name in one.checked.rows[0]},
                **dict(zip((c.DIFFERENCE, c.DIFFERENCE_LOW, c.DIFFERENCE_HIGH), one.relative, strict=True)),
                "alike": one.alike,
                "keeps_bounds": one.keeps_bounds,
            }
            for one in (() if self.chosen is None else (self.chosen, *self.others))
        ]
        return pd.DataFrame(rows)

    def _repr_html_(self) -> str:
        shown = self.trials if self.chosen is None else self.settings
        return shown.to_html(max_rows=20, float_format=lambda value: f"{value:.4g}")

    def advice(self, framework: str | None = None) -> str:
        """What to set and what to expect, as text; or, of a framework (``verl``), the text to paste there,
        and what it has no knob for. Raises OppoError for an unknown framework, and for one that the search
        left out."""
        from oppo_sim.tune.advice_page import advice_text, framework_text

        return advice_text(self.advised) if framework is None else framework_text(self.advised, framework)
