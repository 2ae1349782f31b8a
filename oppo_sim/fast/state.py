"""The arrays that the kernel works on, made from a built scenario."""

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from oppo_sim.costs.interface import NO_CUTS, Costs
from oppo_sim.fast import codes
from oppo_sim.fast.cost_tables import cost_tables
from oppo_sim.fast.memory import Memory, Zeros, aligned, make_memory
from oppo_sim.model.counterfactual import Counterfactual
from oppo_sim.model.layout import device_layout
from oppo_sim.model.scorer_cache import ALL_AT_ONCE
from oppo_sim.model.setup import MachineSetup
from oppo_sim.policies.interface import Batch, Policy
from oppo_sim.policies.refill import Refill, ShippedPolicy
from oppo_sim.policies.shipped.oracle import Oracle
from oppo_sim.rewards import BatchRewards
from oppo_sim.scenario.build import Setup
from oppo_sim.schedule.rules import effective_granularity, runs_in_rounds, streams_pieces
from oppo_sim.traces.replay import Replay
from oppo_sim.turns import ToolWait

if TYPE_CHECKING:
    import numpy as np

Tables: TypeAlias = "dict[str, np.ndarray[Any, Any] | Zeros]"
_KEPT = 16


def most_in_flight(policy: Policy, batch: Batch) -> int:
    """Rollouts in flight at most, those in training included; a guess for policies of one's own."""
    size = batch.rollout_batch_size
    if isinstance(policy, Oracle):
        return policy.window * size
    if isinstance(policy, Refill):
        return size + (policy.delta.maximum if policy.delta else policy.overcommit)
    if policy.schedule == "async":
        return batch.whole_groups((policy.max_staleness + 2) * size)
    return batch.whole_groups(3 * size + 16)


@dataclass(frozen=True)
class Kept:
    """What a run is to give besides its step table."""

    rollouts: bool = False
    timeline: tuple[int, int] | None = None
    """First and last step whose spans and markers are kept."""


STEPS_ONLY = Kept()


def make_state(
    setup: Setup,
    policy: Policy,
    counterfactual: Counterfactual,
    block: int,
    room: int,
    asks: Collection[str],
    kept: Kept,
) -> Memory:
    """A run before its first step, for ``block`` rows at a time. ``room`` (1, …) scales the buffers whose
    need is not known; ``asks``: methods of the policy that are called."""

    machine, batch, replay = setup.machine, setup.batch, setup.replay
    size = _sizes(setup, policy, room, bool(asks))
    costs = cost_tables(setup.costs, counterfactual.free_padding, size.running)
    cut_costs = NO_CUTS if counterfactual.free_cuts else setup.costs.cuts
    send_s_per_token = 0.0 if counterfactual.free_cuts else machine.send_s_per_token
    devices, device_settings = _devices(machine, counterfactual, setup.costs)
    rewards = setup.rewards()
    first, last = kept.timeline or (1, 0)
    values = {
        **_settings(setup, policy, counterfactual, asks),
        **costs.settings,
        **device_settings,
        **setup.costs.phases._asdict(),
        **cut_costs._asdict(),
        "send_s_per_token": send_s_per_token,
        "travels": cut_costs.piece_send_s > 0.0 or send_s_per_token > 0.0,
        **{f"asks_{name}": name in asks for name in ("plan", "arrange", "select", "drop")},
        "by_row_rewards": rewards.by_row is not None,
        "queue_length": size.queued,
        "resume": True,
        "doing": codes.BEGIN,
        "free": size.groups,
        "tools": replay.waits is not None,
        "clear_kv_on_call": machine.clear_kv_cache_on_tool_call,
        "shares_prefixes": size.shares_prefixes,
        "filters": setup.sample_rewards is not None,
        "groups_together": machine.groups_together,
        "leaves": size.leaves,
        "stop_after": batch.rollout_batch_size,
        "next_delta": policy.overcommit if isinstance(policy, Refill) else 0,
        "next_chunk": policy.chunk_size if isinstance(policy, ShippedPolicy) else 1,
        "keeps_rollouts": kept.rollouts,
        "trace_first": first,
        "trace_last": last,
    }
    tables: Tables = {
        **devices,
        **_flight_tables(setup, size, room),
        **_batch_tables(setup, size),
        **_scoring_tables(machine, size),
        **_trace_tables(setup, size, rewards),
        "lines": costs.lines,
        "line_at": costs.line_at,
        "line_range": costs.line_range,
        "work": costs.work,
        "demand": costs.demand,
        "parts": costs.parts,
        "terms": costs.terms,
        "tables": costs.tables,
        "stages": costs.stages,
        **_output_tables(batch, block, room, kept),
    }
    return make_memory(values, tables)


# ---- inside ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sizes:
    """Lengths of the arrays of a run."""

    in_flight: int
    """Rollouts."""
    groups: int
    load: int
    """Rollouts that a replica may have."""
    running: int
    """Of these, at once."""
    cuts: int
    """To come, of a replica; a power of two."""
    pieces: int
    queued: int
    """Pieces of a worker; a power of two."""
    leaves: int
    """Of the tournament of ends to come: of replicas, workers and the rest; a power of two."""
    waits: bool
    """Rollouts wait for tools."""
    shares_prefixes: bool


def _sizes(setup: Setup, policy: Policy, room: int, asks: bool) -> _Sizes:
    machine, batch = setup.machine, setup.batch
    in_flight = most_in_flight(policy, batch) * (room if asks else 1)
    # Rollouts go to the replica with the fewest, so none gets more than its share; the oracle deals by
    # length.
    fair = batch.rollout_batch_size if isinstance(policy, Oracle) else -(-in_flight // machine.num_replicas)
    load = min(in_flight, (fair + (asks and not isinstance(policy, Oracle))) * room)
    # Cuts of preempted rollouts stay.
    cuts = load + 1 if machine.kv_capacity_tokens is None and not asks else load + 1 + (load + 8) * room
    pieces = (2 * in_flight + 16) * room
    actors = machine.num_replicas + machine.num_workers + 4
    return _Sizes(
        in_flight=in_flight,
        groups=in_flight // batch.group_size,
        load=load,
        running=load if machine.max_num_seqs is None else min(load, machine.max_num_seqs),
        cuts=1 << (cuts - 1).bit_length(),
        pieces=pieces,
        queued=1 << (2 * pieces - 1).bit_length(),
        leaves=1 << (actors - 1).bit_length(),
        waits=bool(setup.replay.waits),
        shares_prefixes=machine.shares_prefixes and batch.group_size > 1,
    )


def _zeros(*shape: int) -> Zeros:
    return Zeros(shape)


def _flight_tables(setup: Setup, size: _Sizes, room: int) -> Tables:
    """Rollouts and groups in flight, replicas, and the ends of what they do."""
    import numpy as np

    replicas = setup.machine.num_replicas
    sharing = (replicas, size.groups) if size.shares_prefixes else (1, 1)
    waiting = size.in_flight if size.waits else 0
    return {
        "rollouts": _zeros(size.in_flight),
        "turns": _zeros(waiting or 1),
        **_calls(setup.replay.waits),
        "answers": _zeros((waiting + 16 if size.waits else 1) * room),
        "groups": _zeros(size.groups),
        "prefix_running": _zeros(*sharing),
        "prefix_held": _zeros(*sharing),
        "shelf_rollouts": _zeros(setup.batch.group_size),
        "shelf_groups": _zeros(1),
        "replicas": _zeros(replicas),
        "fire": np.full(2 * size.leaves, np.inf),
        "finals": _zeros(replicas, size.load + 1),
        "cuts": _zeros(replicas, size.cuts),
        "classes": _zeros(replicas, setup.machine.kv_block_tokens),
        # Half of it is empty, so that all seldom move to its begin.
        "waiting": _zeros(replicas, 2 * size.load),
        "kept": _zeros(replicas, size.load if size.waits else 1),
        "flights": _zeros(size.groups),
        "free": np.arange(size.groups, dtype=np.int64)[::-1].copy(),
        "residues": _zeros(setup.machine.kv_block_tokens),
        "dealt": _zeros(replicas),
        "order": _zeros(size.groups),
        "scratch": _zeros(size.groups),
        "scratch_at": _zeros(size.groups),
    }


def _batch_tables(setup: Setup, size: _Sizes) -> Tables:
    """What has finished, what is selected and trained, and the stages of the update."""

    batch, groups = setup.batch.rollout_batch_size, size.groups
    activities = codes.STAGES + codes.PARALLEL_STAGES
    return {
        "arrived": _zeros(groups),
        "arrived_at": _zeros(groups),
        "wholes": _zeros(groups),
        "whole_at": _zeros(groups),
        "finished": _zeros(groups),
        "filtered": _zeros(groups),
        "batch": _zeros(batch),
        "selection": _zeros(batch),
        "trained": _zeros(batch),
        "answer": _zeros(2 * size.in_flight),
        "readmit": _zeros(batch),
        "stage_s": _zeros(codes.STAGES),
        "passed_s": _zeros(codes.STAGES),
        "activity_s": _zeros(activities),
        "activity_stages": _zeros(activities),
    }


def _scoring_tables(machine: MachineSetup, size: _Sizes) -> Tables:
    """Pieces on their way, queues of the workers, and what their caches hold."""
    pieces, queued = size.pieces, size.queued
    cached = size.in_flight if machine.scorer_cache_blocks else 1
    return {
        "inbox": _zeros(pieces, 4),
        "inbox_id": _zeros(pieces),
        "way": _zeros(queued, 5),
        "way_at": _zeros(queued),
        "way_id": _zeros(queued),
        "land": _zeros(pieces, 5),
        "land_id": _zeros(pieces),
        "queue": _zeros(machine.num_workers * queued, 5),
        "cached": _zeros(cached),
        "uptos": _zeros(cached),
        "caches": _zeros(machine.num_workers * ((machine.scorer_cache_blocks or 0) + 1)),
        "keys": _zeros(pieces),
        "items": _zeros(pieces),
    }


def _trace_tables(setup: Setup, size: _Sizes, rewards: BatchRewards) -> Tables:
    """The rows that are replayed, and how they are drawn."""
    import numpy as np

    return {
        "sample_rewards": np.array(setup.sample_rewards or (0.0,), dtype=np.float64),
        "rewards": _rewards(rewards, setup.steps),
        "lengths": _rows(setup.replay),
        "drawn": _zeros(size.groups),
        "drawn_lengths": _zeros(size.in_flight),
        "blocks": np.array(setup.replay.blocks, dtype=np.int64),
        "block_means": np.array(setup.replay.block_means),
        "key": np.array([setup.replay.key], dtype=np.uint64),
    }


def _output_tables(batch: Batch, block: int, room: int, kept: Kept) -> Tables:
    """Rows of ``block`` steps, of their rollouts, and the timeline."""
    return {
        "extrapolated": _zeros(5, 3),
        "out": _zeros(block),
        "rollout_rows": _zeros(block * batch.rollout_batch_size if kept.rollouts else 1, 20),
        "trace": _zeros((4096 if kept.timeline else 1) * room * room, 9),
        "histogram": _zeros((32 * block + 128) * room),
        "histogram_end": _zeros(2 * block),
    }


def _devices(
    machine: MachineSetup, counterfactual: Counterfactual, costs: Costs
) -> "tuple[dict[str, np.ndarray[Any, Any]], dict[str, float]]":
    """Devices, what runs on them, and scoring workers, as ``Machine`` has them."""
    import numpy as np

    from oppo_sim.fast import records

    replicas, workers = machine.num_replicas, machine.num_workers
    layout = device_layout(machine, contention=not counterfactual.no_contention)
    shared, hosts = layout.shared, layout.hosts
    device = np.zeros(len(shared), dtype=records.DEVICE)
    device["shared"] = shared
    device["host"][list(hosts)] = 1
    runners = np.zeros(replicas + workers + 1, dtype=records.RUNNER)
    decoding, scored, trained = machine.slowed_by
    runners["slowed_by"] = [decoding] * replicas + [scored] * workers + [trained]
    listed: list[int] = []

    def place(*devices: int) -> tuple[int, int, bool]:
        at = len(listed)
        listed.extend(devices)
        return at, len(devices), any(shared[d] for d in devices)

    actors = (*enumerate(layout.rollout), *enumerate(layout.scoring))
    for runner, (index, number) in zip(runners, actors, strict=False):
        runner["first_device"], runner["devices"], runner["shared"] = place(number, *layout.host_of(index))
    train, sync = place(*layout.training, *hosts), place(*layout.sync, *hosts)
    worker = np.zeros(workers, dtype=records.WORKER)
    worker["device"] = layout.scoring
    worker["room"] = machine.scorer_cache_blocks or 0
    worker["left"] = machine.scorer_iteration_tokens or ALL_AT_ONCE
    tables = {
        "devices": device,
        "device_list": np.array(listed, dtype=np.int64),
        "device_actors": np.zeros((len(shared), workers + 3), dtype=np.int64),
        "runners": runners,
        "workers": worker,
    }
    demand, sync_demand = costs.training.demand(), costs.training.sync_demand()
    names = ("first", "devices", "shared")
    return tables, {
        **{f"train_{name}": value for name, value in zip(names, train, strict=True)},
        **{f"sync_{name}": value for name, value in zip(names, sync, strict=True)},
        "devices": len(shared),
        "hosts": len(hosts),
        "num_devices": layout.num_devices,
        "contention": any(shared),
        "interference": machine.interference,
        "turn_s": machine.turn_s,
        "time_slices": machine.time_slices,
        "train_memory": demand.memory,
        "train_arithmetic": demand.arithmetic,
        "sync_memory": sync_demand.memory,
        "sync_arithmetic": sync_demand.arithmetic,
    }


def _settings(
    setup: Setup, policy: Policy, counterfactual: Counterfactual, asks: Collection[str]
) -> dict[str, float]:

    machine = setup.machine

    def limit(value: int | None) -> int:
        return codes.UNBOUNDED if value is None else value

    return {
        "batch": setup.batch.rollout_batch_size,
        "group_size": setup.batch.group_size,
        "replicas": machine.num_replicas,
        "workers": machine.num_workers,
        "schedule": codes.SCHEDULES.index(policy.schedule),
        "granularity": codes.GRANULARITIES.index(effective_granularity(policy, machine.streamable)),
        "rounds": runs_in_rounds(policy),
        "stream": streams_pieces(policy, machine.streamable),
        "static": machine.batching == "static",
        "free_padding": counterfactual.free_padding,
        "clear_kv": machine.clear_kv_cache_on_weight_sync,
        "keeps_kv": machine.keeps_kv_between_rounds,
        "limited": machine.kv_blocks is not None or machine.max_num_seqs is not None,
        "kv_blocks": limit(machine.kv_blocks),
        "kv_block_tokens": machine.kv_block_tokens,
        "max_num_seqs": limit(machine.max_num_seqs),
        "max_scoring_tokens": machine.max_scoring_tokens,
        "scorer_kv_capacity": limit(machine.scorer_kv_capacity_tokens),
        "scorer_block_tokens": machine.scorer_block_tokens,
        "scorer_cache_blocks": limit(machine.scorer_cache_blocks),
        "scorer_iteration_tokens": machine.scorer_iteration_tokens or ALL_AT_ONCE,
        "free_recompute": counterfactual.free_recompute,
        "max_deferrals": limit(policy.max_deferrals),
        "oldest_first": policy.schedule == "async" and policy.train_order == "oldest",
        "drains": policy.schedule == "async" and not policy.partial_rollout,
        "window": policy.window if isinstance(policy, Oracle) and not asks else 0,
        "sampling": codes.SAMPLINGS.index(setup.replay.sampling),
    }


def _rewards(rewards: BatchRewards, steps: int) -> "np.ndarray[Any, Any]":
    """By row of the trace, or by step (NaN: none)."""
    import numpy as np

    if rewards.by_row is not None:
        return np.array(rewards.by_row, dtype=np.float64)
    return np.array([np.nan if mean is None else mean for mean in rewards.step_means(steps)])


def _calls(waits: Sequence[tuple[ToolWait, ...]] | None) -> "dict[str, np.ndarray[Any, Any]]":
    """Of the trace's rows, those of one after those of another, and where they begin."""
    import numpy as np

    from oppo_sim.fast import records

    rows = waits or ()
    flat = [call for row in rows for call in row]
    calls = np.zeros(max(1, len(flat)), dtype=records.CALL)
    for name in ("after", "seconds", "tokens"):
        calls[name][: len(flat)] = [getattr(call, name) for call in flat]
    return {"calls": calls, "first_call": np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64)}


_kept_rows: "OrderedDict[tuple[int, ...], tuple[tuple[list[Any], ...], np.ndarray[Any, Any]]]"
_kept_rows = OrderedDict()


def _rows(replay: Replay) -> "np.ndarray[Any, Any]":
    """The rows of the trace as records; those of the last few traces are kept."""
    import numpy as np

    from oppo_sim.fast import records

    columns = (replay.prompt_lengths, replay.response_lengths, replay.clipped)
    key = tuple(map(id, columns))
    if key not in _kept_rows:
        while len(_kept_rows) >= _KEPT:
            _kept_rows.popitem(last=False)
        # The lists are kept too, so that their ids stay theirs.
        rows = np.zeros(len(replay.prompt_lengths), dtype=records.LENGTHS)
        for name, column in zip(records.LENGTHS.names or (), columns, strict=True):
            rows[name] = column
        _kept_rows[key] = (columns, aligned(rows))
    return _kept_rows[key][1]
