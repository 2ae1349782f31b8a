"""A rollout of a TRL run: what the ledger keeps of it, its tokens, and how far the scorer has seen it."""

from collections.abc import Sequence

from oppo_real.engines.interface import NewTokens, Request, ScorePiece
from oppo_sim.schedule.rollout import RolloutState

_ATTEMPT_SHIFT = 40


class TrlRollout(RolloutState):
    """Prompt and response as token ids, without padding."""

    __slots__ = (
        "_attempt",
        "_cut",
        "_prompt_sent",
        "held",
        "log_probs",
        "next_cut",
        "pad_at",
        "prompt",
        "score",
        "submitted",
        "tokens",
        "truncated",
        "versions",
    )

    def __init__(self, rollout_id: int, prompt: tuple[int, ...], admitted_step: int) -> None:
        super().__init__(rollout_id, rollout_id, len(prompt), admitted_step)
        self.prompt = prompt
        self._attempt = 0
        self._blank()

    def _blank(self) -> None:
        self.tokens: list[int] = []
        self.log_probs: list[float] = []
        self.versions: list[int] = []
        """Weight version of each token."""
        self.score: float | None = None
        self.truncated = False
        """It ended at ``response_length``, without a stop token."""
        self.pad_at: int | None = None
        """Position of the first padding token that the policy itself sampled: TRL takes the response to end
        before it."""
        self.submitted = False
        self.held = False
        self.next_cut = 0
        """Response tokens at which the next piece is cut; 0 before the first is planned."""
        self._cut = 0
        self._prompt_sent = False

    def restart(self) -> None:
        """Forget everything generated (a dropped rollout that runs again)."""
        super().restart()
        self._attempt += 1
        self._blank()

    @property
    def key(self) -> int:
        """What the scorer calls it: another name each time it is scored from the beginning."""
        return self._attempt << _ATTEMPT_SHIFT | self.rollout_id

    def take(self, new: NewTokens, pad_token_id: int) -> None:
        """Append what the actor made."""
        for token in new.tokens:
            if token == pad_token_id and self.pad_at is None:
                self.pad_at = len(self.tokens)
            self.tokens.append(token)
        self.log_probs.extend(new.log_probs)
        self.versions.extend([new.weight_version] * len(new.tokens))
        self.generated = len(self.tokens)
        self.truncated = new.finish_reason == "length"

    def take_whole(self, tokens: Sequence[int], version: int, truncated: bool) -> None:
        """The whole response at once."""
        self.tokens = list(tokens)
        self.versions = [version] * len(self.tokens)
        self.generated = len(self.tokens)
        self.truncated = truncated

    def request(self, max_response_length: int) -> Request:
        """For the actor."""
        return Request(self.rollout_id, self.prompt, max_response_length, generated=tuple(self.tokens))

    def piece(self, last: bool) -> tuple[ScorePiece | None, int | None]:
        """The tokens that the scorer has not seen, and the key that it must forget first; None where there is
        nothing.

        The scorer sees a response up to its first padding token, which is where TRL reads the score.
        """
        seen = self.pad_at if self.pad_at is not None else len(self.tokens)
        new = tuple(self.tokens[self._cut : seen])
        if not self._prompt_sent:
            new = (*self.prompt, *new)
        forget = None
        if not new:
            if not last:
                return None, None
            # The padding token came right behind a cut: what was to be the last piece is empty, so the whole
            # is sent once more.
            forget = self.key
            self._attempt += 1
            new = (*self.prompt, *self.tokens[:seen])
        self._prompt_sent = True
        self._cut = seen
        return ScorePiece(self.key, new, last), forget
