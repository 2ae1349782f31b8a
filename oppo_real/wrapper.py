"""For a PPO loop of your own: an iterator that hands out finished, scored rollouts and takes new weights back
(docs/real.md)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oppo_real.ppo.rollout import TrainRollout
from oppo_real.run.inputs import RunInput
from oppo_real.run.opened import OwnLoop, open_run
from oppo_real.run.plant import make_plant
from oppo_real.run.setup import build_real_setup
from oppo_real.run.signals import CallerSignal
from oppo_sim.columns import RolloutRow, timing
from oppo_sim.errors import OppoError
from oppo_sim.results.sinks import FrameSink, Sinks
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


class OwnTraining:
    """Weights as the caller gave them last."""

    def __init__(self, weights: "Mapping[str, torch.Tensor]") -> None:
        self.latest = weights

    def update(self, batch: Sequence[TrainRollout], version: int) -> Mapping[str, float]:
        """Done by the caller."""
        raise AssertionError("the caller trains")

    def weights(self) -> "Mapping[str, torch.Tensor]":
        return self.latest


class RolloutStream:
    """Iterate over it; call ``update`` once in each round."""

    def __init__(self, inputs: RunInput, training: OwnTraining, policy: "torch.nn.Module") -> None:
        """``inputs``: with ``training`` and ``own_loop``. ``rollout_stream`` makes them from a scenario."""
        self.policy = policy
        """The model that the replicas started from; train it, or one of your own with the same weights by
        name."""
        self.row: Mapping[str, Any] = {}
        """Of the last step, as in the step table."""
        self._frames = FrameSink()
        self._training = training
        self._plant = make_plant(inputs, Sinks(self._frames, self))
        self._run = self._plant.drive()
        self._batch: CallerSignal | None = None
        """Handed out and not trained yet."""
        self._began = 0.0
        self._step = 0

    @property
    def in_flight(self) -> int:
        """Rollouts admitted and neither trained nor dropped."""
        return self._plant.scheduler.ledger.in_flight

    def __iter__(self) -> Iterator[StepBatch]:
        """One batch a step. Raises OppoError where a round ended without ``update``, and for a worker that
        fails."""
        while (batch := self.next_batch()) is not None:
            yield batch
            if self._batch is not None:
                raise OppoError(
                    f"step {batch.step} was not trained: call stream.update(weights) once for every batch"
                )

    def begin(self) -> None:
        """Begin a step whose rollouts the caller makes himself (a worker group that tells nothing of its
        own)."""
        next(self._run)

    def next_batch(self) -> StepBatch | None:
        """The batch to train, waiting for it; None after the last."""
        self._batch = next(self._run, None)
        if self._batch is None:
            return None
        plant = self._plant
        self._began = plant.now()
        rollouts = tuple([rollout.for_training() for rollout in plant.batch])
        step = self._step
        self._step += 1
        return StepBatch(step, plant.scheduler.version, rollouts)

    def update(
        self,
        weights: "Mapping[str, torch.Tensor]",
        rewards: Sequence[float] | None = None,
        timing_s: Mapping[str, float] | None = None,
    ) -> None:
        """New weights for the replicas, by the names of ``policy.state_dict()``; ``rewards``: of the batch,
        in its order, if they are not its scores (the policy's controllers see their mean); ``timing_s``:
        seconds of the stages of your training that you measured, the rest is ``update_actor``. Ends the step.

        Raises OppoError for a wrong number of rewards, a second call, and a worker that fails.
        """
        if self._batch is None:
            raise OppoError("there is no batch to update for: call update once, inside the loop")
        batch = self._plant.batch
        if rewards is not None:
            if len(rewards) != len(batch):
                raise OppoError(
                    f"{len(rewards)} rewards for a batch of {len(batch)} rollouts: give one for each, in"
                    " order"
                )
            for rollout, reward in zip(batch, rewards, strict=True):
                rollout.score = reward
        self._training.latest = weights
        trained, self._batch = self._batch, None
        stages = dict(timing_s or {})
        stages["update_actor"] = max(0.0, self._plant.now() - self._began - sum(stages.values()))
        trained.succeed({timing(stage): seconds for stage, seconds in stages.items()})
        next(self._run)

    def on_step(self, row: Mapping[str, Any]) -> None:
        """Takes the row of each step."""
        self.row = row

    def on_rollouts(self, rows: Sequence[RolloutRow]) -> None:
        """Takes the rows of its rollouts."""

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
    setup = build_real_setup(loaded, policy=policy, steps=steps, seed=seed, own_prompts=prompts is not None)
    if setup.base.policy_factory().schedule != "synchronous":
        raise OppoError(
            f"policy '{setup.policy_name}' generates during training, which a loop of your own cannot: choose"
            " a synchronous one"
        )
    with open_run(setup, own=OwnLoop(prompts, stop_token_id)) as opened:
        training = OwnTraining(opened.training.weights())
        yield RolloutStream(opened.inputs(training=training), training, opened.policy_model)
