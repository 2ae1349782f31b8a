"""The SimPy environment of the model: absolute-time callbacks, and one pass of decisions at the end of each
instant."""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf

import simpy
from simpy.events import NORMAL, Event

from oppo_sim.instants import instant_tolerance

EndOfInstant = Callable[[float], None]
Handler = Callable[[Event], None]


class Wake(Event):
    """A scheduled event with one callback; already triggered, so it is never waited for."""

    def __init__(self, clock: "Clock", handler: Handler) -> None:
        # What Event.__init__ does, less what a triggered event does not need.
        self.env = clock
        self.callbacks = [handler]
        self._ok = True
        self._value = None


class Clock(simpy.Environment):
    """A SimPy environment in which an activity's end is a bare event with one callback.

    Handlers and processes only record what happened and start what they wait for. When no further event lies
    within the tolerance of the first one of the current instant, ``settle(now)`` makes the decisions of that
    instant in their order (stop check, new iterations, scoring workers).
    """

    def __init__(self, settle: EndOfInstant) -> None:
        super().__init__(0.0)
        self._settle = settle
        self.origin = 0.0
        """Seconds of the run at which ``now`` was 0: ``now`` counts from the begin of the row."""
        self._instant = 0.0
        """When the first event of the current instant was."""

    @property
    def elapsed(self) -> float:
        """Seconds since the run began."""
        return self.origin + self._now

    def rebase(self) -> float:
        """Let ``now`` be 0, so that no instant is wider late in a run; returns what it was (seconds)."""
        passed, self._now = self._now, 0.0
        self._instant -= passed
        self.origin += passed
        queue = self._queue
        queue[:] = [(at - passed, priority, count, event) for at, priority, count, event in queue]
        heapify(queue)  # two times may have become one
        return passed

    def call_at(self, seconds: float, handler: Handler) -> Event:
        """Call ``handler`` at an absolute time."""
        event = Wake(self, handler)
        # Absolute times keep closed-form ends exact; SimPy's own schedule() adds a delay to now, which
        # rounds.
        heappush(self._queue, (seconds if seconds > self._now else self._now, NORMAL, next(self._eid), event))
        return event

    def cancel(self, event: Event) -> None:
        """A scheduled event does not happen."""
        if event.callbacks:
            event.callbacks.clear()

    def _soonest(self) -> float:
        """When the next event is, which is the first in the queue then (seconds; inf: there is none)."""
        queue = self._queue
        while queue:
            event = queue[0][3]
            if event.callbacks or type(event) is not Wake:
                return queue[0][0]
            heappop(queue)  # it was cancelled
        return inf

    def drive(self, until: Event) -> None:
        """Process events until ``until`` has been; after the last event of every instant, settle it."""
        step, soonest, settle = super().step, self._soonest, self._settle
        while until.callbacks is not None:
            soonest()
            step()
            now = self._now
            if now - self._instant > instant_tolerance(now):
                self._instant = now
            if not self.event_in_instant():
                settle(now)

    def event_in_instant(self) -> bool:
        """Something more happens in this instant, such as the end of what takes no time."""
        soonest = self._soonest()
        return soonest - self._instant <= instant_tolerance(soonest) < inf
