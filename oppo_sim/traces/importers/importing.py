"""Import a log: find its files, read them one after another, and say where every row came from."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pandas as pd

from oppo_sim.errors import OppoError
from oppo_sim.files import sha256_of
from oppo_sim.traces.importers.aggregates import Account, draw_steps
from oppo_sim.traces.importers.bare_consoles import refused_console
from oppo_sim.traces.importers.confined import reader_of
from oppo_sim.traces.importers.detecting import OTHER_KIND, Chosen, choose_files, detect, shown_name
from oppo_sim.traces.importers.figures import figures_by_step, usable_steps
from oppo_sim.traces.importers.formats import AUTO, find_importer
from oppo_sim.traces.importers.gathering import OUTSIDE, Gathering
from oppo_sim.traces.importers.importer import Importer
from oppo_sim.traces.importers.metric_files import NoMetrics
from oppo_sim.traces.importers.options import METRIC_FIELDS, ROLLOUT_FIELDS, ImportOptions
from oppo_sim.traces.importers.reading import TOOL_SECONDS_USED, Reading, Rollout
from oppo_sim.traces.importers.summed_tokens import steps_of_a_line, with_prompts
from oppo_sim.traces.importers.tokens import make_counter

FORMAT: Final = "oppo-import/1"
Progress = Callable[[int, int], None]
"""Called with the files done and the files there are."""


def import_log(
    source: str, path: str | Path, *, progress: Progress | None = None, **options: Any
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The rollouts of a log as a trace (columns as ``schema.checked_frame``), and its provenance as plain
    data.

    ``source`` is the name of an importer (``IMPORTERS``) or ``auto``; ``options`` are the fields
    of ``ImportOptions``: tokenizer, chars_per_token, fields, max_response_length, steps, name,
    rows_per_step, like, tool_seconds. Files are read one after another, and of every
    rollout only lengths, turns, ids, finish reason and reward are kept. Raises OppoError naming file and
    line.
    """
    path = Path(path)
    checked = ImportOptions(**options)
    importer = detect(path, checked) if source.strip().lower() == AUTO else find_importer(source)
    chosen = choose_files(importer, path, checked)
    reading = Reading(checked, make_counter(checked))
    gathering = Gathering(checked.name or importer.name, reading)
    account = Account()
    work = _Import(importer, chosen, path, reading, gathering, progress or (lambda _done, _total: None))
    if chosen.aggregated:
        _read_figures(work, account)
    else:
        _read_rollouts(work)
    _refuse_unused(importer, chosen.aggregated, reading)
    frame = gathering.frame(str(path))
    return frame, _provenance(work, account, detected=source.strip().lower() == AUTO)


@dataclass(frozen=True)
class _Import:
    importer: Importer
    chosen: Chosen
    root: Path
    reading: Reading
    gathering: Gathering
    progress: Progress
    records: list[dict[str, Any]] = field(default_factory=list)
    """Of the files read, for the provenance."""

    def record(self, file: Path, rows: int) -> None:
        size, digest = file.stat().st_size, sha256_of(file)
        self.records.append(
            {"name": shown_name(file, self.root), "bytes": size, "sha256": digest, "rows": rows}
        )


def _read_rollouts(work: _Import) -> None:
    importer, reading, gathering = work.importer, work.reading, work.gathering
    steps = reading.options.steps
    with reader_of(importer) as read:
        for number, file in enumerate(work.chosen.files):
            step = importer.step_of(file)
            named = "step" in reading.options.fields
            if steps is not None and step is not None and not named and not steps[0] <= step <= steps[1]:
                reading.notes["files outside --steps were not opened"] += 1
                continue
            before = gathering.read
            for each in read(file, reading):
                if isinstance(each, Rollout):
                    gathering.add(file, each._replace(step=step) if each.step is None else each)
                else:
                    gathering.add_table(file, each)
            work.record(file, gathering.read - before)
            work.progress(number + 1, len(work.chosen.files))


def _read_figures(work: _Import, account: Account) -> None:
    metrics, root, reading = work.importer.metrics, work.root, work.reading
    assert metrics is not None
    steps: dict[int, dict[str, float]] = {}
    other: NoMetrics | None = None
    for number, file in enumerate(work.chosen.files):
        try:
            lines = figures_by_step(file, metrics, reading, steps)
        except NoMetrics as error:
            other, lines = error, 0
            work.chosen.files_left_out[OTHER_KIND] = work.chosen.files_left_out.get(OTHER_KIND, 0) + 1
        if lines:
            work.record(file, lines)
        work.progress(number + 1, len(work.chosen.files))
    if not work.records and other is not None:
        raise other
    if not work.records:
        wanted = ", ".join(metrics.mean) or "named by --field mean=NAME"
        raise refused_console(work.chosen.files) or OppoError(
            f"{root} holds neither rollouts nor metrics of {work.importer.name} (a mean length: {wanted}): is"
            " it the right file?"
        )
    logged = sorted(reading.logged_steps)
    known = with_prompts(steps, logged, reading.options.rows_per_step, reading)
    usable = usable_steps(known, reading, str(root))
    of_several = steps_of_a_line(logged) if work.importer.averages and not reading.counted_lines else 1
    for rollout in draw_steps(usable, reading, account, str(root), steps_of_a_line=of_several):
        work.gathering.add(root, rollout)


def _refuse_unused(importer: Importer, aggregated: bool, reading: Reading) -> None:
    """What was said and could not have any effect was meant otherwise."""
    if reading.options.tool_seconds is not None and TOOL_SECONDS_USED not in reading.used_fields:
        raise OppoError(
            f"--tool-seconds has no effect on this log of {importer.name}: no rollout in it shows a wait"
            " whose seconds are missing, so leave it out"
        )
    for target, name in reading.options.fields.items():
        if target not in reading.used_fields:
            kind = "figures a step" if aggregated else "rollouts"
            usual = METRIC_FIELDS if aggregated else ROLLOUT_FIELDS
            raise OppoError(
                f"--field {target}={name} has no effect on {kind} of {importer.name}: leave it out, or name"
                f" one of {', '.join(usual)} (--from generic reads any of them)"
            )


def _provenance(work: _Import, account: Account, *, detected: bool) -> dict[str, Any]:
    chosen, reading, gathering = work.chosen, work.reading, work.gathering
    estimated = bool(reading.by_text and reading.counter.estimate)
    # Rows outside --steps are counted as read already.
    unread = 0 if chosen.aggregated else sum(reading.left_out.values()) - reading.left_out[OUTSIDE]
    if chosen.aggregated:
        ways = ", ".join(f"{way} ({count} steps)" for way, count in sorted((account.ways or {}).items()))
        lengths = (
            f"drawn, not measured: {reading.options.rows_per_step} a step from a distribution fitted to each"
            f" step's {ways}"
        )
    elif reading.by_text:
        ending = (
            "; one end token added to each response that was not cut" if reading.counter.end_tokens else ""
        )
        lengths = f"{reading.counter.described}{ending}"
    else:
        lengths = "as logged"
    record: dict[str, Any] = {
        "format": FORMAT,
        "package": version("oppo-toolkit"),
        "framework": work.importer.name,
        "detected": detected,
        "lengths": lengths,
        "measured": not chosen.aggregated and not estimated,
        "options": reading.options.record(),
        "files": work.records,
        "files_left_out": chosen.files_left_out,
        "rows_read": gathering.read + unread,
        "rows_kept": gathering.kept,
        "rows_left_out": dict(reading.left_out),
        "finish_reasons": {name: gathering.reasons.get(name, 0) for name in ("log", "length", "unknown")},
        "notes": [
            *work.importer.notes,
            *(f"{note} ({count:,}×)" if count > 1 else note for note, count in reading.notes.items()),
        ],
    }
    if chosen.aggregated:
        record["steps"] = account.steps
        record["worst_mean_error"] = round(account.worst_mean_error, 6)
    return record
