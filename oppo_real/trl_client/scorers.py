"""Scorers as TRL reads a response."""

from collections.abc import Sequence
from typing import Any

from oppo_real.engines.interface import ReferenceStream, ScorePiece, Scorer, ScorerCounts


class ResponseScorer:
    """A reward model that sees a response up to the first padding token that the policy itself sampled: there
    TRL takes it to end, and there it reads the score."""

    def __init__(self, scorer: Scorer, pad_token_id: int) -> None:
        self._scorer = scorer
        self._pad = pad_token_id
        self._seen: dict[int, list[int]] = {}
        self._ended: set[int] = set()
        self.release = scorer.release
        self.counts = scorer.counts
        self.resolved_config = scorer.resolved_config
        self.close = scorer.close

    def append(self, pieces: Sequence[ScorePiece]) -> dict[int, float]:
        shown: list[ScorePiece] = []
        for piece in pieces:
            key = piece.rollout_id
            seen = self._seen.setdefault(key, [])
            new = () if key in self._ended else piece.tokens
            if self._pad in new:
                new = new[: new.index(self._pad)]
                self._ended.add(key)
            seen.extend(new)
            if piece.last:
                if not new:
                    # The padding token came right behind a cut, so nothing is left to read a score from: the
                    # whole once more.
                    self._scorer.release([key])
                    shown = [other for other in shown if other.rollout_id != key]
                    new = tuple(seen)
                del self._seen[key]
                self._ended.discard(key)
            if new:
                shown.append(ScorePiece(key, new, piece.last))
        return self._scorer.append(shown) if shown else {}

    def reset(self) -> None:
        self._seen.clear()
        self._ended.clear()
        self._scorer.reset()

    def reference_stream(self) -> ReferenceStream | None:
        return None


class LoopScores:
    """In place of a scorer where TRL's loop scores the batch: it has nothing to say."""

    def append(self, pieces: Sequence[ScorePiece]) -> dict[int, float]:
        return {piece.rollout_id: 0.0 for piece in pieces if piece.last}

    def release(self, rollout_ids: Sequence[int]) -> None:
        pass

    def reference_stream(self) -> ReferenceStream | None:
        return None

    def counts(self) -> ScorerCounts:
        return ScorerCounts()

    def reset(self) -> None:
        pass

    def resolved_config(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass
