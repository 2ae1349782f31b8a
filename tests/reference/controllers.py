"""Δ and the chunk size, each from what a run has seen."""

from .config import ReferenceConfig, whole_groups


class DeltaControl:
    """Δ of the next step, from mean rewards."""

    def __init__(self, config: ReferenceConfig) -> None:
        self.config = config
        self.rewards: list[float] = []
        self.delta = whole_groups(config.overcommit, config.group_size)

    def observe(self, mean_reward: float) -> None:
        """The step's batch had this mean reward."""
        self.rewards.append(mean_reward)
        if self.config.delta_control is None or self.config.policy != "oppo":
            return
        least, most, increase, decrease, window, proportional = self.config.delta_control
        if len(self.rewards) < window + 1:
            return
        slope = (self.rewards[-1] - self.rewards[-1 - window]) / window
        if proportional:
            increase = decrease = max(1, self.delta // 4)
        group = self.config.group_size
        if slope > 0:
            self.delta = min(whole_groups(most, group), self.delta + whole_groups(increase, group))
        else:
            self.delta = max(whole_groups(least, group), self.delta - whole_groups(decrease, group))


class ChunkControl:
    """Chunk size of a step, from step seconds and trained response tokens."""

    def __init__(self, config: ReferenceConfig) -> None:
        self.config = config
        self.best = config.chunk_size
        self.seen: dict[int, tuple[float, int]] = {}

    def size_for(self, step: int) -> int:
        """Chunk size in force in this step."""
        if self.config.chunk_control is None:
            return self.config.chunk_size
        candidates, explore_every, explore_steps = self.config.chunk_control
        turn = step % explore_every // explore_steps
        return candidates[turn] if turn < len(candidates) else self.best

    def observe(self, step: int, seconds: float, tokens: int) -> None:
        """The step took so long and trained so many response tokens."""
        if self.config.chunk_control is None:
            return
        candidates, explore_every, explore_steps = self.config.chunk_control
        if step % explore_every == 0:
            self.seen = {}
        turn = step % explore_every // explore_steps
        if turn >= len(candidates):
            return
        before = self.seen.get(candidates[turn], (0.0, 0))
        self.seen[candidates[turn]] = (before[0] + seconds, before[1] + tokens)
        ratios = {size: spent / made for size, (spent, made) in self.seen.items()}
        least = min(ratios.values())
        self.best = max(size for size, ratio in ratios.items() if ratio <= least * (1 + 1e-9))
