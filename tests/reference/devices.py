"""The clock, and activities that share devices."""

from collections.abc import Callable
from dataclasses import dataclass

from .config import Demand
from .work import same_instant


@dataclass(eq=False)
class Activity:
    """Something that takes ``own_seconds`` of its devices when alone there; calls ``when_done`` with its
    end."""

    own_seconds: float
    devices: tuple[str, ...]
    demand: Demand
    when_done: Callable[[float], None]
    loss: float = 0.0
    """Of each own second, while it takes turns"""
    slowed_by: float = 1.0
    """By others on its host"""
    rate: float = 0.0
    end: float = 0.0


class World:
    """Time, and what is going on. ``instant`` counts the distinct instants passed."""

    def __init__(self, interference: float, in_turns: bool) -> None:
        self.in_turns = in_turns
        self.now = 0.0
        self.instant = 0
        self.instant_start = 0.0
        self.row_start = 0.0
        self.interference = interference
        self.active: list[Activity] = []
        self.busy: dict[str, float] = {}

    def start(
        self,
        own_seconds: float,
        devices: tuple[str, ...],
        demand: Demand,
        when_done: Callable[[float], None],
        loss: float = 0.0,
        slowed_by: float = 1.0,
    ) -> None:
        """Begin an activity now."""
        self.active.append(Activity(own_seconds, devices, demand, when_done, loss, slowed_by))
        self._set_rates()

    def in_this_instant(self, seconds: float) -> bool:
        """What takes so long from now on is over before the instant is."""
        end = self.now + seconds
        return end - self.instant_start <= same_instant(end - self.row_start)

    def advance(self) -> None:
        """Go to the next instant at which something ends, and end all that ends in it."""
        if not self.active:
            raise AssertionError("nothing is going on, and something is waited for")
        first = min(activity.end for activity in self.active)
        if first - self.instant_start > same_instant(first - self.row_start):
            self.instant += 1
            self.instant_start = first
        ending = [
            activity
            for activity in self.active
            if activity.end - self.instant_start <= same_instant(activity.end - self.row_start)
        ]
        before = self.now
        self.now = max([self.now, *(activity.end for activity in ending)])
        for device in {device for activity in self.active for device in activity.devices}:
            self.busy[device] = self.busy.get(device, 0.0) + (self.now - before)
        self.active = [activity for activity in self.active if activity not in ending]
        self._set_rates()
        for activity in ending:
            activity.when_done(activity.end)

    def _set_rates(self) -> None:
        for activity in self.active:
            rate = min((self._rate_on(device, activity) for device in activity.devices), default=1.0)
            if activity.rate == 0.0:
                activity.end = self.now + activity.own_seconds / rate
            elif rate != activity.rate:
                left = max(0.0, activity.end - self.now) * activity.rate
                activity.end = self.now + left / rate
            activity.rate = rate

    def _rate_on(self, device: str, activity: Activity) -> float:
        here = [other.demand for other in self.active if device in other.devices]
        if device.startswith("host "):
            return 1.0 / activity.slowed_by if len(here) > 1 else 1.0
        f = self.interference if len(here) > 1 else 1.0
        if self.in_turns:
            f *= 1.0 + activity.loss if len(here) > 1 else 1.0
            return 1.0 / (f * max(1.0, sum(max(demand) for demand in here)))
        return 1.0 / (f * max(1.0, sum(m for m, _ in here), sum(a for _, a in here)))
