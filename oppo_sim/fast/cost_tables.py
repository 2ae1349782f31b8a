"""Cost models as tables and terms that the kernel evaluates. No number is defined here: the cost models give
them.

A *part* is one forward (the actor's prefill, each model of a scoring worker, each model of the training
group), a *stage* one training stage. Decode is a list of lines for each number of running rollouts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from oppo_sim.costs.interface import Costs, EngineCost, Peak, TrainingCost
from oppo_sim.costs.linear import LinearEngine, LinearTraining
from oppo_sim.costs.operators import ForwardTerms
from oppo_sim.costs.profile_engine import ProfileEngine, ProfileTraining
from oppo_sim.costs.ranges import RangeCounter
from oppo_sim.costs.roofline_engine import RooflineEngine
from oppo_sim.costs.roofline_training import RooflineTraining
from oppo_sim.costs.scoring import SummedPrefill, VerifierScorer

if TYPE_CHECKING:
    import numpy as np

ENGINES = (LinearEngine, RooflineEngine, ProfileEngine)
SCORERS = (*ENGINES, VerifierScorer)
TRAININGS = (LinearTraining, RooflineTraining, ProfileTraining)
_TERM = 12
_KEPT = 16


@dataclass(frozen=True)
class CostTables:
    """What the kernel knows of costs; fields as in ``kernel.State``, ``settings`` goes into its settings."""

    lines: "np.ndarray[Any, Any]"
    line_at: "np.ndarray[Any, Any]"
    line_range: "np.ndarray[Any, Any]"
    work: "np.ndarray[Any, Any]"
    parts: "np.ndarray[Any, Any]"
    terms: "np.ndarray[Any, Any]"
    tables: "np.ndarray[Any, Any]"
    stages: "np.ndarray[Any, Any]"
    settings: dict[str, float]


def not_covered(costs: Costs) -> str | None:
    """A cost model that has no table, as a phrase; None: all have."""
    parts = _scorer_parts(costs.scorer)
    kinds = {type(part) for part in parts}
    known = type(costs.actor) in ENGINES and kinds <= set(SCORERS) and type(costs.training) in TRAININGS
    mixed = len(kinds - {VerifierScorer}) > 1
    if not known or mixed or len(_counters(costs)) > 1:
        return "its cost models are none of linear, roofline and profile"
    return None


def range_counter(costs: Costs) -> RangeCounter | None:
    """Where answers outside the measured tables are counted; None: there are no tables."""
    return next(iter(_counters(costs)), None)


def cost_tables(costs: Costs, free_padding: bool, most_running: int) -> CostTables:
    """Tables for up to ``most_running`` rollouts on a replica. The last few are kept, by the cost models'
    identity."""
    key = (id(costs), free_padding, most_running)
    if key not in _made:
        while len(_made) >= _KEPT:
            del _made[next(iter(_made))]
        # The costs are kept too, so that their id stays theirs.
        _made[key] = (costs, _cost_tables(costs, free_padding, most_running))
    return _made[key][1]


_made: dict[tuple[int, bool, int], tuple[Costs, CostTables]] = {}


# ---- inside ------------------------------------------------------------------------------------------------


def _counters(costs: Costs) -> list[RangeCounter]:
    models = (costs.actor, *_scorer_parts(costs.scorer), costs.training)
    return list(
        {id(m.ranges): m.ranges for m in models if isinstance(m, ProfileEngine | ProfileTraining)}.values()
    )


def _scorer_parts(scorer: EngineCost) -> tuple[EngineCost, ...]:
    return scorer.parts if isinstance(scorer, SummedPrefill) else (scorer,)


def _cost_tables(costs: Costs, free_padding: bool, most_running: int) -> CostTables:
    actor = costs.actor.without_padding() if free_padding else costs.actor
    made = _Maker()
    scorers = _scorer_parts(costs.scorer)
    made.part(actor)
    for scorer in scorers:
        made.part(scorer)
    update_weights, data_parallel, gpus = made.training(costs.training)
    lines, line_at, line_range = _decode(actor, most_running)
    peaks: dict[str, float] = {}
    # A peak belongs to the model as it is, padded or not.
    for name, peak in (
        ("actor", costs.actor.peak),
        ("scorer", costs.scorer.peak),
        ("training", costs.training.peak),
    ):
        peaks |= _peak(name, peak)
    del peaks["training_bytes"]
    settings = {
        "scorer_parts": len(scorers),
        "has_lines_checked": isinstance(actor, ProfileEngine),
        "parallel_inference": costs.training.parallel_inference,
        "update_weights": update_weights,
        "data_parallel": data_parallel,
        "gpus": gpus,
        **peaks,
    }
    parts, terms, tables, stages = made.arrays()
    return CostTables(
        lines, line_at, line_range, _work(actor, most_running), parts, terms, tables, stages, settings
    )


def _peak(name: str, peak: Peak | None) -> dict[str, float]:
    given = peak or Peak(0.0, 0.0)
    return {f"knows_{name}": peak is not None, f"{name}_flops": given.flops, f"{name}_bytes": given.bytes}


def _decode(
    actor: EngineCost, most: int
) -> "tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]":
    """(fixed, slope, kv_until) of all lines; the first line of each n; lowest and highest measured KV of each
    n."""
    import numpy as np

    lines: list[tuple[float, float, float]] = [(0.0, 0.0, inf)]
    line_at = np.zeros(most + 1, dtype=np.int64)
    line_range = np.zeros((most + 1, 2))
    for n in range(1, most + 1):
        line_at[n] = len(lines)
        if isinstance(actor, ProfileEngine):
            found = actor.lines(n)
            lines += found.lines
            line_range[n] = found.low, found.high
        else:
            lines += _walked(actor, n)
    return np.array(lines, dtype=np.float64), line_at, line_range


def _walked(actor: EngineCost, n: int) -> list[tuple[float, float, float]]:
    """All lines of ``n`` rollouts, from no KV on."""
    import numpy as np

    lines = [actor.decode_line(n, 0.0)]
    while lines[-1].kv_until != inf:
        until = max(lines[-1].kv_until, 0.0)
        lines.append(actor.decode_line(n, float(np.nextafter(until, inf))))
    return list(lines)


def _work(actor: EngineCost, most: int) -> "np.ndarray[Any, Any]":
    """As ``Replica._work_line``: operations at no KV, a KV token, bytes at no KV, a KV token; zeros where
    unknown."""
    import numpy as np

    table = np.zeros((most + 1, 4))
    for n in range(1, most + 1):
        empty, unit = actor.decode_work(n, 0.0), actor.decode_work(n, 1.0)
        if empty is None or unit is None:
            break
        table[n] = empty.flops, unit.flops - empty.flops, empty.bytes, unit.bytes - empty.bytes
    return table


class _Maker:
    """Collects parts, stages, and the numbers that they point to."""

    def __init__(self) -> None:
        self._parts: list[dict[str, float]] = []
        self._stages: list[dict[str, float]] = []
        self._terms: list[tuple[float, ...]] = []
        self._tables: list[float] = []

    def arrays(self) -> "tuple[np.ndarray[Any, Any], ...]":
        """parts, terms, tables, stages."""
        import numpy as np

        from oppo_sim.fast.kernel import PART, STAGE

        terms = np.array(self._terms or [(0.0,) * _TERM])
        return (
            _records(self._parts, PART),
            terms,
            np.array(self._tables or [0.0]),
            _records(self._stages, STAGE),
        )

    def part(self, engine: EngineCost) -> None:
        """The forward of an engine."""
        from oppo_sim.fast import kernel

        if isinstance(engine, LinearEngine):
            self._parts.append(
                {
                    "kind": kernel.LINEAR,
                    "fixed": engine.prefill_fixed,
                    "per_token": engine.prefill_per_token,
                    "per_pair": engine.prefill_per_pair,
                }
            )
        elif isinstance(engine, VerifierScorer):
            self._parts.append(
                {"kind": kernel.LINEAR, "fixed": engine.fixed_s, "per_token": engine.per_token_s}
            )
        elif isinstance(engine, RooflineEngine):
            self._forward(engine.forward_terms())
        else:
            assert isinstance(engine, ProfileEngine)
            table = engine.prefill
            places = {
                "prefill": kernel.PREFILL_RANGE,
                "score": kernel.SCORE_RANGE,
                "score_ref": kernel.SCORE_REF_RANGE,
            }
            self._parts.append(
                {
                    "kind": kernel.TABLE,
                    "range": places[engine.table],
                    "tokens_at": self._table(table.tokens),
                    "tokens_count": len(table.tokens),
                    "context_at": self._table(table.mean_context),
                    "context_count": len(table.mean_context),
                    "seconds_at": self._table([seconds for row in table.seconds for seconds in row]),
                    "host_s": engine.host_prefill,
                }
            )

    def training(self, cost: TrainingCost) -> tuple[float, int, int]:
        """The stages but ``update_weights``, whose seconds are returned, and the ranks and devices of the
        group."""
        from oppo_sim.fast import kernel

        if isinstance(cost, LinearTraining):
            for name in ("old_log_prob", "ref", "values", "adv", "update_critic", "update_actor"):
                stage = getattr(cost, name)
                self._stages.append(
                    {
                        "kind": kernel.LINEAR,
                        "fixed": stage.fixed,
                        "per_token": stage.per_token,
                        "per_pair": stage.per_pair,
                    }
                )
            return cost.update_weights, 1, 1
        if isinstance(cost, ProfileTraining):
            grid = self._table(cost.table.tokens)
            for values in cost.measured().values():
                if values is None:
                    self._stages.append({"kind": kernel.NOTHING})
                else:
                    where = {
                        "grid_at": grid,
                        "grid_count": len(cost.table.tokens),
                        "values_at": self._table(values),
                    }
                    self._stages.append({"kind": kernel.TABLE, **where})
            return cost.update_weights, 1, 1
        assert isinstance(cost, RooflineTraining)
        numbers = cost.in_numbers()
        for plan, forward in zip(numbers.plans, numbers.forwards, strict=True):
            if plan is None or forward is None:
                self._stages.append({"kind": kernel.NOTHING})
                continue
            self._stages.append({"kind": kernel.ROOFLINE, "part": len(self._parts), **plan._asdict()})
            del self._stages[-1]["model"]
            self._forward(forward)
        self._stages[3] = {
            "kind": kernel.LINEAR,
            "fixed": numbers.adv_fixed_s,
            "per_token": numbers.adv_per_token_s,
        }
        return numbers.sync_s, numbers.data_parallel, numbers.num_gpus

    def _forward(self, forward: ForwardTerms) -> None:
        from oppo_sim.fast import kernel

        first = len(self._terms)
        token, pair = forward.attention
        self._terms.append((*token, *pair, 0.0, 0.0, 0.0, 0.0))
        self._terms += [(*fixed, *per_token, *per_expert) for fixed, per_token, per_expert in forward.rows]
        experts = forward.num_experts
        self._parts.append(
            {
                "kind": kernel.ROOFLINE,
                "first_term": first,
                "terms": len(self._terms) - first,
                "experts": experts,
                "miss": 1.0 - forward.experts_per_token / experts if experts else 0.0,
                "per_token": forward.collective_s_per_token,
                "latency_s": forward.latency_s,
                "least_s": forward.least_s,
                "host_s": forward.host_s,
                "devices": forward.devices,
            }
        )

    def _table(self, values: Sequence[float]) -> int:
        self._tables += values
        return len(self._tables) - len(values)


def _records(rows: list[dict[str, float]], dtype: "np.dtype[Any]") -> "np.ndarray[Any, Any]":
    """Records of a dtype; fields that are not named are 0."""
    import numpy as np

    made = np.zeros(len(rows), dtype=dtype)
    for record, row in zip(made, rows, strict=True):
        for name, value in row.items():
            record[name] = value
    return made
