"""A rollout in flight: what the ledger keeps of it, and how far it is scored."""

from typing import TypeVar

from oppo_sim.policies.interface import RolloutView


def scorer_key(rollout_id: int, drops: int) -> int:
    """What scoring workers call a rollout: another key each time it starts anew."""
    return drops << 40 | rollout_id


class RolloutState:
    """A backend keeps what else it needs in a subclass."""

    __slots__ = (
        "admitted_step",
        "cut",
        "deferrals",
        "drops",
        "filtered",
        "finished_at",
        "finished_step",
        "generated",
        "generated_before",
        "group_id",
        "handed",
        "head_version",
        "held_by_scorer",
        "next_cut",
        "prompt_length",
        "replica",
        "rollout_id",
        "scored_at",
        "sent_to_scorer",
        "span",
        "tail_version",
        "tool_tokens",
        "turns_done",
        "waits_for_tool",
        "withheld",
        "worker",
    )

    def __init__(self, rollout_id: int, group_id: int, prompt_length: int, admitted_step: int) -> None:
        self.rollout_id = rollout_id
        self.group_id = group_id
        self.prompt_length = prompt_length
        self.admitted_step = admitted_step
        self.replica = -1
        self.drops = 0
        self._begin()

    def _begin(self) -> None:
        self.deferrals = 0
        self.filtered = False
        """All rewards of its group are equal, so that the group is dropped."""
        self.generated = 0
        """Response tokens so far; the backend keeps it current at the end of a phase and before a change of
        version."""
        self.generated_before = 0
        self.head_version: int | None = None
        self.tail_version = -1
        self.span = 0
        self.finished_at: float | None = None
        self.finished_step: int | None = None
        self.cut = 0
        """Response tokens at the last cut."""
        self.next_cut = 0
        """Response tokens at the next cut; 0 before its first prefill."""
        self.handed = 0
        """Tokens of its context that the scorer was given."""
        self.tool_tokens = 0
        """In its context, of the answers of tools so far."""
        self.turns_done = 0
        """Calls of tools that were answered."""
        self.waits_for_tool = False
        self.sent_to_scorer = False
        """As a whole."""
        self.scored_at: float | None = None
        self.worker = -1
        """The scoring worker that has its pieces."""
        self.withheld = 0
        """Tokens the scorer's KV had no room for; they are scored at the finish."""
        self.held_by_scorer = 0

    def restart(self) -> None:
        """Forget everything generated (a dropped rollout that runs again)."""
        self.drops += 1
        self._begin()

    @property
    def key(self) -> int:
        """As ``scorer_key``."""
        return scorer_key(self.rollout_id, self.drops)

    @property
    def context(self) -> int:
        """Tokens of prompt, response and tools so far."""
        return self.prompt_length + self.tool_tokens + self.generated

    def rebase(self, passed: float) -> None:
        """Seconds are counted from a moment ``passed`` seconds later."""
        if self.finished_at is not None:
            self.finished_at -= passed
            if self.scored_at is not None:
                self.scored_at -= passed

    def made_tokens_in(self, version: int) -> None:
        """Account tokens made since the last call to ``version``."""
        if self.head_version is None:
            self.head_version = version
        if self.tail_version != version:
            self.tail_version = version
            self.span += 1

    def take_piece(self) -> tuple[int, int]:
        """(new, past): the context since the last cut (the prompt is in the first piece), and what the
        scorer has had before."""
        past = self.handed
        self.handed = self.context
        self.cut = self.generated
        return self.handed - past, past

    def view(self) -> RolloutView:
        """What a policy may know about it."""
        return RolloutView(
            self.rollout_id,
            self.group_id,
            self.prompt_length,
            self.generated,
            self.replica,
            self.admitted_step,
            self.deferrals,
            self.head_version,
            self.finished_step,
            self.turns_done,
            self.waits_for_tool,
        )


F = TypeVar("F", bound=RolloutState)
