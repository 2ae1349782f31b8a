"""The page's overview: one row a source, first scoring beside the last, and how many runs reach each aim."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isnan, nan
from statistics import median

from fitted import FIRST_STEPS
from rows import Row, first_scorings, later_scorings, read_rows
from split import LATER, UNSHIPPED_SOURCE

OTHERS = "→ this run"
UNFITTED = "unfitted"


@dataclass(frozen=True)
class Scored:
    """Of one key: what is reported, and what the code of the last scoring says; the same where there was one.

    A develop unit has no first scoring: it was looked at, and stands as it was last computed.
    """

    first: Row
    last: Row
    held_out: bool

    @property
    def again(self) -> bool:
        return self.first is not self.last


def scored() -> list[Scored]:
    """Every key of every tier, held-out units first, in the order in which they were first scored."""
    last = {row.key: row for row, _ in later_scorings()}
    held_out = [Scored(row, last.get(row.key, row), True) for row, _ in first_scorings()]
    return held_out + [Scored(row, row, False) for row in read_rows()]


def overview_tables() -> dict[str, str]:
    """What `overview_text.md` has marks for."""
    found = scored()
    return {
        "{aims}": aims_table(found),
        "{kernels}": unfitted_table([each for each in found if each.first.tier == "kernels"]),
        "{served}": unfitted_table([each for each in found if each.first.tier == "served engine"]),
        "{runs}": runs_table([each for each in found if each.first.tier == "step"]),
        "{stages}": stages_table([each for each in found if each.first.tier == "stage"]),
    }


def aims_table(found: Sequence[Scored]) -> str:
    """How many held-out runs reach what a fit must, by their first and by their last scoring."""
    steps = [
        each for each in found if each.first.tier == "step" and each.held_out and _is_run(each.first.source)
    ]
    ways: dict[str, Callable[[Row], bool]] = {
        "unfitted": lambda row: row.way == UNFITTED,
        "fitted on its first 15 steps": lambda row: row.way == FIRST_STEPS,
        "fitted on other runs of its cluster": lambda row: row.way.endswith(OTHERS),
    }
    aims: dict[str, Callable[[Row], bool]] = {
        "median ≤ 20 %": lambda row: row.median <= 0.20,
        "median ≤ 4 %": lambda row: row.median <= 0.04,
        "p90 ≤ 10 %": lambda row: row.p90 <= 0.10,
        "p90 ≤ half the line's": lambda row: row.p90 <= row.line_p90 / 2,
        "90 to 98 % inside": lambda row: 0.90 <= row.coverage <= 0.98,
        "over 98 %": lambda row: row.coverage > 0.98,
    }
    lines = []
    for way, of_way in ways.items():
        chosen = [each for each in steps if of_way(each.first)]
        for what, rows in (
            ("first scoring", [each.first for each in chosen]),
            ("last scoring", [each.last for each in chosen]),
        ):
            counts = [str(sum(map(reached, rows))) for reached in aims.values()]
            steps_of_all = sum(row.n for row in rows)
            inside = sum(row.coverage * row.n for row in rows) / steps_of_all if rows else nan
            cells = counts[:1] + [""] * 6 if way == UNFITTED else ["", *counts[1:], percent(inside)]
            lines.append([f"{way}, {what}", str(len(rows)), f"{steps_of_all:,}", *cells])
    return table(["steps of held-out runs", "runs", "steps", *aims, "inside, of all steps"], lines)


def unfitted_table(found: Sequence[Scored]) -> str:
    """One row a source and way."""
    heads = [
        "source", "what", "GPU", "framework", "way", "n", "median", "p90", "worst", "sign",
        "last scoring: median, p90",
    ]  # fmt: skip
    lines = []
    for each in found:
        row, last = each.first, each.last
        way = row.way.removeprefix(f"{UNFITTED}, ")
        again = f"{percent(last.median)}, {percent(last.p90)}" if each.again else ""
        lines.append([
            _named(each), row.what, row.gpu, row.framework, way, f"{row.n:,}", percent(row.median),
            percent(row.p90), percent(row.worst), signed(row.sign), again,
        ])  # fmt: skip
    return table(heads, lines)


def runs_table(found: Sequence[Scored]) -> str:
    """One row a run and what it was fitted on, its unfitted error beside; a run that nothing was fitted on
    has its unfitted error alone."""
    heads = [
        "run", "GPU", "framework", "unfitted", "fitted on", "n", "median", "p90", "worst", "line's p90",
        "terms", "inside 95 %", "last scoring: median, p90, inside",
    ]  # fmt: skip
    runs = [each for each in found if _is_run(each.first.source)]
    unfitted = {each.first.source: each.first for each in runs if each.first.way == UNFITTED}
    fitted = {each.first.source for each in runs if each.first.way != UNFITTED}
    lines = []
    for each in runs:
        row, last = each.first, each.last
        before = percent(unfitted[row.source].median) if row.source in unfitted else ""
        named = [_named(each), row.gpu, row.framework, before]
        if row.way != UNFITTED:
            now = f"{percent(last.median)}, {percent(last.p90)}, {percent(last.coverage)}"
            lines.append([
                *named, _fitted_on(row.way), f"{row.n:,}", percent(row.median), percent(row.p90),
                percent(row.worst), percent(row.line_p90), str(row.terms), percent(row.coverage),
                now if each.again else "",
            ])  # fmt: skip
        elif row.source not in fitted:
            lines.append([*named, "", f"{row.n:,}", *[""] * 7])
    return table(heads, lines)


def stages_table(found: Sequence[Scored]) -> str:
    """Unfitted stages: of the runs' medians the middle and the largest, and in how many runs a stage is too
    fast."""
    lines = []
    for stage in dict.fromkeys(each.first.what for each in found):
        of_stage = [each for each in found if each.first.what == stage]
        for scoring, rows in (
            ("held out, first", [each.first for each in of_stage if each.held_out]),
            ("held out, last", [each.last for each in of_stage if each.held_out]),
            ("develop", [each.first for each in of_stage if not each.held_out]),
        ):
            if medians := [row.median for row in rows]:
                fast = sum(row.sign < 0 for row in rows)
                numbers = [percent(median(medians)), percent(max(medians)), str(fast)]
                lines.append([f"`{stage}`", scoring, str(len(rows)), *numbers])
    heads = ["stage", "scoring", "runs", "median of their medians", "largest", "too fast in"]
    return table(heads, lines)


def table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table of Markdown."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, ["---"] * len(heads), *lines))


def percent(share: float) -> str:
    """With one digit below a tenth; empty for NaN."""
    return "" if isnan(share) else f"{100 * share:.1f} %" if share < 0.1 else f"{100 * share:.0f} %"


def signed(share: float) -> str:
    """Of a sign; empty for NaN."""
    return "" if isnan(share) else f"{100 * share:+.0f} %"


def _is_run(source: str) -> bool:
    return ", all " not in source


def _named(each: Scored) -> str:
    """The source with where it comes from: `(develop)`, `(later)`, `(not shipped)`."""
    source = each.first.source
    if not each.held_out:
        return f"{source} (develop)"
    if source.startswith(UNSHIPPED_SOURCE):
        return f"{source.removeprefix(UNSHIPPED_SOURCE).strip(' ,')} (not shipped)"
    if source.startswith(LATER):
        return f"openagentrl{source.removeprefix(LATER)} (later)"
    return source


def _fitted_on(way: str) -> str:
    said = way.removeprefix("fitted, ").removesuffix(OTHERS).removesuffix("→ rest").strip()
    return "its first 15 steps" if said == "first 15 steps" else said
