"""One layer of linear attention: its projections, its state of a rollout, and the operations of a token."""

from dataclasses import dataclass
from typing import Final, Literal

LinearKind = Literal["gated_delta_net", "mamba2"]

_STATE_BYTES: Final = 4.0
"""Of an element of a state, which engines keep in 32 bits."""
_CHUNK: Final[dict[LinearKind, int]] = {"gated_delta_net": 64, "mamba2": 128}
"""Tokens that a kernel runs at once: of flash-linear-attention, and of Nemotron-H's config."""


@dataclass(frozen=True)
class LinearLayer:
    """A layer that keeps a state in place of keys and values; all is 0 of a model without such layers.

    Gated DeltaNet (Yang et al., "Gated Delta Networks", 2024), or Mamba2 in the same words (Dao and Gu,
    "Transformers are SSMs", 2024, §7): its C and B are queries and keys, a group of heads shares one of
    each, its x are values, and a key has as many columns as the state space.
    """

    kind: LinearKind
    hidden_size: int
    key_heads: int = 0
    value_heads: int = 0
    key_head_dim: int = 0
    value_head_dim: int = 0
    conv_kernel: int = 1

    @property
    def key_width(self) -> int:
        """Columns of all keys; as many of the queries."""
        return self.key_heads * self.key_head_dim

    @property
    def value_width(self) -> int:
        """Columns of all values; as many of the output and of the output's gate."""
        return self.value_heads * self.value_head_dim

    @property
    def convolved_width(self) -> int:
        """Columns of queries, keys and values, which pass a convolution."""
        return 2 * self.key_width + self.value_width

    @property
    def matrices(self) -> tuple[tuple[int, int], ...]:
        """(Inputs, outputs) of the projections: queries, keys, values and gate; decay (and, in Gated
        DeltaNet, rate) of each value head; output."""
        hidden, of_heads = self.hidden_size, (2 if self.kind == "gated_delta_net" else 1) * self.value_heads
        made = self.convolved_width + self.value_width
        return (hidden, made), (hidden, of_heads), (self.value_width, hidden)

    @property
    def matrix_params(self) -> int:
        """Of the projections."""
        return sum(inputs * outputs for inputs, outputs in self.matrices)

    @property
    def parameters(self) -> int:
        """With the convolution, what each head has, and the norm of the output."""
        convolution = self.convolved_width * self.conv_kernel
        if self.kind == "gated_delta_net":
            return self.matrix_params + convolution + 2 * self.value_heads + self.value_head_dim
        return (
            self.matrix_params + convolution + self.convolved_width + 3 * self.value_heads + self.value_width
        )

    @property
    def state_size(self) -> int:
        """Elements of a rollout's state."""
        return self.value_width * self.key_head_dim

    @property
    def state_bytes(self) -> float:
        """The same in bytes."""
        return _STATE_BYTES * self.state_size

    @property
    def kept_bytes(self) -> float:
        """Of a rollout: its state and, in 16 bits, the last inputs of the convolution."""
        return self.state_bytes + 2.0 * self.convolved_width * (self.conv_kernel - 1)

    @property
    def chunk(self) -> int:
        """Tokens of a prefill or of training that are run at once."""
        return _CHUNK[self.kind]

    @property
    def step_flops(self) -> float:
        """Of a token by itself: the state decays, takes the token in and gives its output, and in Gated
        DeltaNet first gives what the token is to replace."""
        return (7.0 if self.kind == "gated_delta_net" else 5.0) * self.state_size

    @property
    def chunked_flops(self) -> float:
        """Of a token in chunks of c, of a head with keys of k and values of v columns: 2·c·(3·k + 2·v) + c² +
        6·k·v (Yang et al., §3.3); of Mamba2 2·c·v + 4·k·v, and 2·c·k of a group (Dao and Gu, §6)."""
        c, k, v = self.chunk, self.key_head_dim, self.value_head_dim
        if self.kind == "gated_delta_net":
            return self.value_heads * (2.0 * c * (3 * k + 2 * v) + c**2 + 6.0 * k * v)
        return self.value_heads * (2.0 * c * v + 4.0 * k * v) + self.key_heads * 2.0 * c * k
