"""Draws of what is unknown about the seconds of a scenario's machine."""

from dataclasses import dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, Literal

from oppo_sim.columns import (
    GPU_HOURS_PER_1K_STEPS,
    STAGES,
    TIMING_STEP,
    TOKENS_PER_S_PER_GPU,
    TOKENS_TRAINED,
    timing,
)
from oppo_sim.costs.terms import CostTerms
from oppo_sim.costs.uncertainty import EXACT as EXACT_DRAWS
from oppo_sim.costs.uncertainty import machine_draws
from oppo_sim.errors import check_count
from oppo_sim.results.summary import gpu_hours
from oppo_sim.runs.placement import PLACEMENT, placement_factor
from oppo_sim.runs.ranges import FULL_DRAWS, Ends, machine_interval
from oppo_sim.runs.request import RunResult
from oppo_sim.scenario.build import Setup, cost_context
from oppo_sim.scenario.cluster import Split
from oppo_sim.scenario.schema import Scenario

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_DRAWS: Final = 40
"""Of a comparison, a sweep and a search: no fewer than ``FULL_DRAWS``."""
MOST_DRAWS: Final = 10_000

_HEADLINES: Final = (*map(timing, STAGES), TIMING_STEP)

Source = Literal["fitted", "priors", "given"]


@dataclass(frozen=True)
class MachineDraws:
    """What is unknown about the machine of a scenario."""

    draws: tuple[CostTerms, ...]
    """Each replaces ``costs.terms``; empty: the machine is taken as given."""
    source: Source
    """A file of draws, priors, or nothing is unknown."""
    sentence: str
    """What intervals of the machine rest on; empty: no draws were requested."""
    placement: tuple[float, ...] = ()
    """On another split of the GPUs than the costs describe: a factor on all seconds, one a draw; empty: on
    that split."""

    def placed(self, result: RunResult, number: int) -> RunResult:
        """A run on draw ``number``, as long as it is on this split."""
        return result.slower(self.placement[number % len(self.placement)]) if self.placement else result

    def record(self) -> dict[str, Any]:
        """For manifests."""
        return {"draws": len(self.draws), "source": self.source, "sentence": self.sentence}

    def frame(self) -> "pd.DataFrame":
        """The draws: one row each, one column a term that is not the same in all of them."""
        import pandas as pd

        table = pd.DataFrame([dict(terms) for terms in self.draws], columns=list(CostTerms.model_fields))
        return table.loc[:, table.nunique() > 1]

    def frame_against(self, other: "MachineDraws") -> "pd.DataFrame":
        """The same for differences from runs on ``other``: with ``placement``, where the splits differ."""
        table = self.frame()
        here, there = (each.placement or (1.0,) * len(self.draws) for each in (self, other))
        if here != there and len(here) == len(there):
            table[PLACEMENT] = [own / its for own, its in zip(here, there, strict=True)]
        return table


EXACT: Final = MachineDraws((), "given", "")
"""No draws were requested."""


def machine_of(scenario: Scenario, count: int, base: Split | None = None) -> MachineDraws:
    """``count`` draws of the machine of a scenario, the same at every call; as many as its file has, where it
    has fewer. 0: none. ``base``: the split of the GPUs that its costs describe; None: its own.

    Raises OppoError for a count out of range and a file of draws that cannot be used.
    """
    check_count("draws", count, 0, MOST_DRAWS)
    if count == 0:
        return EXACT
    costs = scenario.costs
    draws = machine_draws(costs, cost_context(scenario), count, scenario.seed, scenario.base_dir)
    if not draws:
        why = f"costs.draws {EXACT_DRAWS}" if costs.draws else f"costs.kind {costs.kind} has no priors"
        return MachineDraws((), "given", f"the machine is taken as given ({why})")
    placement: tuple[float, ...] = ()
    if base is not None and scenario.split != base:
        placement = tuple(
            placement_factor(scenario.split, base, number, scenario.seed) for number in range(len(draws))
        )
    few = "" if len(draws) >= FULL_DRAWS else f"; a range of 95 % takes {FULL_DRAWS} draws"
    if costs.draws is not None:
        few = few or (f"; {count} were asked, it has no more" if len(draws) < count else "")
        said = f"ranges use {len(draws)} fitted draws of the machine ({costs.draws}){few}"
        return MachineDraws(draws, "fitted", said, placement)
    said = (
        "ranges use priors of the machine, nothing was fitted: `oppo fit` on a log of 20 steps would narrow"
        " them"
    )
    if costs.kind == "profile":
        said = "ranges use priors of what the profile did not measure, narrow ones of what it did"
    return MachineDraws(draws, "priors", f"{said}{few}", placement)


def headline_intervals(setup: Setup, machine: MachineDraws) -> dict[str, Ends]:
    """95 % intervals over the draws of the machine of a built run: mean seconds of the step and of each stage
    that took time, tokens trained a second a GPU, GPU-hours for 1,000 steps; without the warm-up.

    Raises OppoError for a run that cannot go on.
    """
    from oppo_sim.fast.choose import run_summary

    section, context = setup.scenario.costs, cost_context(setup.scenario)
    built, gpus = section.build(context, setup.scenario.base_dir), setup.scenario.split.num_gpus
    values: dict[str, list[float]] = {}
    for terms in machine.draws:
        summary, _ = run_summary(replace(setup, costs=section.under(built, terms, context)))
        means = {name: summary.columns[name].mean for name in _HEADLINES if name in summary.columns}
        step, tokens = means[TIMING_STEP], summary.columns[TOKENS_TRAINED].mean
        if gpus and step > 0:
            means[TOKENS_PER_S_PER_GPU] = tokens / step / gpus
            means[GPU_HOURS_PER_1K_STEPS] = gpu_hours(step, gpus)
        for name, value in means.items():
            values.setdefault(name, []).append(value)
    found = {name: machine_interval(of_draws) for name, of_draws in values.items()}
    return {name: ends for name, ends in found.items() if all(map(isfinite, ends))}


def on_machine(scenario: Scenario, terms: CostTerms) -> Scenario:
    """The scenario with ``terms`` for its ``costs.terms``, taken as exact."""
    costs = scenario.costs.model_copy(update={"terms": terms, "draws": EXACT_DRAWS})
    return scenario.model_copy(update={"costs": costs})
