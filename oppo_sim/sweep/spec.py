"""What a sweep file may say (``format: oppo-sweep/1``); the command line fills in the same model."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from oppo_sim.errors import OppoError
from oppo_sim.runs.machine import DEFAULT_DRAWS, MOST_DRAWS
from oppo_sim.scenario.load import read_scenario_text, shipped_scenarios
from oppo_sim.scenario.problems import more_than_one, problems_of
from oppo_sim.scenario.yaml_text import parse_yaml, show_value
from oppo_sim.sweep.axes import GridAxis, SampledAxis, grid_axis, sampled_axis

FORMAT: Final = "oppo-sweep/1"
DEFAULT_SEEDS: Final = 5
DEFAULT_SAMPLES: Final = 64

Scalar = bool | int | float | str | None
Value = Scalar | list[Any] | dict[str, Any]


class SweepSpec(BaseModel):
    """A sweep: a scenario, what varies, and how each point is run."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    format: Literal["oppo-sweep/1"] = Field(FORMAT, description="version of the sweep format")
    scenario: str = Field(
        min_length=1, description="a shipped scenario, or a path that starts in the folder of this file"
    )
    overrides: dict[str, Value] = Field(
        {}, alias="set", description="fields of the scenario with one value for all points"
    )
    grid: dict[str, Value] = Field(
        {},
        description=(
            "field: its values, a list, a range (64:1024:*2, 0:32:+4) or {from: 64, to: 1024, times: 2}; all"
            " combinations run"
        ),
    )
    random: dict[str, Value] = Field(
        {},
        description=(
            "field: an interval (64..1024:log:int, or {low: 64, high: 1024, log: true, int: true}) or a list"
            " of choices"
        ),
    )
    samples: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        DEFAULT_SAMPLES,
        description="draws of the random fields together; each combination of the grid takes all of them",
    )
    sampler: Literal["random", "sobol"] = Field("random", description="how the random fields are drawn")
    sampler_seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = Field(0, description="of the draws")
    seeds: Annotated[int, Field(ge=1, le=10_000)] = Field(
        DEFAULT_SEEDS, description="seeds of every point, from the scenario's seed on"
    )
    draws: Annotated[int, Field(ge=0, le=MOST_DRAWS)] = Field(
        DEFAULT_DRAWS,
        description="draws of what is unknown about the machine, for points that may be the best; 0: none",
    )
    steps: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None, description="training steps of a run; null: the scenario's"
    )
    objective: Literal["rollouts", "speedup", "time_to_reward"] = Field(
        "rollouts",
        description=(
            "what the best point is best at: seconds a trained rollout, speed-up over its own baseline, or"
            " time to the target reward"
        ),
    )
    stop_dominated: bool = Field(
        False, description="give no further seeds to points that are significantly worse than the best so far"
    )
    practical: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description=(
            "a share: points that are worse than the best by no more than it count as not told apart from it"
        ),
    )

    @cached_property
    def grid_axes(self) -> tuple[GridAxis, ...]:
        """Raises OppoError for values that are none."""
        return tuple(grid_axis(field, given) for field, given in self.grid.items())

    @cached_property
    def sampled_axes(self) -> tuple[SampledAxis, ...]:
        """Raises OppoError for an interval that is none."""
        return tuple(sampled_axis(field, given) for field, given in self.random.items())

    @property
    def axes(self) -> tuple[GridAxis | SampledAxis, ...]:
        """All that varies: the grid's fields, then the drawn ones."""
        return (*self.grid_axes, *self.sampled_axes)

    def to_plain(self) -> dict[str, Any]:
        """As a file says it, defaults written out."""
        return self.model_dump(mode="json", by_alias=True)


def checked_spec(data: Mapping[str, Any], where: str = "the sweep") -> SweepSpec:
    """The spec that plain data says. Raises OppoError in one sentence for the first mistake."""
    if data.get("format", FORMAT) != FORMAT:
        raise OppoError(f"{where}: format is {show_value(data['format'])} but must be {FORMAT}")
    try:
        spec = SweepSpec.model_validate(dict(data))
    except ValidationError as error:
        problems = problems_of(error, dict(data), SweepSpec.model_json_schema())
        raise OppoError(f"{where}: {problems[0].sentence}{more_than_one(problems)}") from None
    if spec.steps is not None and any(axis.field == "steps" for axis in spec.axes):
        raise OppoError(f"{where}: steps are both given and varied: leave one out")
    return spec


def is_sweep_file(name_or_path: str) -> bool:
    """The argument of a command is a sweep file, not a scenario: a file whose ``format`` says so."""
    path = Path(name_or_path)
    if name_or_path in shipped_scenarios() or not path.is_file():
        return False
    data = parse_yaml(read_scenario_text(path), name_or_path)
    return isinstance(data, dict) and str(data.get("format", "")).startswith("oppo-sweep/")


def load_spec(path: str | Path, **changes: Any) -> SweepSpec:
    """Read a sweep file; ``changes`` replace what it says. A relative path of its scenario starts in its
    folder. Raises OppoError."""
    file = Path(path)
    data = parse_yaml(read_scenario_text(file), str(path))
    if not isinstance(data, dict) or "format" not in data:
        raise OppoError(f"{path} is no sweep file: start it with 'format: {FORMAT}'")
    spec = checked_spec(data | changes, str(path))
    if spec.scenario not in shipped_scenarios() and not Path(spec.scenario).is_absolute():
        return spec.model_copy(update={"scenario": str(file.parent / spec.scenario)})
    return spec


def json_schema() -> dict[str, Any]:
    """JSON schema (draft 2020-12) of sweep files."""
    schema = SweepSpec.model_json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": f"{FORMAT} sweep",
        "required": ["format", *schema["required"]],
    }
