"""What a search ends with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oppo_sim.scenario.schema import Scenario
from oppo_sim.tune.space import Setting
from oppo_sim.tune.trials import Trial

if TYPE_CHECKING:
    import pandas as pd


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
    """It cannot be told apart from the chosen one."""
    keeps_bounds: bool
    regrets: tuple[float, ...]
    """World by world, against the best trial that was checked there."""


@dataclass(frozen=True)
class KnobEffect:
    """One knob swept around the chosen setting, everything else as chosen."""

    field: str
    chosen: Any
    flat: tuple[Any, Any]
    """From and to which value the cost stays within 1 % of the least of the sweep: values next to each other,
    around the chosen one."""
    most: float
    """Largest cost of the sweep over the chosen one's, minus 1."""
    share: float
    """Of the variance (of the logarithm of the cost) of all these sweeps."""
    importance: float | None
    """PED-ANOVA over the trials of the policy; None: too few."""
    better: Any = None
    """A value that is significantly better than the chosen one and keeps all bounds."""


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


@dataclass(frozen=True)
class Tuned:
    """The result of ``tune``."""

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
    """One row a trial."""
    sensitivity: "pd.DataFrame"
    """One row a value of a knob that was swept."""
    advice: Mapping[str, Any]
    """In words and as values; ``advice_markdown`` makes a page of it."""
    record: Mapping[str, Any]
    """What ``tune.json`` holds."""
    folder: Path | None = field(default=None)
