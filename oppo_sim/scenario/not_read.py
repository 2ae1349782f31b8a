"""Settings in sections of other frameworks that are not translated: all at once, with what says them here."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from oppo_sim.scenario.aliases import ALIASES

_SAID_BY: Mapping[str, str] = {
    "model.path": "costs.actor_model",
    "use_kl_loss": "training.ref",
    "use_kl_in_reward": "training.ref",
    "strategy": "training.sharding",
    "use_dynamic_bsz": "true: training.micro_batch_tokens, false: training.micro_batch_rollouts",
    "multi_turn": "turns and tools of the trace",
    "total_epochs": "steps",
    "total_training_steps": "steps",
    "data_parallel_size": "costs.rollout.attention_data_parallel",
    "calculate_log_probs": "training.old_log_prob",
    "context_parallel_size": "training.sequence_parallel",
    "recompute_granularity": "training.gradient_checkpointing, training.selective_recompute",
    "rollout_correction": "training.old_log_prob",
    "dtype": "costs.rollout.dtype, training.dtype",
}
"""End of a setting, or a mapping on its way → what says it here."""

_FEW = 6


def settings_of(section: str, value: Any) -> Iterator[str]:
    """The settings of a section as it was given, in full."""
    if not isinstance(value, Mapping) or not value:
        yield section
        return
    for key, inner in value.items():
        yield from settings_of(f"{section}.{key}", inner)


def is_of_a_framework(section: str) -> bool:
    """Whether names of another framework begin with it."""
    return any(name.startswith(f"{section}.") for name in ALIASES)


def not_read(settings: Sequence[str]) -> str:
    """One sentence for all settings that are not translated."""
    if len(settings) == 1:
        return f"unknown field {settings[0]}: {_of_one(settings[0])}"
    named = [f"{each} ({hint})" if (hint := _hint(each)) else each for each in settings]
    return (
        f"{len(settings)} settings are not read, remove them (in brackets what says it instead):"
        f" {', '.join(named)}"
    )


def _of_one(setting: str) -> str:
    if hint := _hint(setting):
        return hint if hint.startswith("did you") else f"{hint} says it, remove this"
    section = setting.partition(".")[0]
    known = [name for name in ALIASES if name.startswith(f"{section}.")]
    listed = f"of {section} there are {', '.join(known)}"
    return listed if len(known) <= _FEW else "it is not read, remove it"


def _hint(setting: str) -> str:
    parts = setting.split(".")
    for end, field in _SAID_BY.items():
        if setting.endswith(f".{end}") or end in parts:
            return field
    above = ".".join(parts[:-1])
    beside = [name for name in ALIASES if name.rpartition(".")[0] == above]
    near = get_close_matches(setting, beside, n=1, cutoff=0.9)
    return f"did you mean {near[0]}?" if near else ""
