"""Intervals of the machine in words."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from oppo_sim import columns as c
from oppo_sim.report.labels import format_percent, policy_names
from oppo_sim.runs.placement import PLACEMENT, PLACEMENT_SIGMA
from oppo_sim.runs.ranges import SPEEDUP_ENDS, SPEEDUP_PER_TOKEN_ENDS
from oppo_sim.runs.statistics import TO_REWARD

if TYPE_CHECKING:
    import pandas as pd

MACHINE_ENDS: Final = frozenset(
    (
        c.STEP_S_MACHINE_LOW, c.STEP_S_MACHINE_HIGH,
        *SPEEDUP_ENDS,
        *SPEEDUP_PER_TOKEN_ENDS,
        c.DIFFERENCE_BOTH_LOW, c.DIFFERENCE_BOTH_HIGH,
        c.MACHINE_WIDEST_SHARE, c.DIFFERENCE_WIDEST_SHARE,
    )
)  # fmt: skip
"""Columns that belong to others."""
SPLIT_GAINS: Final = (12, 11, 12)
"""Published gains of another split of the GPUs that did not set ``PLACEMENT_SIGMA``, and how many of them lie
within ranges of the priors, and of what a step or logs on one split tell: experiments/nemo_rl and
experiments/slime_sweep, which a test compares."""
_LEAST_SHARE = 0.05
_SURE: Final = 0.975
"""As sure as one end of a 95 % interval."""


def has_ranges(table: "pd.DataFrame") -> bool:
    """The table of a comparison or sweep has intervals of the machine."""
    return c.SPEEDUP_MACHINE_LOW in table.columns and bool(table[c.SPEEDUP_MACHINE_LOW].notna().any())


def has_intervals(table: "pd.DataFrame") -> bool:
    """There are several seeds or draws to tell how far off a number is; one seed tells nothing of others."""
    return has_ranges(table) or (c.SPEEDUP_LOW in table and bool(table[c.SPEEDUP_LOW].notna().any()))


def drawn_words(machine: bool, objective: str, effects: int) -> str:
    """What draws are of: the ``machine``, the effect of staleness, or both; empty where nothing is drawn.
    ``effects``: draws of the effect, which count where the objective is a time to reward."""
    effect = objective == TO_REWARD and effects > 0
    return " and ".join(["the machine"] * machine + ["the effect of staleness"] * effect)


def split_sentence() -> str:
    """What ranges hold of runs on other GPUs than those of the scenario, and how that was judged."""
    gains, priors, known = SPLIT_GAINS
    return (
        "ranges of other splits of GPUs than the scenario's hold what costs told for one miss on another"
        f" ({PLACEMENT}: {100 * PLACEMENT_SIGMA:.0f} % on all seconds). Of {gains} published gains that did"
        f" not set it {priors} lie within those of priors, {known} where a step or a log was known; measure"
        " before GPUs are moved"
    )


def placement_sentence(widest: Iterable[tuple[Any, Any]]) -> str:
    """That ``placement`` widens differences from the best most; empty where it widens none. ``widest``: term
    and share of each of the others."""
    told = [(term, share) for term, share in widest if isinstance(term, str) and share >= _LEAST_SHARE]
    shares = sorted(share for term, share in told if term == PLACEMENT)
    if not shares:
        return ""
    ends = dict.fromkeys(f"{100 * share:.0f}" for share in (shares[0], shares[-1]))
    return (
        f"differences from the best are widened most by {PLACEMENT} in {len(shares)} of {len(told)}"
        f" ({' to '.join(ends)} % of the variance)"
    )


def over_words(seeds: str, drawn: str) -> str:
    """What differences are held against: ``the seeds and the draws of the machine``. ``drawn``:
    ``drawn_words``."""
    return f"{seeds} and the draws of {drawn}" if drawn else seeds


def ends_text(low: float, high: float, value: float) -> str:
    """``[1.2, 2.9]``, with two decimals where the ends lie close together, or would leave out the ``value``
    that is printed beside them with two; empty without an interval."""
    few = [1] if high - low >= 0.2 else []
    return around(value, low, high, *(f"{{:.{digits}f}}".format for digits in (*few, 2)))


def around(value: float, low: float, high: float, *ways: Callable[[float], str]) -> str:
    """An interval around a ``value`` that is printed beside it in the last of the ``ways``: its ends in the
    first that has the value between two different ends; empty without an interval."""
    if not np.isfinite((low, high)).all():
        return ""
    printed = _number(ways[-1](value)) if np.isfinite(value) else (low + high) / 2
    found = [(way(low), way(high)) for way in ways]
    fits = ((one, other) for one, other in found if one != other and _holds(one, other, printed))
    first, second = next(fits, found[-1])
    return f"[{first}, {second}]"


def _holds(low: str, high: str, value: float) -> bool:
    return _number(low) <= value <= _number(high)


def _number(text: str) -> float:
    """A number as it is printed for people."""
    return float(text.replace(",", "").replace("−", "-"))


def few_seeds_sentence(share: float, seeds: int, practical: float = 0.0) -> str:
    """Why something that is the best in all draws × seeds (``share`` of them) is still not told apart from
    others: so few seeds say little of other ones. Empty where the share, or ``practical``, is reason enough.
    """
    if not share >= _SURE or practical:
        return ""
    return (
        f"it is the best in {format_percent(share)} of draws and seeds, but so few seeds ({seeds}) say little"
        f" of others: --seeds {max(5, 2 * seeds)} tells more"
    )


def few_seeds_in(table: "pd.DataFrame", best: str, alike: Sequence[str], seeds: int, practical: float) -> str:
    """The same of a comparison's ``table``; ``alike``: policies not told apart from ``best``."""
    real = [name for name in alike if not table.loc[name, c.BOUND_ONLY]]
    if not real or not has_ranges(table):
        return ""
    return few_seeds_sentence(float(table[c.P_BEST].loc[best]), seeds, practical)


def widest_sentence(table: "pd.DataFrame", name: str = "") -> str:
    """Which unknown widens each speed-up most; empty where none does. ``table``: index = policies, or one row
    that goes by ``name``."""
    by_term: dict[str, list[str]] = {}
    for policy, term, share in zip(
        [name] if name else table.index, table[c.MACHINE_WIDEST], table[c.MACHINE_WIDEST_SHARE], strict=True
    ):
        if isinstance(term, str) and share >= _LEAST_SHARE:
            by_term.setdefault(term, []).append(f"{policy} {share:.0%}".replace("%", " %"))
    if not by_term:
        return ""
    parts = (f"{term} ({', '.join(policies)})" for term, policies in by_term.items())
    return f"widened most by (share of the variance): {'; '.join(parts)}"


def machine_sentence(manifest: Mapping[str, Any]) -> str:
    """What intervals of the machine rest on; empty where nobody asked for draws."""
    return str(manifest.get("machine", {}).get("sentence", ""))


def replayed_sentence(sampling: str | None, seeds: int) -> str:
    """That seeds hardly draw other rollouts, so that their interval is not of these; else empty."""
    if sampling != "by_step" or seeds < 2:
        return ""
    return (
        "every seed replays the responses of the trace's steps (trace.sampling by_step): intervals of the"
        " rollouts do not hold how the lengths of another run would differ"
    )


def own_sentence(manifest: Mapping[str, Any]) -> str:
    """How much faster a comparison's best policy is than the scenario's own; empty where that is the
    baseline, or the best itself."""
    own = manifest.get("against_own", {})
    gain = own.get("speedups", {}).get(own.get("best"))
    if gain is None:
        return ""
    names = policy_names([own["policy"], *own["speedups"]])
    value, low, high = (gain[name] for name in (c.SPEEDUP, c.SPEEDUP_LOW, c.SPEEDUP_HIGH))
    within = ends_text(gain.get(c.SPEEDUP_BOTH_LOW, low), gain.get(c.SPEEDUP_BOTH_HIGH, high), value)
    # Not "oppo 1.4×": that is taken for a command where lines are broken.
    return f"against {names[own['policy']]}, the scenario's own policy, it is {value:.2f}× {within}".rstrip()


def published_sentence(manifest: Mapping[str, Any]) -> str:
    """Published speed-ups held against the ranges; empty where the scenario has none."""
    return str(manifest.get("published", {}).get("sentence", ""))
