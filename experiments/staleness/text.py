"""The words of the page."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

import pandas as pd
from cells import DEFAULT_TREATMENT, SEEDS
from effect import Fitted
from learner import BATCH, EVALUATE_EVERY, EVALUATED, STEPS
from tasks import TASKS


def page(
    missing: str, effects: Mapping[str, Fitted], rows: pd.DataFrame, progress: Mapping[str, float]
) -> str:
    """README.md."""
    rates = ", ".join(f"{task.learning_rate:g} ({name})" for name, task in TASKS.items())
    lines = [
        "# What staleness costs in reward: real PPO on tiny models (measured)",
        "",
        f"`python experiments/staleness/grid.py` ({SEEDS} seeds). {missing}",
        "",
        f"Real torch engines and real PPO, {STEPS} steps of {BATCH} rollouts, a 2-layer model of width 64.",
        "Two tasks with long-tailed answers and a reward from a rule: the arithmetic task of docs/ppo.md",
        "(up to 8 operations), and a countdown (`1 2 ?` is answered `1 1 = 1 0 = … 0 0 = !`). Every run of a",
        "task and seed starts from the same fitted actor and sees the same problems in the same order.",
        "Runs are in lock-step: every decode iteration counts one, so the machine's load changes no",
        "decision. Learning",
        f"rate {rates}, 2 epochs, 2 mini-batches, a value head.",
        "",
        f"Reward is the mean over {EVALUATED} problems that no run trains on, every {EVALUATE_EVERY} steps,",
        "sampled as in training: the trained batch itself is a selection.",
        "",
        "![rewards](results/staleness.png)",
        "",
        "Predicted seconds are the simulator's under the profile of experiments/validate_cpu (a larger",
        "model; two cores, async on three). Measured seconds are processor time of one process in which",
        "nothing overlaps: they say what the work costs, not what a schedule saves. Runs of the treatment",
        "by default (behaviour, with correction) and of the others were made on machines of unlike speed:",
        "compare measured seconds within one of the two only.",
        "",
        "## Reached reward, against sequential on the same seeds",
        "",
        "Mean of the last three evaluations; 95 % interval of the paired differences over seeds (Student).",
        "Staleness in updates; length bias of the problems trained, by their right answers; `carried`: the",
        "treatment of docs/ppo.md, importance weights where not said otherwise.",
        "",
        "| task | policy | carried | seeds | reached | − sequential [95 %] | staleness mean / max |"
        " length bias | iterations a step | predicted s a step | measured CPU s a step |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        *map(_row, rows.to_dict(orient="records")),
        "",
        "## The effect",
        "",
        "A step is worth Σ_s share_s · exp(−a·s) · exp(−b·|bias|) on-policy steps, and the reward rises as",
        "R₀ + G·(1 − exp(−x/τ)) in the sum x of them; G and τ of a task and seed, a and b of all",
        "(effect.py). Intervals: whole pairs of task and seed resampled. `shortest n %` trains on the",
        "shortest problems alone, on policy: that is what tells b.",
        "",
        "| runs of | a [95 %] | b [95 %] | runs | pairs | residual |",
        "|---|---|---|---|---|---|",
        *(_effect(name, found) for name, found in effects.items()),
        "",
        "What a step is worth by the effect of all: "
        + ", ".join(f"{arm} {value:.2f}" for arm, value in progress.items())
        + ".",
        "",
        "## What this does not say",
        "",
        "- These are tiny models at a high learning rate, and few seeds: the tasks disagree, and the",
        "  interval is wide (a is searched from 0 to 3). At scale it is unproven. The effect of an update of",
        "  staleness grows with what an update changes: with a tenth of the learning rate expect less.",
        "- The curve is one saturating rise. A run that falls back (arithmetic, async 4, some seeds) counts",
        "  as one that does not move.",
        "- In the first steps of a carried policy short answers come first; in the long run every rollout is",
        "  trained. A lasting bias was only made by leaving problems out.",
        f"- `oppo_sim` ships the row `all` (treatment {DEFAULT_TREATMENT}, corrected) as",
        "  `rewards.staleness_effect: measured`.",
        "",
    ]
    return "\n".join(lines)


def _row(row: Mapping[str, Any]) -> str:
    low, high = float(row["low"]), float(row["high"])
    between = f" [{low:+.3f}, {high:+.3f}]" if isfinite(low) else ""
    own = row["policy"] == "sequential"
    predicted = float(row["predicted_step_s"])
    cells = (
        row["task"],
        row["policy"],
        row["carried"],
        row["seeds"],
        f"{row['reached']:.3f}",
        "–" if own else f"{row['against_sequential']:+.3f}{between}",
        f"{row['staleness_mean']:.2f} / {row['staleness_max']:.0f}",
        f"{100 * row['length_bias']:+.1f} %",
        f"{row['iterations']:.1f}",
        f"{predicted:.2f}" if isfinite(predicted) else "–",
        f"{row['measured_step_cpu_s']:.2f}",
    )
    return f"| {' | '.join(map(str, cells))} |"


def _effect(name: str, found: Fitted) -> str:
    (low, high), (least, most) = found.interval()
    a, b = found.strength
    return (
        f"| {name} | {a:.3f} [{low:.3f}, {high:.3f}] | {b:.2f} [{least:.2f}, {most:.2f}] | {found.runs} |"
        f" {found.pairs} | {found.error:.3f} |"
    )
