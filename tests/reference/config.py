"""What the reference is told and what it answers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

Linear = tuple[float, float, float]
Demand = tuple[float, float]

INFERENCE_STAGES = ("old_log_prob", "ref", "values")
LATER_STAGES = ("adv", "update_critic", "update_actor")
STAGES = (*INFERENCE_STAGES, *LATER_STAGES)
GRANULARITY = {
    "sequential": "batch",
    "intra": "chunk",
    "rollout-overlap": "rollout",
    "inter": "batch",
    "oppo": "chunk",
    "partial-rollout": "batch",
    "april": "batch",
    "tail-batching": "batch",
    "oracle": "chunk",
    "one-step-off": "batch",
    "async": "rollout",
}
ASYNCHRONOUS = ("one-step-off", "async")


@dataclass(frozen=True)
class ReferenceConfig:
    """One run. Seconds, tokens and rollouts; linear costs are (fixed, per unit, per unit).

    ``policy`` decides who is in flight, selected and dropped; ``score_granularity`` always holds ("" takes
    the policy's own). So is ``stop_check``, except in ``partial-rollout`` (rounds of ``token_budget``),
    ``april`` (``token``) and ``async`` (none). Δ is ``overcommit`` for ``inter``, ``oppo`` and
    ``partial-rollout``, B for ``april``, else 0; ``delta_control`` acts on ``oppo`` alone. Empty device
    tuples mean a device for each replica, each worker and the trainer: no contention.
    """

    rollout_batch_size: int
    steps: int
    policy: str
    num_replicas: int = 1
    num_workers: int = 1
    stop_check: str = "token"
    score_granularity: str = ""
    chunk_size: int = 256
    overcommit: int = 0
    delta_control: tuple[int, int, int, int, int, bool] | None = None
    """(delta_min, delta_max, delta_inc, delta_dec, window, proportional)"""
    chunk_control: tuple[tuple[int, ...], int, int] | None = None
    """(candidates, explore_every, explore_steps)"""
    chunk_race: tuple[tuple[int, ...], int, int, int, float] | None = None
    """(candidates, explore_every, min_steps, max_steps, level)"""
    max_deferrals: int | None = None
    token_budget: int = 0
    over_issue: float = 1.25
    window: int = 4
    max_staleness: int = 0
    oldest_first: bool = True
    wait_for_due: bool = False
    """(async) nothing staler than max_staleness is trained"""
    interrupts: bool = True
    """(async) an update interrupts rollouts; else it waits until those with tokens are done"""
    group_size: int = 1
    clear_kv: bool = True
    keeps_kv: bool = True
    """KV of rounds outlasts them"""
    keep_kv_on_tool_call: bool = True
    calls: tuple[tuple[tuple[int, float, int], ...], ...] = ()
    """Calls of tools of rollout 0, 1, …, and again from the first: (response tokens before it, seconds,
    tokens of the answer)"""
    sample_rewards: tuple[float, ...] = ()
    """Of rollout 0, 1, …, and again from the first; groups without two different ones are dropped and
    replaced. Empty: no group is"""
    gen_batch_size: int | None = None
    """Rollouts generated at a time; groups are replaced by as many once all have finished, the first B that
    are kept are trained and the others dropped"""
    shares_prompts: bool = False
    """Samples of a prompt that have KV on one replica have the prompt there once"""
    together: bool = False
    """Samples of a prompt go to one replica"""
    batching: str = "continuous"
    kv_capacity_tokens: int | None = None
    kv_block_tokens: int = 1
    max_num_seqs: int | None = None
    max_scoring_tokens: int = 10**12
    scorer_kv_capacity: int | None = None
    scorer_block: int = 1
    """Of a rollout that goes on, the scorer prefills whole blocks of so many tokens"""
    scorer_cache: int | None = None
    """Blocks in which a worker keeps prefixes until newer ones need them"""
    scorer_iteration: int | None = None
    """Tokens that such a worker prefills at a time"""
    parallel_inference: bool = False
    stream_ref: bool = False
    old_log_prob: str = "recompute"
    decode: Linear = (1.0, 0.0, 0.0)
    """(fixed, per running rollout, per KV token)"""
    prefill: Linear = (0.0, 0.0, 0.0)
    """(fixed, per token, per query-key pair)"""
    score: Linear = (0.0, 0.0, 0.0)
    send_per_token: float = 0.0
    """Seconds of a token on the way from its replica to the scorer"""
    stages: Mapping[str, Linear] = field(default_factory=dict)
    update_weights: float = 0.0
    rollout_devices: tuple[str, ...] = ()
    scoring_devices: tuple[str, ...] = ()
    training_devices: tuple[str, ...] = ()
    shares_host: bool = False
    interference: float = 1.0
    slowed_by: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """By others on the same host: decoding, scoring, training"""
    turn_s: float = 0.0
    """Seconds that an iteration takes longer where kernels run in turns"""
    in_turns: bool = False
    """Kernels of two activities never run together on a device"""
    factors: Mapping[str, float] = field(default_factory=dict)
    """What device seconds are multiplied by: of decode, prefill, score, training (all its stages and
    update_weights) and of single stages; 1 where not given"""
    added: Mapping[str, float] = field(default_factory=dict)
    """Seconds of the host added to: iteration (each), rollout_iteration (each running row of it),
    score_batch, a stage, update_weights, gen_phase, reward_phase (each worker's first batch of a phase), first_step,
    other, round_fixed (at each barrier), piece_fixed (each piece of a scoring batch),
    piece_send (each on its way); 0 where not given. A device has nothing to do in them."""
    nominal: tuple[float, float] = (1.0, 1.0)
    """Tokens and pairs of the batch whose device share is that of training and of the sync."""
    demands: Mapping[str, Demand] = field(default_factory=dict)
    """(memory traffic, arithmetic) of decode, prefill, score, train, sync; (1, 1) where not given"""

    def __post_init__(self) -> None:
        problems = {
            f"unknown policy {self.policy}": self.policy not in GRANULARITY,
            "B is not a multiple of group_size": self.rollout_batch_size % self.group_size != 0,
            "static batching with a KV limit": (
                self.static and (self.kv_capacity_tokens is not None or self.max_num_seqs is not None)
            ),
            "static batching with an asynchronous policy": self.static and self.policy in ASYNCHRONOUS,
            "unknown stop_check": self.stop_check not in ("token", "chunk"),
            "unknown score_granularity": self.granularity not in ("batch", "rollout", "chunk"),
            "unknown batching": self.batching not in ("continuous", "static"),
            "unknown old_log_prob": self.old_log_prob not in ("behaviour", "recompute"),
            "partial-rollout needs a token_budget": (
                self.policy == "partial-rollout" and self.token_budget < 1
            ),
            "unknown stage": not set(self.stages) <= set(STAGES),
            "one device a replica": len(self.rollout_devices) not in (0, self.num_replicas),
            "one device a worker": len(self.scoring_devices) not in (0, self.num_workers),
        }
        for problem, holds in problems.items():
            if holds:
                raise ValueError(problem)

    @property
    def static(self) -> bool:
        return self.batching == "static"

    @property
    def granularity(self) -> str:
        return self.score_granularity or GRANULARITY[self.policy]

    @property
    def in_rounds(self) -> bool:
        if self.policy == "partial-rollout":
            return True
        return self.stop_check == "chunk" and self.policy not in ("april", "async")

    @property
    def short_step_size(self) -> int:
        """⌈η·B⌉ rounded up to whole groups (tail-batching)."""
        return whole_groups(math.ceil(round(self.over_issue * self.rollout_batch_size, 9)), self.group_size)

    def devices_of_replica(self, index: int) -> tuple[str, ...]:
        own = self.rollout_devices[index] if self.rollout_devices else f"rollout {index}"
        return (own, *self.hosts()[index : index + 1])

    def devices_of_worker(self, index: int) -> tuple[str, ...]:
        own = self.scoring_devices[index] if self.scoring_devices else f"scoring {index}"
        host = index % self.num_replicas
        return (own, *self.hosts()[host : host + 1])

    def devices_of_training(self) -> tuple[str, ...]:
        return (*(self.training_devices or ("training",)), *self.hosts())

    def hosts(self) -> tuple[str, ...]:
        """What a replica, its scoring workers and training have in common in one machine."""
        return tuple(f"host {index}" for index in range(self.num_replicas if self.shares_host else 0))

    def devices_of_sync(self) -> tuple[str, ...]:
        names = list(self.devices_of_training())
        for index in range(self.num_replicas):
            names.extend(self.devices_of_replica(index))
        return tuple(dict.fromkeys(names))

    def demand(self, kind: str, device: float = 1.0, host: float = 0.0) -> Demand:
        """Of an activity that is ``device`` seconds on the device and ``host`` seconds beside it."""
        memory, arithmetic = self.demands.get(kind, (1.0, 1.0))
        share = device / (device + host) if host else 1.0
        return memory * share, arithmetic * share

    def iteration(self, rows: int, kv_tokens: float) -> tuple[float, float]:
        """Seconds of the device and of the host."""
        host = self.added.get("iteration", 0.0) + rows * self.added.get("rollout_iteration", 0.0)
        return self.factors.get("decode", 1.0) * linear(self.decode, rows, kv_tokens), host

    def stage(self, name: str, tokens: float, pairs: float) -> tuple[float, float]:
        """Seconds of the device and of the host, of a training stage or of update_weights."""
        if name == "update_weights":
            alone = self.update_weights
        else:
            alone = linear(self.stages.get(name, (0.0, 0.0, 0.0)), tokens, pairs)
        return (
            alone * self.factors.get("training", 1.0) * self.factors.get(name, 1.0),
            self.added.get(name, 0.0),
        )

    def training_demand(self) -> Demand:
        """The device's share of the nominal batch's stages together."""
        parts = [self.stage(name, *self.nominal) for name in STAGES]
        return self.demand("train", sum(device for device, _ in parts), sum(host for _, host in parts))


def whole_groups(rollouts: int, group_size: int) -> int:
    """The least multiple of the group size that is not below ``rollouts``."""
    return -(-rollouts // group_size) * group_size


def linear(cost: Linear, first: float, second: float) -> float:
    """fixed + first·a + second·b, seconds."""
    return cost[0] + cost[1] * first + cost[2] * second


@dataclass
class Counters:
    """What is counted from a step's start to its end.

    ``kv_peak_tokens``: the largest number of tokens any one replica holds in KV: at a step's start what was
    kept; during a prefill the contexts of all running rollouts, those being written included; during an
    iteration the same plus the token each is about to write (static: rows × (padded length + tokens made +
    1)). ``kv_peak_block_tokens``: the same, each rollout rounded up to whole blocks. Pieces and batches are
    counted when a worker begins them. Padding: columns prefilled beyond the real contexts, and a row for each
    iteration after its finish.
    """

    decoded: int = 0
    prefilled: int = 0
    recomputed: int = 0
    shared: int = 0
    """Tokens that need no prefill, since another sample's KV has them"""
    padding: int = 0
    dropped_tokens: int = 0
    filtered: int = 0
    filtered_tokens: int = 0
    preemptions: int = 0
    kv_peak_tokens: int = 0
    kv_peak_block_tokens: int = 0
    pieces: int = 0
    batches: int = 0
    scored: int = 0
    """Tokens that the scorer is given, and those that it prefills once more"""
    kernel_gen: float = 0.0
    kernel_score: float = 0.0
    """Seconds of own time with a kernel on the device: decode and prefill, scoring"""


@dataclass(frozen=True)
class TrainedRollout:
    """One trained rollout; times in seconds since the run's start."""

    id: int
    prompt_length: int
    response_length: int
    staleness: int
    newest_staleness: int
    span: int
    deferrals: int
    finish_time: float
    score_time: float


@dataclass(frozen=True)
class StepRecord:
    """One training step; times in seconds, ids in order of selection (surplus: in the order in which they
    come next)."""

    step: int
    start: float
    gen: float
    reward: float
    stages: dict[str, float]
    """every training stage, ``update_weights`` and ``other``"""
    seconds: float
    trained: tuple[TrainedRollout, ...]
    deferred: tuple[int, ...]
    surplus: tuple[int, ...]
    dropped: tuple[int, ...]
    delta: int
    chunk_size: int
    counters: Counters
    busy: dict[str, float]
    """seconds of the step in which any activity ran on the device"""

    @property
    def trained_ids(self) -> tuple[int, ...]:
        return tuple(rollout.id for rollout in self.trained)


@dataclass(frozen=True)
class ReferenceResult:
    """A run: its steps, and what was in flight at its end."""

    steps: tuple[StepRecord, ...]
    admitted: int
    in_flight: tuple[int, ...]
    tokens_in_flight: int
