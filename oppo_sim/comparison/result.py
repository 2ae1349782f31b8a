"""Compare policies on one scenario: paired seeds, speed-up with confidence intervals, attribution by
counterfactual replay."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from oppo_sim import columns as c
from oppo_sim.comparison.plan import ComparisonPlan
from oppo_sim.comparison.ranges import Ranges, ranges_of
from oppo_sim.comparison.timelines import shown_steps, timelines_of
from oppo_sim.errors import OppoError
from oppo_sim.learning import Learning
from oppo_sim.policies.registry import BASELINE
from oppo_sim.rewards import learning_of
from oppo_sim.runs.best import (
    Objective,
    best_policy,
    losses_by_draw,
    losses_by_seed,
    not_told_apart,
    to_reward_by_effect,
)
from oppo_sim.runs.request import ACTUAL
from oppo_sim.runs.statistics import TO_REWARD, compared_row
from oppo_sim.runs.store import RunStore
from oppo_sim.runs.to_reward import Drawn, to_reward_columns

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

LOSS_COLUMNS = {
    "free_recompute": c.LOST_TO_RECOMPUTATION_S,
    "no_contention": c.LOST_TO_CONTENTION_S,
    "free_padding": c.LOST_TO_PADDING_S,
    "free_cuts": c.LOST_TO_CUTS_S,
}
ATTRIBUTION_COLUMNS = (c.HIDDEN_BY_OVERLAP_S, c.SAVED_BY_SHORTER_TAIL_S, *LOSS_COLUMNS.values())


@dataclass(frozen=True, repr=False)
class Comparison:
    """The result of ``compare``.

    ``table`` has a row for each policy: ``step_s`` (seconds a step), ``speedup`` (ratio to the sequential
    baseline), ``staleness_mean`` (updates), ``length_bias_paired`` (share), ``deferred`` (rollouts a step),
    ``hours_to_reward`` (h); ends of 95 % intervals have the suffixes ``_low`` and ``_high``. ``attribution``
    says in seconds a step where the time went, ``cells`` has a row for each run. All columns with units:
    ``oppo_sim.explain(compared.table)``, docs/columns.md.
    """

    table: "pd.DataFrame"
    """One row a policy, index ``policy``: step time, speed-up with its interval, stages, staleness, length
    bias, time to the target reward (``oppo_sim.explain(comparison.table)``)."""
    attribution: "pd.DataFrame"
    """One row a policy: seconds a step hidden, saved and lost (NaN: not applicable)."""
    cells: "pd.DataFrame"
    """One row a cell of the scenario's own machine."""
    ranges: Ranges | None = None
    """What the unknowns of the machine do to it; None: the machine is taken as given, or no draws were
    wanted."""
    plan: ComparisonPlan | None = None
    """What was compared."""

    @property
    def objective(self) -> Objective:
        """What is best."""
        return "rollouts" if self.plan is None else self.plan.objective

    @property
    def best(self) -> str:
        """The policy with the shortest step, or time to the target reward, of those that a real run can
        follow."""
        return best_policy(self.table, self.objective)

    @property
    def alike(self) -> list[str]:
        """Policies that cannot be told apart from the best on the paired seeds and the draws of the machine,
        to the target reward those of the effect of staleness, too (5 % level), or are worse by no more than
        ``practical``."""
        drawn = None if self.ranges is None else losses_by_draw(self.ranges.runs, self.objective)
        if drawn is None and self.plan is not None and self.objective == TO_REWARD:
            learning = learning_of(self.plan.scenario.rewards, self.plan.steps)
            drawn = to_reward_by_effect(self.cells, learning)
        practical = 0.0 if self.plan is None else self.plan.practical
        return not_told_apart(losses_by_seed(self.cells, self.objective), self.best, drawn, practical)

    def __repr__(self) -> str:
        told = ", ".join(f"{name} {value:.2f}×" for name, value in self.table[c.SPEEDUP].items())
        return f"Comparison({told})"

    def _repr_html_(self) -> str:
        return self.table.to_html(float_format=lambda value: f"{value:.4g}")

    def plot(self, what: Literal["speedup", "step_time", "attribution"] = "speedup") -> "Figure":
        """Speed-up or step time by policy with 95 % intervals, or where the time went. Raises OppoError for
        another word."""
        from oppo_sim.report import comparison_figures as draw

        name = "" if self.plan is None else self.plan.scenario.name
        drawn = {
            "speedup": lambda: draw.speedup_figure(self.table, BASELINE, name),
            "step_time": lambda: draw.step_time_figure(self.table, name),
            "attribution": lambda: draw.attribution_figure(self.attribution, name),
        }
        if what not in drawn:
            raise OppoError(f"a comparison has no figure '{what}': choose {', '.join(drawn)}")
        return drawn[what]()

    def gantt(self, steps: tuple[int, int] | None = None) -> "Figure":
        """What every device did in some steps (first and last; None: two after the warm-up), one policy under
        the other, on the first seed: they are simulated again for it. Raises OppoError for steps that were
        not run."""
        from oppo_sim.report.timeline import compare_gantt

        assert self.plan is not None
        plan = self.plan
        shown = shown_steps(plan.scenario.warmup_steps, plan.steps) if steps is None else steps
        return compare_gantt(timelines_of(plan.setups, plan.steps, shown), shown)


def comparison_of(plan: ComparisonPlan, store: RunStore) -> Comparison:
    """Tables from finished runs."""
    import pandas as pd

    cells = pd.DataFrame(
        [
            {
                c.RUN_POLICY: cell.label,
                c.RUN_SEED: cell.request.seed,
                c.VARIANT: cell.variant,
                **(store[cell.request.key].totals or {}),
            }
            for cell in plan.cells
        ]
    )

    @cache
    def of(label: str, variant: str) -> "pd.DataFrame":
        return (
            cells[(cells[c.RUN_POLICY] == label) & (cells[c.VARIANT] == variant)]
            .set_index(c.RUN_SEED)
            .sort_index()
        )

    @cache
    def actual_of(label: str) -> list[dict[Hashable, Any]]:
        return of(label, ACTUAL).to_dict("records")

    baselines = plan.baselines
    compared = [one.label for one in plan.policies]
    labels = list(dict.fromkeys([*baselines.values(), *compared]))
    rows, shares = [], []
    learning = learning_of(plan.scenario.rewards, plan.steps)
    for label in labels:
        actual, base = actual_of(label), actual_of(baselines.get(label, label))
        bound_only = label in plan.setups and plan.setups[label].policy_factory().oracle
        to_reward = to_reward_columns(actual, base, learning, _drawn_of(plan, store, label))
        rows.append(
            {c.RUN_POLICY: label, **compared_row(actual, base), **to_reward, c.BOUND_ONLY: bound_only}
        )
        if label in compared and label != BASELINE:
            shares.append({c.RUN_POLICY: label, **_attribution(of, label)})
    table = pd.DataFrame(rows).set_index(c.RUN_POLICY)
    attribution = pd.DataFrame(shares, columns=[c.RUN_POLICY, *ATTRIBUTION_COLUMNS]).set_index(c.RUN_POLICY)
    if not plan.drawn:
        return Comparison(table, attribution, cells, plan=plan)
    ranges = _ranges(plan, store, table, learning)
    return Comparison(pd.concat([table, ranges.columns], axis=1), attribution, cells, ranges, plan)


def _drawn_of(plan: ComparisonPlan, store: RunStore, label: str) -> list[list[Drawn]]:
    """The runs of a label on draws of the machine, with those of its baseline."""

    def totals_of(name: str) -> dict[tuple[int, int], Mapping[str, float]]:
        return {
            (cell.draw or 0, cell.request.seed): store[cell.request.key].totals or {}
            for cell in plan.drawn
            if cell.label == name
        }

    runs, bases = totals_of(label), totals_of(plan.baselines.get(label, label))
    return [
        [Drawn(place, runs[draw, seed], bases[draw, seed]) for place, seed in enumerate(plan.seeds)]
        for draw in range(len(plan.machine.draws) if plan.drawn else 0)
    ]


def _ranges(plan: ComparisonPlan, store: RunStore, table: "pd.DataFrame", learning: Learning) -> Ranges:
    import pandas as pd

    rows = []
    for cell in plan.drawn:
        totals = store[cell.request.key].totals
        assert totals is not None
        seconds = {name: totals[name] for name in (c.TIMING_STEP, c.S_PER_ROLLOUT, c.S_PER_TOKEN)}
        seconds[c.TIME_TO_REWARD_S] = learning.seconds(totals, cell.draw)
        rows.append({c.RUN_POLICY: cell.label, c.DRAW: cell.draw, c.RUN_SEED: cell.request.seed, **seconds})
    return ranges_of(plan.machine, pd.DataFrame(rows), plan.baselines, table, plan.objective)


def _attribution(of: "Callable[[str, str], pd.DataFrame]", label: str) -> dict[str, float]:
    actual = of(label, ACTUAL)[c.TIMING_STEP]

    def difference(variant: str) -> float:
        without = of(label, variant)
        return float((without[c.TIMING_STEP] - actual).mean()) if len(without) else float("nan")

    shares = {
        c.HIDDEN_BY_OVERLAP_S: difference("batch_scoring"),
        c.SAVED_BY_SHORTER_TAIL_S: difference("no_tail"),
    }
    return shares | {column: -difference(variant) for variant, column in LOSS_COLUMNS.items()}
