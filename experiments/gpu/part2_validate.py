"""Part 2: run the configurations for real, beside their predictions from the profiles of part 1; resumable,
each call within ten minutes.

    python experiments/gpu/part2_validate.py [--slice K/N] [--group a-1.5b+1.5b-B32-1k] [--rehearse]
    python experiments/gpu/part2_validate.py --list        # configurations, what is held out, seconds by the
    roofline; needs no GPU

The runs are those of ``oppo validate``: the same journal, the same prediction. A run that is finished is kept
at once; a call stops before a run that its budget would not hold, and the same command goes on.
"""

import argparse
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from time import perf_counter
from typing import TYPE_CHECKING, Final

from configurations import Configuration, load_configurations, repeats_of
from subjects import check_fits, make_scenario
from workplace import (
    Workplace,
    device_bytes,
    free_device_memory,
    open_workplace,
    require_shared_memory,
    require_verified,
    run_main,
    say_progress,
)

from oppo_sim.costs.profile import Profile, load_profile
from oppo_sim.draws import draw_uniform, stream_key
from oppo_sim.errors import OppoError
from oppo_sim.scenario.schema import Scenario

if TYPE_CHECKING:
    from oppo_real.validate.measure import MeasuredRun, RealRuns

BUDGET_S: Final = 540.0
START_S: Final = 60.0
"""Of a run: processes, engines, graphs. Replaced by what was measured as soon as a run of the group is
there."""


@dataclass(frozen=True)
class Job:
    """One real run."""

    configuration: Configuration
    repeat: int


def jobs_in_order(configurations: Sequence[Configuration], repeats: int) -> list[Job]:
    """Group after group; within one, rounds over its configurations in hashed orders, so that a GPU that
    grows slower does so for none."""
    jobs = []
    for group in dict.fromkeys(one.group for one in configurations):
        own = [one for one in configurations if one.group == group]
        for repeat in range(repeats):
            key = stream_key(0, f"gpu/order/{group}/{repeat}")
            jobs += [
                Job(own[index], repeat)
                for index in sorted(range(len(own)), key=lambda index: draw_uniform(key, index))
            ]
    return jobs


def slice_of(jobs: Sequence[Job], text: str) -> list[Job]:
    """Every N-th job from the K-th on, of ``K/N``. Raises OppoError for anything else."""
    first, _, count = text.partition("/")
    if not (first.isdigit() and count.isdigit() and 1 <= int(first) <= int(count)):
        raise OppoError(f"--slice {text}: give K/N with K from 1 to N, such as 1/8")
    return list(jobs[int(first) - 1 :: int(count)])


def scenario_of(configuration: Configuration) -> Scenario:
    """The scenario of a configuration. Raises OppoError."""
    return make_scenario(
        configuration.pair,
        configuration.cell,
        configuration.policy,
        configuration.name,
        configuration.steps,
        configuration.warmup_steps,
    )


def journal_of(place: Workplace, configuration: Configuration) -> "RealRuns":
    """Finished runs of a configuration on this hardware with these versions. Raises OppoError."""
    from oppo_real.run.setup import build_real_setup
    from oppo_real.validate.measure import RealRuns, inputs_digest

    scenario = scenario_of(configuration)
    trace = build_real_setup(scenario).base.replay.content_hash
    digest = inputs_digest(scenario, trace, configuration.steps, place.hardware, place.versions)
    return RealRuns(place.journal(configuration.name), digest)


def profile_of(place: Workplace, configuration: Configuration) -> Profile:
    """The profile of part 1 for a configuration's models. Raises OppoError where it is missing or of
    something else."""
    from oppo_real.calibrate.subject import check_profile_matches
    from oppo_real.config import real_config

    path = place.profile(configuration.pair.name)
    if not path.exists():
        actor, reward, engine = configuration.pair.actor, configuration.pair.reward, configuration.pair.engine
        raise OppoError(
            f"{path} is missing: run part1_calibrate.py --actor {actor} --reward {reward} --engine {engine}"
            " first"
        )
    profile = load_profile(path)
    scenario = scenario_of(configuration)
    check_profile_matches(profile, real_config(scenario), scenario.training, place.hardware)
    return profile


def step_seconds(
    configuration: Configuration, runs: Sequence["MeasuredRun"], profile: Profile
) -> tuple[float, float]:
    """Seconds of a step after the warm-up, predicted and measured (the middle of the repeats)."""
    from oppo_real.config import real_config
    from oppo_real.validate.compare import mean_seconds
    from oppo_real.validate.predict import predict
    from oppo_sim.scenario.policy_label import labelled_policy

    scenario = scenario_of(configuration)
    variant = labelled_policy(scenario, configuration.policy["name"])
    views = predict(scenario, real_config(scenario), variant, configuration.steps, profile, runs[0])
    warm = configuration.warmup_steps
    return mean_seconds([views], "step", warm), mean_seconds([run.views for run in runs], "step", warm)


def roofline_step(configuration: Configuration) -> float:
    """Seconds of a step after the warm-up by the roofline on an H200: an estimate for planning, made of
    datasheets and assumptions."""
    from oppo_sim import columns as c
    from oppo_sim.costs.roofline_config import RooflineCostConfig
    from oppo_sim.one_run import run_setup
    from oppo_sim.results.sinks import FrameSink
    from oppo_sim.scenario.build import build_setup

    pair = configuration.pair
    scenario = make_scenario(
        pair, configuration.cell, configuration.policy, configuration.name, configuration.steps, 0
    )
    # Whether state and engines fit one device together is memory_plan's business, so here each has its own;
    # where nothing is trained, on as many as the training state needs, and its stages are left out.
    apart = scenario.placement.model_copy(update={"training": "separate", "scoring": "separate"})
    training = scenario.training if pair.trains else scenario.training.model_copy(update={"num_gpus": 8})
    costs = RooflineCostConfig.model_validate(
        {
            "kind": "roofline",
            "device": "H200",
            "actor_model": pair.actor,
            "reward_model": {"kind": "model", "model": pair.reward},
        }
    )
    changed = scenario.model_copy(update={"placement": apart, "training": training, "costs": costs})
    frames = FrameSink(keep_rollouts=False)
    run_setup(build_setup(changed, steps=configuration.steps), frames)
    stages = ["step"] if pair.trains else ["gen", "reward"]
    seconds = frames.steps()[[c.timing(stage) for stage in stages]].sum(axis=1).tolist()
    return float(mean(seconds[configuration.warmup_steps :]))


def show_list(configurations: Sequence[Configuration], repeats: int) -> None:
    """The table, with an estimate of the GPU's time."""
    total = 0.0
    for one in configurations:
        step = roofline_step(one)
        run = START_S + one.steps * step
        total += repeats * run
        mark = "held out" if one.held_out else ""
        trains = "PPO" if one.pair.trains else "replay only"
        print(f"{one.name:42} {trains:11} {mark:8} step {step:6.1f} s, run {run:5.0f} s")
    print(
        f"{len(configurations)} configurations, {repeats} repeats: about {total / 3600:.1f} h by the roofline"
        " (a lower bound)"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module. Raises OppoError."""
    parser = argparse.ArgumentParser(description="Real runs of the configurations, beside predictions.")
    parser.add_argument("--slice", default="1/1", help="K/N: every N-th run from the K-th on")
    parser.add_argument("--group", action="append", help="only configurations of this group; may be repeated")
    parser.add_argument("--only", help="only these labels, separated by commas")
    parser.add_argument("--budget-s", type=float, default=BUDGET_S)
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--list", action="store_true", help="show the configurations and stop")
    parser.add_argument("--device")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, tiny models")
    given = parser.parse_args(arguments)
    repeats = given.repeats or repeats_of(given.rehearse)
    if given.list:
        show_list(_chosen(load_configurations("cuda:0", False), given.group, given.only), repeats)
        return
    begun = perf_counter()
    place = open_workplace(given.work, given.device, given.rehearse)
    require_verified(place)
    configurations = _chosen(load_configurations(place.device, place.rehearse), given.group, given.only)
    memory = device_bytes(place)
    for one in configurations:
        if memory is not None:
            longest = one.cell.max_prompt_length + one.cell.max_response_length
            check_fits(one.pair, longest, memory, one.cell.kv_capacity_tokens)
            require_shared_memory(2.0 * one.pair.shape(one.pair.actor).parameters)
    profiles = {
        one.name: profile_of(place, one) for one in configurations
    }  # predictions exist before anything is run
    with ExitStack() as opened:
        journals = {one.name: opened.enter_context(journal_of(place, one)) for one in configurations}
        jobs = slice_of(jobs_in_order(configurations, repeats), given.slice)
        left = _run(jobs, journals, given.budget_s - (perf_counter() - begun))
        _report(configurations, journals, profiles, repeats)
    if left:
        print(f"{left} runs are left: run the same command again")


def _chosen(
    configurations: Sequence[Configuration], groups: Sequence[str] | None, only: str | None
) -> list[Configuration]:
    labels = None if only is None else {label.strip() for label in only.split(",")}
    found = [
        one
        for one in configurations
        if (not groups or one.group in groups) and (labels is None or one.label in labels)
    ]
    if not found:
        raise OppoError(
            "no configuration has this group and label: there are"
            f" {', '.join(one.name for one in configurations)}"
        )
    return found


def _run(jobs: Sequence[Job], journals: "Mapping[str, RealRuns]", budget_s: float) -> int:
    """Runs what the journals lack while the budget holds; returns how many are left."""
    from oppo_real.validate.measure import Turn, measure_runs
    from oppo_sim.scenario.policy_label import labelled_policy

    begun = perf_counter()
    took: dict[str, float] = {}
    left = 0
    for job in jobs:
        one, turn = job.configuration, Turn(job.configuration.policy["name"], job.repeat)
        known = journals[one.name].known(turn)
        if known is not None:
            took[one.group] = max(took.get(one.group, 0.0), known.wall_s)
            continue
        expected = took.get(one.group, 0.0 if one.pair.rehearse else START_S + one.steps * roofline_step(one))
        if left or budget_s - (perf_counter() - begun) < expected:
            left += 1
            continue
        label = f"{one.name}, repeat {job.repeat + 1}"
        scenario = scenario_of(one)
        (run,) = measure_runs(
            scenario,
            {turn.policy: labelled_policy(scenario, turn.policy)},
            [turn],
            one.steps,
            journals[one.name],
            lambda what, done, of, label=label: say_progress(f"{label}: step {done}/{of}"),  # type: ignore[misc]
        )
        took[one.group] = max(took.get(one.group, 0.0), run.wall_s)
        say_progress("")
        print(f"{label}: {run.wall_s:.0f} s in all")
        free_device_memory()
    return left


def _report(
    configurations: Sequence[Configuration],
    journals: "Mapping[str, RealRuns]",
    profiles: Mapping[str, Profile],
    repeats: int,
) -> None:
    from oppo_real.validate.measure import Turn

    for one in configurations:
        runs = [
            run
            for repeat in range(repeats)
            if (run := journals[one.name].known(Turn(one.policy["name"], repeat))) is not None
        ]
        if not runs:
            continue
        try:
            there, here = step_seconds(one, runs, profiles[one.name])
        except OppoError as error:
            print(f"{one.name:42} cannot be predicted: {error}")
            continue
        print(
            f"{one.name:42} predicted {there:8.3f} s, measured {here:8.3f} s ({len(runs)} of {repeats}),"
            f" error {there / here - 1:+.1%}"
        )


if __name__ == "__main__":
    run_main(main)
