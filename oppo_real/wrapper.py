"""For a PPO loop of your own: an iterator that hands out finished, scored rollouts and takes new weights back
(docs/real.md)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oppo_real.ppo.rollout import TrainRollout
from oppo_real.run.schedules import SynchronousRun
from oppo_real.run.setup import OpenRun, OwnLoop, build_real_setup, open_run
from oppo_sim.columns import TRAINING_STAGES
from oppo_sim.errors import OppoError
from oppo_sim.results.sinks import FrameSink
from oppo_sim.scenario.load import load_scenario
from oppo_sim.scenario.schema import Scenario

if TYPE_CHECKING:
    import pandas as pd
    import torch


@dataclass(frozen=True)
class StepBatch:
    """The B rollouts of one step."""

    step: int
    weight_version: int
    """Updates done before this one; a token whose ``weight_versions`` entry is lower was made by older
    weights."""
    rollouts: tuple[TrainRollout, ...]


class _YourTraining:
    """Weights as the caller gave them last."""

    def __init__(self, weights: "Mapping[str, torch.Tensor]") -> None:
        self.given = weights

    def train(self, batch: Sequence[TrainRollout], version: int) -> Mapping[str, float]:
        """Done by the caller."""
        return {}

    def weights(self) -> "Mapping[str, torch.Tensor]":
        return self.given


class RolloutStream:
    """Iterate over it; call ``update`` once in each round."""

    def __init__(self, opened: OpenRun) -> None:
        """Use ``rollout_stream``."""
        self.policy: torch.nn.Module = opened.policy_model
        """The model that the replicas started from; train it, or one of your own with the same weights by
        name."""
        self._frames = FrameSink()
        self._training = _YourTraining(opened.training.weights())
        self._run = SynchronousRun(opened.given(training=self._training), self._frames)
        self._steps = opened.setup.base.steps
        self._rewards: Sequence[float] | None = None
        self._updated = True

    def __iter__(self) -> Iterator[StepBatch]:
        """One batch a step. Raises OppoError where a round ended without ``update``, and for a worker that
        fails."""
        state = self._run.state
        for step in range(self._steps):
            collected = self._run.collect(step)
            batch = collected.generated.outcome.trained
            self._updated = False
            began = state.worker_group.now()
            yield StepBatch(step, state.version, tuple([rollout.for_training() for rollout in batch]))
            if not self._updated:
                raise OppoError(
                    f"step {step} was not trained: call stream.update(weights) once for every batch"
                )
            if self._rewards is not None:
                for rollout, reward in zip(batch, self._rewards, strict=True):
                    rollout.score = reward
            stages = dict.fromkeys(TRAINING_STAGES, 0.0)
            stages["update_actor"] = state.worker_group.now() - began
            self._run.conclude(step, collected, stages)

    def update(self, weights: "Mapping[str, torch.Tensor]", rewards: Sequence[float] | None = None) -> None:
        """New weights for the replicas, by the names of ``policy.state_dict()``; ``rewards``: of the batch,
        in its order, if they are not its scores (the policy's controllers see their mean). Raises OppoError
        for a wrong number of rewards, or a second call.
        """
        if self._updated:
            raise OppoError("there is no batch to update for: call update once, inside the loop")
        batch_size = self._run.given.batch.rollout_batch_size
        if rewards is not None and len(rewards) != batch_size:
            raise OppoError(
                f"{len(rewards)} rewards for a batch of {batch_size} rollouts: give one for each, in order"
            )
        self._training.given = weights
        self._rewards = rewards
        self._updated = True

    def steps(self) -> "pd.DataFrame":
        """The step table so far, as ``oppo run`` writes it; your training counts as ``update_actor``."""
        return self._frames.steps()

    def rollouts(self) -> "pd.DataFrame":
        """The rollout table so far."""
        return self._frames.rollouts()


@contextmanager
def rollout_stream(
    scenario: Scenario | str,
    *,
    policy: str | None = None,
    steps: int | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
    prompts: Callable[[int], Sequence[int]] | None = None,
    stop_token_id: int | None = None,
) -> Iterator[RolloutStream]:
    """Engines up, rollouts ready to be iterated over; everything is freed at the end of the block.

    ``prompts`` gives the token ids of the n-th prompt (asked in order; each serves ``group_size`` rollouts);
    without it they come from the trace or the arithmetic task, as ``real.mode`` says. Raises OppoError for
    whatever cannot run, and for an asynchronous policy.
    """
    loaded = load_scenario(scenario, overrides) if isinstance(scenario, str) else scenario
    setup = build_real_setup(loaded, policy=policy, steps=steps, seed=seed)
    if setup.base.policy_factory().schedule != "synchronous":
        raise OppoError(
            f"policy '{setup.policy_name}' generates during training, which a loop of your own cannot: choose"
            " a synchronous one"
        )
    with open_run(setup, own=OwnLoop(prompts, stop_token_id)) as opened:
        yield RolloutStream(opened)
