"""``oppo trace import``: traces from the logs of training frameworks and serving systems."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oppo_sim.cli.options import StepRange
from oppo_sim.cli.progress import progress_bar
from oppo_sim.cli.trace_common import (
    FORCE,
    in_short,
    print_fitted,
    print_json,
    refuse_output,
    text_table,
    verbatim,
)
from oppo_sim.report.terminal import Column, table_console

if TYPE_CHECKING:
    from rich.console import Console

MOST_SHOWN = 6


def _mapped(texts: tuple[str, ...], option: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for text in texts:
        target, sign, name = text.partition("=")
        if not (sign and target.strip() and name.strip()):
            raise click.UsageError(f"{option} '{text}' is not TARGET=NAME, such as response_length=n_tokens")
        if target.strip() in fields:
            raise click.UsageError(f"{option} names {target.strip()} twice: name it once")
        fields[target.strip()] = name.strip()
    return fields


@click.command("import")
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option(
    "--from",
    "framework",
    metavar="NAME",
    default="auto",
    help="Whose log it is: a name of --list, or auto, which recognises it.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="File to write: .parquet, .csv or .csv.gz by its name.",
)
@click.option(
    "--list", "list_all", is_flag=True, help="List the importers: what they read, and an example of each."
)
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    help="For logs that hold text: a tokenizer.json, or a model's folder.",
)
@click.option(
    "--chars-per-token", type=float, help="Instead of a tokenizer: an estimate, and reported as one."
)
@click.option(
    "--field",
    "field_texts",
    multiple=True,
    metavar="TARGET=NAME",
    help="Which field of the log is which; repeatable.",
)
@click.option("--columns", metavar="TARGET=NAME,…", help="Several --field at once.")
@click.option(
    "--max-response-length", type=int, help="Responses of this many tokens were cut, shorter ones were not."
)
@click.option("--steps", type=StepRange(), help="Keep these training steps, both ends included.")
@click.option("--source", "source_name", metavar="NAME", help="Name of the rows' source [the framework's].")
@click.option("--rows-per-step", type=int, help="Rollouts in a step, for logs that hold only figures a step.")
@click.option(
    "--like", metavar="NAME_OR_PATH", help="Trace whose shape is taken where a log has only a mean."
)
@click.option(
    "--tool-seconds",
    type=float,
    metavar="S",
    help="Of each wait for a tool, where the log has turns but not their seconds.",
)
@FORCE
@click.option("--json", "as_json", is_flag=True, help="Print the provenance as JSON instead of text.")
def import_command(
    path: Path | None,
    framework: str,
    output: Path | None,
    list_all: bool,
    field_texts: tuple[str, ...],
    columns: str | None,
    source_name: str | None,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Make a trace from a framework's own log.

    PATH is a file, or the folder a run wrote. Only lengths, ids, finish reasons and rewards are taken from
    it, no text. Beside the trace its provenance is written: files with SHA-256, rows left out and why, how
    tokens were counted. docs/importers.md tells of every format.

    \b
    Examples:
      oppo trace import --list
      oppo trace import debug_rollouts/ --steps 20:80 -o my.parquet
      oppo trace import --from verl rollouts/ --tokenizer model/tokenizer.json \\
        --max-response-length 8192 -o my.parquet
      oppo trace import --from verl metrics.jsonl --rows-per-step 1024 \\
        -o drawn.parquet
      oppo trace import --from generic log.jsonl \\
        --columns response_length=n_out,prompt_length=n_in -o my.parquet
    """
    if list_all:
        _list(as_json)
        return
    if path is None or output is None:
        raise click.UsageError(
            "give the PATH of the log, and -o FILE for the trace; --list names the importers"
        )
    from oppo_sim.files import refuse_existing
    from oppo_sim.traces.importers import import_log
    from oppo_sim.traces.importers.provenance import provenance_path, save_imported
    from oppo_sim.traces.stats import trace_stats

    refuse_output(output, force)
    refuse_existing(provenance_path(output), overwrite=force)
    fields = {
        **_mapped(tuple((columns or "").split(",")) if columns else (), "--columns"),
        **_mapped(field_texts, "--field"),
    }
    with _files_bar(as_json) as advance:
        frame, provenance = import_log(
            framework, path, progress=advance, fields=fields, name=source_name, **options
        )
    save_imported(frame, provenance, output, overwrite=force)
    if as_json:
        print_json({"file": output.name, **provenance})
        return
    if provenance["detected"]:
        click.echo(f"recognised as a log of {provenance['framework']}")
    click.echo(f"wrote {output}: {in_short(trace_stats(frame))}")
    print_import(table_console(), provenance)


@contextmanager
def _files_bar(quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """A progress bar over files, shown from the first that is done."""
    with ExitStack() as stack:
        opened: list[tuple[Any, Any]] = []

        def advance(done: int, total: int) -> None:
            if not opened:
                opened.append(stack.enter_context(progress_bar("files", total, quiet)))
            progress, task = opened[0]
            progress.update(task, completed=done)

        yield advance


def print_import(console: "Console", provenance: dict[str, Any]) -> None:
    """Where an imported trace comes from, as a table."""
    files, left_out = provenance["files"], {**provenance["files_left_out"], **provenance["rows_left_out"]}
    origins = {"log": "logged", "length": "from the length", "unknown": "unknown"}
    reasons = ", ".join(f"{provenance['finish_reasons'][key]:,} {text}" for key, text in origins.items())
    shown = ", ".join(f"{file['name']} ({file['bytes']:,} bytes)" for file in files[:MOST_SHOWN])
    more = f" and {len(files) - MOST_SHOWN} more" if len(files) > MOST_SHOWN else ""
    table = text_table("", "")
    for name, text in (
        ("framework", provenance["framework"]),
        ("lengths", provenance["lengths"]),
        ("files", shown + more),
        ("rows", f"{provenance['rows_read']:,} read, {provenance['rows_kept']:,} kept"),
        ("left out", "\n".join(f"{count:,} for: {reason}" for reason, count in left_out.items())),
        ("finish reasons", reasons),
        ("notes", "\n".join(provenance["notes"])),
    ):
        if text:
            table.add_row(name, verbatim(text))
    console.print("\nProvenance", highlight=False)
    console.print(table)


def _list(as_json: bool) -> None:
    from oppo_sim.traces.importers import IMPORTERS

    if as_json:
        keys = ("name", "reads", "lengths", "notes", "example")
        values = ((each.name, each.what, each.lengths, each.notes, each.example) for each in IMPORTERS)
        print_json([dict(zip(keys, each, strict=True)) for each in values])
        return
    console = table_console()
    columns = (
        Column("name", left=True),
        Column("what it reads", left=True, folds_at=12),
        Column("lengths", left=True, folds_at=12),
    )
    print_fitted(console, columns, [(each.name, each.what, each.lengths) for each in IMPORTERS])
    console.print("Examples (--from auto recognises nearly all of them):", highlight=False)
    for each in IMPORTERS:
        click.echo(f"  {each.example}")
