"""The page: README.md and its figures, from results/ and scorings.csv."""

from collections.abc import Sequence
from math import isnan
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from left_out import summary
from rows import RESULTS, Row, all_scorings, first_scorings, later_scorings, read_rows
from split import FOLDER, LATER, UNSHIPPED_SOURCE

mpl.use("Agg")
import matplotlib.pyplot as plt

TIERS = ("kernels", "served engine", "stage", "step", "ranges")
TEXT = FOLDER / "text.md"
"""The words of the page; `{tables}`, `{left_out}`, `{held_out}` and other marks are filled in."""


def write_page() -> None:
    """README.md and figures."""
    (FOLDER / "README.md").write_text(page_text(), encoding="utf-8")
    for name in ("steps", "steps_held_out", f"steps_{LATER}"):
        if (steps := RESULTS / f"{name}.csv").exists():
            steps_figure(steps, RESULTS / f"{name}.png")


def page_text() -> str:
    """The page's text with its tables."""
    text = TEXT.read_text(encoding="utf-8")
    filled = {
        "{tables}": "\n\n".join(tier_table(tier, read_rows()) for tier in TIERS),
        "{left_out}": summary(),
        "{held_out}": held_out_tables(),
        "{later}": later_tables(),
        "{found_later}": found_later_tables(LATER),
        "{unshipped}": found_later_tables(UNSHIPPED_SOURCE),
        "{scorings}": scorings_list(),
    }
    for mark, words in filled.items():
        text = text.replace(mark, words)
    return text


def tier_table(tier: str, rows: Sequence[Row]) -> str:
    """A heading and one row a source; errors in percent."""
    heads = [
        "source", "what", "GPU", "framework", "way", "n", "median", "p90", "worst", "sign",
        "line: median, p90", "mean: median, p90", "terms", "coverage",
    ]  # fmt: skip
    lines = [f"### {tier.capitalize()}", "", "| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines.extend("| " + " | ".join(_cells(row)) + " |" for row in rows if row.tier == tier)
    return "\n".join(lines) if len(lines) > 4 else f"### {tier.capitalize()}\n\nNothing yet."


def _cells(row: Row) -> list[str]:
    line = "" if isnan(row.line_p90) else f"{_percent(row.line_median)}, {_percent(row.line_p90)}"
    sign = "" if isnan(row.sign) else f"{100 * row.sign:+.0f} %"
    mean = "" if isnan(row.mean_p90) else f"{_percent(row.mean_median)}, {_percent(row.mean_p90)}"
    return [
        row.source, row.what, row.gpu, row.framework, row.way, f"{row.n:,}", _percent(row.median),
        _percent(row.p90), _percent(row.worst), sign, line, mean, str(row.terms or ""),
        "" if isnan(row.coverage) else _percent(row.coverage),
    ]  # fmt: skip


def _percent(share: float) -> str:
    return "" if isnan(share) else f"{100 * share:.1f} %" if share < 0.1 else f"{100 * share:.0f} %"


def held_out_tables() -> str:
    """First scorings only."""
    apart = (LATER, UNSHIPPED_SOURCE)
    rows = [row for row, _ in first_scorings() if not row.source.startswith(apart)]
    if not rows:
        return "Not scored yet."
    return "\n\n".join(tier_table(tier, rows) for tier in TIERS)


def found_later_tables(source: str) -> str:
    """First scorings of the runs of a source that were found after the others had been scored."""
    rows = [row for row, _ in first_scorings() if row.source.startswith(source)]
    return "\n\n".join(tier_table(tier, rows) for tier in ("stage", "step")) if rows else "Not scored yet."


def later_tables() -> str:
    """Scorings after the first, each with its own table."""
    times = dict.fromkeys(when for _, when in later_scorings())
    tables = []
    for when in times:
        rows = [row for row, then in later_scorings() if then == when]
        tiers = "\n\n".join(tier_table(tier, rows) for tier in TIERS if any(row.tier == tier for row in rows))
        tables.append(f"{when}\n\n{tiers}")
    return "\n\n".join(tables) or "None."


def scorings_list() -> str:
    """When held-out units were scored."""
    times = list(dict.fromkeys(when for _, when in all_scorings()))
    return "\n".join(f"- {when}" for when in times) or "- none yet"


def steps_figure(table: Path, figure: Path) -> None:
    """Seconds of a step, measured and predicted, along each run."""
    steps = pd.read_csv(table)
    runs = list(steps["run"].unique())
    drawn, axes = plt.subplots(len(runs), 1, figsize=(8, 2 * len(runs)), squeeze=False)
    for axis, run in zip(axes[:, 0], runs, strict=True):
        part = steps[steps["run"] == run]
        axis.plot(part["step"], part["measured_step"], "k.-", lw=0.8, ms=3, label="measured")
        axis.plot(part["step"], part["predicted_step"], "C0.-", lw=0.8, ms=3, label="predicted, unfitted")
        axis.set_title(str(run), fontsize=9)
        axis.set_ylabel("seconds a step")
        axis.set_ylim(0)
    axes[0, 0].legend(fontsize=8)
    axes[-1, 0].set_xlabel("step of the run")
    drawn.tight_layout()
    drawn.savefig(figure, dpi=80, metadata={"Software": None})
    plt.close(drawn)
