"""Compare policies on one scenario: paired seeds, speed-up with confidence intervals, attribution by
counterfactual replay.

A comparison is a list of cells (policy, seed, variant); each is one simulated run reduced to its totals, and
each is independent of the others, so cells can run in any order, in several processes, and be kept from an
interrupted comparison.
"""

import hashlib
import json
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import active_children, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.fast.choose import run_summary
from oppo_sim.model.counterfactual import ACTUAL, Counterfactual
from oppo_sim.policies.interface import Batch, Policy
from oppo_sim.policies.registry import BASELINE, SHIPPED, baseline_settings, make_policy
from oppo_sim.results.summary import run_totals
from oppo_sim.runs.statistics import compared_row
from oppo_sim.scenario.build import build_setup, policy_settings_of
from oppo_sim.scenario.schema import Scenario
from oppo_sim.simulation import loaded_scenario

if TYPE_CHECKING:
    import pandas as pd

Totals = dict[str, float]

LOSSES: Mapping[str, Counterfactual] = {
    "free_recompute": Counterfactual(free_recompute=True),
    "no_contention": Counterfactual(no_contention=True),
    "free_padding": Counterfactual(free_padding=True),
}
LOSS_COLUMNS = {
    "free_recompute": c.LOST_TO_RECOMPUTATION_S,
    "no_contention": c.LOST_TO_CONTENTION_S,
    "free_padding": c.LOST_TO_PADDING_S,
}
ATTRIBUTION_COLUMNS = (c.HIDDEN_BY_OVERLAP_S, c.SAVED_BY_SHORTER_TAIL_S, *LOSS_COLUMNS.values())


@dataclass(frozen=True)
class Cell:
    """One simulated run of a comparison."""

    label: str
    """Row of the comparison it belongs to: a policy, or a baseline."""
    policy: str
    settings: str
    """JSON of the policy's settings."""
    seed: int
    variant: str
    """``actual``, ``batch_scoring``, ``no_tail``, or a key of LOSSES."""
    steps: int

    def key(self, inputs: str) -> str:
        """Content key: the same inputs give the same key, whatever the order or machine. ``inputs`` stands
        for all that cells share."""
        content = json.dumps([inputs, self.policy, self.settings, self.seed, self.variant, self.steps])
        return hashlib.sha256(content.encode()).hexdigest()[:24]


@dataclass(frozen=True)
class Comparison:
    """The result of ``compare``."""

    table: "pd.DataFrame"
    """One row a policy, index ``policy``: step time, speed-up with its interval, stages, staleness, length
    bias."""
    attribution: "pd.DataFrame"
    """One row a policy: seconds a step hidden, saved and lost (NaN: not applicable)."""
    cells: "pd.DataFrame"
    """One row a simulated run."""


def plan_cells(
    scenario: Scenario, policies: Sequence[str], seeds: int, steps: int, attribution: bool
) -> list[Cell]:
    """Every run that the comparison needs, baselines first. Raises OppoError for an unknown policy or one
    that cannot run here."""
    if isinstance(policies, str) or not policies:
        raise OppoError(f"policies are {policies!r}: give a list of at least one name")
    if len(set(policies)) != len(policies):
        twice = next(policy for policy in policies if list(policies).count(policy) > 1)
        raise OppoError(f"policies {', '.join(policies)} name {twice} twice: name each once")
    if not 1 <= seeds <= 10_000:
        raise OppoError(f"seeds {seeds} is out of range: give a number from 1 to 10,000")
    if scenario.trace.sampling == "in_order" and seeds > 1:
        raise OppoError(
            "trace.sampling in_order replays the same rollouts under every seed: use seeds 1, or sampling"
            " resample"
        )
    cells: dict[tuple[str, str, int, str], Cell] = {}
    for policy in (BASELINE, *policies):
        settings = policy_settings_of(scenario, policy)
        build_setup(scenario, policy=policy, policy_settings=settings, steps=steps)
        label, baseline = baseline_of(scenario, policy)
        wanted = [(label, BASELINE, baseline, "actual")]
        if policy != BASELINE:
            wanted.append((policy, policy, settings, "actual"))
        if attribution and policy != BASELINE:
            wanted += [
                (policy, policy, changed, variant)
                for variant, changed in _variants(scenario, policy, settings)
            ]
        for label, name, changed, variant in wanted:
            text = json.dumps(changed, sort_keys=True)
            for seed in range(scenario.seed, scenario.seed + seeds):
                cells.setdefault((label, text, seed, variant), Cell(label, name, text, seed, variant, steps))
    return list(cells.values())


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
    candidates = "/".join(map(str, chunk["candidates"]))
    return (
        (
            f"{BASELINE} (rounds of {candidates}, {chunk['explore_steps']} step(s) each every"
            f" {chunk['explore_every']})"
        ),
        settings,
    )


def _variants(scenario: Scenario, policy: str, settings: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    batch = Batch(scenario.rollout_batch_size, scenario.group_size)
    built = make_policy(policy, batch, settings, scenario.base_dir)
    variants = [] if built.score_granularity == "batch" else [("batch_scoring", settings)]
    without_tail = SHIPPED[policy].without_tail if policy in SHIPPED else None
    if without_tail is not None:
        variants.append(("no_tail", settings | dict(without_tail)))
    if _can_recompute(built):
        variants.append(("free_recompute", settings))
    if scenario.placement.scoring != "separate" or scenario.placement.shares_host:
        variants.append(("no_contention", settings))
    if scenario.rollout.batching == "static" or scenario.costs.kind == "roofline":
        variants.append(("free_padding", settings))
    return variants


def _can_recompute(policy: Policy) -> bool:
    return policy.name not in {BASELINE, "intra", "rollout-overlap", "one-step-off"}


def run_cell(scenario: Scenario, cell: Cell) -> Totals:
    """Simulate one cell. A pure function of its arguments."""
    setup = build_setup(
        scenario,
        policy=cell.policy,
        policy_settings=json.loads(cell.settings),
        seed=cell.seed,
        steps=cell.steps,
    )
    granularity = "batch" if cell.variant == "batch_scoring" else None
    summary, _ = run_summary(
        setup, counterfactual=LOSSES.get(cell.variant, ACTUAL), score_granularity=granularity
    )
    return run_totals(summary, scenario.rollout_batch_size)


def run_cells(scenario: Scenario, cells: Sequence[Cell], jobs: int) -> Iterator[tuple[Cell, Totals]]:
    """Simulate cells as they come; with ``jobs`` > 1 in that many processes. The totals do not depend on
    ``jobs``."""
    if jobs <= 1 or len(cells) <= 1:
        for cell in cells:
            yield cell, run_cell(scenario, cell)
        return
    others = set(active_children())
    with ProcessPoolExecutor(max_workers=min(jobs, len(cells)), initializer=_begin_worker) as pool:
        running = {pool.submit(run_cell, scenario, cell): cell for cell in cells}
        try:
            for future in as_completed(running):
                yield running[future], future.result()
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in set(active_children()) - others:
                worker.terminate()
            if isinstance(error, BrokenProcessPool):
                raise OppoError(
                    "a process of the comparison was ended from outside (out of memory?): run it with fewer"
                    " jobs"
                ) from error
            raise


def _begin_worker() -> None:
    """Ctrl-C goes to the whole terminal: only the main process answers it. A worker whose main process was
    killed ends too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main = parent_process()
    if main is not None:
        Thread(target=_end_with, args=(main.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    signal.raise_signal(signal.SIGTERM)


def compare(
    scenario: Scenario | str | Path,
    policies: Sequence[str],
    *,
    seeds: int = 5,
    steps: int | None = None,
    attribution: bool = True,
    jobs: int = 1,
    overrides: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Compare ``policies`` with the sequential baseline on ``seeds`` paired seeds, from the scenario's seed
    on.

    ``scenario`` is an object, a shipped name or a YAML path; ``overrides`` are ``a.b=c`` strings for the
    latter two; ``progress(done, total)`` counts simulated runs. Raises OppoError for anything that cannot
    run.
    """
    loaded = loaded_scenario(scenario, overrides)
    cells = plan_cells(loaded, policies, seeds, loaded.steps if steps is None else steps, attribution)
    totals: dict[Cell, Totals] = {}
    for cell, result in run_cells(loaded, cells, jobs):
        totals[cell] = result
        if progress is not None:
            progress(len(totals), len(cells))
    return comparison_of(loaded, policies, {cell: totals[cell] for cell in cells})


def comparison_of(scenario: Scenario, policies: Sequence[str], totals: Mapping[Cell, Totals]) -> Comparison:
    """Tables from finished cells."""
    import pandas as pd

    cells = pd.DataFrame(
        [
            {"policy": cell.label, "seed": cell.seed, "variant": cell.variant, **result}
            for cell, result in totals.items()
        ]
    )

    def of(label: str, variant: str) -> "pd.DataFrame":
        return (
            cells[(cells["policy"] == label) & (cells["variant"] == variant)].set_index("seed").sort_index()
        )

    baselines = {policy: baseline_of(scenario, policy)[0] for policy in policies}
    labels = list(dict.fromkeys([*baselines.values(), *policies]))
    rows, shares = [], []
    for label in labels:
        actual, base = (
            of(name, "actual").to_dict("records") for name in (label, baselines.get(label, label))
        )
        rows.append({"policy": label, **compared_row(actual, base)})
        if label in policies and label != BASELINE:
            shares.append({"policy": label, **_attribution(of, label)})
    table = pd.DataFrame(rows).set_index("policy")
    attribution = pd.DataFrame(shares, columns=["policy", *ATTRIBUTION_COLUMNS]).set_index("policy")
    return Comparison(table, attribution, cells)


def _attribution(of: "Callable[[str, str], pd.DataFrame]", label: str) -> dict[str, float]:
    actual = of(label, "actual")[c.TIMING_STEP]

    def difference(variant: str) -> float:
        without = of(label, variant)
        return float((without[c.TIMING_STEP] - actual).mean()) if len(without) else float("nan")

    shares = {
        c.HIDDEN_BY_OVERLAP_S: difference("batch_scoring"),
        c.SAVED_BY_SHORTER_TAIL_S: difference("no_tail"),
    }
    return shares | {column: -difference(variant) for variant, column in LOSS_COLUMNS.items()}
