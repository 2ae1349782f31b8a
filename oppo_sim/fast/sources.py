"""Which source files the compiled code is made of, without importing numba."""

import hashlib
from functools import cache
from pathlib import Path

_HERE = Path(__file__).resolve().parent
COMPILED = (
    "codes.py",
    "compiled.py",
    "records.py",
    "arrays.py",
    "ordering.py",
    "activities.py",
    "costs.py",
    "scorer.py",
    "scorer_cache.py",
    "prefixes.py",
    "tools.py",
    "batch.py",
    "selection.py",
    "replica.py",
    "admission.py",
    "rows.py",
    "generation.py",
    "training.py",
    "schedules.py",
    "kernel.py",
    "../columns.py",
    "../instants.py",
    "../costs/formulas.py",
    "../model/formulas.py",
)


@cache
def source_digest() -> str:
    """SHA-256 of the files that are compiled together, as hexadecimal digits."""
    digest = hashlib.sha256()
    for name in COMPILED:
        digest.update((_HERE / name).read_bytes())
    return digest.hexdigest()
