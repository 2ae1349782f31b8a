"""Does overcommitment change what is learned? Real PPO on the arithmetic task, `sequential` and `oppo`,
several seeds; resumable.

    python experiments/learning/learn.py --seeds 5 --steps 60
    python experiments/learning/learn.py --report        # tables and figure from what is there

Each finished run is one file under results/: a row a step with the reward model's score and the task's own
reward (which nothing is trained on) of the trained batch. The two policies of a seed start from the same
fitted actor and the same reward model, and see the same problems.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.stats import t as student

from oppo_real.run.record import Record
from oppo_real.run.rollout import RealRollout
from oppo_real.run.setup import RealSetup, build_real_setup
from oppo_real.run.start import execute
from oppo_real.task.arithmetic import draw_problem, reward
from oppo_sim import columns as c
from oppo_sim.results.sinks import FrameSink
from oppo_sim.scenario.load import load_scenario

HERE = Path(__file__).parent
RESULTS = HERE / "results"
POLICIES = ("sequential", "oppo")
LAST = 15
"""Steps over which the reward that was reached is averaged."""
KEPT = (
    c.STEP, c.REWARD_MEAN, c.LENGTH_MEAN, c.STALENESS_MEAN, c.STALENESS_MAX, c.PARTIAL_RATIO, c.OVERCOMMIT,
    c.ROLLOUTS_DEFERRED,
    c.TOKENS_DECODED,
)  # fmt: skip


class TruthRecord(Record):
    """Also what the task itself says of every trained rollout."""

    def __init__(self, setup: RealSetup) -> None:
        super().__init__(setup)
        self._seed = setup.base.seed
        self.truth: list[float] = []

    def after_step(self, step: int, batch: Sequence[RealRollout], metrics: Mapping[str, float]) -> None:
        super().after_step(step, batch, metrics)
        self.truth.append(
            mean(reward(draw_problem(self._seed, rollout.group_id), rollout.tokens) for rollout in batch)
        )


def run_one(policy: str, seed: int, steps: int) -> pd.DataFrame:
    """One real run; a row a step."""
    torch.set_num_threads(1)
    setup = build_real_setup(
        load_scenario(str(HERE / "scenario.yaml")), policy=policy, seed=seed, steps=steps
    )
    frames = FrameSink(keep_rollouts=False)
    record = TruthRecord(setup)

    def progress(done: int, row: Mapping[str, Any]) -> None:
        if row:
            print(
                f"\r{policy} seed {seed}: step {done}/{steps}, reward {row[c.REWARD_MEAN]:.2f}",
                end="",
                flush=True,
            )

    execute(setup, frames, progress=progress, record=record)
    print()
    table = frames.steps()[list(KEPT)]
    return table.assign(task_reward=record.truth, policy=policy, seed=seed)


def interval(differences: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % interval (Student) of paired differences."""
    values = np.asarray(differences)
    half = (
        float(student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))
        if len(values) > 1
        else float("nan")
    )
    return float(values.mean()), float(values.mean()) - half, float(values.mean()) + half


def report() -> None:
    """results/learning.png and results/README.md from all finished runs."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    runs = pd.concat([pd.read_csv(path) for path in sorted(RESULTS.glob("*-*.csv"))])
    both = runs.groupby("seed")["policy"].nunique()
    seeds = sorted(both[both == len(POLICIES)].index)
    runs = runs[runs["seed"].isin(seeds)]
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    shown = (("task_reward", "reward of the task (0 to 1)"), (c.REWARD_MEAN, "score of the reward model"))
    for axis, (column, title) in zip(axes, shown, strict=True):
        for color, policy in zip(("C0", "C1"), POLICIES, strict=True):
            table = (
                runs[runs["policy"] == policy]
                .pivot_table(index=c.STEP, columns="seed", values=column)
                .rolling(5, min_periods=1)
                .mean()
            )
            for seed in table:
                axis.plot(table.index, table[seed], color=color, alpha=0.25, linewidth=0.8)
            axis.plot(
                table.index,
                table.mean(axis=1),
                color=color,
                linewidth=2,
                label=f"{policy}, mean of {len(seeds)} seeds",
            )
        axis.set(xlabel="step", title=title)
        axis.legend()
    figure.suptitle("Trained batches, moving average of 5 steps; thin: single seeds")
    figure.savefig(RESULTS / "learning.png", dpi=130)

    steps = int(runs[c.STEP].max()) + 1
    lines = [
        "# Learning: `sequential` and `oppo` on the arithmetic task (measured)",
        "",
        f"{len(seeds)} seeds, {steps} steps of 32 rollouts each; command:",
        f"`python experiments/learning/learn.py --seeds {len(seeds)} --steps {steps}`.",
        "",
        "![learning.png](learning.png)",
        "",
        f"Means over the seeds of the first 5 and the last {LAST} steps (trained batches):",
        "",
        (
            f"| policy | task reward, first 5 | task reward, last {LAST} | model's score, first 5 | model's"
            f" score, last {LAST} | staleness (mean, max) | partial |"
        ),
        "|---|---|---|---|---|---|---|",
    ]
    reached: dict[str, dict[str, list[float]]] = {}
    for policy in POLICIES:
        own = runs[runs["policy"] == policy]
        cells = []
        for column in ("task_reward", c.REWARD_MEAN):
            first = [float(own[(own["seed"] == seed) & (own[c.STEP] < 5)][column].mean()) for seed in seeds]
            last = [
                float(own[(own["seed"] == seed) & (own[c.STEP] >= steps - LAST)][column].mean())
                for seed in seeds
            ]
            reached.setdefault(column, {})[policy] = last
            cells += [f"{np.mean(first):.3f}", f"{np.mean(last):.3f} ({min(last):.3f} to {max(last):.3f})"]
        stale = f"{own[c.STALENESS_MEAN].mean():.2f}, {int(own[c.STALENESS_MAX].max())}"
        lines.append(f"| {policy} | {' | '.join(cells)} | {stale} | {own[c.PARTIAL_RATIO].mean():.1%} |")
    lines.append("")
    for column, name in (("task_reward", "task reward"), (c.REWARD_MEAN, "model's score")):
        found = reached[column]
        difference, low, high = interval(
            [b - a for a, b in zip(found["sequential"], found["oppo"], strict=True)]
        )
        spread = float(np.std(found["sequential"], ddof=1))
        verdict = "contains 0" if low <= 0 <= high else "does not contain 0"
        lines.append(
            f"- {name}, oppo − sequential over the last {LAST} steps, paired by seed: {difference:+.3f} (95 %"
            f" {low:+.3f} to {high:+.3f}, which {verdict}). The seeds of `sequential` alone have a standard"
            f" deviation of {spread:.3f}: the difference is {abs(difference) / spread:.1f} of it."
        )
    lines += [
        "",
        (
            "The trained batch of a step is not a random sample under `oppo` (long responses are carried on),"
            " so single steps differ; averages"
        ),
        (
            "over steps are comparable. Seconds are not compared here: all engines ran in one process. PPO is"
            " given the model's score, nothing"
        ),
        (
            "else; where the task's own reward falls while that score rises, the reward model was won over"
            " (one of these seeds, under both"
        ),
        "policies).",
        "",
    ]
    (RESULTS / "README.md").write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


def main() -> None:
    """Run what is missing, then report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--report", action="store_true", help="no runs")
    chosen = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    if not chosen.report:
        for seed in range(chosen.seeds):
            for policy in POLICIES:
                target = RESULTS / f"{policy}-{seed}.csv"
                if target.exists():
                    continue
                table = run_one(policy, seed, chosen.steps)
                part = target.with_suffix(".part")
                table.to_csv(part, index=False, float_format="%.6g")
                part.rename(target)
    report()


if __name__ == "__main__":
    main()
