"""The page: README.md from text.md, the tables in results/ and scorings.csv."""

from collections.abc import Iterable, Sequence
from math import isfinite

import moved
import pandas as pd
from claims import Compared, compare_all, has_runs, read_claims, store
from figures import claims_figure, lengths_figure, others_figure, posterior_figure
from fitting import digest, draws_file, independent, worlds_file, worlds_worth
from hypotheses import FEW, weigh
from predicting import by_run, runs_file
from setups import SETUPS
from study import FOLDER, RESULTS
from timing import seconds_known, whole_run
from unknowns import CHOICES

PAGE = FOLDER / "README.md"
TEXT = FOLDER / "text.md"
SCORINGS = FOLDER / "scorings.csv"
SHIPPED = RESULTS / "shipped.csv"
"""Written by ``shipped.py --compare``."""


def write_page() -> None:
    """README.md, figures and ``results/claims.csv``."""
    compared = compare_all()
    store(compared)
    claims_figure([one for one in compared if one.claim.id[0] in "CP"])
    posterior_figure()
    lengths_figure()
    others_figure([one for one in compared if one.claim.id[0] in "NV"])
    PAGE.write_text(page_text(compared), encoding="utf-8")


def page_text(compared: Sequence[Compared]) -> str:
    """The page's text with its tables."""
    own = [one for one in compared if one.claim.id[0] in "CP"]
    filled = {
        "{summary}": summary(compared),
        "{claims}": claims_table(own),
        "{others}": claims_table([one for one in compared if one.claim.id[0] in "NV"]),
        "{moved}": moved_gains(),
        "{lacking}": lacking_table(),
        "{fits}": fits_table(),
        "{hypotheses}": hypotheses_table(),
        "{synthetic}": synthetic_table(),
        "{seconds}": seconds_table(),
        "{whole}": whole_words(),
        "{shipped}": shipped_table(),
        "{scorings}": frame_table(pd.read_csv(SCORINGS, dtype=str)) if SCORINGS.exists() else "None yet.",
    }
    text = TEXT.read_text(encoding="utf-8")
    for mark, words in filled.items():
        text = text.replace(mark, words)
    return text


def counts(compared: Iterable[Compared]) -> tuple[int, int]:
    """Inside, and all with an answer."""
    answers = [one.inside.split()[0] for one in compared if one.answered]
    return answers.count("yes"), len(answers)


def summary(compared: Sequence[Compared]) -> str:
    """One line."""
    parts = []
    for what, ids in (("OPPO's claims", "C"), ("the production system's", "P"), ("others' gains", "NV")):
        inside, count = counts(one for one in compared if one.claim.id[0] in ids)
        parts.append(f"{inside} of {count} of {what}" if count else f"{what} are not scored yet")
    return "Inside the 95 % range from the baseline alone: " + ", ".join(parts) + "."


def claims_table(compared: Sequence[Compared]) -> str:
    """One row a claim, with its command."""
    lines = [
        "| | claim | published | our median [95 %] | inside"
        " | where not, or near an end: what the nearest draws have | `experiments/paper/run.py` |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in compared:
        claim = one.claim
        lines.append(
            f"| {claim.id} | {claim.claim} | {claim.paper or '–'} | {_range(one)} | {one.inside}"
            f" | {one.needed} | `--only {claim.study}` |"
        )
    return "\n".join(lines)


def _range(one: Compared) -> str:
    if not isfinite(one.low):
        return f"{one.middle:.3g}" if isfinite(one.middle) else "–"
    return f"{one.middle:.3g} [{one.low:.3g}, {one.high:.3g}]"


def moved_gains() -> str:
    """Gains where part of the colocated update is no training."""
    return " and ".join(
        f"{row.median:.2f} [{row.low:.2f}, {row.high:.2f}]" for row in pd.read_csv(moved.FILE).itertuples()
    )


def lacking_table() -> str:
    """Published gains whose facts do not suffice."""
    lines = ["| | published gain | times | what is lacking |", "|---|---|---|---|"]
    for claim in read_claims():
        if claim.id[0] == "L" or not has_runs(claim.study):
            lacking = claim.where if claim.id[0] == "L" else "not run yet"
            lines.append(f"| {claim.id} | {claim.claim} | {claim.paper} | {lacking} |")
    return "\n".join(lines)


def fits_table() -> str:
    """How each baseline was fitted."""
    lines = [
        "| baseline | worlds | worth | draws | of worlds | stand for"
        " | simulated baseline, s a step: median [95 %] |",
        "|---|---|---|---|---|---|---|",
    ]
    for path in sorted(RESULTS.glob("runs_*.csv")):
        name = path.stem.removeprefix("runs_")
        if not draws_file(name).exists():
            continue
        worlds, draws = pd.read_csv(worlds_file(name)), pd.read_csv(draws_file(name))
        seconds = pd.Series(by_run(pd.read_csv(runs_file(name)), "step_s")["sequential"])
        low, middle, high = seconds.quantile([0.025, 0.5, 0.975])
        lines.append(
            f"| {name} | {len(worlds)} | {worlds_worth(worlds):.0f} | {len(draws)}"
            f" | {draws['world'].nunique()} | {independent(draws['world']):.0f}"
            f" | {middle:.3g} [{low:.3g}, {high:.3g}] |"
        )
    return "\n".join(lines)


def hypotheses_table() -> str:
    """Prior, by the baselines, by all rows."""
    if not any(has_runs(name) for name in SETUPS):
        return "Nothing yet."
    lines = [
        "| unknown | value | prior | by the baselines alone | and by the claimed speed-ups | fewest draws |",
        "|---|---|---|---|---|---|",
    ]
    for one in weigh():
        known = CHOICES[one.unknown].of_baseline
        baselines = _probability(one.baselines) if known else "does not tell"
        everything = _probability(one.everything) if isfinite(one.everything[0]) else f"under {FEW} draws"
        lines.append(
            f"| {one.unknown} | {one.value} | {one.prior:.2f} | {baselines} | {everything} | {one.fewest} |"
        )
    return "\n".join(lines)


def _probability(ends: tuple[float, float, float]) -> str:
    middle, low, high = ends
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


def synthetic_table() -> str:
    """Scorings of ranges on synthetic baselines."""
    path = RESULTS / "synthetic_scorings.csv"
    frame = pd.read_csv(path, dtype=str)
    frame["setup"] = "`--setup " + frame["setup"] + "`"
    return frame_table(frame.rename(columns={"setup": "`experiments/paper/synthetic.py`"}))


def seconds_table() -> str:
    """What each part took, and all."""
    seconds = seconds_known()
    frame = pd.DataFrame({"part": list(seconds), "cpu_s": [f"{each:.0f}" for each in seconds.values()]})
    minutes = sum(seconds.values()) / 60
    words = f"{len(seconds)} parts: {minutes:.0f} minutes of one processor."
    return f"{frame_table(frame)}\n\n{words}" if seconds else "Not recorded."


def whole_words() -> str:
    """What all parts took in one call."""
    if (run := whole_run()) is None:
        return "All parts in one call: not timed."
    cpu, wall, stopped = (round(seconds / 60) for seconds in (run.cpu_s, run.wall_s, run.stopped_s))
    return (
        f"All {run.parts} parts in one call, from nothing, at most {run.jobs} at a time: {cpu} minutes of"
        f" processor (user and system), {wall} minutes by the clock beside other work, stopped for {stopped}."
    )


def shipped_table() -> str:
    """``oppo compare`` of the shipped scenarios, as it was made last."""
    return frame_table(pd.read_csv(SHIPPED, dtype=str)) if SHIPPED.exists() else "Not compared yet."


def frame_table(frame: pd.DataFrame) -> str:
    """A frame of texts."""
    head = [f"| {' | '.join(frame.columns)} |", "|" + "---|" * len(frame.columns)]
    rows = [f"| {' | '.join(map(str, row))} |" for row in frame.fillna("").itertuples(index=False)]
    return "\n".join([*head, *rows])


def log_scoring(label: str, date: str) -> None:
    """A line of ``scorings.csv``, which only grows."""
    compared = compare_all()
    row: dict[str, object] = {"date": date, "fit": digest(SETUPS), "label": label}
    for ids in ("C", "P", "N", "V"):
        inside, count = counts(one for one in compared if one.claim.id[0] == ids)
        row[ids] = f"{inside} of {count}"
    known = pd.read_csv(SCORINGS, dtype=str) if SCORINGS.exists() else pd.DataFrame()
    pd.concat([known, pd.DataFrame([row])]).to_csv(SCORINGS, index=False)
