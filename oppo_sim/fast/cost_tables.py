"""Cost models as tables and terms that the kernel evaluates. No number is defined here: the cost models give
them.

A *part* is one forward (the actor's prefill, each model of a scoring worker, each model of the training
group), a *stage* one training stage. Decode is a list of lines for each number of running rollouts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Final

from oppo_sim.costs.forward_terms import ForwardTerms
from oppo_sim.costs.interface import Costs, DecodeCost, DecodeLines, Demand, Peak, StageTimes
from oppo_sim.costs.lowering import NotLoweredError, StagePlan, decode_lines, lower_prefill, lower_stages
from oppo_sim.costs.profile import ForwardOnDevice, RangeCounter
from oppo_sim.fast import codes

if TYPE_CHECKING:
    import numpy as np

_TERM = 12
_UNCHANGED = {"factor": 1.0, "added_s": 0.0}
"""Of a stage: factor · seconds + added_s."""
_KEPT = 16


@dataclass(frozen=True)
class CostTables:
    """What the kernel knows of costs; fields as in ``records.STATE``, ``settings`` goes into its settings."""

    lines: "np.ndarray[Any, Any]"
    line_at: "np.ndarray[Any, Any]"
    line_range: "np.ndarray[Any, Any]"
    work: "np.ndarray[Any, Any]"
    demand: "np.ndarray[Any, Any]"
    parts: "np.ndarray[Any, Any]"
    terms: "np.ndarray[Any, Any]"
    tables: "np.ndarray[Any, Any]"
    stages: "np.ndarray[Any, Any]"
    settings: dict[str, float]


def not_covered(costs: Costs) -> str | None:
    """What has no table, as a phrase; None: everything has."""
    try:
        return _lowered(costs, False).mixed
    except NotLoweredError as error:
        return str(error)


def range_counter(costs: Costs) -> RangeCounter | None:
    """Where answers outside the measured tables are counted; None: there are no tables."""
    return next(iter(_lowered(costs, False).counters.values()), None)


def cost_tables(costs: Costs, free_padding: bool, most_running: int) -> CostTables:
    """Tables for up to ``most_running`` rollouts on a replica. The last few are kept, by the cost models'
    identity."""
    key = (id(costs), free_padding, most_running)
    if key not in _kept_tables:
        while len(_kept_tables) >= _KEPT:
            del _kept_tables[next(iter(_kept_tables))]
        # The costs are kept too, so that their id stays theirs.
        _kept_tables[key] = (costs, _cost_tables(costs, free_padding, most_running))
    return _kept_tables[key][1]


_kept_tables: dict[tuple[int, bool, int], tuple[Costs, CostTables]] = {}
_kept_lowered: "dict[tuple[int, bool], tuple[Costs, _Lowered]]" = {}


# ---- inside ------------------------------------------------------------------------------------------------


def _lowered(costs: Costs, free_padding: bool) -> "_Lowered":
    """The cost models as they say themselves; the last few are kept. Raises NotLoweredError."""
    key = (id(costs), free_padding)
    if key not in _kept_lowered:
        while len(_kept_lowered) >= _KEPT:
            del _kept_lowered[next(iter(_kept_lowered))]
        _kept_lowered[key] = (costs, _lowered_anew(costs, free_padding))
    return _kept_lowered[key][1]


def _lowered_anew(costs: Costs, free_padding: bool) -> "_Lowered":
    to = _Lowered()
    actor = costs.actor.without_padding() if free_padding else costs.actor
    to.decode = decode_lines(actor)
    to.decode(1)  # what it is made of may not say itself in numbers
    lower_prefill(actor, to)
    own = to.forwards
    to.actor_adjusted = to.take_adjusted()
    lower_prefill(costs.scorer, to)
    to.scorer_parts = to.forwards - own
    to.scorer_adjusted = to.take_adjusted()
    lower_stages(costs.training, to)
    if own != 1:
        to.mixed = "a prefill of its actor is more than one forward"
    elif to.actor_adjusted[1]:
        to.mixed = "a prefill of its actor has seconds of the host added"
    elif len(to.counters) > 1:
        to.mixed = "its tables come from more than one profile"
    elif costs.scorer.peak is not None and costs.scorer.prefill_work(1.0, 0.5) is None:
        to.mixed = "only some models of its scorer know their work"
    return to


def _cost_tables(costs: Costs, free_padding: bool, most_running: int) -> CostTables:
    to = _lowered(costs, free_padding)
    actor = costs.actor.without_padding() if free_padding else costs.actor
    lines, line_at, line_range = _decode(to.decode, most_running)
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
        "scorer_parts": to.scorer_parts,
        "has_lines_checked": to.decode(1).measured is not None,
        "relative_demand": to.decode(1).demand_seconds is not None,
        "parallel_inference": costs.training.parallel_inference,
        "prefill_factor": to.actor_adjusted[0],
        "score_factor": to.scorer_adjusted[0],
        "score_added_s": to.scorer_adjusted[1],
        **to.group,
        **peaks,
    }
    parts, terms, tables, stages = to.arrays()
    return CostTables(
        lines,
        line_at,
        line_range,
        _work(actor, most_running),
        _demand(to.decode, actor, most_running),
        parts,
        terms,
        tables,
        stages,
        settings,
    )


def _peak(name: str, peak: Peak | None) -> dict[str, float]:
    given = peak or Peak(0.0, 0.0)
    return {f"knows_{name}": peak is not None, f"{name}_flops": given.flops, f"{name}_bytes": given.bytes}


def _decode(
    lines_of: Callable[[int], DecodeLines], most: int
) -> "tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]":
    """(fixed, slope, kv_until) of all lines; the first line of each n; of each n, lowest and highest measured
    KV, ``least_s`` and the seconds of ``idle``."""
    import numpy as np

    lines: list[tuple[float, float, float]] = [(0.0, 0.0, inf)]
    line_at = np.zeros(most + 1, dtype=np.int64)
    line_range = np.zeros((most + 1, 4))
    for n in range(1, most + 1):
        found, measured, _, least, idle = lines_of(n)
        line_at[n] = len(lines)
        line_range[n] = *(measured or (0.0, 0.0)), least, idle[0] if idle else 0.0
        lines += found
    return np.array(lines, dtype=np.float64), line_at, line_range


def _work(actor: DecodeCost, most: int) -> "np.ndarray[Any, Any]":
    """As ``WorkMeter._line``: operations at no KV, a KV token, bytes at no KV, a KV token; zeros where
    unknown."""
    import numpy as np

    table = np.zeros((most + 1, 4))
    for n in range(1, most + 1):
        empty, unit = actor.decode_work(n, 0.0), actor.decode_work(n, 1.0)
        if empty is None or unit is None:
            break
        table[n] = empty.flops, unit.flops - empty.flops, empty.bytes, unit.bytes - empty.bytes
    return table


def _demand(lines_of: Callable[[int], DecodeLines], actor: DecodeCost, most: int) -> "np.ndarray[Any, Any]":
    """Memory traffic and arithmetic of an iteration, each at no KV and a KV token: seconds where demands are
    relative to the iteration's time, else shares."""
    import numpy as np

    table = np.zeros((most + 1, 4))
    for n in range(1, most + 1):
        found = lines_of(n)
        if found.demand_seconds is not None:
            table[n] = found.demand_seconds
        else:
            table[n, 0], table[n, 2] = found.idle[1] if found.idle else actor.decode_demand(n, 0.0)
    return table


class _Lowered:
    """``Lowering``: collects parts, stages, and the numbers that they point to."""

    def __init__(self) -> None:
        self.decode: Callable[[int], DecodeLines]
        self.counters: dict[int, RangeCounter] = {}
        self.group: dict[str, float] = {}
        self.mixed: str | None = None
        """Why the models do not fit together; None: they do."""
        self.scorer_parts = 0
        self.actor_adjusted = self.scorer_adjusted = self._adjusted = (1.0, 0.0)
        self._parts: list[dict[str, Any]] = []
        self._stages: list[dict[str, Any]] = []
        self._terms: list[tuple[float, ...]] = []
        self._tables: list[float] = []

    @property
    def forwards(self) -> int:
        """Parts so far."""
        return len(self._parts)

    def adjust_forwards(self, factor: float, added_s: float = 0.0) -> None:
        self._adjusted = factor * self._adjusted[0], factor * self._adjusted[1] + added_s

    def take_adjusted(self) -> tuple[float, float]:
        """Factor and seconds added of the forwards of the model that was lowered last."""
        found, self._adjusted = self._adjusted, (1.0, 0.0)
        return found

    def adjust_stages(self, factors: StageTimes, added: StageTimes) -> None:
        each = list(zip(factors, added, strict=True))
        for stage, (factor, more) in zip(self._stages, each[:-1], strict=True):
            stage["factor"] *= factor
            stage["added_s"] = stage["added_s"] * factor + more
        factor, more = each[-1]
        self.group["update_weights"] = factor * self.group["update_weights"] + more

    def arrays(self) -> "tuple[np.ndarray[Any, Any], ...]":
        """parts, terms, tables, stages."""
        import numpy as np

        from oppo_sim.fast.records import PART, STAGE

        terms = np.array(self._terms or [(0.0,) * _TERM])
        return (
            _records(self._parts, PART),
            terms,
            np.array(self._tables or [0.0]),
            _records(self._stages, STAGE),
        )

    def linear(self, demand: Demand, fixed: float, per_token: float = 0.0, per_pair: float = 0.0) -> None:
        seconds = {"fixed": fixed, "per_token": per_token, "per_pair": per_pair}
        self._parts.append({"kind": "linear", **seconds, **demand._asdict()})

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
        self.counters[id(ranges)] = ranges
        self._parts.append(
            {
                "kind": "table",
                **({} if demand is None else demand._asdict()),
                **({} if parts is None else self._groups(parts)),
                **({} if on_device is None else on_device.model_dump()),
                "range": name,
                "tokens_at": self._numbers(tokens),
                "tokens_count": len(tokens),
                "context_at": self._numbers(mean_context),
                "context_count": len(mean_context),
                "seconds_at": self._numbers([value for row in seconds for value in row]),
                "host_s": host_s,
            }
        )

    def linear_stage(self, fixed: float = 0.0, per_token: float = 0.0, per_pair: float = 0.0) -> None:
        seconds = {"fixed": fixed, "per_token": per_token, "per_pair": per_pair}
        self._stages.append({"kind": "linear", **_UNCHANGED, **seconds})

    def table_stage(self, tokens: Sequence[float], seconds: Sequence[float], ranges: RangeCounter) -> None:
        self.counters[id(ranges)] = ranges
        grid = {"grid_at": self._numbers(tokens), "grid_count": len(tokens)}
        self._stages.append({"kind": "table", **_UNCHANGED, **grid, "values_at": self._numbers(seconds)})

    def roofline_stage(self, plan: StagePlan, forward: ForwardTerms) -> None:
        part = len(self._parts)
        self._stages.append({"kind": "roofline", "part": part, **_UNCHANGED, **plan._asdict()})
        self.roofline(forward)

    def training_group(self, update_weights: float, data_parallel: int = 1, num_gpus: int = 1) -> None:
        self.group = {"update_weights": update_weights, "data_parallel": data_parallel, "gpus": num_gpus}

    def roofline(self, forward: ForwardTerms) -> None:
        self._parts.append({"kind": "roofline", **self._groups(forward)})

    def _groups(self, forward: ForwardTerms) -> dict[str, float]:
        first = len(self._terms)
        self._terms += forward.groups
        return {
            "first_term": first,
            "last_term": len(self._terms),
            "experts": forward.experts,
            "missed": forward.missed,
            "per_token": forward.collective_s_per_token,
            "latency_s": forward.latency_s,
            "least_s": forward.least_s,
            "host_s": forward.host_s,
            "devices": forward.devices,
        }

    def _numbers(self, values: Sequence[float]) -> int:
        self._tables += values
        return len(self._tables) - len(values)


_CODES: Final = {
    "linear": codes.LINEAR,
    "table": codes.TABLE,
    "roofline": codes.ROOFLINE,
    "prefill": codes.PREFILL_RANGE,
    "score": codes.SCORE_RANGE,
    "score_ref": codes.SCORE_REF_RANGE,
}


def _records(rows: list[dict[str, Any]], dtype: "np.dtype[Any]") -> "np.ndarray[Any, Any]":
    """Records of a dtype, words as the kernel's codes; fields that are not named are 0."""
    import numpy as np

    records = np.zeros(len(rows), dtype=dtype)
    for record, row in zip(records, rows, strict=True):
        for name, value in row.items():
            record[name] = _CODES[value] if isinstance(value, str) else value
    return records
