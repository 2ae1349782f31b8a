"""What the driver asks of the machines that decode and score, wherever they are."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from oppo_real.placement.events import Event, Job, QueuedPiece, Rested

if TYPE_CHECKING:
    import torch


class WorkerGroup(Protocol):
    """Replicas and scoring workers. But for ``join``, everything about rollouts is asked while the replicas
    rest."""

    @property
    def concurrent(self) -> bool:
        """Replicas and scorers work while the driver does something else."""

    def now(self) -> float:
        """Seconds since the run began (lock-step: iterations)."""

    def submit(self, replica: int, jobs: Sequence[Job]) -> None:
        """Give rollouts to a replica."""

    def join(self, replica: int, jobs: Sequence[Job]) -> None:
        """Give rollouts to a replica while generation goes on: they join when its iteration in progress has
        ended, or at once, where it had nothing to do."""

    def set_alarm(self, rollout_id: int, at: float) -> None:
        """Send ``Answered`` at ``at`` (seconds since the run began; lock-step: iterations)."""

    def cancel_alarm(self, rollout_id: int) -> None:
        """Do not; one that has no alarm is no error."""

    def abort(self, replica: int, rollout_ids: Sequence[int]) -> None:
        """Take rollouts from a replica; their KV is freed."""

    def generate(self, chunk_size: int, round_size: int | None) -> None:
        """All replicas decode from now on (``round_size``: that many iterations each); each sends ``Rested``
        in the end."""

    def stop(self) -> Sequence[Event]:
        """Iterations in progress complete, no other begins. Returns what is known of it at once."""

    def rests(self, event: Rested) -> bool:
        """The replica still rests: nobody has joined it since, not even while the events before this one were
        handled."""

    def score(self, worker: int, pieces: Sequence[QueuedPiece]) -> None:
        """Queue pieces at a scoring worker."""

    def forget(self, worker: int, keys: Sequence[int]) -> None:
        """Rollouts that will not be scored."""

    def load_weights(self, weights: "Mapping[str, torch.Tensor]", version: int, keep_kv: bool) -> None:
        """New weights in every replica; returns when they are there."""

    def events(self, timeout: float | None = None) -> list[Event]:
        """What happened, waiting for it (at most ``timeout`` seconds); empty only after a timeout or
        ``wake``, or where the caller of the run has to act first.

        Raises OppoError when a worker failed, with its own error.
        """

    def wake(self) -> None:
        """Called by another thread: ``events`` returns before its timeout."""

    def resolved_configs(self) -> dict[str, Any]:
        """What the engines really run with: lists under ``actors`` and ``scorers``."""

    def close(self) -> None:
        """End everything."""
