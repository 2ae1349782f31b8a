"""Any cost models under ``CostTerms``. Their work stays what it was; seconds of the host take no share of a
device."""

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from functools import cached_property

from oppo_sim.costs import formulas
from oppo_sim.costs.context import StagesRun
from oppo_sim.costs.interface import (
    BatchShape,
    Costs,
    Cuts,
    DecodeLines,
    Demand,
    EngineCost,
    Line,
    Peak,
    Phases,
    PrefillCost,
    StageTimes,
    TrainingCost,
    Work,
    demand_of_seconds,
)
from oppo_sim.costs.lowering import Lowering, NotLoweredError, decode_lines, lower_prefill, lower_stages
from oppo_sim.costs.terms import NO_TERMS, CostTerms

_Four = tuple[float, float, float, float]
_ENGINE = ("decode", "host", "prefill", "iteration_s", "rollout_iteration_s")
_SCORER = ("score", "score_batch_s")
_STAGES = StageTimes._fields
_TRAINING = ("training", *_STAGES, *(f"{stage}_s" for stage in _STAGES))


def adjusted(costs: Costs, terms: CostTerms, run: StagesRun, nominal: BatchShape) -> Costs:
    """Costs under ``terms``; models whose terms are at their default are left as they are.

    ``run``: the stages that seconds are added to; ``nominal``: the batch for which the training group's
    demand is meant.
    """
    if terms == NO_TERMS:
        return costs
    changed = terms.changed()
    engine, scorer, training = costs.actor, costs.scorer, costs.training
    if changed.keys() & set(_ENGINE):
        engine = AdjustedEngine(engine, terms)
    if changed.keys() & set(_SCORER):
        scorer = AdjustedScorer(scorer, terms.score, terms.score_batch_s)
    if changed.keys() & set(_TRAINING):
        training = _adjusted_training(training, terms, run, nominal)
    return replace(
        costs,
        actor=engine,
        scorer=scorer,
        training=training,
        phases=Phases(**{name: getattr(terms, name) for name in Phases._fields}),
        cuts=Cuts(*(before + getattr(terms, name) for name, before in costs.cuts._asdict().items())),
        provenance={**costs.provenance, "terms": changed},
    )


@dataclass(frozen=True)
class AdjustedEngine:
    """A replica: decode · device + host · the host's seconds + iteration_s + rollout_iteration_s · n seconds
    an iteration, and prefills times a factor."""

    engine: EngineCost
    terms: CostTerms
    _found: dict[int, DecodeLines] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def peak(self) -> Peak | None:
        return self.engine.peak

    @cached_property
    def _hosted(self) -> EngineCost:
        """Its iterations times ``decode`` are those wanted, but for the seconds added: the engine itself puts
        its host and its device together."""
        decode, host = self.terms.decode, self.terms.host
        return self.engine if host == decode else self.engine.with_host(host / decode)

    def _added(self, n_running: int) -> float:
        return self.terms.iteration_s + self.terms.rollout_iteration_s * n_running

    def decode_time(self, n_running: int, kv_tokens: float) -> float:
        return self.decode_line(n_running, kv_tokens).seconds(kv_tokens)

    def decode_line(self, n_running: int, kv_tokens: float) -> Line:
        line = self._hosted.decode_line(n_running, kv_tokens)
        return _adjusted_line(line, self.terms.decode, self._added(n_running))

    def decode_demand(self, n_running: int, kv_tokens: float) -> Demand:
        """The same traffic and arithmetic, at a rate lower by ``decode``, over the seconds that it takes
        now."""
        decode = self.terms.decode
        try:
            lines, _, demand_seconds, _, idle = self.decode_lines(n_running)
        except NotLoweredError:
            demand = self.engine.decode_demand(n_running, kv_tokens)
            before = decode * self.engine.decode_time(n_running, kv_tokens)
            return _shared(demand, before, self.decode_time(n_running, kv_tokens))
        line = lines[bisect_left([each.kv_until for each in lines], kv_tokens)]
        seconds = line.seconds(kv_tokens)
        if demand_seconds is None:
            assert idle is not None
            return _shared(idle[1], seconds - idle[0], seconds)
        return demand_of_seconds(demand_seconds, kv_tokens, seconds)

    def decode_work(self, n_running: int, kv_tokens: float) -> Work | None:
        return self.engine.decode_work(n_running, kv_tokens)

    def prefill_time(self, tokens: float, pairs: float) -> float:
        return self.terms.prefill * self.engine.prefill_time(tokens, pairs)

    def prefill_demand(self, tokens: float, pairs: float) -> Demand:
        return self.engine.prefill_demand(tokens, pairs)

    def prefill_work(self, tokens: float, pairs: float) -> Work | None:
        return self.engine.prefill_work(tokens, pairs)

    def without_padding(self) -> "AdjustedEngine":
        return AdjustedEngine(self.engine.without_padding(), self.terms)

    def with_host(self, factor: float) -> "AdjustedEngine":
        return AdjustedEngine(self.engine, self.terms.then(CostTerms(host=factor)))

    def decode_lines(self, n_running: int) -> DecodeLines:
        found = self._found.get(n_running)
        if found is None:
            decode, added = self.terms.decode, self._added(n_running)
            before = decode_lines(self.engine)(n_running)
            lines, measured, demand_seconds, least, _ = decode_lines(self._hosted)(n_running)
            # Where the demand is one share of every iteration, what the host has more of them is the same at
            # any KV.
            more = decode * (lines[0].fixed - before.lines[0].fixed) + added
            demand = self.engine.decode_demand(n_running, 0.0)
            found = self._found[n_running] = DecodeLines(
                tuple(_adjusted_line(line, decode, added) for line in lines),
                measured,
                demand_seconds and _four_times(demand_seconds, decode),
                decode * least + added,
                None if demand_seconds else (more, demand),
            )
        return found

    def lower_prefill(self, to: Lowering) -> None:
        lower_prefill(self.engine, to)
        to.adjust_forwards(self.terms.prefill)


@dataclass(frozen=True)
class AdjustedScorer:
    """A scoring worker: factor · forward + added_s seconds a batch."""

    scorer: PrefillCost
    factor: float
    added_s: float
    _last: dict[tuple[float, float], float] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def peak(self) -> Peak | None:
        return self.scorer.peak

    def prefill_time(self, tokens: float, pairs: float) -> float:
        forward = self.factor * self.scorer.prefill_time(tokens, pairs)
        self._last.clear()
        self._last[tokens, pairs] = forward
        return forward + self.added_s

    def prefill_demand(self, tokens: float, pairs: float) -> Demand:
        if (tokens, pairs) not in self._last:  # time and demand of a batch are queried in turn
            self.prefill_time(tokens, pairs)
        forward = self._last[tokens, pairs]
        return _shared(self.scorer.prefill_demand(tokens, pairs), forward, forward + self.added_s)

    def prefill_work(self, tokens: float, pairs: float) -> Work | None:
        return self.scorer.prefill_work(tokens, pairs)

    def lower_prefill(self, to: Lowering) -> None:
        lower_prefill(self.scorer, to)
        to.adjust_forwards(self.factor, self.added_s)


@dataclass(frozen=True)
class AdjustedTraining:
    """The training group: factor · seconds + seconds added, by stage."""

    training: TrainingCost
    factors: StageTimes
    added: StageTimes
    nominal: BatchShape
    """The batch for which the demands are meant."""

    @property
    def peak(self) -> Peak | None:
        return self.training.peak

    @property
    def parallel_inference(self) -> bool:
        return self.training.parallel_inference

    def stage_times(self, batch: BatchShape) -> StageTimes:
        return _stage_times(self.training.stage_times(batch), self.factors, self.added)

    def demand(self) -> Demand:
        """Mean over the stages of the nominal batch."""
        return _times(self.training.demand(), self._device_shares[0])

    def sync_demand(self) -> Demand:
        return _times(self.training.sync_demand(), self._device_shares[1])

    @cached_property
    def _device_shares(self) -> tuple[float, float]:
        """Of the stages' seconds, and of the weight sync's, those that were not added."""
        if not any(self.added):
            return 1.0, 1.0
        seconds = self.stage_times(self.nominal)
        stages, added = formulas.added(seconds[:-1]), formulas.added(self.added[:-1])
        return _ratio(stages - added, stages), _ratio(seconds[-1] - self.added[-1], seconds[-1])

    def work(self, batch: BatchShape) -> Work | None:
        return self.training.work(batch)

    def lower_stages(self, to: Lowering) -> None:
        lower_stages(self.training, to)
        to.adjust_stages(self.factors, self.added)


def _adjusted_training(
    training: TrainingCost, terms: CostTerms, run: StagesRun, nominal: BatchShape
) -> AdjustedTraining:
    factors = StageTimes._make(terms.training * getattr(terms, stage) for stage in _STAGES)
    runs = run._asdict()
    added = StageTimes._make(
        getattr(terms, f"{stage}_s") if runs.get(stage, True) else 0.0 for stage in _STAGES
    )
    return AdjustedTraining(training, factors, added, nominal)


def _stage_times(seconds: StageTimes, factors: StageTimes, added: StageTimes) -> StageTimes:
    each = zip(seconds, factors, added, strict=True)
    return StageTimes._make(factor * alone + more for alone, factor, more in each)


def _adjusted_line(line: Line, factor: float, added: float) -> Line:
    return Line(factor * line.fixed + added, factor * line.per_kv_token, line.kv_until)


def _four_times(seconds: _Four, factor: float) -> _Four:
    return seconds[0] * factor, seconds[1] * factor, seconds[2] * factor, seconds[3] * factor


def _shared(demand: Demand, device: float, seconds: float) -> Demand:
    """A demand over ``device`` seconds as one over all ``seconds``."""
    return _times(demand, _ratio(device, seconds))


def _times(demand: Demand, factor: float) -> Demand:
    return Demand(min(1.0, demand.memory * factor), min(1.0, demand.arithmetic * factor))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 1.0
