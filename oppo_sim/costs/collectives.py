"""Seconds of what the devices that share a forward send one another."""

from oppo_sim.costs.split import Split


def collectives_seconds(split: Split, rows: float) -> float:
    """Between the devices of one replica or rank: an all-reduce of ``rows`` hidden vectors a block with
    tensor parallelism, four all-to-alls with sequence parallelism (queries, keys, values, attention output:
    Jacobs et al., "DeepSpeed Ulysses", 2023; KV heads are repeated where there are too few), hidden vectors
    to their experts and back, and from each stage of a pipeline to the next."""
    shape, seconds = split.shape, tensor_parallel_seconds(split, rows)
    if split.experts_apart and shape.moe_layers:
        seconds += shape.moe_layers * _expert_exchange_seconds(split, rows)
    if split.sequence_parallel > 1:
        latency_s, bytes_per_s = split.sequence_link or split.rates.all_to_all
        degree = split.sequence_parallel
        repeated = max(shape.kv_heads, degree) / shape.kv_heads
        size = shape.query_width + shape.output_width + repeated * (shape.kv_width + shape.value_width)
        size *= rows * split.activation_bytes
        sent = size / split.tensor_parallel * (degree - 1) / degree
        seconds += shape.mixing_layers * (4 * latency_s + sent / bytes_per_s)
    if split.pipeline_parallel > 1:
        latency_s, bytes_per_s = split.rates.all_to_all
        sent = rows * shape.hidden_size * split.activation_bytes / split.tensor_parallel
        seconds += (split.pipeline_parallel - 1) * (latency_s + sent / bytes_per_s)
    return seconds


def tensor_parallel_seconds(split: Split, rows: float) -> float:
    """Of ``collectives_seconds``, the all-reduces of tensor parallelism."""
    shape = split.shape
    if split.tensor_parallel == 1:
        return 0.0
    latency_s, bytes_per_s = split.rates.all_reduce
    size = rows * shape.hidden_size * split.activation_bytes
    reduced = shape.num_blocks
    moved = split.experts_apart and (split.gather is None or split.expert_ranks > 1)
    if moved and not shape.shared_expert_intermediate_size:
        reduced -= shape.moe_layers
    return reduced * (latency_s + size / bytes_per_s)


def _expert_exchange_seconds(split: Split, rows: float) -> float:
    """Of one layer: each device sends a copy of its tokens' hidden vectors to each expert that they use, and
    gets as many back (Lepikhin et al., "GShard", 2020, §3.2); devices that share an expert gather what each
    of them got, and scatter their sums. Tokens of a rank lie on its tensor-parallel devices (Megatron's
    sequence parallelism), and are routed uniformly."""
    if split.gather is not None:
        # Where every rank has all tokens already, the sum is tensor parallelism's all-reduce.
        latency_s, bytes_per_s = split.gather
        size = rows * split.expert_ranks * split.shape.hidden_size * split.activation_bytes
        return 2 * latency_s + size / bytes_per_s if split.expert_ranks > 1 else 0.0
    latency_s, bytes_per_s = split.expert_link or split.rates.all_to_all
    degree, shared = split.expert_parallel, split.devices_of_an_expert
    used = split.shape.num_experts_per_tok * split.shape.expert_input_size * split.activation_bytes
    size = rows / split.tensor_parallel * used
    exchanges = 2 * (degree > 1) + 2 * (shared > 1)
    sent = 2.0 * size * (degree - 1) / degree + 2.0 * size * (shared - 1)
    return exchanges * latency_s + sent / bytes_per_s
