"""What a cost model gives the compiled path instead of being called: its forwards and stages as numbers."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from oppo_sim.costs.forward_terms import ForwardTerms
from oppo_sim.costs.interface import DecodeLines, Demand, StageTimes
from oppo_sim.costs.profile import ForwardOnDevice, RangeCounter


class StagePlan(NamedTuple):
    """What a stage runs of a model, in numbers that no batch changes. Tokens and seconds of one device.

    seconds = steps · ((count · longest_stage + filling) · micro + reduction_s + optimizer_s) + offload_s,
    where a rank's share of a mini-batch is run in ``count`` micro-batches of max(passes · slowest · forward /
    speed, beside_s) + overhead_s seconds each (``formulas.slowest_rank``).
    """

    micro_batch: int
    micro_batch_rollouts: float = 0.0
    """Not 0: a micro-batch is so many rollouts, whatever their tokens."""
    padded_tokens: float = 0.0
    """Not 0: every rollout runs as so many tokens, with padding; attention is of its own."""
    spread: float = 0.0
    """Standard deviations of a micro-batch's tokens by which the longest of the ranks that wait for each
    other is above the mean."""
    pipeline: float = 1.0
    """Stages that a micro-batch goes through, …"""
    longest_stage: float = 1.0
    """… the part of its seconds that the busiest takes, …"""
    filling: float = 0.0
    """… and the part that passes while the pipeline fills and drains."""
    mini_batches: int = 1
    steps: int = 1
    """Mini-batches of all epochs."""
    passes: float = 1.0
    """Forwards that a micro-batch costs (a backward is two)."""
    speed: float = 1.0
    beside_s: float = 0.0
    """Of a micro-batch, beside its arithmetic."""
    overhead_s: float = 0.0
    reduction_s: float = 0.0
    optimizer_s: float = 0.0
    optimizer_bytes: float = 0.0
    offload_s: float = 0.0


class Lowering(Protocol):
    """The three forms of a forward and of a training stage that the kernel evaluates. Seconds, tokens,
    query-key pairs.

    A ``PrefillCost`` names its forwards (one after the other), a ``TrainingCost`` one stage each of
    ``StageTimes`` in their order, without ``update_weights``, and its ``training_group``.
    """

    def linear(self, demand: Demand, fixed: float, per_token: float = 0.0, per_pair: float = 0.0) -> None:
        """A forward of fixed + per_token·tokens + per_pair·pairs seconds, of one demand."""

    def table(
        self,
        demand: Demand | None,
        name: str,
        tokens: Sequence[float],
        mean_context: Sequence[float],
        seconds: Sequence[Sequence[float]],
        host_s: float,
        ranges: RangeCounter,
        parts: ForwardTerms | None = None,
        on_device: ForwardOnDevice | None = None,
    ) -> None:
        """A forward of seconds[tokens][pairs/tokens], bilinear, and ``host_s``; questions outside are counted
        by ``ranges`` under ``name`` (prefill, score, score_ref).

        Its demand is ``demand`` (of ``on_device`` seconds, where these are known) and its work unknown, or
        both come from ``parts``, and its ``least_s``.
        """

    def roofline(self, forward: ForwardTerms) -> None:
        """A forward of operator groups."""

    def linear_stage(self, fixed: float = 0.0, per_token: float = 0.0, per_pair: float = 0.0) -> None:
        """A stage of fixed + per_token·tokens + per_pair·pairs seconds of the batch."""

    def table_stage(self, tokens: Sequence[float], seconds: Sequence[float], ranges: RangeCounter) -> None:
        """A stage by the tokens of the batch, linear between them."""

    def roofline_stage(self, plan: StagePlan, forward: ForwardTerms) -> None:
        """A stage of micro-batches, each a ``forward``."""

    def training_group(self, update_weights: float, data_parallel: int = 1, num_gpus: int = 1) -> None:
        """Seconds of a weight sync, data-parallel ranks and devices of the training group."""

    def adjust_forwards(self, factor: float, added_s: float = 0.0) -> None:
        """The forwards of a model, one after the other, take factor · seconds + added_s; in those added the
        device does nothing."""

    def adjust_stages(self, factors: StageTimes, added: StageTimes) -> None:
        """Every stage, and the weight sync, takes factor · seconds + seconds added."""


class NotLoweredError(Exception):
    """A cost model does not say itself in numbers; the text says which and what it lacks."""


def lower_prefill(model: Any, to: Lowering) -> None:
    """The forwards of a ``PrefillCost``. Raises NotLoweredError."""
    _own(model, "lower_prefill", ("prefill_time", "prefill_demand", "prefill_work"))(to)


def lower_stages(model: Any, to: Lowering) -> None:
    """The stages of a ``TrainingCost``. Raises NotLoweredError."""
    _own(model, "lower_stages", ("stage_times", "demand", "sync_demand", "work"))(to)


def decode_lines(model: Any) -> Callable[[int], DecodeLines]:
    """``decode_lines`` of a ``DecodeCost``. Raises NotLoweredError."""
    answers = ("decode_time", "decode_line", "decode_demand", "decode_work")
    found: Callable[[int], DecodeLines] = _own(model, "decode_lines", answers)
    return found


def _own(model: Any, method: str, answers: Sequence[str]) -> Callable[..., Any]:
    """The method, if the class that has it is the one that answers: a subclass that answers otherwise has
    not said so in numbers."""
    kind = type(model)
    where = [next((each for each in kind.__mro__ if name in vars(each)), None) for name in (method, *answers)]
    if where[0] is None or any(other is not None and where[0] is not other for other in where):
        raise NotLoweredError(f"cost model {kind.__name__} has no {method}() of its own")
    bound: Callable[..., Any] = getattr(model, method)
    return bound
