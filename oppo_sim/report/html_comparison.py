"""The chapter of a comparison of policies."""

from typing import TYPE_CHECKING, Any

import numpy as np

from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.policies.registry import BASELINE
from oppo_sim.report.comparison_figures import attribution_figure, speedup_figure, step_time_figure
from oppo_sim.report.html_parts import (
    Chapter,
    Explorer,
    Grid,
    Picture,
    Section,
    cost_source,
    explorer_data,
    flat,
    joined,
    picture,
    policy_yaml,
    run_provenance,
    scenario_section,
    times_faster,
)
from oppo_sim.report.html_run import timeline_section
from oppo_sim.report.labels import (
    ATTRIBUTION,
    DISTRIBUTIONS,
    NOTHING,
    capital,
    counted,
    format_percent,
    format_seconds,
    measured_label,
    one_unit,
    other_lengths,
    significant,
)
from oppo_sim.report.points import Points
from oppo_sim.report.ranges import (
    drawn_words,
    ends_text,
    few_seeds_in,
    has_ranges,
    machine_sentence,
    over_words,
    published_sentence,
    widest_sentence,
)
from oppo_sim.run_folder import FinishedRun
from oppo_sim.runs.best import best_policy, losses_by_draw, losses_by_seed, not_told_apart
from oppo_sim.runs.distributions import compared_shares
from oppo_sim.runs.statistics import ROLLOUTS, TO_REWARD

if TYPE_CHECKING:
    import pandas as pd


def comparison_chapter(run: FinishedRun, stem: str) -> Chapter:
    """Read a comparison's folder. ``stem`` starts the names of its pictures. Raises OppoError for a folder
    that lacks its tables."""
    manifest = run.manifest
    table, attribution = (
        run.frame(f"{name}.parquet").set_index("policy") for name in ("comparison", "attribution")
    )
    cells = run.frame("cells.parquet")
    if not np.isfinite(table[c.STEP_S].to_numpy(dtype=np.float64)).any():
        raise OppoError(f"{run.root} compares no policy with a step time: compare again")
    if c.BOUND_ONLY not in table.columns:
        raise OppoError(f"{run.root} does not say which policies are bounds only: compare again")
    practical, to_reward = float(manifest.get("practical", 0.0)), manifest.get("objective") == TO_REWARD
    if to_reward:  # held against draws of the effect of staleness, which the tables do not hold
        told = run.json("comparison.json")
        best, alike = str(told["best"]), [str(policy) for policy in told["alike"]]
    else:
        best = best_policy(table)
        drawn = losses_by_draw(run.frame("machine.parquet")) if has_ranges(table) else None
        alike = not_told_apart(losses_by_seed(cells), best, drawn, practical)
    names = [str(policy) for policy in table.index]
    points = Points(
        table.reset_index(),
        ("policy",),
        names.index(best),
        frozenset(names.index(policy) for policy in (best, *alike) if policy in names),
    )
    settings = dict(manifest.get("policy_settings", {}).get(best, {}))
    name, seeds, steps = str(manifest["scenario"]), manifest["seeds"], manifest["steps"]
    code = scenario_section(manifest)
    return Chapter(
        title=f"Comparison: {name}",
        kind="comparison",
        source=cost_source(manifest["costs"]),
        measured=False,
        question=(
            f"Which of {joined(list(manifest['policies']))}"
            f" {'reaches the target reward first' if to_reward else 'takes the shortest step'} on {name}, and"
            f" at what price? {counted(len(seeds), 'seed')} × {counted(steps, 'step')}, of which"
            f" {manifest.get('warmup_steps', 0)} are warm-up."
        ),
        answer=_answer(
            table,
            attribution,
            best,
            str(manifest.get("baselines", {}).get(best, BASELINE)),
            alike,
            len(seeds),
            machine_sentence(manifest),
            published_sentence(manifest),
            practical,
            to_reward,
            drawn_words(
                has_ranges(table),
                str(manifest.get("objective", ROLLOUTS)),
                int(manifest.get("to_reward", {}).get("draws", 0)),
            ),
        ),
        settings=(("policy.name", best), *((f"policy.{field}", value) for field, value in flat(settings))),
        copy_text=policy_yaml(best, settings),
        sections=(
            Section("Pictures", pictures=_pictures(table, attribution, stem)),
            *([_ranges_section(table, machine_sentence(manifest))] if has_ranges(table) else []),
            *(
                [_attribution_section(attribution)]
                if len(attribution) and attribution.notna().any(axis=None)
                else []
            ),
            *_shares_section(cells),
            *timeline_section(run, stem),
            *([code] if code else []),
        ),
        explorer=Explorer(explorer_data(points, "policy")),
        provenance=(
            *run_provenance(manifest),
            (
                "seeds",
                joined([str(seed) for seed in seeds]) if len(seeds) < 9 else f"{seeds[0]} to {seeds[-1]}",
            ),
            ("simulated runs", f"{len(cells):,}"),
            *_engines(manifest),
        ),
        notes=tuple(manifest.get("warnings", ())),
    )


# ---- inside ------------------------------------------------------------------------------------------------


def _engines(manifest: Any) -> list[tuple[str, str]]:
    counts = manifest.get("engines")
    return (
        [("engines", ", ".join(f"{name}: {count} runs" for name, count in counts.items()))]
        if isinstance(counts, dict)
        else []
    )


def _answer(
    table: "pd.DataFrame",
    attribution: "pd.DataFrame",
    best: str,
    baseline: str,
    alike: list[str],
    seeds: int,
    machine: str,
    published: str,
    practical: float,
    to_reward: bool,
    drawn: str,
) -> tuple[str, ...]:
    row = table.loc[best].to_dict()
    ranges = has_ranges(table)
    sentences = [f"{best}: {format_seconds(row[c.STEP_S])} a step"]
    if best != BASELINE:
        ends = row[c.SPEEDUP_LOW], row[c.SPEEDUP_HIGH]
        together = (row[c.SPEEDUP_BOTH_LOW], row[c.SPEEDUP_BOTH_HIGH]) if ranges else (np.nan, np.nan)
        sentences[0] += f", {times_faster(row[c.SPEEDUP], *ends, baseline, together)}"
    sentences[0] += "."
    if to_reward:
        ends = row[c.HOURS_TO_REWARD_LOW], row[c.HOURS_TO_REWARD_HIGH]
        between = f" (95 % interval {significant(ends[0])} to {significant(ends[1])})"
        sentences.append(
            f"To the target reward it takes {significant(row[c.HOURS_TO_REWARD])} h"
            f"{between if np.isfinite(ends).all() else ''}, a step being worth"
            f" {measured_label(row[c.PROGRESS], 'number')} on-policy steps."
        )
    if ranges:
        share = format_percent(row[c.P_BEST])
        sentences.append(f"It is the best in {share} of the seeds and draws of {drawn}.")
    if machine:
        widest = widest_sentence(table) if ranges else ""
        sentences.append(f"{capital(machine)}{f'; {widest}' if widest else ''}.")
    if published:
        sentences.append(f"{capital(published)}.")
    stale, oldest, bias = (
        row.get(column, np.nan)
        for column in (c.COMPARED_STALENESS_MEAN, c.COMPARED_STALENESS_MAX, c.LENGTH_BIAS_PAIRED)
    )
    sentences.append(
        f"Its price: mean staleness {measured_label(stale, 'number')} (highest"
        f" {measured_label(oldest, 'count')}), length bias {measured_label(bias, 'signed_share')} against"
        " sequential."
    )
    if other := other_lengths(float(bias)):
        sentences.append(f"{capital(other)}.")
    over = over_words(counted(seeds, "paired seed"), drawn)
    if alike:
        near = f", or {'is' if len(alike) == 1 else 'are'} within {100 * practical:g} % of it"
        sentences.append(
            f"{joined(alike)} cannot be told apart from it on {over} (5 % level){near if practical else ''}."
        )
        if few := few_seeds_in(table, best, alike, seeds, practical):
            sentences.append(f"{capital(few)}.")
    elif seeds < 2 and not ranges:
        sentences.append("With one seed nothing says how sure this is: compare with more seeds.")
    elif len(table) > 1:
        what = "reaches it later" if to_reward else "is slower"
        sentences.append(f"Every other policy {what} on {over} (5 % level).")
    if best in attribution.index:
        seconds = attribution.loc[best].to_dict()
        parts = [(label, float(seconds[column])) for column, label in ATTRIBUTION.items()]
        large = [
            f"{format_seconds(value)} {label}"
            for label, value in parts
            if np.isfinite(value) and abs(value) >= 0.005 * row[c.STEP_S]
        ]
        if large:
            sentences.append(f"Of each step, compared with its counterfactuals: {joined(large)}.")
    return tuple(sentences)


def _pictures(table: "pd.DataFrame", attribution: "pd.DataFrame", stem: str) -> tuple[Picture, ...]:
    listed = "; ".join(
        f"{policy}: {format_seconds(float(seconds))}, {float(ratio):.2f}×"
        for policy, seconds, ratio in zip(table.index, table[c.STEP_S], table[c.SPEEDUP], strict=True)
    )
    whose = ", solid of the rollouts, dashed of the machine" if has_ranges(table) else ""
    found = [
        picture(
            f"{stem}-step-time",
            step_time_figure(table),
            "Step time by stage",
            f"Bars, one a policy, stacked by stage, with 95 % intervals{whose}. {listed}.",
        ),
        picture(
            f"{stem}-speedup",
            speedup_figure(table, BASELINE),
            "Speed-up",
            f"Bars, one a policy, with 95 % intervals{whose}. {listed}.",
        ),
    ]
    if len(attribution) and attribution.notna().any(axis=None):
        alt = (
            "Bars, one a policy: seconds a step won to the right, lost to the left. The table below has the"
            " numbers."
        )
        found.append(
            picture(f"{stem}-attribution", attribution_figure(attribution), "Where the time went", alt)
        )
    return tuple(found)


def _ranges_section(table: "pd.DataFrame", machine: str) -> Section:
    rows = tuple(
        (
            str(policy),
            f"{row[c.SPEEDUP]:.2f}×",
            *(
                ends_text(row[low], row[high], row[c.SPEEDUP]) or NOTHING
                for low, high in (
                    (c.SPEEDUP_LOW, c.SPEEDUP_HIGH),
                    (c.SPEEDUP_MACHINE_LOW, c.SPEEDUP_MACHINE_HIGH),
                    (c.SPEEDUP_BOTH_LOW, c.SPEEDUP_BOTH_HIGH),
                )
            ),
            format_percent(row[c.P_BEST]),
            f"{row[c.MACHINE_WIDEST]}, {format_percent(row[c.MACHINE_WIDEST_SHARE])}"
            if isinstance(row[c.MACHINE_WIDEST], str)
            else NOTHING,
        )
        for policy, row in table.to_dict(orient="index").items()
    )
    heads = ("policy", "speed-up", "rollouts", "machine", "both", "best", "widest unknown")
    text = (
        f"{capital(machine)}. A draw of the machine is the same for all policies and seeds,"
        " and a speed-up is taken within a draw, so that what the policies share cancels. Widest unknown: the"
        " term that explains most of the variance of the log speed-up over the draws, and how much."
    )
    grid = Grid("Speed-up with its 95 % intervals", heads, rows, frozenset(range(1, 6)))
    return Section("Two intervals", (text,), (grid,))


def _shares_section(cells: "pd.DataFrame") -> tuple[Section, ...]:
    grids = tuple(
        Grid(
            f"Trained rollouts by {name}, mean over seeds",
            ("policy", *map(str, shares.columns)),
            tuple(
                (str(policy), *(format_percent(share) if share else NOTHING for share in row))
                for policy, row in zip(shares.index, shares.to_numpy().tolist(), strict=True)
            ),
            frozenset(range(1, shares.shape[1] + 1)),
        )
        for name, shares in compared_shares(cells).items()
    )
    return (Section("Staleness and deferrals", (DISTRIBUTIONS,), grids),) if grids else ()


def _attribution_section(attribution: "pd.DataFrame") -> Section:
    shown = [
        (column, label)
        for column, label in ATTRIBUTION.items()
        if column in attribution.columns and attribution[column].notna().any()
    ]
    cells, unit = one_unit(attribution[[column for column, _ in shown]].to_numpy(float))
    rows = tuple((str(policy), *row) for policy, row in zip(attribution.index, cells, strict=True))
    grid = Grid(
        f"By counterfactual replay, {unit} a step",
        ("policy", *(label for _, label in shown)),
        rows,
        frozenset(range(1, len(shown) + 1)),
    )
    text = (
        "Each part is replayed alone, on the same rollouts without one cost; parts need not add up to the"
        " difference in step time."
    )
    return Section("Where the time went", (text,), (grid,))
