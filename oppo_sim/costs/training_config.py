"""The ``training:`` section of a scenario: what PPO does with a batch. Names follow TRL and verl."""

from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from oppo_sim.costs.strict import Count, NonNegative, Positive, Strict

OldLogProb = Literal["behaviour", "recompute"]
Critic = Literal["separate", "value_head", "none"]
Optimizer = Literal["adamw", "adamw_8bit", "sgd"]
Sharding = Literal["full", "optimizer", "none"]
TrainingDtype = Literal["bf16", "fp16", "tf32", "float32"]


SYNC_BYTES_PER_S: Final = 6e9
"""Of up to 8 GPUs. An engine on the training GPUs: what verl takes on four A800 with 6 GB (2.4 s of ``gen``
that are not its slowest rollout) and on eight A100 with 15 GB (4.4 s, ``timing_s/reshard``), less 2 s of
waking (``gen_phase_s``): develop runs of experiments/public_gpu. To other GPUs 8 and 16 send 2 to 14 GB/s in
reports."""
RESHARD_SCALING: Final = 0.3
"""Exponent of the number of nodes of 8 GPUs: each holds a part of the weights."""
REFIT_SCALING: Final = 0.6
"""Likewise of those that train, where others generate."""


def sync_rate(num_gpus: int, scaling: float) -> float:
    """Bytes of a model a second that ``num_gpus`` training GPUs convert or load together, by default."""
    scaled: float = max(1.0, num_gpus / 8.0) ** scaling
    return SYNC_BYTES_PER_S * scaled


class FullExport(Strict):
    """The weights are gathered, written out and loaded by a rebuilt engine: fixed_s + bytes/export +
    bytes/load seconds.

    The defaults give the 15 minutes reported for a 10B model in bf16 (20 GB); how the time divides into its
    three terms is assumed.
    """

    kind: Literal["full_export"]
    fixed_s: NonNegative = 100.0
    export_bytes_per_s: Positive = 5e7
    load_bytes_per_s: Positive = 5e7


class OnlineRefit(Strict):
    """The weights are converted and sent into the running engine: fixed_s + bytes/convert + bytes/link
    seconds.

    The default rate is ``SYNC_BYTES_PER_S`` of up to 8 training GPUs, and 1.52 times as much for each
    doubling (``REFIT_SCALING``), as frameworks report for 15 GB to 1.3 TB (docs/costs.md, weight sync).
    ``fixed_s`` is assumed.
    """

    kind: Literal["online_refit"] = "online_refit"
    fixed_s: NonNegative = 0.5
    convert_bytes_per_s: Positive | None = None
    """Of the whole model; None: by the number of training GPUs."""
    link_bytes_per_s: Positive | None = None
    """None: the training devices' link at its achievable share."""


class SharedWeights(Strict):
    """Generation uses the trained weights themselves (a plain ``generate()`` in the training process):
    fixed_s seconds. Colocated only."""

    kind: Literal["shared"]
    fixed_s: NonNegative = 0.0


class Reshard(Strict):
    """The trained shards are gathered and loaded by an engine on the same devices (verl's hybrid engine):
    fixed_s + bytes/load + bytes/link seconds. Colocated only.

    The default rate is ``SYNC_BYTES_PER_S`` of up to 8 GPUs, and 1.23 times as much for each doubling
    (``RESHARD_SCALING``), as 6 GB to 1.3 TB on 4 to 256 GPUs were reported (docs/costs.md, weight sync).
    """

    kind: Literal["reshard"]
    fixed_s: NonNegative = 0.0
    load_bytes_per_s: Positive | None = None
    """Of the whole model; None: by the number of GPUs."""
    sleep_level: Literal[1, 2] = 2
    """What an engine that sleeps while training runs (``costs.rollout.sleep_mode``) does with its weights: 2
    discards them, 1 copies them to host memory first, at ``sleep_bytes_per_s`` a device."""
    sleep_bytes_per_s: Positive | None = None
    """None: what the device's link to host memory reaches. Only the first sleep of an engine is slower, which
    allocates that memory (1.6 to 3.8 GB/s; docs/costs.md). Back again they are part of
    ``load_bytes_per_s``."""


WeightSync = Annotated[FullExport | OnlineRefit | Reshard | SharedWeights, Field(discriminator="kind")]


class TrainingConfig(Strict):
    """How ``rollout_batch_size`` rollouts are trained. Defaults: TRL's PPO where it has them, else verl's."""

    num_ppo_epochs: Count = 4
    num_mini_batches: Count = 1
    """Optimizer steps an epoch."""
    dtype: TrainingDtype = "bf16"
    """Of weights and activations in forward and backward; optimizer states are in 32 bits whatever it is."""
    micro_batch_tokens: Literal["auto"] | Count = "auto"
    """Tokens that each device of a sequence-parallel group brings to a micro-batch (verl's
    ``ppo_max_token_len_per_gpu``); ``auto``: as many as fit into the device memory, in a pipeline at most as
    many as make four micro-batches a stage of a mini-batch of rollouts of half the longest."""
    log_prob_micro_batch_tokens: Count | None = None
    """Likewise in ``old_log_prob`` and ``values``; None: ``micro_batch_tokens``."""
    ref_micro_batch_tokens: Count | None = None
    """Likewise in ``ref``."""
    micro_batch_rollouts: Count | None = None
    """Instead of a budget of tokens: rollouts that a rank runs at once (verl's
    ``ppo_micro_batch_size_per_gpu``)."""
    log_prob_micro_batch_rollouts: Count | None = None
    """Likewise in ``old_log_prob`` and ``values``; None: as the updates, unless
    ``log_prob_micro_batch_tokens`` is given."""
    ref_micro_batch_rollouts: Count | None = None
    """Likewise in ``ref``."""
    remove_padding: bool = True
    """False: every rollout runs as ``max_prompt_length`` + ``max_response_length`` tokens (verl without
    ``use_remove_padding``); attention leaves the padding out."""
    critic_micro_batch_tokens: Count | None = None
    """Of the critic, in ``values`` and its updates (verl's ``critic.ppo_max_token_len_per_gpu``); None: as
    the others."""
    critic_micro_batch_rollouts: Count | None = None
    """Likewise as a number of rollouts."""
    critic_remove_padding: bool | None = None
    """Of the critic (verl's ``critic.model.use_remove_padding``, which is false unless set); None: as
    ``remove_padding``."""
    reduce_dtype: Literal["float32"] | None = None
    """Of gradients on their way between devices (verl's FSDP: float32); None: ``dtype``."""
    selective_recompute: bool = False
    """Half the activation memory for a fifth of the training speed."""
    gradient_checkpointing: bool = False
    """Layers keep their inputs alone and are run again in the backward: one more forward."""
    lora_rank: Annotated[int, Field(ge=0, le=4096)] = 0
    """Of adapters beside every linear projection of the actor (LoRA), which alone are trained; the reference
    model is then the actor without them. 0: all weights are trained."""
    lora_merge: bool = False
    """Adapters are merged into the weights that engines are sent, so all of these move (TRL; verl's
    ``lora.merge``). False: the adapters alone (verl's default)."""
    optimizer: Optimizer = "adamw"
    sharding: Sharding = "full"
    """``full``: FSDP or ZeRO-3; ``optimizer``: ZeRO-1; ``none``: plain data parallelism."""
    offload: bool = False
    """Weights, gradients and optimizer state wait in host memory during generation (colocated training)."""
    param_offload: bool = False
    """The weights of actor and critic are in host memory but for the stages that run them (verl's FSDP)."""
    optimizer_offload: bool = False
    """Their optimizer states are in host memory but for their updates."""
    ref_param_offload: bool = False
    """The reference model's weights are in host memory; each micro-batch brings them in layer by layer."""
    old_log_prob: OldLogProb = "recompute"
    parallel_inference: bool = False
    """``old_log_prob``, ``ref`` and ``values`` run beside each other, each on devices of its own."""
    ref: bool = True
    """A reference model for the KL penalty."""
    stream_ref: bool = False
    """The scoring workers run the reference model over the pieces they score; stage ``ref`` is then 0."""
    critic: Critic = "separate"
    """``value_head``: a head on the actor, trained with it."""
    num_gpus: Count | None = None
    """None: as many as the rollout replicas have."""
    tensor_parallel: Count = 1
    pipeline_parallel: Count = 1
    """Stages that the layers are divided among, each on devices of its own (Megatron's
    ``pipeline_model_parallel_size``); micro-batches go through them one after the other."""
    virtual_pipeline_parallel: Count = 1
    """Chunks of layers that a stage has, which shorten the filling of the pipeline (Megatron's
    ``virtual_pipeline_model_parallel_size``)."""
    sequence_parallel: Count = 1
    """Devices that share the tokens of a sequence, heads divided in attention (Ulysses)."""
    expert_parallel: Count = 1
    """Devices that the experts of a layer are divided among (Megatron's ``expert_model_parallel_size``);
    tokens go to the experts that they use and back."""
    expert_tensor_parallel: Count | None = None
    """Devices that share the matrices of an expert (Megatron's ``expert_tensor_parallel_size``); None:
    ``tensor_parallel``."""
    weight_sync: WeightSync = OnlineRefit()

    @property
    def model_parallel(self) -> int:
        """Devices that the weights are divided among."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def expert_devices(self) -> int:
        """Devices that the experts of a layer are divided among, whole or in parts."""
        return self.expert_parallel * (self.expert_tensor_parallel or self.tensor_parallel)

    @property
    def devices_of_a_rank(self) -> int:
        """Devices that run a sequence together."""
        return self.model_parallel * self.sequence_parallel

    def divided_by(self, *, values: bool) -> str:
        """The fields whose product these are, ``values`` with their numbers."""
        names = ("tensor_parallel", "pipeline_parallel", "sequence_parallel")
        used = [name for name in names if getattr(self, name) > 1] or ["tensor_parallel"]
        if len(used) == 1 and used != ["tensor_parallel"]:
            used.insert(0, "tensor_parallel")
        return " times ".join(f"{name} {getattr(self, name)}" if values else name for name in used)

    def check_expert_devices(self, num_gpus: int) -> None:
        """Raises ValueError if experts cannot be divided among ``num_gpus`` devices."""
        if self.expert_devices == self.tensor_parallel:
            return
        devices = self.expert_devices * self.pipeline_parallel
        if num_gpus % devices:
            raise ValueError(
                f"num_gpus {num_gpus} is not a multiple of expert_parallel {self.expert_parallel} times"
                f" expert_tensor_parallel {self.expert_devices // self.expert_parallel}"
                f" times pipeline_parallel {self.pipeline_parallel}; change either"
            )

    def removes_padding(self, model: str) -> bool:
        """Whether ``model`` (actor, critic or reference) runs without it."""
        own = self.critic_remove_padding if model == "critic" else None
        return self.remove_padding if own is None else own

    @model_validator(mode="after")
    def _consistent(self) -> "TrainingConfig":
        if self.stream_ref and not self.ref:
            raise ValueError("stream_ref: true needs ref: true; there is no reference model to stream")
        if self.num_gpus is not None and self.num_gpus % self.devices_of_a_rank:
            raise ValueError(
                f"num_gpus {self.num_gpus} is not a multiple of {self.divided_by(values=True)}; change either"
            )
        if self.num_gpus is not None:
            self.check_expert_devices(self.num_gpus)
        if self.lora_merge and not self.lora_rank:
            raise ValueError("lora_merge: true needs a lora_rank: there are no adapters to merge")
        if self.virtual_pipeline_parallel > 1 and self.pipeline_parallel == 1:
            raise ValueError(
                f"virtual_pipeline_parallel {self.virtual_pipeline_parallel} needs pipeline_parallel of 2 or"
                " more: there is no pipeline to interleave"
            )
        if self.pipeline_parallel > 1 and self.sharding == "full":
            raise ValueError(
                "sharding: full gathers every layer on every device, and pipeline_parallel"
                f" {self.pipeline_parallel} leaves it on those of its stage: take sharding: optimizer"
                " (Megatron's distributed optimizer) or none"
            )
        for name in ("", "log_prob_", "ref_", "critic_"):
            tokens, rollouts = f"{name}micro_batch_tokens", f"{name}micro_batch_rollouts"
            if getattr(self, rollouts) is not None and getattr(self, tokens) not in (None, "auto"):
                raise ValueError(f"{tokens} and {rollouts} are two sizes of one micro-batch: choose one")
        own = [name for name in type(self).model_fields if name.startswith("critic_")]
        given = [name for name in own if getattr(self, name) is not None]
        if given and self.critic != "separate":
            raise ValueError(
                f"{given[0]} is of a critic of its own, and critic is {self.critic}: leave it out"
            )
        if self.selective_recompute and self.gradient_checkpointing:
            raise ValueError(
                "selective_recompute and gradient_checkpointing are two ways to keep fewer activations:"
                " choose one"
            )
        if self.offload and (self.param_offload or self.optimizer_offload):
            raise ValueError(
                "offload: true moves weights, gradients and optimizer states together: leave out"
                " param_offload and optimizer_offload, or offload"
            )
        return self
