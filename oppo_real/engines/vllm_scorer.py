"""A scorer on a vLLM pooling model: a growing prefix, submitted again and again, of which prefix caching
leaves only the new part to prefill.

vLLM has no request that grows (its streaming sessions refuse pooling), and caches whole blocks only. So of a
rollout that goes on, what is submitted is the longest prefix of whole blocks that leaves at least one token
over; the rest waits for the next piece. The last piece submits everything. In this way no token is prefilled
twice as long as the blocks stay in the cache, and up to one block of each rollout is prefilled only when its
next piece arrives. vLLM evicts blocks by least recent use when KV runs short; they are then prefilled again,
which the counts show (``extra["evicted"]``).

A rollout's score comes from its last piece alone, so it equals a score in one shot up to rounding.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from oppo_real.engines.interface import ScorePiece, ScorerCounts
from oppo_real.engines.vllm_arguments import POOLING, Sizes, scorer_arguments
from oppo_real.engines.vllm_engine import (
    describe_engine,
    model_folder,
    start_engine,
    step_engine,
    stop_engine,
)
from oppo_real.engines.vllm_probe import probe_vllm, require_vllm
from oppo_sim.errors import OppoError

_NOTHING_DONE: Final = ScorerCounts(extra={"cached": 0, "evicted": 0, "requests": 0})


@dataclass
class _Growing:
    """A rollout's tokens so far, and how many of them were prefilled (whole blocks)."""

    tokens: list[int]
    cached: int = 0


class VllmScorer:
    """``Scorer`` over a sequence classification model with one label, in a folder written by
    ``save_pretrained``. Scores are raw logits.

    Blocks are never shared between rollouts that begin alike, so that every appended token is prefilled once.
    ``kv_capacity_tokens``: None is what vLLM finds free on a GPU, 1 GiB on a CPU. ``engine_args`` go to vLLM
    as they are, last.

    Raises ``OppoError`` where vLLM is absent, lacks something needed, or does not start, or the model has
    another number of labels.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        dtype: str = "auto",
        max_model_len: int | None = None,
        max_num_seqs: int = 64,
        kv_capacity_tokens: int | None = None,
        engine_args: Mapping[str, Any] | None = None,
    ) -> None:
        self._vllm = require_vllm()
        self._features = probe_vllm()
        self._features.need(
            raw_pooling_scores="use_activation" in self._features.pooling_params,
            pooling_tasks="task" in self._features.pooling_params,
            cache_salt=self._features.cache_salt,
        )
        folder = model_folder(model)
        sizes = Sizes(dtype, max_model_len, max_num_seqs, kv_capacity_tokens)
        settings = scorer_arguments(folder, self._features.device_type, sizes, engine_args or {})
        self._growing: dict[int, _Growing] = {}
        self._counts = _NOTHING_DONE
        self._engine = start_engine(settings, self._features)
        config = self._engine.vllm_config
        self._max_model_len = int(config.model_config.max_model_len)
        self._block = int(config.cache_config.block_size)
        labels = int(getattr(config.model_config.hf_config, "num_labels", 1))
        reason = None
        if labels != 1:
            reason = f"The scoring model in {str(folder)!r} has {labels} labels: give one with num_labels=1."
        elif not config.cache_config.enable_prefix_caching:
            reason = (
                f"vLLM cannot cache prefixes of the scoring model in {str(folder)!r}: use the torch scorer."
            )
        if reason:
            stop_engine(self._engine)
            raise OppoError(reason)

    # -- the Scorer interface --------------------------------------------------------------------------------

    def append(self, pieces: Sequence[ScorePiece]) -> dict[int, float]:
        """Take pieces, prefill the whole blocks that they complete, and score the rollouts that end. Several
        pieces of one rollout are joined.

        Raises ``OppoError`` on a rollout without tokens, one longer than ``max_model_len``, or a piece behind
        its rollout's last. Nothing is kept of a refused call.
        """
        grown, ended = self._grown(pieces)
        todo: list[tuple[int, int]] = []
        for rollout_id, tokens in grown.items():
            # One token must stay over: of a prefix that is cached whole the last block is prefilled again.
            whole = len(tokens) if rollout_id in ended else (len(tokens) - 1) // self._block * self._block
            cached = self._growing[rollout_id].cached if rollout_id in self._growing else 0
            if rollout_id in ended or whole > cached:
                todo.append((rollout_id, whole))
        for rollout_id, tokens in grown.items():
            self._growing.setdefault(rollout_id, _Growing([])).tokens = tokens
        self._counts = replace(
            self._counts,
            appended=self._counts.appended + sum(len(piece.tokens) for piece in pieces),
            pieces=self._counts.pieces + len(pieces),
            batches=self._counts.batches + bool(todo),
        )
        results = self._run(todo)
        for rollout_id in ended:
            del self._growing[rollout_id]
        return {rollout_id: results[rollout_id] for rollout_id in sorted(ended)}

    def release(self, rollout_ids: Sequence[int]) -> None:
        """Forget rollouts; unknown ids are left alone. vLLM frees their blocks when it needs the room."""
        for rollout_id in rollout_ids:
            self._growing.pop(rollout_id, None)

    def reference_stream(self) -> None:
        """vLLM runs no second model."""

    def counts(self) -> ScorerCounts:
        """Work so far. ``extra``: tokens taken from the cache, prefilled again, requests to vLLM."""
        return replace(self._counts, extra=dict(self._counts.extra))

    def reset(self) -> None:
        """Be as new, with these weights. Raises ``OppoError`` where vLLM does not empty its cache."""
        self._growing.clear()
        # A rollout's salt is its id, under which the next run has other tokens or the same to prefill anew
        if not self._engine.reset_prefix_cache():
            raise OppoError("vLLM did not empty the scorer's prefix cache: use the torch scorer.")
        self._counts = _NOTHING_DONE

    def resolved_config(self) -> dict[str, Any]:
        """See ``describe_engine``; ``prefill_block_tokens``: of a rollout that goes on, whole blocks of so
        many tokens are prefilled."""
        return describe_engine(self._engine, self._features) | {"prefill_block_tokens": self._block}

    def close(self) -> None:
        """Stop the engine. Its memory is freed when no other vLLM engine of this process is open."""
        self._growing.clear()
        stop_engine(self._engine)

    # -- inside ----------------------------------------------------------------------------------------------

    def _grown(self, pieces: Iterable[ScorePiece]) -> tuple[dict[int, list[int]], set[int]]:
        grown: dict[int, list[int]] = {}
        ended: set[int] = set()
        for piece in pieces:
            name = f"rollout {piece.rollout_id}"
            if piece.rollout_id in ended:
                raise OppoError(f"Cannot append to {name}: its last piece came before; send pieces in order.")
            known = self._growing.get(piece.rollout_id)
            tokens = grown.setdefault(piece.rollout_id, list(known.tokens) if known else [])
            tokens.extend(piece.tokens)
            if not tokens:
                raise OppoError(f"Cannot append to {name}: it has no tokens yet, start with its prompt.")
            if len(tokens) > self._max_model_len:
                raise OppoError(
                    f"Cannot append to {name}: {len(tokens)} tokens exceed max_model_len"
                    f" {self._max_model_len}; raise it or shorten the response."
                )
            if piece.last:
                ended.add(piece.rollout_id)
        return grown, ended

    def _run(self, todo: Sequence[tuple[int, int]]) -> dict[int, float]:
        """Prefill the first ``length`` tokens of each as one batch; the model's output at the last."""
        names: dict[str, tuple[int, int]] = {}
        extra = dict(self._counts.extra)
        prefilled = 0
        for rollout_id, length in todo:
            name = f"{rollout_id}.{extra['requests']}"
            extra["requests"] += 1
            names[name] = (rollout_id, length)
            prompt = self._vllm.inputs.TokensPrompt(
                prompt_token_ids=self._growing[rollout_id].tokens[:length]
            )
            prompt["cache_salt"] = str(rollout_id)
            self._engine.add_request(name, prompt, self._vllm.PoolingParams(**POOLING))
        results: dict[int, float] = {}
        while len(results) < len(todo):
            for output in step_engine(self._engine, self._features):
                rollout_id, length = names[output.request_id]
                growing = self._growing[rollout_id]
                hit = int(output.num_cached_tokens)
                prefilled += length - hit
                extra["cached"] += hit
                extra["evicted"] += max(0, growing.cached - hit)
                growing.cached = length // self._block * self._block
                results[rollout_id] = float(output.outputs.data.reshape(-1)[0])
        self._counts = replace(self._counts, prefilled=self._counts.prefilled + prefilled, extra=extra)
        return results
