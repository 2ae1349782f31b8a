"""One batch that a calibration measures."""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Kind = Literal["decode", "prefill", "score", "score_ref", "train", "sync", "round", "piece"]


@dataclass(frozen=True)
class Point:
    """One batch to measure: a row for each rollout, (past tokens, new tokens).

    decode: (context before the iteration, 1); prefill: (0, tokens); score and score_ref: (tokens prefilled
        before, tokens that are prefilled with the piece);
    train: (prompt, response); round: (context, iterations of a round); piece: as score; sync: no rows.
    """

    kind: Kind
    rows: tuple[tuple[int, int], ...]
    cell: tuple[float, float] | None = None
    """Its place in the profile's table: (n_running, KV tokens) or (tokens, mean context); of rounds how many
    and iterations of each; None: fit only."""
    essential: bool = False
    """A profile cannot be written without it."""

    @property
    def n(self) -> int:
        """Rollouts."""
        return len(self.rows)

    @cached_property
    def tokens(self) -> int:
        """New tokens; of a trained batch prompts and responses."""
        return sum(new + (past if self.kind == "train" else 0) for past, new in self.rows)

    @cached_property
    def kv_tokens(self) -> int:
        """Past tokens."""
        return sum(past for past, _ in self.rows)

    @cached_property
    def longest(self) -> int:
        """Of the past of a row; of a trained batch its longest rollout."""
        return max((past + new if self.kind == "train" else past for past, new in self.rows), default=0)

    @cached_property
    def pairs(self) -> float:
        """Query-key pairs, Σ (new·past + new²/2); of a trained batch Σ (prompt + response)²/2."""
        if self.kind == "train":
            return sum((past + new) ** 2 for past, new in self.rows) / 2.0
        return sum(new * past + new * new / 2.0 for past, new in self.rows)

    @property
    def mean_context(self) -> float:
        """Pairs a token."""
        return self.pairs / self.tokens

    @cached_property
    def key(self) -> str:
        """Hash of what is run: kind and rows."""
        return hashlib.sha256(json.dumps([self.kind, self.rows], separators=(",", ":")).encode()).hexdigest()

    def label(self) -> str:
        """For reports."""
        if self.kind == "decode":
            return f"decode n {self.n}, KV {self.kv_tokens} (longest {self.longest})"
        if self.kind == "round" and self.cell is not None:
            return f"{self.cell[0]:g} rounds of {self.cell[1]:g} iterations, {self.n} rollouts"
        if self.kind == "sync":
            return "weight sync"
        if self.kind == "train":
            return f"train {self.n} rollouts, {self.tokens} tokens (longest {self.longest})"
        return f"{self.kind} {self.n} pieces, {self.tokens} tokens, mean context {self.mean_context:g}"
