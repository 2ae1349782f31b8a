"""The shape of a decoder-only transformer: parameters, widths, bytes and operations of its parts."""

from typing import Final

from pydantic import model_validator

from oppo_sim.costs.linear_layer import LinearKind, LinearLayer
from oppo_sim.costs.strict import Count, Strict

LATENT_FIELDS: Final = ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
"""Of multi-head latent attention (MLA)."""
INDEX_FIELDS: Final = ("index_topk", "index_n_heads", "index_head_dim")
"""Of sparse attention (DSA), beside latent attention."""
LINEAR_FIELDS: Final = (
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
)
"""Of layers with linear attention."""
SLIDING_FIELDS: Final = ("sliding_window", "num_sliding_layers")
"""Of layers with a sliding window."""


class ModelShape(Strict):
    """A decoder-only transformer with grouped-query or latent attention, in the words of a Hugging Face
    config.

    Latent attention (DeepSeek-AI, "DeepSeek-V2", 2024, §2.1) where ``kv_lora_rank`` is given: the cache holds
    a token's latent and one rotary key for all heads. Training and prefills make keys and values of it; a
    decode step works on the latent itself, with their matrix on the side of the queries. Sparse attention
    (DeepSeek-AI, "DeepSeek-V3.2", 2025, §2) where ``index_topk`` is given: an indexer compares a token with
    all before it, and attention goes to the ``index_topk`` best.
    """

    num_hidden_layers: Count
    hidden_size: Count
    intermediate_size: Count
    num_attention_heads: Count
    vocab_size: Count
    num_key_value_heads: Count | None = None
    """None: one per attention head."""
    head_dim: Count | None = None
    """None: hidden_size / num_attention_heads."""
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    gated_mlp: bool = True
    num_experts: int = 0
    """0: a dense model."""
    num_experts_per_tok: int = 0
    moe_intermediate_size: Count | None = None
    """Of one expert; None: intermediate_size."""
    moe_latent_size: Count | None = None
    """Columns that experts work on, of a projection of the hidden vector; None: the hidden vector."""
    shared_expert_intermediate_size: int = 0
    num_dense_layers: int = 0
    """Layers without experts in a mixture-of-experts model."""
    kv_lora_rank: Count | None = None
    """Columns of the latent of keys and values; None: keys and values of each KV head."""
    q_lora_rank: Count | None = None
    """Likewise of the queries; None: they have none."""
    qk_nope_head_dim: Count | None = None
    """Columns of a query without rotary positions; those with them are ``qk_rope_head_dim``."""
    qk_rope_head_dim: Count | None = None
    v_head_dim: Count | None = None
    """Columns of a value."""
    index_topk: Count | None = None
    """Tokens that a token attends to; None: all."""
    index_n_heads: Count | None = None
    index_head_dim: Count | None = None
    """Columns of a query and of the one key of the indexer, which every device has whole."""
    attn_output_gate: bool = False
    """Whether attention's output is multiplied with a gate, as wide as the queries."""
    num_linear_layers: int = 0
    """Layers with linear attention, which keep a state of each rollout in place of keys and values."""
    linear_kind: LinearKind = "gated_delta_net"
    """What it is; Mamba2 in these words: groups are key heads, columns of the state space those of a key."""
    linear_num_key_heads: Count | None = None
    linear_num_value_heads: Count | None = None
    linear_key_head_dim: Count | None = None
    linear_value_head_dim: Count | None = None
    linear_conv_kernel_dim: Count | None = None
    num_sliding_layers: int = 0
    """Layers whose tokens attend to the last ``sliding_window`` ones alone."""
    sliding_window: Count | None = None
    num_attention_layers: int | None = None
    """Layers with keys and values; None: all without linear attention. In Falcon-H1 layers have both."""
    num_mlp_layers: int | None = None
    """Layers with an MLP or experts; None: all. In Nemotron-H a layer has these or attention, not both."""

    @model_validator(mode="after")
    def _attention_is_whole(self) -> "ModelShape":
        """Each kind of attention has all its fields or none."""
        kinds = {
            "latent attention": LATENT_FIELDS,
            "sparse attention": INDEX_FIELDS,
            "linear attention": LINEAR_FIELDS,
        }
        for kind, fields in kinds.items():
            left_out = [name for name in fields if getattr(self, name) is None]
            some = len(left_out) < len(fields) or (fields is LINEAR_FIELDS and self.num_linear_layers > 0)
            if some and (missing := [name for name in left_out if name != "q_lora_rank"]):
                raise ValueError(f"{kind} needs {', '.join(missing)}, too")
        if self.index_topk and not (self.latent and self.q_lora_rank):
            raise ValueError("index_topk needs latent attention with a q_lora_rank: give its fields, too")
        if self.linear_num_key_heads and not self.num_linear_layers:
            raise ValueError("linear_num_key_heads is given, and num_linear_layers is 0")
        if (self.num_sliding_layers > 0) != (self.sliding_window is not None):
            raise ValueError("give both num_sliding_layers and sliding_window, or none of them")
        layers, bounded = self.num_hidden_layers, (self.num_linear_layers, self.num_sliding_layers)
        if min(bounded) < 0 or bounded[0] > layers or self.full_layers < 1:
            told = f"num_linear_layers {bounded[0]} and num_sliding_layers {bounded[1]}"
            raise ValueError(f"{told} must leave some of {layers} layers that attend to all tokens")
        if self.attention_layers > layers or not 0 <= self.mlp_layers <= layers <= self.num_blocks:
            raise ValueError(
                f"num_attention_layers {self.attention_layers}, num_linear_layers {bounded[0]} and"
                f" num_mlp_layers {self.mlp_layers} must each be at most num_hidden_layers {layers}, and as"
                " many in all"
            )
        return self

    @model_validator(mode="after")
    def _consistent(self) -> "ModelShape":
        if not self.latent and self.head_dim is None and self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of {self.num_attention_heads} heads; give"
                " head_dim"
            )
        if self.num_attention_heads % self.kv_heads:
            raise ValueError(
                f"{self.num_attention_heads} attention heads are not a multiple of {self.kv_heads} KV heads"
            )
        if self.num_experts and not 1 <= self.num_experts_per_tok <= self.num_experts:
            raise ValueError(
                f"num_experts_per_tok must be 1 to {self.num_experts}, not {self.num_experts_per_tok}"
            )
        if not 0 <= self.num_dense_layers <= self.mlp_layers:
            raise ValueError(f"num_dense_layers must be 0 to {self.mlp_layers}, not {self.num_dense_layers}")
        if min(self.num_experts, self.shared_expert_intermediate_size) < 0:
            raise ValueError("num_experts and shared_expert_intermediate_size must not be negative")
        return self

    @property
    def kv_heads(self) -> int:
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def latent(self) -> bool:
        """Whether attention is latent."""
        return self.kv_lora_rank is not None

    @property
    def head_size(self) -> int:
        """Columns of a query and of a key."""
        if self.latent:
            return (self.qk_nope_head_dim or 0) + (self.qk_rope_head_dim or 0)
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def query_width(self) -> int:
        """Columns of all queries of a layer."""
        return self.num_attention_heads * self.head_size

    @property
    def kv_width(self) -> int:
        """Columns of all keys of a layer; with latent attention as training and prefills make them."""
        return self.kv_heads * self.head_size

    @property
    def value_width(self) -> int:
        """Columns of all values of a layer."""
        return self.kv_heads * (self.v_head_dim or self.head_size)

    @property
    def output_width(self) -> int:
        """Columns of what attention gives, of all heads of a layer."""
        return self.num_attention_heads * (self.v_head_dim or self.head_size)

    @property
    def attended_width(self) -> int:
        """Columns of queries, keys, values and output of a layer, which attention reads and writes."""
        return self.query_width + self.output_width + self.kv_width + self.value_width

    @property
    def turned_width(self) -> int:
        """Columns of queries and keys that get rotary positions."""
        if self.latent:
            return (self.num_attention_heads + 1) * (self.qk_rope_head_dim or 0)
        return self.query_width + self.kv_width

    @property
    def latent_width(self) -> int:
        """Columns of a token's latents and of its rotary key, which no device shares with another; 0 without
        latent attention."""
        if not self.latent:
            return 0
        return (self.q_lora_rank or 0) + (self.kv_lora_rank or 0) + (self.qk_rope_head_dim or 0)

    @property
    def cached_width(self) -> int:
        """Columns of a token's entry in the KV cache of a layer."""
        if self.latent:
            return (self.kv_lora_rank or 0) + (self.qk_rope_head_dim or 0)
        return self.kv_width + self.value_width

    @property
    def decode_attention_flops(self) -> float:
        """Of a new token's attention to one token of the past, in a layer: to the latent itself, where there
        is one, by every head."""
        if self.latent:
            return 2.0 * self.num_attention_heads * (self.cached_width + (self.kv_lora_rank or 0))
        return 2.0 * (self.query_width + self.output_width)

    @property
    def pair_attention_flops(self) -> float:
        """Of a query-key pair of a prefill or of training, in a layer."""
        return 2.0 * (self.query_width + self.output_width)

    @property
    def attention_layers(self) -> int:
        """Layers with keys and values."""
        if self.num_attention_layers is None:
            return self.num_hidden_layers - self.num_linear_layers
        return self.num_attention_layers

    @property
    def mixing_layers(self) -> int:
        """Layers with attention of any kind."""
        return min(self.num_hidden_layers, self.attention_layers + self.num_linear_layers)

    @property
    def mlp_layers(self) -> int:
        """Layers with an MLP or experts."""
        return self.num_hidden_layers if self.num_mlp_layers is None else self.num_mlp_layers

    @property
    def num_blocks(self) -> int:
        """Attention and MLPs or experts of all layers, each with its norm and its residual; mostly two a
        layer."""
        return self.mixing_layers + self.mlp_layers

    @property
    def block_pairs(self) -> float:
        """Layers of two blocks that the model is as long as."""
        return self.num_blocks / 2.0

    @property
    def full_layers(self) -> int:
        """Layers that keep all tokens, so that their keys and values grow with a rollout."""
        return self.attention_layers - self.num_sliding_layers

    @property
    def window_layers(self) -> int:
        """Layers whose tokens attend to ``window`` ones at most: the last, or those that an indexer chose."""
        return self.attention_layers if self.index_topk else self.num_sliding_layers

    @property
    def window(self) -> int:
        """Tokens; 0 without such layers."""
        return self.index_topk or self.sliding_window or 0

    @property
    def index_matrix_params(self) -> int:
        """Of the indexer of a layer: its queries from their latent, its key, and a weight of each head."""
        heads, width = self.index_n_heads or 0, self.index_head_dim or 0
        return (self.q_lora_rank or 0) * heads * width + self.hidden_size * (width + heads)

    @property
    def index_bytes(self) -> float:
        """Of a token's key in the indexer's cache of a layer: 8 bits a column and a scale of 32."""
        return self.index_head_dim + 4.0 if self.index_head_dim else 0.0

    @property
    def index_flops(self) -> float:
        """Of comparing a token with one of the past, in a layer."""
        return 2.0 * (self.index_n_heads or 0) * (self.index_head_dim or 0)

    @property
    def linear(self) -> LinearLayer:
        """A layer of linear attention."""
        if not self.num_linear_layers:
            return LinearLayer(self.linear_kind, 0)
        return LinearLayer(
            self.linear_kind,
            self.hidden_size,
            self.linear_num_key_heads or 0,
            self.linear_num_value_heads or 0,
            self.linear_key_head_dim or 0,
            self.linear_value_head_dim or 0,
            self.linear_conv_kernel_dim or 1,
        )

    def state_bytes_per_rollout(self, kv_bytes: float, tensor_parallel: int = 1) -> float:
        """What is kept of a rollout on one device however long it is: states of linear attention, keys and
        values of sliding windows (``kv_bytes`` an element)."""
        states = self.num_linear_layers * self.linear.kept_bytes / tensor_parallel
        window = self.num_sliding_layers * self.window
        return states + window * self.kv_width_on(tensor_parallel) * kv_bytes

    @property
    def moe_layers(self) -> int:
        return self.mlp_layers - self.num_dense_layers if self.num_experts else 0

    @property
    def dense_layers(self) -> int:
        return self.mlp_layers - self.moe_layers

    @property
    def mlp_matrices(self) -> int:
        """Matrices of an MLP: gate, up and down; up and down without a gate."""
        return 3 if self.gated_mlp else 2

    @property
    def attention_matrices(self) -> tuple[tuple[int, int], ...]:
        """(Inputs, outputs) of the projections of one layer: queries, keys, values, output; with latent
        attention down to the latents and up from them."""
        hidden, out = self.hidden_size, (self.output_width, self.hidden_size)
        if not self.latent:
            kv, gated = (hidden, self.kv_width), 2 if self.attn_output_gate else 1
            return (hidden, gated * self.query_width), kv, (hidden, self.value_width), out
        rank, made = self.kv_lora_rank or 0, (self.qk_nope_head_dim or 0) + (self.v_head_dim or 0)
        down, up = (hidden, self.cached_width), (rank, self.num_attention_heads * made)
        query = (hidden, self.query_width)
        if self.q_lora_rank is None:
            return query, down, up, out
        return (hidden, self.q_lora_rank), (self.q_lora_rank, self.query_width), down, up, out

    @property
    def attention_matrix_params(self) -> int:
        """Of the projections of one layer."""
        projections = sum(inputs * outputs for inputs, outputs in self.attention_matrices)
        return projections + self.index_matrix_params

    @property
    def replicated_attention_params(self) -> int:
        """Of these, what every tensor-parallel device holds whole: the projections down to latents, and the
        indexer."""
        return self.hidden_size * self.latent_width + self.index_matrix_params

    @property
    def dense_mlp_params(self) -> int:
        return self.mlp_matrices * self.hidden_size * self.intermediate_size

    @property
    def expert_width(self) -> int:
        """``intermediate_size`` of one expert."""
        return self.moe_intermediate_size or self.intermediate_size

    @property
    def expert_input_size(self) -> int:
        """Columns of what an expert gets and gives."""
        return self.moe_latent_size or self.hidden_size

    @property
    def expert_params(self) -> int:
        """Of one expert."""
        return self.mlp_matrices * self.expert_input_size * self.expert_width

    @property
    def shared_mlp_params(self) -> int:
        """Per mixture-of-experts layer: router, projections to the experts' latent and back, and shared
        expert with its gate, which every token uses."""
        shared = self.shared_expert_intermediate_size
        return self.hidden_size * (
            self.num_experts
            + 2 * (self.moe_latent_size or 0)
            + (self.mlp_matrices * shared + 1 if shared else 0)
        )

    @property
    def routed_params(self) -> int:
        """Of all experts that tokens are routed to, in all layers."""
        return self.moe_layers * self.num_experts * self.expert_params

    @property
    def lm_head_params(self) -> int:
        return self.vocab_size * self.hidden_size

    @property
    def layer_params(self) -> int:
        """All layers, with norms and biases, without embeddings, final norm and head."""
        per_layer = self.attention_matrix_params
        per_layer += self.query_width + 2 * self.kv_width if self.qkv_bias else 0
        per_layer += 2 * self.head_size if self.qk_norm else 0
        per_layer += (
            (self.q_lora_rank or 0) + (self.kv_lora_rank or 0) + 2 * (self.index_head_dim or 0)
        )  # norms
        moe = self.routed_params + self.moe_layers * self.shared_mlp_params
        return (
            self.num_blocks * self.hidden_size
            + self.attention_layers * per_layer
            + self.num_linear_layers * self.linear.parameters
            + self.dense_layers * self.dense_mlp_params
            + moe
        )

    @property
    def parameters(self) -> int:
        """All parameters of the causal language model (tied embeddings counted once)."""
        embeddings = self.lm_head_params * (1 if self.tie_word_embeddings else 2)
        return self.layer_params + embeddings + self.hidden_size

    @property
    def parameters_without_head(self) -> int:
        """Of a reward model or critic: a scalar head in place of the output head."""
        return self.layer_params + self.lm_head_params + self.hidden_size

    @property
    def active_matrix_params(self) -> int:
        """Matrix parameters of the layers that one token is multiplied with."""
        moe = self.moe_layers * (self.num_experts_per_tok * self.expert_params + self.shared_mlp_params)
        return (
            self.attention_layers * self.attention_matrix_params
            + self.num_linear_layers * self.linear.matrix_params
            + self.dense_layers * self.dense_mlp_params
            + moe
        )

    def kv_width_on(self, tensor_parallel: int) -> float:
        """``cached_width`` on one of the devices: KV heads are replicated where there are too few, and a
        latent always is."""
        if self.latent:
            return float(self.cached_width)
        return self.cached_width * (max(1.0, self.kv_heads / tensor_parallel) / self.kv_heads)

    def kv_bytes_per_token(self, bytes_per_element: float, tensor_parallel: int = 1) -> float:
        """Keys and values that a further token adds on one device, with its key of an indexer."""
        return self.full_layers * (self.kv_width_on(tensor_parallel) * bytes_per_element + self.index_bytes)
