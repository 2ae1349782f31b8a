"""A rollout with real tokens."""

from oppo_real.ppo.rollout import TrainRollout
from oppo_sim.model.rollout import Rollout


class RealRollout(Rollout):
    """The simulator's record of a rollout (so that both make the same rows), plus what it really consists
    of."""

    __slots__ = (
        "finish_reason",
        "forced_length",
        "host",
        "log_probs",
        "prompt",
        "ref_log_probs",
        "score",
        "tokens",
        "versions",
    )

    def __init__(
        self,
        rollout_id: int,
        group_id: int,
        prompt: tuple[int, ...],
        forced_length: int | None,
        trace_row: int,
        admitted_step: int,
        admitted_s: float,
    ) -> None:
        """``forced_length``: the response length to replay, tokens; None: the engine decides."""
        super().__init__(
            rollout_id, group_id, len(prompt), forced_length or 0, trace_row, admitted_step, admitted_s
        )
        self.prompt = prompt
        self.forced_length = forced_length

    def _begin(self) -> None:
        super()._begin()
        self.host = -1
        """Replica whose engine knows it; -1: none does."""
        self.tokens: list[int] = []
        self.log_probs: list[float] = []
        self.versions: list[int] = []
        self.score: float | None = None
        self.ref_log_probs: tuple[float, ...] | None = None
        self.finish_reason: str | None = None

    def span_of(self, start: int, count: int) -> tuple[int, ...]:
        """``count`` token ids from position ``start`` of prompt and response."""
        known = len(self.prompt)
        return (
            *self.prompt[start : start + count],
            *self.tokens[max(0, start - known) : max(0, start + count - known)],
        )

    def for_training(self) -> TrainRollout:
        """As the trainer wants it; it must be finished and scored."""
        assert self.score is not None
        return TrainRollout(
            self.rollout_id,
            self.prompt,
            tuple(self.tokens),
            tuple(self.log_probs),
            tuple(self.versions),
            self.score,
            "length" if self.finish_reason == "length" else "stop",
            self.ref_log_probs,
        )
