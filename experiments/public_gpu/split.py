"""Which units of the public measurements are held out: by hash, written down before anything was fitted.

A unit is what shares a configuration: a whole run, or every row of one served or profiled configuration.
It is held out when the first byte of sha256("public_gpu/1:" + unit) is odd. Run as a script it writes
split.csv again.
"""

import hashlib
from pathlib import Path

import pandas as pd

FOLDER = Path(__file__).parent
DATA = FOLDER / "data"
SPLIT = FOLDER / "split.csv"
SALT = "public_gpu/1:"

OPENED = frozenset({"gpg_fsdp"})
"""Held-out units that were looked at after their first scoring: from then on they count as develop units."""

LATER = "openagentrl_later"
"""Source of the runs that were found after the others had been scored."""

UNSHIPPED_SOURCE = "not shipped"
"""Source of runs whose logs have no licence: scored from a copy of the log, rows of `scorings.csv` alone."""

UNIT_COLUMNS = {
    "openagentrl_steps": ("run",),
    "verl_gpg_fsdp_steps": ("run",),
    "nemo_rl_steps": ("release", "system", "precision", "algo", "model", "policy"),
    "served_fp8_tpot": ("model_path", "system", "backend", "tp_size"),
    "splitwise_vllm2023": ("model", "hardware", "tensor_parallel"),
    "vidur_layers": ("device", "model", "tp"),
    "vidur_all_reduce": ("machine", "num_workers"),
    "package_points": ("device", "model", "tp"),
    f"{LATER}_steps": ("run",),
}
"""Source → the columns that name its unit."""


def held_out(unit: str) -> bool:
    """Whether the rule holds `unit` out."""
    return hashlib.sha256((SALT + unit).encode()).digest()[0] % 2 == 1


def load(source: str) -> pd.DataFrame:
    """The rows of one source with columns `unit` and `held_out`."""
    frame = pd.read_csv(DATA / f"{source}.csv.gz")
    columns = UNIT_COLUMNS[source]
    frame["unit"] = [
        "/".join(_word(value) for value in values) for values in frame[list(columns)].itertuples(index=False)
    ]
    frame["held_out"] = frame["unit"].map(held_out)
    return frame


def split() -> pd.DataFrame:
    """One row a unit: source, unit, number of rows, develop or held-out."""
    parts = []
    for source in UNIT_COLUMNS:
        rows = load(source).groupby("unit", sort=True).size()
        parts += [
            (source, unit, count, "held-out" if held_out(unit) else "develop") for unit, count in rows.items()
        ]
    return pd.DataFrame(parts, columns=["source", "unit", "rows", "split"])


def _word(value: object) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


if __name__ == "__main__":
    split().to_csv(SPLIT, index=False)
