"""The ``training:`` section of a scenario: what PPO does with a batch. Names follow TRL and verl."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from oppo_sim.costs.strict import Count, NonNegative, Positive, Strict

OldLogProb = Literal["behaviour", "recompute"]
Critic = Literal["separate", "value_head", "none"]
Optimizer = Literal["adamw", "adamw_8bit", "sgd"]
Sharding = Literal["full", "optimizer", "none"]


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

    The defaults give the 20 seconds reported for a 10B model in bf16 (20 GB); how the time divides into its
    terms is assumed.
    """

    kind: Literal["online_refit"] = "online_refit"
    fixed_s: NonNegative = 1.0
    convert_bytes_per_s: Positive = 1.06e9
    link_bytes_per_s: Positive | None = None
    """None: the training devices' link at its achievable share."""


class SharedWeights(Strict):
    """Generation uses the trained weights themselves (a plain ``generate()`` in the training process):
    fixed_s seconds. Colocated only."""

    kind: Literal["shared"]
    fixed_s: NonNegative = 0.0


WeightSync = Annotated[FullExport | OnlineRefit | SharedWeights, Field(discriminator="kind")]


class TrainingConfig(Strict):
    """How ``rollout_batch_size`` rollouts are trained. Defaults: TRL's PPO where it has them, else verl's."""

    num_ppo_epochs: Count = 4
    num_mini_batches: Count = 1
    """Optimizer steps an epoch."""
    micro_batch_tokens: Literal["auto"] | Count = "auto"
    """Tokens one data-parallel rank runs at once; ``auto``: as many as fit into the device memory."""
    selective_recompute: bool = False
    """Half the activation memory for a fifth of the training speed."""
    optimizer: Optimizer = "adamw"
    sharding: Sharding = "full"
    """``full``: FSDP or ZeRO-3; ``optimizer``: ZeRO-1; ``none``: plain data parallelism."""
    offload: bool = False
    """Weights, gradients and optimizer state wait in host memory during generation (colocated training)."""
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
    weight_sync: WeightSync = OnlineRefit()

    @model_validator(mode="after")
    def _consistent(self) -> "TrainingConfig":
        if self.stream_ref and not self.ref:
            raise ValueError("stream_ref: true needs ref: true; there is no reference model to stream")
        if self.num_gpus is not None and self.num_gpus % self.tensor_parallel:
            raise ValueError(
                f"num_gpus {self.num_gpus} is not a multiple of tensor_parallel {self.tensor_parallel};"
                " change either"
            )
        return self
