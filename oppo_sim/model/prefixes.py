"""Prompts that several samples of one group have in the KV of a replica, once (docs/model.md, §6)."""

from oppo_sim.model.rollout import Rollout


def shared_tokens(prompt_length: int, block_tokens: int) -> int:
    """Tokens of a prompt that its samples can share: whole blocks, and never its last token, whose logits
    each sample needs (vLLM's rule)."""
    return max(0, (prompt_length - 1) // block_tokens * block_tokens)


class SharedPrefixes:
    """Of one replica. Only rollouts with ``prefix`` tokens to share come here."""

    def __init__(self, block_tokens: int) -> None:
        self.tokens = 0
        """Tokens less in memory, since samples that run, or whose KV is kept, share them."""
        self.blocks = 0
        self.running_blocks = 0
        """Blocks less among those that run alone."""
        self._block = block_tokens
        self._running: dict[int, int] = {}
        self._held: dict[int, int] = {}

    def runs(self, group: int) -> bool:
        """A sample of the group runs here."""
        return group in self._running

    def holds(self, group: int) -> bool:
        """The group's prompt is in KV."""
        return group in self._held

    def join(self, rollout: Rollout) -> None:
        """It runs from now on."""
        if rollout.prefix:
            self.running_blocks += _count(self._running, rollout) * (rollout.prefix // self._block)
            self.keep(rollout)

    def leave(self, rollout: Rollout) -> None:
        """It does not run any more."""
        if rollout.prefix:
            self.running_blocks -= _count_less(self._running, rollout) * (rollout.prefix // self._block)
            self.release(rollout)

    def keep(self, rollout: Rollout) -> None:
        """Its KV is here from now on."""
        if rollout.prefix and _count(self._held, rollout):
            self.tokens += rollout.prefix
            self.blocks += rollout.prefix // self._block

    def release(self, rollout: Rollout) -> None:
        """Its KV is gone."""
        if rollout.prefix and _count_less(self._held, rollout):
            self.tokens -= rollout.prefix
            self.blocks -= rollout.prefix // self._block


def _count(holders: dict[int, int], rollout: Rollout) -> bool:
    """One holder more; True if there was another."""
    before = holders.get(rollout.group_id, 0)
    holders[rollout.group_id] = before + 1
    return before > 0


def _count_less(holders: dict[int, int], rollout: Rollout) -> bool:
    """One holder less; True if another is left."""
    left = holders[rollout.group_id] - 1
    if left:
        holders[rollout.group_id] = left
    else:
        del holders[rollout.group_id]
    return left > 0
