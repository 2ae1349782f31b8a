"""The search: batches of settings, each tried on the seeds and stopped when clearly worse."""

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from statistics import fmean
from typing import Any, Literal

from oppo_sim.draws import draw_index, draw_uniform, stream_key
from oppo_sim.errors import HaltError, OppoError
from oppo_sim.policies.knobs import Knob
from oppo_sim.runs.request import RunResult
from oppo_sim.runs.statistics import FIRST_LOOK, dominated
from oppo_sim.tune.request import (
    ONLY_GROWS,
    UNIT_COST,
    Constraints,
    Objective,
    Robust,
    broken,
    kv_limit,
    measures,
    violations,
    worst_of,
)
from oppo_sim.tune.space import Setting, Space
from oppo_sim.tune.trials import (
    SearchStore,
    Status,
    Trial,
    best_in,
    least_costs,
    mean_cost,
    ranked,
    regrets,
    require_optuna,
    together,
)
from oppo_sim.tune.worlds import Bench, Need, Totals

CLEARLY = 0.01
"""A setting is stopped only if it is worse by more than this share, too."""


@dataclass(frozen=True)
class SearchProblem:
    """What is searched, and how settings are judged."""

    space: Space
    constraints: Constraints
    objective: Objective
    robust: Robust
    seeds: tuple[int, ...]
    sampler_seed: int

    @property
    def cost(self) -> str:
        """The total that is minimised."""
        return UNIT_COST[self.objective]


Ended = Literal["trials", "time", "space"]


def search(
    problem: SearchProblem,
    bench: Bench,
    store: SearchStore,
    trials: int,
    out_of_time: Callable[[], bool],
    progress: Callable[[int, Trial | None], None],
) -> Ended:
    """Bring ``store`` to ``trials`` trials; says what ended it. ``progress`` is called with how many there
    are and the best so far.

    The same problem gives the same trials, however often it was interrupted.
    """
    worlds = len(bench.worlds)

    def tell() -> None:
        best = ranked(store.trials, worlds, problem.robust)
        progress(len(store.trials), best[0] if best else None)

    tell()
    _look_again(problem, bench, store.trials)
    while len(store.trials) < trials:
        if out_of_time():
            return "time"
        first = len(store.trials) // BATCH * BATCH
        before = store.trials[:first]
        proposed = propose(problem, before, first, worlds)
        done = len(store.trials) - first
        wanted = proposed[done : trials - first]
        if not wanted:
            return "space"
        tried = _try_out(problem, bench, before, len(store.trials), wanted, out_of_time)
        if tried is None:
            return "time"
        for trial in tried:
            store.add(trial)
            tell()
    return "trials"


def looks(seeds: int) -> list[int]:
    """After how many seeds trials are judged, the last being all."""
    found, at = [], FIRST_LOOK
    while at < seeds:
        found.append(at)
        at *= 2
    return [*found, seeds]


def judged(
    problem: SearchProblem,
    bench: Bench,
    setting: Setting,
    totals: Sequence[Sequence[Totals]],
    baseline: Sequence[Sequence[Totals]],
) -> tuple[dict[str, float], dict[str, float]]:
    """Measures (the worst of all worlds) and violations. Raises OppoError for a bound not measurable."""
    each = [measures(runs, base) for runs, base in zip(totals, baseline, strict=True)]
    found: dict[str, float] = {}
    for world, measured in enumerate(each):
        limit = None
        if problem.constraints.kv_capacity is not None:
            limit = kv_limit(problem.constraints, bench.parts(setting, world))
        for name, by in violations(problem.constraints, measured, limit).items():
            found[name] = max(by, found.get(name, by))
    return worst_of(each), found


# ---- inside ------------------------------------------------------------------------------------------------


@dataclass
class _Running:
    number: int
    setting: Setting
    totals: list[list[Totals]]
    """World by world, seed by seed."""
    ended: Trial | None = None
    seen: int = 0
    stopped: bool = field(default=False)


def _try_out(
    problem: SearchProblem,
    bench: Bench,
    before: Sequence[Trial],
    first: int,
    settings: Sequence[Setting],
    out_of_time: Callable[[], bool],
) -> list[Trial] | None:
    """Trials of some settings, in order; None: time ran out (finished runs are in the journal)."""
    worlds = range(len(bench.worlds))
    running = [_Running(first + i, setting, [[] for _ in worlds]) for i, setting in enumerate(settings)]
    ends = looks(len(problem.seeds))
    for end in ends:
        active = [each for each in running if each.ended is None and not each.stopped]
        pairs = [(each, seed) for each in active for seed in problem.seeds[each.seen : end]]
        needs = [Need(each.setting, world, seed) for each, seed in pairs for world in worlds]
        results = iter(bench.run(needs))
        for each in active:
            _take(each, [next(results) for _ in range((end - each.seen) * len(worlds))], end, len(worlds))
        for each in active:
            if each.ended is None and end < len(problem.seeds):
                each.stopped = _hopeless(problem, bench, before, each, len(ends) - 1)
        if out_of_time() and end < len(problem.seeds):
            return None
    return [each.ended or _trial(problem, bench, each) for each in running]


def _look_again(problem: SearchProblem, bench: Bench, trials: Sequence[Trial]) -> None:
    """Request the runs of trials that an earlier attempt made, as it did: they are in the journal, and the
    bench counts what was requested of it."""
    for first in range(0, len(trials), BATCH):
        settings = [trial.setting for trial in trials[first : first + BATCH]]
        _try_out(problem, bench, trials[:first], first, settings, lambda: False)


def _take(each: _Running, results: Sequence[RunResult], end: int, worlds: int) -> None:
    for number, result in enumerate(results):
        if result.totals is None:
            each.ended = Trial(each.number, each.setting, "failed", error=result.error)
            return
        each.totals[number % worlds].append(dict(result.totals))
    each.seen = end


def _trial(problem: SearchProblem, bench: Bench, each: _Running) -> Trial:
    costs = tuple(tuple(run[problem.cost] for run in world) for world in each.totals)
    try:
        measured, found = judged(problem, bench, each.setting, each.totals, _baselines(problem, bench, each))
    except HaltError:
        raise
    except OppoError as error:
        return Trial(each.number, each.setting, "failed", error=str(error))
    status: Status = "infeasible" if broken(found) else "stopped" if each.stopped else "ok"
    return Trial(each.number, each.setting, status, costs, measured, found)


def _baselines(problem: SearchProblem, bench: Bench, each: _Running) -> list[list[Totals]]:
    """What length bias is measured against."""
    seeds = problem.seeds[: each.seen]
    return [bench.trains_all(each.setting, world, seeds) for world in range(len(bench.worlds))]


def _hopeless(
    problem: SearchProblem, bench: Bench, before: Sequence[Trial], each: _Running, looks_in_all: int
) -> bool:
    """Further seeds cannot help: beyond a bound that only grows, or clearly worse in every world."""
    if any(name in ONLY_GROWS for name in problem.constraints.measured):
        try:
            _, found = judged(problem, bench, each.setting, each.totals, each.totals)
        except OppoError:
            return True
        if any(name in ONLY_GROWS for name in broken(found)):
            return True
    for world, runs in enumerate(each.totals):
        best = best_in(before, world)
        if best is None:
            return False
        here, there = [run[problem.cost] for run in runs], best.costs[world][: len(runs)]
        if fmean(here) <= fmean(there) * (1.0 + CLEARLY) or not dominated(here, there, looks_in_all):
            return False
    return True


# ---- which settings to try next ----------------------------------------------------------------------------

BATCH = 4
"""Trials that are proposed together, whatever the number of processes."""
RANDOM_TRIALS = 12
"""Drawn evenly before the sampler has something to learn from, beside the policies' own settings."""
LOCAL = 3
"""Of each batch the last trial changes one knob of the best so far: TPE finds the valley, this its bottom and
the ends of its ranges, which TPE seldom draws (without it the best of 48 trials was 1 to 6 % worse)."""
_TRIES = 12


def propose(problem: SearchProblem, trials: Sequence[Trial], first: int, worlds: int) -> list[Setting]:
    """Settings for a batch of trials from number ``first`` on, from those before; fewer, or none, where all
    have been tried.

    Optuna proposes: each policy's own settings first (enqueued), then TPE over policies and, for each, its
    own knobs; what is left of a small space by brute force. The study is built anew for every batch, with a
    seed that follows from the trial's number: a search that goes on proposes what it would have proposed
    without the interruption, in any number of processes. With several worlds, every second trial looks for
    the best of one world, so that regrets are measured against something.
    """
    tried = {trial.setting for trial in trials}
    found: list[Setting] = []
    studies: dict[int | None, Any] = {}
    for number in range(first, first + BATCH):
        target = (number // 2) % worlds if worlds > 1 and number % 2 else None
        if target not in studies:
            studies[target] = _study(problem, trials, target, worlds)
        setting = None
        if number % BATCH == LOCAL and number >= len(problem.space.starts) + RANDOM_TRIALS:
            best = ranked(trials, worlds, problem.robust)
            setting = _near(problem, best[0].setting, tried, number) if best else None
        setting = setting or _new(problem, studies[target], tried, number)
        if setting is None:
            break
        found.append(setting)
        tried.add(setting)
    return found


def frozen_trial(space: Space, trial: Trial, value: float | None) -> Any:
    """A trial as Optuna has it. ``value``: what is minimised; None: it cannot run."""
    optuna = require_optuna()
    states = optuna.trial.TrialState
    policy = trial.setting.policy
    distributions = {"policy": optuna.distributions.CategoricalDistribution(space.policies)}
    for knob in space.knobs[policy]:
        distributions[parameter(policy, knob.field)] = _distribution(knob)
    common = {
        "params": _parameters(space, trial.setting),
        "distributions": distributions,
        "constraints": dict(trial.violations),
    }
    if value is None or not isfinite(value):
        return optuna.trial.create_trial(state=states.FAIL, **common)
    if trial.status == "stopped":
        seen = {len(trial.costs[0]): value}
        return optuna.trial.create_trial(state=states.PRUNED, intermediate_values=seen, **common)
    return optuna.trial.create_trial(state=states.COMPLETE, value=value, **common)


def parameter(policy: str, field: str) -> str:
    """Name of a knob in Optuna's study: each policy has its own, since the best values differ."""
    return f"{policy}: {field}"


def _parameters(space: Space, setting: Setting) -> dict[str, Any]:
    knobs = {knob.field: knob for knob in space.knobs[setting.policy]}
    return {"policy": setting.policy} | {
        parameter(setting.policy, field): json.dumps(value) if knobs[field].kind == "choice" else value
        for field, value in setting.values
    }


def _distribution(knob: Knob) -> Any:
    distributions = require_optuna().distributions
    if knob.kind == "choice":
        return distributions.CategoricalDistribution([json.dumps(choice) for choice in knob.choices])
    if knob.kind == "float":
        return distributions.FloatDistribution(float(knob.low), float(knob.high), log=knob.log)
    high = int(knob.nearest(knob.high))
    return distributions.IntDistribution(int(knob.low), high, log=knob.log, step=knob.step)


def _study(problem: SearchProblem, trials: Sequence[Trial], target: int | None, worlds: int) -> Any:
    """The trials so far with the target's values (regrets over all worlds, or the cost in one), and the
    policies' own settings enqueued."""
    study = require_optuna().create_study()
    least = least_costs(trials, worlds)
    for trial in trials:
        value = None
        if trial.costs and target is None:
            value = together(regrets(trial, least), problem.robust)
        elif trial.costs and target is not None:
            value = mean_cost(trial, target)
        study.add_trial(frozen_trial(problem.space, trial, value))
    for start in problem.space.starts.values():
        study.enqueue_trial(_parameters(problem.space, start), skip_if_exists=True)
    return study


def _new(problem: SearchProblem, study: Any, tried: set[Setting], number: int) -> Setting | None:
    optuna, space = require_optuna(), problem.space
    samplers = optuna.samplers
    for attempt in range(_TRIES):
        seed = stream_key(problem.sampler_seed, f"tune/trial/{number}/{attempt}") % 2**32
        last = attempt == _TRIES - 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            if last and sum(map(space.size, space.policies)) < inf:
                study.sampler = samplers.BruteForceSampler(seed=seed)
            elif attempt >= _TRIES // 2:
                study.sampler = samplers.RandomSampler(seed=seed)
            else:
                study.sampler = samplers.TPESampler(
                    seed=seed,
                    multivariate=True,
                    group=True,
                    constant_liar=True,
                    n_startup_trials=len(space.starts) + RANDOM_TRIALS,
                )
            trial = study.ask()
            policy = trial.suggest_categorical("policy", space.policies)
            names = [(knob, parameter(policy, knob.field)) for knob in space.knobs[policy]]
            values = tuple((knob.field, _suggested(trial, name, knob)) for knob, name in names)
        setting = Setting(policy, values)
        if setting not in tried:
            return setting
    return None


def _near(problem: SearchProblem, best: Setting, tried: set[Setting], number: int) -> Setting | None:
    """``best`` with one knob changed, mostly a little; None: all such changes that came up were tried."""
    knobs = [knob for knob in problem.space.knobs[best.policy] if knob.size > 1]
    key = stream_key(problem.sampler_seed, f"tune/near/{number}")
    for attempt in range(_TRIES if knobs else 0):
        knob = knobs[draw_index(key, 3 * attempt, len(knobs))]
        far = 0.5 ** (6.0 * draw_uniform(key, 3 * attempt + 1))  # from a 64th of the range to all of it
        side = 1.0 if draw_uniform(key, 3 * attempt + 2) > 0.5 else -1.0
        setting = best.replaced(**{knob.field: knob.moved(best.knobs[knob.field], far * side)})
        if setting not in tried:
            return setting
    return None


def _suggested(trial: Any, name: str, knob: Knob) -> Any:
    if knob.kind == "choice":
        return json.loads(trial.suggest_categorical(name, _distribution(knob).choices))
    if knob.kind == "float":
        return trial.suggest_float(name, float(knob.low), float(knob.high), log=knob.log)
    return trial.suggest_int(name, int(knob.low), int(knob.nearest(knob.high)), step=knob.step, log=knob.log)
