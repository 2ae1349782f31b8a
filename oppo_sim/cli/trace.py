"""``oppo trace``: inspect, fit, synthesise, resample and convert response-length traces."""

import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oppo_sim.errors import OppoError

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console
    from rich.table import Table

    from oppo_sim.traces.config import SynthConfig
    from oppo_sim.traces.opening import OpenedTrace
    from oppo_sim.traces.stats import TraceStats

MOST_SOURCES_SHOWN = 24

SOURCES = click.option(
    "--source", "sources", multiple=True, metavar="PATTERN", help="Keep rows of this source (* and ? allowed); repeatable."
)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
FORCE = click.option("--force", is_flag=True, help="Overwrite the file if it exists.")
OUTPUT = click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="File to write: .parquet, .csv or .csv.gz by its name."
)


@click.group()
def trace() -> None:
    """Inspect, fit, synthesise, resample and convert response-length traces.

    NAME_OR_PATH is a shipped trace (see 'oppo trace list'), a file ending in .parquet, .csv or .csv.gz, or the folder of a recorded run.
    """


@trace.command("list")
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
        _print_json([entry.model_dump(mode="json") for entry in entries])
        return
    table = _table("name", "what", ">rows", "lengths", "licence")
    for entry in entries:
        lengths = "per step" if entry.kind == "steps" else "drawn" if entry.synthetic else "measured"
        table.add_row(entry.name, entry.domain, f"{entry.rows:,}", lengths, entry.licence)
    _console().print(table)


@trace.command("show")
@click.argument("name_or_path")
@SOURCES
@AS_JSON
@click.option("--plot", "plot", type=click.Path(path_type=Path), help="Also draw it: a .png, .svg or .pdf file.")
@FORCE
def show_command(name_or_path: str, sources: tuple[str, ...], as_json: bool, plot: Path | None, force: bool) -> None:
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
        from oppo_sim.files import refuse_existing

        refuse_existing(plot, overwrite=force)
    _show(opened, as_json)
    if plot is not None:
        from oppo_sim.traces.figure import save_figure
        from oppo_sim.traces.stats import trace_stats

        save_figure(opened.frame, trace_stats(opened.frame), opened.title, plot, overwrite=force)
        _note(f"wrote {plot}")


@trace.command("fit")
@click.argument("name_or_path")
@SOURCES
@AS_JSON
def fit_command(name_or_path: str, sources: tuple[str, ...], as_json: bool) -> None:
    """Fit length distributions to a trace.

    Lognormal, Weibull and a mixture of two lognormals; responses cut at a maximum count as right-censored.

    \b
    Example:
      oppo trace fit serving_servegen_r1 --json
    """
    from oppo_sim.traces.fit import fit_trace
    from oppo_sim.traces.opening import open_trace

    opened = open_trace(name_or_path, sources or None)
    result = fit_trace(opened.frame)
    if as_json:
        _print_json({"trace": opened.title, "sources": list(sources), "best": result.best.distribution, **_plain(result)})
        return
    console = _console()
    console.print(_text(f"{opened.title}: {result.rows:,} responses, {result.cut_rows:,} of them cut; best first"))
    table = _table("distribution", "parameters", ">AIC − best", ">KS distance", ">mean up to longest", ">p50", ">p99")
    for fit in result.fits:
        parameters = ", ".join(f"{key} {value:.4g}" for key, value in fit.parameters.items())
        lengths = (_tokens(value) for value in (fit.mean_to_longest, fit.p50, fit.p99))
        table.add_row(fit.distribution, parameters, f"{fit.aic - result.best.aic:,.1f}", f"{fit.ks_distance:.3f}", *lengths)
    console.print(table)
    console.print(
        f"the trace's longest response has {result.longest:,} tokens; p50 and p99 are those of the fit without any cut", highlight=False
    )
    for warning in result.warnings:
        _note(warning)


@trace.command("synth")
@click.option("--distribution", type=click.Choice(["lognormal", "weibull", "mixture"]), help="Of the lengths before the cut [lognormal].")
@click.option("--mean", type=float, help="Target: mean length, tokens.")
@click.option("--p50", type=float, help="Target: median length, tokens.")
@click.option("--p99", type=float, help="Target: 99 % of the responses are not longer, tokens.")
@click.option("--clip-ratio", type=float, help="Target: share of responses cut at --max-response-length.")
@click.option("--tail-weight", type=float, help="Share of the longer component of a mixture with three targets.")
@click.option("--param", "params", multiple=True, metavar="NAME=VALUE", help="A parameter instead of targets, e.g. mu=6.2; repeatable.")
@click.option("--like", metavar="NAME_OR_PATH", help="Fit this trace and take the best distribution.")
@click.option("--max-response-length", type=int, help="Cut responses here, tokens.")
@click.option("--rows", type=int, help="Rollouts [10000].")
@click.option("--steps", type=int, help="Spread the rows over this many steps.")
@click.option("--drift", type=click.Choice(["linear", "exponential", "table"]), help="How lengths change over the steps.")
@click.option("--last-factor", type=float, help="Lengths of the last step relative to the first (linear, exponential).")
@click.option("--drift-table", help="Shipped per-step table to follow (table).")
@click.option("--drift-source", help="Run of that table.")
@click.option("--samples-per-prompt", type=int, help="Consecutive rows that share a prompt [1].")
@click.option("--prompt-correlation", type=float, help="How alike the samples of a prompt are, 0 to 1 [0].")
@click.option("--prompt-mean", type=float, help="Mean prompt length, tokens.")
@click.option("--prompt-p99", type=float, help="99 % of the prompts are not longer, tokens.")
@click.option("--seed", type=int, help="Seed of the draws [0].")
@OUTPUT
@FORCE
@AS_JSON
def synth_command(
    like: str | None,
    params: tuple[str, ...],
    drift: str | None,
    last_factor: float | None,
    drift_table: str | None,
    drift_source: str | None,
    output: Path,
    force: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Make a synthetic trace from targets or another trace.

    Two of --mean, --p50, --p99 and --clip-ratio determine a lognormal or a Weibull, three or four a mixture. They describe the lengths
    after the cut, in the first step.

    \b
    Examples:
      oppo trace synth --mean 1200 --p99 7000 --rows 20000 -o lengths.parquet
      oppo trace synth --mean 900 --clip-ratio 0.05 --max-response-length 4096 -o cut.csv.gz
      oppo trace synth --p50 400 --p99 3000 --steps 200 --drift linear --last-factor 3 -o drift.parquet
      oppo trace synth --like serving_servegen_r1 --rows 1000000 -o big.parquet
    """
    from oppo_sim.traces.distributions import parameters_of
    from oppo_sim.traces.identity import content_hash
    from oppo_sim.traces.stats import trace_stats
    from oppo_sim.traces.storage import save_trace
    from oppo_sim.traces.synth import synthesise
    from oppo_sim.traces.targets import solve

    _refuse_output(output, force)
    given = {name: value for name, value in settings.items() if value is not None}
    if params:
        given["parameters"] = dict(_parameter(text) for text in params)
    if like is not None:
        given = {**_fitted(like, given), **given}
    drifting = {"kind": drift, "last_factor": last_factor, "table": drift_table, "source": drift_source}
    if any(value is not None for value in drifting.values()):
        if drift is None:
            raise click.UsageError("--last-factor, --drift-table and --drift-source need --drift, the kind of drift")
        given["drift"] = {name: value for name, value in drifting.items() if value is not None}
    config = _synth_config(given)
    frame = synthesise(config)
    save_trace(frame, output, overwrite=force)
    stats, distribution = trace_stats(frame), solve(config)
    if as_json:
        _print_json(
            {
                "file": output.name,
                "content_sha256": content_hash(frame),
                "distribution": config.distribution,
                "parameters": parameters_of(distribution),
                "stats": _plain(stats),
            }
        )
        return
    parameters = ", ".join(f"{key} {value:.4g}" for key, value in parameters_of(distribution).items())
    click.echo(f"wrote {output}: {_in_short(stats)} ({config.distribution}, {parameters})")


@trace.command("resample")
@click.argument("name_or_path")
@SOURCES
@click.option("--rows", required=True, type=click.IntRange(1, 50_000_000), help="Rows to draw, with replacement.")
@click.option("--seed", required=True, type=click.IntRange(0, 2**63 - 1), help="Seed of the draws: the same seed gives the same rows.")
@OUTPUT
@FORCE
def resample_command(name_or_path: str, sources: tuple[str, ...], rows: int, seed: int, output: Path, force: bool) -> None:
    """Draw rows of a trace into a new one, with replacement.

    \b
    Example:
      oppo trace resample math_gsm8k_gpt3 --rows 100000 --seed 1 -o gsm8k_100k.parquet
    """
    from oppo_sim.traces.opening import open_trace
    from oppo_sim.traces.resample import resample
    from oppo_sim.traces.stats import trace_stats
    from oppo_sim.traces.storage import save_trace

    _refuse_output(output, force)
    drawn = resample(open_trace(name_or_path, sources or None).frame, rows, seed)
    save_trace(drawn, output, overwrite=force)
    click.echo(f"wrote {output}: {_in_short(trace_stats(drawn))}")


@trace.command("convert")
@click.argument("source_path", metavar="NAME_OR_PATH")
@click.argument("output", metavar="OUT", type=click.Path(path_type=Path))
@SOURCES
@FORCE
def convert_command(source_path: str, output: Path, sources: tuple[str, ...], force: bool) -> None:
    """Check a trace and write it in another format.

    The name of OUT decides: .parquet, .csv or .csv.gz. Columns prompt_tokens and response_tokens become prompt_length and response_length.

    \b
    Example:
      oppo trace convert lengths.csv.gz lengths.parquet
    """
    from oppo_sim.traces.opening import open_trace
    from oppo_sim.traces.storage import save_trace

    _refuse_output(output, force)
    frame = open_trace(source_path, sources or None).frame
    save_trace(frame, output, overwrite=force)
    click.echo(f"wrote {output}: {len(frame):,} rows")


def _refuse_output(output: Path, force: bool) -> None:
    # Before the work, not after it.
    from oppo_sim.files import refuse_existing
    from oppo_sim.traces.storage import suffix_of

    suffix_of(output)
    refuse_existing(output, overwrite=force)


def _synth_config(given: dict[str, Any]) -> "SynthConfig":
    from pydantic import ValidationError

    from oppo_sim.scenario.problems import problems_of
    from oppo_sim.traces.config import SynthConfig

    try:
        return SynthConfig.model_validate(given)
    except ValidationError as error:
        problem = problems_of(error, given, SynthConfig.model_json_schema())[0]
        raise OppoError(f"synthetic trace: {problem.sentence}") from None


def _fitted(like: str, given: dict[str, Any]) -> dict[str, Any]:
    from oppo_sim.traces.fit import fit_trace
    from oppo_sim.traces.opening import open_trace

    clash = {"mean", "p50", "p99", "clip_ratio", "tail_weight", "parameters"} & set(given)
    if clash:
        raise click.UsageError("--like takes the distribution from a trace: leave out the targets and --param")
    result = fit_trace(open_trace(like).frame)
    wanted = given.get("distribution", result.best.distribution)
    fit = next(each for each in result.fits if each.distribution == wanted)
    for warning in result.warnings:
        _note(warning)
    return {
        "distribution": fit.distribution,
        "parameters": fit.parameters,
        # A fitted tail goes on beyond what was seen: where the trace had a cut, keep it.
        **({"max_response_length": result.longest} if result.cut_rows else {}),
    }


def _parameter(text: str) -> tuple[str, float]:
    name, sign, value = text.partition("=")
    try:
        return name.strip(), float(value)
    except ValueError:
        pass
    raise click.UsageError(f"--param '{text}' is not NAME=VALUE{' with a number' if sign else ''}, such as mu=6.2")


def _show(opened: "OpenedTrace", as_json: bool) -> None:
    from oppo_sim.columns import SOURCE
    from oppo_sim.traces.identity import content_hash
    from oppo_sim.traces.stats import drift_by_step, trace_stats

    frame = opened.frame
    stats = trace_stats(frame)
    drift = drift_by_step(frame)
    by_source = {str(name): trace_stats(rows) for name, rows in _finished(frame).groupby(SOURCE, sort=True)}
    if as_json:
        _print_json(
            {
                "trace": opened.title,
                "content_sha256": content_hash(frame),
                "stats": _plain(stats),
                "drift": drift.to_dict("records"),
                "sources": {name: _plain(each) for name, each in by_source.items()},
                "provenance": opened.entry.model_dump(mode="json") if opened.entry else None,
            }
        )
        return
    console = _console()
    console.print(_text(opened.title, "bold"))
    table = _table("", ">", "")
    for name, value, meaning in _lines(stats):
        table.add_row(name, value, _text(meaning, "dim"))
    console.print(table)
    if len(drift) > 1:
        console.print("\nDrift by step, tokens", highlight=False)
        console.print(_drift_table(drift))
    if len(by_source) > 1:
        console.print("\nSources, tokens (filter with --source)", highlight=False)
        console.print(_source_table(by_source))
    if opened.entry is not None:
        _print_provenance(console, opened)


def _finished(frame: "pd.DataFrame") -> "pd.DataFrame":
    from oppo_sim.columns import FINISH_REASON

    return frame[(frame[FINISH_REASON] != "abort").fillna(True)]


def _lines(stats: "TraceStats") -> list[tuple[str, str, str]]:
    from oppo_sim.traces.stats import REFERENCE_BATCH

    lines = [
        ("responses", f"{stats.rows:,}", _counts_said(stats)),
        ("mean", _tokens(stats.mean), "tokens"),
        ("p50", _tokens(stats.p50), ""),
        ("p90", _tokens(stats.p90), ""),
        ("p99", _tokens(stats.p99), ""),
        ("max", _tokens(stats.max), _at_max_said(stats)),
        ("CV", f"{stats.cv:.2f}", "standard deviation / mean"),
        ("p99 / p50", f"{stats.p99_over_p50:.1f}", ""),
        ("max / mean", f"{stats.max_over_mean:.1f}", ""),
        ("longest 1 %", f"{100 * stats.top_1_percent_share:.1f} %", "of all response tokens"),
        (f"longest of {REFERENCE_BATCH}", f"{stats.longest_of_batch:.1f}", "times the mean, expected for a random batch"),
    ]
    if stats.clip_ratio is None:
        lines.append(("cut", "unknown", "no row has a finish_reason"))
    else:
        known = "" if stats.finish_reason_known == 1 else f", known for {100 * stats.finish_reason_known:.0f} % of the rows"
        lines.append(("cut", f"{100 * stats.clip_ratio:.1f} %", f"finish_reason length{known}"))
    if stats.group_cv is not None:
        lines.append(("CV within a prompt", f"{stats.group_cv:.2f}", f"median; {stats.group_samples:g} samples a prompt"))
    if stats.prompt_mean is not None:
        known = "" if stats.prompt_known == 1 else f", known for {100 * stats.prompt_known:.0f} % of the rows"
        lines.append(("prompt mean", _tokens(stats.prompt_mean), f"tokens, max {_tokens(stats.prompt_max or 0)}{known}"))
    else:
        lines.append(("prompt mean", "unknown", "set trace.prompt_length in a scenario"))
    if stats.reward_mean is not None:
        lines.append(("reward mean", f"{stats.reward_mean:.4g}", ""))
    return lines


def _counts_said(stats: "TraceStats") -> str:
    counts = ((stats.sources, "source"), (stats.steps, "step"), (stats.prompts, "prompt"))
    parts = [f"{count:,} {name}{'s' if count > 1 else ''}" for count, name in counts if count]
    parts += [f"{stats.aborted:,} aborted rows left out"] if stats.aborted else []
    parts += [f"{stats.zero_length:,} of length 0 counted as 1"] if stats.zero_length else []
    return ", ".join(parts)


def _at_max_said(stats: "TraceStats") -> str:
    return f"{100 * stats.at_max_share:.1f} % are exactly so long" if stats.at_max_share >= 0.002 else ""


def _drift_table(drift: "pd.DataFrame") -> "Table":
    table = _table("steps", ">rows", ">mean", ">p50", ">p90", ">cut")
    for row in drift.to_dict("records"):
        first, last, cut = int(row["first_step"]), int(row["last_step"]), float(row["clip_ratio"])
        lengths = (_tokens(row[name]) for name in ("mean", "p50", "p90"))
        shown = "" if math.isnan(cut) else f"{100 * cut:.1f} %"
        table.add_row(f"{first}" if first == last else f"{first}–{last}", f"{int(row['rows']):,}", *lengths, shown)
    return table


def _source_table(by_source: "dict[str, TraceStats]") -> "Table":
    table = _table("source", ">rows", ">mean", ">p50", ">p99", ">max", ">CV", ">cut")
    for name, stats in list(by_source.items())[:MOST_SOURCES_SHOWN]:
        cut = "" if stats.clip_ratio is None else f"{100 * stats.clip_ratio:.1f} %"
        lengths = (_tokens(value) for value in (stats.mean, stats.p50, stats.p99, stats.max))
        table.add_row(_text(name), f"{stats.rows:,}", *lengths, f"{stats.cv:.2f}", cut)
    if len(by_source) > MOST_SOURCES_SHOWN:
        table.add_row(f"… and {len(by_source) - MOST_SOURCES_SHOWN} more (all with --json)")
    return table


def _print_provenance(console: "Console", opened: "OpenedTrace") -> None:
    entry = opened.entry
    assert entry is not None
    table = _table("", "")
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
            table.add_row(name, _text(text))
    console.print("\nProvenance", highlight=False)
    console.print(table)


def _show_step_table(name: str, as_json: bool) -> None:
    from oppo_sim.traces.catalog import find_trace
    from oppo_sim.traces.step_tables import runs_of

    entry, runs = find_trace(name, "steps"), runs_of(name)
    if as_json:
        _print_json({"table": name, "runs": runs.to_dict("records"), "provenance": entry.model_dump(mode="json")})
        return
    console = _console()
    console.print(_text(name, "bold"), "one row a training step, for drift and stage times", highlight=False)
    table = _table("run", ">steps", ">mean length, first tenth", ">last tenth", ">factor")
    for row in runs.to_dict("records"):
        table.add_row(_text(row["source"]), f"{row['steps']:,}", _tokens(row["first"]), _tokens(row["last"]), f"{row['factor']:.2f}")
    console.print(table)


def _in_short(stats: "TraceStats") -> str:
    cut = f", {100 * stats.clip_ratio:.1f} % cut" if stats.clip_ratio else ""
    return f"{stats.rows:,} rows, mean {stats.mean:,.0f}, p50 {stats.p50:,.0f}, p99 {stats.p99:,.0f}, max {stats.max:,}{cut}"


def _tokens(value: Any) -> str:
    number = float(value)
    return f"{number:,.0f}" if number < 1e9 else f"{number:.3g}"


def _console() -> "Console":
    from rich.console import Console

    # A pipe has no width: do not squeeze the tables into 80 columns.
    return Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 140)


def _table(*columns: str) -> "Table":
    """Columns by title; '>' in front aligns to the right. Without titles there is no header."""
    from rich import box
    from rich.table import Table

    titled = any(column.lstrip(">") for column in columns)
    table = Table(box=box.SIMPLE_HEAD if titled else None, show_header=titled, pad_edge=False, header_style="")
    for column in columns:
        right = column.startswith(">")
        table.add_column(column.lstrip(">"), justify="right" if right else "left", no_wrap=right, overflow="fold")
    return table


def _text(text: str, style: str = "") -> Any:
    """Text that is shown as it is: a name may hold what rich takes for markup."""
    from rich.text import Text

    return Text(text, style=style)


def _plain(value: Any) -> Any:
    from oppo_sim.report.plain_json import plain

    return plain(value)


def _print_json(value: Any) -> None:
    from oppo_sim.report.plain_json import json_bytes

    click.echo(json_bytes(value).decode(), nl=False)


def _note(sentence: str) -> None:
    click.echo(f"note: {sentence}", err=True)
