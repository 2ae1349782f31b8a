"""Part 1: measure one pair of models on one engine into a cost profile; resumable, each call within ten
minutes.

    python experiments/gpu/part1_calibrate.py --actor 1.5b --reward 1.5b --engine torch [--rehearse]

It is ``oppo calibrate`` with its budget and its cache of finished points: call it again until it says that
the profile is complete. The profile, its raw samples and its fit lie under
``profiles/DEVICE/ACTOR+REWARD/ENGINE.*``; ``register.py`` makes it a preset.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from configurations import Configuration, cell_of_pair, load_configurations
from subjects import ACTORS, REWARDS, Pair, check_fits, make_scenario, merged_sizes, subject_for
from workplace import (
    device_bytes,
    open_workplace,
    require_shared_memory,
    require_verified,
    run_main,
    say_progress,
)

from oppo_sim.scenario.schema import Scenario

BUDGET_S: Final = 480.0
REHEARSAL_BUDGET_S: Final = 60.0
REPEATS: Final = 5
BASELINES: Final = ({"name": "sequential"}, {"name": "oppo", "overcommit": 8, "chunk_size": 256})
"""What a pair without configurations of its own is calibrated for."""


def full_name(short: str) -> str:
    """``1.5b`` and ``qwen2.5-1.5b`` are alike."""
    return short if short.startswith("qwen2.5-") else f"qwen2.5-{short}"


def scenarios_of(pair: Pair, configurations: Sequence[Configuration]) -> list[Scenario]:
    """Of every configuration that runs the pair: what the profile has to span."""
    own = [one for one in configurations if (one.pair.actor, one.pair.reward) == (pair.actor, pair.reward)]
    if own:
        return [
            make_scenario(pair, one.cell, one.policy, one.name, one.steps, one.warmup_steps) for one in own
        ]
    cell = cell_of_pair(configurations)
    return [make_scenario(pair, cell, policy, pair.name, 2, 0) for policy in BASELINES]


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module. Raises OppoError."""
    parser = argparse.ArgumentParser(description="Calibrate one pair of models.")
    parser.add_argument("--actor", default="1.5b", type=full_name, choices=ACTORS)
    parser.add_argument("--reward", default="1.5b", type=full_name, choices=REWARDS)
    parser.add_argument("--engine", default="torch", choices=("torch", "vllm"))
    parser.add_argument("--budget-s", type=float)
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--no-contention", action="store_true", help="do not measure two activities together")
    parser.add_argument("--device")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, tiny models")
    given = parser.parse_args(arguments)

    place = open_workplace(given.work, given.device, given.rehearse)
    require_verified(place)
    pair = Pair(given.actor, given.reward, given.engine, place.device, place.rehearse)
    scenarios = scenarios_of(pair, load_configurations(place.device, place.rehearse))
    sizes = merged_sizes(scenarios)
    memory = device_bytes(place)
    if memory is not None:
        check_fits(pair, sizes.max_length, memory, sizes.kv_capacity_tokens)
        require_shared_memory(2.0 * pair.shape(pair.actor).parameters)

    from oppo_real.calibrate.report import calibration_figure, remarks, save_figure
    from oppo_real.calibrate.session import Effort, calibrate_to

    rehearse = place.rehearse
    effort = Effort(
        repeats=given.repeats or (1 if rehearse else REPEATS),
        budget_s=given.budget_s or (REHEARSAL_BUDGET_S if rehearse else BUDGET_S),
        contention=not given.no_contention,
        window_s=0.2 if rehearse else 1.0,
        rounds=1 if rehearse else 3,
    )
    path = place.profile(pair.name)

    def progress(done: int, total: int, label: str) -> None:
        say_progress(f"{done}/{total} {label}")

    longest = max(scenarios, key=lambda one: one.max_response_length)
    points = place.folder / "points"
    session, calibration, written = calibrate_to(
        path, f"{place.device_name}/{pair.name}", subject_for(longest), sizes, points, effort, progress
    )
    figure = path.with_name(f"{path.stem}.fit.png")
    save_figure(calibration_figure(session.visits, calibration.fits), figure)
    say_progress("")
    print(
        f"{len(session.visits)} of {session.planned_visits} visits, {session.fresh} of them new, on"
        f" {session.origin.hardware}"
    )
    for note in [*session.notes, *remarks(calibration)]:
        print(f"note: {note}")
    state = (
        "not complete, run the same command again"
        if not session.complete
        else "complete"
        if effort.contention
        else "without contention"
    )
    print(f"wrote {written.profile} ({state})")


if __name__ == "__main__":
    run_main(main)
