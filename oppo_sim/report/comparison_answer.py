"""What a comparison of policies found, read from its folder, and in sentences."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.finished_run import FinishedRun
from oppo_sim.policies.registry import BASELINE
from oppo_sim.report.html_parts import joined, times_faster
from oppo_sim.report.labels import (
    ATTRIBUTION,
    capital,
    counted,
    format_percent,
    format_seconds,
    measured_label,
    other_lengths,
    significant,
)
from oppo_sim.report.ranges import (
    drawn_words,
    few_seeds_in,
    has_ranges,
    machine_sentence,
    over_words,
    own_sentence,
    published_sentence,
    replayed_sentence,
    widest_sentence,
)
from oppo_sim.runs.best import best_policy, losses_by_draw, losses_by_seed, not_told_apart
from oppo_sim.runs.statistics import ROLLOUTS, TO_REWARD

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Compared:
    """A comparison's tables, and the policy that they say to take."""

    manifest: Mapping[str, Any]
    table: "pd.DataFrame"
    """One row a policy, as ``attribution``."""
    attribution: "pd.DataFrame"
    cells: "pd.DataFrame"
    best: str
    alike: list[str]
    """Policies that cannot be told apart from the best."""

    @property
    def seeds(self) -> list[int]:
        """On which every policy ran."""
        return list(self.manifest["seeds"])

    @property
    def practical(self) -> float:
        """Relative difference that does not matter to the user; 0: every one does."""
        return float(self.manifest.get("practical", 0.0))

    @property
    def to_reward(self) -> bool:
        """The best reaches the target reward first, rather than having the shortest step."""
        return self.manifest.get("objective") == TO_REWARD

    @property
    def baseline(self) -> str:
        """What the best is compared with."""
        return str(self.manifest.get("baselines", {}).get(self.best, BASELINE))

    @property
    def ranges(self) -> bool:
        """The machine was drawn."""
        return has_ranges(self.table)

    @property
    def drawn(self) -> str:
        """In words, what was drawn; empty: nothing."""
        return drawn_words(
            self.ranges,
            str(self.manifest.get("objective", ROLLOUTS)),
            int(self.manifest.get("to_reward", {}).get("draws", 0)),
        )

    @property
    def attributed(self) -> bool:
        """Counterfactuals were replayed."""
        return bool(len(self.attribution) and self.attribution.notna().any(axis=None))


def compared(run: FinishedRun) -> Compared:
    """Raises OppoError for a folder that lacks its tables."""
    manifest = run.manifest
    table, attribution = (
        run.frame(f"{name}.parquet").set_index("policy") for name in ("comparison", "attribution")
    )
    cells = run.frame("cells.parquet")
    if not np.isfinite(table[c.STEP_S].to_numpy(dtype=np.float64)).any():
        raise OppoError(f"{run.root} compares no policy with a step time: compare again")
    if c.BOUND_ONLY not in table.columns:
        raise OppoError(f"{run.root} does not say which policies are bounds only: compare again")
    if manifest.get("objective") == TO_REWARD:
        # Held against draws of the effect of staleness, which the tables do not hold.
        record = run.json("comparison.json")
        best, alike = str(record["best"]), [str(policy) for policy in record["alike"]]
    else:
        best = best_policy(table)
        drawn = losses_by_draw(run.frame("machine.parquet")) if has_ranges(table) else None
        alike = not_told_apart(losses_by_seed(cells), best, drawn, float(manifest.get("practical", 0.0)))
    return Compared(manifest, table, attribution, cells, best, alike)


def answer(found: Compared) -> tuple[str, ...]:
    """Which policy to take, why, at what price and how surely."""
    return (
        *_step_time(found),
        *_machine(found),
        *_price(found),
        *_certainty(found),
        *_attribution(found),
    )


# ---- inside ------------------------------------------------------------------------------------------------


def _step_time(found: Compared) -> Iterator[str]:
    row = found.table.loc[found.best].to_dict()
    faster = ""
    if found.best != BASELINE:
        ends = row[c.SPEEDUP_LOW], row[c.SPEEDUP_HIGH]
        together = (row[c.SPEEDUP_BOTH_LOW], row[c.SPEEDUP_BOTH_HIGH]) if found.ranges else (np.nan, np.nan)
        faster = f", {times_faster(row[c.SPEEDUP], *ends, found.baseline, together)}"
    yield f"{found.best}: {format_seconds(row[c.STEP_S])} a step{faster}."
    if own := own_sentence(found.manifest):
        yield f"{capital(own)}."
    if found.to_reward:
        ends = row[c.HOURS_TO_REWARD_LOW], row[c.HOURS_TO_REWARD_HIGH]
        between = f" (95 % interval {significant(ends[0])} to {significant(ends[1])})"
        yield (
            f"To the target reward it takes {significant(row[c.HOURS_TO_REWARD])} h"
            f"{between if np.isfinite(ends).all() else ''}, a step being worth"
            f" {measured_label(row[c.PROGRESS], 'number')} on-policy steps."
        )


def _machine(found: Compared) -> Iterator[str]:
    if found.ranges:
        share = format_percent(found.table[c.P_BEST].loc[found.best])
        yield f"It is the best in {share} of the seeds and draws of {found.drawn}."
    if replayed := replayed_sentence(found.manifest["trace"].get("sampling"), len(found.seeds)):
        yield f"{capital(replayed)}."
    if machine := machine_sentence(found.manifest):
        widest = widest_sentence(found.table) if found.ranges else ""
        yield f"{capital(machine)}{f'; {widest}' if widest else ''}."
    if published := published_sentence(found.manifest):
        yield f"{capital(published)}."


def _price(found: Compared) -> Iterator[str]:
    row = found.table.loc[found.best].to_dict()
    stale, oldest, bias = (
        row.get(column, np.nan)
        for column in (c.COMPARED_STALENESS_MEAN, c.COMPARED_STALENESS_MAX, c.LENGTH_BIAS_PAIRED)
    )
    yield (
        f"Its price: mean staleness {measured_label(stale, 'number')} (highest"
        f" {measured_label(oldest, 'count')}), length bias {measured_label(bias, 'signed_share')} against"
        " sequential."
    )
    if other := other_lengths(float(bias)):
        yield f"{capital(other)}."


def _certainty(found: Compared) -> Iterator[str]:
    alike, practical, seeds = found.alike, found.practical, len(found.seeds)
    over = over_words(counted(seeds, "paired seed"), found.drawn)
    if alike:
        near = f", or {'is' if len(alike) == 1 else 'are'} within {100 * practical:g} % of it"
        near = near if practical else ""
        yield f"{joined(alike)} cannot be told apart from it on {over} (5 % level){near}."
        if few := few_seeds_in(found.table, found.best, alike, seeds, practical):
            yield f"{capital(few)}."
    elif seeds < 2 and not found.ranges:
        yield "With one seed nothing says how sure this is: compare with more seeds."
    elif len(found.table) > 1:
        what = "reaches it later" if found.to_reward else "is slower"
        yield f"Every other policy {what} on {over} (5 % level)."


def _attribution(found: Compared) -> Iterator[str]:
    if found.best not in found.attribution.index:
        return
    step_s = found.table[c.STEP_S].loc[found.best]
    seconds = found.attribution.loc[found.best].to_dict()
    parts = [(label, float(seconds[column])) for column, label in ATTRIBUTION.items()]
    large = [
        f"{format_seconds(value)} {label}"
        for label, value in parts
        if np.isfinite(value) and abs(value) >= 0.005 * step_s
    ]
    if large:
        yield f"Of each step, compared with its counterfactuals: {joined(large)}."
