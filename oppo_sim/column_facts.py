"""What is said of a column: its unit and its meaning, beside its name (``columns.py``)."""

from typing import NamedTuple

_ROLLOUTS = "95 % of the rollouts (seeds)"


class Fact(NamedTuple):
    """One column of one table."""

    column: str
    unit: str
    """``s``, ``tokens``, ``share`` (1 is all) and the like; empty: none."""
    meaning: str


class Table:
    """The columns of one kind of table, in the order in which they are defined."""

    def __init__(self, name: str, where: str) -> None:
        self.name, self.where = name, where
        self.facts: dict[str, Fact] = {}

    def __call__(self, column: str, unit: str, meaning: str) -> str:
        """Define a column; gives its name."""
        self.facts[column] = Fact(column, unit, meaning)
        return column

    def interval(self, column: str, of: str, ends: str = _ROLLOUTS) -> tuple[str, str]:
        """Define ``column_low`` and ``column_high``, an interval of the column ``of``; ``ends`` says what it
        holds."""
        unit = self.facts[of].unit
        low = self(f"{column}_low", unit, f"of {of}: lower end, {ends}")
        return low, self(f"{column}_high", unit, f"of {of}: upper end, {ends}")
