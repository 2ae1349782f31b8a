"""The ``costs:`` section of a scenario."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from oppo_sim.costs.devices import Device, Dtype
from oppo_sim.costs.models import ModelShape
from oppo_sim.costs.strict import Count, NonNegative, Positive, Share, Strict

ModelRef = str | ModelShape
"""A preset ("qwen2.5-7b", "Qwen/Qwen2.5-7B-Instruct"), a path to a Hugging Face ``config.json`` or its
folder, or a shape inline."""
DeviceRef = str | Device
"""A device of ``devices.py`` by name, or its rates inline."""


class DemandShares(Strict):
    """Shares of the achievable memory traffic and arithmetic that an activity takes when alone."""

    memory: Annotated[float, Field(ge=0, le=1)] = 0.0
    arithmetic: Annotated[float, Field(ge=0, le=1)] = 0.0


MEMORY_BOUND = DemandShares(memory=1.0)
COMPUTE_BOUND = DemandShares(arithmetic=1.0)


class Demands(Strict):
    """Demand of each kind of activity, for contention on shared devices."""

    decode: DemandShares = MEMORY_BOUND
    prefill: DemandShares = COMPUTE_BOUND
    score: DemandShares = COMPUTE_BOUND
    training: DemandShares = COMPUTE_BOUND
    update_weights: DemandShares = MEMORY_BOUND


# ---- linear ------------------------------------------------------------------------------------------------


class LinearDecode(Strict):
    """Seconds of an iteration: fixed + per_rollout·n + per_kv_token·kv."""

    fixed: Positive
    per_rollout: NonNegative = 0.0
    per_kv_token: NonNegative = 0.0


class LinearForward(Strict):
    """Seconds: fixed + per_token·tokens + per_pair·pairs (query-key pairs; Σ n²/2 for a trained batch)."""

    fixed: NonNegative = 0.0
    per_token: NonNegative = 0.0
    per_pair: NonNegative = 0.0


class LinearStages(Strict):
    """The training stages, each for the whole stage (all epochs); ``update_weights`` in seconds."""

    old_log_prob: LinearForward = LinearForward()
    ref: LinearForward = LinearForward()
    values: LinearForward = LinearForward()
    adv: LinearForward = LinearForward()
    update_critic: LinearForward = LinearForward()
    update_actor: LinearForward = LinearForward()
    update_weights: NonNegative = 0.0


class LinearCostConfig(Strict):
    """Coefficients in seconds. Stages that ``training:`` switches off cost nothing whatever is written
    here."""

    kind: Literal["linear"]
    decode: LinearDecode
    prefill: LinearForward = LinearForward()
    score: LinearForward = LinearForward()
    """The reward model over a scoring batch."""
    score_ref: LinearForward | None = None
    """The reference model over the same batch; asked for by ``training.stream_ref``."""
    stages: LinearStages = LinearStages()
    demands: Demands = Demands()


# ---- roofline ----------------------------------------------------------------------------------------------


class Achievable(Strict):
    """What of a datasheet's peak a kernel gets. Assumptions, not measurements: see docs/costs.md."""

    gemm: Share = 0.70
    attention: Share = 0.50
    memory: Share = 0.85
    link: Share = 0.70
    collective_latency_s: NonNegative = 8e-6
    """Of one collective between tensor-parallel devices."""
    layer_latency_s: NonNegative = 2e-5
    """Starts, tails and gaps of one layer's kernels, on the device."""


class HostOverheads(Strict):
    """What the host adds to an iteration."""

    per_iteration_s: NonNegative = 0.0
    per_rollout_s: NonNegative = 0.0
    launch_per_layer_s: NonNegative = 0.0
    """Launching a layer's kernels one by one; runs ahead of the device, so it bounds an iteration from below
    (0 with CUDA graphs)."""
    kv_traffic_factor: Annotated[float, Field(ge=1)] = 1.0
    """KV traffic of an iteration over reading it once: 3 for a cache that is concatenated anew (read and
    written, then read)."""
    captured_batch_sizes: Annotated[tuple[Count, ...], Field(strict=False)] = ()
    """CUDA graphs exist for these batch sizes, smaller batches are padded to the next one; larger ones are
    not padded."""


HostRef = Literal["vllm", "generate"] | HostOverheads


class RolloutEngine(Strict):
    """One rollout replica."""

    device: DeviceRef | None = None
    """None: ``costs.device``; so everywhere below."""
    tensor_parallel: Count = 1
    dtype: Dtype = "bf16"
    kv_cache_dtype: Literal["auto", "fp8"] = "auto"
    host: HostRef = "vllm"
    gpu_memory_utilization: Share = 0.9
    max_num_batched_tokens: Count = 8192
    """Tokens of one forward at most, for the activation memory set aside."""
    achievable: Achievable = Achievable()


class RewardModel(Strict):
    """A reward model on scoring workers."""

    kind: Literal["model"]
    model: ModelRef
    device: DeviceRef | None = None
    tensor_parallel: Count = 1
    dtype: Dtype = "bf16"
    host: HostRef = "vllm"
    gpu_memory_utilization: Share = 0.9
    achievable: Achievable = Achievable()


class Verifier(Strict):
    """Rules instead of a model: a scoring batch costs fixed_s + per_token_s·tokens seconds of a host, and no
    device work."""

    kind: Literal["verifier"]
    fixed_s: NonNegative = 0.0
    per_token_s: NonNegative = 0.0
    device: DeviceRef | None = None
    """Where ``training.stream_ref`` runs the reference model; likewise the fields below."""
    tensor_parallel: Count = 1
    dtype: Dtype = "bf16"
    host: HostRef = "vllm"
    gpu_memory_utilization: Share = 0.9
    achievable: Achievable = Achievable()


class TrainingDevices(Strict):
    """The training group's devices and what they reach; their number and the algorithm are in
    ``training:``."""

    device: DeviceRef | None = None
    achievable: Achievable = Achievable(gemm=0.55, layer_latency_s=0.0)
    link_bytes_per_s: Positive | None = None
    """Per direction and device, where it is not the device's own link (several nodes)."""
    memory_utilization: Share = 0.9
    micro_batch_overhead_s: NonNegative = 0.02
    """Host and launch time of one forward of one micro-batch; its backward costs twice that."""
    recompute_memory_factor: Share = 0.5
    recompute_speed_factor: Share = 0.8
    adv_fixed_s: NonNegative = 0.01
    adv_per_token_s: NonNegative = 2e-8


class RooflineCostConfig(Strict):
    """Seconds from shapes and datasheets. Nothing in it is measured."""

    kind: Literal["roofline"]
    device: DeviceRef
    actor_model: ModelRef
    reward_model: Annotated[RewardModel | Verifier, Field(discriminator="kind")]
    ref_model: ModelRef | None = None
    """None: the actor's shape; likewise the critic's."""
    critic_model: ModelRef | None = None
    rollout: RolloutEngine = RolloutEngine()
    training: TrainingDevices = TrainingDevices()


# ---- profile -----------------------------------------------------------------------------------------------


class ProfileCostConfig(Strict):
    """Measured tables of format ``oppo-profile/1``: a file of one's own, or one that comes with the
    package."""

    kind: Literal["profile"]
    path: str | None = None
    """Relative to the scenario's folder."""
    name: str | None = None
    """Instead of ``path``: of a shipped profile, such as ``h200/qwen2.5-7b+1.5b/torch``."""
    roofline_training: RooflineCostConfig | None = None
    """The training part and the weight sync by a roofline instead, where training was not measured."""

    @model_validator(mode="after")
    def _one_source(self) -> "ProfileCostConfig":
        if (self.path is None) == (self.name is None):
            raise ValueError("a profile has either a path or a name: give one of them")
        return self


CostConfig = Annotated[LinearCostConfig | RooflineCostConfig | ProfileCostConfig, Field(discriminator="kind")]
