"""The compiled path against the SimPy model: CPU seconds a step, in turns, in one run, on one core, whole
step table kept.

    python experiments/bench_fast.py                    # shipped scenario x policy, large set-ups, scaling
    python experiments/bench_fast.py --quick            # two cells and the large set-ups, fewer turns
    python experiments/bench_fast.py --large-only       # the large set-ups alone
    python experiments/bench_fast.py -o experiments/results/fast   # tables as CSV, plot as PNG

A cell of the table is (seconds a step on SimPy) / (seconds a step compiled), the best of a few turns of each.
Asynchronous policies run with training and scoring on devices of their own. ``-``: the policy cannot run on
that scenario. "own" is a policy that the kernel asks from Python.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import process_time
from typing import Any, Literal

import click
import pandas as pd
from bench_simulator import LENGTHS

from oppo_sim import Policy
from oppo_sim.errors import OppoError
from oppo_sim.fast.choose import run_columns, why_not
from oppo_sim.model.setup import MachineSetup
from oppo_sim.policies.interface import Batch, PoolView, StepPlan
from oppo_sim.policies.registry import SHIPPED, make_policy
from oppo_sim.rewards import BatchRewards, NoRewards
from oppo_sim.scenario.build import Setup, build_setup
from oppo_sim.scenario.load import load_scenario, shipped_scenarios
from oppo_sim.traces.config import TraceConfig
from oppo_sim.traces.replay import build_replay

Engine = Literal["compiled", "simpy"]
TURN_S = {"compiled": 0.1, "simpy": 0.2}
"""How long a turn of an engine lasts, about."""
FEW = {"compiled": 100, "simpy": 4}
"""Steps of the shortest turn: what a run costs before its first step must not count."""


class OldestFirst(Policy):
    """A policy of a user's own: overcommits, and trains what was admitted first."""

    name = "own"
    score_granularity = "chunk"

    def plan(self, pool: PoolView) -> StepPlan:
        return self.refill(pool, overcommit=8 * self.batch.group_size, chunk_size=256)

    def select(self, pool: PoolView) -> Sequence[int]:
        return sorted(view.rollout_id for view in pool.finished)[: self.batch.rollout_batch_size]


@dataclass(frozen=True)
class Cell:
    """Seconds of one training step."""

    simpy_s: float
    compiled_s: float

    @property
    def ratio(self) -> float:
        return self.simpy_s / self.compiled_s


def seconds_a_step(setup: Setup, engine: Engine, steps: int) -> float:
    began = process_time()
    run_columns(replace(setup, steps=steps, warmup_steps=0), engine=engine)
    return (process_time() - began) / steps


def measured(setup: Setup, turns: int) -> Cell:
    """The best of ``turns`` turns of each engine."""
    engines: tuple[Engine, ...] = ("compiled", "simpy")
    # Loads the kernel and builds its tables; then says how many steps a turn has.
    counts = {}
    for engine in engines:
        seconds_a_step(setup, engine, 2)
        few = FEW[engine]
        counts[engine] = max(few, int(TURN_S[engine] / seconds_a_step(setup, engine, few)))
    best = dict.fromkeys(engines, float("inf"))
    for _ in range(turns):
        for engine in engines:
            best[engine] = min(best[engine], seconds_a_step(setup, engine, counts[engine]))
    return Cell(best["simpy"], best["compiled"])


def synthetic(batch_size: int, replicas: int, policy: str, **settings: Any) -> Setup:
    """Lengths of ``bench_simulator.py``, costs and scoring of the paper's 7B set-up."""
    config = TraceConfig.model_validate(LENGTHS)
    limits: dict[str, Any] = {"max_prompt_length": 1024, "max_response_length": 4096, "group_size": 1}
    replay = build_replay(config, **limits, seed=0)
    batch = Batch(batch_size)
    return replace(
        build_setup(load_scenario("paper-stackexchange-7b")),
        machine=MachineSetup(num_replicas=replicas),
        policy_factory=lambda: (
            OldestFirst(batch) if policy == "own" else make_policy(policy, batch, settings)
        ),
        batch=batch,
        replay=replay,
        rewards=lambda: BatchRewards(NoRewards(), 0, None),
    )


APART = ("placement.training=separate", "placement.scoring=separate", "rollout.batching=continuous")
"""What an asynchronous policy needs: training on devices of its own."""


def of_scenario(name: str, policy: str) -> Setup | None:
    """A shipped scenario under a policy; None: it cannot run there, or only with other things changed."""
    if policy == "own":
        setup = build_setup(load_scenario(name), policy="sequential")
        return replace(setup, policy_factory=lambda: OldestFirst(setup.batch))
    for overrides in ((), APART, (*APART, "training.weight_sync.kind=online_refit")):
        try:
            return build_setup(load_scenario(name, overrides), policy=policy)
        except OppoError:
            continue
    return None


LARGE = {
    "B = 112, 7 replicas, chunk 256, overcommit 8": (112, 7, "oppo", {"chunk_size": 256, "overcommit": 8}),
    "B = 112, 7 replicas, sequential": (112, 7, "sequential", {}),
    "B = 112, 7 replicas, own": (112, 7, "own", {}),
    "B = 512, 8 replicas, chunk 256, overcommit 64": (512, 8, "oppo", {"chunk_size": 256, "overcommit": 64}),
    "B = 2,048, 64 replicas, chunk 256, overcommit 128": (
        2048,
        64,
        "oppo",
        {"chunk_size": 256, "overcommit": 128},
    ),
}


def large_setups(turns: int) -> pd.DataFrame:
    """Seconds a step of the large set-ups."""
    return pd.DataFrame(
        [
            {"setup": name, "simpy_s": cell.simpy_s, "compiled_s": cell.compiled_s, "ratio": cell.ratio}
            for name, (batch_size, replicas, policy, settings) in LARGE.items()
            for cell in [measured(synthetic(batch_size, replicas, policy, **settings), turns)]
        ]
    )


def scaling(turns: int) -> pd.DataFrame:
    """Seconds a step against B, replicas and chunk size, one of them at a time."""
    points = [("rollout_batch_size", b, b, 8, 256) for b in (64, 128, 256, 512, 1024, 2048)]
    points += [("num_replicas", r, 512, r, 256) for r in (1, 4, 16, 64, 256)]
    points += [("chunk_size", c, 512, 8, c) for c in (32, 64, 128, 256, 512, 1024)]
    rows = []
    for name, value, batch_size, replicas, chunk_size in points:
        cell = measured(
            synthetic(batch_size, replicas, "oppo", chunk_size=chunk_size, overcommit=batch_size // 16), turns
        )
        rows.append({"axis": name, "value": value, "simpy_s": cell.simpy_s, "compiled_s": cell.compiled_s})
    return pd.DataFrame(rows)


def plot(frame: pd.DataFrame, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained", sharey=True)
    for panel, (axis, rows) in zip(panels, frame.groupby("axis", sort=False), strict=True):
        for engine, marker in (("simpy_s", "o"), ("compiled_s", "s")):
            panel.loglog(rows["value"], rows[engine] * 1e3, marker=marker, label=engine.removesuffix("_s"))
        panel.set_xlabel(str(axis))
        panel.grid(True, which="major", alpha=0.3)
    panels[0].set_ylabel("milliseconds a step")
    panels[0].legend(frameon=False)
    figure.savefig(path, dpi=120)


@click.command()
@click.option("--quick", is_flag=True, help="Two cells and the large set-ups.")
@click.option("--large-only", is_flag=True, help="The large set-ups; with -o, only their table is written.")
@click.option("--scenarios", default="", help="Comma-separated; default: all shipped ones.")
@click.option("--turns", default=8, show_default=True, help="Of each engine; the best counts.")
@click.option("-o", "output", type=click.Path(path_type=Path), help="Folder for CSV, Markdown and plot.")
def main(quick: bool, large_only: bool, scenarios: str, turns: int, output: Path | None) -> None:
    """Print ratios; with -o, keep them."""
    turns = 2 if quick else turns
    if large_only:
        large = large_setups(turns)
        click.echo(large.round({"ratio": 1}).to_string(index=False))
        if output is not None:
            output.mkdir(parents=True, exist_ok=True)
            large.to_csv(output / "large.csv", index=False)
        return
    names = [name for name in scenarios.split(",") if name] or shipped_scenarios()
    policies = ["oppo", "async"] if quick else [*SHIPPED, "own"]
    table = pd.DataFrame(index=pd.Index(names[:1] if quick else names, name="scenario"), columns=policies)
    for name in table.index:
        for policy in policies:
            setup = of_scenario(name, policy)
            if setup is None:
                table.loc[name, policy] = "-"
            elif (reason := why_not(setup)) is not None:
                table.loc[name, policy] = "SimPy"
                click.echo(f"{name}, {policy}: {reason}", err=True)
            else:
                table.loc[name, policy] = f"{measured(setup, turns).ratio:.0f}"
        click.echo(f"{name}: {' '.join(f'{p}={table.loc[name, p]}' for p in policies)}")
    large = large_setups(turns)
    click.echo(large.round({"ratio": 1}).to_string(index=False))
    if output is None:
        return
    output.mkdir(parents=True, exist_ok=True)
    grown = scaling(turns)
    table.to_csv(output / "ratios.csv")
    large.to_csv(output / "large.csv", index=False)
    grown.to_csv(output / "scaling.csv", index=False)
    plot(grown, output / "scaling.png")
    click.echo(f"wrote {output}")


if __name__ == "__main__":
    main()
