"""``oppo run``: one policy on a scenario, over real engines."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from oppo_sim.cli import options
from oppo_sim.cli.progress import progress_bar, say_notes
from oppo_sim.run_kinds import MEASURED


@click.command(
    epilog=(
        "Example: oppo run my.yaml --policy oppo --steps 20 --set real.placement.kind=processes -o runs/real"
    )
)
@click.argument("scenario")
@options.POLICY
@options.STEPS
@options.SEED
@options.overrides
@options.OUTPUT
@options.FORCE
@click.option("--resume", is_flag=True, help="Go on from the last checkpoint in the run folder.")
@options.FIGURES
@options.TIMELINE
@options.JSON
def command(
    scenario: str,
    policy: str | None,
    steps: int | None,
    seed: int | None,
    overrides: tuple[str, ...],
    output: Path | None,
    force: bool,
    resume: bool,
    figures: bool,
    timeline: tuple[int, int] | None,
    as_json: bool,
) -> int:
    """Run SCENARIO (a shipped name or a YAML file) over real engines, as its real: section says, and measure
    every step.

    Writes the same run folder as simulate, in measured seconds, and trace.parquet: the lengths it made, to be
    simulated with. With checkpoints (real.checkpoint_every) a run that ended early goes on with --resume,
    making the decisions it would have made.
    """
    from oppo_real.placement.engines import require_engine
    from oppo_sim.cli.present import show_run
    from oppo_sim.errors import OppoError
    from oppo_sim.scenario.load import load_scenario
    from oppo_sim.scenario.policy_label import for_policy, scenario_under
    from oppo_sim.taken_folder import refuse_taken

    require_engine("torch")
    from oppo_real.run.folder import RealRequest, can_resume, run_to_folder
    from oppo_real.run.setup import build_real_setup

    loaded = load_scenario(scenario, for_policy(overrides, policy))
    if loaded.real is None:
        raise OppoError(
            f"{loaded.source} has no real section, which says what to run on: add real: with models and"
            " devices (docs/real.md), or give --set real.engine=torch for tiny models on this machine's CPU"
        )
    named = policy or loaded.policy.name
    loaded, name = scenario_under(loaded, named)
    setup = build_real_setup(loaded, policy=name, steps=steps, seed=seed)
    run = f"{options.safe_name(loaded.name)}-{options.safe_name(named)}-seed{setup.base.seed}-real"
    folder = output or Path("runs") / run
    if not resume:
        refuse_taken(folder, MEASURED, force, resumes=can_resume(folder, setup))
    if not setup.config.trains and not setup.config.lock_step:
        say_notes(["no PPO update is made or timed: mode replay makes one with real.ppo.enabled: true"])
    first = min(setup.base.warmup_steps, setup.base.steps - 1)
    shown = timeline or (first, min(first + 2, setup.base.steps - 1))
    title = f"{loaded.name}: {named}"
    with progress_bar(title, setup.base.steps, as_json) as (bar, task):

        def progress(done: int, row: Mapping[str, Any]) -> None:
            bar.update(task, completed=done, description=f"{title}{_stage_times(row)}")

        def tell(phase: str) -> None:
            bar.update(task, description=f"{title}: {phase}")

        try:
            written = run_to_folder(RealRequest(setup, folder, force, resume, shown, figures), progress, tell)
        except KeyboardInterrupt as error:
            if not str(error):
                raise
            return options.interrupted(str(error))
    return show_run(written, as_json, resumes=can_resume(folder, setup))


def _stage_times(row: Mapping[str, Any]) -> str:
    """The last step in a few words."""
    from oppo_sim.columns import CHUNK_SIZE, OVERCOMMIT, REWARD_MEAN, TIMING_STEP, timing

    if not row:
        return ""
    trained = row[TIMING_STEP] - row[timing("gen")] - row[timing("reward")]
    parts = [f"gen {row[timing('gen')]:.2f}", f"reward {row[timing('reward')]:.2f}", f"train {trained:.2f}"]
    score = row[REWARD_MEAN]
    # A replay without rewards has none.
    scored = f" score {score:.3f}" if math.isfinite(score) else ""
    return f"  {' '.join(parts)}  Δ {row[OVERCOMMIT]} chunk {row[CHUNK_SIZE]}{scored}"
