"""Which metric of a framework's log holds the seconds of which of our stages, and what else is read.

From the projects' own code, 2025 and 2026. A metric may hold several stages (``covers``), and some of them
only where the log names them nowhere else (``also``): verl's ``gen`` wakes the engine and loads the new
weights, so it holds ``update_weights`` unless a version logs that apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from oppo_sim.columns import (
    GENERATION_BATCHES,
    PER_TOKEN_UPDATE_MS,
    PROMPT_LENGTH_MAX,
    ROLLOUTS_TRAINED,
    SLOWEST_LENGTH,
    SLOWEST_TOOL_S,
    TOKENS_CUMULATIVE,
    TOKENS_TOTAL,
    TURNS_MAX,
    timing,
)
from oppo_sim.traces.importers.running_time import SECONDS_A_STEP


class Timed(NamedTuple):
    """A metric of seconds. ``names``: the preferred name first, without prefixes; ``*name`` is an ending."""

    covers: tuple[str, ...]
    names: tuple[str, ...]
    also: tuple[str, ...] = ()
    plus: tuple[str, ...] = ()
    """Metrics that are added to it where the log has them."""

    @property
    def column(self) -> str:
        """Ours: ``timing_s/gen+reward``."""
        return timing("+".join(self.covers))


def stages_in(column: str) -> tuple[str, ...]:
    """What a column of seconds holds by its name (``Timed.column``)."""
    return tuple(column.removeprefix("timing_s/").split("+"))


@dataclass(frozen=True)
class LogNames:
    """What one framework logs a step."""

    name: str
    importer: str
    """Whose length figures it has (``traces.importers``)."""
    stages: tuple[Timed, ...]
    step: tuple[str, ...]
    """The whole step: all of the above, and what no stage names (data, logging)."""
    testing: tuple[str, ...] = ()
    """Validation, inside the step."""
    saving: tuple[str, ...] = ()
    """Checkpoints, inside the step."""
    late_beside: tuple[str, ...] = ()
    """Metrics beside which the whole step is that of the step before: it is logged when the next begins."""
    figures: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Further figures by our column."""
    sequences: tuple[str, str] | None = None
    """Endings, before ``/avg`` and ``/max``, of the lengths of whole sequences and of their prompts, where no
    response has its own."""
    replaced: tuple[str, ...] = ()
    """How many groups were dropped while others were generated in their place, in no batch of their own;
    ``name*`` is a beginning."""
    kept_percent: tuple[str, ...] = ()
    """How much of what was generated was kept, where others were generated in place of the rest."""
    beside: dict[str, float] = field(default_factory=dict)
    """Metrics that are logged, above a value, where a run generates while it trains; ``name*`` is a
    beginning. Its seconds of generation are then what the trainer waited."""
    in_turns: tuple[str, ...] = ()
    """Metrics of a run that gives the GPUs from generation to training and back, whatever ``beside`` says."""
    switches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Metrics of ``beside`` that a run in turns has too where it carries unfinished rollouts, unless the log
    has one of these."""
    untimed_rewards: tuple[str, ...] = ()
    """Metrics of a version that computes rewards as rollouts finish and then names no seconds of them."""
    locked: tuple[str, ...] = ()
    """Our columns that wait for generation where that is beside training."""
    not_run: tuple[str, ...] = ()
    """Stages that it does not run where it names no seconds of them."""
    shown_by: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Stages whose seconds it does not name, and metrics that it logs where it runs them."""
    updates: bool = False
    """A step is an update; several may train what one of them generated (``trained_again``)."""
    made_tokens: bool = False
    """Lengths count what the actor made, not what tools answered."""
    note: str = ""
    """What its stages hold, for the documentation and the report."""


_ALWAYS: Final = -1.0
"""Any value of a metric."""

_VERL: Final = LogNames(
    name="verl",
    importer="verl",
    stages=(
        # One step off, ``gen`` is what is left to wait for; the seconds of the batch itself stand beside it.
        Timed(
            ("gen",),
            ("timing_s/generate_async", "timing_s/gen"),
            also=("update_weights",),
            # Waits of trainers that lend their GPUs to generation.
            plus=("timing_s/switch_wait", "timing_s/wait_for_enough_samples"),
        ),
        Timed(("reward",), ("timing_s/reward",)),
        Timed(("old_log_prob",), ("timing_s/old_log_prob",)),
        Timed(("ref",), ("timing_s/ref",)),
        Timed(("values",), ("timing_s/values",)),
        Timed(("adv",), ("timing_s/adv",), also=("reward",)),  # until 0.3 scores were taken in it
        Timed(("update_critic",), ("timing_s/update_critic",)),
        Timed(("update_actor",), ("timing_s/update_actor",)),
        Timed(
            ("update_weights",),
            (
                "timing_s/update_weights",
                "timing_s/sync_rollout_weights",
                "timing_s/timing_s/param_sync",
                "timing_s/param_sync",
            ),
        ),
    ),
    step=("timing_s/step", "perf/time_per_step"),
    testing=("timing_s/testing",),
    saving=("timing_s/save_checkpoint",),
    figures={
        TOKENS_TOTAL: ("perf/total_num_tokens",),
        PROMPT_LENGTH_MAX: ("prompt_length/max",),
        SLOWEST_LENGTH: ("timing_s/agent_loop/slowest/response_length",),
        SLOWEST_TOOL_S: ("timing_s/agent_loop/slowest/tool_calls",),
        TURNS_MAX: ("num_turns/max",),
        PER_TOKEN_UPDATE_MS: ("timing_per_token_ms/update_actor",),
        GENERATION_BATCHES: ("train/num_gen_batches",),
    },
    replaced=("training/filter_groups/evicted_samples", "training/rollout_failure/evicted_samples"),
    beside={
        "timing_s/wait_prev_gen": 0.0,
        "fully_async/*": 0.0,
        "separate_async/*": 0.0,
        "training/off_policy/trajectory_staleness_worst/mean": 0.0,
    },
    # Its colocated mode lags as its separate one does; only that one takes engines down to begin with.
    switches={
        "training/off_policy/trajectory_staleness_worst/mean": (
            "timing_s/switch_to_trainer",
            "timing_s/switch_to_rollout",
            "timing_s/switch_wait",
        )
    },
    # The v1 trainer times rewards only where a reward model shares the GPUs of training.
    untimed_rewards=("training/off_policy/trajectory_spans/mean", "training/num_turns/mean"),
    note="gen holds waking the engine, resharding and loading weights; step holds validation and checkpoints",
)

_OPENRLHF: Final = LogNames(
    name="openrlhf",
    importer="openrlhf",
    stages=(
        Timed(("gen",), ("timing/generation",)),
        Timed(("reward", "old_log_prob", "ref", "values", "adv"), ("timing/make_experience",)),
        Timed(("update_critic", "update_actor"), ("timing/ppo_train", "timing/policy_train")),
        Timed(("update_weights",), ("timing/broadcast",)),
    ),
    step=("timing/step_total",),
    figures={ROLLOUTS_TRAINED: ("rollout/num_samples",)},
    kept_percent=("dynamic_filtering_pass_rate",),
    # One step off, the weights are sent under a lock that generation holds until it is done.
    locked=(timing("update_weights"),),
    note="make_experience holds scoring and every forward; ppo_train trains critic and actor",
)

_SLIME: Final = LogNames(
    name="slime",
    importer="slime",
    stages=(
        Timed(("gen", "reward"), ("perf/rollout_time",)),
        Timed(("old_log_prob",), ("perf/log_probs_time",)),
        Timed(("ref",), ("perf/ref_log_probs_time",)),
        Timed(("update_actor",), ("perf/actor_train_time",)),
        Timed(("update_weights",), ("perf/update_weights_time",)),
    ),
    step=("perf/step_time",),
    saving=("perf/save_model_time",),
    figures={SLOWEST_TOOL_S: ("perf/longest_sample_non_generation_time",)},
    replaced=("rollout/dynamic_filter/drop_*",),
    made_tokens=True,
    note="rollout_time holds rewards: they are computed as rollouts finish",
)

_NEMO: Final = LogNames(
    name="nemo_rl",
    importer="nemo_rl",
    stages=(
        Timed(("gen",), ("timing/train/generation", "timing/train/exposed_generation")),
        Timed(("reward",), ("timing/train/reward_calculation",)),
        Timed(("old_log_prob", "ref"), ("timing/train/policy_and_reference_logprobs",)),
        Timed(("old_log_prob",), ("timing/train/policy_logprobs",)),
        Timed(("ref",), ("timing/train/reference_logprobs",)),
        Timed(("values",), ("timing/train/value_inference",)),
        Timed(("adv",), ("timing/train/advantage_calculation",)),
        Timed(("update_critic",), ("timing/train/value_training",)),
        Timed(("update_actor",), ("timing/train/policy_training",)),
        Timed(("update_weights",), ("timing/train/prepare_for_generation/total", "timing/train/weight_sync")),
    ),
    step=("timing/train/total_step_time",),
    testing=("timing/validation/total_validation_time",),
    saving=("timing/train/checkpointing",),
    figures={
        TOKENS_TOTAL: ("total_num_tokens",),
        GENERATION_BATCHES: ("dynamic_sampling_num_gen_batches",),
    },
    beside={"timing/train/exposed_generation": 0.0},
    note="prepare_for_generation holds waking the engine and the refit of its weights",
)

_ROLL: Final = LogNames(
    name="roll",
    importer="roll",
    stages=(
        Timed(("gen", "reward"), ("time/step_generate", "time/step_rollout")),
        Timed(("ref",), ("time/ref_log_probs_values", "time/step_ref_log_probs_values_reward")),
        Timed(("old_log_prob",), ("time/old_log_probs", "time/step_old_log_probs_values"), also=("values",)),
        Timed(("adv",), ("*time/compute_advantage", "time/adv", "time/step_adv")),
        Timed(("update_critic", "update_actor"), ("time/step_train",)),
        Timed(("update_weights",), ("time/step_model_update",)),
    ),
    step=("time/step_total",),
    testing=("time/val_step",),
    # Roles save beside each other.
    saving=("time/actor_train/do_checkpoint/total",),
    figures={ROLLOUTS_TRAINED: ("system/batch_size",)},
    replaced=("*scheduler/query_filter_count", "*scheduler/group_filter_count"),
    late_beside=("time/step_generate",),
    beside={"time/step_stop_server": 0.05, "time/step_shrink": 0.0},
    note="step_generate and step_rollout hold rewards; old_log_probs the critic's values",
)

_SKYRL: Final = LogNames(
    name="skyrl",
    importer="skyrl",
    stages=(
        Timed(("gen", "reward"), ("timing/generate",)),
        Timed(("old_log_prob", "ref", "values"), ("timing/fwd_logprobs_values_reward",)),
        Timed(("adv",), ("timing/compute_advantages_and_returns",)),
        Timed(("update_critic",), ("timing/critic_train",)),
        Timed(("update_actor",), ("timing/policy_train",)),
        Timed(("update_critic", "update_actor"), ("timing/train_critic_and_policy",)),
        Timed(("update_weights",), ("timing/sync_weights", "timing/sync_weights_to_inference_engines")),
    ),
    step=("timing/step",),
    testing=("timing/eval",),
    saving=("timing/save_checkpoints",),
    beside={"timing/wait_for_generation_buffer": 0.0},
    note="generate holds rewards; fwd_logprobs_values_reward every forward",
)

_TRL: Final = LogNames(
    name="trl",
    importer="trl",
    stages=(
        Timed(("gen",), ("*.vLLM.generate", "*.transformers.generate", "*.generate", "*.generate_batch")),
        Timed(("reward",), ("*._calculate_rewards",)),
        Timed(("update_weights",), ("*._move_model_to_vllm", "*.sync_weights")),
    ),
    step=("step_time",),
    figures={TOKENS_CUMULATIVE: ("num_tokens",)},
    shown_by={"ref": ("kl",)},  # where beta is above 0
    updates=True,
    note=(
        "most logs name the whole step alone, without the optimizer's own seconds (DeepSpeed: with);"
        " generation where profiling is reported (wandb)"
    ),
)

_SWIFT: Final = LogNames(
    name="ms_swift",
    importer="ms_swift",
    stages=(
        Timed(("gen",), ("*.generate",)),
        Timed(("reward",), ("*._compute_rewards_per_func",)),
        Timed(("update_weights",), ("*._move_model_to_vllm",)),
    ),
    step=(SECONDS_A_STEP,),
    shown_by={"ref": ("kl",)},
    updates=True,
    made_tokens=True,
    note="the whole step alone, from the run's seconds; checkpoints are inside, validation is not",
)

_AREAL: Final = LogNames(
    name="areal",
    importer="areal",
    stages=(
        Timed(("gen", "reward"), ("timeperf/rollout",)),
        Timed(("old_log_prob",), ("timeperf/recompute_logp",)),
        Timed(("ref",), ("timeperf/ref_logp",)),
        Timed(("values",), ("timeperf/critic_values",)),
        Timed(("adv",), ("timeperf/compute_advantage",)),
        Timed(("update_critic",), ("timeperf/critic_train_step",)),
        Timed(("update_actor",), ("timeperf/train_step",)),
        Timed(("update_weights",), ("timeperf/update_weights",)),
    ),
    step=(),
    sequences=("/seq_len", "/prompt_len"),
    beside={"timeperf/rollout": _ALWAYS},
    in_turns=("timeperf/rollout_offload",),
    note=(
        "training alone: rollout is what the trainer waits for; on shared GPUs it is generation with rewards"
    ),
)

_PRIME_RL: Final = LogNames(
    name="prime_rl",
    importer="prime_rl",
    stages=(
        Timed(("old_log_prob",), ("time/compute_logprobs",)),  # in 2025
        Timed(("update_actor",), ("time/forward_backward",)),
        Timed(("update_weights",), ("time/broadcast_weights",)),
    ),
    step=(),
    beside={"time/wait_for_batch": _ALWAYS},
    # Probabilities are the engine's; a teacher's come with the rollouts.
    not_run=("old_log_prob", "ref"),
    note="training alone: generation goes on beside it",
)

_OPEN_INSTRUCT: Final = LogNames(
    name="open_instruct",
    importer="open_instruct",
    stages=(
        Timed(("old_log_prob", "ref", "update_actor"), ("time/training",)),
        Timed(("update_weights",), ("time/weight_sync",)),
    ),
    step=(),
    beside={"time/trainer_waiting_for_data": _ALWAYS},
    note="training alone: generation goes on beside it; training holds every forward of the policy",
)

FRAMEWORKS: Final[tuple[LogNames, ...]] = (
    _VERL,
    _OPENRLHF,
    _SLIME,
    _NEMO,
    _ROLL,
    _SKYRL,
    _TRL,
    _SWIFT,
    _AREAL,
    _PRIME_RL,
    _OPEN_INSTRUCT,
)

REWARDS_ALONG: Final = frozenset(
    names.name for names in FRAMEWORKS if any(timed.covers == ("gen", "reward") for timed in names.stages)
)
"""Frameworks that compute rewards as rollouts finish, within their metric of generation."""

NOT_RUN: Final[Mapping[str, tuple[str, ...]]] = {
    names.name: names.not_run for names in FRAMEWORKS if names.not_run
}
"""``LogNames.not_run`` by framework."""
