"""What a real run measures of its engines: counts of the row, busy seconds of devices, the timeline."""

from oppo_real.engines.interface import ActorCounts, ScorerCounts
from oppo_real.placement.events import Delivered, Scored
from oppo_sim.model.setup import MachineSetup
from oppo_sim.model.tally import Tally
from oppo_sim.results.spans import Marker, Span
from oppo_sim.schedule.plant import BusyReading


class Meters:
    """Grows with what the engines tell. Seconds since the run began (lock-step: iterations)."""

    def __init__(self, machine: MachineSetup, shown: tuple[int, int] | None) -> None:
        """``shown``: first and last step of the timeline; None: there is none."""
        self.spans: list[Span] = []
        self.markers: list[Marker] = []
        self.tally = Tally()
        self.training_s = 0.0
        self._timeline = shown
        self._step = 0
        self._rollout_s = [0.0] * machine.num_replicas
        self._scoring_s = [0.0] * machine.num_workers
        self._actors = [ActorCounts()] * machine.num_replicas
        self._scorers = [ScorerCounts()] * machine.num_workers

    def begin_row(self, step: int) -> None:
        """Count for the row of a step."""
        self._step = step
        self.tally = Tally()

    @property
    def shown(self) -> bool:
        """The step in progress is on the timeline."""
        return self._timeline is not None and self._timeline[0] <= self._step <= self._timeline[1]

    def read(self, at: float) -> BusyReading:
        """The busy seconds at ``at``."""
        return BusyReading(at, tuple(self._rollout_s), tuple(self._scoring_s), (self.training_s,))

    def decoded(self, event: Delivered) -> None:
        """A replica's iterations."""
        for interval in event.intervals:
            self._rollout_s[event.replica] += interval.end - interval.start
            self.tally.kv_peak = max(self.tally.kv_peak, interval.kv_tokens)
            args: dict[str, float | int | str] = {
                "n": interval.running,
                "iterations": interval.iterations,
                "kv_tokens": interval.kv_tokens,
            }
            self._span("rollout", event.replica, "decode", interval.start, interval.end, args)

    def rested(self, replica: int, counts: ActorCounts) -> None:
        """A replica's work, since its engine started."""
        before, tally = self._actors[replica], self.tally
        tally.decoded += counts.decoded - before.decoded
        tally.prefilled += counts.prefilled - before.prefilled
        tally.recomputed += counts.recomputed - before.recomputed
        tally.prefix_cached += counts.prefix_cached - before.prefix_cached
        tally.preemptions += counts.preemptions - before.preemptions
        self._actors[replica] = counts

    def scored(self, event: Scored) -> None:
        """A batch of a worker."""
        self._scoring_s[event.worker] += event.at - event.began
        self.tally.scored += event.counts.prefilled - self._scorers[event.worker].prefilled
        self._scorers[event.worker] = event.counts
        args: dict[str, float | int | str] = {"pieces": event.pieces, "tokens": event.tokens}
        self._span("scoring", event.worker, "score", event.began, event.at, args)

    def trained(self, stage: str, began: float, seconds: float) -> None:
        """A stage of the update on the timeline; its seconds are the caller's to add."""
        if seconds:
            self._span("training", 0, stage, began, began + seconds, {})

    def synced(self, began: float, seconds: float) -> None:
        """New weights reached the replicas, which rested."""
        self.training_s += seconds
        self._rollout_s = [busy + seconds for busy in self._rollout_s]
        self.trained("update_weights", began, seconds)

    def mark(self, name: str, group: str, index: int, at: float) -> None:
        """A moment on the timeline."""
        if self.shown:
            self.markers.append(Marker(name, group, index, at, self._step))

    def _span(
        self, group: str, index: int, stage: str, start: float, end: float, args: dict[str, float | int | str]
    ) -> None:
        if self.shown:
            self.spans.append(Span(group, index, stage, start, end, self._step, args))
