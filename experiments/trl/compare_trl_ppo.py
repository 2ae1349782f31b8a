"""TRL's unmodified PPO trainer against OppoPPOTrainer: the same losses with ``sequential``, seconds per step
with ``oppo``.

    python experiments/trl/compare_trl_ppo.py

Needs TRL 1.12.0 (``pip install 'oppo-toolkit[trl]'``). Trains a tiny model on the CPU (see ``long_tail.py``).
Each arm trains in a process of its own, and they take turns step by step, so that whatever else the machine
does falls on all of them alike; what counts are the steps past the warm-up. The unmodified trainer and
``sequential`` are laid side by side and must agree in every metric. Writes results/compare_trl_ppo.json and
.png.
"""

import gc
import json
import multiprocessing
import platform
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import click

RESULTS = Path(__file__).parent / "results"
SHOWN = ("objective/scores", "objective/kl", "loss/policy_avg", "loss/value_avg", "val/ratio")
WALL_CLOCK = {"eps"}
THREADS = 1  # of a trainer: another core is the scorer's
STAGES = ("gen", "reward", "ref", "values", "update_actor", "update_weights")


@dataclass(frozen=True)
class Arm:
    """One way to train; no policy: the unmodified trainer."""

    label: str
    policy: tuple[str, Mapping[str, Any]] | None
    generation: str = "auto"


@dataclass(frozen=True)
class Trained:
    """What came of one run."""

    metrics: list[dict[str, float]]
    seconds: list[float]
    """Of each step, from its turn to its end."""
    cpu_seconds: list[float]
    """Of the training process, in each step: on a machine that others use too, the steadier figure. The
    scoring process is not in it."""
    lengths: list[list[int]]
    """Of the responses that each step trained; empty for the unmodified trainer, which does not tell."""
    stages: list[dict[str, float]]


def train(
    connection: "Connection[Any, Any]",
    arm: Arm,
    task: Any,
    weights: Mapping[str, Any],
    arguments: Mapping[str, Any],
    seed: int,
) -> None:
    """A process: train once, a step at a turn, from the same weights, prompts and seeds as every other arm;
    then send what came of it."""
    import long_tail
    import numpy as np
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    from oppo_real.trl_client import OppoPPOTrainer

    torch.set_num_threads(THREADS)
    seconds: list[float] = []
    cpu_seconds: list[float] = []

    class Turns(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.wait()

        def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
            seconds.append(perf_counter() - self.began)
            cpu_seconds.append(process_time() - self.used)
            connection.send(seconds[-1])
            if state.global_step < state.max_steps:
                self.wait()

        def wait(self) -> None:
            connection.recv()
            self.began, self.used = perf_counter(), process_time()

    with tempfile.TemporaryDirectory() as folder:
        given = {
            **long_tail.models(task, weights, seed),
            "args": PPOConfig(output_dir=folder, seed=seed, **arguments),
            "processing_class": long_tail.tokenizer(),
            "train_dataset": Dataset.from_dict({"input_ids": long_tail.prompts(task, 4096, seed)}),
            "callbacks": [Turns()],
        }
        ours = {} if arm.policy is None else {"policy": arm.policy, "generation": arm.generation}
        trainer = OppoPPOTrainer(**given, **ours) if ours else PPOTrainer(**given)
        np.random.seed(seed)
        gc.collect()
        # TRL collects garbage several times a step, which at this size would be a large part of it; frozen
        # objects are not searched.
        gc.freeze()
        trainer.train()
    records = getattr(trainer, "steps", [])
    metrics = [
        {key: float(value) for key, value in entry.items()}
        for entry in trainer.state.log_history
        if SHOWN[0] in entry
    ]
    lengths = [list(record.response_lengths) for record in records]
    connection.send(
        Trained(metrics, seconds, cpu_seconds, lengths, [dict(record.timing_s) for record in records])
    )


def take_turns(arms: Sequence[Arm], steps: int, *given: Any) -> list[Trained]:
    """All arms, a step each in turn, in an order that rotates."""
    context = multiprocessing.get_context("spawn")
    ends = []
    processes = []
    for arm in arms:
        near, far = context.Pipe()
        process = context.Process(target=train, args=(far, arm, *given))
        process.start()
        far.close()
        ends.append(near)
        processes.append(process)
    for step in range(steps):
        for place in range(len(arms)):
            connection = ends[(place + step) % len(arms)]
            connection.send("go")
            connection.recv()
    found = [connection.recv() for connection in ends]
    for process in processes:
        process.join()
    return found


def side_by_side(unmodified: Trained, sequential: Trained) -> None:
    """Print both; raises SystemExit if a metric of any step differs."""
    click.echo(f"{'step':>4}  {'metric':<18} {'unmodified':>14} {'sequential':>14}")
    for step, (theirs, ours) in enumerate(zip(unmodified.metrics, sequential.metrics, strict=True)):
        for name in SHOWN:
            click.echo(f"{step:>4}  {name:<18} {theirs[name]:>14.8f} {ours[name]:>14.8f}")
        differing = [
            name for name in theirs if name not in WALL_CLOCK and repr(theirs[name]) != repr(ours[name])
        ]
        if differing:
            raise SystemExit(
                f"step {step}: {differing[0]} is {theirs[differing[0]]!r} unmodified, {ours[differing[0]]!r}"
                " with sequential"
            )
    click.echo(
        f"equal to the last bit: every metric of {len(unmodified.metrics)} steps but"
        f" {', '.join(sorted(WALL_CLOCK))}\n"
    )


def summary(
    label: str, runs: Sequence[Trained], baseline: Sequence[Trained], lengths: Sequence[Trained], warmup: int
) -> dict[str, Any]:
    """Means over the steps that count, medians over the repeats. ``lengths``: runs that tell what was
    trained."""
    means = [statistics.fmean(one.seconds[warmup:]) for one in runs]
    paired = _ratios([one.seconds for one in baseline], [one.seconds for one in runs], warmup)
    by_cpu = _ratios([one.cpu_seconds for one in baseline], [one.cpu_seconds for one in runs], warmup)
    trained = [sum(map(sum, one.lengths[warmup:])) for one in lengths]
    stages = [row for one in runs for row in one.stages[warmup:]]
    return {
        "label": label,
        "step_s": statistics.median(means),
        "median_step_s": statistics.median([statistics.median(one.seconds[warmup:]) for one in runs]),
        "step_cpu_s": statistics.median([statistics.fmean(one.cpu_seconds[warmup:]) for one in runs]),
        "speedup": statistics.median(paired),
        "speedup_range": [min(paired), max(paired)],
        "cpu_speedup": statistics.median(by_cpu),
        "cpu_speedup_range": [min(by_cpu), max(by_cpu)],
        "trained_tokens_per_step": statistics.fmean(trained) / len(lengths[0].lengths[warmup:]),
        "microseconds_per_trained_token": (
            1e6
            * statistics.median(
                [sum(one.seconds[warmup:]) / tokens for one, tokens in zip(runs, trained, strict=True)]
            )
        ),
        "stage_s_mean": (
            {name: statistics.fmean([row[name] for row in stages]) for name in STAGES} if stages else None
        ),
        "steps_s": [one.seconds for one in runs],
        "steps_cpu_s": [one.cpu_seconds for one in runs],
        "trained_lengths": [one.lengths for one in lengths],
    }


def _ratios(baseline: Sequence[Sequence[float]], arm: Sequence[Sequence[float]], warmup: int) -> list[float]:
    """Mean step of the baseline / mean step of the arm, for each repeat."""
    return [
        statistics.fmean(one[warmup:]) / statistics.fmean(other[warmup:])
        for one, other in zip(baseline, arm, strict=True)
    ]


def draw(rows: Sequence[Mapping[str, Any]], lengths: Sequence[int], warmup: int, path: Path) -> None:
    """Seconds per step, speed-ups and the lengths."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(15, 4.2), layout="constrained")
    for row in rows:
        columns = list(zip(*row["steps_s"], strict=True))
        left.plot(range(len(columns)), [statistics.median(column) for column in columns], label=row["label"])
    left.axvspan(-0.5, warmup - 0.5, color="0.92", label="warm-up, not counted")
    left.set(
        xlabel="step", ylabel="seconds (median of repeats)", title="Wall-clock of a step", ylim=(0, None)
    )
    left.legend(fontsize=8)
    places = range(len(rows))
    values = [row["speedup"] for row in rows]
    spread = [[row["speedup"] - row["speedup_range"][0] for row in rows]]
    spread += [[row["speedup_range"][1] - row["speedup"] for row in rows]]
    middle.bar(places, values, yerr=spread, capsize=4)
    middle.axhline(1.0, color="0.4", linewidth=0.8)
    middle.set_xticks(places, [row["label"] for row in rows], rotation=20, ha="right", fontsize=8)
    middle.set(ylabel="unmodified / arm", title="Speed-up per step (whiskers: repeats)")
    right.hist(lengths, bins=40)
    right.set(
        xlabel="response length, tokens",
        ylabel="responses",
        title="Responses of the unmodified trainer",
        yscale="log",
    )
    figure.savefig(path, dpi=130)
    plt.close(figure)


@click.command()
@click.option("--steps", default=30, show_default=True, help="steps of a timed run")
@click.option("--warmup", default=8, show_default=True, help="first steps that do not count")
@click.option("--repeats", default=3, show_default=True, help="timed runs of each arm, in turn")
@click.option("--batch", default=16, show_default=True, help="rollouts a step")
@click.option(
    "--hidden-size",
    default=32,
    show_default=True,
    help="of all four models; the smaller, the more of a step is decoding",
)
@click.option("--overcommit", default=6, show_default=True, help="Δ of the fixed arms")
@click.option("--chunk-size", default=64, show_default=True)
@click.option("--teach", "updates", default=300, show_default=True, help="updates that teach the task")
@click.option("--seed", default=0, show_default=True)
@click.option("--out", default=str(RESULTS), show_default=False, help="folder of the results")
def main(
    steps: int,
    warmup: int,
    repeats: int,
    batch: int,
    hidden_size: int,
    overcommit: int,
    chunk_size: int,
    updates: int,
    seed: int,
    out: str,
) -> None:
    """Compare, print, and write the results."""
    import long_tail
    import torch
    import transformers
    import trl

    task = long_tail.Task(hidden_size=hidden_size)
    began = perf_counter()
    taught = long_tail.teach(task, seed, updates)
    click.echo(f"taught the task in {perf_counter() - began:.0f} s\n")
    arguments = {
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": 1,
        "num_ppo_epochs": 1,
        "num_mini_batches": 1,
        "local_rollout_forward_batch_size": batch,
        "response_length": task.response_length,
        "stop_token": "eos",
        "missing_eos_penalty": 1.0,
        "temperature": 1.0,
        "learning_rate": 1e-5,
        "num_sample_generations": 0,
        "report_to": [],
        "bf16": False,
        "use_cpu": True,
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    fixed = {"overcommit": overcommit, "chunk_size": chunk_size}
    arms = [
        Arm("unmodified TRL", None),
        Arm("sequential", ("sequential", {})),
        Arm("sequential, continuous decoding", ("sequential", {}), "continuous"),
        Arm(f"inter, Δ = {overcommit}", ("inter", fixed)),
        Arm(f"oppo, Δ = {overcommit}", ("oppo", fixed)),
        Arm("oppo, its defaults", ("oppo", {})),
    ]
    found: dict[str, list[Trained]] = {arm.label: [] for arm in arms}
    for repeat in range(repeats):
        results = take_turns(
            arms,
            steps,
            task,
            taught.state_dict(),
            {**arguments, "total_episodes": steps * batch},
            seed + repeat,
        )
        for arm, result in zip(arms, results, strict=True):
            found[arm.label].append(result)
            click.echo(
                f"repeat {repeat}  {arm.label:<34} {statistics.fmean(result.seconds[warmup:]):8.3f} s a step"
            )
    unmodified, sequential = found[arms[0].label], found[arms[1].label]
    click.echo()
    for one, other in zip(unmodified, sequential, strict=True):
        side_by_side(one, other)
    rows = [
        summary(
            arm.label, found[arm.label], unmodified, found[arm.label] if arm.policy else sequential, warmup
        )
        for arm in arms
    ]
    click.echo(
        f"{'':<34} {'s a step':>9} {'speed-up':>9} {'(repeats)':>12} {'CPU s':>7} {'speed-up':>9}"
        f" {'tokens a step':>14} {'µs a token':>11}"
    )
    for row in rows:
        low, high = row["speedup_range"]
        click.echo(
            f"{row['label']:<34} {row['step_s']:>9.3f} {row['speedup']:>9.2f} {f'{low:.2f}..{high:.2f}':>12} "
            f"{row['step_cpu_s']:>7.3f} {row['cpu_speedup']:>9.2f} "
            f"{row['trained_tokens_per_step']:>14.0f} {row['microseconds_per_trained_token']:>11.0f}"
        )
    lengths = [length for one in sequential for step in one.lengths for length in step]
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    facts = {
        "task": asdict(task),
        "response_lengths": long_tail.quantiles(lengths),
        "settings": {
            "steps": steps,
            "warmup": warmup,
            "repeats": repeats,
            "batch": batch,
            "teach": updates,
            "seed": seed,
            **fixed,
        },
        "ppo": arguments,
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "trl": trl.__version__,
        },
        "machine": {
            "processor": platform.machine(),
            "python": platform.python_version(),
            "threads_of_a_trainer": THREADS,
        },
        "equal_metrics": sorted(set(unmodified[0].metrics[0]) - WALL_CLOCK),
        "arms": rows,
    }
    (folder / "compare_trl_ppo.json").write_text(json.dumps(facts) + "\n", encoding="utf-8")
    draw(rows, lengths, warmup, folder / "compare_trl_ppo.png")


if __name__ == "__main__":
    main()
