"""Run one model to its end."""

from oppo_sim.model.asynchronous import AsyncRun
from oppo_sim.model.run import ModelInput
from oppo_sim.model.synchronous import OneStepOffRun, SynchronousRun
from oppo_sim.results.sinks import Sink
from oppo_sim.results.spans import Marker, Span

Run = SynchronousRun | OneStepOffRun | AsyncRun

_SCHEDULES: dict[str, type[Run]] = {
    "synchronous": SynchronousRun,
    "one-step-off": OneStepOffRun,
    "async": AsyncRun,
}


def run_model(given: ModelInput, sink: Sink) -> tuple[list[Span], list[Marker]]:
    """Simulate ``given.steps`` training steps; rows go to ``sink``. Returns the timeline of
    ``given.timeline_steps``."""
    run = _SCHEDULES[given.policy.schedule](given, sink)
    clock = run.machine.clock
    clock.drive(clock.process(run.process()))
    return run.machine.spans, run.machine.markers
