"""What the simulator requires of a cost model. Seconds, tokens, bytes throughout."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol


class Line(NamedTuple):
    """Seconds of a decode iteration, fixed + per_kv_token * kv_tokens, valid for kv_tokens <= kv_until."""

    fixed: float
    per_kv_token: float
    kv_until: float

    def seconds(self, kv_tokens: float) -> float:
        """Of an iteration."""
        return self.fixed + self.per_kv_token * kv_tokens


class Demand(NamedTuple):
    """Shares (0 to 1) of the achievable memory traffic and arithmetic that an activity takes alone."""

    memory: float
    arithmetic: float


NO_DEMAND = Demand(0.0, 0.0)


class Work(NamedTuple):
    """Floating-point operations and bytes of device-memory traffic."""

    flops: float
    bytes: float


class Peak(NamedTuple):
    """Datasheet rates of the devices of one engine, per second."""

    flops: float
    bytes: float


class DecodeLines(NamedTuple):
    """Decode of one batch size at any KV, as lines one after the other from no KV on; the last has no end."""

    lines: tuple[Line, ...]
    measured: tuple[float, float] | None = None
    """Lowest and highest KV tokens that were measured; None: nothing was."""
    demand_seconds: tuple[float, float, float, float] | None = None
    """Seconds of memory traffic (at no KV, a KV token) and of arithmetic (the same), whose shares of the
    iteration's seconds are its demand; None: its demand is the same in every iteration, but for ``idle``."""
    least_s: float = 0.0
    """Where something was measured: an iteration that takes no longer than this is an extrapolation to no
    time at all."""
    idle: tuple[float, Demand] | None = None
    """Seconds of every iteration in which the device does nothing, and its demand in the others."""


def demand_of_seconds(parts: tuple[float, float, float, float], kv_tokens: float, seconds: float) -> Demand:
    """Of an iteration of ``seconds``, from its ``demand_seconds``."""
    memory, per_memory, arithmetic, per_arithmetic = parts
    return Demand(
        min(1.0, (memory + per_memory * kv_tokens) / seconds),
        min(1.0, (arithmetic + per_arithmetic * kv_tokens) / seconds),
    )


class DecodeCost(Protocol):
    """Decode iterations of an engine.

    ``decode_lines(n_running) -> DecodeLines`` beside these, in the same class, makes it compiled.
    """

    def decode_time(self, n_running: int, kv_tokens: float) -> float:
        """Seconds (> 0) of an iteration of ``n_running`` >= 1 rollouts with ``kv_tokens`` before it."""

    def decode_line(self, n_running: int, kv_tokens: float) -> Line:
        """The line of ``decode_time(n_running, kv)`` for kv from ``kv_tokens`` to ``Line.kv_until``."""

    def decode_demand(self, n_running: int, kv_tokens: float) -> Demand:
        """Demand of a decode iteration on the device."""

    def decode_work(self, n_running: int, kv_tokens: float) -> Work | None:
        """Work of one decode iteration, affine in kv_tokens; None where the model does not know it."""


class PrefillCost(Protocol):
    """Forwards over new tokens: a scoring worker, or the prefill of an engine.

    ``lower_prefill(to: Lowering)`` beside these, in the same class, makes it compiled.
    """

    @property
    def peak(self) -> Peak | None:
        """Peak rates of the devices it runs on; None where the model does not know them."""

    def prefill_time(self, tokens: float, pairs: float) -> float:
        """Seconds of a forward over ``tokens`` > 0 and ``pairs`` query-key pairs, Σ (n·p + n²/2)."""

    def prefill_demand(self, tokens: float, pairs: float) -> Demand:
        """Demand of a prefill on the device."""

    def prefill_work(self, tokens: float, pairs: float) -> Work | None:
        """Work of one prefill, None where the model does not know it."""


class EngineCost(DecodeCost, PrefillCost, Protocol):
    """A replica of the actor: both."""

    def without_padding(self) -> "EngineCost":
        """The same engine with no batch padding (for the attribution of lost time)."""

    def with_host(self, factor: float) -> "EngineCost":
        """The same engine with the host's seconds of a decode iteration (an iteration's, a rollout's,
        launches) times ``factor``; itself where it does not separate them."""


@dataclass(frozen=True)
class BatchShape:
    """A trained batch, as far as training cost depends on it: one entry a rollout."""

    prompt_lengths: tuple[int, ...]
    response_lengths: tuple[int, ...]

    @cached_property
    def tokens(self) -> int:
        """Prompt and response tokens."""
        return sum(self.prompt_lengths) + sum(self.response_lengths)

    @cached_property
    def pairs(self) -> float:
        """Query-key pairs of one forward, Σ n²/2 over the rollouts."""
        both = zip(self.prompt_lengths, self.response_lengths, strict=True)
        return sum([(p + r) * (p + r) for p, r in both]) / 2.0


class StageTimes(NamedTuple):
    """Seconds of the training part of a step when nothing else runs on its devices."""

    old_log_prob: float
    ref: float
    values: float
    adv: float
    update_critic: float
    update_actor: float
    update_weights: float


class TrainingCost(Protocol):
    """The training group: everything from the end of scoring to the new weights in the rollout engine.

    ``lower_stages(to: Lowering)`` beside these, in the same class, makes it compiled.
    """

    @property
    def peak(self) -> Peak | None:
        """Peak rates of the training devices together; None where unknown."""

    @property
    def parallel_inference(self) -> bool:
        """True if old_log_prob, ref and values run beside each other (the longest counts)."""

    def stage_times(self, batch: BatchShape) -> StageTimes:
        """Seconds of each stage for a batch."""

    def demand(self) -> Demand:
        """Demand of training on each of its devices."""

    def sync_demand(self) -> Demand:
        """Demand of ``update_weights`` on each device it uses."""

    def work(self, batch: BatchShape) -> Work | None:
        """Work of the whole training part, None where unknown."""


class Phases(NamedTuple):
    """Seconds that a step spends beside what takes time by itself."""

    gen_phase_s: float = 0.0
    """Before the first iteration of a generation phase whose engine slept: waking, resharding, loading."""
    first_step_s: float = 0.0
    """Before the first iteration of a run."""
    other_s: float = 0.0
    """At the end of a step, on the trainer: data, logging, checkpoints."""
    reward_phase_s: float = 0.0
    """Before the first batch of a scoring worker since a generation phase began whose engine slept."""


NO_PHASES = Phases()


class Cuts(NamedTuple):
    """Seconds that a cut costs (docs/model.md, C21)."""

    round_fixed_s: float = 0.0
    """A round: before its barrier is left."""
    piece_fixed_s: float = 0.0
    """A piece, at its scoring worker."""
    piece_send_s: float = 0.0
    """A piece, on its way from replica to scorer."""


NO_CUTS = Cuts()


@dataclass(frozen=True)
class Costs:
    """Everything a scenario needs to know about time, and where that knowledge comes from."""

    actor: EngineCost
    """One rollout replica."""
    scorer: PrefillCost
    """One scoring worker (reward model, plus the reference model with ``stream_ref``)."""
    training: TrainingCost
    provenance: dict[str, object]
    """For the manifest: the kind of model, its parameters and how they were obtained ("measured" or "not
    measured")."""
    actor_kv_capacity_tokens: int | None = None
    """KV tokens of a replica that memory leaves, where the model knows it (``kv_capacity_tokens: auto``)."""
    contention_factor: float | None = None
    """Measured interference of activities that run together; None: not measured."""
    slowdowns: tuple[float, float] | None = None
    """Measured slow-down of decoding beside scoring, and of scoring beside decoding, with devices or cores
    apart in one machine; None: not measured apart, ``contention_factor`` says it of both."""
    time_slices: tuple[float, float] | None = None
    """Measured interference of activities that take turns, and seconds that a decode iteration takes longer
    then; None: not measured."""
    phases: Phases = NO_PHASES
    cuts: Cuts = NO_CUTS
    scoring_block_tokens: int | None = None
    """Tokens of a block of the measured scorer's KV, of which it prefills whole ones (C9b); None: not
    measured."""
    scoring_cache_tokens: int | None = None
    """KV in which one measured scoring worker keeps prefixes (C9c); None: ample, or not measured."""
    scoring_iteration_tokens: int | None = None
    """Tokens that it prefills in one iteration at most; None: a whole batch, or not measured."""
    evidence: Mapping[str, str] = field(default_factory=dict)
    """How well the seconds of each place are known (``evidence.PLACES``)."""
