"""The pages, from results/ and scorings.csv: README.md, the overview; details.md, every scoring; figures."""

from collections.abc import Sequence
from math import isnan
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from left_out import summary
from overview import overview_tables, percent, signed, table
from rows import RESULTS, Row, all_scorings, first_scorings, later_scorings, read_rows
from split import FOLDER, LATER, UNSHIPPED_SOURCE

mpl.use("Agg")
import matplotlib.pyplot as plt

TIERS = ("kernels", "served engine", "stage", "step", "ranges")


def write_page() -> None:
    """Both pages and the figures."""
    for page, text in pages().items():
        (FOLDER / page).write_text(text, encoding="utf-8")
    for name in ("steps", "steps_held_out", f"steps_{LATER}"):
        if (steps := RESULTS / f"{name}.csv").exists():
            steps_figure(steps, RESULTS / f"{name}.png")


def pages() -> dict[str, str]:
    """Page → its text, the marks of `overview_text.md` and `details_text.md` filled in."""
    return {
        "README.md": _filled(FOLDER / "overview_text.md", overview_tables()),
        "details.md": _filled(FOLDER / "details_text.md", details_tables()),
    }


def details_tables() -> dict[str, str]:
    """What `details_text.md` has marks for."""
    return {
        "{tables}": "\n\n".join(tier_table(tier, read_rows()) for tier in TIERS),
        "{left_out}": summary(),
        "{held_out}": held_out_tables(),
        "{later}": later_tables(),
        "{found_later}": found_later_tables(LATER),
        "{unshipped}": found_later_tables(UNSHIPPED_SOURCE),
        "{scorings}": scorings_list(),
    }


def _filled(template: Path, words: dict[str, str]) -> str:
    text = template.read_text(encoding="utf-8")
    for mark, said in words.items():
        text = text.replace(mark, said)
    return text


def tier_table(tier: str, rows: Sequence[Row]) -> str:
    """A heading and one row a source; errors in percent."""
    heads = [
        "source", "what", "GPU", "framework", "way", "n", "median", "p90", "worst", "sign",
        "line: median, p90", "mean: median, p90", "terms", "coverage",
    ]  # fmt: skip
    lines = [_cells(row) for row in rows if row.tier == tier]
    return f"### {tier.capitalize()}\n\n" + (table(heads, lines) if lines else "Nothing yet.")


def _cells(row: Row) -> list[str]:
    line = "" if isnan(row.line_p90) else f"{percent(row.line_median)}, {percent(row.line_p90)}"
    mean = "" if isnan(row.mean_p90) else f"{percent(row.mean_median)}, {percent(row.mean_p90)}"
    return [
        row.source, row.what, row.gpu, row.framework, row.way, f"{row.n:,}", percent(row.median),
        percent(row.p90), percent(row.worst), signed(row.sign), line, mean, str(row.terms or ""),
        percent(row.coverage),
    ]  # fmt: skip


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
