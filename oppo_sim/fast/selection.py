"""Who is finished, trained, deferred or dropped, compiled (``schedule/ledger.py``)."""

# Records are read by field, which has no type for mypy.
# mypy: disable-error-code="no-any-return, return-value, assignment"

from typing import Any

import numpy as np

from oppo_sim.fast.activities import tolerance
from oppo_sim.fast.arrays import (
    answer_in,
    arrived_at_in,
    arrived_in,
    filtered_in,
    finished_in,
    flights_in,
    free_in,
    groups_in,
    items_in,
    keys_in,
    replicas_in,
    rollouts_in,
    sample_rewards_in,
    scratch_at_in,
    scratch_in,
    selection_in,
    shelf_groups_in,
    shelf_rollouts_in,
    turns_in,
)
from oppo_sim.fast.batch import remove
from oppo_sim.fast.codes import UNBOUNDED
from oppo_sim.fast.compiled import compiled
from oppo_sim.fast.ordering import sort_by_key
from oppo_sim.fast.records import Array, State
from oppo_sim.fast.scorer import forget
from oppo_sim.fast.tools import note_next_answer


@compiled
def made_tokens_in(rollout: Any, version: int) -> None:
    """``RolloutState.made_tokens_in``."""
    if rollout.head < 0:
        rollout.head = version
    if rollout.tail != version:
        rollout.tail = version
        rollout.span += 1


@compiled
def equal_rewards(s: State, place: int) -> bool:
    """``run._equal``."""
    first = sample_rewards_in(s)[rollouts_in(s)[place * s.group_size].row]
    for slot in range(place * s.group_size + 1, (place + 1) * s.group_size):
        if sample_rewards_in(s)[rollouts_in(s)[slot].row] != first:
            return False
    return True


@compiled
def take_out(s: State, place: int) -> None:
    """``Ledger.ready`` of a group with equal rewards: it is in flight no more."""
    filtered_in(s)[s.filtering] = place
    s.filtering += 1
    s.filtered += s.group_size
    s.filtered_ever += s.group_size
    for slot in range(place * s.group_size, (place + 1) * s.group_size):
        s.filtered_tokens += rollouts_in(s)[slot].generated
    kept = 0
    for i in range(s.flights):
        if flights_in(s)[i] != place:
            flights_in(s)[kept] = flights_in(s)[i]
            kept += 1
    s.flights = kept


@compiled
def ready(s: State, slot: int, at: float) -> None:
    """``Ledger.ready``: a finished rollout may be selected, once its group is whole."""
    place = rollouts_in(s)[slot].group
    group = groups_in(s)[place]
    group.missing -= 1
    if group.missing == 0:
        group.whole = 1
        group.finished_step = s.step
        s.awaited -= group.awaited
        group.awaited = 0
        if s.filters and equal_rewards(s, place):
            take_out(s, place)
            return
        arrived_in(s)[s.arrived], arrived_at_in(s)[s.arrived] = place, at
        s.arrived += 1
        s.fin += 1


@compiled
def phase_over(s: State) -> bool:
    """``Ledger.phase_over``; ``fin`` counts whole groups."""
    return s.fin * s.group_size >= s.stop_after and s.awaited == 0


@compiled
def order_by_instant(s: State, at: Array, place: Array, count: int) -> None:
    """``instants.by_instant_then_id``: both sorted by (instant, id)."""
    # They come nearly in order.
    for i in range(1, count):
        seconds, group = at[i], place[i]
        j = i
        while j > 0 and at[j - 1] > seconds:
            at[j], place[j] = at[j - 1], place[j - 1]
            j -= 1
        at[j], place[j] = seconds, group
    first = 0
    for i in range(1, count + 1):
        if i == count or at[i] - at[first] > tolerance(at[i]):
            for j in range(first, i):
                keys_in(s)[j - first] = groups_in(s)[place[j]].id
                items_in(s)[j - first] = j
            rising = True
            for j in range(1, i - first):
                rising = rising and keys_in(s)[j - 1] < keys_in(s)[j]
            if not rising:
                sort_by_key(keys_in(s), items_in(s), i - first)
                for j in range(i - first):
                    scratch_in(s)[j] = place[items_in(s)[j]]
                    scratch_at_in(s)[j] = at[items_in(s)[j]]
                for j in range(i - first):
                    place[first + j], at[first + j] = scratch_in(s)[j], scratch_at_in(s)[j]
            first = i


@compiled
def order_arrivals(s: State) -> None:
    """``Ledger._order_arrivals``."""
    if s.arrived == 0:
        return
    order_by_instant(s, arrived_at_in(s), arrived_in(s), s.arrived)
    known = s.fin - s.arrived
    for i in range(s.arrived):
        finished_in(s)[known + i] = arrived_in(s)[i]
    s.arrived = 0
    if s.oldest_first:
        order_by_first_token(s)


@compiled
def order_by_first_token(s: State) -> None:
    """``Ledger._order_by_first_token``."""
    keys, finished = keys_in(s), finished_in(s)
    rising = True
    for i in range(s.fin):
        first = finished[i] * s.group_size
        oldest = np.int64(rollouts_in(s)[first].head)
        for slot in range(first + 1, first + s.group_size):
            oldest = min(oldest, np.int64(rollouts_in(s)[slot].head))
        keys[i] = (oldest << 32) | i
        rising = rising and (i == 0 or keys[i - 1] < keys[i])
    if not rising:
        sort_by_key(keys, finished, s.fin)


@compiled
def close_version(s: State) -> None:
    """``Ledger.close_version``."""
    for i in range(s.flights):
        if groups_in(s)[flights_in(s)[i]].whole:
            continue
        for slot in range(flights_in(s)[i] * s.group_size, (flights_in(s)[i] + 1) * s.group_size):
            rollout = rollouts_in(s)[slot]
            if not rollout.finished and rollout.generated > rollout.before:
                made_tokens_in(rollout, s.step)


@compiled
def count_deferrals(s: State) -> None:
    """``Ledger._count_deferrals``."""
    for i in range(s.flights):
        group = groups_in(s)[flights_in(s)[i]]
        if group.whole:
            continue
        decoded = False
        for slot in range(flights_in(s)[i] * s.group_size, (flights_in(s)[i] + 1) * s.group_size):
            decoded = decoded or rollouts_in(s)[slot].generated > rollouts_in(s)[slot].before
        if decoded:
            group.deferrals += 1


@compiled
def select(s: State) -> None:
    """``Ledger.take_batch``: what the policy answered, or ``Policy.select`` (docs/model.md C19)."""
    size, selection, finished = s.group_size, selection_in(s), finished_in(s)
    if s.asks_select:
        for i in range(s.batch):
            selection[i] = answer_in(s)[i]
    else:
        taken, waited = s.batch // size, 0
        if s.max_deferrals != UNBOUNDED:
            for i in range(s.fin):
                group = groups_in(s)[finished[i]]
                if group.deferrals >= s.max_deferrals:
                    keys_in(s)[waited] = (np.int64(group.finished_step) << 40) | group.id
                    scratch_in(s)[waited] = finished[i]
                    waited += 1
            sort_by_key(keys_in(s), scratch_in(s), waited)
        others = 0
        for i in range(taken):
            if i < waited:
                chosen = scratch_in(s)[i]
            else:
                while waited and groups_in(s)[finished[others]].deferrals >= s.max_deferrals:
                    others += 1
                chosen = finished[others]
                others += 1
            for member in range(size):
                selection[i * size + member] = chosen * size + member
    for i in range(s.batch):
        groups_in(s)[rollouts_in(s)[selection[i]].group].taken = 1
    s.fin = keep_the_rest(s, finished, s.fin)
    s.flights = keep_the_rest(s, flights_in(s), s.flights)


@compiled
def keep_the_rest(s: State, places: Array, count: int) -> int:
    """Take the groups that are ``taken`` from a list; returns how many are left."""
    kept = 0
    for i in range(count):
        if not groups_in(s)[places[i]].taken:
            places[kept] = places[i]
            kept += 1
    return kept


@compiled
def drop_groups(s: State) -> None:
    """``Ledger._drop`` and ``SimulatedPlant.drop`` of the groups whose slots ``answer`` holds."""
    if s.answers == 0:
        return
    size = s.group_size
    for i in range(s.answers):
        place = answer_in(s)[i]
        group = groups_in(s)[place]
        group.taken = 1
        for slot in range(place * size, (place + 1) * size):
            rollout = rollouts_in(s)[slot]
            if not rollout.finished:
                replicas_in(s)[rollout.replica].load -= 1
                s.least_load = -1
            if rollout.queued:
                remove(s, rollout.replica, slot)
            forget(s, slot)
            if s.tools:
                rollout.prompt = turns_in(s)[slot].prompt
            s.dropped += 1
            s.dropped_tokens += rollout.generated
            shelf_rollouts_in(s)[s.shelved * size + slot - place * size] = rollout
        shelf_groups_in(s)[s.shelved] = group
        s.shelved += 1
    s.fin = keep_the_rest(s, finished_in(s), s.fin)
    s.flights = keep_the_rest(s, flights_in(s), s.flights)
    for i in range(s.answers):
        give_back(s, answer_in(s)[i])
    s.answers = 0


@compiled
def drop_filtered(s: State) -> int:
    """``Scheduler._drop_filtered``; returns how many groups."""
    count = s.filtering
    for i in range(count):
        place = filtered_in(s)[i]
        for slot in range(place * s.group_size, (place + 1) * s.group_size):
            forget(s, slot)
        give_back(s, place)
    s.filtering = 0
    return count


@compiled
def give_back(s: State, place: int) -> None:
    """A group slot is free; pieces that are still in service count for nothing."""
    free_in(s)[s.free] = place
    s.free += 1
    for slot in range(place * s.group_size, (place + 1) * s.group_size):
        rollouts_in(s)[slot].incarnation += 1
    if s.tools:
        note_next_answer(s)
