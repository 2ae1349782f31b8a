"""The SimPy environment of the model: absolute-time callbacks, and one pass of decisions at the end of each
instant."""

from collections.abc import Callable
from heapq import heapify, heappush

import simpy
from simpy.events import NORMAL, Event

from oppo_sim.instants import TOLERANCE, instant_tolerance

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
        """Make a scheduled event do nothing."""
        if event.callbacks:
            event.callbacks.clear()

    def drive(self, until: Event) -> None:
        """Process events until ``until`` has been; after the last event of every instant, settle it."""
        step, queue, settle = super().step, self._queue, self._settle
        while until.callbacks is not None:
            step()
            now = self._now
            # As ``instant_tolerance`` and ``event_in_instant``, written out: every event asks.
            if now - self._instant > (TOLERANCE * now if now > 1.0 else TOLERANCE):
                self._instant = now
            if queue:
                soonest = queue[0][0]
                if soonest - self._instant <= (TOLERANCE * soonest if soonest > 1.0 else TOLERANCE):
                    continue
            settle(now)

    def event_in_instant(self) -> bool:
        """Something more happens in this instant, such as the end of what takes no time."""
        if not self._queue:
            return False
        soonest = self._queue[0][0]
        return soonest - self._instant <= instant_tolerance(soonest)
