"""The training part by roofline: forwards, PPO epochs, optimizer steps, weight sync."""

from dataclasses import dataclass, field
from functools import cached_property
from math import sqrt
from statistics import NormalDist

from oppo_sim.costs.achieved import Achievable, Achieved, Collective, achieved, trainer_shares
from oppo_sim.costs.context import stages_run
from oppo_sim.costs.device import Device, value_bytes
from oppo_sim.costs.formulas import added
from oppo_sim.costs.forward_terms import ForwardTerms, forward_terms
from oppo_sim.costs.interface import BatchShape, Demand, Peak, StageTimes, Work
from oppo_sim.costs.lowering import Lowering, StagePlan
from oppo_sim.costs.memory import OPTIMIZER_TRAFFIC_PER_PARAM, MicroBatch, StateBytes, projection_widths
from oppo_sim.costs.operators import (
    Group,
    adapter_group,
    bounded_groups,
    entropy_group,
    head_groups,
    layer_groups,
    permuted_group,
)
from oppo_sim.costs.roofline_parts import TrainingDevices
from oppo_sim.costs.split import Split, achievable_rates
from oppo_sim.costs.trained_model import TrainedModel
from oppo_sim.costs.training_config import REFIT_SCALING, RESHARD_SCALING, TrainingConfig, sync_rate
from oppo_sim.costs.training_stage import Stage, StageCost, stage_cost

_REDUCED_BYTES = 4.0
"""Of a gradient that is reduced in float32."""
_BACKWARD_ATTENTION = 2.9
"""Seconds of a forward: five products for two, of which the kernels make 0.85 as many a second
(FlashAttention of 8,192 tokens on B200: 0.775 and 2.274 ms, Dao-AILab/flash-attention#2280)."""
_LAUNCH_FSDP_S, _LAUNCH_MEGATRON_S = 1.4e-3, 2.2e-3
"""Of a layer and forward: four logs of verl, and four of slime (docs/costs.md)."""
_LAUNCH_ALONE_S = 8e-4
"""On one device without sharding: transformers' layers, as ``generate()`` launches them (``hosts.py``)."""
_HOOKS_S = 0.02
"""Of a micro-batch's forward with FSDP or ZeRO-3."""
_ADV = 3
"""Place of the stage without a model."""


@dataclass(frozen=True)
class RooflineTraining:
    """Costs of the training group. ``weights_bytes`` moves in a sync; ``demand`` is for ``nominal``."""

    actor: TrainedModel
    ref: TrainedModel
    critic: TrainedModel
    device: Device
    devices: TrainingDevices
    training: TrainingConfig
    num_gpus: int
    weights_bytes: float
    nominal: BatchShape
    gather_link_bytes_per_s: float | None = None
    """Between nodes, per direction, where the group spans them: of all data-parallel ranks of a node
    together, whose rings cross side by side, each by its own link."""
    longest: int = 0
    """Tokens of the longest rollout that there may be; what padding fills up to."""
    sync_link_bytes_per_s: float | None = None
    """Of one device, where new weights cross nodes."""
    engine_bytes: float = 0.0
    """Of weights that a rollout device copies to host memory when its engine goes to sleep."""
    expert_gather_link_bytes_per_s: float | None = None
    """As ``gather_link_bytes_per_s``, of the ranks that hold the same experts."""
    expert_link_bytes_per_s: float | None = None
    """Of one device to those that a layer's experts are divided among, where they are on several nodes."""
    sequence_link_bytes_per_s: float | None = None
    """Likewise to those that share the tokens of a sequence with it."""
    gather_factor: float = 1.0
    """On the seconds of gathers."""
    _last: tuple[BatchShape, tuple[StageCost, ...]] | None = field(
        default=None, init=False, repr=False, compare=False
    )
    _splits: dict[int, Split] = field(default_factory=dict, init=False, repr=False, compare=False)
    _forwards: dict[tuple[int, float, float, bool], ForwardTerms] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def peak(self) -> Peak | None:
        """Datasheet rates of all training devices together."""
        return Peak(
            self.device.flops(self.training.dtype) * self.num_gpus,
            self.device.hbm_bytes_per_s * self.num_gpus,
        )

    @property
    def parallel_inference(self) -> bool:
        return self.training.parallel_inference

    def stage_times(self, batch: BatchShape) -> StageTimes:
        old_log_prob, ref, values, adv, critic, actor = (part.seconds for part in self._stages(batch))
        return StageTimes(old_log_prob, ref, values, adv, critic, actor, self.sync_seconds())

    def demand(self) -> Demand:
        """Mean over the stages of the nominal batch, weighted by time."""
        return self._nominal_demand

    @cached_property
    def _nominal_demand(self) -> Demand:
        stages = self._stages(self.nominal)
        seconds = added(part.seconds for part in stages)
        memory = added(part.memory_s for part in stages) / seconds
        arithmetic = added(part.arithmetic_s for part in stages) / seconds
        return Demand(min(1.0, memory), min(1.0, arithmetic))

    def sync_demand(self) -> Demand:
        """Each device reads its share of the trained weights and writes its share of the rollout's: little
        beside conversion and links."""
        seconds = self.sync_seconds()
        shared = self.training.weight_sync.kind == "shared"
        traffic = 0.0 if shared else 2.0 * self.weights_bytes / self.num_gpus
        rate = self.device.hbm_bytes_per_s * self._achieved.memory
        return Demand(min(1.0, traffic / rate / seconds) if seconds > 0 else 0.0, 0.0)

    def work(self, batch: BatchShape) -> Work | None:
        """Of all devices, without the weight sync and (as usual for MFU) recomputed operations."""
        stages = self._stages(batch)
        flops, traffic = added(part.flops for part in stages), added(part.bytes for part in stages)
        return Work(flops * self.num_gpus, traffic * self.num_gpus)

    def sync_seconds(self) -> float:
        """Seconds of ``update_weights``, see ``WeightSync``."""
        sync, size = self.training.weight_sync, self.weights_bytes
        if sync.kind == "shared":
            return sync.fixed_s
        if sync.kind == "full_export":
            return sync.fixed_s + size / sync.export_bytes_per_s + size / sync.load_bytes_per_s
        if sync.kind == "reshard":
            gathered = size / self._link(self.gather_link_bytes_per_s)
            asleep = self.engine_bytes / (sync.sleep_bytes_per_s or self._host_link())
            if self.actor.adapters is not None:  # what else wakes the engine moves no weights
                asleep += self.engine_bytes / self._host_link()
            rate = sync.load_bytes_per_s or sync_rate(self.num_gpus, RESHARD_SCALING)
            return sync.fixed_s + size / rate + gathered + asleep
        between = sync.link_bytes_per_s
        link = self._link(self.sync_link_bytes_per_s) if between is None else between
        rate = sync.convert_bytes_per_s or sync_rate(self.num_gpus, REFIT_SCALING)
        return sync.fixed_s + size / rate + size / link

    def _stages(self, batch: BatchShape) -> tuple[StageCost, ...]:
        """old_log_prob, ref, values, adv, update_critic, update_actor. Times and work of a batch are queried
        in turn: the last is kept."""
        if self._last is None or self._last[0] is not batch:
            object.__setattr__(self, "_last", (batch, self._computed_stages(batch)))
            assert self._last is not None
        return self._last[1]

    def lower_stages(self, to: Lowering) -> None:
        for number, stage in enumerate(self._plans):
            if number == _ADV:
                to.linear_stage(self.devices.adv_fixed_s, self.devices.adv_per_token_s)
            elif stage is None:
                to.linear_stage()
            else:
                to.roofline_stage(stage.plan, self._forward_terms(stage))
        to.training_group(self.sync_seconds(), self._data_parallel, self.num_gpus)

    def _computed_stages(self, batch: BatchShape) -> tuple[StageCost, ...]:
        old_log_prob, ref, values, _, critic, actor = (
            StageCost()
            if stage is None
            else stage_cost(stage, self._forward_terms(stage), batch, self._data_parallel)
            for stage in self._plans
        )
        adv = self.devices.adv_fixed_s + self.devices.adv_per_token_s * batch.tokens
        return old_log_prob, ref, values, StageCost(adv), critic, actor

    @cached_property
    def _plans(self) -> tuple[Stage | None, ...]:
        """One a stage, in their order."""
        run = stages_run(self.training)
        separate = self.training.critic == "separate"
        return (
            self._forward(self.actor)._replace(entropy=self.devices.old_log_prob_entropy)
            if run.old_log_prob
            else None,
            self._forward(self.ref) if run.ref else None,
            self._forward(self.critic if separate else self.actor) if run.values else None,
            None,
            self._update(self.critic) if run.update_critic else None,
            self._update(self.actor),
        )

    @property
    def _data_parallel(self) -> int:
        """Ranks that tokens are divided among and weights are gathered from. Sequence-parallel devices count
        as such: each runs its share of the tokens of a sequence."""
        return self.num_gpus // self.training.model_parallel

    @cached_property
    def _achieved(self) -> Achieved:
        return achieved(self.device, self._shares)

    @cached_property
    def _shares(self) -> Achievable:
        return trainer_shares(self.device, self.devices.achievable)

    def _link(self, between_nodes: float | None) -> float:
        own = self.devices.link_bytes_per_s
        inside = self.device.link_bytes_per_s if own is None else own
        return min(inside, between_nodes or inside) * self._achieved.link

    def _split(self, model: TrainedModel) -> Split:
        if id(model) not in self._splits:
            shares, link, training = self._shares, self.devices.link_bytes_per_s, self.training
            degree, dtype = training.tensor_parallel, training.dtype
            rates = achievable_rates(self.device, dtype, shares, degree, link)

            def between(bytes_per_s: float | None) -> Collective:
                return rates.all_to_all._replace(bytes_per_s=self._link(bytes_per_s))

            self._splits[id(model)] = Split(
                model.shape,
                degree,
                dtype,
                value_bytes(dtype),
                rates,
                training.sequence_parallel,
                training.pipeline_parallel,
                training.expert_parallel,
                training.expert_tensor_parallel,
                self._expert_collective(rates.all_to_all),
                between(self.sequence_link_bytes_per_s),
            )
        return self._splits[id(model)]

    def _expert_collective(self, inside: Collective) -> Collective:
        """Each copy once through the link inside a node, unless set otherwise, and that may be faster."""
        told = self.expert_link_bytes_per_s
        return inside if told is None else inside._replace(bytes_per_s=told * self._achieved.link)

    def _gather_seconds(self, model: TrainedModel) -> float:
        """Ring all-gather (or reduce-scatter) of the weights over d ranks, (d−1)/d through the slower of the
        links inside a node and those between nodes (NCCL's bus bandwidth). Experts that are divided otherwise
        have as many ranks as hold the same."""
        training, value = self.training, value_bytes(self.training.dtype)
        routed = model.shape.routed_params if training.expert_devices != training.tensor_parallel else 0
        of_experts = training.pipeline_parallel * training.expert_devices

        def seconds(parameters: int, shards: int, between_nodes: float | None) -> float:
            ranks = self.num_gpus // shards
            return value * parameters / shards * (ranks - 1) / ranks / self._link(between_nodes)

        whole = seconds(model.parameters - routed, training.model_parallel, self.gather_link_bytes_per_s)
        whole += seconds(routed, of_experts, self.expert_gather_link_bytes_per_s) if routed else 0.0
        return self.gather_factor * whole

    def _host_link(self) -> float:
        return self.device.host_link_bytes_per_s * self._achieved.link

    def _out_and_in(self, size: float) -> float:
        return 2.0 * size / min(self._host_link(), self.devices.offload_bytes_per_s)

    def _offload_seconds(self, state: StateBytes) -> float:
        """What an update brings in from host memory, and takes back."""
        training = self.training
        if training.offload:
            return 2.0 * state.total / self._host_link()
        moved = state.parameters if training.param_offload else 0.0
        return self._out_and_in(moved + (state.optimizer if training.optimizer_offload else 0.0))

    def _spread(self, model: TrainedModel) -> float:
        """Of ``StagePlan``: the largest of as many normal numbers as there are groups of data-parallel ranks
        (Blom, "Statistical Estimates and Transformed Beta-Variables", 1958), of micro-batches that all
        sequence-parallel devices of a group share. Token budgets are filled evenly, padding evens all."""
        if self.training.sharding != "full" or not model.remove_padding:
            return 0.0
        sequence = self.training.sequence_parallel
        groups = self._data_parallel // sequence
        return NormalDist().inv_cdf((groups - 0.375) / (groups + 0.25)) / sqrt(sequence)

    def _micro_batches(
        self, model: TrainedModel, held: MicroBatch
    ) -> tuple[int, float, float, float, float, float, float]:
        """The fields of ``StagePlan`` that say what a micro-batch runs."""
        padded = 0.0 if model.remove_padding else float(self.longest)
        spread = self._spread(model) if held.rollouts else 0.0
        longest = model.longest_stage(self.training.pipeline_parallel)
        filling = (1.0 - longest) / self.training.virtual_pipeline_parallel
        return *held, padded, spread, float(self.training.pipeline_parallel), longest, filling

    def _head(self, model: TrainedModel, tokens: float) -> tuple[Group, ...]:
        return head_groups(self._split(model), tokens, normalised=True) if model.has_head else ()

    def _forward_terms(self, stage: Stage) -> ForwardTerms:
        """One pass of a micro-batch."""
        model, shape = stage.model, stage.model.shape
        key = id(model), stage.collectives, stage.attention, stage.entropy
        if key not in self._forwards:
            split = self._split(model)
            widths = projection_widths(shape, shape.num_experts_per_tok)
            self._forwards[key] = forward_terms(
                split,
                lambda tokens, touched: (
                    *layer_groups(split, tokens, touched, fused=self.devices.fused_kernels),
                    *((permuted_group(split, tokens),) if shape.moe_layers else ()),
                    *((adapter_group(split, tokens, widths),) if model.adapters else ()),
                    *bounded_groups(split, tokens, decode=False),
                    *self._head(model, tokens),
                    *((entropy_group(split, tokens),) if stage.entropy else ()),
                ),
                shape.block_pairs * self._achieved.layer_latency_s,
                collectives=stage.collectives,
                attention=stage.attention,
                tp_comm_overlap=self.devices.tp_comm_overlap,
            )
        return self._forwards[key]

    def _launches(self, model: TrainedModel) -> float:
        """Seconds of the host for the layers of a forward, whatever its tokens. Adapters launch four kernels
        (two products, a scale, a sum) beside each of seven projections, as many again as the layer."""
        adapted = 1.0 if model.adapters is None else 2.0
        alone = self.num_gpus == 1 and self.training.sharding == "none"
        unsharded = _LAUNCH_ALONE_S if alone else _LAUNCH_MEGATRON_S
        launch = self._by_sharding(self.devices.launch_per_layer_s, _LAUNCH_FSDP_S, unsharded)
        of_layers = adapted * model.shape.block_pairs * launch
        return of_layers + model.shape.moe_layers * self.devices.expert_launch_per_layer_s

    @property
    def _overhead_s(self) -> float:
        """Of a forward of a micro-batch."""
        return self._by_sharding(self.devices.micro_batch_overhead_s, _HOOKS_S, 0.0)

    def _by_sharding(self, given: float | None, full: float, other: float) -> float:
        """What is given, else what a trainer takes that shards fully, or one that does not."""
        if given is not None:
            return given
        return full if self.training.sharding == "full" else other

    def _forward(self, model: TrainedModel) -> Stage:
        # A fully sharded model gathers the next layer while it computes this one.
        gather = self._gather_seconds(model) if self.training.sharding == "full" else 0.0
        plan = StagePlan(
            *self._micro_batches(model, model.inference_micro_batch),
            beside_s=max(gather + model.streamed_bytes / self._host_link(), self._launches(model)),
            overhead_s=self.training.pipeline_parallel * self._overhead_s,
            offload_s=self._out_and_in(model.state.parameters if self.training.param_offload else 0.0),
        )
        return Stage(model, plan)

    def _update(self, model: TrainedModel) -> Stage:
        """All epochs: per mini-batch its micro-batches (a backward is two forwards) and an optimizer step."""
        training = self.training
        gather = self._gather_seconds(model)
        sharded = training.sharding == "full"
        trained, routed = model.trained_share, model.shape.routed_params
        held = model.parameters / self.num_gpus
        if training.sharding == "none":
            held = (model.parameters - routed) / training.model_parallel
            held += routed / (training.pipeline_parallel * training.expert_devices)
        step_bytes = OPTIMIZER_TRAFFIC_PER_PARAM[training.optimizer] * trained * held
        reduced = 1.0 if training.reduce_dtype is None else _REDUCED_BYTES / value_bytes(training.dtype)
        reduced *= trained
        # Frozen weights have no gradients: a backward through them is one forward, not two.
        passes = 3.0 if model.adapters is None else 2.0
        recomputed = 1.0 if training.gradient_checkpointing else 0.0
        speed = self.devices.recompute_speed_factor if training.selective_recompute else 1.0
        plan = StagePlan(
            *self._micro_batches(model, model.training_micro_batch),
            mini_batches=training.num_mini_batches,
            steps=training.num_ppo_epochs * training.num_mini_batches,
            passes=passes,
            speed=passes / (passes + recomputed) * speed,
            # Gathers for forward and backward and the reduce-scatter of the gradients run beside the
            # arithmetic, and so does the host that launches it.
            beside_s=max(
                (2.0 + reduced) * gather if sharded else 0.0, (passes + recomputed) * self._launches(model)
            ),
            overhead_s=training.pipeline_parallel * (passes + recomputed) * self._overhead_s,
            reduction_s=0.0 if sharded else 2.0 * reduced * gather,
            optimizer_s=step_bytes / (self.device.hbm_bytes_per_s * self._achieved.memory),
            optimizer_bytes=step_bytes,
            offload_s=self._offload_seconds(model.state),
        )
        run = passes + recomputed
        attention = (1.0 + recomputed + _BACKWARD_ATTENTION) / run
        return Stage(model, plan, recomputed, (2.0 + recomputed) / run, attention)
