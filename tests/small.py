"""A run in memory, without files: what most tests of the model need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from oppo_sim.costs.interface import Costs
from oppo_sim.costs.linear import LinearEngine, LinearStage, LinearTraining
from oppo_sim.model.counterfactual import UNCHANGED, Counterfactual
from oppo_sim.model.run import ModelInput, run_model
from oppo_sim.model.setup import MachineSetup
from oppo_sim.policies import Batch, Policy
from oppo_sim.policies.registry import make_policy
from oppo_sim.results.sinks import FrameSink
from oppo_sim.results.spans import Marker, Span
from oppo_sim.rewards import BatchRewards, NoRewards, RewardConfig, SeriesRewards
from oppo_sim.turns import ToolWait


@dataclass(frozen=True)
class Lengths:
    """Rows replayed in order, cyclically."""

    prompt_lengths: list[int]
    response_lengths: list[int]

    @property
    def clipped(self) -> list[bool]:
        return [False] * len(self.response_lengths)

    def mean_response_length(self, step: int) -> float:
        return sum(self.response_lengths) / len(self.response_lengths)

    def draw(self, rollout_id: int, step: int) -> int:
        return rollout_id % len(self.response_lengths)


def linear_costs(
    decode: tuple[float, float, float] = (1.0, 0.0, 0.0),
    prefill: tuple[float, float, float] = (0.0, 0.0, 0.0),
    score: tuple[float, float, float] = (0.0, 0.0, 0.0),
    stages: dict[str, tuple[float, float, float]] | None = None,
    update_weights: float = 0.0,
    parallel_inference: bool = False,
    demands: dict[str, tuple[float, float]] | None = None,
) -> Costs:
    """(fixed, per rollout, per KV token) for decode; (fixed, per token, per pair) for the rest."""
    from oppo_sim.costs.interface import Demand

    shares = {
        "decode": (1.0, 0.0),
        "prefill": (0.0, 1.0),
        "score": (0.0, 1.0),
        "train": (0.0, 1.0),
        "sync": (1.0, 0.0),
    } | (demands or {})
    given = stages or {}

    def stage(name: str) -> LinearStage:
        return LinearStage(*given.get(name, (0.0, 0.0, 0.0)))

    actor = LinearEngine(*decode, *prefill, Demand(*shares["decode"]), Demand(*shares["prefill"]))
    scorer = LinearEngine(1.0, 0.0, 0.0, *score, prefill_demand_shares=Demand(*shares["score"]))
    training = LinearTraining(
        stage("old_log_prob"),
        stage("ref"),
        stage("values"),
        stage("adv"),
        stage("update_critic"),
        stage("update_actor"),
        update_weights,
        parallel_inference,
        Demand(*shares["train"]),
        Demand(*shares["sync"]),
    )
    return Costs(actor, scorer, training, {"kind": "linear"})


@dataclass
class Result:
    steps: pd.DataFrame
    rollouts: pd.DataFrame
    spans: list[Span]
    markers: list[Marker]
    policy: Policy = field(repr=False)

    def column(self, name: str) -> list[Any]:
        return list(self.steps[name])

    def trained(self) -> list[list[int]]:
        """Ids trained in each step, in order of selection."""
        ordered = self.rollouts.sort_values(["trained_step", "trained_rank"])
        return [list(group["rollout_id"]) for _, group in ordered.groupby("trained_step")]


def run(
    policy: str | Policy,
    responses: list[int],
    *,
    steps: int,
    batch: int,
    prompts: list[int] | int = 0,
    group_size: int = 1,
    settings: dict[str, Any] | None = None,
    machine: MachineSetup | None = None,
    costs: Costs | None = None,
    rewards: RewardConfig | list[float] | None = None,
    counterfactual: Counterfactual = UNCHANGED,
    timeline: tuple[int, int] | None = None,
    recorded_timing: list[dict[str, float]] | None = None,
    waits: list[tuple[ToolWait, ...]] | None = None,
    sample_rewards: Sequence[float] | None = None,
    gen_batch_size: int | None = None,
) -> Result:
    """Simulate ``steps`` steps of B = ``batch``."""
    rows = Lengths([prompts] * len(responses) if isinstance(prompts, int) else prompts, responses)
    shape = Batch(batch, group_size)
    made = make_policy(policy, shape, settings or {}) if isinstance(policy, str) else policy
    config: RewardConfig = (
        SeriesRewards(values=tuple(rewards)) if isinstance(rewards, list) else rewards or NoRewards()
    )
    sink = FrameSink()
    inputs = ModelInput(
        machine or MachineSetup(),
        costs or linear_costs(),
        made,
        shape,
        rows,
        rows,
        BatchRewards(config, 0, None),
        steps,
        counterfactual,
        timeline,
        recorded_timing,
        waits,
        sample_rewards,
        gen_batch_size,
    )
    spans, markers = run_model(inputs, sink)
    return Result(sink.steps(), sink.rollouts(), spans, markers, made)
