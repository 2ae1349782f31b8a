"""Calls of tools, compiled (``model/rollout.py``, ``model/kept.py``, ``Machine._call_tool``). Only runs whose
trace has turns come here (``s.tools``)."""

# Records are read by field, which has no type for mypy.
# mypy: disable-error-code="no-any-return, return-value, assignment"

import math

from oppo_sim.fast.activities import set_event
from oppo_sim.fast.arrays import (
    answers_in,
    calls_in,
    first_call_in,
    kept_in,
    replicas_in,
    rollouts_in,
    turns_in,
)
from oppo_sim.fast.codes import NO_ROOM
from oppo_sim.fast.compiled import compiled
from oppo_sim.fast.prefixes import keep_prefix, release_prefix
from oppo_sim.fast.records import Array, State


@compiled
def tools_actor(s: State) -> int:
    """What has the next answer."""
    return s.replicas + s.workers + 3


@compiled
def begin_turns(s: State, slot: int) -> None:
    """``Rollout._begin``."""
    turns, rollout = turns_in(s)[slot], rollouts_in(s)[slot]
    turns.prompt = turns.unseen = rollout.prompt
    turns.first = turns.call = first_call_in(s)[rollout.row]
    turns.last = first_call_in(s)[rollout.row + 1]
    turns.at_tool = turns.kept = turns.handed = 0
    begin_turn(s, slot)


@compiled
def begin_turn(s: State, slot: int) -> None:
    """``Rollout._begin_turn``."""
    turns, rollout = turns_in(s)[slot], rollouts_in(s)[slot]
    rollout.turn_end = calls_in(s)[turns.call].after if turns.call < turns.last else rollout.response


@compiled
def keep_kv(s: State, r: int, slot: int) -> None:
    """``KeptKv.keep``."""
    turns, replica = turns_in(s)[slot], replicas_in(s)[r]
    if replica.kept_rollouts >= kept_in(s).shape[1]:
        s.error = NO_ROOM
        return
    turns.kept = rollouts_in(s)[slot].prompt + rollouts_in(s)[slot].generated
    turns.kept_at = replica.kept_rollouts
    kept_in(s)[r, turns.kept_at] = slot
    replica.kept_rollouts += 1
    replica.kept += turns.kept
    replica.kept_blocks += (turns.kept + s.kv_block_tokens - 1) // s.kv_block_tokens
    if s.shares_prefixes:
        keep_prefix(s, r, slot)


@compiled
def release_kept(s: State, r: int, slot: int) -> None:
    """``KeptKv.release``."""
    turns, replica = turns_in(s)[slot], replicas_in(s)[r]
    if turns.kept == 0:
        return
    replica.kept -= turns.kept
    replica.kept_blocks -= (turns.kept + s.kv_block_tokens - 1) // s.kv_block_tokens
    replica.kept_rollouts -= 1
    last = kept_in(s)[r, replica.kept_rollouts]
    kept_in(s)[r, turns.kept_at] = last
    turns_in(s)[last].kept_at = turns.kept_at
    if s.shares_prefixes:
        release_prefix(s, r, slot)
    turns.kept = 0


@compiled
def release_highest(s: State, r: int) -> None:
    """``KeptKv.release_highest``."""
    highest = kept_in(s)[r, 0]
    for i in range(1, replicas_in(s)[r].kept_rollouts):
        if rollouts_in(s)[kept_in(s)[r, i]].id > rollouts_in(s)[highest].id:
            highest = kept_in(s)[r, i]
    release_kept(s, r, highest)


@compiled
def release_all(s: State) -> None:
    """``KeptKv.release_all`` of every replica."""
    for r in range(s.replicas):
        while replicas_in(s)[r].kept_rollouts:
            release_kept(s, r, kept_in(s)[r, replicas_in(s)[r].kept_rollouts - 1])


@compiled
def call_tool(s: State, r: int, slot: int, at: float) -> None:
    """``Replica._call_tool`` and ``Machine._call_tool``: the rollout leaves the batch."""
    turns = turns_in(s)[slot]
    turns.at_tool = 1
    replicas_in(s)[r].away += 1
    if not s.clear_kv_on_call:
        keep_kv(s, r, slot)
    answers = answers_in(s)
    i = s.answers_due
    if i >= answers.shape[0]:
        s.error = NO_ROOM
        return
    s.answers_due = i + 1
    seconds = max(at + calls_in(s)[turns.call].seconds, s.now)
    while i > 0 and answers[(i - 1) >> 1].at > seconds:
        answers[i] = answers[(i - 1) >> 1]
        i = (i - 1) >> 1
    answers[i].at, answers[i].slot = seconds, slot
    answers[i].incarnation = rollouts_in(s)[slot].incarnation
    set_event(s, tools_actor(s), answers[0].at)


@compiled
def next_answer(s: State) -> int:
    """The slot whose tool answers now."""
    slot = answers_in(s)[0].slot
    pass_answer(s)
    note_next_answer(s)
    return slot


@compiled
def pass_answer(s: State) -> None:
    """The earliest answer is none any more."""
    s.answers_due -= 1
    sift_down(answers_in(s), s.answers_due)


@compiled
def note_next_answer(s: State) -> None:
    """When a tool answers next; ``Clock.cancel``: those of dropped rollouts answer nobody."""
    answers = answers_in(s)
    while s.answers_due and rollouts_in(s)[answers[0].slot].incarnation != answers[0].incarnation:
        pass_answer(s)
    set_event(s, tools_actor(s), answers[0].at if s.answers_due else math.inf)


@compiled
def sift_down(answers: Array, count: int) -> None:
    """The last of ``count`` + 1 answers takes the place of the first and moves down to where it belongs."""
    seconds = answers[count].at
    i, child = 0, 1
    while child < count:
        if child + 1 < count and answers[child + 1].at < answers[child].at:
            child += 1
        if answers[child].at >= seconds:
            break
        answers[i] = answers[child]
        i, child = child, 2 * child + 1
    if i < count:
        answers[i] = answers[count]


@compiled
def take_answer(s: State, slot: int) -> None:
    """``Rollout.take_answer``."""
    turns, rollout = turns_in(s)[slot], rollouts_in(s)[slot]
    tokens = calls_in(s)[turns.call].tokens
    turns.at_tool = 0
    turns.call += 1
    turns.unseen += tokens
    rollout.prompt += tokens
    begin_turn(s, slot)


@compiled
def anybody_away(s: State) -> bool:
    """Somebody who goes on in this phase is at a tool."""
    away = 0
    for r in range(s.replicas):
        away += replicas_in(s)[r].away
    return away > 0
