"""The edges at which the chosen setting of a search lies, with the command that searches beyond them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from oppo_sim.policies.knobs import Knob
from oppo_sim.runs.statistics import TO_REWARD
from oppo_sim.scenario.cluster import AUTO, SPLIT_FIELD
from oppo_sim.scenario.schema import Scenario
from oppo_sim.scenario.yaml_text import show_value
from oppo_sim.sweep.edges import Edge, Interval, Searched, edges
from oppo_sim.tune.commands import named, scenario_command
from oppo_sim.tune.request import TuneRequest
from oppo_sim.tune.space import Setting

_KEPT: Final = (
    "framework", "objective", "robust", "seeds", "fresh_seeds", "steps", "draws", "practical", "sampler_seed",
)  # fmt: skip
"""What a search has beside its space, bounds and worlds, named as its options."""


def chosen_edges(
    request: TuneRequest, scenario: Scenario, knobs: Sequence[Knob], chosen: Setting
) -> tuple[list[Edge], str]:
    """The edges, and the command that searches beyond all of them, empty where nothing can be widened;
    ``scenario`` has the chosen setting in it."""
    auto = any(knob.field == SPLIT_FIELD and knob.choices == (AUTO,) for knob in request.space)
    searched = {knob.field: _searched(knob) for knob in knobs if knob.size > 2}
    found = edges(scenario, searched, chosen.knobs, auto=auto, by_reward=request.objective == TO_REWARD)
    wider = {edge.field: edge.values for edge in found if edge.values}
    return found, _command(request, scenario, wider) if wider else ""


def _searched(knob: Knob) -> Searched:
    if knob.kind == "choice":
        return Searched(knob.choices)
    ends = knob.nearest(knob.low), knob.nearest(knob.high)
    return Searched(ends, Interval(knob.low, knob.high, knob.log, knob.kind == "int"))


def _command(request: TuneRequest, scenario: Scenario, wider: Mapping[str, str]) -> str:
    spaces = {knob.field: _text(knob) for knob in request.space} | dict(wider)
    options: list[tuple[str, Any]] = [
        *(("--space", f"{field}={values}") for field, values in spaces.items()),
        ("--policies", None if request.policies is None else ",".join(request.policies)),
        *((f"--{name.replace('_', '-')}", bound) for name, bound in request.constraints.described().items()),
        *(("--other-trace", each) for each in request.worlds.traces),
        *(("--drift", f"{each:g}") for each in request.worlds.drifts),
        *(("--cost-profile", named(str(each))) for each in request.worlds.cost_profiles),
        ("--cost-worlds", request.worlds.cost_worlds or None),
    ]
    plain = TuneRequest(request.scenario)
    for name in _KEPT:
        value = getattr(request, name)
        options.append((f"--{name.replace('_', '-')}", None if value == getattr(plain, name) else value))
    words = [word for option, value in options if value is not None for word in (option, str(value))]
    return scenario_command("tune", scenario, request.overrides, [*words, "--trials", str(request.trials)])


def _text(knob: Knob) -> str:
    if knob.kind == "choice":
        return ",".join(one if isinstance(one, str) else show_value(one) for one in knob.choices)
    ends = (int(knob.low), int(knob.high)) if knob.kind == "int" else (float(knob.low), float(knob.high))
    return f"{ends[0]}..{ends[1]}" + (":log" if knob.log else "")
