"""The ``costs:`` section of a scenario: one class a kind, which builds its cost models and scales itself."""

from abc import ABC, abstractmethod
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from oppo_sim.costs.devices import Device, Dtype, find_device
from oppo_sim.costs.models import ModelShape
from oppo_sim.costs.strict import Count, NonNegative, Positive, Share, Strict
from oppo_sim.draws import draw_normal, stream_key

if TYPE_CHECKING:
    from oppo_sim.costs.context import CostContext
    from oppo_sim.costs.interface import Costs

ModelRef = str | ModelShape
"""A preset ("qwen2.5-7b"), a path to a Hugging Face ``config.json`` or its folder, or a shape inline."""
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


class CostFactors(Strict):
    """What the seconds of an activity are multiplied by."""

    decode: Positive = 1.0
    prefill: Positive = 1.0
    """Of the actor."""
    score: Positive = 1.0
    training: Positive = 1.0
    """All training stages and the weight sync."""

    def __str__(self) -> str:
        return ", ".join(f"{name} × {value:.2f}" for name, value in self)


def drawn_factors(seed: int, number: int, sigma: float) -> CostFactors:
    """The ``number``-th draw: each factor exp(sigma · N(0, 1)), independent of the others."""
    return CostFactors(
        **{
            name: exp(sigma * draw_normal(stream_key(seed, f"tune/cost/{name}"), number))
            for name in CostFactors.model_fields
        }
    )


class CostSection(Strict, ABC):
    """What every kind answers. A new kind: a class here and in ``CostConfig``, with its models beside it."""

    evidence: ClassVar[str]
    """Where its seconds come from, for advice: "seconds come from …"."""
    pads_batches: ClassVar[bool] = False
    """It knows what padded rows cost."""

    @abstractmethod
    def build(self, context: "CostContext", base_dir: Path | None = None) -> "Costs":
        """The cost models; paths are relative to ``base_dir``.

        Raises OppoError for an unknown model or device, for a model that does not fit its devices (saying
        what and by how much), for a profile that cannot be read or lacks a table that the scenario needs.
        """

    @abstractmethod
    def scaled(self, factors: CostFactors) -> "CostSection":
        """The same with every second of an activity times its factor."""

    @property
    def streamable(self) -> bool:
        """The reward model can score a growing prefix."""
        return True


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

    def scaled(self, factor: float) -> "LinearStages":
        stages = {name: getattr(self, name) for name in LinearStages.model_fields}
        return LinearStages(
            update_weights=stages.pop("update_weights") * factor,
            **{name: stage.times(factor) for name, stage in stages.items()},
        )


class LinearCostConfig(CostSection):
    """Coefficients in seconds. Stages that ``training:`` switches off cost nothing."""

    kind: Literal["linear"]
    decode: LinearDecode
    prefill: LinearForward = LinearForward()
    score: LinearForward = LinearForward()
    """The reward model over a scoring batch."""
    score_ref: LinearForward | None = None
    """The reference model over the same batch; asked for by ``training.stream_ref``."""
    stages: LinearStages = LinearStages()
    demands: Demands = Demands()
    evidence: ClassVar[str] = "coefficients that the scenario gives"

    def build(self, context: "CostContext", base_dir: Path | None = None) -> "Costs":
        from oppo_sim.costs.linear import linear_costs

        return linear_costs(self, context)

    def scaled(self, factors: CostFactors) -> "LinearCostConfig":
        changed = {
            "decode": self.decode.times(factors.decode),
            "prefill": self.prefill.times(factors.prefill),
            "score": self.score.times(factors.score),
            "score_ref": self.score_ref and self.score_ref.times(factors.score),
            "stages": self.stages.scaled(factors.training),
        }
        return self.model_copy(update=changed)


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
    """Launching a layer's kernels one by one; bounds an iteration from below (0 with CUDA graphs)."""
    kv_traffic_factor: Annotated[float, Field(ge=1)] = 1.0
    """KV traffic of an iteration over reading it once: 3 for a cache that is concatenated anew."""
    captured_batch_sizes: Annotated[tuple[Count, ...], Field(strict=False)] = ()
    """CUDA graphs exist for these batch sizes; smaller batches are padded to the next, larger ones not."""


VLLM_BATCH_SIZES = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
"""Batch sizes that vLLM captures as CUDA graphs by default."""

HOSTS = {
    "vllm": HostOverheads(per_iteration_s=4e-4, per_rollout_s=4e-6, captured_batch_sizes=VLLM_BATCH_SIZES),
    "generate": HostOverheads(
        per_iteration_s=3e-3, per_rollout_s=2e-5, launch_per_layer_s=8e-4, kv_traffic_factor=3.0
    ),
}
"""``vllm``: graphs, a paged KV cache. ``generate``: a launch per kernel, a KV cache concatenated anew."""

HostRef = Literal["vllm", "generate"] | HostOverheads


def find_host(host: HostRef) -> HostOverheads:
    """A preset, or overheads given inline."""
    return host if isinstance(host, HostOverheads) else HOSTS[host]


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
    """The training group's devices and what they reach; their number is in ``training:``."""

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


class RooflineCostConfig(CostSection):
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
    evidence: ClassVar[str] = "datasheets and assumed efficiencies, which nobody measured"
    pads_batches: ClassVar[bool] = True

    @property
    def streamable(self) -> bool:
        return self.reward_model.kind != "verifier"

    def build(self, context: "CostContext", base_dir: Path | None = None) -> "Costs":
        from oppo_sim.costs.build_roofline import roofline_costs

        return roofline_costs(self, context, base_dir)

    def scaled(self, factors: CostFactors) -> "RooflineCostConfig":
        """Rates of the devices divided, overheads of the host multiplied: decode's factor is on memory
        traffic and the host, prefill's on arithmetic, so that a decode that is bound by arithmetic follows
        prefill's."""
        decode, score, training = factors.decode, factors.score, factors.training
        rollout, reward, group = self.rollout, self.reward_model, self.training

        def device(ref: DeviceRef | None) -> Device:
            return find_device(self.device if ref is None else ref)

        rollout_parts = {
            "device": device(rollout.device).slower(memory=decode, arithmetic=factors.prefill),
            "host": find_host(rollout.host).times(decode, *_HOST_SECONDS),
            "achievable": rollout.achievable.times(decode, "layer_latency_s"),
        }
        reward_parts = {
            "device": device(reward.device).slower(memory=score, arithmetic=score),
            "host": find_host(reward.host).times(score, *_HOST_SECONDS),
            "achievable": reward.achievable.times(score, "layer_latency_s"),
        }
        if isinstance(reward, Verifier):
            reward = reward.times(score, "fixed_s", "per_token_s")
        group_parts: dict[str, Any] = {
            "device": device(group.device).slower(memory=training, arithmetic=training, link=training),
            "achievable": group.achievable.times(training, "layer_latency_s"),
        }
        if group.link_bytes_per_s is not None:
            group_parts["link_bytes_per_s"] = group.link_bytes_per_s / training
        group = group.times(training, "micro_batch_overhead_s", "adv_fixed_s", "adv_per_token_s")
        return self.model_copy(
            update={
                "rollout": rollout.model_copy(update=rollout_parts),
                "reward_model": reward.model_copy(update=reward_parts),
                "training": group.model_copy(update=group_parts),
            }
        )


_HOST_SECONDS = ("per_iteration_s", "per_rollout_s", "launch_per_layer_s")


# ---- profile -----------------------------------------------------------------------------------------------


class ProfileCostConfig(CostSection):
    """Measured tables of format ``oppo-profile/1``: one's own file, or one that comes with the package."""

    kind: Literal["profile"]
    path: str | None = None
    """Relative to the scenario's folder."""
    name: str | None = None
    """Instead of ``path``: of a shipped profile, such as ``h200/qwen2.5-7b+1.5b/torch``."""
    roofline_training: RooflineCostConfig | None = None
    """The training part and the weight sync by a roofline instead, where training was not measured."""
    scale: CostFactors | None = None
    """Multiplies what was measured; None: as it was measured."""
    evidence: ClassVar[str] = "a profile that was measured; the steps themselves were simulated"

    @model_validator(mode="after")
    def _one_source(self) -> "ProfileCostConfig":
        if (self.path is None) == (self.name is None):
            raise ValueError("a profile has either a path or a name: give one of them")
        return self

    def build(self, context: "CostContext", base_dir: Path | None = None) -> "Costs":
        from oppo_sim.costs.build_profile import profile_costs

        return profile_costs(self, context, base_dir)

    def scaled(self, factors: CostFactors) -> "ProfileCostConfig":
        before = self.scale or CostFactors()
        both = {name: value * getattr(factors, name) for name, value in before}
        stand_in = self.roofline_training and self.roofline_training.scaled(factors)
        return self.model_copy(update={"scale": CostFactors(**both), "roofline_training": stand_in})


CostConfig = Annotated[LinearCostConfig | RooflineCostConfig | ProfileCostConfig, Field(discriminator="kind")]
