"""``oppo trace``: inspect, fit, synthesise, import, resample and convert response-length traces."""

from pathlib import Path

import click

from oppo_sim.cli.trace_common import (
    AS_JSON,
    FORCE,
    OUTPUT,
    SOURCES,
    as_plain,
    in_short,
    note,
    print_fitted,
    print_json,
    refuse_output,
    token_count,
    verbatim,
)  # fmt: skip
from oppo_sim.cli.trace_import import import_command
from oppo_sim.cli.trace_show import list_command, show_command
from oppo_sim.cli.trace_synth import synth_command
from oppo_sim.report.terminal import Column, table_console


@click.group()
def trace() -> None:
    """Inspect, fit, synthesise, import, resample and convert response-length traces.

    NAME_OR_PATH is a shipped trace (see 'oppo trace list'), a file ending in .parquet, .csv or .csv.gz, or
    the folder of a real run.
    """


for _command in (list_command, show_command, synth_command, import_command):
    trace.add_command(_command)


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
        named = {"trace": opened.title, "sources": list(sources), "best": result.best.distribution}
        print_json({**named, **as_plain(result)})
        return
    console = table_console()
    console.print(
        verbatim(f"{opened.title}: {result.rows:,} responses, {result.cut_rows:,} of them cut; best first")
    )
    columns = [
        Column("distribution", left=True),
        Column("parameters", left=True, folds_at=15),
        Column("AIC −\nbest"),
        Column("KS\ndistance", 3),
        Column("mean up\nto longest", 4),
        Column("p50", 2),
        Column("p99", 1),
    ]
    rows = []
    for fit in result.fits:
        parameters = ", ".join(f"{key} {value:.4g}" for key, value in fit.parameters.items())
        lengths = (token_count(value) for value in (fit.mean_to_longest, fit.p50, fit.p99))
        worse = f"{fit.aic - result.best.aic:,.1f}"
        rows.append((fit.distribution, parameters, worse, f"{fit.ks_distance:.3f}", *lengths))
    print_fitted(console, columns, rows)
    console.print(
        f"the trace's longest response has {result.longest:,} tokens; p50 and p99 are those of the fit"
        " without any cut",
        highlight=False,
    )
    for warning in result.warnings:
        note(warning)


@trace.command("resample")
@click.argument("name_or_path")
@SOURCES
@click.option(
    "--rows", required=True, type=click.IntRange(1, 50_000_000), help="Rows to draw, with replacement."
)
@click.option(
    "--seed",
    required=True,
    type=click.IntRange(0, 2**63 - 1),
    help="Seed of the draws: the same seed gives the same rows.",
)
@OUTPUT
@FORCE
@AS_JSON
def resample_command(
    name_or_path: str,
    sources: tuple[str, ...],
    rows: int,
    seed: int,
    output: Path,
    force: bool,
    as_json: bool,
) -> None:
    """Draw rows of a trace into a new one, with replacement.

    \b
    Example:
      oppo trace resample math_gsm8k_gpt3 --rows 100000 --seed 1 -o more.parquet
    """
    from oppo_sim.traces.opening import open_trace
    from oppo_sim.traces.stats import trace_stats
    from oppo_sim.traces.storage import save_trace
    from oppo_sim.traces.synth import resample

    refuse_output(output, force)
    drawn = resample(open_trace(name_or_path, sources or None).frame, rows, seed)
    save_trace(drawn, output, overwrite=force)
    stats = trace_stats(drawn)
    if as_json:
        print_json({"file": str(output), **as_plain(stats)})
        return
    click.echo(f"wrote {output}: {in_short(stats)}")


@trace.command("convert")
@click.argument("source_path", metavar="NAME_OR_PATH")
@click.argument("output", metavar="OUT", type=click.Path(path_type=Path))
@SOURCES
@FORCE
@AS_JSON
def convert_command(
    source_path: str, output: Path, sources: tuple[str, ...], force: bool, as_json: bool
) -> None:
    """Check a trace and write it in another format.

    The name of OUT decides: .parquet, .csv or .csv.gz. Columns prompt_tokens and response_tokens become
    prompt_length and response_length.

    \b
    Example:
      oppo trace convert lengths.csv.gz lengths.parquet
    """
    from oppo_sim.traces.opening import open_trace
    from oppo_sim.traces.storage import save_trace

    refuse_output(output, force)
    frame = open_trace(source_path, sources or None).frame
    save_trace(frame, output, overwrite=force)
    if as_json:
        print_json({"file": str(output), "rows": len(frame)})
        return
    click.echo(f"wrote {output}: {len(frame):,} rows")
