"""TRL's own ``generate()`` as a worker group: whole batches, made when TRL's loop gets there."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from oppo_real.engines.interface import ActorCounts
from oppo_real.placement.events import Delivered, Event, Job, Rested, TokenDelta
from oppo_real.placement.inline import InlineWorkerGroup
from oppo_real.trl_client.scorers import LoopScores


class GenerateGroup(InlineWorkerGroup):
    """One replica, which is TRL's loop: its events come when ``deliver`` is called."""

    def __init__(self, max_scoring_tokens: int) -> None:
        super().__init__(
            [], [LoopScores()], stream=False, max_scoring_tokens=max_scoring_tokens, lock_step=False
        )
        self.jobs: list[Job] = []
        """What is to be generated, in order of ids."""
        self._version = 0
        self._decoded = 0
        self._delivered: list[Event] = []

    def submit(self, replica: int, jobs: Sequence[Job]) -> None:
        self.jobs.extend(jobs)

    def deliver(self, responses: Sequence[Sequence[int]], stopped: Sequence[bool]) -> None:
        """Responses to the jobs, in their order; ``generate()`` hands out all its rows when the last one is
        done. ``stopped``: with a stop token at the end."""
        at = self.now()
        deltas = []
        for job, tokens, ended in zip(self.jobs, responses, stopped, strict=True):
            reason: Any = "stop" if ended else "length"
            unknown = (0.0,) * len(tokens)  # TRL computes log-probabilities itself
            rollout_id = job.request.rollout_id
            deltas.append(TokenDelta(rollout_id, tuple(tokens), unknown, self._version, reason, True, 0, at))
            self._decoded += len(tokens)
        self.jobs.clear()
        counts = ActorCounts(decoded=self._decoded)
        self._delivered = [Delivered(0, tuple(deltas), ()), Rested(0, at, counts)]

    def rests(self, event: Rested) -> bool:
        return not self.jobs

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int, keep_kv: bool) -> None:
        self._version = version

    def events(self, timeout: float | None = None) -> list[Event]:
        events, self._delivered = self._delivered, []
        return events or self._next_turn()
