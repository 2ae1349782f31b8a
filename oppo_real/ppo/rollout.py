"""A finished and scored rollout, as PPO gets it."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from oppo_sim.errors import OppoError


class TokenRow(NamedTuple):
    """One sequence of token ids; only the response is trained."""

    prompt: tuple[int, ...]
    response: tuple[int, ...]

    @property
    def length(self) -> int:
        """Of both, tokens."""
        return len(self.prompt) + len(self.response)


@dataclass(frozen=True)
class TrainRollout:
    """Raises OppoError where the lengths disagree or a number is not finite."""

    rollout_id: int
    prompt: tuple[int, ...]
    """Token ids, at least one."""
    response: tuple[int, ...]
    """Token ids, at least one; the stop token is the last if there is one."""
    log_probs: tuple[float, ...]
    """Of the response tokens, under the weights and temperature that they were sampled with."""
    weight_versions: tuple[int, ...]
    """Of the weights that made each response token; never falling."""
    score: float
    finish_reason: Literal["stop", "length"]
    ref_log_probs: tuple[float, ...] | None = None
    """Of the response tokens under the reference model, where the scorer already ran it over the pieces."""

    def __post_init__(self) -> None:
        where = f"rollout {self.rollout_id}"
        if not self.prompt or not self.response:
            raise OppoError(
                f"{where}: prompt and response need at least one token each, got {len(self.prompt)} and"
                f" {len(self.response)}"
            )
        for name in ("log_probs", "weight_versions", "ref_log_probs"):
            numbers = getattr(self, name)
            if numbers is not None and len(numbers) != len(self.response):
                raise OppoError(
                    f"{where}: {len(numbers)} {name} for {len(self.response)} response tokens; give one each"
                )
        if not all(map(math.isfinite, (self.score, *self.log_probs, *(self.ref_log_probs or ())))):
            raise OppoError(
                f"{where}: its score or a log-probability is not finite; look at the reward model or at the"
                " sampling"
            )
        if any(late < early for early, late in pairwise(self.weight_versions)):
            raise OppoError(
                f"{where}: weight_versions fall within the response; list tokens as they were made"
            )

    @property
    def row(self) -> TokenRow:
        """Its tokens."""
        return TokenRow(self.prompt, self.response)
