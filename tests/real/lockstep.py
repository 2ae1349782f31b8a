"""Lock-step equality, for any engine: a test gives a function that makes actors and scorers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
import torch

from oppo_real.engines.interface import Actor, Sampling, Scorer
from oppo_real.engines.models import build_causal_lm, build_reward_model
from oppo_real.engines.torch_actor import ActorLimits, TorchActor
from oppo_real.engines.torch_scorer import TorchScorer
from oppo_real.placement.inline import InlineWorkerGroup
from oppo_real.run.inputs import RunInput
from oppo_real.run.plant import make_plant
from oppo_real.run.source import ReplaySource
from oppo_sim import columns as c
from oppo_sim.draws import draw_index, stream_key
from oppo_sim.model.setup import MachineSetup
from oppo_sim.policies.interface import Batch
from oppo_sim.policies.registry import make_policy
from oppo_sim.results.sinks import FrameSink
from oppo_sim.rewards import BatchRewards, SeriesRewards
from oppo_sim.schedule.rules import streams_pieces
from oppo_sim.turns import ToolWait
from tests.small import Lengths, linear_costs, run

VOCABULARY = 32
MODEL = {
    "model_type": "qwen2", "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 256, "initializer_range": 0.3,
}  # fmt: skip
LONGEST = 40
Engines = Callable[[MachineSetup], tuple[list[Actor], list[Scorer]]]


@dataclass(frozen=True)
class LockstepCase:
    """One policy on one trace."""

    name: str
    policy: str
    settings: dict[str, Any] = field(default_factory=dict)
    machine: MachineSetup = MachineSetup()  # noqa: RUF009 (frozen)
    batch: int = 4
    group_size: int = 1
    steps: int = 8
    scoring: tuple[float, float] = (0.0, 0.0)
    """What a scoring batch costs, and what a token of it: iterations."""
    tools: bool = False
    """Rollouts wait for tools."""
    filters: bool = False
    """Groups with equal rewards are dropped and replaced."""
    long_prompts: bool = False
    """Of some blocks, and of one length in a group of two."""


TWO = MachineSetup(num_replicas=2, num_workers=2, max_scoring_tokens=20)
FIXED = {"overcommit": 2, "chunk_size": 6}
CONTROLLED = {
    "overcommit": {"control": "reward_slope", "initial": 1, "min": 0, "max": 3, "window": 2},
    "chunk_size": {"control": "explore", "candidates": [3, 7], "explore_every": 4},
}
RACED = {
    "overcommit": 2,
    "chunk_size": {
        "control": "race",
        "candidates": [3, 7],
        "explore_every": 8,
        "min_steps": 2,
        "max_steps": 3,
    },
}
ASYNC_MODES: dict[str, dict[str, Any]] = {
    "order of scores": {"max_staleness": 2, "train_order": "scored"},
    "waits": {
        "max_staleness": 1,
        "max_staleness_strategy": "wait",
        "score_granularity": "chunk",
        "chunk_size": 5,
    },
    "uninterrupted": {
        "max_staleness": 2,
        "partial_rollout": False,
        "score_granularity": "chunk",
        "chunk_size": 5,
    },
    "uninterrupted, waits": {"max_staleness": 2, "max_staleness_strategy": "wait", "partial_rollout": False},
}
LOCKSTEP_CASES = [
    LockstepCase("sequential", "sequential"),
    LockstepCase("sequential, two replicas", "sequential", machine=TWO),
    LockstepCase("intra", "intra", {"chunk_size": 5}, TWO),
    LockstepCase("inter", "inter", {"overcommit": 3}, TWO),
    LockstepCase("oppo", "oppo", {"overcommit": 2, "chunk_size": 4}),
    LockstepCase("oppo, controlled", "oppo", CONTROLLED, TWO, steps=12),
    LockstepCase("oppo, raced", "oppo", RACED, TWO, steps=12),
    LockstepCase("oppo, KV kept", "oppo", FIXED, MachineSetup(num_replicas=2, clear_kv_cache_on_weight_sync=False)),
    LockstepCase("oppo, little KV", "oppo", {"overcommit": 4, "chunk_size": 6}, MachineSetup(kv_capacity_tokens=96, kv_block_tokens=4)),
    LockstepCase("oppo, few sequences", "oppo", {"overcommit": 2, "chunk_size": 6}, MachineSetup(num_replicas=2, max_num_seqs=2)),
    LockstepCase("oppo, scorer's KV", "oppo", FIXED, MachineSetup(num_workers=2, scorer_kv_capacity_tokens=30)),
    LockstepCase("oppo, rounds", "oppo", {"overcommit": 2, "chunk_size": 6, "stop_check": "chunk"}, TWO),
    LockstepCase("oppo, waits", "oppo", {"overcommit": 3, "chunk_size": 6, "max_deferrals": 1}, TWO),
    LockstepCase("oppo, groups", "oppo", {"overcommit": 2, "chunk_size": 6}, TWO, group_size=2),
    LockstepCase("oppo, groups together", "oppo", {"overcommit": 3, "chunk_size": 6}, MachineSetup(num_replicas=2, num_workers=2, groups_together=True), batch=6, group_size=3),
    LockstepCase("tail-batching, groups together", "tail-batching", {"over_issue": 1.5}, MachineSetup(num_replicas=2, groups_together=True), group_size=2),
    LockstepCase("rollout-overlap", "rollout-overlap", {}, TWO),
    LockstepCase("partial-rollout", "partial-rollout", {"token_budget": 9}, TWO),
    LockstepCase("april", "april", {}, TWO),
    LockstepCase("tail-batching", "tail-batching", {"over_issue": 1.5, "score_granularity": "chunk", "chunk_size": 4}, TWO),
    LockstepCase("oracle", "oracle", {"window": 3, "chunk_size": 5}, TWO),
    LockstepCase("one-step-off", "one-step-off", {}, TWO),
    LockstepCase("async", "async", {"max_staleness": 1, "score_granularity": "chunk", "chunk_size": 5}, TWO),
    LockstepCase("async, batch scoring", "async", {"max_staleness": 2, "score_granularity": "batch"}, TWO),
    *(LockstepCase(f"async, {name}", "async", settings, TWO, group_size=2) for name, settings in ASYNC_MODES.items()),
]  # fmt: skip

GAVE_UP = MachineSetup(num_replicas=2, num_workers=2, max_scoring_tokens=20, clear_kv_cache_on_tool_call=True)
TOOL_CASES = [
    LockstepCase("sequential", "sequential", machine=TWO, tools=True),
    LockstepCase("sequential, KV given up", "sequential", machine=GAVE_UP, tools=True),
    LockstepCase("intra", "intra", {"chunk_size": 5}, tools=True),
    LockstepCase("inter", "inter", {"overcommit": 3}, TWO, tools=True, steps=12),
    LockstepCase("oppo", "oppo", {"overcommit": 2, "chunk_size": 4}, TWO, tools=True, steps=12),
    LockstepCase("oppo, controlled", "oppo", CONTROLLED, TWO, steps=12, tools=True),
    LockstepCase("oppo, KV given up", "oppo", FIXED, GAVE_UP, tools=True),
    LockstepCase("oppo, KV kept", "oppo", FIXED, MachineSetup(num_replicas=2, clear_kv_cache_on_weight_sync=False), tools=True),
    LockstepCase("oppo, little KV", "oppo", {"overcommit": 4, "chunk_size": 6}, MachineSetup(kv_capacity_tokens=96, kv_block_tokens=4), tools=True),
    LockstepCase("oppo, few sequences", "oppo", {"overcommit": 2, "chunk_size": 6}, MachineSetup(num_replicas=2, max_num_seqs=2), tools=True),
    LockstepCase("oppo, rounds", "oppo", {"overcommit": 2, "chunk_size": 6, "stop_check": "chunk"}, TWO, tools=True),
    LockstepCase("sequential, rounds", "intra", {"chunk_size": 3, "stop_check": "chunk"}, TWO, batch=2, tools=True, steps=16),
    LockstepCase("partial-rollout", "partial-rollout", {"token_budget": 9}, TWO, tools=True),
    LockstepCase("oppo, waits", "oppo", {"overcommit": 3, "chunk_size": 6, "max_deferrals": 1}, TWO, tools=True),
    LockstepCase("oppo, groups", "oppo", {"overcommit": 2, "chunk_size": 6}, TWO, group_size=2, tools=True),
    LockstepCase("april", "april", {}, TWO, tools=True),
    LockstepCase("rollout-overlap", "rollout-overlap", {}, TWO, tools=True),
    LockstepCase("tail-batching", "tail-batching", {"over_issue": 1.5, "score_granularity": "chunk", "chunk_size": 4}, TWO, tools=True, steps=12),
    LockstepCase("oracle", "oracle", {"window": 3, "chunk_size": 5}, TWO, tools=True),
    LockstepCase("one-step-off", "one-step-off", {}, TWO, tools=True),
    LockstepCase("async", "async", {"max_staleness": 1, "score_granularity": "chunk", "chunk_size": 5}, TWO, tools=True),
    *(LockstepCase(f"async, {name}", "async", settings, TWO, group_size=2, tools=True) for name, settings in ASYNC_MODES.items()),
]  # fmt: skip
"""Some tools answer between two iterations, so that a replica that had nothing to do decodes out of step."""

PAIRS: dict[str, Any] = {"machine": TWO, "group_size": 2, "filters": True}
FILTER_CASES = [
    LockstepCase("sequential", "sequential", **PAIRS),
    LockstepCase("oppo", "oppo", {"overcommit": 2, "chunk_size": 4}, **PAIRS),
    LockstepCase("oppo, controlled", "oppo", CONTROLLED, **PAIRS, steps=12),
    LockstepCase("oppo, rounds", "oppo", {"overcommit": 2, "chunk_size": 6, "stop_check": "chunk"}, **PAIRS),
    LockstepCase("oppo, waits", "oppo", {"overcommit": 4, "chunk_size": 6, "max_deferrals": 1}, **PAIRS),
    LockstepCase("oppo, tools", "oppo", {"overcommit": 2, "chunk_size": 4}, **PAIRS, tools=True),
    LockstepCase("oppo, tools, pieces take time", "oppo", {"overcommit": 2, "chunk_size": 4}, **PAIRS, tools=True, scoring=(1.0, 0.5)),
    LockstepCase("rollout-overlap", "rollout-overlap", {}, **PAIRS),
    LockstepCase("april", "april", {}, **PAIRS),
    LockstepCase("tail-batching", "tail-batching", {"over_issue": 1.5, "score_granularity": "chunk", "chunk_size": 4}, **PAIRS, steps=12),
    LockstepCase("one-step-off", "one-step-off", {}, **PAIRS),
    LockstepCase("async", "async", {"max_staleness": 1, "score_granularity": "chunk", "chunk_size": 5}, **PAIRS),
    LockstepCase("async, uninterrupted", "async", ASYNC_MODES["uninterrupted"], **PAIRS, scoring=(1.0, 0.5)),
]  # fmt: skip

SHARED = MachineSetup(num_workers=2, kv_block_tokens=32, shares_prefixes=True)
PREFIX_CASES = [
    LockstepCase("sequential, shared prompts", "sequential", machine=SHARED, group_size=2, long_prompts=True),
    LockstepCase("sequential, shared prompts, tools", "sequential", machine=SHARED, group_size=2, long_prompts=True, tools=True),
    LockstepCase("oppo, shared prompts", "oppo", FIXED, replace(SHARED, num_replicas=2, groups_together=True), group_size=2, long_prompts=True),
]  # fmt: skip
"""For engines that share prompts."""

COSTLY = (1.0, 0.5)
COSTLY_CASES = [
    LockstepCase("intra", "intra", {"chunk_size": 5}, TWO, scoring=COSTLY),
    LockstepCase("oppo", "oppo", FIXED, TWO, scoring=COSTLY),
    LockstepCase("oppo, slow scorer", "oppo", FIXED, TWO, scoring=(2.0, 1.0)),
    LockstepCase("oppo, three workers", "oppo", FIXED, MachineSetup(num_replicas=2, num_workers=3), scoring=(0.0, 1.0)),
    LockstepCase("oppo, scorer's KV", "oppo", FIXED, MachineSetup(num_workers=2, scorer_kv_capacity_tokens=30), scoring=COSTLY),
    LockstepCase("oppo, rounds", "oppo", {"overcommit": 2, "chunk_size": 6, "stop_check": "chunk"}, TWO, scoring=COSTLY),
    LockstepCase("rollout-overlap", "rollout-overlap", {}, TWO, scoring=COSTLY),
    LockstepCase("tail-batching", "tail-batching", {"over_issue": 1.5, "score_granularity": "chunk", "chunk_size": 4}, TWO, steps=12, scoring=(0.0, 1.0)),
    LockstepCase("tail-batching, drops in service", "tail-batching", {"over_issue": 2.0, "score_granularity": "chunk", "chunk_size": 2}, MachineSetup(num_replicas=2, num_workers=3, max_scoring_tokens=60), steps=12, scoring=(0.0, 0.5)),
    LockstepCase("tail-batching, rollouts", "tail-batching", {"over_issue": 1.5, "score_granularity": "rollout"}, TWO, steps=12, scoring=(2.0, 1.0)),
    LockstepCase("one-step-off", "one-step-off", {}, TWO, scoring=COSTLY),
    LockstepCase("async", "async", {"max_staleness": 1, "score_granularity": "chunk", "chunk_size": 5}, TWO, scoring=COSTLY),
    LockstepCase("async, batch scoring", "async", {"max_staleness": 2, "score_granularity": "batch"}, TWO, scoring=COSTLY),
    *(LockstepCase(f"async, {name}", "async", settings, TWO, steps=12, scoring=COSTLY) for name, settings in ASYNC_MODES.items()),
]  # fmt: skip
"""Pieces take time here, so that the load of a worker decides where the next rollout goes."""
COSTLY_TOOL_CASES = [
    replace(case, tools=True)
    for case in COSTLY_CASES
    if case.name
    in {"intra", "oppo, rounds", "tail-batching, drops in service", "one-step-off", "async, uninterrupted"}
]

ALIKE = (
    c.STEP, c.WEIGHT_VERSION, c.START_S, *(c.timing(stage) for stage in (*c.STAGES, "step")),
    c.LENGTH_MEAN, c.LENGTH_MAX, c.PROMPT_LENGTH_MEAN,
    c.ROLLOUTS_ADMITTED, c.ROLLOUTS_DEFERRED, c.ROLLOUTS_SURPLUS, c.ROLLOUTS_DROPPED, c.ROLLOUTS_FILTERED, c.TOKENS_FILTERED, c.PARTIAL_RATIO, c.STALENESS_MEAN, c.STALENESS_MAX,
    *c.HISTOGRAMS, c.STALENESS_NEWEST_MEAN, c.STALENESS_NEWEST_MAX, c.SPANS_MEAN, c.SPANS_MAX, c.OVERCOMMIT, c.CHUNK_SIZE, c.REWARD_MEAN, c.TOKENS_DECODED, c.TOKENS_TRAINED,
    c.TOKENS_PREFILLED, c.TOKENS_RECOMPUTED, c.TOKENS_PREFIX_CACHED, c.TOKENS_DROPPED, c.TOKENS_IN_FLIGHT, c.SCORER_PIECES, c.BUSY_ROLLOUT, c.KV_PREEMPTIONS,
)  # fmt: skip
"""Columns in which simulator and real run agree; batches of the scorer, at no cost, are a matter of order
inside an instant."""


class UntrainedWeights:
    """Training that changes nothing and takes no time."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}

    def update(self, batch: Any, version: int) -> dict[str, float]:
        return {}

    def weights(self) -> dict[str, torch.Tensor]:
        return self._weights


def torch_engines(machine: MachineSetup) -> tuple[list[Actor], list[Scorer]]:
    """Random weights on the CPU."""
    limits = ActorLimits(
        machine.kv_capacity_tokens,
        machine.kv_block_tokens,
        machine.max_num_seqs,
        keep_kv_on_tool_call=not machine.clear_kv_cache_on_tool_call,
    )
    actors: list[Actor] = [
        TorchActor(build_causal_lm(MODEL), Sampling(), limits) for _ in range(machine.num_replicas)
    ]
    scorers: list[Scorer] = [TorchScorer(build_reward_model(MODEL)) for _ in range(machine.num_workers)]
    return actors, scorers


def lengths(long_prompts: bool = False) -> Lengths:
    """A small trace with a tail."""
    key = stream_key(0, "lockstep")
    tail = [(draw_index(key, 1000 + i, 4) == 0) * draw_index(key, 2000 + i, LONGEST - 12) for i in range(57)]
    responses = [1 + draw_index(key, i, 12) + tail[i] for i in range(57)]
    prompts = [1 + draw_index(key, 3000 + i, 9) for i in range(57)]
    if long_prompts:
        prompts = [24 + 9 * prompts[row // 2] for row in range(57)]
    return Lengths(prompts, responses)


def waits() -> list[tuple[ToolWait, ...]]:
    """Of the rows of ``lengths``: none, one or two calls, of some iterations or parts of one, one of none."""
    key = stream_key(0, "lockstep tools")
    made = []
    for row, length in enumerate(lengths().response_lengths):
        calls = min(draw_index(key, row, 3), length - 1)
        ends = sorted({1 + draw_index(key, 100 * (call + 1) + row, length - 1) for call in range(calls)})
        seconds = [draw_index(key, 1000 * (call + 1) + row, 60) / 4 for call in range(len(ends))]
        tokens = [draw_index(key, 9000 * (call + 1) + row, 7) for call in range(len(ends))]
        made.append(tuple(ToolWait(*wait) for wait in zip(ends, seconds, tokens, strict=True)))
    return made


def sample_rewards() -> list[float]:
    """Of the rows of ``lengths``: a bit more than half of the groups of two differ in nothing."""
    key = stream_key(0, "lockstep rewards")
    return [float(draw_index(key, row, 10) < 7) for row in range(57)]


def rewards() -> list[float]:
    """Up, down and level."""
    return [0.1, 0.3, 0.2, 0.2, 0.5, 0.4, 0.4, 0.6, 0.7, 0.6, 0.9, 0.8]


@dataclass
class RealResult:
    """Tables of a real run."""

    steps: pd.DataFrame
    rollouts: pd.DataFrame


def run_real(case: LockstepCase, engines: Engines, model: torch.nn.Module | None = None) -> RealResult:
    """The case over engines in this process; ``model``: the actors', if it is not MODEL."""
    torch.set_num_threads(1)
    shape = Batch(case.batch, case.group_size)
    policy = make_policy(case.policy, shape, case.settings)
    rows = lengths(case.long_prompts)
    source = ReplaySource(
        rows,
        rows,
        vocab_size=VOCABULARY,
        seed=0,
        group_size=case.group_size,
        waits=waits() if case.tools else None,
    )
    actors, scorers = engines(case.machine)
    worker_group = InlineWorkerGroup(
        actors,
        scorers,
        stream=streams_pieces(policy, case.machine.streamable),
        max_scoring_tokens=case.machine.max_scoring_tokens,
        lock_step=True,
        scoring_time=lambda tokens: case.scoring[0] + case.scoring[1] * tokens,
    )
    reward_model = BatchRewards(SeriesRewards(values=tuple(rewards())), 0, None)
    inputs = RunInput(
        policy,
        shape,
        case.machine,
        worker_group,
        source,
        UntrainedWeights(model or build_causal_lm(MODEL)),
        reward_model,
        LONGEST + 12 * case.tools,
        case.steps,
        lock_step=True,
        replays=True,
        sample_rewards=sample_rewards() if case.filters else None,
    )
    sink = FrameSink()
    make_plant(inputs, sink).run()
    worker_group.close()
    return RealResult(sink.steps(), sink.rollouts())


def assert_same_decisions(
    case: LockstepCase,
    engines: Engines,
    model: torch.nn.Module | None = None,
    but: Sequence[str] = (),
) -> None:
    """Same rollouts in the same steps and order, and the same rows (columns of ``but`` apart), as the
    simulator at one second an iteration and no other cost but that of scoring."""
    real = run_real(case, engines, model)
    rows = lengths(case.long_prompts)
    simulated = run(
        case.policy,
        rows.response_lengths,
        steps=case.steps,
        batch=case.batch,
        prompts=rows.prompt_lengths,
        group_size=case.group_size,
        settings=case.settings,
        machine=case.machine,
        costs=linear_costs(score=(*case.scoring, 0.0)),
        rewards=rewards(),
        waits=waits() if case.tools else None,
        sample_rewards=sample_rewards() if case.filters else None,
    )
    if case.filters:
        assert sum(simulated.column(c.ROLLOUTS_FILTERED)) > 0
    # An engine tells how often it preempted, not whom.
    pd.testing.assert_frame_equal(
        real.rollouts.drop(columns=c.PREEMPTIONS), simulated.rollouts.drop(columns=c.PREEMPTIONS)
    )
    alike = [*ALIKE]
    if any(case.scoring) and simulated.policy.schedule == "synchronous":
        alike.append(c.SCORER_BATCHES)
    back_and_stopped = case.tools and simulated.policy.schedule == "async"
    if back_and_stopped or (simulated.steps[c.TIMING_STEP] == 0).any():
        # A row of no seconds, since training takes none here and the next batch is scored, or an answer in the
        # instant of an update: the simulator prefills in that instant, an engine with its next iteration.
        alike = [name for name in alike if name not in (c.TOKENS_PREFILLED, c.TOKENS_RECOMPUTED)]
    alike = [name for name in alike if name not in but]
    pd.testing.assert_frame_equal(real.steps[alike], simulated.steps[alike])
