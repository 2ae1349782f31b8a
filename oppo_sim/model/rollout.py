"""A rollout whose response length the model, but no policy, knows."""

from oppo_sim.schedule.rollout import RolloutState
from oppo_sim.turns import ToolWait


class Rollout(RolloutState):
    """Tokens and seconds. ``has_kv`` while it is among the running rollouts of its replica; ``kept``: tokens
    of its KV that the replica keeps while it is not."""

    __slots__ = (
        "admitted_s",
        "clipped",
        "final_iteration",
        "has_kv",
        "kept",
        "preemptions",
        "prefix",
        "queued",
        "response_length",
        "trace_row",
        "turn_end",
        "unseen",
        "waits",
    )

    def __init__(
        self,
        rollout_id: int,
        group_id: int,
        prompt_length: int,
        response_length: int,
        trace_row: int,
        admitted_step: int,
        admitted_s: float,
        waits: tuple[ToolWait, ...] = (),
    ) -> None:
        super().__init__(rollout_id, group_id, prompt_length, admitted_step)
        self.response_length = response_length
        self.trace_row = trace_row
        self.clipped = False
        self.prefix = 0
        """Tokens of its prompt that other samples of it can share."""
        self.admitted_s = admitted_s
        """Seconds since the run began; all other seconds here count from the begin of the row."""
        self.preemptions = 0
        self.final_iteration = 0
        """Iteration count of its replica at which its turn ends (while it runs)."""
        self.waits = waits
        self._begin_turn()

    def restart(self) -> None:
        super().restart()
        self._begin_turn()

    def call_tool(self) -> ToolWait:
        """Its turn has ended with a call."""
        self.waits_for_tool = True
        return self.waits[self.turns_done]

    def take_answer(self) -> None:
        """The tool has answered: the next turn begins."""
        tokens = self.waits[self.turns_done].tokens
        self.waits_for_tool = False
        self.turns_done += 1
        self.tool_tokens += tokens
        self.unseen += tokens
        self._begin_turn()

    def _begin(self) -> None:
        super()._begin()
        self.unseen = self.prompt_length
        """Tokens of its context that no prefill has had."""
        self.kept = 0
        self.has_kv = False
        self.queued = False

    def _begin_turn(self) -> None:
        called = self.turns_done < len(self.waits)
        self.turn_end = self.waits[self.turns_done].after if called else self.response_length
        """Response tokens since its begin when its turn ends."""
