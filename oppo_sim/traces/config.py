"""The ``trace:`` section of a scenario: where response lengths come from and how rollouts draw them."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_LENGTH = 10_000_000
"""Tokens; a longer prompt or response is taken for a mistake."""
LONGEST_WAIT_S = 1e6
"""For a tool; a longer wait is taken for a mistake."""

Tokens = Annotated[int, Field(ge=1, le=MAX_LENGTH)]
TokenMean = Annotated[float, Field(ge=1, le=MAX_LENGTH)]
Name = Annotated[str, Field(min_length=1)]
Distribution = Literal["lognormal", "weibull", "mixture"]

PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "lognormal": ("mu", "sigma"),
    "weibull": ("shape", "scale"),
    "mixture": ("mu_1", "sigma_1", "mu_2", "sigma_2", "weight_2"),
}
"""Parameters of each distribution; ``mu`` and ``sigma`` are mean and standard deviation of ln(tokens),
``scale`` is in tokens."""

_POSITIVE = ("sigma", "sigma_1", "sigma_2", "shape", "scale")
_TARGETS = ("mean", "p50", "p99", "clip_ratio")


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class DriftConfig(_Section):
    """How lengths change over the steps: step 0 is as the targets or parameters say, later ones are that
    times a factor."""

    kind: Literal["linear", "exponential", "table"] = Field(
        description="of the factor over steps; table: as a shipped run's step means"
    )
    last_factor: Annotated[float, Field(gt=0, le=1000)] | None = Field(
        None, description="factor of the last step; linear and exponential"
    )
    table: Name | None = Field(None, description="shipped per-step table whose mean lengths are followed")
    source: Name | None = Field(None, description="run of that table; needed if it holds several")
    smooth_steps: Annotated[int, Field(ge=1, le=10_000)] = Field(
        9, description="moving average over this many steps of the table"
    )

    @model_validator(mode="after")
    def _consistent(self) -> "DriftConfig":
        follows = self.kind == "table"
        if follows and (self.table is None or self.last_factor is not None):
            raise ValueError(
                "drift of kind table takes table (and source), not last_factor: name a shipped per-step table"
            )
        if not follows and (self.last_factor is None or self.table is not None or self.source is not None):
            raise ValueError(
                f"drift of kind {self.kind} takes last_factor, the factor of the last step, and neither table"
                " nor source"
            )
        return self


class ToolsConfig(_Section):
    """Calls of tools in a synthetic trace: a rollout with n calls has n + 1 turns, its response tokens
    divided among them at random."""

    mean_calls: Annotated[float, Field(gt=0, le=1000)] = Field(description="of a rollout, on average")
    max_calls: Annotated[int, Field(ge=1, le=1000)] = Field(
        8, description="of a rollout at most; calls are binomial with this many chances"
    )
    mean_s: Annotated[float, Field(ge=0, le=1e5)] = Field(description="seconds of a call, on average")
    p99_s: Annotated[float, Field(gt=0, le=1e6)] | None = Field(
        None, description="99 % of calls are not longer, seconds (lognormal); null: exponential"
    )
    timeout_s: Annotated[float, Field(gt=0, le=1e6)] | None = Field(
        None, description="a call ends after so many seconds; null: never cut"
    )
    mean_tokens: TokenMean = Field(64, description="of an answer, on average")
    p99_tokens: TokenMean | None = Field(
        None, description="99 % of answers are not longer (lognormal); null: all as long as mean_tokens"
    )

    @model_validator(mode="after")
    def _consistent(self) -> "ToolsConfig":
        if self.mean_calls >= self.max_calls:
            raise ValueError(
                f"mean_calls {self.mean_calls:g} is not below max_calls {self.max_calls}: raise max_calls"
            )
        if self.p99_s is not None and self.p99_s <= self.mean_s:
            raise ValueError(f"p99_s {self.p99_s:g} is not above mean_s {self.mean_s:g}: raise it")
        if self.p99_s is not None and self.mean_s == 0:
            raise ValueError("p99_s needs a mean_s above 0: leave it out where tools answer at once")
        if self.p99_tokens is not None and self.p99_tokens <= self.mean_tokens:
            raise ValueError(
                f"p99_tokens {self.p99_tokens:g} is not above mean_tokens {self.mean_tokens:g}: raise it"
            )
        return self


class SynthConfig(_Section):
    """A synthetic trace, given by targets (of the lengths after the cut at ``max_response_length``) or by
    parameters."""

    distribution: Distribution = Field(
        "lognormal", description="of the lengths before the cut; mixture: two lognormals"
    )
    mean: TokenMean | None = Field(None, description="target: mean response length, tokens")
    p50: TokenMean | None = Field(None, description="target: median response length, tokens")
    p99: TokenMean | None = Field(None, description="target: 99 % of responses are not longer, tokens")
    clip_ratio: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="target: share cut at max_response_length"
    )
    tail_weight: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="share of the longer component of a mixture with three targets; null: found"
    )
    parameters: dict[str, float] | None = Field(
        None, description="instead of targets: the distribution's own parameters"
    )
    max_response_length: Tokens | None = Field(None, description="responses are cut here; null: nowhere")
    rows: Annotated[int, Field(ge=1, le=50_000_000)] = Field(10_000, description="rollouts in the trace")
    steps: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None, description="steps the rows are spread over; null: none"
    )
    drift: DriftConfig | None = Field(None, description="change of lengths over the steps")
    samples_per_prompt: Annotated[int, Field(ge=1, le=100_000)] = Field(
        1, description="consecutive rows that share a prompt"
    )
    prompt_correlation: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0,
        description=(
            "correlation of the samples of a prompt (of their normal scores): 0 unrelated, 1 equally long"
        ),
    )
    prompt_mean: TokenMean | None = Field(
        None, description="mean prompt length, tokens; null: prompt lengths unknown"
    )
    prompt_p99: TokenMean | None = Field(
        None, description="99 % of prompts are not longer (lognormal); null: all as long as prompt_mean"
    )
    tools: ToolsConfig | None = Field(None, description="calls of tools; null: responses of one turn")
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = Field(
        0, description="of the trace's own draws, apart from the scenario's seed"
    )

    @property
    def targets(self) -> dict[str, float]:
        """The targets that are given."""
        return {name: value for name in _TARGETS if (value := getattr(self, name)) is not None}

    @model_validator(mode="after")
    def _consistent(self) -> "SynthConfig":
        targets = self.targets
        if self.parameters is not None:
            if targets:
                raise ValueError(f"give either parameters or targets ({', '.join(targets)}), not both")
            self._check_parameters(self.parameters)
        else:
            self._check_targets(targets)
        if self.tail_weight is not None and (self.distribution != "mixture" or len(targets) != 3):
            raise ValueError("tail_weight is for a mixture with three targets: remove it")
        if self.steps is not None and self.steps * self.samples_per_prompt > self.rows:
            raise ValueError(
                f"rows {self.rows} do not fill {self.steps} steps with {self.samples_per_prompt} samples of a"
                f" prompt: give at least {self.steps * self.samples_per_prompt} rows"
            )
        if self.drift is not None and (self.steps is None or self.steps < 2):
            raise ValueError("drift needs steps of at least 2: give the number of steps")
        if self.prompt_correlation and self.samples_per_prompt == 1:
            raise ValueError("prompt_correlation needs samples_per_prompt of at least 2: give it")
        if self.prompt_p99 is not None and (self.prompt_mean is None or self.prompt_p99 <= self.prompt_mean):
            raise ValueError("prompt_p99 needs a prompt_mean below it: give both")
        return self

    def _check_parameters(self, parameters: Mapping[str, float]) -> None:
        wanted = PARAMETERS[self.distribution]
        if set(parameters) != set(wanted):
            raise ValueError(
                f"parameters of {self.distribution} are {', '.join(wanted)}: give these and no other"
            )
        for name in _POSITIVE:
            if parameters.get(name, 1.0) <= 0:
                raise ValueError(f"parameters.{name} is {parameters[name]:g} but must be above 0")
        if not 0 < parameters.get("weight_2", 0.5) < 1:
            raise ValueError(
                f"parameters.weight_2 is {parameters['weight_2']:g} but must lie between 0 and 1"
            )

    def _check_targets(self, targets: Mapping[str, float]) -> None:
        allowed = (3, 4) if self.distribution == "mixture" else (2,)
        if len(targets) not in allowed:
            given = ", ".join(targets) or "none"
            needs = "three or four" if self.distribution == "mixture" else "two"
            hint = "" if len(targets) < 3 else "; distribution mixture takes three or four"
            raise ValueError(
                f"{self.distribution} needs {needs} of the targets mean, p50, p99, clip_ratio (given:"
                f" {given}){hint}"
            )
        cut = self.max_response_length
        if "clip_ratio" in targets and cut is None:
            raise ValueError("clip_ratio needs max_response_length, the length at which responses are cut")
        for name in ("mean", "p50", "p99"):
            if cut is not None and targets.get(name, 0) >= cut:
                hint = "give clip_ratio instead" if name == "p99" else "lower it, or raise the cut"
                raise ValueError(f"{name} {targets[name]:g} is not below max_response_length {cut}: {hint}")
        for low, high in (("p50", "p99"), ("mean", "p99")):
            if targets.get(low, 0) >= targets.get(high, float("inf")):
                raise ValueError(
                    f"{low} {targets[low]:g} is not below {high} {targets[high]:g}: lower {low}, or raise"
                    f" {high}"
                )
        if "clip_ratio" in targets and "p50" in targets and targets["clip_ratio"] >= 0.5:
            raise ValueError(
                f"clip_ratio {targets['clip_ratio']:g} puts the median at the cut: lower it below 0.5, or"
                " leave out p50"
            )
        if "clip_ratio" in targets and "p99" in targets and targets["clip_ratio"] >= 0.01:
            raise ValueError(
                f"clip_ratio {targets['clip_ratio']:g} puts p99 at the cut: lower it below 0.01, or leave"
                " out p99"
            )


class TraceConfig(_Section):
    """Where response lengths come from: a shipped trace, a file, or a distribution; and which row each
    rollout takes."""

    name: Name | None = Field(None, description="a shipped trace, see: oppo trace list")
    path: Name | None = Field(
        None,
        description=(
            "a trace file (.csv, .csv.gz, .parquet) or a real run's folder, relative to the scenario's folder"
        ),
    )
    synth: SynthConfig | None = Field(None, description="a synthetic trace")
    sources: Annotated[tuple[Name, ...], Field(min_length=1, strict=False)] | None = Field(
        None,
        description=(
            "keep rows whose source is one of these names or matches one of these patterns (* and ?); null:"
            " all rows"
        ),
    )
    sampling: Literal["in_order", "resample", "by_step"] = Field(
        "resample",
        description=(
            "in_order: rows cyclically; resample: drawn by the seed; by_step: rows of the step of admission"
        ),
    )
    prompt_length: Tokens | None = Field(None, description="for rows whose prompt length is unknown, tokens")
    length_factor: Annotated[float, Field(ge=0.01, le=100)] = Field(
        1.0, description="response lengths are multiplied by this, before max_response_length cuts them"
    )

    tool_seconds_factor: Annotated[float, Field(ge=0, le=1000)] = Field(
        1.0, description="waits for tools are multiplied by this; 0: tools answer at once"
    )

    @model_validator(mode="after")
    def _one_origin(self) -> "TraceConfig":
        given = [field for field in ("name", "path", "synth") if getattr(self, field) is not None]
        if len(given) != 1:
            raise ValueError(
                f"give exactly one of name, path and synth (given: {', '.join(given) or 'none'})"
            )
        if self.synth is not None and self.sources is not None:
            raise ValueError(
                "sources filters traces that pool several runs, which a synthetic one does not: remove it"
            )
        return self
