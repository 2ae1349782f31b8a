"""One row of the page: how far one way of predicting is from one source's measurements."""

import csv
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from math import nan
from pathlib import Path

import pandas as pd
from measures import Numbers, errors_of
from split import FOLDER

RESULTS = FOLDER / "results"
DEVELOP = RESULTS / "develop.csv"
SCORINGS = FOLDER / "scorings.csv"
"""Every scoring of held-out units, the oldest first; it only grows."""


@dataclass(frozen=True)
class Row:
    """Errors are shares of what was measured; `sign` below 0 is too fast. NaN: does not apply."""

    tier: str
    source: str
    what: str
    gpu: str
    framework: str
    way: str
    """How seconds were predicted: unfitted (roofline, composed) or fitted on what."""
    n: int
    median: float
    p90: float
    worst: float
    sign: float
    line_median: float = nan
    """Of the naive predictors fitted on the same steps: a line in longest response and tokens, the mean."""
    line_p90: float = nan
    mean_median: float = nan
    mean_p90: float = nan
    terms: int = 0
    """Terms that were fitted."""
    coverage: float = nan
    """Share of measurements inside the 95 % interval."""
    width: float = nan
    """Median width of that interval over its middle."""

    @property
    def key(self) -> tuple[str, ...]:
        return self.tier, self.source, self.what, self.gpu, self.framework, self.way


def row_of(tier: str, source: str, what: str, gpu: str, framework: str, way: str, pairs: pd.DataFrame) -> Row:
    """Of columns `predicted` and `measured`."""
    errors = errors_of(pairs["predicted"].to_numpy(), pairs["measured"].to_numpy())
    return Row(tier, source, what, gpu, framework, way, **asdict(errors))


def write_rows(rows: Iterable[Row], path: Path = DEVELOP) -> None:
    """The rows in the order of their keys, with six digits."""
    table = pd.DataFrame([asdict(row) for row in sorted(rows, key=lambda row: row.key)])
    path.parent.mkdir(exist_ok=True)
    table.to_csv(path, index=False, float_format="%.6g")


def read_rows(path: Path = DEVELOP) -> list[Row]:
    """Rows as `write_rows` left them; none where there is no file."""
    if not path.exists():
        return []
    return [_row(record) for record in csv.DictReader(path.read_text(encoding="utf-8").splitlines())]


def log_scoring(rows: Iterable[Row], note: str) -> None:
    """Append a scoring of held-out units."""
    said = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True, cwd=FOLDER
    )
    commit = said.stdout.strip()
    date = datetime.now(UTC).date().isoformat()
    names = ["date", "commit", "note", *(field.name for field in fields(Row))]
    with SCORINGS.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names)
        for row in rows:
            numbers = {
                name: f"{value:.6g}" if isinstance(value, float) else value
                for name, value in asdict(row).items()
            }
            writer.writerow({"date": date, "commit": commit, "note": note, **numbers})


def first_scorings() -> list[tuple[Row, str]]:
    """The first scoring of every key, with its date and commit."""
    found: dict[tuple[str, ...], tuple[Row, str]] = {}
    for row, when in all_scorings():
        found.setdefault(row.key, (row, when))
    return list(found.values())


def later_scorings() -> list[tuple[Row, str]]:
    """Scorings of keys that had been scored before."""
    seen: set[tuple[str, ...]] = set()
    found = []
    for row, when in all_scorings():
        if row.key in seen:
            found.append((row, when))
        seen.add(row.key)
    return found


def all_scorings() -> list[tuple[Row, str]]:
    """Every scoring, with its date, commit and note."""
    records = csv.DictReader(SCORINGS.read_text(encoding="utf-8").splitlines())
    return [(_row(record), f"{record['date']} {record['commit']}: {record['note']}") for record in records]


def _row(record: dict[str, str]) -> Row:
    kinds = {field.name: field.type for field in fields(Row)}
    casts = {str: str, int: int, float: lambda text: float(text) if text else nan}
    return Row(**{name: casts[kinds[name]](record[name]) for name in kinds})  # type: ignore[index, operator]


def interval_columns(low: Numbers, high: Numbers, measured: Numbers) -> dict[str, float]:
    """`coverage` and `width` of 95 % intervals."""
    from measures import coverage_of

    middle = (low + high) / 2
    return {
        "coverage": coverage_of(low, high, measured),
        "width": float(pd.Series((high - low) / middle).median()) if len(low) else nan,
    }
