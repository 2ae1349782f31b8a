"""``oppo simulate``: one policy on a scenario."""

from pathlib import Path

import click

from oppo_sim.cli import options
from oppo_sim.cli.progress import progress_bar
from oppo_sim.run_kinds import SIMULATED


@click.command(epilog="Example: oppo simulate paper-stackexchange-7b --policy oppo --steps 50 -o runs/first")
@click.argument("scenario")
@options.POLICY
@options.STEPS
@options.SEED
@options.draws(0, "Draws of what is unknown about the machine's seconds, for a range of the mean step.")
@options.overrides
@options.NUMBERED
@options.FORCE
@options.FIGURES
@options.TIMELINE
@click.option("--rollouts/--no-rollouts", default=True, help="Write the table with one row a rollout.")
@options.JSON
def command(
    scenario: str,
    policy: str | None,
    steps: int | None,
    seed: int | None,
    draws: int,
    overrides: tuple[str, ...],
    output: Path | None,
    force: bool,
    figures: bool,
    timeline: tuple[int, int] | None,
    rollouts: bool,
    as_json: bool,
) -> int:
    """Simulate SCENARIO (a shipped name or a YAML file) and report every step.

    Writes a run folder: steps.parquet, rollouts.parquet, summary.json, figures, a Gantt chart, a trace for
    Perfetto or chrome://tracing, and manifest.json with everything needed to repeat the run. Interrupting
    keeps the steps already done.
    """
    from oppo_sim.cli.present import show_run
    from oppo_sim.runs.machine import machine_of
    from oppo_sim.scenario.build import build_setup
    from oppo_sim.scenario.load import load_scenario
    from oppo_sim.scenario.policy_label import for_policy, scenario_under
    from oppo_sim.simulation_folder import SimulationRequest, shown_steps, simulate_to_folder
    from oppo_sim.taken_folder import refuse_taken

    loaded = load_scenario(scenario, for_policy(overrides, policy)).for_steps(steps)
    named = policy or loaded.policy.name
    loaded, name = scenario_under(loaded, named)
    setup = build_setup(loaded, policy=name, seed=seed, steps=steps)
    run = f"{options.safe_name(loaded.name)}-{options.safe_name(named)}-seed{setup.seed}"
    folder = options.folder_to_write(output, run, force)
    refuse_taken(folder, SIMULATED, force)
    shown = timeline or shown_steps(setup)
    request = SimulationRequest(
        setup, name, folder, force, shown, rollouts, figures, machine_of(loaded, draws)
    )
    with progress_bar(f"{loaded.name}: {named}", setup.steps, as_json) as (bar, task):
        written = simulate_to_folder(request, lambda done: bar.update(task, completed=done))
    return show_run(written, as_json)
