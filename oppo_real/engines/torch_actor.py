"""The actor of the torch engine: continuous batching over packed forwards, with the rules of the simulator's
replica.

Before every iteration: while the running rollouts and the next token of each do not fit the KV capacity, the
running one with the highest id is preempted; then waiting rollouts join in id order while everything fits,
the first that does not blocking those behind it.

How the last context token is handled: an iteration feeds a running rollout the one token that is not stored
yet (its newest) and samples from that token's logits, so before an iteration a context of n tokens has n−1
stored. A rollout that joins has none stored and feeds all n in the same forward: prefill of joining rollouts
and decode of running ones are one packed batch, and n response tokens take n iterations. Prefilling a context
of n tokens is counted as n. Where the joint batch would exceed ``max_batched_tokens``, the first n−1 tokens
are run in forwards of their own, and the iteration then feeds every rollout one token.
"""

from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from oppo_real.engines.interface import ActorCounts, FinishReason, NewTokens, Request, Sampling
from oppo_real.engines.packed_model import Feed, PackedModel, micro_batches
from oppo_real.engines.torch_sampling import check_sampling, sample, token_draw
from oppo_sim.errors import OppoError


@dataclass(frozen=True)
class ActorLimits:
    """Bounds of the engine, all optional. Tokens."""

    kv_capacity_tokens: int | None = None
    kv_block_tokens: int = 16
    max_num_seqs: int | None = None
    max_batched_tokens: int | None = None
    """Tokens of one forward; bounds the memory of activations."""


@dataclass
class _Rollout:
    request: Request
    context: list[int]
    generated: int
    was_prefilled: bool = False

    @property
    def limit(self) -> int:
        return len(self.request.prompt) + self.request.max_response_length


class TorchActor:
    """An ``Actor`` on one device. It owns its model: nobody else may train it or change its attention."""

    def __init__(
        self,
        model: torch.nn.Module,
        sampling: Sampling,
        limits: ActorLimits | None = None,
        weight_version: int = 0,
    ) -> None:
        """``model``: of ``models.build_causal_lm``. Raises OppoError for limits that make no sense."""
        self._limits = limits = limits or ActorLimits()
        check_sampling(sampling)
        for name in ("kv_capacity_tokens", "max_num_seqs", "max_batched_tokens"):
            value = getattr(limits, name)
            if value is not None and value < 1:
                raise OppoError(f"{name} is {value}; give a number from 1 on, or leave it out.")
        self._packed = PackedModel(model, limits.kv_block_tokens, graphs=True)
        if sampling.stop_token_id is not None:
            self._packed.check_tokens((sampling.stop_token_id,), "stop_token_id")
        self._sampling = sampling
        self._version = weight_version
        self._blocks = (
            None if limits.kv_capacity_tokens is None else limits.kv_capacity_tokens // limits.kv_block_tokens
        )
        self._rollouts: dict[int, _Rollout] = {}
        self._running: list[int] = []
        self._waiting: list[int] = []
        self._decoded = self._prefilled = self._recomputed = self._iterations = self._preemptions = 0

    # ---- what the driver asks ------------------------------------------------------------------------------

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue rollouts. Raises OppoError for a request that can never run, before any is queued."""
        seen: set[int] = set()
        for request in requests:
            self._check(request)
            if request.rollout_id in self._rollouts or request.rollout_id in seen:
                raise OppoError(f"Rollout {request.rollout_id} is already being generated; abort it first.")
            seen.add(request.rollout_id)
        for request in requests:
            self._rollouts[request.rollout_id] = _Rollout(
                request, [*request.prompt, *request.generated], len(request.generated)
            )
            insort(self._waiting, request.rollout_id)

    def step(self) -> list[NewTokens]:
        """Preempt, join, prefill, one decode iteration: one token for every running rollout, in id order."""
        self._preempt_until_it_fits()
        joining = self._join()
        if not self._running:
            return []
        limits = {rollout_id: self._rollouts[rollout_id].limit for rollout_id in self._running}
        most = self._limits.max_batched_tokens
        joined = sum(len(self._rollouts[rollout_id].context) for rollout_id in joining)
        if most is not None and len(self._running) - len(joining) + joined > most:
            early = [Feed(rollout_id, self._rollouts[rollout_id].context[:-1]) for rollout_id in joining]
            for batch in micro_batches([feed for feed in early if feed.tokens], most):
                self._packed.forward(batch, limits)
        store = self._packed.store
        rows = [(rollout_id, self._rollouts[rollout_id]) for rollout_id in self._running]
        feeds = [Feed(rollout_id, one.context[store.length(rollout_id) :]) for rollout_id, one in rows]
        size = most or len(feeds)
        parts = [feeds[begin : begin + size] for begin in range(0, len(feeds), size)]
        logits = torch.cat([self._packed.next_logits(part, limits) for part in parts])
        sampling = self._sampling
        draws = [token_draw(sampling.seed, rollout_id, one.generated) for rollout_id, one in rows]
        tokens, log_probs = sample(logits, draws, sampling.temperature, sampling.top_p)
        self._iterations += 1
        self._decoded += len(tokens)
        return [self._accept(*one) for one in zip(tuple(self._running), tokens, log_probs, strict=True)]

    def running(self) -> tuple[int, ...]:
        """Ids of unfinished rollouts, ascending, with those waiting for memory."""
        return tuple(sorted((*self._running, *self._waiting)))

    def abort(self, rollout_ids: Sequence[int]) -> None:
        """Forget rollouts and free their KV; ids that are not (or no longer) here are ignored."""
        for rollout_id in rollout_ids:
            if rollout_id in self._rollouts:
                self._leave(rollout_id)
                del self._rollouts[rollout_id]

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int, keep_kv: bool) -> None:
        """New weights, copied in place. Raises OppoError, with nothing changed, if names or shapes differ."""
        self._packed.load(weights)
        self._version = version
        if not keep_kv:
            for rollout_id in self._running:
                self._packed.store.free(rollout_id)
            self._waiting = sorted((*self._waiting, *self._running))
            self._running = []

    def counts(self) -> ActorCounts:
        """Work done so far."""
        return ActorCounts(
            self._decoded, self._prefilled, self._recomputed, self._iterations, self._preemptions
        )

    def resolved_config(self) -> dict[str, Any]:
        """What the engine really runs with."""
        limits, sampling = self._limits, self._sampling
        return {
            **self._packed.describe(),
            "kv_capacity_tokens": None if self._blocks is None else self._blocks * limits.kv_block_tokens,
            "kv_block_tokens": limits.kv_block_tokens,
            "max_num_seqs": limits.max_num_seqs,
            "max_batched_tokens": limits.max_batched_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": sampling.seed,
            "weight_version": self._version,
        }

    def close(self) -> None:
        """Free everything."""
        self._rollouts.clear()
        self._running, self._waiting = [], []
        self._packed.store.clear()

    # ---- joining and leaving -------------------------------------------------------------------------------

    def _check(self, request: Request) -> None:
        whose = f"Rollout {request.rollout_id}"
        if not request.prompt:
            raise OppoError(
                f"{whose} has an empty prompt; a prompt needs at least one token (a start token)."
            )
        self._packed.check_tokens(request.prompt, f"The prompt of rollout {request.rollout_id}")
        self._packed.check_tokens(request.generated, f"The partial response of rollout {request.rollout_id}")
        if request.max_response_length < 1:
            raise OppoError(f"{whose} has max_response_length {request.max_response_length}; give 1 or more.")
        final = request.max_response_length if request.forced_length is None else request.forced_length
        if not 1 <= final <= request.max_response_length:
            raise OppoError(
                f"{whose} has forced_length {final}; give one from 1 to its max_response_length"
                f" {request.max_response_length}."
            )
        if len(request.generated) >= final:
            raise OppoError(
                f"{whose} has {len(request.generated)} tokens already and may have {final}; it is finished,"
                " do not submit it."
            )
        longest = len(request.prompt) + request.max_response_length
        self._packed.check_length(longest, whose)
        block = self._limits.kv_block_tokens
        if self._blocks is not None and (longest - 1) // block + 1 > self._blocks:
            raise OppoError(
                f"{whose} can grow to {longest} tokens but kv_capacity_tokens"
                f" {self._limits.kv_capacity_tokens} holds {self._blocks} blocks of {block}; raise the"
                " capacity or lower max_response_length."
            )

    def _blocks_needed(self, rollout_id: int) -> int:
        """Blocks of a rollout and its next token: a context of c tokens needs c // block + 1."""
        return len(self._rollouts[rollout_id].context) // self._limits.kv_block_tokens + 1

    def _preempt_until_it_fits(self) -> None:
        if self._blocks is None:
            return
        used = sum(map(self._blocks_needed, self._running))
        while used > self._blocks:
            victim = self._running[-1]
            used -= self._blocks_needed(victim)
            self._leave(victim)
            insort(self._waiting, victim)
            self._preemptions += 1

    def _join(self) -> list[int]:
        count = len(self._waiting)
        if self._limits.max_num_seqs is not None:
            count = min(count, max(0, self._limits.max_num_seqs - len(self._running)))
        if self._blocks is not None:
            used = sum(map(self._blocks_needed, self._running))
            for place in range(count):
                used += self._blocks_needed(self._waiting[place])
                if used > self._blocks:
                    count = place
                    break
        joining = self._waiting[:count]
        del self._waiting[:count]
        for rollout_id in joining:
            rollout = self._rollouts[rollout_id]
            if rollout.was_prefilled:
                self._recomputed += len(rollout.context)
            else:
                self._prefilled += len(rollout.context)
                rollout.was_prefilled = True
            insort(self._running, rollout_id)
        return joining

    def _leave(self, rollout_id: int) -> None:
        (self._running if rollout_id in self._running else self._waiting).remove(rollout_id)
        self._packed.store.free(rollout_id)

    def _accept(self, rollout_id: int, token: int, log_prob: float) -> NewTokens:
        rollout = self._rollouts[rollout_id]
        rollout.context.append(token)
        rollout.generated += 1
        reason = _finish_reason(rollout.request, rollout.generated, token, self._sampling.stop_token_id)
        if reason is not None:
            self._leave(rollout_id)
            del self._rollouts[rollout_id]
        return NewTokens(rollout_id, (token,), (log_prob,), self._version, reason)


def _finish_reason(
    request: Request, generated: int, token: int, stop_token_id: int | None
) -> FinishReason | None:
    """A forced length below the maximum counts as a stop."""
    if request.forced_length is not None:
        if generated < request.forced_length:
            return None
        return "stop" if generated < request.max_response_length else "length"
    if token == stop_token_id:
        return "stop"
    return "length" if generated >= request.max_response_length else None
