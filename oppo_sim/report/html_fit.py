"""The chapter of a fit: how well steps that were not fitted are predicted, and what the log identifies."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from oppo_sim.columns import TIMING_STEP
from oppo_sim.costs.priors import IDENTIFIED, UNIDENTIFIED
from oppo_sim.errors import OppoError
from oppo_sim.finished_run import FinishedRun
from oppo_sim.report.fit_figures import fit_figures
from oppo_sim.report.html_parts import Chapter, Grid, Section, joined, picture
from oppo_sim.report.labels import counted, format_percent, significant, time_unit

_RECORD: Final = "fit.json"
_FEW: Final = 4
"""So many terms are named; the table of the terms has the others."""
_TITLES: Final = {
    "measured_predicted": ("Measured and predicted", "Points measured, lines predicted with 95 % intervals."),
    "residuals": ("Residuals", "Predicted over measured seconds minus 1, by step."),
    "errors": ("Steps that were not fitted", "Median and 90th percentile of the error beside naive ones."),
    "terms": ("What was identified", "Each term's 95 % interval before and after, over its prior's median."),
}


def fit_chapter(run: FinishedRun, stem: str) -> Chapter:
    """Read a fit's folder. Raises OppoError for one that is damaged."""
    record = run.json(_RECORD)
    code = run.path("scenario.yaml").read_text(encoding="utf-8")
    try:
        return chapter_of(record, str(run.manifest["scenario"]), code, stem)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise OppoError(f"{run.root / _RECORD} is damaged ({error}): fit again") from None


def chapter_of(record: Mapping[str, Any], name: str, code: str, stem: str) -> Chapter:
    """From the record and the text of the written scenario."""
    held = [*record.get("held_out", ()), *record.get("judged", ())]
    pictures = tuple(
        picture(f"{stem}-{key.replace('_', '-')}", figure, *_TITLES[key])
        for key, figure in fit_figures(record).items()
    )
    return Chapter(
        title=f"Fit: {name}",
        kind="fit",
        source=(
            "Fitted to measured seconds of a training log."
            if record["from"] == "logs"
            else "Drawn from priors, and kept where they agree with what was observed."
        ),
        measured=False,
        question=_question(record),
        answer=tuple(answer_of(record)),
        sections=(
            *([Section("Errors", grids=tuple(_errors(each) for each in held))] if held else []),
            *(
                [Section("Observed", grids=(_observed(record["observed"]),))]
                if record.get("observed")
                else []
            ),
            Section("Pictures", pictures=pictures),
            Section("Terms", grids=(_terms(record["terms"]),)),
            *(
                [Section("Steps that do not fit", grids=(_odd(record["odd_steps"]),))]
                if record.get("odd_steps")
                else []
            ),
            Section("The fitted scenario", code=code, folded=True),
        ),
        provenance=tuple(_provenance(record)),
        notes=tuple(record.get("notes", ())),
    )


def answer_of(record: Mapping[str, Any]) -> list[str]:
    """What a reader should know first, a sentence each."""
    found = []
    columns = [column for column in record.get("not_fitted", ()) if column != TIMING_STEP]
    left = joined([column.removeprefix("timing_s/") for column in columns])
    without = f" without {left}" if left else ""
    for each in (*record.get("held_out", ()), *record.get("judged", ())):
        errors = each["errors"].get(TIMING_STEP)
        if errors is None:
            continue
        model, line = errors["model"], errors.get("naive_line")
        sentence = (
            f"{each['log']}: of {counted(each['held_steps'], 'step')} judged{without} ("
            f"{each['fitted_steps']} others fitted) the error is {format_percent(model['median'])} median,"
            f" {format_percent(model['p90'])} 90th percentile, worst {format_percent(model['worst'])} at step"
            f" {model['worst_step']}; {format_percent(model['coverage'])} of the steps lie in their 95 %"
            " interval"
        )
        if line:
            sentence += (
                f"; a line in longest response and tokens: {format_percent(line['median'])} and"
                f" {format_percent(line['p90'])}"
            )
        found.append(sentence + ".")
    unidentified = [each["term"] for each in record["terms"] if each["verdict"] == UNIDENTIFIED]
    missed = [each for each in record.get("observed") or () if not _is_met(each)]
    for each in missed:
        low, middle, high = each["posterior"]
        found.append(
            f"{each['text']} is missed: the costs that agree best give {significant(middle)}"
            f" [{significant(low)}, {significant(high)}]. Are the numbers of one run, and is it the"
            " scenario's?"
        )
    if unidentified:
        stand = "its prior stands" if len(unidentified) == 1 else "their priors stand"
        which = (
            joined(unidentified)
            if len(unidentified) <= _FEW
            else f"{len(unidentified)} of {len(record['terms'])} terms"
        )
        found.append(
            f"Not identified by the log: {which}; {stand}."
            if record["from"] == "logs"
            else f"Not identified by what was observed, each by itself: {which}"
            + ("." if missed else "; together they agree with it.")
        )
    if believed := record.get("drawn_from_priors"):
        found.append(f"Not fitted, at their priors: {joined(believed)}.")
    for log, reasons in record.get("left_out", {}).items():
        if reasons:
            listed = joined([f"{count} × {reason}" for reason, count in reasons.items()])
            kept = any("divided by" in reason for reason in reasons)
            found.append(f"Left out of {log}{' or corrected' if kept else ''}: {listed}.")
    return found


def interval_text(values: Sequence[float], unit: str) -> str:
    """The middle of low, middle and high, with its ends; seconds in the middle's own unit."""
    own = time_unit(values[1]) if unit == "s" and values[1] > 0 else None
    low, middle, high = (significant(value / (own.seconds if own else 1.0)) for value in values)
    name = own.name if own else {"factor": "×"}.get(unit, unit)
    return f"{middle}{' ' if name not in ('×', '') else ''}{name} [{low}, {high}]"


def identified_text(term: Mapping[str, Any], tied: str = " ({})") -> str:
    """Whether a term was identified, and what it is correlated with, in the form ``tied``."""
    verdict = str({IDENTIFIED: "yes", UNIDENTIFIED: "no"}.get(term["verdict"], term["verdict"]))
    return verdict + (tied.format(f"correlated with {term['tied_to']}") if term["tied_to"] else "")


def _question(record: Mapping[str, Any]) -> str:
    if record["from"] != "logs":
        return f"Which costs agree with {joined([each['text'] for each in record['observed']])}?"
    logs = joined(
        [
            f"{each['log'] if 'log' in each else each['name']} ({counted(each['steps'], 'step')})"
            for each in record["logs"]
        ]
    )
    return f"Which costs explain the seconds of {logs}?"


def _errors(held: Mapping[str, Any]) -> Grid:
    rows = []
    for column, errors in held["errors"].items():
        for kind, error in errors.items():
            rows.append(
                (
                    f"{column.removeprefix('timing_s/')}, {kind.replace('_', ' ')}",
                    format_percent(error["median"]),
                    format_percent(error["p90"]),
                    f"{format_percent(error['worst'])} (step {error['worst_step']})",
                    format_percent(error["bias"]),
                    "–" if error["coverage"] is None else format_percent(error["coverage"]),
                    "–" if error["width"] is None else format_percent(error["width"]),
                )
            )
    return Grid(
        f"{held['log']}: {held['fitted_steps']} steps fitted, {held['held_steps']} judged",
        (
            "seconds of",
            "median",
            "90th percentile",
            "worst",
            "sign (median)",
            "in 95 % interval",
            "its width",
        ),
        tuple(rows),
        frozenset(range(1, 7)),
    )


def _is_met(observed: Mapping[str, Any]) -> bool:
    """Whether the kept costs have the number, as precise as it is, in their middle: with others it may leave
    a range between them that reaches each and agrees with none."""
    middle, about = observed["posterior"][1], 2.0 * observed["spread"]
    return bool(observed["low"] - about <= middle <= observed["high"] + about)


def _observed(observed: Sequence[Mapping[str, Any]]) -> Grid:
    rows = tuple(
        (each["text"], *(significant(value) for value in (*each["prior"], *each["posterior"])))
        for each in observed
    )
    heads = ("observed", "prior 2.5 %", "50 %", "97.5 %", "kept 2.5 %", "50 %", "97.5 %")
    return Grid("What the draws say of it", heads, rows, frozenset(range(1, 7)))


def _terms(terms: Sequence[Mapping[str, Any]]) -> Grid:
    rows = tuple(
        (
            each["term"],
            interval_text(each["posterior"], each["unit"]),
            identified_text(each, ", {}"),
            interval_text(each["prior"], each["unit"]),
            each["advice"],
        )
        for each in terms
    )
    heads = ("term", "now", "identified?", "prior", "what would identify it")
    return Grid("Middle and 95 % interval", heads, rows)


def _odd(odd: Sequence[Mapping[str, Any]]) -> Grid:
    rows = tuple(
        (
            f"{each['log']}, step {each['step']}",
            each["column"].removeprefix("timing_s/"),
            significant(each["measured"]),
            significant(each["predicted"]),
            each["reason"],
        )
        for each in odd
    )
    return Grid("", ("step", "metric", "measured, s", "predicted, s", "reason"), rows, frozenset((2, 3)))


def _provenance(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = []
    for log in record.get("logs", ()):
        files = ", ".join(f"{each['name']} (SHA-256 {str(each['sha256'])[:12]}…)" for each in log["files"])
        rows.append(
            (str(log["name"]), f"{log['framework']}, {log['note']}; scenario {log['scenario']}; {files}")
        )
    rows.append(("unknown terms", str(len(record["terms"]))))
    rows.append(("draws", str(record["draws"])))
    return rows
