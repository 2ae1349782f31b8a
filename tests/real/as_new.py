"""What ``reset`` promises, of any engine."""

from __future__ import annotations

import pytest

from oppo_real.engines.interface import Actor, ActorCounts, Request, ScorePiece, Scorer


def check_as_new(actor: Actor, scorer: Scorer) -> None:
    """Both do after ``reset`` what they did at first, half-done work in between or not."""

    def generate() -> list[tuple[int, tuple[int, ...]]]:
        actor.submit([Request(i, (1, 2, 3 + i), 6) for i in range(3)])
        found = []
        while news := actor.step():
            found += [(new.rollout_id, new.tokens) for new in news]
        return found

    def score() -> dict[int, float]:
        scorer.append([ScorePiece(i, tuple(range(1, 40)), False) for i in range(3)])
        return scorer.append([ScorePiece(i, (7, 8, 9 + i), True) for i in range(3)])

    tokens, scores = generate(), score()
    counts = actor.counts(), scorer.counts()
    actor.submit([Request(7, (5, 6), 6)])
    actor.step()
    scorer.append([ScorePiece(1, tuple(range(1, 40)), False)])
    for engine in (actor, scorer):
        engine.reset()
    assert actor.running() == ()
    assert actor.counts() == ActorCounts()
    assert scorer.counts().prefilled == 0
    assert generate() == tokens
    assert score() == pytest.approx(scores, abs=1e-5)
    assert (actor.counts(), scorer.counts()) == counts
