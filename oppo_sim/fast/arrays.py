"""The arrays of a run (``TABLES``), as compiled code gets them from its state. Importing it imports numba."""

# Records are read by field, which has no type for mypy.
# mypy: disable-error-code="no-any-return"

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from oppo_sim.fast.compiled import compiled
from oppo_sim.fast.records import TABLES, Array, State

_numba: Any = numba  # what it says of its types differs from version to version
_carray = _numba.carray


def _as_pointer(typingctx: Any, address: Any) -> Any:
    """An address as a pointer."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), codegen


_pointer: Any = intrinsic(_as_pointer)


def _vector(name: str) -> Callable[[State], Array]:
    """The function that gives an array of a state."""
    i, dtype = list(TABLES).index(name), np.dtype(TABLES[name])

    @compiled
    def array_in(s: State) -> Array:
        return _carray(_pointer(s.address[i]), (s.length[i],), dtype)

    return array_in


def _matrix(name: str) -> Callable[[State], Array]:
    """The function that gives an array of two dimensions."""
    i, dtype = list(TABLES).index(name), np.dtype(TABLES[name])

    @compiled
    def array_in(s: State) -> Array:
        return _carray(_pointer(s.address[i]), (s.length[i], s.width[i]), dtype)

    return array_in


rollouts_in = _vector("rollouts")
turns_in = _vector("turns")
calls_in = _vector("calls")
first_call_in = _vector("first_call")
answers_in = _vector("answers")
groups_in = _vector("groups")
prefix_running_in = _matrix("prefix_running")
prefix_held_in = _matrix("prefix_held")
shelf_rollouts_in = _vector("shelf_rollouts")
shelf_groups_in = _vector("shelf_groups")
replicas_in = _vector("replicas")
workers_in = _vector("workers")
runners_in = _vector("runners")
device_list_in = _vector("device_list")
devices_in = _vector("devices")
device_actors_in = _matrix("device_actors")
fire_in = _vector("fire")
finals_in = _matrix("finals")
cuts_in = _matrix("cuts")
classes_in = _matrix("classes")
waiting_in = _matrix("waiting")
kept_in = _matrix("kept")
flights_in = _vector("flights")
free_in = _vector("free")
arrived_in = _vector("arrived")
arrived_at_in = _vector("arrived_at")
wholes_in = _vector("wholes")
whole_at_in = _vector("whole_at")
finished_in = _vector("finished")
filtered_in = _vector("filtered")
sample_rewards_in = _vector("sample_rewards")
batch_in = _vector("batch")
selection_in = _vector("selection")
trained_in = _vector("trained")
answer_in = _vector("answer")
readmit_in = _vector("readmit")
inbox_in = _matrix("inbox")
inbox_id_in = _vector("inbox_id")
way_in = _matrix("way")
way_at_in = _vector("way_at")
way_id_in = _vector("way_id")
land_in = _matrix("land")
land_id_in = _vector("land_id")
queue_in = _matrix("queue")
cached_in = _vector("cached")
uptos_in = _vector("uptos")
caches_in = _vector("caches")
residues_in = _vector("residues")
keys_in = _vector("keys")
items_in = _vector("items")
order_in = _vector("order")
scratch_in = _vector("scratch")
scratch_at_in = _vector("scratch_at")
dealt_in = _vector("dealt")
stage_s_in = _vector("stage_s")
passed_s_in = _vector("passed_s")
activity_s_in = _vector("activity_s")
activity_stages_in = _vector("activity_stages")
rewards_in = _vector("rewards")
lengths_in = _vector("lengths")
drawn_in = _vector("drawn")
drawn_lengths_in = _vector("drawn_lengths")
blocks_in = _matrix("blocks")
block_means_in = _vector("block_means")
key_in = _vector("key")
lines_in = _matrix("lines")
line_at_in = _vector("line_at")
line_range_in = _matrix("line_range")
work_in = _matrix("work")
demand_in = _matrix("demand")
parts_in = _vector("parts")
terms_in = _matrix("terms")
tables_in = _vector("tables")
stages_in = _vector("stages")
extrapolated_in = _matrix("extrapolated")
out_in = _vector("out")
rollout_rows_in = _matrix("rollout_rows")
trace_in = _matrix("trace")
histogram_in = _vector("histogram")
histogram_end_in = _vector("histogram_end")
