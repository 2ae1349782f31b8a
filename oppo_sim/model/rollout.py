"""A simulated rollout: a flight whose length the model, but no policy, knows."""

from oppo_sim.schedule.ledger import RolloutState


class Rollout(RolloutState):
    """Tokens and seconds. ``has_kv`` while it is among the running rollouts of its replica."""

    __slots__ = (
        "admitted_s",
        "clipped",
        "cut",
        "final_iteration",
        "has_kv",
        "held_by_scorer",
        "incarnation",
        "next_cut",
        "preemptions",
        "prompt_sent",
        "queued",
        "response_length",
        "scored_at",
        "sent_to_scorer",
        "trace_row",
        "was_prefilled",
        "withheld",
        "worker",
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
        self.incarnation = 0
        self.was_prefilled = False
        self.has_kv = False
        self.queued = False
        self.final_iteration = 0
        """Iteration count of its replica at which it finishes (while it runs)."""
        self._fresh()

    def _fresh(self) -> None:
        self.cut = 0
        """Response tokens at the last cut."""
        self.next_cut = 0
        """Response tokens at the next cut; 0 before its first prefill."""
        self.prompt_sent = False
        self.sent_to_scorer = False
        self.scored_at: float | None = None
        self.worker = -1
        self.withheld = 0
        """Tokens the scorer's KV had no room for; they are scored at the finish."""
        self.held_by_scorer = 0

    def take_piece(self) -> tuple[int, int]:
        """(new, past): tokens made since the last cut, with the prompt in the first piece, and what the
        scorer has had before."""
        past = self.cut
        new = self.generated - past
        if self.prompt_sent:
            past += self.prompt_length
        else:
            new += self.prompt_length
            self.prompt_sent = True
        self.cut = self.generated
        return new, past

    def rebase(self, passed: float) -> None:
        super().rebase(passed)
        if self.scored_at is not None:
            self.scored_at -= passed

    def restart(self) -> None:
        super().restart()
        self.incarnation += 1
        self.was_prefilled = False
        self.has_kv = False
        self.queued = False
        self._fresh()
