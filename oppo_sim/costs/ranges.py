"""Questions to a measured table outside what was measured: warned about once a table, and counted."""

import warnings
from dataclasses import dataclass, field


class ProfileRangeWarning(UserWarning):
    """A profile was asked outside its measured range and answered by linear extrapolation."""


@dataclass
class RangeCounter:
    """Extrapolated answers by table."""

    counts: dict[str, int] = field(default_factory=dict, compare=False)

    def note(self, table: str, asked: str) -> None:
        """Count one; the first of a table warns, saying what was ``asked``."""
        before = self.counts.get(table, 0)
        self.counts[table] = before + 1
        if not before:
            message = (
                f"cost profile: {table} asked at {asked}, outside the measured range; extrapolated linearly"
                " (counted, said once)"
            )
            warnings.warn(message, ProfileRangeWarning, stacklevel=4)
