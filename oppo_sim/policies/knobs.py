"""A knob: a setting, or another field of a scenario, and the values that a search may give it."""

import json
import math
from dataclasses import dataclass
from typing import Any, Literal

from oppo_sim.errors import OppoError

Kind = Literal["int", "float", "choice"]


@dataclass(frozen=True)
class Knob:
    """A field and the values that it may take."""

    field: str
    """A policy's own setting by its name (``chunk_size``); in a search dotted, as in a scenario
    (``policy.chunk_size``, ``rollout.num_replicas``)."""
    kind: Kind
    low: float = 0
    high: float = 0
    """Inclusive."""
    log: bool = False
    step: int = 1
    """Of whole numbers, from ``low`` on."""
    choices: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        if self.kind == "choice":
            if not self.choices:
                raise OppoError(f"{self.field} has no values to choose from: name at least one")
        elif self.low > self.high:
            raise OppoError(
                f"the range of {self.field} begins at {self.low:g}, above its end {self.high:g}: swap them"
            )
        elif self.log and self.low <= 0:
            raise OppoError(
                f"the range of {self.field} is logarithmic and begins at {self.low:g}: begin above 0, or"
                " leave out :log"
            )

    @property
    def size(self) -> float:
        """How many values; infinite for a real number."""
        if self.kind == "choice":
            return len(self.choices)
        if self.kind == "float":
            return math.inf if self.high > self.low else 1
        return (int(self.high) - int(self.low)) // self.step + 1

    def nearest(self, value: float) -> Any:
        """The value of a range that is nearest to a number."""
        held = min(max(value, self.low), self.high)
        if self.kind == "float":
            return float(held)
        last = int(self.low) + (int(self.size) - 1) * self.step
        return min(int(self.low) + round((held - self.low) / self.step) * self.step, last)

    def grid(self, count: int, around: Any) -> list[Any]:
        """About ``count`` values over the whole range and the neighbours of ``around``, which is among them;
        all of a small range."""
        if self.kind == "choice":
            return list(self.choices)
        if self.size <= count:
            return (
                [self.nearest(self.low + i * self.step) for i in range(int(self.size))]
                if self.kind == "int"
                else [around]
            )
        values = {self.nearest(self._between(i / (count - 1))) for i in range(count)} | {around}
        place = self._share(around)
        values |= {
            self.nearest(self._between(min(1.0, max(0.0, place + side * 0.5 / (count - 1)))))
            for side in (-1, 1)
        }
        return sorted(values)

    def moved(self, value: Any, share: float) -> Any:
        """The value so far along the range (−1 to 1) from another, held at its ends; a choice moves to a
        neighbouring one, and around."""
        if self.kind == "choice":
            place = next(
                (i for i, choice in enumerate(self.choices) if json.dumps(choice) == json.dumps(value)), 0
            )
            step = max(1, round(abs(share) * (len(self.choices) - 1)))
            return self.choices[(place + (step if share > 0 else -step)) % len(self.choices)]
        moved = self.nearest(self._between(min(1.0, max(0.0, self._share(value) + share))))
        if moved == value and self.kind == "int":
            return self.nearest(value + (self.step if share > 0 else -self.step))
        return moved

    def _between(self, share: float) -> float:
        if self.log:
            return math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        return self.low + share * (self.high - self.low)

    def _share(self, value: float) -> float:
        if self.high == self.low:
            return 0.0
        if self.log:
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)

    def described(self) -> dict[str, Any]:
        """For the record of a search."""
        if self.kind == "choice":
            return {"field": self.field, "choices": list(self.choices)}
        low, high = (int(self.low), int(self.high)) if self.kind == "int" else (self.low, self.high)
        return {
            "field": self.field,
            "low": low,
            "high": high,
            "log": self.log,
            **({"step": self.step} if self.step > 1 else {}),
        }
