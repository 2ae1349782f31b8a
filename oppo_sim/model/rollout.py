"""A rollout whose response length the model, but no policy, knows."""

from oppo_sim.schedule.rollout import RolloutState


class Rollout(RolloutState):
    """Tokens and seconds. ``has_kv`` while it is among the running rollouts of its replica."""

    __slots__ = (
        "admitted_s",
        "clipped",
        "final_iteration",
        "has_kv",
        "preemptions",
        "queued",
        "response_length",
        "trace_row",
        "was_prefilled",
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
    ) -> None:
        super().__init__(rollout_id, group_id, prompt_length, admitted_step)
        self.response_length = response_length
        self.trace_row = trace_row
        self.clipped = False
        self.admitted_s = admitted_s
        """Seconds since the run began; all other seconds here count from the begin of the row."""
        self.preemptions = 0
        self.final_iteration = 0
        """Iteration count of its replica at which it finishes (while it runs)."""

    def _begin(self) -> None:
        super()._begin()
        self.was_prefilled = False
        self.has_kv = False
        self.queued = False
