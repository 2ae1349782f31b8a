"""Small scenarios to tune, and what a setting costs when it is simulated by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from oppo_sim import columns as c
from oppo_sim.one_run import run_setup
from oppo_sim.results.sinks import FrameSink
from oppo_sim.scenario.build import Parts, build_parts, build_setup
from oppo_sim.scenario.load import load_scenario
from oppo_sim.scenario.schema import Scenario
from oppo_sim.tune import Knob, Tuned, TuneRequest, run_tuning
from tests.cli_runs import write_scenario

SEEDS = 3
FRESH = 4

CHEAP_SCORE = {
    "kind": "linear",
    "decode": {"fixed": 0.1, "per_rollout": 0.01},
    "prefill": {"fixed": 0.05, "per_token": 0.002},
    "score": {"fixed": 0.2, "per_token": 0.02},
    "stages": {"update_actor": {"fixed": 0.5}},
}


def scenario(folder: Path, **changes: Any) -> Scenario:
    """A tiny scenario with a little more of everything."""
    return load_scenario(
        write_scenario(
            folder, costs=changes.pop("costs", CHEAP_SCORE), **{"steps": 12, "warmup_steps": 2, **changes}
        )
    )


def search(given: Scenario, folder: Path | None = None, **options: Any) -> Tuned:
    """A search without pictures."""
    return run_tuning(
        TuneRequest(given, folder, **{"seeds": SEEDS, "fresh_seeds": FRESH, "figures": False, **options})
    )


def cost_of(given: Scenario, policy: str, settings: dict[str, Any], seeds: range) -> float:
    """Mean seconds per trained rollout over seeds, from the step tables of single runs."""
    if given.content_hash not in _parts:
        _parts[given.content_hash] = build_parts(given)
    costs = []
    for seed in seeds:
        frames = FrameSink(keep_rollouts=False)
        run_setup(
            build_setup(
                given, policy=policy, policy_settings=settings, seed=seed, parts=_parts[given.content_hash]
            ),
            frames,
        )
        steps = frames.steps()[given.warmup_steps :]
        costs.append(steps[c.TIMING_STEP].sum() / (len(steps) * given.rollout_batch_size))
    return sum(costs) / len(costs)


_parts: dict[str, Parts] = {}


def choices(field: str, *values: Any) -> Knob:
    """A knob with these values."""
    return Knob(field, "choice", choices=values)
