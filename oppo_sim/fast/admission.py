"""Who is admitted, and where it is placed, compiled (``schedule/ledger.py``, ``policies/``)."""

# Records are read by field, which has no type for mypy.
# mypy: disable-error-code="no-any-return, return-value, assignment"

import numpy as np

from oppo_sim.fast.activities import rebase
from oppo_sim.fast.arrays import (
    answer_in,
    blocks_in,
    dealt_in,
    drawn_in,
    drawn_lengths_in,
    flights_in,
    free_in,
    groups_in,
    items_in,
    key_in,
    keys_in,
    lengths_in,
    order_in,
    readmit_in,
    replicas_in,
    rollouts_in,
    shelf_groups_in,
    shelf_rollouts_in,
    workers_in,
)
from oppo_sim.fast.batch import enqueue, remove
from oppo_sim.fast.codes import ASK_MODEL, BY_STEP, IN_ORDER, NO_ROOM, OK, UNBOUNDED
from oppo_sim.fast.compiled import compiled
from oppo_sim.fast.ordering import clear, draw_index, sort_by_key
from oppo_sim.fast.prefixes import begin_prefix
from oppo_sim.fast.records import State
from oppo_sim.fast.selection import drop_filtered
from oppo_sim.fast.tools import begin_turns


@compiled
def draw_row(s: State, group: int, position: int) -> int:
    """First row of a group (``Replay.row``); ``position`` counts the groups first admitted in this step."""
    block = s.step % blocks_in(s).shape[0]
    first, groups = blocks_in(s)[block, 0], blocks_in(s)[block, 1]
    if s.sampling == IN_ORDER:
        return group % groups * s.group_size
    if s.sampling == BY_STEP and position < groups:
        return first + position * s.group_size
    return first + draw_index(key_in(s)[0], group, groups) * s.group_size


@compiled
def least_loaded(s: State) -> int:
    """The replica with the fewest unfinished rollouts, ties to the lowest index."""
    replicas = replicas_in(s)
    if s.least_load < 0:
        s.least_load = replicas[0].load
        for r in range(1, s.replicas):
            s.least_load = min(s.least_load, replicas[r].load)
        s.least_at = 0
    # Loads only grow until the least is to be found again, so no replica is passed twice for one load.
    while replicas[s.least_at].load != s.least_load:
        s.least_at += 1
        if s.least_at == s.replicas:
            s.least_at = 0
            s.least_load += 1
    return s.least_at


@compiled
def place_for(s: State, number: int) -> int:
    """``Ledger._place``: the replica for a rollout of group ``number``."""
    if not s.groups_together or number != s.placed_group:
        s.placed_on = least_loaded(s)
        s.placed_group = number
    return s.placed_on


@compiled
def put_on(s: State, slot: int, r: int) -> None:
    """A rollout belongs to a replica; it is in line there unless the policy still arranges."""
    rollouts_in(s)[slot].replica = r
    replicas_in(s)[r].load += 1
    if not s.asks_arrange:
        enqueue(s, r, slot)


@compiled
def free_group_slot(s: State) -> int:
    """A group slot that is not used."""
    if s.free == 0:
        s.error = NO_ROOM
        return 0
    s.free -= 1
    return free_in(s)[s.free]


@compiled
def restart(s: State, slot: int, place: int, incarnation: int) -> None:
    """``Rollout.restart``: as if nothing had been generated."""
    rollout = rollouts_in(s)[slot]
    rollout.group = place
    rollout.incarnation = incarnation + 1
    rollout.generated = rollout.before = rollout.next_cut = rollout.cut = 0
    rollout.prompt_sent = rollout.sent = rollout.has_kv = rollout.finished = rollout.prefilled = 0
    rollout.scored = rollout.to_score = rollout.withheld = rollout.held = rollout.span = 0
    rollout.queued = rollout.on_hold = 0
    rollout.worker = rollout.head = rollout.tail = -1
    rollout.turn_end = rollout.response
    if s.tools:
        begin_turns(s, slot)


@compiled
def fly(s: State, place: int) -> None:
    """A group is in flight."""
    group = groups_in(s)[place]
    group.deferrals = group.whole = group.taken = group.awaited = 0
    group.missing = group.unfinished = s.group_size
    flights_in(s)[s.flights] = place
    s.flights += 1


@compiled
def draw_rows(s: State, groups: int) -> None:
    """First rows of the next groups, and the lengths of their members. Reads that miss the cache do not wait
    for each other here."""
    drawn, lengths, size = drawn_in(s), drawn_lengths_in(s), s.group_size
    for i in range(groups):
        drawn[i] = draw_row(s, s.admitted + i, s.new // size + i)
    for i in range(groups):
        for member in range(size):
            lengths[i * size + member] = lengths_in(s)[drawn[i] + member]


@compiled
def admit_group(s: State, i: int) -> None:
    """``Ledger._admit_new`` for the members of the ``i``-th group drawn, and ``SimulatedPlant.admit``."""
    place = free_group_slot(s)
    group = groups_in(s)[place]
    group.id = s.admitted
    group.drops = 0
    s.admitted += 1
    fly(s, place)
    row = drawn_in(s)[i]
    for member in range(s.group_size):
        slot = place * s.group_size + member
        rollout = rollouts_in(s)[slot]
        rollout.id = group.id * s.group_size + member
        rollout.row = row + member
        lengths = drawn_lengths_in(s)[i * s.group_size + member]
        rollout.prompt = lengths.prompt
        rollout.response = lengths.response
        rollout.clipped = lengths.clipped
        rollout.admitted_step = s.step
        rollout.admitted_s = s.origin + s.now
        rollout.preemptions = 0
        restart(s, slot, place, rollout.incarnation)
        if s.shares_prefixes:
            begin_prefix(s, slot, member == 0)
        if s.window == 0:
            put_on(s, slot, place_for(s, group.id))
    s.new += s.group_size


@compiled
def readmit(s: State) -> None:
    """``Ledger.begin_step`` of the dropped rollouts that run again."""
    size, first = s.group_size, s.flights
    at = 0
    for i in range(s.readmits):
        number, member = readmit_in(s)[i] // size, readmit_in(s)[i] % size
        place = -1
        if size > 1:
            for j in range(s.flights - 1, first - 1, -1):
                if groups_in(s)[flights_in(s)[j]].id == number:  # came with another member of its group
                    place = flights_in(s)[j]
                    break
        if place < 0:
            at = shelf_place(s, number, at)
            if s.error != OK:
                return
            place = take_from_shelf(s, at)
        put_on(s, place * size + member, place_for(s, number))
    kept = 0
    for i in range(s.shelved):
        if shelf_groups_in(s)[i].id >= 0:
            if kept < i:
                shelf_groups_in(s)[kept] = shelf_groups_in(s)[i]
                for member in range(size):
                    shelf_rollouts_in(s)[kept * size + member] = shelf_rollouts_in(s)[i * size + member]
            kept += 1
    s.shelved = kept
    s.readmits = 0


@compiled
def shelf_place(s: State, number: int, at: int) -> int:
    """Where a dropped group lies. Those looked up one after the other mostly lie side by side, so the search
    begins at ``at``, where the last one was."""
    for _ in range(s.shelved):
        if shelf_groups_in(s)[at].id == number:
            return at
        at += 1
        if at == s.shelved:
            at = 0
    s.error = ASK_MODEL
    return 0


@compiled
def take_from_shelf(s: State, at: int) -> int:
    """A dropped group is in flight again, its place on the shelf marked as empty; returns its group slot."""
    size, place = s.group_size, free_group_slot(s)
    groups_in(s)[place] = shelf_groups_in(s)[at]
    groups_in(s)[place].drops += 1
    shelf_groups_in(s)[at].id = -1
    for other in range(size):
        slot = place * size + other
        incarnation = rollouts_in(s)[slot].incarnation
        rollouts_in(s)[slot] = shelf_rollouts_in(s)[at * size + other]
        restart(s, slot, place, incarnation)
    fly(s, place)
    return place


@compiled
def sort_window(s: State) -> None:
    """The oracle's order: groups by (longest response, id). Nothing but training takes from it, so once a
    window is enough."""
    for i in range(s.flights):
        longest = 0
        for member in range(s.group_size):
            longest = max(longest, rollouts_in(s)[flights_in(s)[i] * s.group_size + member].response)
        keys_in(s)[i] = (longest << 32) | groups_in(s)[flights_in(s)[i]].id
        order_in(s)[i] = flights_in(s)[i]
    sort_by_key(keys_in(s), order_in(s), s.flights)
    s.oracle_next = 0


@compiled
def arrange_window(s: State) -> None:
    """``Oracle.arrange``: the shortest groups run, their rollouts dealt longest first to the replica with the
    fewest tokens dealt."""
    size = s.group_size
    count = 0
    for i in range(s.oracle_next, s.oracle_next + s.batch // size):
        for member in range(size):
            slot = order_in(s)[i] * size + member
            # Lengths falling, ids rising.
            keys_in(s)[count] = ((np.int64(1 << 31) - rollouts_in(s)[slot].response) << 32) | rollouts_in(s)[
                slot
            ].id
            items_in(s)[count] = slot
            count += 1
    s.oracle_next += s.batch // size
    sort_by_key(keys_in(s), items_in(s), count)
    clear(dealt_in(s), 0, s.replicas)
    for i in range(count):
        r = 0
        for other in range(1, s.replicas):
            if dealt_in(s)[other] < dealt_in(s)[r]:
                r = other
        dealt_in(s)[r] += rollouts_in(s)[items_in(s)[i]].response
        put_on(s, items_in(s)[i], r)


@compiled
def begin_row(s: State) -> None:
    """``SimulatedPlant.begin_row``."""
    s.new = s.decoded = s.prefilled = s.recomputed = s.prefix_cached = 0
    s.padding = s.preemptions = s.kv_peak = 0
    s.dropped = s.dropped_tokens = s.filtered = s.filtered_tokens = s.pieces = s.scored = (
        s.scoring_batches
    ) = 0
    s.training_kernel_s = s.sync_kernel_s = 0.0
    for r in range(s.replicas):
        replicas_in(s)[r].flops = replicas_in(s)[r].traffic = replicas_in(s)[r].kernel_s = 0.0
    for w in range(s.workers):
        workers_in(s)[w].flops = workers_in(s)[w].traffic = workers_in(s)[w].kernel_s = 0.0
    s.tracing = 1 if s.trace_first <= s.step <= s.trace_last else 0
    rebase(s)


@compiled
def note_generated(s: State) -> None:
    """What the rollouts in flight have made so far belongs to what was before."""
    for i in range(s.flights):
        for slot in range(flights_in(s)[i] * s.group_size, (flights_in(s)[i] + 1) * s.group_size):
            rollouts_in(s)[slot].before = rollouts_in(s)[slot].generated


@compiled
def admit(s: State) -> None:
    """``Ledger.begin_step``: with the policy's plan, or that of ``Policy.refill`` or ``Oracle.plan``."""
    drop_filtered(s)
    note_generated(s)
    in_flight = s.flights * s.group_size
    if s.asks_plan:
        admitted = s.to_admit  # the plan's ``admit``
    elif s.window:
        admitted = 0 if in_flight else s.window * s.batch
        s.overcommit = max(0, admitted + in_flight - s.batch)
    else:
        s.overcommit = s.next_delta
        admitted = max(0, s.batch + s.overcommit - in_flight)
    s.chunk = s.next_chunk
    groups = admitted // s.group_size
    if groups > s.free:
        s.error = NO_ROOM
        return
    draw_rows(s, groups)
    s.placed_group = -1
    for i in range(groups):
        admit_group(s, i)
    if s.readmits:
        readmit(s)
        if s.error != OK:
            return
    await_overdue(s)
    if s.window:
        if admitted:
            sort_window(s)
        arrange_window(s)


@compiled
def await_overdue(s: State) -> None:
    """Who is waited for: what the plan names (ids, rising), or the overdue ones of ``Policy.refill``."""
    s.awaited = 0
    if s.asks_plan:
        if s.answers == 0:
            return
    elif s.max_deferrals == UNBOUNDED:
        return
    size, ids = s.group_size, answer_in(s)
    for i in range(s.flights):
        group = groups_in(s)[flights_in(s)[i]]
        if group.whole:
            continue
        if s.asks_plan:
            low, high = 0, s.answers
            while low < high:
                middle = (low + high) >> 1
                if ids[middle] < group.id * size:
                    low = middle + 1
                else:
                    high = middle
            group.awaited = 1 if low < s.answers and ids[low] < (group.id + 1) * size else 0
        else:
            group.awaited = 1 if group.deferrals >= s.max_deferrals else 0
        s.awaited += group.awaited
    s.answers = 0


@compiled
def place(s: State) -> None:
    """``SimulatedPlant.place`` after ``arrange``: ``answer`` holds (slot, replica) pairs of those that moved;
    ``on_hold`` is set."""
    for i in range(s.answers):
        slot, r = answer_in(s)[2 * i], answer_in(s)[2 * i + 1]
        rollout = rollouts_in(s)[slot]
        replicas_in(s)[rollout.replica].load -= 1
        replicas_in(s)[r].load += 1
        s.least_load = -1
        if rollout.queued:
            remove(s, rollout.replica, slot)
        if rollout.prompt_sent:  # ``Links.move``
            free = replicas_in(s)[rollout.replica].link_free
            replicas_in(s)[r].link_free = max(replicas_in(s)[r].link_free, free)
        rollout.replica = r
    s.answers = 0
    for i in range(s.flights):
        if groups_in(s)[flights_in(s)[i]].whole:
            continue
        for slot in range(flights_in(s)[i] * s.group_size, (flights_in(s)[i] + 1) * s.group_size):
            rollout = rollouts_in(s)[slot]
            if rollout.on_hold:
                if rollout.queued:
                    remove(s, rollout.replica, slot)
            elif not rollout.queued and not rollout.finished:
                enqueue(s, rollout.replica, slot)


@compiled
def admit_within(s: State, groups: int) -> None:
    """``Ledger.replace``: more groups, in line on their replicas."""
    draw_rows(s, groups)
    s.placed_group = -1
    for i in range(groups):
        admit_group(s, i)
        if s.asks_arrange:
            place = flights_in(s)[s.flights - 1]
            for slot in range(place * s.group_size, (place + 1) * s.group_size):
                enqueue(s, rollouts_in(s)[slot].replica, slot)
