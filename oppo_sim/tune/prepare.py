"""What a search is about, from its request: the scenario, its seeds, the space and the worlds."""

from dataclasses import dataclass

from oppo_sim.scenario.schema import Scenario
from oppo_sim.simulation import loaded_scenario
from oppo_sim.tune.frameworks.catalog import framework
from oppo_sim.tune.request import Seeds, TuneRequest, seeds_of
from oppo_sim.tune.space import Space, build_space
from oppo_sim.tune.worlds import World, build_worlds


@dataclass(frozen=True)
class Prepared:
    """A request, checked and built."""

    scenario: Scenario
    seeds: Seeds
    space: Space
    worlds: tuple[World, ...]
    steps: int


def prepared(request: TuneRequest) -> Prepared:
    """Raises OppoError for what cannot be searched."""
    scenario = loaded_scenario(request.scenario, request.overrides).for_steps(request.steps)
    seeds = seeds_of(request, scenario)
    runs_on = None if request.framework is None else framework(request.framework)
    space = build_space(scenario, request.policies, request.space, request.constraints.max_deferrals, runs_on)
    steps = scenario.steps if request.steps is None else request.steps
    return Prepared(scenario, seeds, space, build_worlds(scenario, request.worlds), steps)
