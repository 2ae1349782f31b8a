"""What the terminal shows of a finished run or comparison."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oppo_sim.report.plain_json import plain

if TYPE_CHECKING:
    from rich.console import Console

    from oppo_sim.comparison import Comparison
    from oppo_sim.report.written_run import WrittenRun


def table_console() -> "Console":
    """Standard output, wide enough for the tables where it is no terminal."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=140)


def show_run(run: "WrittenRun", as_json: bool) -> None:
    """The summary of a run, on standard output."""
    from oppo_sim.report.written_run import run_record

    if as_json:
        click.echo(run_record(run))
        show_warnings(run.manifest)
        return
    from oppo_sim.report.summary_table import run_summary_table

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
    from oppo_sim.report.summary_table import attribution_table, comparison_table

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
