"""Folders in, one HTML file out that loads nothing: style, script, figures and data lie inside, and a
content policy forbids the rest.

Every text is escaped by the template engine; only figures drawn here are markup. The policy admits the
page's own script by its hash, so a script that came in with some name would not run even if it were not
escaped."""

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oppo_sim.errors import OppoError
from oppo_sim.files import refuse_unwritable, whole_file
from oppo_sim.finished_run import FinishedRun, read_run_folder
from oppo_sim.given_command import kept_command
from oppo_sim.plain_json import plain
from oppo_sim.report.html_comparison import comparison_chapter
from oppo_sim.report.html_fit import fit_chapter
from oppo_sim.report.html_parts import Chapter, joined, safe_stem
from oppo_sim.report.html_run import TIMELINE, run_chapter, side_by_side
from oppo_sim.report.html_sweep import sweep_chapter
from oppo_sim.report.html_tune import TUNE, tune_chapter
from oppo_sim.report.html_validation import validation_chapter
from oppo_sim.report.labels import Unit, clock_unit
from oppo_sim.report.perfetto import read_trace
from oppo_sim.report.points import SWEEP
from oppo_sim.run_kinds import COMPARISON, FIT, MEASURED, SIMULATED, VALIDATION

if TYPE_CHECKING:
    from markupsafe import Markup

_RUNS: Final[dict[str, Callable[[FinishedRun, str], Chapter]]] = {
    COMPARISON: comparison_chapter,
    SIMULATED: run_chapter,
    MEASURED: run_chapter,
    VALIDATION: validation_chapter,
    FIT: fit_chapter,
}
_SINGLE_RUNS: Final = (SIMULATED, MEASURED)


@dataclass(frozen=True)
class Report:
    """A report and what is in it."""

    path: Path
    kinds: tuple[str, ...]
    """Kind of each folder, in the order given."""
    bytes: int


def report_chapters(folders: Sequence[str | Path]) -> list[Chapter]:
    """A chapter a folder, and one with the timelines side by side where two or more single runs are among
    them.

    Raises OppoError for a folder that holds none of: sweep, tune, comparison, simulated or real run,
    validation.
    """
    if not folders:
        raise OppoError("a report needs at least one folder: name some")
    chapters = []
    runs: list[FinishedRun] = []
    for number, folder in enumerate(map(Path, folders), 1):
        with _as_written(folder):
            chapter, run = _chapter(folder, f"{number}-{safe_stem(folder)}")
            chapters.append(chapter.made_by(kept_command(folder)))
        if run is not None:
            runs.append(run)
    by_clock: dict[Unit | None, list[FinishedRun]] = {}
    for run in runs:
        by_clock.setdefault(clock_unit(run.manifest), []).append(run)
    for unit, alike in by_clock.items():
        with _as_written(alike[0].root):
            chapters += _timelines(alike, unit)
    return chapters


def _chapter(folder: Path, stem: str) -> tuple[Chapter, FinishedRun | None]:
    """The chapter of a folder and, where it is a single run, that."""
    if (folder / TUNE).is_file():
        return tune_chapter(folder, stem), None
    if (folder / SWEEP).is_file():
        return sweep_chapter(folder, stem), None
    run = read_run_folder(folder)
    kind = run.manifest.get("kind")
    if kind is None and "format" in run.manifest:
        raise OppoError(
            f"{folder} is a recorded run, of which there is no report: 'oppo trace show {folder}' shows its"
            f" lengths, 'oppo fit {folder} --scenario YAML' fits its seconds and writes a report"
        )
    if not isinstance(kind, str) or kind not in _RUNS:
        raise OppoError(
            f"{folder} holds a run of kind '{str(kind)[:60]}', of which there is no report: name a folder of"
            f" {joined(list(_RUNS), 'or')}"
        )
    return _RUNS[kind](run, stem), run if kind in _SINGLE_RUNS else None


@contextmanager
def _as_written(folder: Path) -> Iterator[None]:
    """Chapters take tables and records as this program writes them; what somebody changed shows as an error
    of any kind."""
    try:
        yield
    except (OppoError, OSError, MemoryError):
        raise
    except Exception as error:
        problem = f"{type(error).__name__}: {str(error)[:120]}"
        raise OppoError(
            f"{folder} holds what no report can be made of ({problem}): it was changed after it was written,"
            " or another version wrote it; make it again"
        ) from error


def report_html(folders: Sequence[str | Path], title: str = "") -> str:
    """The report as one HTML document. Raises OppoError as ``report_chapters``."""
    chapters = report_chapters(folders)
    with _as_written(Path(folders[0])):
        return page_html(title or (chapters[0].title if len(chapters) == 1 else "Report"), chapters)


def write_report(
    folders: Sequence[str | Path], output: str | Path, *, title: str = "", force: bool = False
) -> Report:
    """Write the report, whole or not at all. Raises OppoError when ``output`` exists (unless ``force``), or
    the disk refuses."""
    path = Path(output)
    refuse_unwritable(path, overwrite=force)
    chapters = report_chapters(folders)
    with _as_written(Path(folders[0])):
        html = page_html(title or (chapters[0].title if len(chapters) == 1 else "Report"), chapters)
    data = html.encode(errors="replace")  # JSON may hold halves of letters
    with whole_file(path) as file:
        file.write(data)
    return Report(path, tuple(chapter.kind for chapter in chapters[: len(folders)]), len(data))


def _timelines(runs: Sequence[FinishedRun], unit: Unit | None) -> list[Chapter]:
    """Those of runs that count time alike, ``unit`` (``clock_unit``)."""
    timelines = {}
    for number, run in enumerate(runs, 1):
        if TIMELINE in run.files:
            name = f"{run.manifest['policy']}, seed {run.manifest.get('seed')} ({run.manifest['kind']})"
            timelines[name if name not in timelines else f"{name}, folder {number}"] = next(
                iter(read_trace(run.path(TIMELINE)).values())
            )
    if len(timelines) < 2:
        return []
    sections = side_by_side(timelines, f"timelines-{unit.name}" if unit else "timelines", unit=unit)
    if not sections:
        return []
    measured = all(run.manifest["kind"] == MEASURED for run in runs)
    return [
        Chapter(
            title="Timelines side by side",
            kind="timelines",
            source="As each run's chapter says.",
            measured=measured,
            question=f"Where do {joined(list(timelines))} spend the same steps?",
            answer=(),
            sections=tuple(sections),
            provenance=tuple((name, "see its chapter") for name in timelines),
        )
    ]


_PAGE: Final = "page"
_DANGEROUS: Final = {
    ord("<"): "\\u003c",
    ord(">"): "\\u003e",
    ord("&"): "\\u0026",
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}


def page_html(title: str, chapters: Sequence[Chapter]) -> str:
    """The whole document. The same chapters give the same text."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["sentence"] = _sentence
    environment.filters["plain_json"] = lambda value: Markup(_script_safe_json(value))
    script = _asset("report.js")
    return (
        environment.from_string(_asset("report.html.j2")).render(
            title=title,
            chapters=chapters,
            policy=Markup(content_policy(script)),
            version=version("oppo-toolkit"),
            style=Markup(_asset("report.css")),
            script=Markup(script),
        )
        + "\n"
    )


def _sentence(text: str) -> "Markup":
    """A command at its end is a line to copy, not broken at its hyphens."""
    from markupsafe import Markup, escape

    said, colon, command = text.partition(": oppo ")
    if not colon:
        return escape(text)
    return Markup('{}:<code class="command">oppo {}</code>').format(said, command.removesuffix("."))


def content_policy(script: str) -> str:
    """The page's Content-Security-Policy: its own script, inline styles, embedded images, and no request at
    all."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:;"
        " base-uri 'none'; form-action 'none'"
    )


def _script_safe_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(
        _DANGEROUS
    )


@cache
def _asset(name: str) -> str:
    return (files("oppo_sim.report") / _PAGE / name).read_text(encoding="utf-8")
