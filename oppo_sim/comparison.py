"""Compare policies on one scenario: paired seeds, speed-up with confidence intervals, attribution by
counterfactual replay.

A comparison is a grid of policy × variant × seed: each cell is one simulated run, kept and executed as the
runs of a sweep are.
"""

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

from oppo_sim import columns as c
from oppo_sim.comparison_best import (
    Objective,
    best_policy,
    losses_by_draw,
    losses_by_seed,
    not_told_apart,
    to_reward_by_effect,
)
from oppo_sim.comparison_ranges import Ranges, ranges_of
from oppo_sim.comparison_timelines import shown_steps, timelines_of
from oppo_sim.errors import OppoError
from oppo_sim.learning import Learning
from oppo_sim.policies.chunk_control import rounds_text
from oppo_sim.policies.interface import Batch
from oppo_sim.policies.registry import BASELINE, baseline_settings
from oppo_sim.progress import OnProgress, Progress
from oppo_sim.rewards import learning_of
from oppo_sim.runs.evaluate import checked_request, forget
from oppo_sim.runs.execute import Executor, Runner
from oppo_sim.runs.machine import EXACT, Machine, machine_of
from oppo_sim.runs.request import ACTUAL, RunRequest
from oppo_sim.runs.statistics import TO_REWARD, compared_row
from oppo_sim.runs.store import RunStore
from oppo_sim.runs.to_reward import Drawn, to_reward_columns
from oppo_sim.scenario.build import Setup, policy_settings_of
from oppo_sim.scenario.schema import Scenario
from oppo_sim.schedule.rules import runs_in_rounds

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_DOING = "simulated runs"
LOSS_COLUMNS = {
    "free_recompute": c.LOST_TO_RECOMPUTATION_S,
    "no_contention": c.LOST_TO_CONTENTION_S,
    "free_padding": c.LOST_TO_PADDING_S,
    "free_cuts": c.LOST_TO_CUTS_S,
}
ATTRIBUTION_COLUMNS = (c.HIDDEN_BY_OVERLAP_S, c.SAVED_BY_SHORTER_TAIL_S, *LOSS_COLUMNS.values())


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    label: str
    """Row of the comparison it belongs to: a policy, or a baseline."""
    variant: str
    """``no_tail``, or that of the request."""
    request: RunRequest
    draw: int | None = None
    """Of the machine; None: the scenario's own."""


@dataclass(frozen=True)
class ComparisonPlan:
    """Everything that a comparison simulates, checked."""

    scenario: Scenario
    cells: tuple[Cell, ...]
    """Baselines first."""
    setups: Mapping[str, Setup]
    """Each policy, and the plain baseline, built under the scenario's seed."""
    policies: tuple[str, ...]
    baselines: Mapping[str, str]
    """Policy → label of its baseline."""
    seeds: tuple[int, ...]
    steps: int
    machine: Machine = EXACT
    """Draws of what is unknown about the machine."""
    drawn: tuple[Cell, ...] = ()
    """The actual runs of all labels on every draw of the machine, draw by draw."""
    practical: float = 0.0
    """Differences from the best up to this share do not matter."""
    objective: Objective = "rollouts"
    """What is best."""

    @cached_property
    def requests(self) -> list[RunRequest]:
        """All runs, each once: cells that are the same run share it."""
        return list({cell.request.key: cell.request for cell in (*self.cells, *self.drawn)}.values())

    @property
    def runs(self) -> int:
        """How many are simulated."""
        return len(self.requests)


@dataclass(frozen=True, repr=False)
class Comparison:
    """The result of ``compare``."""

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


def plan_comparison(
    scenario: Scenario,
    policies: Sequence[str],
    seeds: int,
    steps: int | None,
    attribution: bool,
    draws: int = 0,
    practical: float = 0.0,
    objective: Objective = "rollouts",
) -> ComparisonPlan:
    """Check everything that the comparison needs. Raises OppoError for an unknown policy or one that cannot
    run here, and as ``machine_of``."""
    if isinstance(policies, str) or not policies:
        raise OppoError(f"policies are {policies!r}: give a list of at least one name")
    if len(set(policies)) != len(policies):
        twice = next(policy for policy in policies if list(policies).count(policy) > 1)
        raise OppoError(f"policies {', '.join(policies)} name {twice} twice: name each once")
    if objective not in get_args(Objective):
        raise OppoError(f"objective '{objective}' is not known: choose {', '.join(get_args(Objective))}")
    if not 1 <= seeds <= 10_000:
        raise OppoError(f"seeds {seeds} is out of range: give a number from 1 to 10,000")
    if scenario.trace.sampling == "in_order" and seeds > 1:
        raise OppoError(
            "trace.sampling in_order replays the same rollouts under every seed: use seeds 1, or sampling"
            " resample"
        )
    forget()
    machine = machine_of(scenario, draws)
    numbers = range(scenario.seed, scenario.seed + seeds)
    cells: dict[tuple[str, str, str], Cell] = {}
    setups, baselines = {}, {}
    for policy in dict.fromkeys((BASELINE, *policies)):
        request, setups[policy] = checked_request(scenario, policy, steps=steps)
        baselines[policy], settings = baseline_of(scenario, policy)
        base = replace(request, policy=BASELINE, settings=_text(settings), source="")
        wanted = [Cell(baselines[policy], ACTUAL, base)]
        if policy != BASELINE:
            wanted.append(Cell(policy, ACTUAL, request))
            wanted += _variants(policy, request, setups[policy]) if attribution else []
        for cell in wanted:
            for seed in numbers:
                placed = replace(cell, request=cell.request.at(seed))
                cells.setdefault((cell.label, cell.variant, placed.request.key), placed)
    # Attribution stays at the point. A process keeps what runs of one draw share, so they follow each other.
    actual = [cell for cell in cells.values() if cell.variant == ACTUAL]
    drawn = [
        replace(cell, request=cell.request.on(terms), draw=number)
        for number, terms in enumerate(machine.draws)
        for cell in actual
    ]
    return ComparisonPlan(
        scenario,
        tuple(cells.values()),
        setups,
        tuple(policies),
        {policy: baselines[policy] for policy in policies},
        tuple(numbers),
        setups[BASELINE].steps,
        machine,
        tuple(drawn),
        practical,
        objective,
    )


def baseline_of(scenario: Scenario, policy: str) -> tuple[str, dict[str, Any]]:
    """Label and settings of the sequential baseline that stops as ``policy`` does: plain ``sequential`` if
    the scenario itself stops so."""
    batch = Batch(scenario.rollout_batch_size, scenario.group_size)
    own = baseline_settings(BASELINE, policy_settings_of(scenario, BASELINE), batch) or {}
    settings = baseline_settings(policy, policy_settings_of(scenario, policy), batch, scenario.base_dir)
    if settings is None or settings == own:
        return BASELINE, own
    if not settings:
        return f"{BASELINE} (token)", settings
    chunk = settings["chunk_size"]
    if isinstance(chunk, int):
        return f"{BASELINE} (rounds of {chunk})", settings
    return f"{BASELINE} (rounds of {rounds_text(chunk)})", settings


def _variants(policy: str, request: RunRequest, setup: Setup) -> list[Cell]:
    """The counterfactuals that say something about a policy."""
    built, machine, scenario = setup.policy_factory(), setup.machine, setup.scenario
    variants = [] if built.score_granularity == "batch" else ["batch_scoring"]
    if built.schedule == "async" and setup.sample_rewards is not None:
        variants = []  # whole batches may never come together where groups are dropped
    if built.without_tail is not None:
        variants.append("no_tail")
    # Where KV is short, whatever is preempted is prefilled again; so is what a round does not keep.
    in_rounds = runs_in_rounds(built)
    if (
        built.recomputes
        or machine.kv_capacity_tokens is not None
        or (in_rounds and not machine.keeps_kv_between_rounds)
    ):
        variants.append("free_recompute")
    if machine.scoring_on != "separate" or scenario.placement.shares_host:
        variants.append("no_contention")
    if machine.batching == "static" or scenario.costs.pads_batches:
        variants.append("free_padding")
    cuts = setup.costs.cuts
    by_piece = cuts.piece_fixed_s > 0.0 or cuts.piece_send_s > 0.0 or machine.send_s_per_token > 0.0
    if (in_rounds and cuts.round_fixed_s > 0.0) or by_piece:
        variants.append("free_cuts")
    cells = []
    for variant in variants:
        if variant == "no_tail":
            settings = json.loads(request.settings) | dict(built.without_tail or {})
            cells.append(Cell(policy, variant, replace(request, settings=_text(settings))))
        else:
            cells.append(Cell(policy, variant, replace(request, variant=variant)))
    return cells


def _text(settings: Mapping[str, Any]) -> str:
    return json.dumps(dict(settings), sort_keys=True)


def make_cells(plan: ComparisonPlan, store: RunStore, executor: Executor, progress: OnProgress) -> None:
    """Make the runs that the store does not hold. Raises OppoError for the first that cannot go on."""
    requests = plan.requests
    done = plan.runs - len(store.missing(requests))
    if done:
        progress(Progress(_DOING, done, plan.runs))
    with Runner(executor) as runner:
        for finished in store.run(requests, runner):
            if error := next((result.error for _, result in finished if result.error), None):
                raise OppoError(error)
            done += len(finished)
            progress(Progress(_DOING, done, plan.runs))
    if error := next((found for each in requests if (found := store[each.key].error)), None):
        raise OppoError(error)


def comparison_of(plan: ComparisonPlan, store: RunStore) -> Comparison:
    """Tables from finished runs."""
    import pandas as pd

    cells = pd.DataFrame(
        [
            {
                "policy": cell.label,
                "seed": cell.request.seed,
                "variant": cell.variant,
                **(store[cell.request.key].totals or {}),
            }
            for cell in plan.cells
        ]
    )

    @cache
    def of(label: str, variant: str) -> "pd.DataFrame":
        return (
            cells[(cells["policy"] == label) & (cells["variant"] == variant)].set_index("seed").sort_index()
        )

    @cache
    def actual_of(label: str) -> list[dict[Hashable, Any]]:
        return of(label, ACTUAL).to_dict("records")

    baselines = plan.baselines
    labels = list(dict.fromkeys([*baselines.values(), *plan.policies]))
    rows, shares = [], []
    learning = learning_of(plan.scenario.rewards, plan.steps)
    for label in labels:
        actual, base = actual_of(label), actual_of(baselines.get(label, label))
        bound_only = label in plan.setups and plan.setups[label].policy_factory().oracle
        to_reward = to_reward_columns(actual, base, learning, _drawn_of(plan, store, label))
        rows.append({"policy": label, **compared_row(actual, base), **to_reward, c.BOUND_ONLY: bound_only})
        if label in plan.policies and label != BASELINE:
            shares.append({"policy": label, **_attribution(of, label)})
    table = pd.DataFrame(rows).set_index("policy")
    attribution = pd.DataFrame(shares, columns=["policy", *ATTRIBUTION_COLUMNS]).set_index("policy")
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
        rows.append({"policy": cell.label, c.DRAW: cell.draw, "seed": cell.request.seed, **seconds})
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
