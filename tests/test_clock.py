"""What the clock takes from SimPy below its public surface, against the SimPy that is installed."""

import simpy
from simpy.events import NORMAL, Event

from oppo_sim.model.clock import Clock


def test_simpy_keeps_its_events_as_the_clock_does() -> None:
    # Clock.call_at pushes what Environment.schedule pushes: (seconds, priority, count, event), a heap.
    env = simpy.Environment()
    timeout = env.timeout(2.0)
    assert env._queue == [(2.0, NORMAL, 0, timeout)]
    assert next(env._eid) == 1
    clock = Clock(lambda now: None)
    event = clock.call_at(2.0, lambda event: None)
    assert clock._queue == [(2.0, NORMAL, 0, event)]
    assert event.ok
    assert event.triggered
    assert event.value is None


def test_events_come_in_order_and_instants_settle_once() -> None:
    seen: list[object] = []
    clock = Clock(lambda now: seen.append(("settled", now)))
    done = clock.event()

    def note(name: str) -> None:
        seen.append((name, clock.now))

    clock.call_at(2.0, lambda event: note("second"))
    clock.call_at(1.0, lambda event: note("first"))
    clock.call_at(1.0 + 5e-10, lambda event: note("same instant"))
    clock.cancel(clock.call_at(1.5, lambda event: note("never")))
    clock.call_at(3.0, lambda event: done.succeed() and None)
    clock.drive(done)
    assert seen == [
        ("first", 1.0),
        ("same instant", 1.0 + 5e-10),
        ("settled", 1.0 + 5e-10),
        ("second", 2.0),
        ("settled", 2.0),
        ("settled", 3.0),
    ]


def test_an_instant_is_no_longer_than_its_tolerance() -> None:
    # At 1,000 s the tolerance is 1 µs: each event is within it of the one before, the third not of the first.
    seen: list[float] = []
    clock = Clock(seen.append)
    done = clock.event()
    for at in (1000.0, 1000.0 + 0.8e-6, 1000.0 + 1.6e-6):
        clock.call_at(at, lambda event: None)
    clock.call_at(2000.0, lambda event: done.succeed() and None)
    clock.drive(done)
    assert seen == [1000.0 + 0.8e-6, 1000.0 + 1.6e-6, 2000.0]


def test_time_counted_anew_keeps_what_is_to_come() -> None:
    clock = Clock(lambda now: None)
    seen: list[tuple[float, float]] = []
    done = clock.event()

    def later(event: Event) -> None:
        seen.append((clock.now, clock.elapsed))
        done.succeed()

    def first(event: Event) -> None:
        assert clock.rebase() == 1.0

    clock.call_at(4.0, later)
    clock.call_at(1.0, first)
    clock.drive(done)
    assert seen == [(3.0, 4.0)]
