"""The machine to simulate, as plain facts. Built from a scenario; knows nothing of files."""

from dataclasses import dataclass
from typing import Literal

from oppo_sim.errors import OppoError


@dataclass(frozen=True)
class MachineSetup:
    """Replicas, scoring workers, placement, memory. Tokens where a name says so."""

    num_replicas: int = 1
    num_workers: int = 1
    batching: Literal["continuous", "static"] = "continuous"
    kv_capacity_tokens: int | None = None
    """KV of one replica; None: ample."""
    kv_block_tokens: int = 16
    max_num_seqs: int | None = None
    """Bound on running rollouts of one replica; None: unbounded."""
    clear_kv_cache_on_weight_sync: bool = True
    keeps_kv_between_rounds: bool = True
    """False: every round begins with a prefill of what runs."""
    clear_kv_cache_on_tool_call: bool = False
    """A rollout that calls a tool gives up its KV; else its replica keeps it as long as nobody needs the
    memory."""
    shares_prefixes: bool = False
    """Samples of one prompt on a replica have the prompt's whole blocks in KV once."""
    groups_together: bool = False
    """All samples of a prompt go to one replica."""
    max_scoring_tokens: int = 16384
    scorer_kv_capacity_tokens: int | None = None
    scorer_block_tokens: int = 1
    """Of a rollout that goes on a scorer prefills whole blocks of so many tokens; 1: what it is given."""
    scorer_cache_tokens: int | None = None
    """KV in which a scorer keeps prefixes until newer ones need their room; None: ample."""
    scorer_iteration_tokens: int | None = None
    """Tokens that such a scorer prefills in one iteration at most; None: a whole batch."""
    send_s_per_token: float = 0.0
    """Seconds that a token of a piece takes on the link from replica to scorer."""
    streamable: bool = True
    scoring_on: Literal["separate", "rollout", "training"] = "separate"
    """Devices of the scoring workers: their own, or worker j on the device of replica (or training device) j
    modulo their number."""
    training_on: Literal["separate", "rollout"] = "separate"
    sharing: Literal["time_slice", "mps", "streams"] = "time_slice"
    """How activities share a device: kernels of one at a time, or together (``mps`` and ``streams``)."""
    interference: float = 1.0
    """f: slow-down of activities that run together beyond their shared demand."""
    turn_s: float = 0.0
    """Seconds that a decode iteration takes longer while its device is shared in time slices."""
    shares_host: bool = False
    """``scoring_on`` separate, but in one machine with the rest: worker j and replica j (modulo their number)
    slow each other while both are busy, and so do training and every worker."""
    slowdowns: tuple[float, float] | None = None
    """Of decoding and of scoring by ``shares_host``; None: f."""

    @property
    def slowed_by(self) -> tuple[float, float, float]:
        """How much longer decoding, scoring and training take beside another of them by ``shares_host``; 1
        where they do not share a host."""
        if not self.shares_host:
            return 1.0, 1.0, 1.0
        decode, score = self.slowdowns or (self.interference, self.interference)
        return decode, score, self.interference

    @property
    def time_slices(self) -> bool:
        """Kernels of two activities never run together on one device."""
        return self.sharing == "time_slice"

    @property
    def kv_blocks(self) -> int | None:
        """Blocks of ``kv_capacity_tokens``; None: ample."""
        tokens = self.kv_capacity_tokens
        return None if tokens is None else tokens // self.kv_block_tokens

    @property
    def scorer_cache_blocks(self) -> int | None:
        """Blocks of ``scorer_cache_tokens``; None: ample."""
        tokens = self.scorer_cache_tokens
        return None if tokens is None else tokens // self.scorer_block_tokens

    def check(self, longest_prompt: int, max_response_length: int, schedule: str) -> None:
        """Refuse what cannot run. Raises OppoError with the mend."""
        asynchronous = schedule != "synchronous"
        if self.batching == "static" and (
            self.kv_capacity_tokens is not None or self.max_num_seqs is not None
        ):
            raise OppoError(
                "rollout.batching static cannot have kv_capacity_tokens or max_num_seqs: remove them, or use"
                " batching continuous"
            )
        if self.batching == "static" and self.shares_prefixes:
            raise OppoError(
                "rollout.batching static pads every prompt and cannot share one: set"
                " rollout.enable_prefix_caching to false, or use batching continuous"
            )
        if self.batching == "static" and asynchronous:
            raise OppoError(
                f"rollout.batching static cannot run the {schedule} policy: use batching continuous"
            )
        if self.training_on == "rollout" and asynchronous:
            raise OppoError(
                f"the {schedule} policy generates during training: give training its own devices"
                " (placement.training: separate)"
            )
        if self.kv_blocks is not None:
            needed = -(-(longest_prompt + max_response_length) // self.kv_block_tokens)
            if needed > self.kv_blocks:
                raise OppoError(
                    f"rollout.kv_capacity_tokens {self.kv_capacity_tokens} ({self.kv_blocks} blocks of"
                    f" {self.kv_block_tokens}) cannot hold a rollout of {longest_prompt} prompt +"
                    f" {max_response_length} response tokens: raise it, or lower max_response_length"
                )
        if self.scorer_cache_blocks is not None:
            needed = -(-(longest_prompt + max_response_length) // self.scorer_block_tokens)
            if needed > self.scorer_cache_blocks:
                raise OppoError(
                    f"scoring.prefix_cache_tokens {self.scorer_cache_tokens} (the cost profile's, where the"
                    f" scenario gives none; {self.scorer_cache_blocks} blocks of {self.scorer_block_tokens})"
                    f" cannot hold a rollout of {longest_prompt} prompt + {max_response_length} response"
                    " tokens: raise it, or lower max_response_length"
                )
