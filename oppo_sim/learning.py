"""What staleness and a selection of lengths cost in reward: how many on-policy steps a step is worth, and so
the time to a target reward. A function of a run's rows alone: nothing that a policy is told depends on it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, nan
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from oppo_sim import columns as c
from oppo_sim.draws import draw_normal, stream_key

MEASURED_FILE: Final = Path(__file__).with_name("staleness_effect.json")
OWN_DRAWS: Final = 64
"""Of an effect that a user gives with a spread."""


class OwnEffect(BaseModel):
    """An effect of the user's own."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    staleness: float = Field(
        0.0, ge=0, description="a: a rollout of s updates is worth exp(−a·s) of a fresh one"
    )
    length_bias: float = Field(
        0.0, ge=0, description="b: a length bias of x (a share) leaves exp(−b·|x|) of the progress"
    )
    spread: float = Field(
        0.0, ge=0, le=3, description="standard deviation of the logarithm of both; 0: they are exact"
    )


StalenessEffect = Literal["measured", "none"] | OwnEffect


class Strength(NamedTuple):
    """Of the effect; both at least 0."""

    staleness: float
    """a: lost per update of staleness, on the log scale."""
    length_bias: float
    """b: lost per unit of length bias, on the log scale."""


@dataclass(frozen=True)
class Effect:
    """What is known of the effect."""

    strength: Strength
    draws: tuple[Strength, ...]
    """Of what is unknown about it; empty: it is exact."""
    sentence: str
    """Where it comes from."""

    def drawn(self, number: int) -> Strength:
        """A draw, in turn; the strength itself where it is exact."""
        return self.draws[number % len(self.draws)] if self.draws else self.strength


NO_EFFECT: Final = Effect(
    Strength(0.0, 0.0), (), "staleness is taken to cost no reward (staleness_effect: none)"
)


def progress(shares: Sequence[float], length_bias: float, strength: Strength) -> float:
    """On-policy steps that a step is worth, 0 to 1: Σ_s share_s · exp(−a·s) · exp(−b·|bias|).

    ``shares``: of the trained rollouts with staleness 0, 1, … updates, adding up to 1; ``length_bias``: mean
    response length trained over that of training on policy, minus 1.
    """
    kept = sum(share * exp(-strength.staleness * stale) for stale, share in enumerate(shares))
    return kept * exp(-strength.length_bias * abs(length_bias))


def effect_of(given: StalenessEffect) -> Effect:
    """As a scenario says it."""
    if given == "none":
        return NO_EFFECT
    if given == "measured":
        return measured_effect()
    assert isinstance(given, OwnEffect)
    strength = Strength(given.staleness, given.length_bias)
    key = stream_key(0, "staleness effect")
    spreads = [given.spread * draw_normal(key, number) for number in range(OWN_DRAWS if given.spread else 0)]
    draws = tuple(Strength(*(value * exp(spread) for value in strength)) for spread in spreads)
    return Effect(strength, draws, f"effect of staleness on reward: the scenario's own ({_text(strength)})")


@cache
def measured_effect() -> Effect:
    """That of experiments/staleness: real PPO on tiny models."""
    found = json.loads(MEASURED_FILE.read_text("utf-8"))
    draws = tuple(Strength(*map(float, pair)) for pair in found["draws"])
    strength = Strength(float(found["staleness"]), float(found["length_bias"]))
    return Effect(
        strength,
        draws,
        f"effect of staleness on reward: measured on tiny models in {found['runs']} runs of real PPO"
        f" ({_text(strength)}), unproven at scale: set rewards.staleness_effect to what you know",
    )


@dataclass(frozen=True)
class Learning:
    """How far a run has to go, and what its steps are worth."""

    target_steps: float
    """On-policy steps to the target reward."""
    effect: Effect

    @property
    def sentence(self) -> str:
        """What times to the target reward rest on."""
        return f"to the target reward: {self.target_steps:,.0f} on-policy steps; {self.effect.sentence}"

    def record(self) -> dict[str, float | str]:
        """For manifests."""
        return {
            "target_steps": self.target_steps,
            **self.effect.strength._asdict(),
            "draws": len(self.effect.draws),
            "sentence": self.sentence,
        }

    def progress(self, totals: Mapping[Any, Any], draw: int | None = None) -> float:
        """Of a run, from its totals (``runs.evaluate``); under a draw of the effect, or at its strength. NaN
        where nothing was trained.

        A selection of lengths is what differs from the rollouts that sequential training takes: how their
        mean scatters about the trace's is none."""
        strength = self.effect.strength if draw is None else self.effect.drawn(draw)
        shares = [float(totals[c.share("staleness", stale)]) for stale in range(c.LAST_SHARE + 1)]
        bias = float(totals[c.RUN_LENGTH_MEAN] / totals[c.ON_POLICY_LENGTH_MEAN] - 1.0)
        return progress(shares, bias, strength)

    def seconds(self, totals: Mapping[Any, Any], draw: int | None = None) -> float:
        """To the target reward at the mean seconds of a step after the warm-up."""
        worth = self.progress(totals, draw)
        return self.target_steps * float(totals[c.TIMING_STEP]) / worth if worth > 0 else nan

    def columns(self, totals: Mapping[Any, Any]) -> dict[str, float]:
        """Further totals of the run."""
        return {c.PROGRESS: self.progress(totals), c.TIME_TO_REWARD_S: self.seconds(totals)}


ONE_STEP: Final = Learning(1.0, NO_EFFECT)
"""A step on policy, whatever it trains."""


def _text(strength: Strength) -> str:
    lost = 100 * (1 - exp(-strength.staleness))
    biased = 100 * (1 - exp(-0.1 * strength.length_bias))
    return f"{lost:.3g} % of progress an update, {biased:.2g} % at a length bias of 10 %"
