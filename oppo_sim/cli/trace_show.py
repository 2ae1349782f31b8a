"""``oppo trace list`` and ``oppo trace show``."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oppo_sim.cli.trace_common import (
    AS_JSON,
    FORCE,
    SOURCES,
    as_plain,
    note,
    print_fitted,
    print_json,
    text_table,
    token_count,
    verbatim,
)  # fmt: skip
from oppo_sim.cli.trace_import import print_import
from oppo_sim.errors import OppoError
from oppo_sim.report.terminal import Column, table_console

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console
    from rich.table import Table

    from oppo_sim.traces.opened import OpenedTrace
    from oppo_sim.traces.stats import TraceStats

MOST_SOURCES_SHOWN = 24


@click.command("list")
@AS_JSON
def list_command(as_json: bool) -> None:
    """List the shipped traces with rows, licence and origin.

    \b
    Example:
      oppo trace list
    """
    from oppo_sim.traces.catalog import list_traces

    entries = list_traces()
    if as_json:
        print_json([entry.model_dump(mode="json") for entry in entries])
        return
    columns = [
        Column("name", left=True),
        Column("what", left=True, folds_at=14),
        Column("rows", 1),
        Column("lengths", 2, left=True),
        Column("licence", left=True, folds_at=10),
    ]
    rows = []
    for entry in entries:
        lengths = "per step" if entry.kind == "steps" else "drawn" if entry.synthetic else "measured"
        rows.append((entry.name, entry.domain, f"{entry.rows:,}", lengths, entry.licence))
    print_fitted(table_console(), columns, rows)


@click.command("show")
@click.argument("name_or_path")
@SOURCES
@AS_JSON
@click.option(
    "--plot", "plot", type=click.Path(path_type=Path), help="Also draw it: a .png, .svg or .pdf file."
)
@FORCE
def show_command(
    name_or_path: str, sources: tuple[str, ...], as_json: bool, plot: Path | None, force: bool
) -> None:
    """Describe a trace, and draw it.

    Counts, quantiles, weight of the tail, length drift by step, sources, provenance.

    \b
    Examples:
      oppo trace show reason_r1distill_math --source 'r1-math500/*'
      oppo trace show my.parquet --plot my.png
    """
    from oppo_sim.traces.catalog import list_traces
    from oppo_sim.traces.opening import open_trace

    if any(entry.name == name_or_path and entry.kind == "steps" for entry in list_traces()):
        if plot is not None or sources:
            raise OppoError(f"'{name_or_path}' is a per-step table: show it without --plot and --source")
        _show_step_table(name_or_path, as_json)
        return
    opened = open_trace(name_or_path, sources or None)
    if plot is not None:
        from oppo_sim.files import refuse_unwritable

        refuse_unwritable(plot, overwrite=force)
    _show(opened, _imported(name_or_path, opened, sources), as_json)
    if plot is not None:
        from oppo_sim.traces.figure import save_figure
        from oppo_sim.traces.stats import trace_stats

        save_figure(opened.frame, trace_stats(opened.frame), opened.title, plot, overwrite=force)
        note(f"wrote {plot}")


def _imported(name_or_path: str, opened: "OpenedTrace", sources: tuple[str, ...]) -> dict[str, Any] | None:
    """What the import of a trace file wrote beside it; of a part of its rows nothing is said."""
    if opened.entry is not None or sources or not Path(name_or_path).is_file():
        return None
    from oppo_sim.traces.importers.provenance import read_provenance

    return read_provenance(name_or_path, opened.frame)


def _show(opened: "OpenedTrace", imported: dict[str, Any] | None, as_json: bool) -> None:
    from oppo_sim.columns import SOURCE
    from oppo_sim.traces.schema import content_hash
    from oppo_sim.traces.stats import drift_by_step, trace_stats

    frame = opened.frame
    stats = trace_stats(frame)
    drift = drift_by_step(frame)
    by_source = {str(name): trace_stats(rows) for name, rows in _finished(frame).groupby(SOURCE, sort=True)}
    if as_json:
        print_json(
            {
                "trace": opened.title,
                "content_sha256": content_hash(frame),
                "stats": as_plain(stats),
                "drift": drift.to_dict("records"),
                "sources": {name: as_plain(each) for name, each in by_source.items()},
                "provenance": opened.entry.model_dump(mode="json") if opened.entry else imported,
            }
        )
        return
    console = table_console()
    console.print(verbatim(opened.title, "bold"))
    table = text_table("", ">", "")
    for name, value, meaning in _lines(stats):
        table.add_row(name, value, verbatim(meaning, "dim"))
    console.print(table)
    if len(drift) > 1:
        console.print("\nDrift by step, tokens", highlight=False)
        console.print(_drift_table(drift))
    if len(by_source) > 1:
        console.print("\nSources, tokens (filter with --source)", highlight=False)
        _print_sources(console, by_source)
    if opened.entry is not None:
        _print_provenance(console, opened)
    elif imported is not None:
        print_import(console, imported)


def _finished(frame: "pd.DataFrame") -> "pd.DataFrame":
    from oppo_sim.columns import FINISH_REASON

    return frame[(frame[FINISH_REASON] != "abort").fillna(True)]


def _lines(stats: "TraceStats") -> list[tuple[str, str, str]]:
    from oppo_sim.traces.stats import REFERENCE_BATCH

    lines = [
        ("responses", f"{stats.rows:,}", _counts_text(stats)),
        ("mean", token_count(stats.mean), "tokens"),
        ("p50", token_count(stats.p50), ""),
        ("p90", token_count(stats.p90), ""),
        ("p99", token_count(stats.p99), ""),
        ("max", token_count(stats.max), _at_max_text(stats)),
        ("CV", f"{stats.cv:.2f}", "standard deviation / mean"),
        ("p99 / p50", f"{stats.p99_over_p50:.1f}", ""),
        ("max / mean", f"{stats.max_over_mean:.1f}", ""),
        ("longest 1 %", f"{100 * stats.top_1_percent_share:.1f} %", "of all response tokens"),
    ]
    meaning = "times the mean, expected for a random batch"
    lines.append((f"longest of {REFERENCE_BATCH}", f"{stats.longest_of_batch:.1f}", meaning))
    if stats.clip_ratio is None:
        lines.append(("cut", "unknown", "no row has a finish_reason"))
    else:
        known = _known_for(stats.finish_reason_known)
        lines.append(("cut", f"{100 * stats.clip_ratio:.1f} %", f"finish_reason length{known}"))
    if stats.group_cv is not None:
        samples = f"median; {stats.group_samples:g} samples a prompt"
        lines.append(("CV within a prompt", f"{stats.group_cv:.2f}", samples))
    if stats.prompt_mean is not None:
        meaning = f"tokens, max {token_count(stats.prompt_max or 0)}{_known_for(stats.prompt_known)}"
        lines.append(("prompt mean", token_count(stats.prompt_mean), meaning))
    else:
        lines.append(("prompt mean", "unknown", "set trace.prompt_length in a scenario"))
    if stats.turns_mean is not None:
        tokens = f"{token_count(stats.tool_tokens_mean)} tokens of answers a rollout"
        lines.append(("turns", f"{stats.turns_mean:.2f}", f"mean, max {stats.turns_max}; {tokens}"))
        longest = f"p99 {stats.tool_seconds_p99:.3g}, max {stats.tool_seconds_max:.3g}"
        lines.append(("tool seconds", f"{stats.tool_seconds_mean:.3g}", f"of a rollout, mean, {longest}"))
    if stats.reward_mean is not None:
        lines.append(("reward mean", f"{stats.reward_mean:.4g}", ""))
    return lines


def _known_for(share: float) -> str:
    return "" if share == 1 else f", known for {100 * share:.0f} % of the rows"


def _counts_text(stats: "TraceStats") -> str:
    counts = ((stats.sources, "source"), (stats.steps, "step"), (stats.prompts, "prompt"))
    parts = [f"{count:,} {name}{'s' if count > 1 else ''}" for count, name in counts if count]
    parts += [f"{stats.aborted:,} aborted rows left out"] if stats.aborted else []
    parts += [f"{stats.zero_length:,} of length 0 counted as 1"] if stats.zero_length else []
    return ", ".join(parts)


def _at_max_text(stats: "TraceStats") -> str:
    return f"{100 * stats.at_max_share:.1f} % are exactly so long" if stats.at_max_share >= 0.002 else ""


def _drift_table(drift: "pd.DataFrame") -> "Table":
    table = text_table("steps", ">rows", ">mean", ">p50", ">p90", ">cut")
    for row in drift.to_dict("records"):
        first, last, cut = int(row["first_step"]), int(row["last_step"]), float(row["clip_ratio"])
        lengths = (token_count(row[name]) for name in ("mean", "p50", "p90"))
        shown = "" if math.isnan(cut) else f"{100 * cut:.1f} %"
        table.add_row(
            f"{first}" if first == last else f"{first}–{last}", f"{int(row['rows']):,}", *lengths, shown
        )
    return table


def _print_sources(console: "Console", by_source: "dict[str, TraceStats]") -> None:
    columns = [
        Column("source", left=True),
        Column("rows", 2),
        Column("mean"),
        Column("p50", 3),
        Column("p99", 1),
        Column("max", 4),
        Column("CV", 6),
        Column("cut", 5),
    ]
    rows = []
    for name, stats in list(by_source.items())[:MOST_SOURCES_SHOWN]:
        cut = "" if stats.clip_ratio is None else f"{100 * stats.clip_ratio:.1f} %"
        lengths = (token_count(value) for value in (stats.mean, stats.p50, stats.p99, stats.max))
        rows.append((name, f"{stats.rows:,}", *lengths, f"{stats.cv:.2f}", cut))
    print_fitted(console, columns, rows)
    if len(by_source) > MOST_SOURCES_SHOWN:
        click.echo(f"… and {len(by_source) - MOST_SOURCES_SHOWN} more (all with --json)")


def _print_provenance(console: "Console", opened: "OpenedTrace") -> None:
    entry = opened.entry
    assert entry is not None
    table = text_table("", "")
    for name, text in (
        ("model", entry.model),
        ("sampling", entry.sampling),
        ("tokenizer", entry.tokenizer or ""),
        ("how", entry.derivation),
        ("caveats", "\n".join(entry.caveats)),
        ("origin", "\n".join(entry.origin)),
        ("licence", entry.licence),
    ):
        if text:
            table.add_row(name, verbatim(text))
    console.print("\nProvenance", highlight=False)
    console.print(table)


def _show_step_table(name: str, as_json: bool) -> None:
    from oppo_sim.traces.catalog import find_trace, runs_of

    entry, runs = find_trace(name, "steps"), runs_of(name)
    if as_json:
        provenance = entry.model_dump(mode="json")
        print_json({"table": name, "runs": runs.to_dict("records"), "provenance": provenance})
        return
    console = table_console()
    console.print(
        verbatim(name, "bold"), "one row a training step, for drift and stage times", highlight=False
    )
    columns = (
        Column("run", left=True),
        Column("steps", 3),
        Column("mean length,\nfirst tenth", 2),
        Column("last\ntenth", 1),
        Column("factor"),
    )
    rows = []
    for row in runs.to_dict("records"):
        lengths = (token_count(row[name]) for name in ("first", "last"))
        rows.append((row["source"], f"{row['steps']:,}", *lengths, f"{row['factor']:.2f}"))
    print_fitted(console, columns, rows)
