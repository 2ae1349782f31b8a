"""A run in a few lines below its table: pace, staleness, idle devices. At most 80 characters each
where no interval is given."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from oppo_sim import columns as c
from oppo_sim.report.labels import NOTHING, format_percent, gpu_cells, significant
from oppo_sim.results.summary import gpu_hours

if TYPE_CHECKING:
    import pandas as pd

_GROUPS: Final = {"rollout": c.BUSY_ROLLOUT, "scoring": c.BUSY_SCORING, "training": c.BUSY_TRAINING}


def run_lines(
    steps: "pd.DataFrame", num_gpus: int | None, ends: Mapping[str, Sequence[float]] | None
) -> list[str]:
    """What there is to say of the steps (warm-up left out).

    Args:
        num_gpus: of the run; None: unknown, or its times are not seconds.
        ends: 95 % intervals over draws of the machine, of what has them.
    """
    found = [] if num_gpus is None else [_pace(steps, num_gpus), _gpus(steps, num_gpus, ends or {})]
    return [*found, *filter(None, (_staleness(steps), _idle(steps)))]


# ---- inside ------------------------------------------------------------------------------------------------


def _totals(steps: "pd.DataFrame") -> tuple[float, float]:
    """Seconds, and response tokens that were trained."""
    return float(steps[c.TIMING_STEP].sum()), float(steps[c.TOKENS_TRAINED].sum())


def _pace(steps: "pd.DataFrame", num_gpus: int) -> str:
    seconds, tokens = _totals(steps)
    pace = tokens / seconds if seconds else np.nan
    digits = 0 if pace >= 100 else 1
    text = f"{pace:,.{digits}f}" if np.isfinite(pace) else NOTHING
    return f"{text} tokens trained a second on {num_gpus} GPU{'s' if num_gpus != 1 else ''}"


def _gpus(steps: "pd.DataFrame", num_gpus: int, ends: Mapping[str, Sequence[float]]) -> str:
    seconds, tokens = _totals(steps)
    pace, hours = gpu_cells(
        {
            c.TOKENS_PER_S_PER_GPU: tokens / seconds / num_gpus if seconds else np.nan,
            c.GPU_HOURS_PER_1K_STEPS: gpu_hours(seconds / len(steps), num_gpus),
        }
    )
    names = (c.TOKENS_PER_S_PER_GPU, c.GPU_HOURS_PER_1K_STEPS)
    if all(name in ends for name in names):
        low, high = (gpu_cells({name: ends[name][end] for name in names}) for end in (0, 1))
        pace, hours = f"{pace} [{low[0]}, {high[0]}]", f"{hours} [{low[1]}, {high[1]}]"
    return f"{pace} a GPU; {hours} GPU-hours for 1,000 steps"


def _staleness(steps: "pd.DataFrame") -> str:
    """Of one run the lengths say nothing: what was drawn weighs more than what the policy prefers."""
    if c.STALENESS_MEAN not in steps.columns:
        return ""
    mean, most = float(steps[c.STALENESS_MEAN].mean()), float(steps[c.STALENESS_MAX].max())
    return f"staleness {significant(mean)} on average, {most:.0f} at most"


def _idle(steps: "pd.DataFrame") -> str:
    """Groups of devices that idle as much, as those that share devices do, are named together."""
    groups: dict[float, list[str]] = {}
    for group, column in _GROUPS.items():
        share = 1.0 - float(steps[column].mean()) if column in steps.columns else np.nan
        if np.isfinite(share):
            groups.setdefault(round(max(0.0, share), 9), []).append(group)
    parts = [f"{'/'.join(names)} {format_percent(share)}" for share, names in groups.items()]
    return f"idle share of the devices: {', '.join(parts)}" if parts else ""
