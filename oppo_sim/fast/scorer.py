"""Scoring workers, compiled (``model/scorer.py``)."""

# Records are read by field, which has no type for mypy.
# mypy: disable-error-code="no-any-return, return-value, assignment"

import math

import numpy as np

from oppo_sim.fast.activities import record, set_event, start, time_on_device
from oppo_sim.fast.arrays import (
    inbox_id_in,
    inbox_in,
    items_in,
    keys_in,
    land_id_in,
    land_in,
    queue_in,
    replicas_in,
    rollouts_in,
    runners_in,
    turns_in,
    uptos_in,
    way_at_in,
    way_id_in,
    way_in,
    workers_in,
)
from oppo_sim.fast.codes import MARK_PIECE, NO_ROOM, UNBOUNDED
from oppo_sim.fast.compiled import compiled, rule
from oppo_sim.fast.costs import score_forward
from oppo_sim.fast.ordering import clear, sort_by_key
from oppo_sim.fast.records import State
from oppo_sim.fast.scorer_cache import disown, end_iteration, prefill_cached
from oppo_sim.model import formulas

piece_seconds = rule(formulas.piece_seconds)
prefilled_tokens = rule(formulas.prefilled_tokens)
send_seconds = rule(formulas.send_seconds)

_FEW = 32
"""Pieces that are put in their place one by one."""
_SPREAD = 8
"""Ids that lie closer than so many to one piece are counted, others compared."""


@compiled
def hand_over(s: State, slot: int, last: int) -> None:
    """``Replica.hand_over``: what the rollout made since its last cut reaches the scorer's inbox."""
    rollout = rollouts_in(s)[slot]
    past = rollout.cut
    new = rollout.generated - past
    if s.tools:
        handed = turns_in(s)[slot].handed
        past += handed
        new += rollout.prompt - handed
        turns_in(s)[slot].handed = rollout.prompt
        rollout.prompt_sent = 1
    elif rollout.prompt_sent:
        past += rollout.prompt
    else:
        new += rollout.prompt
        rollout.prompt_sent = 1
    rollout.cut = rollout.generated
    i = s.inbox
    if i >= inbox_in(s).shape[0]:
        s.error = NO_ROOM
        return
    s.inbox = i + 1
    if s.tracing:
        record(s, MARK_PIECE, rollout.replica, 0, s.now, s.now, 0.0, 0.0, 0.0)
    inbox_id_in(s)[i] = rollout.id
    inbox_in(s)[i, 0], inbox_in(s)[i, 1], inbox_in(s)[i, 2], inbox_in(s)[i, 3] = slot, new, past, last


@compiled
def queue_place(s: State, w: int, i: int) -> int:
    """Where the ``i``-th piece ever queued at worker ``w`` lies; a ring of a power of two places."""
    return w * s.queue_length + (i & (s.queue_length - 1))


@compiled
def queue_piece(s: State, i: int) -> None:
    """``ScoringRouter._queue`` of piece ``i`` of the inbox."""
    slot, new, past, last = inbox_in(s)[i, 0], inbox_in(s)[i, 1], inbox_in(s)[i, 2], inbox_in(s)[i, 3]
    rollout = rollouts_in(s)[slot]
    chosen = rollout.worker
    if chosen < 0:
        chosen = 0
        for w in range(1, s.workers):
            if workers_in(s)[w].load < workers_in(s)[chosen].load:
                chosen = w
    worker = workers_in(s)[chosen]
    if s.scorer_kv_capacity != UNBOUNDED:
        if not last and (rollout.withheld > 0 or worker.held + new > s.scorer_kv_capacity):
            rollout.withheld += new
            return
        if rollout.withheld:
            new += rollout.withheld
            past -= rollout.withheld
            rollout.withheld = 0
        worker.held += new
        rollout.held += new
    rollout.worker = chosen
    worker.load += new
    if worker.tail - worker.head >= s.queue_length:
        s.error = NO_ROOM
        return
    queue, place = queue_in(s), queue_place(s, chosen, worker.tail)
    queue[place, 0], queue[place, 1], queue[place, 2], queue[place, 3] = slot, new, past, last
    queue[place, 4] = rollout.incarnation
    worker.tail += 1
    s.pieces += 1


@compiled
def upto_of(s: State, place: int) -> int:
    """Before which of its rollout's tokens the piece at ``place`` of the queue ends, as it is prefilled."""
    queue = queue_in(s)
    end = np.int64(queue[place, 1]) + queue[place, 2]
    return end if queue[place, 3] else prefilled_tokens(end, s.scorer_block_tokens)


@compiled
def lost_prefixes(s: State, w: int, first: int, last: int) -> tuple[int, float]:
    """``Scorer._lost`` of the pieces from ``first`` to before ``last``: tokens to be prefilled again, and
    their query-key pairs."""
    queue, uptos = queue_in(s), uptos_in(s)
    again, pairs = np.int64(0), 0.0
    for i in range(first, last):
        place = queue_place(s, w, i)
        uptos[queue[place, 0]] = upto_of(s, place) * 2 + queue[place, 3]
    for i in range(first, last):
        place = queue_place(s, w, i)
        slot = queue[place, 0]
        upto, ends = uptos[slot] // 2, uptos[slot] % 2
        uptos[slot] = 0
        past = prefilled_tokens(np.int64(queue[place, 2]), s.scorer_block_tokens)
        if upto > past:
            kept = prefill_cached(s, w, slot, ends == 0, upto)
            again += past - kept
            pairs += (past - kept) * (kept + (past - kept) * 0.5)
    end_iteration(s, w)
    return again, pairs


@compiled
def sleep_scorers(s: State) -> None:
    """``Scorer.sleep``."""
    for w in range(s.workers):
        workers_in(s)[w].asleep = 1


@compiled
def take(s: State, w: int) -> None:
    """``Scorer._start``: a free worker takes what is queued."""
    worker = workers_in(s)[w]
    queue, limit = queue_in(s), s.max_scoring_tokens
    pieces, given, tokens, pairs = 0, np.int64(0), np.int64(0), 0.0
    served = worker.served
    while served < worker.tail:
        place = queue_place(s, w, served)
        new, past = np.int64(queue[place, 1]), np.int64(queue[place, 2])
        if served > worker.served and given + new > limit:
            break
        given += new
        end = past + new
        past = prefilled_tokens(past, s.scorer_block_tokens)
        new = (end if queue[place, 3] else prefilled_tokens(end, s.scorer_block_tokens)) - past
        pieces += new > 0
        tokens += new
        pairs += new * (past + new * 0.5)
        served += 1
    if s.scorer_cache_blocks != UNBOUNDED:
        again, lost = lost_prefixes(s, w, worker.served, served)
        tokens += again
        pairs += lost
        s.scored += again
    worker.served = served
    s.scored += given
    s.scoring_batches += 1
    alone, flops, traffic, memory, arithmetic = 0.0, 0.0, 0.0, 0.0, 0.0
    if tokens > 0:
        alone, flops, traffic, memory, arithmetic = score_forward(s, float(tokens), pairs)
    seconds = piece_seconds(pieces, alone, s.piece_fixed_s)
    if worker.asleep:
        worker.asleep = 0
        seconds += s.reward_phase_s
    if seconds > alone:
        share = alone / seconds
        memory *= share
        arithmetic *= share
    worker.flops += flops
    worker.traffic += traffic
    worker.kernel_s += time_on_device(memory, arithmetic) * seconds
    start(s, s.replicas + w, s.now, seconds, memory, arithmetic, 0.0)


@compiled
def forget(s: State, slot: int) -> None:
    """``Scorer.forget``: what waits of a dropped rollout is removed, what is held is freed."""
    rollout = rollouts_in(s)[slot]
    if not rollout.prompt_sent:
        return  # the scorer never heard of it
    kept = 0
    for i in range(s.inbox):
        if inbox_in(s)[i, 0] != slot:
            for j in range(4):
                inbox_in(s)[kept, j] = inbox_in(s)[i, j]
            inbox_id_in(s)[kept] = inbox_id_in(s)[i]
            kept += 1
    s.inbox = kept
    if rollout.worker < 0:
        return
    if s.scorer_cache_blocks != UNBOUNDED:
        disown(s, slot)
    w = rollout.worker
    worker, queue = workers_in(s)[w], queue_in(s)
    kept = worker.served
    for i in range(worker.served, worker.tail):
        place = queue_place(s, w, i)
        if queue[place, 0] == slot and queue[place, 4] == rollout.incarnation:
            worker.load -= queue[place, 1]
        else:
            to = queue_place(s, w, kept)
            for j in range(5):
                queue[to, j] = queue[place, j]
            kept += 1
    worker.tail = kept
    worker.held -= rollout.held
    rollout.held = 0


@compiled
def inbox_rises(s: State, count: int) -> bool:
    """True if the pieces of the inbox lie in the order of (id, arrival) already."""
    ids = inbox_id_in(s)
    rises = True
    for i in range(1, count):
        rises = rises and ids[i - 1] <= ids[i]
    return rises


@compiled
def sort_inbox(s: State, count: int) -> None:
    """``items``: the pieces of the inbox by (id, arrival)."""
    ids, items, keys = inbox_id_in(s), items_in(s), keys_in(s)
    low = high = ids[0]
    for i in range(1, count):
        low, high = min(low, ids[i]), max(high, ids[i])
    width = high - low + 1
    if width < min(_SPREAD * count, keys.shape[0]):
        # By counting: where the pieces of each id begin.
        clear(keys, 0, width + 1)
        for i in range(count):
            keys[ids[i] - low + 1] += 1
        for i in range(1, width):
            keys[i] += keys[i - 1]
        for i in range(count):
            place = ids[i] - low
            items[keys[place]] = i
            keys[place] += 1
        return
    for i in range(count):
        # Ids stay far below 2^39.
        keys[i], items[i] = (ids[i] << 24) | i, i
    sort_by_key(keys, items, count)


@compiled
def ordered_inbox(s: State) -> bool:
    """``items``: the pieces of the inbox by (id, arrival); False: they lie in that order already."""
    if inbox_rises(s, s.inbox):
        return False
    sort_inbox(s, s.inbox)
    return True


@compiled
def occupy_link(s: State, i: int) -> None:
    """Piece ``i`` of the inbox takes its time on the link of its replica."""
    replica = replicas_in(s)[rollouts_in(s)[inbox_in(s)[i, 0]].replica]
    seconds = send_seconds(inbox_in(s)[i, 1], s.piece_send_s, s.send_s_per_token)
    replica.link_free = max(replica.link_free, s.now) + seconds


@compiled
def send_piece(s: State, i: int) -> None:
    """Piece ``i`` of the inbox is under way until its link is free."""
    slot, new = inbox_in(s)[i, 0], inbox_in(s)[i, 1]
    rollout = rollouts_in(s)[slot]
    arrives = replicas_in(s)[rollout.replica].link_free
    way, at, ids = way_in(s), way_at_in(s), way_id_in(s)
    around = at.shape[0] - 1
    j = s.last_sent
    if j - s.first_sent > around:
        s.error = NO_ROOM
        return
    s.last_sent = j + 1
    while j > s.first_sent and at[(j - 1) & around] > arrives:
        for k in range(5):
            way[j & around, k] = way[(j - 1) & around, k]
        at[j & around], ids[j & around] = at[(j - 1) & around], ids[(j - 1) & around]
        j -= 1
    j &= around
    way[j, 0], way[j, 1], way[j, 2], way[j, 3] = slot, new, inbox_in(s)[i, 2], inbox_in(s)[i, 3]
    way[j, 4] = rollout.incarnation
    at[j], ids[j] = arrives, rollout.id


@compiled
def order_by_arrival(s: State, sorts: bool) -> None:
    """``items``: the pieces of the inbox by arrival, else as they were; ``send_piece`` then moves none."""
    keys, items, replicas = keys_in(s), items_in(s), replicas_in(s)
    for i in range(s.inbox):
        item = items[i] if sorts else i
        arrives = replicas[rollouts_in(s)[inbox_in(s)[item, 0]].replica].link_free
        before = 0
        for r in range(s.replicas):
            before += replicas[r].link_free < arrives
        keys[i], items[i] = (before << 24) | i, item
    sort_by_key(keys, items, s.inbox)


@compiled
def note_next_arrival(s: State) -> None:
    """When the next piece arrives."""
    at = way_at_in(s)
    nothing = s.first_sent == s.last_sent
    arrives = math.inf if nothing else max(at[s.first_sent & (at.shape[0] - 1)], s.now)
    set_event(s, s.replicas + s.workers + 2, arrives)


@compiled
def piece_arrives(s: State) -> None:
    """``Links._arrived``."""
    way = way_in(s)
    i = s.first_sent & (way.shape[0] - 1)
    s.first_sent += 1
    if way[i, 4] == rollouts_in(s)[way[i, 0]].incarnation:  # else its rollout was dropped
        if s.landed >= land_in(s).shape[0]:
            s.error = NO_ROOM
            return
        for k in range(5):
            land_in(s)[s.landed, k] = way[i, k]
        land_id_in(s)[s.landed] = way_id_in(s)[i]
        s.landed += 1
    note_next_arrival(s)


@compiled
def send_and_receive(s: State) -> None:
    """``Links.send``: what was cut leaves, and what has arrived is the inbox."""
    if s.inbox:
        sorts = ordered_inbox(s)
        for i in range(s.inbox):
            occupy_link(s, items_in(s)[i] if sorts else i)
        if s.inbox > _FEW:
            order_by_arrival(s, sorts)
            sorts = True
        for i in range(s.inbox):
            send_piece(s, items_in(s)[i] if sorts else i)
        note_next_arrival(s)
    s.inbox = 0
    for i in range(s.landed):
        if land_in(s)[i, 4] == rollouts_in(s)[land_in(s)[i, 0]].incarnation:
            for k in range(4):
                inbox_in(s)[s.inbox, k] = land_in(s)[i, k]
            inbox_id_in(s)[s.inbox] = land_id_in(s)[i]
            s.inbox += 1
    s.landed = 0


@compiled
def settle_scorer(s: State) -> None:
    """``Scorer.work``."""
    if s.travels:
        send_and_receive(s)
    sorts = ordered_inbox(s)
    for i in range(s.inbox):
        queue_piece(s, items_in(s)[i] if sorts else i)
    s.inbox = 0
    for w in range(s.workers):
        worker = workers_in(s)[w]
        if worker.served < worker.tail and not runners_in(s)[s.replicas + w].running:
            take(s, w)
