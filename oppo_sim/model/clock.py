"""The SimPy environment of the model: absolute-time callbacks, and one pass of decisions at the end of each instant."""

from collections.abc import Callable
from heapq import heappush

import simpy
from simpy.events import NORMAL, Event

from oppo_sim.instants import TOLERANCE

EndOfInstant = Callable[[float], None]
Handler = Callable[[Event], None]


class Clock(simpy.Environment):
    """A SimPy environment in which an activity's end is a bare event with one callback.

    Handlers only record what ended. When no further event lies within the tolerance of the current instant, ``settle`` is called once
    with the time: it makes the decisions of that instant in their order (stop check, new iterations, scoring workers).
    """

    def __init__(self, settle: EndOfInstant) -> None:
        super().__init__()
        self._settle = settle

    def call_at(self, seconds: float, handler: Handler) -> Event:
        """Call ``handler`` at an absolute time. The handler must end with ``after()``."""
        event = Event(self)
        event._ok = True
        event._value = None
        assert event.callbacks is not None
        event.callbacks.append(handler)
        # Absolute times keep closed-form ends exact; SimPy's own schedule() adds a delay to now, which rounds.
        heappush(self._queue, (seconds if seconds > self._now else self._now, NORMAL, next(self._eid), event))
        return event

    def cancel(self, event: Event) -> None:
        """Make a scheduled event do nothing but end its instant."""
        if event.callbacks:
            event.callbacks[0] = self._nothing

    def poke(self) -> None:
        """Have the current instant settled (again) after a process acted."""
        self.call_at(self._now, self._nothing)

    def after(self) -> None:
        """End of a handler: settle if nothing else happens at this instant."""
        now = self._now
        queue = self._queue
        if queue and queue[0][0] <= now + (TOLERANCE * now if now > 1.0 else TOLERANCE):
            return
        self._settle(now)

    def _nothing(self, event: Event) -> None:
        self.after()
