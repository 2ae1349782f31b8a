"""``oppo report``: one HTML file of what folders hold."""

import json
from pathlib import Path

import click

from oppo_sim.cli import options


@click.command(epilog="Example: oppo report runs/sweep -o sweep.html")
@click.argument("folders", nargs=-1, required=True, type=options.PATH)
@options.output("HTML file to write. Default: FOLDER.html beside the first folder.")
@click.option(
    "--title", default="", show_default=False, help="Title of the page. Default: what the folder holds."
)
@click.option("--force", is_flag=True, help="Replace files that exist.")
@click.option(
    "--figures",
    type=click.Path(path_type=Path, file_okay=False),
    help="Also write the figures of a sweep (one folder) here, as PNG and SVG.",
)
@options.JSON
def command(
    folders: tuple[Path, ...],
    output: Path | None,
    title: str,
    force: bool,
    figures: Path | None,
    as_json: bool,
) -> int:
    """Make one HTML file of one or more FOLDERS: sweeps, tunings, comparisons, runs and validations.

    The file needs no network and nothing beside it: pictures, data, style and script lie inside.
    """
    from oppo_sim.files import refuse_unwritable
    from oppo_sim.report.html_page import write_report
    from oppo_sim.report.points import read_sweep
    from oppo_sim.report.sweep_figures import write_figures

    if figures is not None and len(folders) > 1:
        raise click.UsageError("--figures takes the figures of one sweep: name one folder")
    path = output or folders[0].resolve().with_name(f"{folders[0].resolve().name}.html")
    refuse_unwritable(path, overwrite=force)
    paths = []
    if figures is not None:
        sweep = read_sweep(folders[0])
        paths = write_figures(sweep.points, figures, sweep.name, force=force)
    report = write_report(folders, path, title=title, force=force)
    if as_json:
        record = {
            "report": str(report.path),
            "kinds": report.kinds,
            "bytes": report.bytes,
            "figures": [str(file) for file in paths],
        }
        click.echo(json.dumps(record, indent=1))
        return 0
    sentence = f"wrote {report.path} ({report.bytes / 1e6:.1f} MB): {', '.join(report.kinds)}"
    click.echo(sentence + (f"; {len(paths)} figure files in {figures}" if paths else ""))
    return 0
