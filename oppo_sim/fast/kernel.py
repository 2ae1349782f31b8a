"""The compiled model: the same steps, in the same order, as ``oppo_sim/model`` and ``oppo_sim/schedule``.

Every compiled function names its counterpart there; docs/model.md says what the rules are. Whatever the
model would refuse ends the run with ``ASK_MODEL``: the caller repeats it there, where the sentence is. A full
buffer ends it with ``NO_ROOM``: the caller repeats it with larger ones. Importing this module imports numba:
``choose`` does so when a run needs it.
"""

import math
from typing import Any

import numba

from oppo_sim.fast.codes import ASK_MODEL
from oppo_sim.fast.compiling import shared_source
from oppo_sim.fast.records import Array
from oppo_sim.fast.schedules import run_until
from oppo_sim.fast.sources import source_digest

_numba: Any = numba  # what it says of its types differs from version to version


def _cached(function: Any) -> Any:
    source = shared_source()
    if source is not None:
        function.__code__ = function.__code__.replace(co_filename=str(source))
    return _numba.njit(cache=True, error_model="numpy", nogil=True)(function)


def _entry(digest: str) -> Any:
    """What is called from Python."""
    # numba looks at this file's time stamp only; what a function closes over is part of its key in the cache.
    version = int(digest, 16)

    def advance(states: Array, until: int) -> int:
        if version < 0:
            return ASK_MODEL
        return run_until(states[0], until)

    return _cached(advance)


advance = _entry(source_digest()[:15])
"""``advance(states, until)`` runs the one record of ``states`` until ``until`` steps are done; their rows are
in ``out`` from row ``states["row"]`` on.

To be called again with a higher ``until``, or after the policy decided: the run goes on where it was.
Returns OK, ASK_MODEL, NO_ROOM, or what the policy has to decide: PLAN, ARRANGE, SELECT or DROP."""


def _add_moments(rows: Array, moments: Array) -> None:
    """``Moments.add`` of every column: ``moments`` holds (count, mean, squares, total, least, greatest) of
    each."""
    for i in range(rows.shape[0]):
        for column in range(rows.shape[1]):
            value = rows[i, column]
            if math.isnan(value):
                continue
            found = moments[column]
            found[0] += 1.0
            found[3] += value
            change = value - found[1]
            found[1] += change / found[0]
            found[2] += change * (value - found[1])
            found[4] = min(found[4], value)
            found[5] = max(found[5], value)


add_moments = _cached(_add_moments)
