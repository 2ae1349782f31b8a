"""OPPO's set-ups as studies: TRL the baseline, OPPO and its parts the runs that are asked for."""

from functools import partial
from typing import Any, Final

import numpy as np
from setups import SETUPS, UNRELATED, Setup, known_of, tells_gpu_use
from study import Run, Study, World
from unknowns import scenario_of, world_of

from oppo_sim.costs.terms import CostTerms

_DENSITY: Final = 0.5 * float(np.log(2.0 * np.pi))
ROUNDS: Final = {"stop_check": "chunk"}
"""OPPO decodes in chunks until B are finished."""
LIGHT: Final = ("sequential", "intra", "inter", "oppo", "rollout-overlap")
"""Of every set-up."""
CURVES: Final = ("chunk 100", "chunk 500", "chunk 3000", "fixed 4", "fixed 8", "verl")
"""Of the set-up whose curves are published."""
CURVES_OF: Final = "se-7b"
FIRST_WORLD: Final = 60_000
"""Of the fits. Those from 0, 30,000 and 40,000 on were of earlier ones, whose scores had been seen."""
BESIDE: Final = ("round_fixed_s",)
"""OPPO runs in rounds, its baseline in one call."""


def runs_of(setup: str) -> tuple[str, ...]:
    """Names of the runs of a set-up."""
    return LIGHT + (CURVES if setup == CURVES_OF else ())


def settings_of(run: str, world: World) -> tuple[str, dict[str, Any]]:
    """Policy and its settings; TRL and verl run sequentially in one call of the engine."""
    chunk = int(world["chunk_size"])
    dynamic = {
        "control": "reward_slope",
        "initial": int(world["delta_max"]),  # a run of hundreds of steps is mostly there
        "max": int(world["delta_max"]),
        "window": int(world["window"]),
    }
    if run in ("sequential", "verl"):
        return "sequential", {}
    if run == "rollout-overlap":
        return "rollout-overlap", {}
    if run == "intra":
        return "intra", {**ROUNDS, "chunk_size": chunk}
    if run == "inter":
        return "inter", {**ROUNDS, "chunk_size": chunk, "overcommit": dynamic}
    kind, _, value = run.partition(" ")
    settings = {**ROUNDS, "chunk_size": chunk, "overcommit": dynamic}
    if kind == "chunk":
        settings["chunk_size"] = int(value)
    elif kind == "fixed":
        settings["overcommit"] = int(value)
    return "oppo", settings


def oppo_study(name: str) -> Study:
    """Of a set-up by name."""
    setup = SETUPS[name]
    return Study(
        name,
        partial(world_of, setup),
        partial(scenario_of, setup),
        lambda world: known_of(name, str(world["gpu_use"])),
        runs_of(name),
        partial(_run, setup),
        partial(_offset, setup),
        first=FIRST_WORLD,
        beside=BESIDE,
    )


def _run(setup: Setup, world: World, terms: CostTerms, name: str) -> Run:
    policy, settings = settings_of(name, world)
    if name == "verl":
        # The same machine and lengths with an engine and without padding; what the host adds is its own.
        engine = scenario_of(setup, {**world, "engine": "vllm", "training_padded": False})
        own = {"host": 1.0, "iteration_s": 0.0, "rollout_iteration_s": 0.0}
        return Run(engine, policy, settings, terms.model_copy(update=own))
    return Run(scenario_of(setup, world), policy, settings, terms)


def _offset(setup: Setup, world: World) -> float:
    """A GPU use of which nothing is known has a uniform density of 1; ``log_evidence`` leaves a normal's
    constant out."""
    return -_DENSITY if tells_gpu_use(setup.name) and world["gpu_use"] != UNRELATED else 0.0
