"""What the terminal shows of a finished run or comparison."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from oppo_sim import columns as c
from oppo_sim.plain_json import plain
from oppo_sim.report.labels import NOTHING, Unit, format_percent, format_seconds, time_unit
from oppo_sim.tables import numbers

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console
    from rich.table import Table

    from oppo_sim.comparison import Comparison
    from oppo_sim.simulation_folder import StoredRun


def table_console() -> "Console":
    """Standard output, wide enough for the tables where it is no terminal."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=140)


def show_run(run: "StoredRun", as_json: bool) -> None:
    """The summary of a run, on standard output."""
    from oppo_sim.simulation_folder import run_record

    if as_json:
        click.echo(run_record(run))
        show_warnings(run.manifest)
        return

    console = table_console()
    kept = run.steps.iloc[run.warmup_steps :]
    title = (
        f"{run.manifest['scenario']}, policy {run.policy}, {len(kept)} steps after {run.warmup_steps} of"
        " warm-up (simulated seconds)"
    )
    console.print(run_summary_table(kept, title))
    show_provenance(run.manifest)
    click.echo(
        f"wrote {run.folder}" + (f" (interrupted after {len(run.steps)} steps)" if run.interrupted else "")
    )


def show_comparison(
    comparison: "Comparison", title: str, folder: Path, manifest: Mapping[str, Any], as_json: bool
) -> None:
    """The comparison and its attribution, on standard output."""
    from oppo_sim.comparison_folder import comparison_record

    if as_json:
        click.echo(json.dumps(plain({"folder": str(folder), **comparison_record(comparison)}), indent=1))
        show_warnings(manifest)
        return

    console = table_console()
    console.print(comparison_table(comparison.table, title))
    if comparison.attribution.notna().any(axis=None):
        console.print(attribution_table(comparison.attribution, "where the time went, seconds a step"))
    show_provenance(manifest)
    click.echo(f"wrote {folder}")


def show_provenance(manifest: Mapping[str, Any]) -> None:
    """One line that says whether anybody measured the costs, and the warnings."""
    costs = manifest["costs"]
    measured = "measured" if costs.get("measured") else "not measured: a prediction from assumed costs"
    trace = manifest["trace"]
    named = trace.get("name") or trace.get("path") or f"synthetic, {trace['synth']['distribution']}"
    click.echo(f"costs: {costs.get('kind')} ({measured}); trace: {named}")
    show_warnings(manifest)


def show_warnings(manifest: Mapping[str, Any]) -> None:
    """What is likely not meant, on standard error."""
    for warning in manifest["warnings"]:
        click.echo(f"note: {warning}", err=True)


def run_summary_table(steps: "pd.DataFrame", title: str = "", unit: Unit | None = None) -> "Table":
    """Mean, median, 95th percentile and share of the step for every stage that took time, and for the step.

    Leave warm-up steps out of ``steps`` beforehand. Raises OppoError without the timing columns.
    """
    total = numbers(steps, c.TIMING_STEP, "step")
    table = _table(
        title,
        [
            ("stage", "left"),
            ("mean", "right"),
            ("p50", "right"),
            ("p95", "right"),
            ("share of step", "right"),
        ],
    )
    whole = float(np.nansum(total))
    for stage in (*c.STAGES, "step"):
        name = c.timing(stage)
        if name not in steps.columns:
            continue
        seconds = numbers(steps, name, "step")
        if stage == "step":
            table.add_section()
        elif not np.nansum(seconds):
            continue
        table.add_row(
            stage,
            format_seconds(float(np.nanmean(seconds)), unit),
            format_seconds(float(np.nanquantile(seconds, 0.5)), unit),
            format_seconds(float(np.nanquantile(seconds, 0.95)), unit),
            format_percent(float(np.nansum(seconds)) / whole) if whole else NOTHING,
            style="bold" if stage == "step" else None,
        )
    return table


def comparison_table(comparison: "pd.DataFrame", title: str = "") -> "Table":
    """One row a policy: step time, speed-up with its 95 % interval, staleness, length bias, deferred rollouts
    a step (where known).

    Raises OppoError for missing columns (``report/frames.py``).
    """
    from rich.text import Text

    what = "comparison"
    steps = numbers(comparison, c.STEP_S, what)
    speedup, low, high = (
        numbers(comparison, name, what) for name in (c.SPEEDUP, c.SPEEDUP_LOW, c.SPEEDUP_HIGH)
    )
    stale, oldest = (
        numbers(comparison, c.COMPARED_STALENESS_MEAN, what),
        numbers(comparison, c.COMPARED_STALENESS_MAX, what),
    )
    bias = numbers(comparison, c.LENGTH_BIAS, what)
    has_deferred = c.DEFERRED in comparison.columns
    deferred = numbers(comparison, c.DEFERRED, what) if has_deferred else np.full(len(steps), np.nan)
    # One unit for all: the column is there to be compared.
    unit = time_unit(float(np.nanmin(steps))) if np.isfinite(steps).any() else None
    heads = [
        ("policy", "left"),
        ("step time", "right"),
        ("speed-up [95 % interval]", "right"),
        ("staleness mean/max", "right"),
        ("length bias", "right"),
    ]
    table = _table(title, [*heads, ("deferred", "right")] if has_deferred else heads)
    for row, policy in enumerate(comparison.index):
        cells = [
            str(policy),
            format_seconds(float(steps[row]), unit),
            _with_interval(float(speedup[row]), float(low[row]), float(high[row])),
            f"{_decimals(float(stale[row]), 2)} / {_whole_or_decimal(float(oldest[row]))}",
            _signed_percent(float(bias[row])),
        ]
        if has_deferred:
            cells.append(_decimals(float(deferred[row]), 1))
        # Policy names may be paths with brackets, intervals have some: none of it is markup.
        table.add_row(*(Text(cell) for cell in cells))
    return table


def attribution_table(attribution: "pd.DataFrame", title: str = "") -> "Table":
    """One row a policy: seconds a step that overlap hid, that the shorter tail saved, and that were lost;
    empty where not applicable."""
    from rich.text import Text

    heads = {
        c.HIDDEN_BY_OVERLAP_S: "overlap hid",
        c.SAVED_BY_SHORTER_TAIL_S: "tail saved",
        c.LOST_TO_RECOMPUTATION_S: "recompute lost",
        c.LOST_TO_CONTENTION_S: "contention lost",
        c.LOST_TO_PADDING_S: "padding lost",
    }
    table = _table(title, [("policy", "left"), *((head, "right") for head in heads.values())])
    columns = [numbers(attribution, name, "attribution") for name in heads]
    for row, policy in enumerate(attribution.index):
        cells = (
            format_seconds(float(column[row])) if np.isfinite(column[row]) else NOTHING for column in columns
        )
        table.add_row(Text(str(policy)), *(Text(cell) for cell in cells))
    return table


# ---- inside ------------------------------------------------------------------------------------------------


def _table(title: str, heads: list[tuple[str, str]]) -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(title) if title else None,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        min_width=len(title) if len(title) <= 100 else None,
    )
    for head, justify in heads:
        table.add_column(Text(head), justify="left" if justify == "left" else "right", no_wrap=True)
    return table


def _with_interval(value: float, low: float, high: float) -> str:
    if not np.isfinite(value):
        return NOTHING
    interval = f" [{low:.2f}, {high:.2f}]" if np.isfinite(low) and np.isfinite(high) else ""
    return f"{value:.2f}×{interval}"


def _decimals(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}" if np.isfinite(value) else NOTHING


def _whole_or_decimal(value: float) -> str:
    return _decimals(value, 0 if value.is_integer() else 1)


def _signed_percent(value: float) -> str:
    if not np.isfinite(value):
        return NOTHING
    sign = "+" if value > 0 else "−" if value < 0 else "±"
    return f"{sign}{format_percent(abs(value))}"
