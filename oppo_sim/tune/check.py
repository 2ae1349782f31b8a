"""Settings on fresh seeds: what is reported is measured anew, since the best of many trials looks better than
it is."""

from collections.abc import Sequence
from statistics import fmean

from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.policies.registry import BASELINE
from oppo_sim.runs.statistics import alike, compared_row, paired
from oppo_sim.tune.bench import Bench, Need
from oppo_sim.tune.constraints import broken
from oppo_sim.tune.regret import best_in, mean_cost, ranked
from oppo_sim.tune.result import Against, Checked
from oppo_sim.tune.search import SearchProblem, judged
from oppo_sim.tune.space import Setting
from oppo_sim.tune.store import Trial

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
    rows = []
    for runs, base, all_admitted in zip(totals, baselines, admitted, strict=True):
        row = compared_row(runs, base)
        row[c.S_PER_ROLLOUT] = fmean(run[c.S_PER_ROLLOUT] for run in runs)
        row[c.S_PER_TOKEN] = fmean(run[c.S_PER_TOKEN] for run in runs)
        row[c.COMPARED_KV_PEAK_TOKENS] = max(run[c.COMPARED_KV_PEAK_TOKENS] for run in runs)
        row[c.LENGTH_BIAS_PAIRED] = (
            fmean(
                run["length_mean"] / one["length_mean"] for run, one in zip(runs, all_admitted, strict=True)
            )
            - 1.0
        )
        rows.append(row)
    costs = tuple(tuple(run[problem.cost] for run in runs) for runs in totals)
    return Checked(
        setting, why, tuple(rows), costs, bench.baseline(setting, 0).label, measured, found, number
    )


def chosen_of(
    problem: SearchProblem, bench: Bench, trials: Sequence[Trial], seeds: Sequence[int]
) -> tuple[Checked | None, list[Checked]]:
    """The best trial that keeps its bounds on fresh seeds, too, and all that were looked at; None: none
    does."""
    looked: dict[int, Checked] = {}

    def look(trial: Trial) -> Checked:
        if trial.number not in looked:
            looked[trial.number] = check(
                problem, bench, trial.setting, seeds, f"trial {trial.number}", trial.number
            )
        return looked[trial.number]

    first = candidates(problem, trials, len(bench.worlds))
    # All at once where there are several processes; check() then finds the runs in the journal.
    bench.run(
        [
            Need(trial.setting, world, seed)
            for trial in first
            for world in range(len(bench.worlds))
            for seed in seeds
        ]
    )
    for trial in first:
        look(trial)
    for trial in ranked(trials, len(bench.worlds), problem.robust)[:MOST_TRIED]:
        if not broken(look(trial).violations):
            return look(trial), list(looked.values())
    return None, list(looked.values())


def given_settings(bench: Bench, problem: SearchProblem, seeds: Sequence[int]) -> list[Checked]:
    """The scenario's own policy with its own settings, and plain sequential; what cannot run is left out."""
    scenario = bench.worlds[0].scenario
    own = Setting(
        scenario.policy.name,
        tuple((f"policy.{name}", value) for name, value in scenario.policy.settings.items()),
    )
    found = []
    for setting, why in ((own, AS_GIVEN), (Setting(BASELINE), "the baseline")):
        try:
            found.append(check(problem, bench, setting, seeds, why))
        except OppoError:
            continue
    return found


def beside(chosen: Checked, everything: Sequence[Checked]) -> list[Against]:
    """Everything that was checked, beside the chosen one; the best on these seeds first."""
    worlds = range(len(chosen.costs))
    kept = [each for each in everything if each.number is not None and not broken(each.violations)]
    least = [min(fmean(each.costs[world]) for each in kept) for world in worlds]
    found = []
    for each in everything:
        ratios = relative_costs(each.costs, chosen.costs)
        ones = [1.0] * len(ratios)
        found.append(
            Against(
                each,
                paired(ratios, ones),
                alike(ratios, ones),
                not broken(each.violations),
                tuple(fmean(each.costs[world]) / least[world] - 1.0 for world in worlds),
            )
        )
    return sorted(found, key=lambda one: one.relative[0])


def relative_costs(costs: Sequence[Sequence[float]], chosen: Sequence[Sequence[float]]) -> list[float]:
    """Seed by seed: cost over the chosen one's, mean over the worlds."""
    ratios = [
        [here / there for here, there in zip(world, other, strict=False)]
        for world, other in zip(costs, chosen, strict=True)
    ]
    return [fmean(seed) for seed in zip(*ratios, strict=True)]


def nearest_of(trials: Sequence[Trial]) -> Trial | None:
    """The trial that breaks its bounds least (the sum of the shares), the quicker of two equal ones; None:
    nothing ran."""
    ran = [trial for trial in trials if trial.costs and broken(trial.violations)]

    def distance(trial: Trial) -> tuple[float, float]:
        return round(sum(max(0.0, by) for by in trial.violations.values()), 12), mean_cost(trial, 0)

    return min(ran, key=distance, default=None)
