"""KV that a replica keeps of rollouts that wait for a tool, and until they run again."""

from oppo_sim.model.prefixes import SharedPrefixes
from oppo_sim.model.rollout import Rollout


class KeptKv:
    """Memory that others may have: it is given up as soon as it is needed."""

    def __init__(self, block_tokens: int, prefixes: SharedPrefixes) -> None:
        self.tokens = 0
        self.blocks = 0
        self._block = block_tokens
        self._prefixes = prefixes
        self._of: dict[int, Rollout] = {}

    def __bool__(self) -> bool:
        return bool(self._of)

    def keep(self, rollout: Rollout) -> None:
        """Its whole context, from now on."""
        rollout.kept = rollout.context
        self._of[rollout.rollout_id] = rollout
        self.tokens += rollout.kept
        self.blocks += self._blocks(rollout)
        self._prefixes.keep(rollout)

    def release(self, rollout: Rollout) -> None:
        """No longer: it runs again with it, it is gone, or others need the memory."""
        if rollout.kept:
            del self._of[rollout.rollout_id]
            self.tokens -= rollout.kept
            self.blocks -= self._blocks(rollout)
            rollout.kept = 0
            self._prefixes.release(rollout)

    def release_highest(self) -> None:
        """That of the highest id."""
        self.release(self._of[max(self._of)])

    def release_all(self) -> None:
        """After a change of weights."""
        for rollout in list(self._of.values()):
            self.release(rollout)

    def _blocks(self, rollout: Rollout) -> int:
        return -(-rollout.kept // self._block)
