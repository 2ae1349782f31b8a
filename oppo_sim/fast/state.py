"""The arrays that the kernel works on, made from a built scenario."""

from typing import TYPE_CHECKING, Any, NamedTuple

from oppo_sim.fast.cost_tables import cost_tables
from oppo_sim.instants import TOLERANCE
from oppo_sim.model.counterfactual import Counterfactual
from oppo_sim.policies.controllers import TIE
from oppo_sim.policies.interface import Policy
from oppo_sim.policies.refill import Refill
from oppo_sim.policies.shipped.oracle import Oracle
from oppo_sim.rewards import BatchRewards
from oppo_sim.scenario.build import Setup
from oppo_sim.schedule.rules import effective_granularity, runs_in_rounds, streams_pieces
from oppo_sim.traces.replay import Replay

if TYPE_CHECKING:
    import numpy as np

_FOREVER = 2**62
_KEPT = 16


class Memory(NamedTuple):
    """A run as the kernel works on it."""

    states: "np.ndarray[Any, Any]"
    """One record of ``kernel.STATE``, which points to …"""
    tables: "dict[str, np.ndarray[Any, Any]]"
    """… these."""


def most_in_flight(policy: Policy, batch_size: int) -> int:
    """Rollouts in flight at most: what ``plan`` admits up to."""
    if isinstance(policy, Oracle):
        return policy.window * batch_size
    assert isinstance(policy, Refill)
    return batch_size + (policy.delta.maximum if policy.delta else policy.overcommit)


def make_state(setup: Setup, policy: Policy, counterfactual: Counterfactual, block: int, room: int) -> Memory:
    """A run before its first step, for ``block`` rows at a time. ``room`` (1, …) scales the buffers whose
    need is not known."""
    import numpy as np

    from oppo_sim.fast import kernel

    assert isinstance(policy, Refill | Oracle)
    machine, batch = setup.machine, setup.batch
    in_flight = most_in_flight(policy, batch.rollout_batch_size)
    groups, replicas, workers = in_flight // batch.group_size, machine.num_replicas, machine.num_workers
    # Rollouts go to the replica with the fewest, so none gets more than its share; the oracle deals by
    # length.
    load = batch.rollout_batch_size if isinstance(policy, Oracle) else -(-in_flight // replicas)
    load = min(in_flight, load * room)
    running = load if machine.max_num_seqs is None else min(load, machine.max_num_seqs)
    costs = cost_tables(setup.costs, counterfactual.free_padding, running)
    rewards = setup.rewards()
    prompts, responses, clipped = _rows(setup.replay)
    pieces = (2 * in_flight + 16) * room
    queued = 1 << (2 * pieces - 1).bit_length()
    # Cuts of preempted rollouts stay in the heap.
    heap = load + 1 if machine.kv_capacity_tokens is None else load + 1 + (load + 8) * room
    values = {
        **_settings(setup, policy, counterfactual),
        **costs.settings,
        "by_row_rewards": rewards.by_row is not None,
        "queue_length": queued,
        "tolerance": TOLERANCE,
        "tie": TIE,
        "resume": True,
        "doing": kernel.BEGIN,
        "free": groups,
        "delta": policy.overcommit if isinstance(policy, Refill) else 0,
        "chunk_kept": policy.chunk_size,
    }

    def whole(*shape: int) -> "np.ndarray[Any, Any]":
        return np.zeros(shape, dtype=np.int64)

    tables = {
        **_candidates(policy),
        "rollouts": np.zeros(in_flight, dtype=kernel.ROLLOUT),
        "groups": np.zeros(groups, dtype=kernel.GROUP),
        "replicas": np.zeros(replicas, dtype=kernel.REPLICA),
        "workers": np.zeros(workers, dtype=kernel.WORKER),
        "fire": np.full(replicas + workers + 2, np.inf),
        "dead": np.zeros((64 + 8 * replicas) * room),
        "heap_at": whole(replicas, heap),
        "heap_slot": whole(replicas, heap),
        "waiting": whole(replicas, load),
        "flights": whole(groups),
        "free": np.arange(groups, dtype=np.int64)[::-1].copy(),
        "arrived": whole(groups),
        "arrived_at": np.zeros(groups),
        "finished": whole(groups),
        "batch": whole(batch.rollout_batch_size // batch.group_size),
        "inbox": np.zeros((pieces, 4), dtype=np.int32),
        "inbox_key": whole(pieces),
        "queue": np.zeros((workers * queued, 4), dtype=np.int32),
        "residues": whole(machine.kv_block_tokens),
        "keys": whole(pieces),
        "items": whole(pieces),
        "order": whole(groups),
        "dealt": whole(replicas),
        "stage_s": np.zeros(kernel.STAGES),
        "passed_s": np.zeros(kernel.STAGES),
        "activity_s": np.zeros(kernel.STAGES + kernel.PARALLEL_STAGES),
        "activity_stages": whole(kernel.STAGES + kernel.PARALLEL_STAGES),
        "rewards": _rewards(rewards, setup.steps),
        "rewards_seen": np.zeros(int(values["delta_window"]) + 1),
        "prompts": prompts,
        "responses": responses,
        "clipped": clipped,
        "blocks": np.array(setup.replay.blocks, dtype=np.int64),
        "block_means": np.array(setup.replay.block_means),
        "key": np.array([setup.replay.key], dtype=np.uint64),
        "lines": costs.lines,
        "line_at": costs.line_at,
        "line_range": costs.line_range,
        "work": costs.work,
        "parts": costs.parts,
        "terms": costs.terms,
        "tables": costs.tables,
        "stages": costs.stages,
        "asked": np.zeros((5, 3)),
        "out": np.zeros((block, len(kernel.NAMES))),
        "histogram": whole((4 * block + 64) * room),
        "histogram_end": whole(block),
    }
    return _memory(values, tables)


# ---- inside ------------------------------------------------------------------------------------------------


def _memory(values: dict[str, float], tables: "dict[str, np.ndarray[Any, Any]]") -> Memory:
    """The record of a run, all other numbers 0."""
    import numpy as np

    from oppo_sim.fast import kernel

    states = np.zeros(1, dtype=kernel.STATE)
    for name, value in values.items():
        states[name] = value
    for i, (name, dtype) in enumerate(kernel.TABLES.items()):
        table = tables[name] = np.ascontiguousarray(tables[name], dtype=dtype)
        states["address"][0, i] = table.ctypes.data
        states["length"][0, i] = table.shape[0]
        states["width"][0, i] = table.shape[-1]
    return Memory(states, tables)


def _settings(setup: Setup, policy: Policy, counterfactual: Counterfactual) -> dict[str, float]:
    from oppo_sim.fast import kernel

    machine = setup.machine

    def limit(value: int | None) -> int:
        return kernel.UNBOUNDED if value is None else value

    blocks = (
        None if machine.kv_capacity_tokens is None else machine.kv_capacity_tokens // machine.kv_block_tokens
    )
    delta = policy.delta if isinstance(policy, Refill) else None
    assert isinstance(policy, Refill | Oracle)
    chunk = policy.chunk_control
    return {
        "batch": setup.batch.rollout_batch_size,
        "group_size": setup.batch.group_size,
        "replicas": machine.num_replicas,
        "workers": machine.num_workers,
        "granularity": kernel.GRANULARITIES.index(effective_granularity(policy, machine.streamable)),
        "rounds": runs_in_rounds(policy),
        "stream": streams_pieces(policy, machine.streamable),
        "static": machine.batching == "static",
        "free_padding": counterfactual.free_padding,
        "clear_kv": machine.clear_kv_cache_on_weight_sync,
        "limited": blocks is not None or machine.max_num_seqs is not None,
        "kv_blocks": limit(blocks),
        "kv_block_tokens": machine.kv_block_tokens,
        "max_num_seqs": limit(machine.max_num_seqs),
        "max_scoring_tokens": machine.max_scoring_tokens,
        "scorer_kv_capacity": limit(machine.scorer_kv_capacity_tokens),
        "colocated": machine.training_on == "rollout",
        "free_recompute": counterfactual.free_recompute,
        "max_deferrals": limit(policy.max_deferrals),
        "window": policy.window if isinstance(policy, Oracle) else 0,
        "sampling": kernel.SAMPLINGS.index(setup.replay.sampling),
        "controls_delta": delta is not None,
        "delta_min": delta.minimum if delta else 0,
        "delta_max": delta.maximum if delta else 0,
        "delta_up": delta.control.increment if delta else 0,
        "delta_down": delta.control.decrement if delta else 0,
        "delta_window": delta.control.window if delta else 1,
        "proportional": delta.control.proportional if delta else False,
        "candidates": len(chunk.candidates) if chunk else 0,
        "explore_every": chunk.explore_every if chunk else _FOREVER,
        "explore_steps": chunk.explore_steps if chunk else 1,
    }


def _candidates(policy: Policy) -> "dict[str, np.ndarray[Any, Any]]":
    import numpy as np

    assert isinstance(policy, Refill | Oracle)
    sizes = policy.chunk_control.candidates if policy.chunk_control else (0,)
    return {
        "candidates": np.array(sizes, dtype=np.int64),
        "candidate_s": np.zeros(len(sizes)),
        "candidate_tokens": np.zeros(len(sizes), dtype=np.int64),
    }


def _rewards(rewards: BatchRewards, steps: int) -> "np.ndarray[Any, Any]":
    """By row of the trace, or by step (NaN: none)."""
    import numpy as np

    if rewards.by_row is not None:
        return np.array(rewards.by_row, dtype=np.float64)
    means = (rewards.batch_mean(step, ()) for step in range(steps))
    return np.array([np.nan if mean is None else mean for mean in means])


_kept_rows: dict[int, tuple[list[int], "tuple[np.ndarray[Any, Any], ...]"]] = {}


def _rows(replay: Replay) -> "tuple[np.ndarray[Any, Any], ...]":
    """Prompts, responses and clipped as arrays; those of the last few traces are kept."""
    import numpy as np

    key = id(replay.response_lengths)
    if key not in _kept_rows:
        while len(_kept_rows) >= _KEPT:
            del _kept_rows[next(iter(_kept_rows))]
        made = tuple(
            np.array(column, dtype=np.int32)
            for column in (replay.prompt_lengths, replay.response_lengths, replay.clipped)
        )
        # The list is kept too, so that its id stays its own.
        _kept_rows[key] = (replay.response_lengths, made)
    return _kept_rows[key][1]
