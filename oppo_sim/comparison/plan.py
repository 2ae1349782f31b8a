"""What a comparison simulates: a grid of policy × variant × seed, each cell one run, kept and executed as
the runs of a sweep are."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, get_args

from oppo_sim.errors import OppoError, check_count, check_once, check_share
from oppo_sim.policies.chunk_control import rounds_text
from oppo_sim.policies.interface import Batch
from oppo_sim.policies.registry import BASELINE, baseline_settings
from oppo_sim.progress import OnProgress, Progress
from oppo_sim.runs.best import Objective
from oppo_sim.runs.evaluate import checked_request, forget
from oppo_sim.runs.execute import Executor, Runner
from oppo_sim.runs.machine import EXACT, MachineDraws, machine_of
from oppo_sim.runs.request import ACTUAL, RunRequest
from oppo_sim.runs.store import RunStore
from oppo_sim.scenario.build import Setup, policy_settings_of
from oppo_sim.scenario.policy_label import LabelledPolicy, labelled_policy
from oppo_sim.scenario.schema import Scenario
from oppo_sim.schedule.rules import runs_in_rounds

_DOING = "simulated runs"


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    label: str
    """Row of the comparison it belongs to: a policy with what settings its label has, or a baseline."""
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
    """Each label, and the plain baseline, built under the scenario's seed."""
    policies: tuple[LabelledPolicy, ...]
    baselines: Mapping[str, str]
    """Label → label of its baseline."""
    seeds: tuple[int, ...]
    steps: int
    machine: MachineDraws = EXACT
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
    check_once("policies", policies)
    if objective not in get_args(Objective):
        raise OppoError(f"objective '{objective}' is not known: choose {', '.join(get_args(Objective))}")
    check_count("seeds", seeds, 1, 10_000)
    check_share("practical", practical)
    if scenario.trace.sampling == "in_order" and seeds > 1:
        raise OppoError(
            "trace.sampling in_order replays the same rollouts under every seed: use seeds 1, or sampling"
            " resample"
        )
    scenario = scenario.for_steps(steps)
    forget()
    machine = machine_of(scenario, draws)
    numbers = range(scenario.seed, scenario.seed + seeds)
    named = {label: labelled_policy(scenario, label) for label in (BASELINE, *policies)}
    cells: dict[tuple[str, str, str], Cell] = {}
    setups, baselines = {}, {}
    for label, one in named.items():
        request, setups[label] = checked_request(scenario, one.policy, one.settings, steps=steps)
        baselines[label], settings = baseline_of(scenario, label)
        base = replace(request, policy=BASELINE, settings=_text(settings), source="")
        of_label = [Cell(baselines[label], ACTUAL, base)]
        if label != BASELINE:
            of_label.append(Cell(label, ACTUAL, request))
            of_label += _variants(label, request, setups[label]) if attribution else []
        for cell in of_label:
            for seed in numbers:
                placed = replace(cell, request=cell.request.at(seed))
                cells.setdefault((cell.label, cell.variant, placed.request.key), placed)
    # The plain baseline only where somebody is compared with it.
    rows = {*policies, *(baselines[label] for label in policies)}
    wanted = [cell for cell in cells.values() if cell.label in rows]
    # Attribution stays at the point. A process keeps what runs of one draw share, so they follow each other.
    actual = [cell for cell in wanted if cell.variant == ACTUAL]
    drawn = [
        replace(cell, request=cell.request.on(terms), draw=number)
        for number, terms in enumerate(machine.draws)
        for cell in actual
    ]
    return ComparisonPlan(
        scenario,
        tuple(wanted),
        setups,
        tuple(named[label] for label in policies),
        {label: baselines[label] for label in policies},
        tuple(numbers),
        setups[BASELINE].steps,
        machine,
        tuple(drawn),
        practical,
        objective,
    )


def baseline_of(scenario: Scenario, label: str) -> tuple[str, dict[str, Any]]:
    """Label and settings of the sequential baseline that stops as a policy does: plain ``sequential`` if
    the scenario itself stops so."""
    one = labelled_policy(scenario, label)
    batch = Batch(scenario.rollout_batch_size, scenario.group_size)
    own = baseline_settings(BASELINE, policy_settings_of(scenario, BASELINE), batch) or {}
    settings = baseline_settings(one.policy, one.settings, batch, scenario.base_dir)
    if settings is None or settings == own:
        return BASELINE, own
    if not settings:
        return f"{BASELINE} (token)", settings
    chunk = settings["chunk_size"]
    if isinstance(chunk, int):
        return f"{BASELINE} (rounds of {chunk})", settings
    return f"{BASELINE} (rounds of {rounds_text(chunk)})", settings


def _variants(label: str, request: RunRequest, setup: Setup) -> list[Cell]:
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
            cells.append(Cell(label, variant, replace(request, settings=_text(settings))))
        else:
            cells.append(Cell(label, variant, replace(request, variant=variant)))
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
