"""A model that the training group holds: its micro-batches, its state, what of it is trained."""

from dataclasses import dataclass

from oppo_sim.costs.memory import MicroBatch, StateBytes, model_parameters
from oppo_sim.costs.model_shape import ModelShape

_NO_STATE = StateBytes(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class TrainedModel:
    """A model of the training group; bytes of a device."""

    shape: ModelShape
    has_head: bool
    training_micro_batch: MicroBatch
    inference_micro_batch: MicroBatch
    state: StateBytes = _NO_STATE
    streamed_bytes: float = 0.0
    """Brought in for every micro-batch, layer by layer, beside the arithmetic."""
    remove_padding: bool = True
    adapters: int | None = None
    """Parameters of adapters, which alone are trained; None: all are."""

    @property
    def parameters(self) -> int:
        return model_parameters(self.shape, self.has_head)

    @property
    def trained_share(self) -> float:
        """Of the parameters."""
        return 1.0 if self.adapters is None else self.adapters / self.parameters

    def longest_stage(self, stages: int) -> float:
        """Share of a forward that the busiest of ``stages`` stages of a pipeline takes: layers are divided
        evenly, and the last stage has the output head (Megatron)."""
        if stages == 1:
            return 1.0
        layers, head = self.shape.num_hidden_layers, self.shape.lm_head_params if self.has_head else 0
        of_layers = self.shape.active_matrix_params / (self.shape.active_matrix_params + head)
        first, last = -(-layers // stages) / layers, layers // stages / layers
        return max(first * of_layers, last * of_layers + 1.0 - of_layers)
