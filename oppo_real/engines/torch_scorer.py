"""The scorer of the torch engine: a causal reward model that prefills each piece of a rollout once, over the
KV of the pieces before.

The score is the score head's output on the hidden state of the response's last token, computed when the last
piece is in. A reference model can run along (``stream_ref``): it sees the same pieces and leaves the
log-probability of every response token.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from oppo_real.engines.device import synchronize, to_device, to_host
from oppo_real.engines.interface import ScorePiece, ScorerCounts
from oppo_real.engines.packed_model import Feed, PackedModel, micro_batches
from oppo_sim.errors import OppoError


@dataclass
class _Reference:
    """What the reference model keeps of a rollout."""

    prompt_length: int
    seen: int = 0
    last_hidden: torch.Tensor | None = None
    log_probs: list[torch.Tensor] = field(default_factory=list)


class TorchScorer:
    """A ``Scorer`` on one device; with ``reference_model`` also a stream of reference log-probabilities."""

    def __init__(
        self,
        model: torch.nn.Module,
        max_batched_tokens: int | None = None,
        kv_block_tokens: int = 16,
        reference_model: torch.nn.Module | None = None,
        reference_temperature: float = 1.0,
    ) -> None:
        """``model``: a reward model of ``models.build_reward_model`` (one label). ``reference_model``: a
        causal language model with the same tokens. ``max_batched_tokens``: tokens of one forward. Raises
        OppoError for a model with another number of labels.
        """
        labels = getattr(getattr(model, "score", None), "out_features", None)
        if labels != 1:
            raise OppoError(
                f"{type(model).__name__} is no reward model with one score; build it with"
                " models.build_reward_model."
            )
        if max_batched_tokens is not None and max_batched_tokens < 1:
            raise OppoError(
                f"max_batched_tokens is {max_batched_tokens}; give a number from 1 on, or leave it out."
            )
        if not reference_temperature > 0:
            raise OppoError(f"reference_temperature is {reference_temperature}; give a number above 0.")
        self._packed = PackedModel(model, kv_block_tokens)
        self._reference = None if reference_model is None else PackedModel(reference_model, kv_block_tokens)
        self._temperature = reference_temperature
        self._max_tokens = max_batched_tokens
        self._streams: dict[int, _Reference] = {}
        self._finished: dict[int, tuple[float, ...]] = {}
        self._prompt_lengths: dict[int, int] = {}
        self._prefilled = self._appended = self._pieces = self._batches = self._reference_prefilled = 0

    # ---- what the driver asks ------------------------------------------------------------------------------

    def append(self, pieces: Sequence[ScorePiece]) -> dict[int, float]:
        """Prefill pieces as one batch (in order, if it has several of one rollout); scores of the rollouts
        whose last piece was in it.

        Raises OppoError, with nothing prefilled, for an empty piece, a token outside the vocabulary or a
        piece after the last.
        """
        feeds, last = self._joined(pieces)
        if not feeds:
            return {}
        final = self._prefill(feeds)
        done = [feed.rollout_id for feed in feeds if feed.rollout_id in last]
        kept = self._stream(self._reference, feeds) if self._reference is not None else []
        made = [log_probs for log_probs, _ in kept]
        if done:
            made.append(self._packed.head(torch.stack([final[rollout_id] for rollout_id in done])).squeeze(1))
        told = self._told(made)
        begin = 0
        for stream, count in (owner for _, owners in kept for owner in owners):
            stream.log_probs.append(told[begin : begin + count])
            begin += count
        scores = dict(zip(done, told[begin:].tolist(), strict=True))
        for rollout_id in done:
            self._finish(rollout_id)
        self._appended += sum(len(feed.tokens) for feed in feeds)
        self._pieces += len(pieces)
        self._batches += 1
        return scores

    def release(self, rollout_ids: Iterable[int]) -> None:
        """Forget rollouts without scoring them; ids it holds nothing of are ignored."""
        for rollout_id in rollout_ids:
            self._packed.store.free(rollout_id)
            if self._reference is not None:
                self._reference.store.free(rollout_id)
            self._streams.pop(rollout_id, None)
            self._finished.pop(rollout_id, None)
            self._prompt_lengths.pop(rollout_id, None)

    def reference_stream(self) -> "TorchScorer | None":
        """Itself, with a reference model."""
        return None if self._reference is None else self

    def expect(self, prompt_lengths: Mapping[int, int]) -> None:
        """With a reference model: how many tokens of a rollout are its prompt, before its first piece.
        Without, all but the first token get a log-probability.
        """
        self._prompt_lengths.update(prompt_lengths)

    def pop_reference_log_probs(self, rollout_id: int) -> tuple[float, ...]:
        """Log-probabilities of the response tokens of a scored rollout under the reference model; handed out
        once.

        Raises OppoError for a rollout without a score, or an engine without a reference model.
        """
        if self._reference is None:
            raise OppoError("This scorer has no reference model; give it one, or let the trainer run it.")
        if rollout_id not in self._finished:
            raise OppoError(
                f"There are no reference log-probabilities of rollout {rollout_id}: it has no score yet, or"
                " they were taken."
            )
        return self._finished.pop(rollout_id)

    def counts(self) -> ScorerCounts:
        """Work done so far."""
        extra = {} if self._reference is None else {"reference_prefilled": self._reference_prefilled}
        return ScorerCounts(self._prefilled, self._appended, self._pieces, self._batches, extra)

    def reset(self) -> None:
        """Be as new, with these weights; memory stays allocated."""
        held = () if self._reference is None else self._reference.store.rollouts()
        self.release({*self._packed.store.rollouts(), *held, *self._finished, *self._prompt_lengths})
        self._prefilled = self._appended = self._pieces = self._batches = self._reference_prefilled = 0

    def resolved_config(self) -> dict[str, Any]:
        """What the engine really runs with."""
        resolved = self._packed.describe() | {
            "max_batched_tokens": self._max_tokens,
            "stream_ref": self._reference is not None,
        }
        if self._reference is not None:
            resolved["reference"] = self._reference.describe()
        return resolved

    def close(self) -> None:
        """Free everything."""
        self._packed.store.clear()
        if self._reference is not None:
            self._reference.store.clear()
        self._streams.clear()
        self._finished.clear()
        self._prompt_lengths.clear()

    # ---- pieces --------------------------------------------------------------------------------------------

    def _joined(self, pieces: Sequence[ScorePiece]) -> tuple[list[Feed], set[int]]:
        tokens: dict[int, list[int]] = {}
        last: set[int] = set()
        for piece in pieces:
            whose = f"A piece of rollout {piece.rollout_id}"
            if not piece.tokens:
                raise OppoError(f"{whose} is empty; send the last tokens together with last=True.")
            if piece.rollout_id in last:
                raise OppoError(f"{whose} comes after its last one.")
            self._packed.check_tokens(piece.tokens, whose)
            tokens.setdefault(piece.rollout_id, []).extend(piece.tokens)
            if piece.last:
                last.add(piece.rollout_id)
        for rollout_id, new in tokens.items():
            held = self._packed.store.length(rollout_id)
            self._packed.check_length(held + len(new), f"Rollout {rollout_id}")
        return [Feed(rollout_id, new) for rollout_id, new in tokens.items()], last

    def _prefill(self, feeds: Sequence[Feed]) -> dict[int, torch.Tensor]:
        """Hidden state [hidden] of the last token of each feed."""
        final: dict[int, torch.Tensor] = {}
        for batch in micro_batches(feeds, self._max_tokens):
            hidden = self._packed.forward(batch).index_select(0, self._packed.last_rows(batch))
            self._prefilled += sum(len(feed.tokens) for feed in batch)
            final.update((feed.rollout_id, row) for feed, row in zip(batch, hidden, strict=True))
        return final

    def _told(self, made: list[torch.Tensor]) -> torch.Tensor:
        """All in one, in the host's memory. Waits even for nothing: a batch whose work is still queued would
        count as done, and the next one would be formed too early."""
        if made:
            return to_host(torch.cat(made))
        synchronize(self._packed.device)
        return torch.empty(0)

    def _stream(
        self, reference: PackedModel, feeds: Sequence[Feed]
    ) -> list[tuple[torch.Tensor, list[tuple[_Reference, int]]]]:
        """Log-probabilities, still on the device, and whose they are (tokens)."""
        kept: list[tuple[torch.Tensor, list[tuple[_Reference, int]]]] = []
        for batch in micro_batches(feeds, self._max_tokens):
            hidden = reference.forward(batch)
            self._reference_prefilled += hidden.shape[0]
            begin = 0
            sources: list[torch.Tensor] = []
            targets: list[int] = []
            owners: list[tuple[_Reference, int]] = []
            for feed in batch:
                stream = self._streams.get(feed.rollout_id)
                if stream is None:
                    stream = self._streams[feed.rollout_id] = _Reference(
                        self._prompt_lengths.pop(feed.rollout_id, 1)
                    )
                rows = hidden[begin : begin + len(feed.tokens)]
                begin += len(feed.tokens)
                # A token is predicted by the state before it: the first one by the end of the last piece.
                first = max(stream.prompt_length - stream.seen, 0 if stream.last_hidden is not None else 1)
                if first < len(feed.tokens):
                    if first == 0 and stream.last_hidden is not None:
                        sources.append(stream.last_hidden.unsqueeze(0))
                    sources.append(rows[max(first - 1, 0) : -1])
                    targets.extend(feed.tokens[first:])
                    owners.append((stream, len(feed.tokens) - first))
                stream.seen += len(feed.tokens)
                stream.last_hidden = rows[-1].clone()
            if targets:
                kept.append((self._log_probs(reference, torch.cat(sources), targets), owners))
        return kept

    def _log_probs(
        self, reference: PackedModel, hidden: torch.Tensor, targets: Sequence[int]
    ) -> torch.Tensor:
        wanted = to_device(torch.tensor(targets), hidden.device)
        found = []
        for rows, tokens in zip(torch.split(hidden, 1024), torch.split(wanted, 1024), strict=True):
            scaled = reference.head(rows) / self._temperature
            found.append(scaled.gather(1, tokens.unsqueeze(1)).squeeze(1) - scaled.logsumexp(-1))
        return torch.cat(found)

    def _finish(self, rollout_id: int) -> None:
        self._packed.store.free(rollout_id)
        if self._reference is not None:
            self._reference.store.free(rollout_id)
            log_probs = self._streams.pop(rollout_id).log_probs
            self._finished[rollout_id] = tuple(torch.cat(log_probs).tolist()) if log_probs else ()
