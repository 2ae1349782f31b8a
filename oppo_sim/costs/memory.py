"""What lies in device memory, in bytes for one device."""

from typing import NamedTuple

from oppo_sim.costs.device import Dtype, value_bytes, weight_value_bytes
from oppo_sim.costs.model_shape import ModelShape
from oppo_sim.costs.training_config import Optimizer, Sharding

_GB = 1e9

STATE_BYTES_PER_PARAM: dict[Optimizer, float] = {"adamw": 12.0, "adamw_8bit": 6.0, "sgd": 4.0}
"""fp32 master weights and moments, K of Rajbhandari et al., "ZeRO", 2020, §3.1 (12 with Adam); 8-bit moments:
Dettmers et al. 2022."""
OPTIMIZER_TRAFFIC_PER_PARAM: dict[Optimizer, float] = {"adamw": 28.0, "adamw_8bit": 16.0, "sgd": 12.0}
"""Bytes an optimizer step moves: gradient and 16-bit weights once, fp32 state read and written."""

_WEIGHT_AND_GRADIENT = 4.0
_LOGIT_BYTES = 8.0
"""Of a logit in training beside its own: in fp32, and its fp32 gradient; half of it in a forward alone (of
which verl takes an entropy, too: a softmax and a product in 16 bits)."""


def gigabytes(size: float) -> str:
    """For messages."""
    return f"{size / _GB:.1f} GB"


def model_parameters(shape: ModelShape, has_head: bool) -> int:
    """With an output head (actor, reference) or a scalar one (reward model, critic)."""
    return shape.parameters if has_head else shape.parameters_without_head


def adapter_parameters(shape: ModelShape, rank: int) -> int:
    """Of LoRA beside every linear projection but the head: rank × (inputs + outputs) (Hu et al., "LoRA",
    2021, §4.1)."""
    return rank * projection_widths(shape, shape.num_experts)


def projection_widths(shape: ModelShape, num_experts: int) -> int:
    """Inputs and outputs of every linear projection but the head, with so many experts of a layer."""
    hidden, shared, latent = shape.hidden_size, shape.shared_expert_intermediate_size, shape.moe_latent_size

    def mlp(width: int, inputs: int = hidden) -> int:
        return shape.mlp_matrices * (inputs + width)

    attention = sum(inputs + outputs for inputs, outputs in shape.attention_matrices)
    linear = sum(inputs + outputs for inputs, outputs in shape.linear.matrices)
    experts = num_experts * mlp(shape.expert_width, shape.expert_input_size)
    experts += (mlp(shared) if shared else 0) + (2 * (hidden + latent) if latent else 0)
    attention = shape.attention_layers * attention + shape.num_linear_layers * linear
    dense = shape.dense_layers * mlp(shape.intermediate_size)
    return attention + dense + shape.moe_layers * experts


def weight_bytes(shape: ModelShape, dtype: Dtype, has_head: bool) -> float:
    """Of the whole model; only the layers are in fp8."""
    layers = shape.layer_params * weight_value_bytes(dtype)
    return layers + value_bytes(dtype) * (model_parameters(shape, has_head) - shape.layer_params)


class MicroBatch(NamedTuple):
    """What a device runs at once."""

    tokens: int
    """At most; where ``rollouts`` is not 0, what memory was counted for."""
    rollouts: float = 0.0
    """A device's share of so many rollouts, whatever their tokens."""


class StateBytes(NamedTuple):
    """Of a trained model on one device. What is offloaded is one of these."""

    parameters: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer

    def beside(self, other: "StateBytes") -> "StateBytes":
        """Both on one device."""
        return StateBytes(*(mine + its for mine, its in zip(self, other, strict=True)))


def training_state(
    parameters: int, optimizer: Optimizer, sharding: Sharding, num_gpus: int, tensor_parallel: int
) -> StateBytes:
    """Weights and gradients in 16 bits and optimizer state, (2 + 2 + K)·P, divided as in ZeRO, §5.

    FSDP holds the same bytes as weights and gradients in 32 bits and moments, (4 + 4 + K − 4)·P; so does
    training in 32 bits, whose weights are the master weights.
    """
    state = STATE_BYTES_PER_PARAM[optimizer] * parameters
    half = _WEIGHT_AND_GRADIENT / 2.0 * parameters
    if sharding == "optimizer":
        return StateBytes(half / tensor_parallel, half / tensor_parallel, state / num_gpus)
    shards = num_gpus if sharding == "full" else tensor_parallel
    return StateBytes(2.0 * half / shards, 2.0 * half / shards, (state - 2.0 * half) / shards)


def adapted_state(frozen: StateBytes, adapters: StateBytes) -> StateBytes:
    """Of a model whose adapters alone are trained, from both as if they were."""
    return StateBytes(frozen.parameters + adapters.parameters, adapters.gradients, adapters.optimizer)


def gathered_bytes(
    shape: ModelShape,
    sharding: Sharding,
    tensor_parallel: int,
    dtype: Dtype,
    gradients: bool,
    expert_devices: int | None,
) -> float:
    """Weights (and gradients) of the two largest units that a fully sharded model has assembled at once.
    ``expert_devices`` divide a layer's experts; None: as ``tensor_parallel``."""
    if sharding != "full":
        return 0.0
    others = (shape.layer_params - shape.routed_params) / tensor_parallel
    layer = (others + shape.routed_params / (expert_devices or tensor_parallel)) / max(
        shape.mixing_layers, shape.mlp_layers
    )
    unit = max(layer, shape.lm_head_params / tensor_parallel)
    return 2.0 * value_bytes(dtype) * (2.0 if gradients else 1.0) * unit


def _kept_values(shape: ModelShape) -> tuple[float, float]:
    """Activations that attention of a layer, and its MLP, keep for their backward, values a token.

    Counted as in Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022,
    §4.1, in 16 bits, for a model with grouped queries and a gated MLP, without dropout, and with
    FlashAttention, which does not keep the 5·a·s/h term of
    attention: inputs of both norms, of the projections and of the MLP (8h), queries and attention output
        (4·q), keys and values (4·kv), latents,
    and of the MLP gate, up, activation and product (8f), or two of them without a gate.
    """
    mlp = shape.intermediate_size
    if shape.num_experts:
        used = shape.num_experts_per_tok * shape.expert_width
        used += shape.shared_expert_intermediate_size
        mlp = max(used, mlp if shape.num_dense_layers else 0)
    attention = shape.attended_width + shape.latent_width
    attention += shape.output_width if shape.attn_output_gate else 0
    # Before and after the convolution, the output before and after its gate, the gate.
    linear = 2.0 * shape.linear.convolved_width + 3.0 * shape.linear.value_width
    mixed = shape.attention_layers * attention + shape.num_linear_layers * linear
    around = 2.0 * shape.hidden_size
    return around + mixed / shape.mixing_layers, around + (4.0 if shape.gated_mlp else 2.0) * mlp


def layer_activation_bytes(shape: ModelShape, dtype: Dtype) -> float:
    """Activations that attention and an MLP together keep for their backward, a token; also where they are
    layers of their own, as an upper bound."""
    return sum(_kept_values(shape)) * value_bytes(dtype)


def training_activation_bytes(
    shape: ModelShape,
    has_head: bool,
    tensor_parallel: int,
    recompute_factor: float = 1.0,
    checkpointing: bool = False,
    dtype: Dtype = "bf16",
    in_place: bool = False,
) -> float:
    """Of one token through all layers and the head, with sequence parallelism beside tensor parallelism.

    With ``checkpointing`` each layer keeps its input, and one at a time all the rest. ``in_place``: the loss
    works on the logits in their own type and leaves their gradients in their place (verl's, with
    FlashAttention's cross entropy), so that two values a logit are all.
    """
    one, (attention, mlp) = layer_activation_bytes(shape, dtype), _kept_values(shape)
    layers = (shape.mixing_layers * attention + shape.mlp_layers * mlp) * value_bytes(dtype)
    layers *= recompute_factor
    if checkpointing:
        layers = shape.num_hidden_layers * shape.hidden_size * value_bytes(dtype) + one
    beside = value_bytes(dtype) if in_place else _LOGIT_BYTES
    return (layers + _logits(shape, has_head, dtype, beside)) / tensor_parallel


def inference_activation_bytes(
    shape: ModelShape, has_head: bool, tensor_parallel: int, dtype: Dtype = "bf16"
) -> float:
    """Of one token of a forward without backward: one layer at a time, and the head."""
    head = _logits(shape, has_head, dtype, _LOGIT_BYTES / 2.0)
    return (layer_activation_bytes(shape, dtype) + head) / tensor_parallel


def _logits(shape: ModelShape, has_head: bool, dtype: Dtype, beside: float) -> float:
    return (value_bytes(dtype) + beside) * shape.vocab_size if has_head else 0.0
