"""Phases of a policy with real tokens: continuous decoding token by token, pieces to the scorer meanwhile,
carried rollouts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from oppo_real.engines.interface import Actor
from oppo_real.trl_client.batches import PaddedBatch, pad_batch
from oppo_real.trl_client.rollout import TrlRollout
from oppo_real.trl_client.scoring import Scoring
from oppo_real.trl_client.steps import Steps
from oppo_sim.schedule.ledger import Begun


@dataclass(frozen=True)
class GenerationSettings:
    """What does not change during a run."""

    max_response_length: int
    pad_token_id: int
    device: torch.device
    clear_kv_cache_on_weight_sync: bool


class Generation:
    """Actor and scorer of one run, driven by the ledger."""

    def __init__(
        self,
        steps: Steps,
        actor: Actor,
        scoring: Scoring | None,
        weights: Callable[[], Mapping[str, torch.Tensor]],
        settings: GenerationSettings,
    ) -> None:
        """``scoring``: None leaves scoring to TRL's loop (``batch`` granularity). ``weights``: of the trained
        policy, now."""
        self._steps = steps
        self._actor = actor
        self._scoring = scoring
        self._weights = weights
        self._settings = settings
        self._awaiting: dict[int, TrlRollout] = {}
        """By the scorer's key: rollouts whose last piece is with the scorer."""
        self._chunks = steps.policy.score_granularity == "chunk"
        self._rounds = steps.policy.stop_check == "chunk"
        self._chunk_size = 1

    def next_batch(self) -> PaddedBatch:
        """One phase: admit, decode until its end, select, and wait for the scores of the selected."""
        steps = self._steps
        counts = self._actor.counts()
        scored = 0 if self._scoring is None else self._scoring.tokens
        with steps.watch.stage("gen"):
            begun = steps.begin()
            self._chunk_size = begun.plan.chunk_size
            self._place(begun)
            self._decode()
            outcome = steps.end_phase()
            self._forget(outcome.dropped)
        with steps.watch.stage("reward"):
            self._await_scores(outcome.trained)
        done = self._actor.counts()
        steps.work.decoded = done.decoded - counts.decoded
        steps.work.recomputed = done.recomputed - counts.recomputed
        steps.work.scored = 0 if self._scoring is None else self._scoring.tokens - scored
        return pad_batch(outcome.trained, self._settings.pad_token_id, self._settings.device)

    def update_weights(self) -> None:
        """Bring the trained weights to the actor, as the next version."""
        steps = self._steps
        with steps.watch.stage("update_weights"):
            self._actor.load_weights(
                self._weights(), steps.version + 1, not self._settings.clear_kv_cache_on_weight_sync
            )

    def close(self) -> None:
        """Free everything."""
        self._actor.close()
        if self._scoring is not None:
            self._scoring.close()

    # ---- decoding ------------------------------------------------------------------------------------------

    def _place(self, begun: Begun[TrlRollout]) -> None:
        """New and held rollouts to the actor, as the policy arranged them."""
        hold = begun.arrangement.hold
        waiting = [
            rollout for rollout in self._steps.ledger.unfinished.values() if rollout.finished_at is None
        ]
        new = [rollout for rollout in waiting if not rollout.submitted]
        self._actor.submit([rollout.request(self._settings.max_response_length) for rollout in new])
        for rollout in new:
            rollout.submitted = True
        changed = [rollout for rollout in waiting if rollout.held != (rollout.rollout_id in hold)]
        self._actor.hold([rollout.rollout_id for rollout in changed if not rollout.held])
        self._actor.resume([rollout.rollout_id for rollout in changed if rollout.held])
        for rollout in changed:
            rollout.held = not rollout.held

    def _decode(self) -> None:
        ledger = self._steps.ledger
        while not ledger.phase_over():
            made: dict[int, TrlRollout] = {}
            for _ in range(self._chunk_size if self._rounds else 1):
                found = self._iterate()
                if not found:
                    break
                made.update((rollout.rollout_id, rollout) for rollout in found)
            assert made, "nothing is left to decode, but the phase has not ended"
            if self._scoring is not None:
                self._cut(self._scoring, [made[rollout_id] for rollout_id in sorted(made)])
                self._note(self._scoring.poll())

    def _iterate(self) -> list[TrlRollout]:
        """One token for every running rollout; returns them."""
        steps = self._steps
        made = self._actor.step()
        at = steps.watch.now()
        rollouts = []
        for new in made:
            rollout = steps.ledger.unfinished[new.rollout_id]
            if not rollout.next_cut:
                rollout.next_cut = self._chunk_size
            rollout.take(new, self._settings.pad_token_id)
            if new.finish_reason is not None:
                steps.ledger.finish(rollout, at, steps.version)
                steps.ledger.ready(rollout, at)
            rollouts.append(rollout)
        return rollouts

    # ---- scoring -------------------------------------------------------------------------------------------

    def _cut(self, scoring: Scoring, rollouts: Sequence[TrlRollout]) -> None:
        """Send what is to be scored now: the finished, and with ``chunk`` what has reached its cut (in
        rounds: what was made)."""
        pieces = []
        for rollout in rollouts:
            last = rollout.finished_at is not None
            due = self._chunks and (self._rounds or rollout.generated >= rollout.next_cut)
            if not (last or due):
                continue
            rollout.next_cut = rollout.generated + self._chunk_size
            piece, forget = rollout.piece(last)
            if forget is not None:
                scoring.forget([forget])
            if piece is not None:
                pieces.append(piece)
            if last:
                self._awaiting[rollout.key] = rollout
        if pieces:
            scoring.send(pieces)

    def _note(self, scores: Mapping[int, float]) -> None:
        for key, score in scores.items():
            rollout = self._awaiting.pop(key, None)
            if rollout is not None:  # else it was dropped meanwhile
                rollout.score = score

    def _await_scores(self, batch: Sequence[TrlRollout]) -> None:
        if self._scoring is None:
            return
        while any(rollout.score is None for rollout in batch):
            self._note(self._scoring.wait())

    def _forget(self, dropped: Sequence[TrlRollout]) -> None:
        self._actor.abort([rollout.rollout_id for rollout in dropped])
        for rollout in dropped:
            self._awaiting.pop(rollout.key, None)
        if self._scoring is not None and dropped:
            self._scoring.forget([rollout.key for rollout in dropped])
