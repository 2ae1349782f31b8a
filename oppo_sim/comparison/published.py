"""A comparison held against the speed-ups that somebody published of the same set-up."""

from dataclasses import asdict, dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from oppo_sim import columns as c
from oppo_sim.scenario.schema import Published

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Held:
    """A published speed-up beside the range of the comparison."""

    policy: str
    published: float
    low: float
    high: float

    @property
    def place(self) -> str:
        """``inside`` the range, ``above`` or ``below`` it."""
        if self.low <= self.published <= self.high:
            return "inside"
        return "above" if self.published > self.high else "below"


def held_against(published: Published | None, table: "pd.DataFrame") -> tuple[Held, ...]:
    """The published speed-ups of the policies in ``table`` whose speed-up has an interval: that of rollouts
    and machine, else that of the rollouts alone."""
    both = c.SPEEDUP_BOTH_LOW in table.columns
    low, high = (c.SPEEDUP_BOTH_LOW, c.SPEEDUP_BOTH_HIGH) if both else (c.SPEEDUP_LOW, c.SPEEDUP_HIGH)
    rows = table.to_dict(orient="index")
    held = (
        Held(policy, value, float(rows[policy][low]), float(rows[policy][high]))
        for policy, value in ({} if published is None else published.speedups).items()
        if policy in rows
    )
    return tuple(one for one in held if isfinite(one.low) and isfinite(one.high))


def published_record(published: Published | None, table: "pd.DataFrame") -> dict[str, Any]:
    """For JSON and manifests, with a ``sentence``; empty where nothing is published of what was compared."""
    held = held_against(published, table)
    if published is None or not held:
        return {}
    inside = [f"{one.policy} {one.published:g}×" for one in held if one.place == "inside"]
    outside = [
        f"{one.policy} {one.published:g}× is {one.place} its range" for one in held if one.place != "inside"
    ]
    words = "; ".join(
        [
            *([f"inside the ranges {', '.join(inside)}"] if inside else []),
            *([", ".join(outside)] if outside else []),
        ]
    )
    return {
        "source": published.source,
        "speedups": [{**asdict(one), "place": one.place} for one in held],
        "sentence": f"published ({published.source}): {words}",
    }
