"""The surroundings of the chosen setting: how flat it is, which knob matters, which knobs depend on each
other."""

import itertools
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean, pvariance
from typing import Any

from oppo_sim import columns as c
from oppo_sim.runs.statistics import interval, paired
from oppo_sim.tune.bench import Bench, Need
from oppo_sim.tune.check import relative_costs
from oppo_sim.tune.constraints import broken
from oppo_sim.tune.regret import mean_cost
from oppo_sim.tune.result import Checked, Interaction, KnobEffect
from oppo_sim.tune.sampler import frozen_trial, parameter
from oppo_sim.tune.search import SearchProblem, judged
from oppo_sim.tune.space import Setting
from oppo_sim.tune.store import Trial, require_optuna

VALUES = 9
"""Values of a knob that are tried, beside its neighbours at the chosen one."""
FLAT = 0.01
ENOUGH_TRIALS = 20
MOST_PAIRS = 6


@dataclass(frozen=True)
class Swept:
    """One value of one knob, everything else as chosen."""

    field: str
    value: Any
    relative: tuple[float, float, float]
    """Cost over the chosen one's minus 1, with its 95 % interval; NaN where it cannot run."""
    ratios: tuple[float, ...]
    broken: tuple[str, ...]
    error: str | None = None

    def row(self) -> dict[str, Any]:
        """For the table of sensitivity."""
        number = (
            self.value
            if isinstance(self.value, int | float) and not isinstance(self.value, bool)
            else float("nan")
        )
        return {
            "field": self.field,
            "value": json.dumps(self.value),
            "value_number": float(number),
            "relative": self.relative[0],
            "relative_low": self.relative[1],
            "relative_high": self.relative[2],
            "status": "failed" if self.error else "infeasible" if self.broken else "ok",
            c.BROKEN: ", ".join(self.broken),
            "error": self.error,
        }


def sweep_knobs(problem: SearchProblem, bench: Bench, chosen: Checked, seeds: Sequence[int]) -> list[Swept]:
    """Each knob of the chosen policy over its whole range, one at a time."""
    knobs = problem.space.knobs[chosen.setting.policy]
    at = chosen.setting.knobs
    wanted = [(knob, value) for knob in knobs for value in knob.grid(VALUES, at[knob.field]) if knob.size > 1]
    return [
        Swept(knob.field, value, *found)
        for (knob, value), found in zip(
            wanted,
            _relative(
                problem,
                bench,
                chosen,
                [chosen.setting.replaced(**{knob.field: value}) for knob, value in wanted],
                seeds,
            ),
            strict=True,
        )
    ]


def knob_effects(
    problem: SearchProblem, chosen: Setting, swept: Sequence[Swept], trials: Sequence[Trial]
) -> list[KnobEffect]:
    """What the sweeps say of each knob, the one that matters most first."""
    importance = ped_anova(problem, chosen.policy, trials)
    by_field: dict[str, list[Swept]] = {}
    for each in swept:
        by_field.setdefault(each.field, []).append(each)
    variances = {
        field: pvariance([log(1.0 + one.relative[0]) for one in ran]) if (ran := _ran(values)) else 0.0
        for field, values in by_field.items()
    }
    whole = sum(variances.values())
    effects = []
    for field, values in by_field.items():
        ran = _ran(values)
        better = [one for one in ran if not one.broken and one.relative[2] < 0]
        effects.append(
            KnobEffect(
                field,
                chosen.knobs[field],
                _flat(values, chosen.knobs[field]),
                max(one.relative[0] for one in ran),
                variances[field] / whole if whole > 0 else 0.0,
                importance.get(field),
                min(better, key=lambda one: one.relative[0]).value if better else None,
            )
        )
    return sorted(effects, key=lambda effect: (-effect.share, effect.field))


def interactions(
    problem: SearchProblem,
    bench: Bench,
    chosen: Checked,
    effects: Sequence[KnobEffect],
    swept: Sequence[Swept],
    seeds: Sequence[int],
) -> list[Interaction]:
    """For pairs of the knobs that matter most: both changed against each changed alone; of each pair the
    strongest."""
    others = {effect.field: _other_values(effect, swept) for effect in effects}
    pairs = list(itertools.combinations([effect.field for effect in effects if others[effect.field]], 2))[
        :MOST_PAIRS
    ]
    corners = [(a, b, x, y) for a, b in pairs for x in others[a] for y in others[b]]
    single = {(one.field, json.dumps(one.value)): one for one in swept}
    found: dict[tuple[str, str], Interaction] = {}
    settings = [chosen.setting.replaced(**{a: x, b: y}) for a, b, x, y in corners]
    for (a, b, x, y), (_, ratios, _, error) in zip(
        corners, _relative(problem, bench, chosen, settings, seeds), strict=True
    ):
        if error is not None:
            continue
        alone = single[a, json.dumps(x)].ratios, single[b, json.dumps(y)].ratios
        logs = [log(both) - log(one) - log(two) for both, one, two in zip(ratios, *alone, strict=True)]
        low, high = interval(logs)
        one = Interaction((a, b), (x, y), exp(fmean(logs)) - 1.0, exp(low) - 1.0, exp(high) - 1.0)
        if (a, b) not in found or abs(one.effect) > abs(found[a, b].effect):
            found[a, b] = one
    return sorted(found.values(), key=lambda each: -abs(each.effect))


def ped_anova(problem: SearchProblem, policy: str, trials: Sequence[Trial]) -> dict[str, float]:
    """Importance of each knob for being among the best tenth of a policy's trials (PED-ANOVA, Watanabe et al.
    2023); empty: too few."""
    optuna = require_optuna()
    done = [
        trial for trial in trials if trial.setting.policy == policy and trial.status in ("ok", "infeasible")
    ]
    knobs = [knob for knob in problem.space.knobs[policy] if knob.size > 1]
    if len(done) < ENOUGH_TRIALS or len(knobs) < 2:
        return {}
    study = optuna.create_study()
    study.add_trials([frozen_trial(problem.space, trial, mean_cost(trial, 0)) for trial in done])
    names = {parameter(policy, knob.field): knob.field for knob in knobs}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = optuna.importance.get_param_importances(
            study, evaluator=optuna.importance.PedAnovaImportanceEvaluator(), params=list(names)
        )
    return {names[name]: float(value) for name, value in found.items()}


# ---- inside ------------------------------------------------------------------------------------------------

_Found = tuple[tuple[float, float, float], tuple[float, ...], tuple[str, ...], str | None]
_NAN = float("nan")


def _relative(
    problem: SearchProblem, bench: Bench, chosen: Checked, settings: Sequence[Setting], seeds: Sequence[int]
) -> list[_Found]:
    worlds = range(len(bench.worlds))
    results = iter(
        bench.run([Need(setting, world, seed) for setting in settings for world in worlds for seed in seeds])
    )
    found: list[_Found] = []
    for setting in settings:
        here = [[next(results) for _ in seeds] for _ in worlds]
        error = next((one.error for world in here for one in world if one.totals is None), None)
        if error is not None:
            found.append(((_NAN, _NAN, _NAN), (), (), error))
            continue
        totals = [[dict(one.totals or {}) for one in world] for world in here]
        _, violated = judged(
            problem, bench, setting, totals, [bench.trains_all(setting, world, seeds) for world in worlds]
        )
        ratios = relative_costs([[run[problem.cost] for run in world] for world in totals], chosen.costs)
        found.append((paired(ratios, [1.0] * len(ratios)), tuple(ratios), broken(violated), None))
    return found


def _ran(values: Sequence[Swept]) -> list[Swept]:
    return [one for one in values if one.error is None]


def _flat(values: Sequence[Swept], chosen: Any) -> tuple[Any, Any]:
    """The values around the chosen one, next to each other, within FLAT of the least cost."""
    place = next(i for i, one in enumerate(values) if json.dumps(one.value) == json.dumps(chosen))
    least = min(
        (1.0 + one.relative[0] for one in values if one.error is None and not one.broken), default=1.0
    )

    def within(one: Swept) -> bool:
        return one.error is None and not one.broken and 1.0 + one.relative[0] <= least * (1.0 + FLAT)

    first = last = place
    while first > 0 and within(values[first - 1]):
        first -= 1
    while last + 1 < len(values) and within(values[last + 1]):
        last += 1
    return values[first].value, values[last].value


def _other_values(effect: KnobEffect, swept: Sequence[Swept]) -> list[Any]:
    """At most one value on each side of the chosen one, a quarter of the sweep away: far enough to matter,
    not so far as to be absurd."""
    ran = [one for one in swept if one.field == effect.field and one.error is None]
    values = [one.value for one in ran]
    place = next(i for i, value in enumerate(values) if json.dumps(value) == json.dumps(effect.chosen))
    reach = max(1, len(values) // 4)
    places = {max(0, place - reach), min(len(values) - 1, place + reach)} - {place}
    return [values[i] for i in sorted(places)]


def frame_rows(swept: Sequence[Swept]) -> list[Mapping[str, Any]]:
    """The table of sensitivity, one row a value."""
    return [one.row() for one in swept]
