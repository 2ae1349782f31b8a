"""The chapter of a comparison of policies."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from oppo_sim import columns as c
from oppo_sim.finished_run import FinishedRun
from oppo_sim.policies.registry import BASELINE
from oppo_sim.report.comparison_answer import Compared, answer, compared
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
    one_unit,
)
from oppo_sim.report.points import Points
from oppo_sim.report.ranges import ends_text, machine_sentence
from oppo_sim.runs.distributions import compared_shares

if TYPE_CHECKING:
    import pandas as pd


def comparison_chapter(run: FinishedRun, stem: str) -> Chapter:
    """Read a comparison's folder. ``stem`` starts the names of its pictures. Raises OppoError for a folder
    that lacks its tables."""
    found = compared(run)
    manifest, best = found.manifest, found.best
    settings = dict(manifest.get("policy_settings", {}).get(best, {}))
    return Chapter(
        title=f"Comparison: {manifest['scenario']}",
        kind="comparison",
        source=cost_source(manifest["costs"]),
        measured=False,
        question=_question(found),
        answer=answer(found),
        settings=(("policy.name", best), *((f"policy.{field}", value) for field, value in flat(settings))),
        copy_text=policy_yaml(best, settings),
        sections=(*_sections(found, stem), *timeline_section(run, stem), *_scenario(manifest)),
        explorer=Explorer(explorer_data(_points(found), "policy")),
        provenance=(
            *run_provenance(manifest),
            ("seeds", _seeds(found.seeds)),
            ("simulated runs", f"{len(found.cells):,}"),
            *_engines(manifest),
        ),
        notes=tuple(manifest.get("warnings", ())),
    )


# ---- inside ------------------------------------------------------------------------------------------------


def _question(found: Compared) -> str:
    manifest = found.manifest
    return (
        f"Which of {joined(list(manifest['policies']))}"
        f" {'reaches the target reward first' if found.to_reward else 'takes the shortest step'} on"
        f" {manifest['scenario']}, and at what price? {counted(len(found.seeds), 'seed')} ×"
        f" {counted(manifest['steps'], 'step')}, of which {manifest.get('warmup_steps', 0)} are warm-up."
    )


def _sections(found: Compared, stem: str) -> tuple[Section, ...]:
    table, attribution = found.table, found.attribution
    return (
        Section("Pictures", pictures=_pictures(found, stem)),
        *([_ranges_section(table, machine_sentence(found.manifest))] if found.ranges else []),
        *([_attribution_section(attribution)] if found.attributed else []),
        *_shares_section(found.cells),
    )


def _scenario(manifest: Mapping[str, Any]) -> tuple[Section, ...]:
    code = scenario_section(manifest)
    return (code,) if code else ()


def _points(found: Compared) -> Points:
    names = [str(policy) for policy in found.table.index]
    return Points(
        found.table.reset_index(),
        ("policy",),
        names.index(found.best),
        frozenset(names.index(policy) for policy in (found.best, *found.alike) if policy in names),
    )


def _seeds(seeds: Sequence[int]) -> str:
    return joined([str(seed) for seed in seeds]) if len(seeds) < 9 else f"{seeds[0]} to {seeds[-1]}"


def _engines(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    counts = manifest.get("engines")
    return (
        [("engines", ", ".join(f"{name}: {count} runs" for name, count in counts.items()))]
        if isinstance(counts, dict)
        else []
    )


def _pictures(found: Compared, stem: str) -> tuple[Picture, ...]:
    table = found.table
    listed = "; ".join(
        f"{policy}: {format_seconds(float(seconds))}, {float(ratio):.2f}×"
        for policy, seconds, ratio in zip(table.index, table[c.STEP_S], table[c.SPEEDUP], strict=True)
    )
    whose = ", solid of the rollouts, dashed of the machine" if found.ranges else ""
    pictures = [
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
    if found.attributed:
        alt = (
            "Bars, one a policy: seconds a step won to the right, lost to the left. The table below has the"
            " numbers."
        )
        figure = attribution_figure(found.attribution)
        pictures.append(picture(f"{stem}-attribution", figure, "Where the time went", alt))
    return tuple(pictures)


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
