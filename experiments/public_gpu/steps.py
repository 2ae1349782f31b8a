"""The stage and step tiers: real RL runs beside what a scenario of their configuration says, step by step.

Measured seconds of a step are without validation and the checkpoints that a log names. verl's `gen` holds
waking the engine and loading the weights, so it stands beside simulated `gen` and `update_weights` together.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
from logs import write_log
from scenarios import GEMMA_2_2B, dstack_h100, gpg, openagentrl, verl_2024, with_trace
from split import LATER, OPENED, UNSHIPPED_SOURCE, held_out, load

from oppo_sim import columns as c
from oppo_sim.fit.reading import read_step_log
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

    @property
    def held_out(self) -> bool:
        return held_out(self.name) and self.name not in OPENED


def public_runs() -> list[Run]:
    """Every run with lengths, in order of their names."""
    runs = _openagentrl("openagentrl")
    steps = _measured(load("verl_gpg_fsdp_steps"))
    return [
        *runs,
        Run("gpg", "gpg_fsdp", "8 × A100-80 or A800-80", "verl, vLLM eager", steps, gpg("A100-80")),
    ]


def later_runs() -> list[Run]:
    """The runs that were found after the others had been scored; nothing is fitted on them."""
    return _openagentrl(LATER)


_OF_2024 = {
    # Its generation recomputed the log-probabilities itself.
    "timing_s/gen+old_log_prob+update_weights": "timing/gen",
    **{f"timing_s/{name}": f"timing/{name}" for name in ("ref", "values", "adv")},
    **{f"timing_s/{name}": f"timing/{name}" for name in ("update_critic", "update_actor")},
}
"""Our column → the name in verl's logs of 2024, as `oppo fit --field`."""


@dataclass(frozen=True)
class Unshipped:
    """A run whose log has no licence."""

    gpu: str
    framework: str
    scenario: dict[str, Any]
    fields: dict[str, str] = field(default_factory=dict)


_QWEN, _UNSAID = "Qwen/Qwen2.5-0.5B-Instruct", "of 80 GB, not said which"
UNSHIPPED = {
    "dstack_h100": Unshipped("16 × H100", "verl, vLLM eager", dstack_h100()),
    "verl_qwen05b_512": Unshipped(
        f"1 {_UNSAID}", "verl of 2024, vLLM eager", verl_2024(_QWEN, 1, 256, 1024, 512), _OF_2024
    ),
    "verl_qwen05b_256": Unshipped(
        f"1 {_UNSAID}", "verl of 2024, vLLM eager", verl_2024(_QWEN, 1, 256, 512, 256), _OF_2024
    ),
    "verl_gemma2b": Unshipped(
        f"2 {_UNSAID}", "verl of 2024, vLLM eager", verl_2024(GEMMA_2_2B, 2, 512, 1024, 512), _OF_2024
    ),
}
"""By name; where their logs are stands in data/README.md."""


def unshipped_run(name: str, log: Path) -> Run:
    """A run that is not shipped, from its log."""
    known = UNSHIPPED[name]
    frame = read_step_log(log, "verl", fields=known.fields).frame
    names = {
        c.STEP: "step",
        c.LENGTH_MAX: "response_max",
        c.TOKENS_TOTAL: "tokens",
        c.STEP_TESTING_S: "testing_s",
        c.STEP_SAVE_S: "save_checkpoint_s",
        **{c.timing(stage): f"{stage}_s" for stage in STAGES},
        "timing_s/gen+old_log_prob+update_weights": "gen_s",
    }
    steps = frame[[name for name in names if name in frame]].rename(columns=names)
    if "tokens" not in steps:
        rollouts = known.scenario["rollout_batch_size"]
        steps["tokens"] = (frame[c.LENGTH_MEAN] + frame[c.PROMPT_LENGTH_MEAN]) * rollouts
    if "step_s" not in steps:
        steps["step_s"] = frame[[name for name in frame if str(name).startswith("timing_s/")]].sum(axis=1)
    scenario = {**known.scenario, "name": name}
    return Run(
        UNSHIPPED_SOURCE, name, known.gpu, known.framework, _measured(steps), scenario, log, known.fields
    )


def _openagentrl(source: str) -> list[Run]:
    return [
        Run(source, str(name), "4 × A800-80", "verl, vLLM server", _measured(steps), openagentrl(str(name)))
        for name, steps in load(f"{source}_steps").groupby("run")
    ]


def with_other_links(run: Run) -> list[Run]:
    """The run, and as it would be on cards over PCIe where its log does not say how devices are linked."""
    if run.source != "gpg":
        return [run]
    device = "A100-80-PCIe"
    return [run, replace(run, name=f"{run.name}-PCIe", gpu=f"8 × {device}", scenario=gpg(device))]


def _measured(steps: pd.DataFrame) -> pd.DataFrame:
    """Without validation and checkpoints in the step."""
    inside = {name: steps[name].fillna(0.0) for name in ("testing_s", "save_checkpoint_s") if name in steps}
    rest = steps["step_s"] - sum(inside.values())
    return steps.assign(step_s=rest, **dict.fromkeys(inside, 0.0)).sort_values("step").reset_index(drop=True)


def scenario_of(run: Run, folder: Path) -> Scenario:
    """The run's scenario with its lengths."""
    folder.mkdir(parents=True, exist_ok=True)
    log = run.log or write_log(run.steps, folder / f"{run.name}.jsonl")
    return with_trace(run.scenario, log, folder)


def unfitted(run: Run, folder: Path) -> pd.DataFrame:
    """One row a step: `predicted_<stage>` and `measured_<stage>` seconds."""
    simulated = simulate(scenario_of(run, folder), keep_rollouts=False).steps
    found = pd.DataFrame({"run": run.name, "step": run.steps["step"]})
    for stage in STAGES:
        if f"{stage}_s" in run.steps:
            found[f"measured_{stage}"] = run.steps[f"{stage}_s"]
            found[f"predicted_{stage}"] = simulated[f"timing_s/{stage}"]
    found["predicted_gen"] += simulated["timing_s/update_weights"]
    if "old_log_prob_s" not in run.steps:  # as verl of 2024 counts it
        found["predicted_gen"] += simulated["timing_s/old_log_prob"]
    return found
