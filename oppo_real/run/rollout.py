"""A rollout with real tokens."""

from oppo_real.engines.interface import Answer, Request
from oppo_real.ppo.rollout import TrainRollout
from oppo_sim.model.rollout import Rollout
from oppo_sim.turns import ToolWait


class RealRollout(Rollout):
    """The simulator's record of a rollout (so that both make the same rows), plus what it really consists
    of."""

    __slots__ = (
        "answer_at",
        "answers",
        "finish_reason",
        "forced_length",
        "host",
        "log_probs",
        "prompt",
        "ref_log_probs",
        "score",
        "tail",
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
        waits: tuple[ToolWait, ...],
        answers: tuple[tuple[int, ...], ...] = (),
    ) -> None:
        """``forced_length``: the response length to replay, tokens; None: the engine decides. ``waits`` for
        tools, and what is answered, token ids, one entry a wait."""
        super().__init__(
            rollout_id, group_id, len(prompt), forced_length or 0, trace_row, admitted_step, admitted_s, waits
        )
        self.prompt = prompt
        self.forced_length = forced_length
        self.answers = answers

    def _begin(self) -> None:
        super()._begin()
        self.host = -1
        """Replica whose engine knows it, or that it goes back to when its tool has answered; -1: none."""
        self.answer_at: float | None = None
        """When its tool answers (the last one), seconds since the run began."""
        self.tokens: list[int] = []
        self.tail: list[int] = []
        """Response with the answers of tools in their places."""
        self.log_probs: list[float] = []
        self.versions: list[int] = []
        self.score: float | None = None
        self.ref_log_probs: tuple[float, ...] | None = None
        self.finish_reason: str | None = None

    def take_tokens(self, tokens: tuple[int, ...], log_probs: tuple[float, ...], version: int) -> None:
        """What it made under the weights of ``version``."""
        self.tokens.extend(tokens)
        self.tail.extend(tokens)
        self.log_probs.extend(log_probs)
        self.versions.extend([version] * len(tokens))
        self.generated = len(self.tokens)
        if tokens:
            self.unseen = 0

    def take_answer(self) -> None:
        self.tail.extend(self.answers[self.turns_done])
        super().take_answer()

    def request(self, max_response_length: int) -> Request:
        """For an engine, to go on with it."""
        given = zip(self.waits, self.answers[: self.turns_done], strict=False)
        calls = self.turns_done < len(self.waits)
        return Request(
            self.rollout_id,
            self.prompt,
            max_response_length,
            self.forced_length,
            tuple(self.tokens),
            tuple([Answer(wait.after, tokens) for wait, tokens in given]),
            self.waits[self.turns_done].after if calls else None,
            self.unseen,
            self.drops << 40 | self.group_id,
        )

    def span_of(self, start: int, count: int) -> tuple[int, ...]:
        """``count`` token ids from position ``start`` of its context."""
        known = len(self.prompt)
        return (
            *self.prompt[start : start + count],
            *self.tail[max(0, start - known) : max(0, start + count - known)],
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
