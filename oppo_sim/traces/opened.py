"""A trace that was opened, and what is known of it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oppo_sim.columns import RESPONSE_LENGTH
from oppo_sim.traces.catalog import CatalogEntry

if TYPE_CHECKING:
    import pandas as pd

    from oppo_sim.notebook_figure import Figure


@dataclass(frozen=True, repr=False)
class OpenedTrace:
    """A trace and what is known of it."""

    title: str
    frame: "pd.DataFrame"
    entry: CatalogEntry | None
    """Provenance, for a shipped trace."""

    def __repr__(self) -> str:
        lengths = self.frame[RESPONSE_LENGTH]
        return (
            f"OpenedTrace({self.title}, {len(lengths):,} responses of {lengths.mean():,.0f} tokens, the"
            f" longest {lengths.max():,})"
        )

    def _repr_html_(self) -> str:
        return self.frame.to_html(max_rows=20)

    def plot(self) -> "Figure":
        """Lengths, their tail, and their drift over the steps, as ``oppo trace show --plot`` draws them."""
        from oppo_sim.traces.figure import trace_figure
        from oppo_sim.traces.stats import trace_stats

        return trace_figure(self.frame, trace_stats(self.frame), self.title)
