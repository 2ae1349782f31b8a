"""Δ and the chunk size, each from what a run has seen."""

from typing import Any

import numpy as np
from scipy.stats import t as t_distribution

from .config import ReferenceConfig, whole_groups

Samples = np.ndarray[Any, Any]
"""Seconds and tokens of the steps of a candidate."""


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
        self.history: list[tuple[int, float, int]] = []

    def size_for(self, step: int) -> int:
        """Chunk size in force in this step."""
        if self.config.chunk_race is not None:
            return raced(self.config.chunk_race, self.history)
        if self.config.chunk_control is None:
            return self.config.chunk_size
        candidates, explore_every, explore_steps = self.config.chunk_control
        turn = step % explore_every // explore_steps
        return candidates[turn] if turn < len(candidates) else self.best

    def observe(self, step: int, seconds: float, tokens: int) -> None:
        """The step took so long and trained so many response tokens."""
        self.history.append((self.size_for(step), seconds, tokens))
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


def raced(race: tuple[tuple[int, ...], int, int, int, float], history: list[tuple[int, float, int]]) -> int:
    """Chunk size of the coming step under a race: told anew from all that has been since it began."""
    candidates, explore_every, min_steps, max_steps, level = race
    since = history[len(history) - len(history) % explore_every :]
    left = list(candidates)
    done = 0
    while True:
        order = [left[(done + i) % len(left)] for i in range(len(left))]
        if len(since) < len(left):
            return order[len(since)]
        since, done = since[len(left) :], done + 1
        used = history[len(history) - len(history) % explore_every : len(history) - len(since)]
        samples = {size: np.array([(s, t) for ran, s, t in used if ran == size]) for size in left}
        pace = {size: float(found[:, 0].sum() / found[:, 1].sum()) for size, found in samples.items()}
        ahead = max(size for size in left if pace[size] <= min(pace.values()) * (1 + 1e-9))
        if done >= min_steps:
            left = [
                size for size in left if size == ahead or not _slower(samples[size], samples[ahead], level)
            ]
        if len(left) == 1 or done == max_steps:
            return ahead


def _slower(here: Samples, there: Samples, level: float) -> bool:
    """Welch's test of two ratios of means; residuals stand for the observations."""
    ratios = [found[:, 0].sum() / found[:, 1].sum() for found in (here, there)]
    if ratios[0] <= ratios[1] * (1 + 1e-9):
        return False
    errors = [
        np.sum((found[:, 0] - ratio * found[:, 1]) ** 2)
        / (len(found) - 1)
        / len(found)
        / found[:, 1].mean() ** 2
        for found, ratio in zip((here, there), ratios, strict=True)
    ]
    if sum(errors) == 0:
        return True
    freedom = sum(errors) ** 2 / sum(e**2 / (len(f) - 1) for e, f in zip(errors, (here, there), strict=True))
    return bool((ratios[0] - ratios[1]) / np.sqrt(sum(errors)) > t_distribution.ppf(1 - level, freedom))
