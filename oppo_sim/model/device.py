"""Devices and what runs on them: busy time, and the shared-capacity rule when activities meet (docs/model.md
C6)."""

from collections.abc import Callable, Sequence

from simpy.events import Event

from oppo_sim.costs.formulas import added
from oppo_sim.costs.interface import NO_DEMAND, Demand
from oppo_sim.model.clock import Clock
from oppo_sim.model.formulas import device_rate, time_on_device


class Device:
    """One device (or one group of devices that always act as one)."""

    __slots__ = ("active", "busy_since", "busy_total", "dirty", "interference", "shared", "time_slices")

    def __init__(self, shared: bool, interference: float, time_slices: bool = False) -> None:
        """``time_slices``: kernels of two activities never run together."""
        self.shared = shared
        self.interference = interference
        self.time_slices = time_slices
        self.active: list[Runner] = []
        self.busy_since = 0.0
        self.busy_total = 0.0
        self.dirty = False

    def begin_row(self) -> None:
        """Count busy seconds from now on, which is 0."""
        self.busy_since = 0.0
        self.busy_total = 0.0

    def busy_until(self, seconds: float) -> float:
        """Seconds during which it had an activity, from the begin of the row to ``seconds``."""
        return self.busy_total + (seconds - self.busy_since if self.active else 0.0)

    def rate(self, runner: "Runner") -> float:
        """Own seconds that the activity of ``runner`` makes here in one second."""
        if len(self.active) < 2:
            return 1.0
        if self.time_slices:
            on_device = added(
                time_on_device(other.demand.memory, other.demand.arithmetic) for other in self.active
            )
            return device_rate(len(self.active), self.interference, on_device, 0.0, runner.turns)
        memory = added(other.demand.memory for other in self.active)
        arithmetic = added(other.demand.arithmetic for other in self.active)
        return device_rate(len(self.active), self.interference, memory, arithmetic, 0.0)


class Host(Device):
    """What devices of one machine have in common: their activities slow each other, whatever they use."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(True, 1.0)

    def rate(self, runner: "Runner") -> float:
        """As of a device on which nothing has a demand, with the runner's own slow-down."""
        return device_rate(len(self.active), runner.slowed_by, 0.0, 0.0, 0.0)


class Runner:
    """Runs one activity at a time on its devices; ``on_end(seconds)`` is called when it is done."""

    __slots__ = (
        "_clock",
        "_event",
        "_on_end",
        "_rate",
        "_reschedule",
        "_updated",
        "demand",
        "devices",
        "done",
        "end_at",
        "running",
        "seconds",
        "shared",
        "slowed_by",
        "started",
        "turns",
    )

    def __init__(
        self,
        clock: Clock,
        devices: Sequence[Device],
        on_end: Callable[[float], None],
        slowed_by: float = 1.0,
    ) -> None:
        """``slowed_by``: how much longer it takes while a host among ``devices`` has another activity."""
        self._clock = clock
        self.slowed_by = slowed_by
        self.devices = tuple(devices)
        self.shared = any(device.shared for device in devices)
        self._on_end = on_end
        self._event: Event | None = None
        self._reschedule = False
        self._rate = 1.0
        self._updated = 0.0
        self.running = False
        self.started = 0.0
        self.seconds = 0.0
        self.done = 0.0
        self.end_at = 0.0
        self.demand = NO_DEMAND
        self.turns = 0.0

    def start(self, at: float, seconds: float, demand: Demand = NO_DEMAND, turns: float = 0.0) -> None:
        """Begin an activity that takes ``seconds`` alone, and ``turns`` of its seconds more where it takes
        turns. On a shared device its end is known once the instant settles."""
        self.running = True
        self.started = at
        self.seconds = seconds
        for device in self.devices:
            if not device.active:
                device.busy_since = at
            device.active.append(self)
        if self.shared:
            self.demand = demand
            self.turns = turns
            self.done = 0.0
            self._rate = 0.0
            self._updated = at
            self._touch()
        else:
            self.end_at = at + seconds
            self._event = self._clock.call_at(self.end_at, self._fire)

    def progress(self, at: float) -> float:
        """Own seconds done at ``at``."""
        return self.done + (at - self._updated) * self._rate if self.shared else at - self.started

    def shorten(self, seconds: float) -> None:
        """Let the activity end after ``seconds`` of its own instead."""
        self.seconds = seconds
        if self.shared:
            self._reschedule = True
            self._touch()
        else:
            self.end_at = self.started + seconds
            assert self._event is not None
            self._clock.cancel(self._event)
            self._event = self._clock.call_at(self.end_at, self._fire)

    def rebase(self, passed: float) -> None:
        """Seconds are counted from a moment ``passed`` seconds later."""
        self.started -= passed
        self._updated -= passed
        self.end_at -= passed

    def rerate(self, now: float) -> None:
        """Take the rate that its devices give it now."""
        rate = min(device.rate(self) for device in self.devices)
        if rate == self._rate and not self._reschedule:
            return
        self.done += (now - self._updated) * self._rate
        self._updated = now
        self._rate = rate
        self._reschedule = False
        if self._event is not None:
            self._clock.cancel(self._event)
        self.end_at = now + max(0.0, self.seconds - self.done) / rate
        self._event = self._clock.call_at(self.end_at, self._fire)

    def _touch(self) -> None:
        for device in self.devices:
            device.dirty = True

    def _fire(self, event: Event) -> None:
        at = self.end_at
        self.running = False
        self._event = None
        for device in self.devices:
            active = device.active
            if len(active) == 1:
                active.clear()
                device.busy_total += at - device.busy_since
            else:
                active.remove(self)
        if self.shared:
            self._touch()
        self._on_end(at)
