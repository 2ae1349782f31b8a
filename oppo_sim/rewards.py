"""Mean rewards of trained batches, for the controllers: a curve with noise, a recorded series, or the trace's
own column."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from oppo_sim.costs.formulas import added
from oppo_sim.draws import draw_normal, stream_key
from oppo_sim.errors import OppoError
from oppo_sim.learning import Learning, StalenessEffect, effect_of

WAY: Final = 0.9
"""From the first reward to the limit, for a curve without a target."""


class _RewardConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    staleness_effect: StalenessEffect = Field(
        "measured",
        description=(
            "what staleness and length bias cost in progress: measured (on tiny models), none, or"
            " {staleness, length_bias, spread}; for the time to a target reward, not for the controllers"
        ),
    )
    target_steps: float | None = Field(
        None, gt=0, description="on-policy steps to the target reward; null: to `target`, or the scenario's"
    )

    def steps_to_target(self) -> float | None:
        """On-policy steps to the target reward; None: the rewards say none."""
        return self.target_steps


class SaturatingRewards(_RewardConfig):
    """M_t = limit + (start − limit)·exp(−t / time_constant) + noise·N(0, 1), one draw a step."""

    kind: Literal["saturating"] = "saturating"
    start: float = Field(2.0, description="mean reward before training")
    limit: float = Field(4.5, description="mean reward it approaches")
    time_constant: float = Field(200.0, gt=0, description="steps until 63 % of the way")
    noise: float = Field(0.05, ge=0, description="standard deviation of a batch's mean")
    target: float | None = Field(
        None, description="mean reward to reach; null: 90 % of the way from start to limit"
    )

    @model_validator(mode="after")
    def _reachable(self) -> "SaturatingRewards":
        low, high = sorted((self.start, self.limit))
        if self.target is not None and not low < self.target < high:
            raise ValueError(
                f"target {self.target} is never reached: give a reward between start {self.start} and limit"
                f" {self.limit}"
            )
        return self

    def steps_to_target(self) -> float | None:
        if self.target_steps is not None or self.start == self.limit:
            return self.target_steps
        left = 1 - WAY if self.target is None else (self.limit - self.target) / (self.limit - self.start)
        return -self.time_constant * math.log(left)


class SeriesRewards(_RewardConfig):
    """A recorded series, one value a step; the last one is repeated."""

    kind: Literal["series"] = "series"
    values: tuple[float, ...] = Field(min_length=1)


class TraceRewards(_RewardConfig):
    """The mean of the trace's reward column over the trained batch."""

    kind: Literal["trace"] = "trace"


class NoRewards(_RewardConfig):
    """No rewards: a controlled overcommit keeps its first value."""

    kind: Literal["none"] = "none"


RewardConfig = Annotated[
    SaturatingRewards | SeriesRewards | TraceRewards | NoRewards, Field(discriminator="kind")
]


def learning_of(config: RewardConfig, steps: int) -> Learning:
    """How far runs have to go, and what staleness costs them; where the rewards name no target, as far as
    ``steps`` on-policy steps go."""
    return Learning(config.steps_to_target() or float(steps), effect_of(config.staleness_effect))


class BatchRewards:
    """Answers the mean reward of the batch trained in a step."""

    def __init__(self, config: RewardConfig, seed: int, trace_rewards: Sequence[float] | None) -> None:
        if isinstance(config, TraceRewards) and trace_rewards is None:
            raise OppoError(
                "rewards.kind is 'trace' but the trace has no reward column: add one, or choose saturating,"
                " series or none"
            )
        self._config = config
        self._key = stream_key(seed, "reward")
        self._trace_rewards = trace_rewards

    @property
    def by_row(self) -> Sequence[float] | None:
        """Rewards of the trace's rows where the mean depends on which rows were trained; None where the step
        alone decides."""
        return self._trace_rewards if isinstance(self._config, TraceRewards) else None

    def batch_mean(self, step: int, trace_rows: Sequence[int]) -> float | None:
        """Mean reward of the batch trained in ``step``, whose rollouts replay ``trace_rows``."""
        rewards = self.by_row
        if rewards is None:
            return _step_mean(self._config, self._key, step)
        return added(rewards[row] for row in trace_rows) / len(trace_rows)

    def step_means(self, steps: int) -> Sequence[float | None]:
        """``batch_mean`` of steps 0 to ``steps`` − 1 where the step alone decides (``by_row`` is None)."""
        return _step_means(self._config, self._key, steps)


def _step_mean(config: RewardConfig, key: int, step: int) -> float | None:
    if isinstance(config, SaturatingRewards):
        mean = config.limit + (config.start - config.limit) * math.exp(-step / config.time_constant)
        return mean + config.noise * draw_normal(key, step) if config.noise else mean
    if isinstance(config, SeriesRewards):
        return config.values[min(step, len(config.values) - 1)]
    return None


# Runs of a sweep or a comparison share their seeds.
@lru_cache(maxsize=64)
def _step_means(config: RewardConfig, key: int, steps: int) -> tuple[float | None, ...]:
    return tuple(_step_mean(config, key, step) for step in range(steps))
