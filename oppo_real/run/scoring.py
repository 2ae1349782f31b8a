"""Which worker scores which piece: the simulator's rules (docs/model.md §3.4, C8, C9), over workers that
really run."""

from oppo_real.engines.interface import ScorePiece
from oppo_real.placement.events import QueuedPiece, Scored
from oppo_real.placement.interface import WorkerGroup
from oppo_real.run.rollout import RealRollout


class ScoringRouter:
    """Takes pieces as they are cut, assigns them to workers, and remembers what each has to do."""

    def __init__(self, worker_group: WorkerGroup, num_workers: int, kv_capacity_tokens: int | None) -> None:
        self._worker_group = worker_group
        self._capacity = kv_capacity_tokens
        self._inbox: list[tuple[int, int, RealRollout, int, int, bool]] = []
        self._load = [0] * num_workers
        self._held = [0] * num_workers
        self._open: list[dict[int, list[int]]] = [{} for _ in range(num_workers)]
        self._awaiting: dict[int, RealRollout] = {}
        self.pieces = 0
        """Handed to workers since it was last set to 0."""

    def hand_over(self, rollout: RealRollout, last: bool) -> None:
        """A piece: what the rollout has made since its last cut, with the prompt if it is the first."""
        new, past = rollout.take_piece()
        self._inbox.append((rollout.rollout_id, len(self._inbox), rollout, new, past, last))

    def settle(self) -> None:
        """Send what was handed over, in order of ids."""
        batches: dict[int, list[QueuedPiece]] = {}
        for _, _, rollout, new, past, last in sorted(self._inbox, key=lambda entry: entry[:2]):
            self._assign(rollout, new, past, last, batches)
        self._inbox.clear()
        for worker, pieces in batches.items():
            self._worker_group.score(worker, pieces)

    def ended(self, event: Scored) -> list[RealRollout]:
        """Account a finished batch; returns the rollouts that have their score now."""
        worker = event.worker
        for key, tokens in event.pieces:
            waiting = self._open[worker].get(key)
            if waiting is not None:
                waiting.remove(tokens)
                self._load[worker] -= tokens
        scored = []
        for key, score in event.scores.items():
            self._open[worker].pop(key, None)
            rollout = self._awaiting.pop(key, None)
            if rollout is None:
                continue  # it was dropped meanwhile
            rollout.score = score
            rollout.ref_log_probs = event.ref_log_probs.get(key)
            rollout.scored_at = event.at
            self._held[worker] -= rollout.held_by_scorer
            rollout.held_by_scorer = 0
            scored.append(rollout)
        return scored

    def forget(self, rollout: RealRollout) -> None:
        """Remove a dropped rollout."""
        self._inbox = [entry for entry in self._inbox if entry[2] is not rollout]
        self._awaiting.pop(rollout.key, None)
        if rollout.worker < 0:
            return
        worker = rollout.worker
        self._load[worker] -= sum(self._open[worker].pop(rollout.key, ()))
        self._held[worker] -= rollout.held_by_scorer
        rollout.held_by_scorer = 0
        self._worker_group.forget(worker, [rollout.key])

    def send_again(self, rollout: RealRollout) -> None:
        """After a restart of the workers: one piece with all that was handed over before."""
        new = rollout.prompt_length + rollout.cut - rollout.withheld
        rollout.worker, rollout.held_by_scorer = -1, 0
        last = rollout.finished_at is not None and rollout.cut == len(rollout.tokens)
        if new > 0:
            self._inbox.append((rollout.rollout_id, len(self._inbox), rollout, new, 0, last))

    def _assign(
        self, rollout: RealRollout, new: int, past: int, last: bool, batches: dict[int, list[QueuedPiece]]
    ) -> None:
        load = self._load
        worker = (
            rollout.worker
            if rollout.worker >= 0
            else min(range(len(load)), key=lambda index: (load[index], index))
        )
        if self._capacity is not None:
            if not last and (rollout.withheld or self._held[worker] + new > self._capacity):
                rollout.withheld += new
                return
            if rollout.withheld:
                new, past = new + rollout.withheld, past - rollout.withheld
                rollout.withheld = 0
            self._held[worker] += new
            rollout.held_by_scorer += new
        rollout.worker = worker
        load[worker] += new
        key = rollout.key
        self._open[worker].setdefault(key, []).append(new)
        if last:
            self._awaiting[key] = rollout
        piece = ScorePiece(key, rollout.span_of(past, new), last)
        batches.setdefault(worker, []).append(QueuedPiece(piece, rollout.prompt_length))
        self.pieces += 1
