"""The same runs, simulated: seconds from the profile alone, memory from the engines' resolved configuration,
the same rollouts."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from oppo_real.config import RealConfig
from oppo_real.engines.interface import PrefixCaching, prefix_caching
from oppo_real.validate.measure import MeasuredRun
from oppo_real.validate.views import StepView, views_of
from oppo_sim.costs.build_profile import costs_from_profile
from oppo_sim.costs.context import CostContext
from oppo_sim.costs.linear_config import LinearCostConfig, LinearDecode
from oppo_sim.costs.profile import Profile, ProfileRangeWarning, TrainingTable
from oppo_sim.costs.training_config import TrainingConfig
from oppo_sim.errors import OppoError
from oppo_sim.one_run import run_setup
from oppo_sim.results.sinks import FrameSink
from oppo_sim.rewards import BatchRewards, SeriesRewards
from oppo_sim.scenario.build import Parts, Setup, build_setup, machine_setup
from oppo_sim.scenario.policy_label import LabelledPolicy
from oppo_sim.scenario.schema import Scenario


@dataclass(frozen=True)
class EngineLimits:
    """What the engines really have: tokens and rollouts of one replica, and of one scoring worker what it
    keeps of prefixes; None where there is no limit."""

    kv_capacity_tokens: int | None
    kv_block_tokens: int | None
    max_num_seqs: int | None
    scorer: PrefixCaching | None = None
    """Of the worker with the least room."""


def limits_of(resolved: Mapping[str, Any]) -> EngineLimits:
    """From the resolved configurations of a run's engines; of unlike replicas the smallest. Raises OppoError
    where none is stated."""
    actors: Sequence[Mapping[str, Any]] = resolved.get("actors", ())
    if not actors or any("kv_capacity_tokens" not in actor for actor in actors):
        raise OppoError(
            "the engines do not state their KV capacity (resolved_config), so that nothing can be predicted"
            " for them"
        )

    def least(name: str) -> int | None:
        stated = [int(actor[name]) for actor in actors if actor.get(name) is not None]
        return min(stated, default=None)

    caches = [cache for cache in map(prefix_caching, resolved.get("scorers", ())) if cache]
    return EngineLimits(
        least("kv_capacity_tokens"),
        least("kv_block_tokens"),
        least("max_num_seqs"),
        min(caches, key=attrgetter("kv"), default=None),
    )


def check_places(scenario: Scenario, config: RealConfig) -> None:
    """The groups that ``placement:`` lets share devices are bound to the same cores, and no others are.

    Raises OppoError: what is predicted would be another set-up than what runs.
    """
    cores = config.placement.cores
    if config.placement.kind == "inline" or cores.rollout is None:
        return
    replicas = {core for cores_of_one in cores.rollout for core in cores_of_one}
    placed = scenario.placement
    said = {
        "training": (placed.training == "rollout", cores.driver, "driver, which trains,"),
        "scoring": (
            placed.scoring == "rollout",
            None if cores.scoring is None else [core for one in cores.scoring for core in one],
            "scoring workers",
        ),
    }
    for name, (shares, bound, who) in said.items():
        if bound is None or shares == bool(replicas & set(bound)):
            continue
        right, have = ("separate", "cores of their own") if shares else ("rollout", "cores of the replicas")
        raise OppoError(
            f"placement.{name} is {getattr(placed, name)}, but real.placement.cores gives the {who} {have}:"
            f" say placement.{name}: {right}, or bind them otherwise"
        )


def predict(
    scenario: Scenario,
    config: RealConfig,
    variant: LabelledPolicy,
    steps: int,
    profile: Profile | None,
    run: MeasuredRun,
    parts: Parts | None = None,
) -> tuple[StepView, ...]:
    """Simulate ``variant`` as the real run ``run`` was made; of the run only resolved limits are used, and in
    mode train the lengths and rewards, which nobody can know before.

    Args:
        profile: None in lock-step, where an iteration takes 1 and nothing else takes any time.
        parts: what ``build_parts`` gave for the scenario; None: built now, its trace read again.

    Raises OppoError where the profile lacks what the scenario asks for.
    """
    setup = build_setup(
        scenario, policy=variant.policy, policy_settings=variant.settings, steps=steps, parts=parts
    )
    schedule = setup.policy_factory().schedule
    context = run_context(scenario)
    if profile is None:
        costs = LinearCostConfig(kind="linear", decode=LinearDecode(fixed=1.0)).build(context)
    else:
        costs = costs_from_profile(as_run(profile, config), context)
    machine = machine_setup(_limited(scenario, limits_of(run.resolved)), costs, context)
    if profile is not None:
        machine = replace(machine, shares_host=_shares_host(scenario, schedule))
    machine.check(max(setup.replay.prompt_lengths), scenario.max_response_length, schedule)
    setup = replace(setup, machine=machine, costs=costs)
    if run.lengths:
        setup = _replaying(setup, run)
    frames = FrameSink()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ProfileRangeWarning)  # the session reports how often
        run_setup(setup, frames)
    return views_of(frames.steps(), frames.rollouts())


def as_run(profile: Profile, config: RealConfig) -> Profile:
    """The profile with the training stages that the run has: none takes time where nothing is trained.

    Raises OppoError where the run trains and training was not measured.
    """
    table = profile.training
    if config.trains and not table.measured:
        raise OppoError(
            f"cost profile {profile.name}: training was not measured and the run trains: calibrate it with"
            " real.ppo.enabled true, or set that to false"
        )
    tokens = table.tokens if table.measured else (1.0, 2.0)  # any: nothing takes time
    nothing = (0.0,) * len(tokens)
    names = [name for name in TrainingTable.model_fields if name != "tokens"]
    stages = {
        name: nothing if not config.trains or getattr(table, name) is None else getattr(table, name)
        for name in names
    }
    return profile.model_copy(update={"training": TrainingTable(tokens=tokens, **stages)})


def run_context(scenario: Scenario) -> CostContext:
    """As ``scenario.build.cost_context``, of the real trainer: all stages run, one after the other; which of
    them take time is the profile's to say."""
    return CostContext(
        num_replicas=scenario.rollout.num_replicas,
        num_scoring_workers=scenario.scoring.num_workers,
        rollout_batch_size=scenario.rollout_batch_size,
        max_prompt_length=scenario.max_prompt_length,
        max_response_length=scenario.max_response_length,
        training=TrainingConfig(stream_ref=scenario.training.stream_ref),
        colocated_training=scenario.placement.training == "rollout",
        colocated_scoring=scenario.placement.scoring != "separate",
    )


def _limited(scenario: Scenario, limits: EngineLimits) -> Scenario:
    """The scenario with what its engines really have."""
    rollout, scoring = scenario.rollout, scenario.scoring
    real = {
        "kv_capacity_tokens": limits.kv_capacity_tokens,
        "kv_block_tokens": limits.kv_block_tokens or rollout.kv_block_tokens,
        "max_num_seqs": rollout.max_num_seqs if limits.max_num_seqs is None else limits.max_num_seqs,
    }
    kept = limits.scorer
    cache = {
        "prefix_cache_tokens": None if kept is None else kept.kv,
        "max_num_batched_tokens": None if kept is None else kept.iteration,
    }
    return scenario.model_copy(
        update={"rollout": rollout.model_copy(update=real), "scoring": scoring.model_copy(update=cache)}
    )


def _shares_host(scenario: Scenario, schedule: str) -> bool:
    """Cores of one machine share caches and memory: what the calibration measured of decoding beside scoring
    slows both, unless the scenario says ``placement.shares_host: false``. It was measured of a synchronous
    replica, and asynchronous policies are predicted without it."""
    placement = scenario.placement
    together = placement.scoring == "separate" and placement.shares_host is not False
    return together and schedule == "synchronous"


@dataclass(frozen=True)
class _MadeRows:
    """Rollouts with the lengths that a run made; those that it did not finish have the longest response."""

    prompt_lengths: Sequence[int]
    response_lengths: Sequence[int]
    clipped: Sequence[bool]
    waits: None = None

    def mean_response_length(self, step: int) -> float:
        return float("nan")

    def cursor(self) -> "_InOrder":
        return _InOrder(len(self.response_lengths))


@dataclass(frozen=True)
class _InOrder:
    rows: int

    def draw(self, rollout_id: int, step: int) -> int:
        return min(rollout_id, self.rows - 1)


def _replaying(setup: Setup, run: MeasuredRun) -> Setup:
    longest = setup.scenario.max_response_length
    count = max(run.lengths) + 1
    prompt = max(prompt for prompt, _ in run.lengths.values())
    made = [run.lengths.get(rollout_id, (prompt, longest)) for rollout_id in range(count)]
    made.append((prompt, longest))
    rows: Any = _MadeRows([p for p, _ in made], [r for _, r in made], [r >= longest for _, r in made])
    series = BatchRewards(SeriesRewards(values=run.rewards), setup.seed, None)
    return replace(setup, replay=rows, rewards=lambda: series)
