"""Which settings to try next: Optuna's TPE over policies and, for each, its own knobs.

The sampler is asked anew for every trial, with the trials before it and a seed that follows from the trial's
number: a search that goes on proposes what it would have proposed without the interruption, in any number of
    processes.
"""

import itertools
import json
import warnings
from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any

from oppo_sim.draws import draw_index, draw_uniform, stream_key
from oppo_sim.policies.knobs import Knob
from oppo_sim.tune.regret import least_costs, mean_cost, ranked, regrets, together
from oppo_sim.tune.request import Robust
from oppo_sim.tune.space import Setting, Space
from oppo_sim.tune.store import Trial, require_optuna

BATCH = 4
"""Trials that are proposed together, whatever the number of processes."""
RANDOM_TRIALS = 12
"""Drawn evenly before the sampler has something to learn from, beside the policies' own settings."""
LOCAL = 3
"""Of each batch the last trial changes one knob of the best so far: the sampler finds the valley, this its
bottom and its edges."""
_TRIES = 12
_LARGEST_LISTED = 200_000


def propose(
    space: Space, trials: Sequence[Trial], first: int, count: int, worlds: int, how: Robust, seed: int
) -> list[Setting]:
    """Settings for the trials ``first`` to ``first + count - 1``, from those before; fewer, or none, where
    all have been tried.

    With several worlds, every second trial looks for the best of one world, so that regrets are measured
    against something.
    """
    tried = {trial.setting for trial in trials}
    starts = list(space.starts.values())
    found: list[Setting] = []
    studies: dict[int | None, Any] = {}
    for number in range(first, first + count):
        if number < len(starts):
            found.append(starts[number])
            tried.add(starts[number])
            continue
        target = (number // 2) % worlds if worlds > 1 and number % 2 else None
        setting = None
        if number % BATCH == LOCAL and number >= len(starts) + RANDOM_TRIALS:
            best = ranked(trials, worlds, how)
            setting = _near(space, best[0].setting, tried, number, seed) if best else None
        if setting is None:
            setting = _new(space, trials, tried, number, len(starts), target, studies, worlds, how, seed)
        if setting is None:
            break
        found.append(setting)
        tried.add(setting)
    return found


def frozen_trial(space: Space, trial: Trial, value: float | None, *, all_policies: bool = True) -> Any:
    """A trial as Optuna has it. ``value``: what is minimised; None: it cannot run."""
    optuna = require_optuna()
    names = space.policies if all_policies else _searched(space)
    states = optuna.trial.TrialState
    knobs = {knob.field: knob for knob in space.knobs[trial.setting.policy]}
    distributions = {"policy": optuna.distributions.CategoricalDistribution(names)}
    params: dict[str, Any] = {"policy": trial.setting.policy}
    for field, given in trial.setting.values:
        name = parameter(trial.setting.policy, field)
        distributions[name] = _distribution(knobs[field])
        params[name] = json.dumps(given) if knobs[field].kind == "choice" else given
    common = {"params": params, "distributions": distributions, "constraints": dict(trial.violations)}
    if value is None or not isfinite(value):
        return optuna.trial.create_trial(state=states.FAIL, **common)
    if trial.status == "stopped":
        return optuna.trial.create_trial(
            state=states.PRUNED, intermediate_values={len(trial.costs[0]): value}, **common
        )
    return optuna.trial.create_trial(state=states.COMPLETE, value=value, **common)


def parameter(policy: str, field: str) -> str:
    """Name of a knob in Optuna's study: each policy has its own, since the best values differ."""
    return f"{policy}: {field}"


# ---- inside ------------------------------------------------------------------------------------------------


def _searched(space: Space) -> tuple[str, ...]:
    """Policies with something to search; the others have one setting, which is tried first."""
    return tuple(policy for policy in space.policies if space.size(policy) > 1)


def _new(
    space: Space,
    trials: Sequence[Trial],
    tried: set[Setting],
    number: int,
    starts: int,
    target: int | None,
    studies: dict[int | None, Any],
    worlds: int,
    how: Robust,
    seed: int,
) -> Setting | None:
    optuna = require_optuna()
    if not _searched(space):
        return None
    at_random = number < starts + RANDOM_TRIALS
    if target not in studies:
        studies[target] = _study(space, [] if at_random else trials, target, worlds, how)
    study = studies[target]
    for attempt in range(_TRIES):
        draw = stream_key(seed, f"tune/trial/{number}/{attempt}") % 2**32
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.sampler = (
                optuna.samplers.RandomSampler(seed=draw)
                if at_random or attempt >= _TRIES // 2
                else optuna.samplers.TPESampler(
                    seed=draw, multivariate=True, group=True, constant_liar=True, n_startup_trials=1
                )
            )
            setting = _asked(study, space)
        if setting not in tried:
            return setting
    return _untried(space, tried, seed, number)


def _near(space: Space, best: Setting, tried: set[Setting], number: int, seed: int) -> Setting | None:
    """``best`` with one knob changed, mostly a little; None: all such changes that came up were tried."""
    knobs = [knob for knob in space.knobs[best.policy] if knob.size > 1]
    key = stream_key(seed, f"tune/near/{number}")
    for attempt in range(_TRIES if knobs else 0):
        knob = knobs[draw_index(key, 3 * attempt, len(knobs))]
        far = 0.5 ** (6.0 * draw_uniform(key, 3 * attempt + 1))  # from a 64th of the range to all of it
        side = 2.0 * draw_uniform(key, 3 * attempt + 2) - 1.0
        setting = best.replaced(**{knob.field: knob.moved(best.knobs[knob.field], far if side > 0 else -far)})
        if setting not in tried:
            return setting
    return None


def _asked(study: Any, space: Space) -> Setting:
    trial = study.ask()
    policy = trial.suggest_categorical("policy", _searched(space))
    return Setting(
        policy,
        tuple(
            (knob.field, _suggested(trial, parameter(policy, knob.field), knob))
            for knob in space.knobs[policy]
        ),
    )


def _suggested(trial: Any, name: str, knob: Knob) -> Any:
    if knob.kind == "choice":
        return json.loads(trial.suggest_categorical(name, [json.dumps(choice) for choice in knob.choices]))
    if knob.kind == "float":
        return trial.suggest_float(name, float(knob.low), float(knob.high), log=knob.log)
    return trial.suggest_int(name, int(knob.low), int(knob.nearest(knob.high)), step=knob.step, log=knob.log)


def _study(space: Space, trials: Sequence[Trial], target: int | None, worlds: int, how: Robust) -> Any:
    """The trials so far with the target's values: regrets over all worlds, or the cost in one."""
    optuna = require_optuna()
    study = optuna.create_study()
    least = least_costs(trials, worlds)
    searched = _searched(space)

    def value(trial: Trial) -> float:
        return together(regrets(trial, least), how) if target is None else mean_cost(trial, target)

    ran = (trial for trial in trials if trial.setting.policy in searched and trial.costs)
    study.add_trials([frozen_trial(space, trial, value(trial), all_policies=False) for trial in ran])
    return study


def _distribution(knob: Knob) -> Any:
    distributions = require_optuna().distributions
    if knob.kind == "choice":
        return distributions.CategoricalDistribution([json.dumps(choice) for choice in knob.choices])
    if knob.kind == "float":
        return distributions.FloatDistribution(float(knob.low), float(knob.high), log=knob.log)
    return distributions.IntDistribution(
        int(knob.low), int(knob.nearest(knob.high)), log=knob.log, step=knob.step
    )


def _untried(space: Space, tried: set[Setting], seed: int, number: int) -> Setting | None:
    """A setting of a small space that was not tried, drawn; None: there is none, or the space is too large to
    list."""
    left = []
    for policy in _searched(space):
        if space.size(policy) > _LARGEST_LISTED:
            return None
        left += [setting for setting in _listed(space, policy) if setting not in tried]
    return left[draw_index(stream_key(seed, "tune/untried"), number, len(left))] if left else None


def _listed(space: Space, policy: str) -> Iterator[Setting]:
    knobs = space.knobs[policy]
    values = [
        (
            knob.choices
            if knob.kind == "choice"
            else [knob.nearest(knob.low + i * knob.step) for i in range(int(knob.size))]
        )
        for knob in knobs
    ]
    for combined in itertools.product(*values):
        yield Setting(policy, tuple((knob.field, value) for knob, value in zip(knobs, combined, strict=True)))
