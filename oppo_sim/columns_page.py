"""What columns mean, for a frame at hand, and as the page docs/columns.md."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from oppo_sim.column_facts import Fact
from oppo_sim.columns import TABLES

if TYPE_CHECKING:
    import pandas as pd

_FIELD: Final = Fact("", "", "a field of the scenario: docs/scenarios.md")
_FAMILIES: Final = ("STAGE", "N")
"""Last parts of names that stand for several."""


def explain(columns: "pd.DataFrame | Iterable[str]") -> "pd.DataFrame":
    """Unit and meaning of every column of a frame (or of names): a frame with one row a column, empty where a
    column is none of ours.

    A name that several kinds of table have is that of the kind which has most of the given columns.
    """
    import pandas as pd

    names = [str(name) for name in columns]
    tables = sorted(TABLES, key=lambda table: -len(table.facts.keys() & set(names)))

    def fact(name: str) -> Fact:
        like = (name, *(f"{name.rpartition('/')[0]}/{last}" for last in _FAMILIES))
        known = (table.facts[each] for table in tables for each in like if each in table.facts)
        return next(known, _FIELD if "." in name else Fact(name, "", ""))

    found = [fact(name) for name in names]
    return pd.DataFrame(
        {"unit": [one.unit for one in found], "meaning": [one.meaning for one in found]},
        index=pd.Index(names, name="column"),
    )


def page() -> str:
    """The text of docs/columns.md."""
    parts = [_HEAD]
    for table in TABLES:
        rows = [f"| `{fact.column}` | {fact.unit} | {fact.meaning} |" for fact in table.facts.values()]
        parts.append(f"## {table.name}\n\n{table.where}\n\n| column | unit | meaning |\n|---|---|---|\n")
        parts.append("\n".join(rows) + "\n\n")
    return "".join(parts).rstrip("\n") + "\n"


_HEAD: Final = """# Columns of the tables

Made from `oppo_sim/columns.py` by `python -m oppo_sim.columns_page`. In Python the same is

```python
import oppo_sim

oppo_sim.explain(oppo_sim.simulate("h200-single", steps=12).steps)
```

A share is 1 for all. Names follow verl where verl has one. Intervals are of 95 %. Columns with a dot, such as
`policy.overcommit`, are fields of the scenario ([scenarios.md](scenarios.md)).

"""

if __name__ == "__main__":
    from pathlib import Path

    Path("docs/columns.md").write_text(page(), encoding="utf-8")
