"""Prompts that samples of a group share, compiled (``model/prefixes.py``). Only runs with
``s.shares_prefixes`` come here."""

# Records are read by field, which has no type for mypy.
# mypy: disable-error-code="no-any-return, return-value, assignment"

import numpy as np

from oppo_sim.fast.arrays import groups_in, prefix_held_in, prefix_running_in, replicas_in, rollouts_in
from oppo_sim.fast.compiled import compiled
from oppo_sim.fast.records import State


@compiled
def begin_prefix(s: State, slot: int, first: bool) -> None:
    """``SimulatedPlant.admit``: what a new rollout, the first of its group or another, may share."""
    rollout = rollouts_in(s)[slot]
    group = groups_in(s)[rollout.group]
    if first:
        group.prompt = rollout.prompt
        blocks = (np.int64(rollout.prompt) - 1) // s.kv_block_tokens
        group.prefix = max(0, blocks * s.kv_block_tokens)
    rollout.shares = 1 if rollout.prompt == group.prompt and group.prefix > 0 else 0


@compiled
def runs_prefix(s: State, r: int, slot: int) -> bool:
    """``SharedPrefixes.runs`` of a rollout that shares."""
    return prefix_running_in(s)[r, rollouts_in(s)[slot].group] > 0


@compiled
def cached_prefix(s: State, r: int, slot: int) -> int:
    """Tokens that a rollout without KV need not prefill."""
    rollout = rollouts_in(s)[slot]
    if not rollout.shares or prefix_held_in(s)[r, rollout.group] == 0:
        return 0
    return np.int64(groups_in(s)[rollout.group].prefix)


@compiled
def join_prefix(s: State, r: int, slot: int) -> None:
    """``SharedPrefixes.join``."""
    rollout = rollouts_in(s)[slot]
    if not rollout.shares:
        return
    if prefix_running_in(s)[r, rollout.group] > 0:
        replicas_in(s)[r].shared_running += groups_in(s)[rollout.group].prefix // s.kv_block_tokens
    prefix_running_in(s)[r, rollout.group] += 1
    keep_prefix(s, r, slot)


@compiled
def leave_prefix(s: State, r: int, slot: int) -> None:
    """``SharedPrefixes.leave``."""
    rollout = rollouts_in(s)[slot]
    if not rollout.shares:
        return
    prefix_running_in(s)[r, rollout.group] -= 1
    if prefix_running_in(s)[r, rollout.group] > 0:
        replicas_in(s)[r].shared_running -= groups_in(s)[rollout.group].prefix // s.kv_block_tokens
    release_prefix(s, r, slot)


@compiled
def keep_prefix(s: State, r: int, slot: int) -> None:
    """``SharedPrefixes.keep``."""
    rollout, replica = rollouts_in(s)[slot], replicas_in(s)[r]
    if not rollout.shares:
        return
    if prefix_held_in(s)[r, rollout.group] > 0:
        replica.shared_tokens += groups_in(s)[rollout.group].prefix
        replica.shared_blocks += groups_in(s)[rollout.group].prefix // s.kv_block_tokens
    prefix_held_in(s)[r, rollout.group] += 1


@compiled
def release_prefix(s: State, r: int, slot: int) -> None:
    """``SharedPrefixes.release``."""
    rollout, replica = rollouts_in(s)[slot], replicas_in(s)[r]
    if not rollout.shares:
        return
    prefix_held_in(s)[r, rollout.group] -= 1
    if prefix_held_in(s)[r, rollout.group] > 0:
        replica.shared_tokens -= groups_in(s)[rollout.group].prefix
        replica.shared_blocks -= groups_in(s)[rollout.group].prefix // s.kv_block_tokens
