"""Settings on fresh seeds: what is reported is measured anew, since the best of many trials looks better
than it is. And the surroundings of the chosen one: how flat it is, which knob matters, which depend on each
other."""

import itertools
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log
from statistics import fmean, pvariance
from typing import Any

from oppo_sim import columns as c
from oppo_sim.errors import HaltError, OppoError
from oppo_sim.policies.registry import BASELINE
from oppo_sim.runs.statistics import alike, compared_row, interval, paired, paired_bias
from oppo_sim.runs.to_reward import to_reward_columns
from oppo_sim.tune.request import broken
from oppo_sim.tune.search import SearchProblem, frozen_trial, judged, parameter
from oppo_sim.tune.space import Setting
from oppo_sim.tune.trials import (
    Checked,
    Interaction,
    KnobEffect,
    PairedResult,
    Trial,
    best_in,
    mean_cost,
    ranked,
    require_optuna,
)
from oppo_sim.tune.worlds import Bench, Need

MOST_TRIED = 40
"""Trials that are tried as the choice, where those before break a bound on fresh seeds."""
RUNNERS_UP = 8
"""Best trials that are looked at again."""
AS_GIVEN = "as the scenario has it"


def candidates(problem: SearchProblem, trials: Sequence[Trial], worlds: int) -> list[Trial]:
    """The best trials, the best of each policy and the best of each world, by rank."""
    order = ranked(trials, worlds, problem.robust)
    wanted = {trial.number for trial in order[:RUNNERS_UP]}
    for policy in problem.space.policies:
        first = next((trial for trial in order if trial.setting.policy == policy), None)
        wanted |= {first.number} if first is not None else set()
    for world in range(worlds):
        best = best_in(trials, world)
        wanted |= {best.number} if best is not None else set()
    return [trial for trial in order if trial.number in wanted]


def check(
    problem: SearchProblem,
    bench: Bench,
    setting: Setting,
    seeds: Sequence[int],
    why: str,
    number: int | None = None,
) -> Checked:
    """A setting on ``seeds`` in every world. Raises OppoError for what cannot run."""
    worlds = range(len(bench.worlds))
    totals = [bench.totals(setting, world, seeds) for world in worlds]
    baselines = [bench.baseline_totals(setting, world, seeds) for world in worlds]
    admitted = [bench.trains_all(setting, world, seeds) for world in worlds]
    measured, found = judged(problem, bench, setting, totals, admitted)
    rows: list[dict[str, float]] = []
    for runs, base, all_admitted in zip(totals, baselines, admitted, strict=True):
        row = compared_row(runs, base)
        row[c.S_PER_ROLLOUT] = fmean(run[c.S_PER_ROLLOUT] for run in runs)
        row[c.S_PER_TOKEN] = fmean(run[c.S_PER_TOKEN] for run in runs)
        row[c.TIME_TO_REWARD_S] = fmean(run[c.TIME_TO_REWARD_S] for run in runs)
        row |= to_reward_columns(runs, base, bench.resolve(setting, len(rows)).learning)
        row[c.COMPARED_KV_PEAK_TOKENS] = max(run[c.COMPARED_KV_PEAK_TOKENS] for run in runs)
        row[c.LENGTH_BIAS_PAIRED] = paired_bias(runs, all_admitted)
        rows.append(row)
    costs = tuple(tuple(run[problem.cost] for run in runs) for runs in totals)
    baseline = bench.baseline(setting, 0).label
    return Checked(setting, why, tuple(rows), costs, baseline, measured, found, number)


def chosen_of(
    problem: SearchProblem, bench: Bench, trials: Sequence[Trial], seeds: Sequence[int]
) -> tuple[Checked | None, list[Checked]]:
    """The best trial that keeps its bounds on fresh seeds, too (None: none does), and all looked at."""
    looked: dict[int, Checked] = {}

    def look(trial: Trial) -> Checked:
        if trial.number not in looked:
            why = f"trial {trial.number}"
            looked[trial.number] = check(problem, bench, trial.setting, seeds, why, trial.number)
        return looked[trial.number]

    first = candidates(problem, trials, len(bench.worlds))
    # All at once where there are several processes; check() then finds the runs in the journal.
    worlds = range(len(bench.worlds))
    bench.run([Need(trial.setting, world, seed) for trial in first for world in worlds for seed in seeds])
    for trial in first:
        look(trial)
    for trial in ranked(trials, len(bench.worlds), problem.robust)[:MOST_TRIED]:
        if not broken(look(trial).violations):
            return look(trial), list(looked.values())
    return None, list(looked.values())


def given_settings(bench: Bench, problem: SearchProblem, seeds: Sequence[int]) -> list[Checked]:
    """The scenario's own policy with its own settings, and plain sequential; what cannot run is left out."""
    scenario = bench.worlds[0].scenario
    settings = tuple((f"policy.{name}", value) for name, value in scenario.policy.settings.items())
    own = Setting(scenario.policy.name, settings)
    found = []
    for setting, why in ((own, AS_GIVEN), (Setting(BASELINE), "the baseline")):
        try:
            found.append(check(problem, bench, setting, seeds, why))
        except HaltError:
            raise
        except OppoError:
            continue
    return found


def beside(chosen: Checked, everything: Sequence[Checked]) -> list[PairedResult]:
    """Everything that was checked, beside the chosen one; the best on these seeds first."""
    worlds = range(len(chosen.costs))
    kept = [each for each in everything if each.number is not None and not broken(each.violations)]
    least = [min(fmean(each.costs[world]) for each in kept) for world in worlds]
    found = []
    for each in everything:
        ratios = relative_costs(each.costs, chosen.costs)
        ones = [1.0] * len(ratios)
        found.append(
            PairedResult(
                each,
                paired(ratios, ones),
                alike(ratios, ones),
                not broken(each.violations),
                tuple(fmean(each.costs[world]) / least[world] - 1.0 for world in worlds),
            )
        )
    return sorted(found, key=lambda one: one.relative[0])


def within(found: Sequence[PairedResult], practical: float) -> list[PairedResult]:
    """Those whose cost differs from the choice's by no more than this share count as alike, however sure the
    difference is."""
    return [
        replace(one, alike=one.alike or (practical > 0 and abs(one.relative[0]) <= practical))
        for one in found
    ]


def relative_costs(costs: Sequence[Sequence[float]], chosen: Sequence[Sequence[float]]) -> list[float]:
    """Seed by seed: cost over the chosen one's, mean over the worlds."""
    ratios = [
        [here / there for here, there in zip(world, other, strict=False)]
        for world, other in zip(costs, chosen, strict=True)
    ]
    return [fmean(seed) for seed in zip(*ratios, strict=True)]


def nearest_of(trials: Sequence[Trial]) -> Trial | None:
    """The trial that breaks its bounds least (sum of shares), then the quicker; None: nothing ran."""
    ran = [trial for trial in trials if trial.costs and broken(trial.violations)]

    def distance(trial: Trial) -> tuple[float, float]:
        return round(sum(max(0.0, by) for by in trial.violations.values()), 12), mean_cost(trial, 0)

    return min(ran, key=distance, default=None)


# ---- the surroundings of the chosen setting ---------------------------------------------------------------

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
        is_number = isinstance(self.value, int | float) and not isinstance(self.value, bool)
        return {
            "field": self.field,
            "value": json.dumps(self.value),
            "value_number": float(self.value if is_number else "nan"),
            **dict(zip(("relative", "relative_low", "relative_high"), self.relative, strict=True)),
            "status": "failed" if self.error else "infeasible" if self.broken else "ok",
            c.BROKEN: ", ".join(self.broken),
            "error": self.error,
        }


def sweep_knobs(problem: SearchProblem, bench: Bench, chosen: Checked, seeds: Sequence[int]) -> list[Swept]:
    """Each knob of the chosen policy over its whole range, one at a time."""
    knobs = problem.space.knobs[chosen.setting.policy]
    at = chosen.setting.knobs
    wanted = [(knob, value) for knob in knobs for value in knob.grid(VALUES, at[knob.field]) if knob.size > 1]
    settings = [chosen.setting.replaced(**{knob.field: value}) for knob, value in wanted]
    found = zip(wanted, _relative(problem, bench, chosen, settings, seeds), strict=True)
    return [Swept(knob.field, value, *results) for (knob, value), results in found]


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
        least = min((one for one in ran if not one.broken), key=lambda one: one.relative[0], default=None)
        effects.append(
            KnobEffect(
                field,
                chosen.knobs[field],
                flat(values, chosen.knobs[field]),
                least.value if least else chosen.knobs[field],
                least.relative[0] if least else 0.0,
                max(one.relative[0] for one in ran),
                variances[field] / whole if whole > 0 else 0.0,
                importance.get(field),
                min(better, key=lambda one: one.relative[0]).value if better else None,
                any(one.broken for one in ran),
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
    """Pairs of the knobs that matter most: both changed against each alone; of each the strongest."""
    others = {effect.field: _other_values(effect, swept) for effect in effects}
    fields = [effect.field for effect in effects if others[effect.field]]
    pairs = list(itertools.combinations(fields, 2))[:MOST_PAIRS]
    corners = [(a, b, x, y) for a, b in pairs for x in others[a] for y in others[b]]
    single = {(one.field, json.dumps(one.value)): one for one in swept}
    found: dict[tuple[str, str], Interaction] = {}
    settings = [chosen.setting.replaced(**{a: x, b: y}) for a, b, x, y in corners]
    results = _relative(problem, bench, chosen, settings, seeds)
    for (a, b, x, y), (_, ratios, _, error) in zip(corners, results, strict=True):
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
    own = [trial for trial in trials if trial.setting.policy == policy]
    done = [trial for trial in own if trial.status in ("ok", "infeasible")]
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
    needs = [Need(setting, world, seed) for setting in settings for world in worlds for seed in seeds]
    results = iter(bench.run(needs))
    found: list[_Found] = []
    for setting in settings:
        here = [[next(results) for _ in seeds] for _ in worlds]
        error = next((one.error for world in here for one in world if one.totals is None), None)
        if error is not None:
            found.append(((_NAN, _NAN, _NAN), (), (), error))
            continue
        totals = [[dict(one.totals or {}) for one in world] for world in here]
        admitted = [bench.trains_all(setting, world, seeds) for world in worlds]
        _, violated = judged(problem, bench, setting, totals, admitted)
        ratios = relative_costs([[run[problem.cost] for run in world] for world in totals], chosen.costs)
        found.append((paired(ratios, [1.0] * len(ratios)), tuple(ratios), broken(violated), None))
    return found


def _ran(values: Sequence[Swept]) -> list[Swept]:
    return [one for one in values if one.error is None]


def flat(swept: Sequence[Swept], chosen: Any) -> tuple[Any, Any] | None:
    """The values around the chosen one, next to each other, within FLAT of the least cost; None: the chosen
    one is not."""
    values = sorted(swept, key=lambda one: one.value is None)  # no bound lies beyond every number
    place = next(i for i, one in enumerate(values) if json.dumps(one.value) == json.dumps(chosen))
    least = min((1.0 + one.relative[0] for one in _ran(values) if not one.broken), default=1.0)

    def within(one: Swept) -> bool:
        return one.error is None and not one.broken and 1.0 + one.relative[0] <= least * (1.0 + FLAT)

    if least * (1.0 + FLAT) < 1.0:
        return None
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
