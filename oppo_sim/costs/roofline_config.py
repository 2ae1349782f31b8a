"""The ``costs:`` section of kind ``roofline``: model shapes, devices and what they achieve."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from oppo_sim.costs.achieved import kernels_known
from oppo_sim.costs.build_roofline import rollout_engine, scoring_worker, training_group
from oppo_sim.costs.context import CostContext, stages_run
from oppo_sim.costs.devices import Device, find_device
from oppo_sim.costs.evidence import Evidence, all_of
from oppo_sim.costs.hosts import find_host
from oppo_sim.costs.interface import Costs
from oppo_sim.costs.model_shape import ModelShape
from oppo_sim.costs.models import find_model
from oppo_sim.costs.roofline_memory import Devices, Models, Parts, kv_capacity
from oppo_sim.costs.roofline_parts import (
    DeviceRef,
    ModelRef,
    RewardModel,
    RolloutEngine,
    TrainingDevices,
    Verifier,
)
from oppo_sim.costs.section import CostSection
from oppo_sim.costs.strict import Strict
from oppo_sim.costs.training_config import TrainingConfig
from oppo_sim.errors import OppoError


class ShapedCosts(CostSection):
    """Kinds that are given shapes and devices: memory, training and, unless a kind knows better, inference by
    rooflines."""

    kind: str
    device: DeviceRef
    actor_model: ModelRef
    reward_model: Annotated[RewardModel | Verifier, Field(discriminator="kind")]
    ref_model: ModelRef | None = None
    """None: the actor's shape; likewise the critic's."""
    critic_model: ModelRef | None = None
    rollout: RolloutEngine = RolloutEngine()
    training: TrainingDevices = TrainingDevices()
    pads_batches: ClassVar[bool] = True

    @property
    def evidence(self) -> Mapping[str, Evidence]:
        return all_of("assumed", reward="given" if self.reward_model.kind == "verifier" else "assumed")

    @property
    def rollout_host(self) -> str | None:
        return self.rollout.host if isinstance(self.rollout.host, str) else "own"

    @property
    def weights_leave(self) -> bool:
        return self.rollout.sleep_mode

    @property
    def device_measured(self) -> bool:
        return kernels_known(find_device(self.device), self.rollout.achievable)

    @property
    def streamable(self) -> bool:
        return self.reward_model.kind != "verifier"

    def build(self, context: CostContext, base_dir: Path | None = None) -> Costs:
        models, devices = self._models(base_dir), self._devices(context)
        self._check(models, context)
        parts = Parts(self.rollout, self.reward_model, self.training, models, devices, context)
        actor = rollout_engine(parts)
        capacity = kv_capacity(parts, actor.split.kv_bytes_per_token)
        training = training_group(parts)
        derived = {
            "actor_kv_capacity_tokens": capacity,
            "actor_kv_bytes_per_token": actor.split.kv_bytes_per_token * actor.split.tensor_parallel,
            "training_gpus": devices.num_training,
            "actor_micro_batch_tokens": training.actor.training_micro_batch.tokens,
            "critic_micro_batch_tokens": (
                training.critic.training_micro_batch.tokens if context.training.critic == "separate" else None
            ),
            "update_weights_s": training.sync_seconds(),
        }
        shapes = {name: shape for name, shape in models._asdict().items() if shape is not None}
        places = {name: getattr(devices, name) for name in ("rollout", "scoring", "training")}
        return Costs(
            actor=actor,
            scorer=scoring_worker(parts),
            training=training,
            provenance={
                "kind": self.kind,
                "measured": False,
                "parameters": self.to_plain(),
                "models": _plain(shapes),
                "devices": _plain(places),
                "hosts": _plain(
                    {"rollout": actor.host, "scoring": find_host(self.reward_model.host, devices.scoring)}
                ),
                "training": context.training.model_dump(mode="json"),
                "derived": derived,
            },
            actor_kv_capacity_tokens=capacity,
        )

    def _models(self, base_dir: Path | None) -> Models:
        def other(ref: ModelRef | None) -> ModelShape:
            return find_model(self.actor_model if ref is None else ref, base_dir)

        reward = self.reward_model
        return Models(
            actor=other(None),
            ref=other(self.ref_model),
            critic=other(self.critic_model),
            reward=find_model(reward.model, base_dir) if isinstance(reward, RewardModel) else None,
        )

    def _device(self, ref: DeviceRef | None) -> Device:
        return find_device(self.device if ref is None else ref)

    def _devices(self, context: CostContext) -> Devices:
        wanted = context.training.num_gpus
        number = context.num_replicas * self.rollout.tensor_parallel if wanted is None else wanted
        training = context.training
        degree = training.devices_of_a_rank
        if number % degree:
            name = training.divided_by(values=False)
            raise OppoError(f"training: {name} {degree} does not divide {number} GPUs; set training.num_gpus")
        try:
            training.check_expert_devices(number)
        except ValueError as error:
            raise OppoError(f"training: {error}") from None
        sections = self.rollout, self.reward_model, self.training
        rollout, scoring, trained_on = (self._device(section.device) for section in sections)
        return Devices(rollout, scoring, trained_on, number)

    def _check(self, models: Models, context: CostContext) -> None:
        """Raises OppoError for a weight sync or a tensor-parallel degree that cannot be."""
        kind = context.training.weight_sync.kind
        if kind in ("shared", "reshard") and not context.colocated_training:
            raise OppoError(
                f"training: weight_sync kind {kind} needs training on the rollout devices; colocate it or"
                " take online_refit"
            )
        trained = [models.actor, models.critic, *([models.ref] if stages_run(context.training).ref else ())]
        stages = context.training.pipeline_parallel
        for shape in trained:
            if shape.num_hidden_layers < stages:
                raise OppoError(
                    f"training: pipeline_parallel {stages} is more than the {shape.num_hidden_layers} layers"
                    " of a model: lower it"
                )
        _check_experts(trained, context.training)
        _check_ranks(models.actor, self.rollout)
        split, degree = "tensor_parallel", context.training.tensor_parallel
        if context.training.sequence_parallel > 1:
            split, degree = (
                "tensor_parallel times sequence_parallel",
                degree * context.training.sequence_parallel,
            )
        for shape, name, divided, parts in (
            (models.actor, "rollout", *_divided(self.rollout)),
            *((shape, "training", split, degree) for shape in trained),
            (
                models.reward or models.ref,
                "reward_model",
                "tensor_parallel",
                self.reward_model.tensor_parallel,
            ),
        ):
            heads = shape.num_attention_heads
            if heads % parts:
                raise OppoError(
                    f"costs: {name}: {divided} {parts} does not divide the {heads} attention heads; change it"
                )


def _divided(rollout: RolloutEngine) -> tuple[str, int]:
    """What divides attention, and its value."""
    name = "tensor_parallel"
    if rollout.attention_data_parallel > 1:
        name += " over attention_data_parallel"
    return name, rollout.attention_devices


def _check_ranks(actor: ModelShape, rollout: RolloutEngine) -> None:
    """Raises OppoError for ranks that a replica's GPUs, or a layer's experts, cannot be divided into."""
    for name in ("expert_parallel", "attention_data_parallel"):
        ranks = getattr(rollout, name)
        if ranks > 1 and not actor.num_experts:
            raise OppoError(
                f"costs: rollout: {name} {ranks} is for a mixture of experts, and the actor model has no"
                " experts; leave it out, or add replicas"
            )
        if rollout.tensor_parallel % ranks:
            raise OppoError(
                f"costs: rollout: {name} {ranks} does not divide the {rollout.tensor_parallel} GPUs of a"
                " replica (tensor_parallel); change one of them"
            )
    if actor.num_experts % rollout.expert_parallel:
        raise OppoError(
            f"costs: rollout: expert_parallel {rollout.expert_parallel} does not divide the"
            f" {actor.num_experts} experts of a layer; change it"
        )


def _check_experts(trained: list[ModelShape], training: TrainingConfig) -> None:
    """Raises OppoError for experts that cannot be divided so."""
    for shape in trained:
        degree = training.expert_parallel
        if shape.num_experts % degree:
            raise OppoError(
                f"training: expert_parallel {degree} does not divide the {shape.num_experts} experts of a"
                " layer; change it"
            )
    given = training.expert_parallel > 1 or training.expert_tensor_parallel not in (
        None,
        training.tensor_parallel,
    )
    if given and not any(each.num_experts for each in trained):
        raise OppoError(
            "training: expert_parallel and expert_tensor_parallel divide the experts of a layer, and no model"
            " that is trained has any; leave them out"
        )


class RooflineCostConfig(ShapedCosts):
    """Seconds from shapes and datasheets. Nothing in it is measured."""

    kind: Literal["roofline"]


def _plain(sections: dict[str, Strict]) -> dict[str, Any]:
    return {name: section.model_dump(mode="json") for name, section in sections.items()}
