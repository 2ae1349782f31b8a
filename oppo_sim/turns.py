"""What interrupts a response: the actor calls a tool (or acts on an environment) and waits for the answer."""

from typing import NamedTuple


class ToolWait(NamedTuple):
    """One call of a tool. A response with n waits has n + 1 turns."""

    after: int
    """Response tokens that the rollout has made when it calls, since its begin."""
    seconds: float
    """From the call until the answer is there."""
    tokens: int
    """Of the answer: context that the actor did not decode and that no loss counts."""
