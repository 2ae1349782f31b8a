"""Which policy runs when: rounds over all policies, each in an order of its own."""

from collections.abc import Sequence
from dataclasses import dataclass

from oppo_sim.draws import draw_uniform, stream_key
from oppo_sim.errors import OppoError


@dataclass(frozen=True)
class Turn:
    """One real run."""

    policy: str
    repeat: int


def plan_turns(policies: Sequence[str], repeats: int, seed: int) -> tuple[Turn, ...]:
    """Round after round over all policies, in hashed orders, so that a machine that slows down does so for no
    particular policy.

    Raises OppoError for fewer than two policies, a policy named twice, or no repeat.
    """
    if len(policies) < 2:
        raise OppoError("validation compares policies: name two or more, such as --policies sequential,oppo")
    twice = [name for index, name in enumerate(policies) if name in policies[:index]]
    if twice:
        raise OppoError(f"policy '{twice[0]}' is named twice: name each policy once")
    if repeats < 1:
        raise OppoError(f"repeats {repeats} is out of range: give 1 or more")
    turns = []
    for repeat in range(repeats):
        key = stream_key(seed, f"validate/order/{repeat}")
        order = sorted(range(len(policies)), key=lambda index: draw_uniform(key, index))
        turns += [Turn(policies[index], repeat) for index in order]
    return tuple(turns)
