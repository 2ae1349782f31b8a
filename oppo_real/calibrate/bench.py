"""The engines that a calibration measures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from oppo_real.engines.interface import Actor, Scorer
from oppo_sim.draws import stream_key

if TYPE_CHECKING:
    import torch

    from oppo_real.ppo.rollout import TrainRollout


@dataclass
class Bench:
    """The engines under measurement, warm after ``warm_up``; ids and versions rise from visit to visit."""

    actor: Actor
    scorer: Scorer
    update: "Callable[[Sequence[TrainRollout], int], Mapping[str, float]]"
    """A training update as ``PPOTrainer.update``; returns ``timing_s/*``."""
    weights: "Callable[[], Mapping[str, torch.Tensor]]"
    vocab_size: int
    max_length: int
    """Prompt and response together, tokens."""
    synchronize: Callable[[], None]
    """Waits for everything queued on the device."""
    actor_busy: "Callable[[Callable[[], object]], float | None] | None" = None
    """``device.busy_seconds`` of the actor's GPU; None: it has none."""
    scorer_busy: "Callable[[Callable[[], object]], float | None] | None" = None
    scorer_with_ref: Scorer | None = None
    """A scorer that runs the reference model too."""
    inline: bool = False
    """A run's engines work in the driver's process: no messages go to and fro."""
    enter_thread: Callable[[], None] = lambda: None
    """To be called first in another thread that is to use the engines."""
    close: Callable[[], None] = lambda: None
    """Frees the engines."""
    next_id: int = 0
    version: int = 0

    def take_ids(self, count: int) -> range:
        """Fresh rollout ids."""
        first, self.next_id = self.next_id, self.next_id + count
        return range(first, self.next_id)

    def given_before(self, scorer: Scorer, past: int) -> int:
        """Tokens of a rollout to give a scorer that is to prefill ``past``: of whole blocks one is over."""
        return past + (past > 0 and scorer.resolved_config().get("prefill_block_tokens", 1) > 1)

    def tokens(self, rollout_id: int, count: int) -> tuple[int, ...]:
        """Token ids by a hash of the rollout id."""
        drawn = np.random.default_rng(stream_key(rollout_id, "calibrate/tokens")).integers(
            self.vocab_size, size=count
        )
        return tuple(drawn.tolist())
