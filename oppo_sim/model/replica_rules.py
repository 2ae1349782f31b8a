"""What a replica needs to know of the scenario."""

from typing import NamedTuple


class ReplicaRules(NamedTuple):
    """The same for all replicas."""

    static: bool
    kv_blocks: int | None
    kv_block_tokens: int
    max_num_seqs: int | None
    keeps_kv: bool
    """KV outlasts a round."""
    stream: bool
    """Cut pieces while decoding (``chunk`` scoring with the ``token`` stop check)."""
    keep_kv_on_tool_call: bool = True
    turn_s: float = 0.0
    """Seconds that an iteration takes longer while its device is shared in time slices."""
    free_recompute: bool = False
    """Counterfactual: prefilling again costs nothing."""
    free_padding: bool = False
    """Counterfactual: rows and columns computed for nobody cost nothing."""
