"""Rules of a run that hold whatever drives it: what is scored when, and what a policy observes."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from oppo_sim.columns import STAGES
from oppo_sim.errors import OppoError
from oppo_sim.policies.interface import Policy, ScoreGranularity

Stages = dict[str, float]
"""Stage → seconds."""


def effective_granularity(policy: Policy, streamable: bool) -> ScoreGranularity:
    """``chunk`` becomes ``rollout`` where the reward model cannot stream (docs/model.md C12)."""
    return "rollout" if policy.score_granularity == "chunk" and not streamable else policy.score_granularity


def runs_in_rounds(policy: Policy) -> bool:
    """Generation pauses every ``chunk_size`` iterations."""
    return policy.stop_check == "chunk" and policy.schedule == "synchronous"


def streams_pieces(policy: Policy, streamable: bool) -> bool:
    """Replicas cut pieces while they decode (in rounds, pieces are made at the barrier)."""
    return effective_granularity(policy, streamable) == "chunk" and not runs_in_rounds(policy)


class Replayed(Protocol):
    """A rollout whose lengths come from a trace."""

    @property
    def trace_row(self) -> int:
        """Number of its row."""


def equal_rewards(rewards: Sequence[float], members: Sequence[Replayed]) -> bool:
    """Dynamic sampling: all members of a group have the same reward; ``rewards``: one a row of the trace."""
    first = rewards[members[0].trace_row]
    return all(rewards[member.trace_row] == first for member in members)


def new_stages(gen: float, reward: float) -> Stages:
    """Stage times of a row, training to be filled in."""
    return {**dict.fromkeys(STAGES, 0.0), "gen": gen, "reward": reward}


def reported_timing(
    recorded: Sequence[Mapping[str, float]] | None, step: int, passed: Mapping[str, float]
) -> Mapping[str, float]:
    """Stage times that the policy observes: those that passed, or in lock-step the recorded ones. Raises
    OppoError past their end."""
    if recorded is None:
        return passed
    if step >= len(recorded):
        raise OppoError(
            f"the recorded stage times end at step {len(recorded) - 1}: record {step + 1} steps, or run fewer"
        )
    return recorded[step]
