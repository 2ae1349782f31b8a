"""The worlds that a choice is held against: the scenario as it is, other traces, lengths that drift, costs
that are not known exactly."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oppo_sim.costs.section import CostFactors, drawn_factors
from oppo_sim.errors import OppoError
from oppo_sim.scenario.build import build_trace
from oppo_sim.scenario.load import scenario_from_plain
from oppo_sim.scenario.schema import Scenario

NOMINAL = "as given"


@dataclass(frozen=True)
class World:
    """A scenario that may turn out to be the true one."""

    name: str
    scenario: Scenario


@dataclass(frozen=True)
class WorldSpec:
    """Which worlds beside the scenario itself."""

    traces: tuple[str, ...] = ()
    """Shipped traces by name, or trace files."""
    drifts: tuple[float, ...] = ()
    """Factors by which all response lengths may grow in the course of training."""
    cost_uncertainty: float = 0.0
    """Standard deviation of the logarithm of the factors on decode, prefill, scoring and training."""
    cost_worlds: int = 8
    """Draws of these factors."""
    cost_profiles: tuple[Path, ...] = field(default=())
    """Measured profiles that may stand for the scenario's costs, such as resampled ones."""

    def __post_init__(self) -> None:
        if not 0 <= self.cost_uncertainty <= 2:
            raise OppoError(
                f"cost_uncertainty {self.cost_uncertainty} is out of range: give a share from 0 to 2, such"
                " as 0.1"
            )
        if not 1 <= self.cost_worlds <= 1000:
            raise OppoError(f"cost_worlds {self.cost_worlds} is out of range: give 1 to 1,000")
        for factor in self.drifts:
            if not 0.01 <= factor <= 100 or factor == 1:
                raise OppoError(
                    f"drift {factor} is no change that could be simulated: give a factor on lengths from 0.01"
                    " to 100, not 1"
                )

    def described(self) -> dict[str, Any]:
        """For the record of a search."""
        return {
            "traces": list(self.traces),
            "drifts": list(self.drifts),
            "cost_uncertainty": self.cost_uncertainty,
            "cost_worlds": self.cost_worlds if self.cost_uncertainty else 0,
            "cost_profiles": [path.name for path in self.cost_profiles],
        }


def build_worlds(scenario: Scenario, spec: WorldSpec) -> tuple[World, ...]:
    """The scenario first, then one world each.

    Raises OppoError for a trace or a profile that cannot be used, and for two worlds of one name.
    """
    worlds = [World(NOMINAL, scenario)]
    worlds += [World(f"trace {name}", _with_trace(scenario, name)) for name in spec.traces]
    worlds += [World(f"lengths × {factor:g}", _with_drift(scenario, factor)) for factor in spec.drifts]
    for path in spec.cost_profiles:
        costs = {"kind": "profile", "path": str(path.resolve())}
        worlds.append(World(f"costs of {path.stem}", _changed(scenario, {"costs": costs})))
    if spec.cost_uncertainty:
        for number in range(spec.cost_worlds):
            factors = drawn_factors(scenario.seed, number, spec.cost_uncertainty)
            worlds.append(World(str(factors), with_costs(scenario, factors)))
    names = [world.name for world in worlds]
    for name in names:
        if names.count(name) > 1:
            raise OppoError(f"the world '{name}' is there twice: name each trace, profile and drift once")
    return tuple(worlds)


def with_costs(scenario: Scenario, factors: CostFactors) -> Scenario:
    """The scenario with everything of one kind slower by a factor."""
    sync = scenario.training.weight_sync.scaled(factors.training)
    costs = scenario.costs.scaled(factors).model_dump(mode="json")
    training = {**scenario.training.model_dump(mode="json"), "weight_sync": sync.model_dump(mode="json")}
    return _changed(scenario, {"costs": costs, "training": training})


# ---- inside ------------------------------------------------------------------------------------------------


def _changed(scenario: Scenario, sections: dict[str, Any]) -> Scenario:
    plain = {**scenario.to_plain(), **sections}
    return scenario_from_plain(plain, where=scenario.source, base_dir=scenario.base_dir)


def _with_trace(scenario: Scenario, name: str) -> Scenario:
    from oppo_sim.traces.catalog import list_traces

    own = scenario.trace
    shipped = any(entry.name == name for entry in list_traces())
    if not shipped and not Path(name).exists():
        from oppo_sim.traces.opening import open_trace

        open_trace(name)  # raises, with close names
    place = {"name": name} if shipped else {"path": str(Path(name).resolve())}
    sampling = "resample" if own.sampling == "by_step" else own.sampling
    trace = {**place, "sampling": sampling, "prompt_length": own.prompt_length}
    changed = _changed(scenario, {"trace": trace})
    build_trace(changed)
    return changed


def _with_drift(scenario: Scenario, factor: float) -> Scenario:
    plain = scenario.trace.model_dump(mode="json")
    return _changed(scenario, {"trace": {**plain, "length_factor": plain["length_factor"] * factor}})
