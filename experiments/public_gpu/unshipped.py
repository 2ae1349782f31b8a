"""Runs whose logs have no licence: scored from a copy of the log, which is not shipped."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scenarios import (
    GEMMA_2_2B,
    asycn_verl,
    cluster_verl,
    dstack_h100,
    econ_lora,
    gpg_megatron,
    mini_r1_zero,
    nemo_rl_b200,
    play_verl,
    qwen3_8b_h20,
    trl_rho,
    unlogged_prompt,
    verl_2024,
    verl_mi300x,
)
from split import UNSHIPPED_SOURCE
from steps import STAGES, Run, measured_steps

from oppo_sim import columns as c
from oppo_sim.fit.log.reading import read_step_log

_GEN_OF_2024 = "timing_s/gen+old_log_prob+update_weights"
"""Generation recomputed the log-probabilities itself."""
_OF_2024 = {
    _GEN_OF_2024: "timing/gen",
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
    names: str = "verl"
    """Whose names its log has."""


_ECON = {**dict.fromkeys(("300", "v2", "v3", "v4", "v5", "v6", "v9", "first"), 1), "four": 4}
"""Run → samples a prompt."""
_ASYCN = (
    "clip_low0.2_high0.2_seed0",
    "a2q_vanilla_lr3.1e-6_seed1",
    "cd_cosine_1e-5_to_3.1e-6_seed42",
    "cd_cosine_1e-5_to_3.1e-6_seed1",
    "clip_low0.1_high0.3_seed1",
    "clip_low0.3_high0.3_seed42",
    "a2q_rollout_only_pr95_pp90_lr3.1e-6_seed0",
    "clip_low0.3_high0.3_seed0",
    "clip_low0.2_high0.2_seed1",
    "sigfrac_cfixed_lr1.25e-5_slowema_ret0.95_alpharlim0.05",
    "a2q_vanilla_lr3.1e-6_seed0",
    "sigfrac_cfixed_lr1.25e-5_alpharlim0.05",
    "sigfrac_cfixed_lr1.25e-5_slowema_ret0.98",
    "clip_low0.4_high0.4_seed42",
    "a2q_prompt_only_pr95_pp90_lr3.1e-6_seed1",
    "clip_low0.1_high0.1_seed0",
    "cd_linear_1e-5_to_3.1e-6_seed1",
)
"""Of 31 runs of a hundred steps or more the ten whose names come first by sha256("public_gpu/1:" + name), and
seven more."""
_RHO = (
    "rho5.00_seed43",
    "rho5.00_seed42",
    "rho3.00_seed44",
    "rho0.70_seed44",
    "rho0.50_seed43",
    "rho0.30_seed44",
    "rho0.50_seed44",
    "rho3.00_seed43",
)
"""Of 27 runs the three whose names come first by sha256("public_gpu/1:" + name), the next two and the next
three."""
_LATER_H20 = ("m20_grpo", "m20_gspo", "b_gspo", "e_drgrpo_scaled", "r1_grpo")
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
    **{
        f"play_verl_{run}": Unshipped("8 × H100", "verl, vLLM eager", play_verl(f"play_verl_{run}"))
        for run in ("05b_grpo", "05b_ppo", "7b_min", "7b_recommended")
    },
    **{
        f"qwen3_8b_h20{run}": Unshipped("4 × H20", "verl, vLLM server", qwen3_8b_h20())
        for run in ("", "_drgrpo", "_aggonly", *(f"_{name}" for name in _LATER_H20))
    },
    "gpg_megatron": Unshipped("8 × A100-80 or A800-80", "verl, vLLM eager", gpg_megatron()),
    "mini_r1_zero": Unshipped("1 × A800-80", "TRL, vLLM", mini_r1_zero(), names="trl"),
    **{f"trl_{run}": Unshipped("1 × H100", "TRL, vLLM", trl_rho(), names="trl") for run in _RHO},
    "nemo_rl_b200": Unshipped("8 × B200", "NeMo RL, vLLM eager", nemo_rl_b200(), names="nemo_rl"),
    "verl_mi300x_grpo": Unshipped("8 × MI300X", "verl, vLLM eager", verl_mi300x(critic=False)),
    "verl_mi300x_ppo": Unshipped("8 × MI300X", "verl, vLLM eager", verl_mi300x(critic=True)),
    **{
        f"econ_lora_{run}": Unshipped(
            "1, not said which", "verl, vLLM eager", econ_lora(4 if run == "four" else 1)
        )
        for run in _ECON
    },
    **{
        f"asycn_{run}": Unshipped("8 of Hopper, not said which", "verl, vLLM server, eager", asycn_verl())
        for run in _ASYCN
    },
    "cluster_verl": Unshipped("64 × H20, not said", "verl, vLLM eager", cluster_verl()),
    "qwen3_8b_h20_dapo": Unshipped("4 × H20", "verl, vLLM server", qwen3_8b_h20(reference=False)),
}
"""By name; where their logs are stands in data/README.md."""


def unshipped_run(name: str, log: Path) -> Run:
    """A run that is not shipped, from its log."""
    known = UNSHIPPED[name]
    frame = read_step_log(log, known.names, fields=known.fields).frame
    names = {
        c.STEP: "step",
        c.LENGTH_MAX: "response_max",
        c.TOKENS_TOTAL: "tokens",
        c.STEP_TESTING_S: "testing_s",
        c.STEP_SAVE_S: "save_checkpoint_s",
        **{c.timing(stage): f"{stage}_s" for stage in STAGES},
        _GEN_OF_2024: "gen_s",
    }
    steps = frame[[name for name in names if name in frame]].rename(columns=names)
    if "tokens" not in steps:
        rollouts = known.scenario["rollout_batch_size"]
        prompts = frame.get(c.PROMPT_LENGTH_MEAN, unlogged_prompt(name))
        steps["tokens"] = (frame[c.LENGTH_MEAN] + prompts) * rollouts
    if (sync := c.timing("update_weights")) in frame:  # as the others count it
        steps["gen_s"] = frame[c.timing("gen")] + frame[sync]
    if "response_max" not in steps:  # the line is one in tokens alone
        steps["response_max"] = known.scenario["max_response_length"]
    if "step_s" not in steps:
        steps["step_s"] = frame[[name for name in frame if str(name).startswith("timing_s/")]].sum(axis=1)
    scenario = {**known.scenario, "name": name}
    steps = measured_steps(steps)
    return Run(
        UNSHIPPED_SOURCE, name, known.gpu, known.framework, steps, scenario, log, known.fields, known.names
    )
