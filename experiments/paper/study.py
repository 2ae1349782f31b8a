"""What is checked in the same way: a baseline with a few published numbers, worlds of what is not published,
and runs that the posterior is asked for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from oppo_sim.costs.terms import CostTerms
from oppo_sim.scenario.schema import Scenario

FOLDER: Final = Path(__file__).parent
RESULTS: Final = FOLDER / "results"
World = Mapping[str, Any]
Progress = Callable[[str], None]


class Run(NamedTuple):
    """One run on a machine."""

    scenario: Scenario
    policy: str
    settings: dict[str, Any]
    terms: CostTerms


@dataclass(frozen=True)
class Study:
    """One baseline and what is asked of it."""

    name: str
    world: Callable[[int], dict[str, Any]]
    """Draw of what is not published, by number."""
    scenario: Callable[[World], Scenario]
    """Of the baseline."""
    known: Callable[[World], list[str]]
    """Its numbers, as ``--observe`` takes them."""
    runs: tuple[str, ...]
    """The first is the baseline."""
    run: Callable[[World, CostTerms, str], Run]
    offset: Callable[[World], float] = lambda _world: 0.0
    """Added to the log evidence, so that worlds with other numbers compare."""
    steps: int = 30
    """Of a run, with its warm-up."""
    warmup: int = 10
    first: int = 0
    """Number of the first world; from another one on, worlds and draws are others."""
    beside: tuple[str, ...] = ()
    """Terms that its runs have and its baseline has not: of their priors."""
