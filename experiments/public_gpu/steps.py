"""The stage and step tiers: real RL runs beside what a scenario of their configuration says, step by step.

Measured seconds of a step are without validation and the checkpoints that a log names. verl's `gen` holds
waking the engine and loading the weights, so it stands beside simulated `gen` and `update_weights` together.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
from logs import write_log
from scenarios import gpg, openagentrl, with_trace
from split import LATER, OPENED, held_out, load

from oppo_sim.scenario.schema import Scenario
from oppo_sim.simulation import simulate

STAGES = ("gen", "old_log_prob", "values", "ref", "update_critic", "update_actor", "step")


@dataclass(frozen=True)
class Run:
    """One public run: its steps as measured, and its scenario without a trace."""

    source: str
    name: str
    gpu: str
    framework: str
    steps: pd.DataFrame
    scenario: dict[str, Any]
    log: Path | None = None
    """Its console log, where that is at hand."""
    fields: dict[str, str] = field(default_factory=dict)
    """Our column → the name in that log."""
    names: str = "verl"
    """Whose names that log has."""

    @property
    def held_out(self) -> bool:
        return held_out(self.name) and self.name not in OPENED


def public_runs() -> list[Run]:
    """Every run with lengths, in order of their names."""
    runs = _openagentrl("openagentrl")
    steps = measured_steps(load("verl_gpg_fsdp_steps"))
    return [
        *runs,
        Run("gpg", "gpg_fsdp", "8 × A100-80 or A800-80", "verl, vLLM eager", steps, gpg("A100-80")),
    ]


def later_runs() -> list[Run]:
    """The runs that were found after the others had been scored; nothing is fitted on them."""
    return _openagentrl(LATER)


def _openagentrl(source: str) -> list[Run]:
    return [
        Run(
            source,
            str(name),
            "4 × A800-80",
            "verl, vLLM server",
            measured_steps(steps),
            openagentrl(str(name)),
        )
        for name, steps in load(f"{source}_steps").groupby("run")
    ]


def with_other_links(run: Run) -> list[Run]:
    """The run, and as it would be on cards over PCIe where its log does not say how devices are linked."""
    if run.source != "gpg":
        return [run]
    device = "A100-80-PCIe"
    return [run, replace(run, name=f"{run.name}-PCIe", gpu=f"8 × {device}", scenario=gpg(device))]


def measured_steps(steps: pd.DataFrame) -> pd.DataFrame:
    """Without validation and checkpoints in the step."""
    inside = {name: steps[name].fillna(0.0) for name in ("testing_s", "save_checkpoint_s") if name in steps}
    rest = steps["step_s"] - sum(inside.values())
    return steps.assign(step_s=rest, **dict.fromkeys(inside, 0.0)).sort_values("step").reset_index(drop=True)


def scenario_of(run: Run, folder: Path) -> Scenario:
    """The run's scenario with its lengths."""
    folder.mkdir(parents=True, exist_ok=True)
    if "trace" in run.scenario:  # no longest response is logged: only fits rebuild lengths without
        return Scenario.model_validate(run.scenario)
    log = run.log or write_log(run.steps, folder / f"{run.name}.jsonl")
    return with_trace(run.scenario, log, folder, run.names)


def unfitted(run: Run, folder: Path) -> pd.DataFrame:
    """One row a step: `predicted_<stage>` and `measured_<stage>` seconds."""
    simulated = simulate(scenario_of(run, folder), keep_rollouts=False).steps
    found = pd.DataFrame({"run": run.name, "step": run.steps["step"]})
    for stage in STAGES:
        if f"{stage}_s" in run.steps:
            found[f"measured_{stage}"] = run.steps[f"{stage}_s"]
            found[f"predicted_{stage}"] = simulated[f"timing_s/{stage}"]
    if "gen_s" not in run.steps:  # a log of whole steps
        return found
    found["predicted_gen"] += simulated["timing_s/update_weights"]
    if "old_log_prob_s" not in run.steps:  # as verl of 2024 counts it
        found["predicted_gen"] += simulated["timing_s/old_log_prob"]
    return found
