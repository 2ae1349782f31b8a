"""Folders in, one HTML file out: finds what each folder holds and gives it a chapter."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from oppo_sim.errors import OppoError
from oppo_sim.files import refuse_existing, whole_file
from oppo_sim.report.html_comparison import comparison_chapter
from oppo_sim.report.html_page import page_html
from oppo_sim.report.html_parts import Chapter
from oppo_sim.report.html_run import run_chapter
from oppo_sim.report.html_sweep import sweep_chapter
from oppo_sim.report.html_timelines import TIMELINE, side_by_side
from oppo_sim.report.html_tune import TUNE, tune_chapter
from oppo_sim.report.html_validation import validation_chapter
from oppo_sim.report.html_words import joined, safe_stem
from oppo_sim.report.perfetto_read import read_trace
from oppo_sim.report.run_folder import FinishedRun, read_run_folder
from oppo_sim.report.sweep_folder import SWEEP

_RUNS: Final[dict[str, Callable[[FinishedRun, str], Chapter]]] = {
    "simulated comparison": comparison_chapter,
    "simulated": run_chapter,
    "measured": run_chapter,
    "validation": validation_chapter,
}
_SINGLE_RUNS: Final = ("simulated", "measured")


@dataclass(frozen=True)
class WrittenReport:
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
        stem = f"{number}-{safe_stem(folder)}"
        if (folder / TUNE).is_file():
            chapters.append(tune_chapter(folder, stem))
        elif (folder / SWEEP).is_file():
            chapters.append(sweep_chapter(folder, stem))
        else:
            run = read_run_folder(folder)
            kind = run.manifest.get("kind")
            if not isinstance(kind, str) or kind not in _RUNS:
                raise OppoError(
                    f"{folder} holds a run of kind '{kind}', of which there is no report: name a folder of"
                    f" {joined(list(_RUNS), 'or')}"
                )
            chapters.append(_RUNS[kind](run, stem))
            if kind in _SINGLE_RUNS:
                runs.append(run)
    return [*chapters, *_timelines(runs)]


def report_html(folders: Sequence[str | Path], title: str = "") -> str:
    """The report as one HTML document. Raises OppoError as ``report_chapters``."""
    chapters = report_chapters(folders)
    return page_html(title or (chapters[0].title if len(chapters) == 1 else "Report"), chapters)


def write_report(
    folders: Sequence[str | Path], output: str | Path, *, title: str = "", force: bool = False
) -> WrittenReport:
    """Write the report, whole or not at all. Raises OppoError when ``output`` exists (unless ``force``), or
    the disk refuses."""
    path = Path(output)
    refuse_existing(path, overwrite=force)
    chapters = report_chapters(folders)
    data = page_html(title or (chapters[0].title if len(chapters) == 1 else "Report"), chapters).encode()
    with whole_file(path) as file:
        file.write(data)
    return WrittenReport(path, tuple(chapter.kind for chapter in chapters[: len(folders)]), len(data))


# ---- inside ------------------------------------------------------------------------------------------------


def _timelines(runs: Sequence[FinishedRun]) -> list[Chapter]:
    timelines = {}
    for number, run in enumerate(runs, 1):
        if TIMELINE in run.files:
            name = f"{run.manifest['policy']}, seed {run.manifest.get('seed')} ({run.manifest['kind']})"
            timelines[name if name not in timelines else f"{name}, folder {number}"] = next(
                iter(read_trace(run.path(TIMELINE)).values())
            )
    if len(timelines) < 2:
        return []
    sections = side_by_side(timelines, "timelines")
    if not sections:
        return []
    measured = all(run.manifest["kind"] == "measured" for run in runs)
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
