"""The traces that come with the package: where they lie, what they are, their provenance; per-step tables."""

from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from oppo_sim.columns import LENGTH_MEAN, SOURCE, STEP
from oppo_sim.errors import OppoError
from oppo_sim.files import file_errors, sha256_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd


CATALOG_NAME: Final = "catalog.json"
STEP_TABLE_FORMAT: Final = "oppo-step-table/1"
STEP_TABLE_FORMAT_KEY: Final = b"oppo_step_table_format"


class CatalogEntry(BaseModel):
    """One shipped file and its provenance."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: str
    kind: Literal["rollouts", "steps"]
    """``rollouts``: a trace; ``steps``: one row a training step, for drift and stage times only."""
    domain: str
    """What was asked: maths, code, chat, …"""
    file: str
    rows: Annotated[int, Field(ge=1)]
    sha256: str
    """Of the file's bytes."""
    licence: str
    origin: tuple[str, ...] = Field(strict=False)
    """Repository, path and commit of each origin."""
    model: str
    sampling: str
    tokenizer: str | None
    derivation: str
    """How the rows were made from the origin."""
    caveats: tuple[str, ...] = Field(strict=False)
    """What not to read into them."""
    synthetic: bool
    """The lengths were drawn or constructed, not measured."""


class _Catalog(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    format: Literal["oppo-trace-catalog/1"]
    traces: tuple[CatalogEntry, ...] = Field(strict=False)


def shipped_folder() -> Path:
    """Folder of the shipped traces: in an installed package, or of a checkout. Raises OppoError."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "shipped_traces", package.parent / "traces"):
        if (folder / CATALOG_NAME).is_file():
            return folder
    raise OppoError("the shipped traces are missing from this installation: install the package again")


@cache
def list_traces() -> tuple[CatalogEntry, ...]:
    """The catalog, in its own order. Raises OppoError if it is damaged."""
    path = shipped_folder() / CATALOG_NAME
    try:
        with file_errors(path):
            return _Catalog.model_validate_json(path.read_bytes()).traces
    except ValidationError as error:
        raise OppoError(
            f"{path} is damaged ({str(error).splitlines()[0]}): install the package again"
        ) from None


def find_trace(name: str, kind: Literal["rollouts", "steps"] = "rollouts") -> CatalogEntry:
    """The catalog's entry. Raises OppoError that suggests close names for an unknown one."""
    for entry in list_traces():
        if entry.name == name:
            if entry.kind != kind:
                wanted = (
                    "a per-step table, not a trace of rollouts"
                    if kind == "rollouts"
                    else "a trace of rollouts, not a per-step table"
                )
                raise OppoError(f"'{name}' is {wanted}: {_hint(name, kind, always=True)}")
            return entry
    what = "trace" if kind == "rollouts" else "per-step table"
    raise OppoError(
        f"there is no shipped {what} '{name}': {_hint(name, kind)} (a file is given by its path, ending in"
        " .csv or .parquet)"
    )


def close_traces(name: str, kind: str = "rollouts", cutoff: float = 0.5) -> str:
    """``did you mean …?`` with shipped traces; empty where none is near."""
    names = [entry.name for entry in list_traces() if entry.kind == kind]
    close = (
        get_close_matches(name, names, n=3, cutoff=cutoff)
        or [each for each in names if name and name in each][:3]
    )
    return f"did you mean {' or '.join(close)}?" if close else ""


def _hint(name: str, kind: str, *, always: bool = False) -> str:
    return close_traces(name, kind, 0.0 if always else 0.5) or "see them with 'oppo trace list'"


def load_named(name: str) -> "pd.DataFrame":
    """A shipped trace, checked. Raises OppoError for an unknown name or an altered file."""
    from oppo_sim.traces.storage import load_trace

    return load_trace(_intact(find_trace(name)))


def load_step_table(name: str) -> "pd.DataFrame":
    """A shipped per-step table: ``source``, ``step`` and metric columns named as in a run's own result table,
    times in seconds.

    Raises OppoError for an unknown name or an altered file.
    """
    from oppo_sim.traces.storage import read_parquet

    table = read_parquet(_intact(find_trace(name, "steps")), STEP_TABLE_FORMAT_KEY, STEP_TABLE_FORMAT)
    frame: pd.DataFrame = table.to_pandas()
    return frame


def _intact(entry: CatalogEntry) -> Path:
    path = shipped_folder() / entry.file
    if sha256_of(path) != entry.sha256:
        raise OppoError(
            f"{path} differs from its catalog entry (SHA-256): restore it, or install the package again"
        )
    return path


def length_factors(
    table: str, source: str | None, steps: int, smooth_steps: int
) -> "npt.NDArray[np.float64]":
    """Mean length of a run's first ``steps`` steps, smoothed, divided by that of its first step; shape
    (steps,).

    Steps of the table count in order, gaps closed; a moving average over ``smooth_steps`` steps, narrower at
    the ends.
    Raises OppoError for an unknown table or source, or if the run is shorter.
    """
    import numpy as np

    frame = load_step_table(table)
    names = list(frame[SOURCE].unique())
    if source is None and len(names) > 1:
        raise OppoError(
            f"per-step table '{table}' holds {len(names)} runs: set drift.source to one of {', '.join(names)}"
        )
    chosen = source or names[0]
    if chosen not in names:
        raise OppoError(
            f"per-step table '{table}' has no run '{chosen}': set drift.source to one of {', '.join(names)}"
        )
    means = frame[frame[SOURCE] == chosen].groupby(STEP)[LENGTH_MEAN].mean().to_numpy(dtype=float)
    if steps > len(means):
        raise OppoError(
            f"run '{chosen}' of '{table}' has {len(means)} steps but {steps} are asked for: lower steps"
        )
    half = smooth_steps // 2
    window = [means[max(0, at - half) : at + half + 1].mean() for at in range(steps)]
    result: npt.NDArray[np.float64] = np.array(window) / window[0]
    return result


def runs_of(table: str) -> "pd.DataFrame":
    """One row a run of a per-step table: ``source``, ``steps`` (distinct), ``first`` and ``last`` (mean
    length of its first and last tenth of steps, tokens), ``factor`` (last / first). Raises OppoError for an
    unknown table.
    """
    import pandas as pd

    rows = []
    for source, run in load_step_table(table).groupby(SOURCE, sort=False):
        means = run.groupby(STEP)[LENGTH_MEAN].mean()
        tenth = max(1, len(means) // 10)
        first, last = float(means.iloc[:tenth].mean()), float(means.iloc[-tenth:].mean())
        rows.append(
            {SOURCE: source, "steps": len(means), "first": first, "last": last, "factor": last / first}
        )
    return pd.DataFrame(rows)
