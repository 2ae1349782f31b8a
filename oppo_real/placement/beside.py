"""Replicas in the driver's process, scoring workers in processes beside it."""

from typing import Any

from oppo_real.placement.connected import ConnectedWorkerGroup
from oppo_real.placement.events import Event
from oppo_real.placement.inline import InlineWorkerGroup


class BesideWorkerGroup:
    """A ``WorkerGroup`` of two: one decodes in turn with the driver, one scores meanwhile."""

    concurrent = False

    def __init__(self, decoding: InlineWorkerGroup, scoring: ConnectedWorkerGroup) -> None:
        """Both clocks must show the same."""
        self._decoding, self._scoring = decoding, scoring
        self.now = decoding.now
        self.submit, self.join, self.abort = decoding.submit, decoding.join, decoding.abort
        self.set_alarm, self.cancel_alarm = decoding.set_alarm, decoding.cancel_alarm
        self.generate, self.stop, self.rests = decoding.generate, decoding.stop, decoding.rests
        self.load_weights = decoding.load_weights
        self.score, self.forget = scoring.score, scoring.forget
        self.wake = scoring.wake

    def events(self, timeout: float | None = None) -> list[Event]:
        while self._decoding.decoding:
            events = [*self._scoring.events(0), *self._decoding.events(0)]
            if events or timeout is not None:
                return events
        return self._scoring.events(timeout)

    def resolved_configs(self) -> dict[str, Any]:
        return {
            "actors": self._decoding.resolved_configs()["actors"],
            "scorers": self._scoring.resolved_configs()["scorers"],
        }

    def close(self) -> None:
        self._decoding.close()
        self._scoring.close()
