"""Where the best point lies at an edge of what was searched: which edge, why if it is known, what widens
it."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from pydantic import BaseModel

from oppo_sim.policies.interface import Batch
from oppo_sim.policies.refill import overcommit_rollouts
from oppo_sim.report.labels import OVERCOMMIT, SHORT_DIGITS, value_label
from oppo_sim.scenario.aliases import ALIASES
from oppo_sim.scenario.build import cost_context
from oppo_sim.scenario.cluster import AUTO, SPLIT_NAMES, Split
from oppo_sim.scenario.schema import Scenario

Side = Literal["lowest", "highest"]

CHUNK: Final = "policy.chunk_size"
STALENESS: Final = "policy.max_staleness"
_LOWEST: Final[Mapping[str, float]] = {
    CHUNK: 1,
    "policy.token_budget": 1,
    OVERCOMMIT: 0,
    STALENESS: 0,
    "policy.max_deferrals": 0,
    "policy.over_issue": 1,
    "rollout.num_replicas": 1,
    "scoring.num_workers": 1,
}
"""Below these there is nothing."""
_PARTS: Final = {
    "rollout_gpus": "GPUs that generate",
    "tensor_parallel": "GPUs a replica",
    "scoring": "GPUs that score",
    "training": "GPUs that train",
}
"""Of a split."""
_LIKE_CHUNKS: Final = (CHUNK, "policy.token_budget")
_MACHINES: Final = ("rollout.num_replicas", "scoring.num_workers")
_STALE: Final = (OVERCOMMIT, STALENESS, "policy.over_issue", "policy.max_deferrals")


class Interval(NamedTuple):
    """A range that values were drawn from."""

    low: float
    high: float
    log: bool = False
    whole: bool = False


class Searched(NamedTuple):
    """What was searched of a field."""

    values: Sequence[Any]
    """Those that ran, in any order: numbers, or splits under ``cluster.split``."""
    drawn: Interval | None = None
    """Where they come from; None: they are a list."""
    refused: Mapping[Any, str] = {}
    """Values that could not run with the best ones of all other fields → why."""


def into_another(command: str, folder: Path | None) -> str:
    """A command that searches beyond an edge, with a folder beside the given one, which may not take its
    results; as it is where none was given."""
    if not command or folder is None:
        return command
    named = folder if folder.name.strip(".") else folder.resolve()
    return f"{command} -o {shlex.quote(str(named.with_name(f'{named.name}-wider')))}"


@dataclass(frozen=True)
class Edge:
    """A field whose best value has no neighbour on one side."""

    field: str
    value: Any
    what: str
    """What is lowest or highest: the value of the field, or a part of a split."""
    side: Side
    limit: bool
    """There is nothing beyond it to search."""
    why: str
    """Empty: it is not known."""
    values: str
    """Of the field, as an option takes them, wider than before; empty: it cannot be widened."""

    def sentence(self, command: str = "") -> str:
        """``command`` searches the wider range."""
        end = f"the {self.side} {'there is' if self.limit else 'searched'}"
        why = f": {self.why}" if self.why else ""
        widen = f"; search beyond it: {command}" if command and self.values else ""
        return f"best at an edge: {self.what} is {end}{why}{widen}"


def edge_sentences(found: Sequence[Edge], command: str) -> list[str]:
    """One for each; ``command`` searches beyond all that can be widened, and is given once."""
    told, sentences = False, []
    for edge in found:
        again = "; the same command searches beyond it" if told and edge.values else ""
        sentences.append(edge.sentence("" if told else command) + again)
        told = told or bool(command and edge.values)
    return sentences


def edge_records(found: Sequence[Edge], command: str) -> list[dict[str, Any]]:
    """For JSON."""
    return [
        {**asdict(edge), "command": command if edge.values else "", "sentence": sentence}
        for edge, sentence in zip(found, edge_sentences(found, command), strict=True)
    ]


def edges(
    scenario: Scenario,
    searched: Mapping[str, Searched],
    best: Mapping[str, Any],
    *,
    auto: bool = False,
    by_reward: bool = False,
) -> list[Edge]:
    """The edges at which a best point lies.

    Args:
        scenario: the best point's own.
        searched: what was searched, by field.
        best: field → its value at the best point.
        auto: all splits that can run were searched.
        by_reward: best is the shortest time to the target reward.
    """
    found: list[Edge] = []
    for field, given in searched.items():
        value = best.get(field)
        if field in SPLIT_NAMES:
            found += _split_edges(field, [str(one) for one in given.values], str(value), auto)
        elif (edge := _number_edge(scenario, field, given, value, by_reward)) is not None:
            found.append(edge)
    return found


# ---- inside ------------------------------------------------------------------------------------------------


def _number_edge(scenario: Scenario, name: str, given: Searched, value: Any, by_reward: bool) -> Edge | None:
    alias = ALIASES.get(name)
    field = alias.target if alias is not None and alias.convert is None else name
    shares = _are_shares(field, given.values)

    def amount_of(one: Any) -> float | None:
        return _amount(scenario, "" if shares else field, one)

    here = amount_of(value)
    order = sorted({amount for one in given.values if (amount := amount_of(one)) is not None})
    if here is None or len(order) < 2 or here not in (order[0], order[-1]):
        return None
    side: Side = "lowest" if here == order[0] else "highest"
    if side == "highest" and None in given.values:  # no bound at all is beyond every number
        return None
    what = f"{name} {value_label(value, SHORT_DIGITS)}"
    for other, reason in given.refused.items():
        amount = amount_of(other)
        if amount is not None and (amount < here if side == "lowest" else amount > here):
            return Edge(name, value, what, side, False, f"{other} could not run ({reason})", "")
    bounds = _allowed(scenario, field)
    if shares:
        bounds = bounds[0], 1.0
    limit = here <= bounds[0] if side == "lowest" else here >= bounds[1]
    size = scenario.group_size if field == OVERCOMMIT and not shares else 1
    reach = max(bounds[0], 0.0), bounds[1]
    wider = "" if limit else _wider(order, side, given.drawn, reach, size, shares=shares)
    return Edge(name, value, what, side, limit, _why(scenario, field, side, limit, by_reward), wider)


def _are_shares(field: str, values: Sequence[Any]) -> bool:
    """Overcommit as shares of the batch throughout."""
    numbers = [one for one in values if isinstance(one, int | float)]
    return field == OVERCOMMIT and bool(numbers) and all(isinstance(one, float) for one in numbers)


def _amount(scenario: Scenario, field: str, value: Any) -> float | None:
    """The number that a value is; of overcommit its rollouts, since 1 is a rollout and 1.0 a batch."""
    number = value.item() if hasattr(value, "item") else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        return None
    if field == OVERCOMMIT:
        batch = Batch(scenario.rollout_batch_size, scenario.group_size)
        return float(overcommit_rollouts(number, batch))
    return float(number)


def _allowed(scenario: Scenario, field: str) -> tuple[float, float]:
    """The least and the most that a field may be."""
    if field in _LIKE_CHUNKS:
        return _LOWEST[field], float(scenario.max_response_length)
    low, high = _stated(scenario, field)
    return max(low, _LOWEST.get(field, -math.inf)), high


def _stated(scenario: Scenario, field: str) -> tuple[float, float]:
    """The bounds that belong to a field's values in the schema of its section, infinite where it has none."""
    *sections, name = field.split(".")
    section: Any = scenario
    for each in sections:
        section = getattr(section, each, None)
    if not isinstance(section, BaseModel) or name not in type(section).model_fields:
        return -math.inf, math.inf
    stated = type(section).model_json_schema()["properties"].get(name, {})
    kinds = [kind for kind in (stated, *stated.get("anyOf", ())) if kind.get("type") in ("integer", "number")]
    return (
        max((float(kind["minimum"]) for kind in kinds if "minimum" in kind), default=-math.inf),
        min((float(kind["maximum"]) for kind in kinds if "maximum" in kind), default=math.inf),
    )


def _wider(
    order: Sequence[float],
    side: Side,
    drawn: Interval | None,
    bounds: tuple[float, float],
    size: int,
    *,
    shares: bool,
) -> str:
    """The values with two further ones within the ``bounds``, in the way in which they go on; of an interval,
    a wider one. Whole numbers are multiples of ``size``; of ``shares`` none is written as one."""
    if drawn is not None:
        low, high, length = drawn.low, drawn.high, drawn.high - drawn.low
        if side == "lowest":
            low = max(low / 4 if drawn.log else low - length / 2, bounds[0])
        else:
            high = min(high * 4 if drawn.log else high + length / 2, bounds[1])
        ends = "..".join(
            f"{math.ceil(one)}" if drawn.whole else _real(one, shares=shares) for one in (low, high)
        )
        return ends + (":log" if drawn.log else "")
    low, high = order[0], order[-1]
    geometric = len(order) > 2 and low > 0 and math.isclose(order[1] / low, order[2] / order[1], rel_tol=0.05)
    geometric = geometric or (len(order) == 2 and low > 0 and order[1] >= 2 * low)
    if geometric:
        by = order[1] / low
        more = [low / by**2, low / by] if side == "lowest" else [high * by, high * by**2]
    else:
        by = order[1] - low if side == "lowest" else high - order[-2]
        more = [low - 2 * by, low - by] if side == "lowest" else [high + by, high + 2 * by]
    whole = not shares and all(one == int(one) for one in order)
    held = [min(max(one, bounds[0]), bounds[1]) for one in more]
    values = sorted({float(size * round(one / size)) if whole else one for one in (*held, *order)})
    return ",".join(
        f"{int(one)}" if whole else _real(one, shares=shares, exact=one in order) for one in values
    )


def _real(value: float, *, shares: bool, exact: bool = False) -> str:
    """Six digits, or all of them; a share with a point, since 1 is a rollout and 1.0 the batch."""
    rounded = value if exact else float(f"{value:.6g}")
    return f"{int(rounded)}" if rounded.is_integer() and not shares else repr(rounded)


def _why(scenario: Scenario, field: str, side: Side, limit: bool, by_reward: bool) -> str:
    if field in _LIKE_CHUNKS:
        if limit and side == "highest":
            return "no response is longer, so nothing is cut"
        if side == "highest":
            return "smaller pieces or rounds cost more here than they hide"
        cuts = scenario.costs.costs(cost_context(scenario), scenario.base_dir).cuts
        free = [name for name, seconds in cuts._asdict().items() if seconds == 0.0]
        if field == CHUNK and "piece_fixed_s" in free:
            return (
                "a cut costs no seconds of its own in this scenario (costs.terms.piece_fixed_s,"
                " round_fixed_s; 'oppo calibrate' measures them)"
            )
        return "smaller pieces or rounds hide more here than they cost"
    if field in _STALE and side == "highest":
        return (
            "it saves more seconds than its staleness costs"
            if by_reward
            else "staleness costs no seconds; --objective time_to_reward counts what it costs in reward"
        )
    if field in _STALE:
        if by_reward:
            return "more of it costs more in reward than it saves in seconds"
        return (
            "nothing is gained by it on this machine" if limit else "more of it gains nothing on this machine"
        )
    if field in _MACHINES and side == "highest":
        return (
            "more of them take fewer seconds, whatever they cost; tokens a second a GPU says what each does"
        )
    if field in _MACHINES:
        return "one is the least" if limit else "more of them take no fewer seconds on this machine"
    return ""


def _split_edges(field: str, texts: Sequence[str], best: str, auto: bool) -> list[Edge]:
    here, others = Split.parse(best), [Split.parse(text) for text in texts]
    values = "" if auto else AUTO
    every = "every split that can run was searched" if auto else ""
    found: list[Edge] = []
    for name in _PARTS:
        sizes = sorted({size for one in others if isinstance(size := getattr(one, name), int)})
        own = getattr(here, name)
        if not isinstance(own, int) or len(sizes) < 2 or own not in (sizes[0], sizes[-1]):
            continue
        side: Side = "lowest" if own == sizes[0] else "highest"
        limit = (side == "lowest" and own == 1) or (side == "highest" and own == here.num_gpus)
        least = "one GPU is the least" if own == 1 else "all GPUs"
        what, wider = f"{_PARTS[name]} {own}", "" if limit else values
        found.append(Edge(field, best, what, side, limit, least if limit else every, wider))
    return found
