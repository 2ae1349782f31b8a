"""The actor of the torch engine: continuous batching over packed forwards, with the rules of the simulator's
replica.

Before every iteration: while the running rollouts and the next token of each do not fit the KV capacity, the
running one with the highest id is preempted; then waiting rollouts join in id order while everything fits,
the first that does not blocking those behind it. KV kept of rollouts at tools counts in the capacity; it is
given up, highest id first, before anybody is preempted, and after joins.

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

from oppo_real.engines.interface import ActorCounts, NewTokens, Request, Sampling
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
    keep_kv_on_tool_call: bool = False
    """KV of a rollout that calls a tool is kept as long as nobody needs the memory."""


@dataclass
class _Rollout:
    request: Request
    context: list[int]
    generated: int
    unseen: int
    """Tokens of its context that no prefill has had."""

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
        self._packed = PackedModel(
            model, limits.kv_block_tokens, graphs=True, capacity=limits.kv_capacity_tokens
        )
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
        self._kept: dict[int, int] = {}
        """Of rollouts that wait for a tool, or to join after it: tokens of context whose KV is here."""
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
            context = list(request.context)
            unseen = len(context) if request.unseen is None else request.unseen
            self._rollouts[request.rollout_id] = _Rollout(request, context, len(request.generated), unseen)
            insort(self._waiting, request.rollout_id)

    def step(self) -> list[NewTokens]:
        """Preempt, join, prefill, one decode iteration: one token for every running rollout, in id order."""
        self._preempt_until_it_fits()
        joining = self._join()
        if not self._running:
            return []
        limits = {rollout_id: self._rollouts[rollout_id].limit for rollout_id in self._running}
        most = self._limits.max_batched_tokens
        store = self._packed.store
        rows = [(rollout_id, self._rollouts[rollout_id]) for rollout_id in self._running]
        if most is not None and sum(len(one.context) - store.length(i) for i, one in rows) > most:
            early = [Feed(i, self._rollouts[i].context[store.length(i) : -1]) for i in joining]
            for batch in micro_batches([feed for feed in early if feed.tokens], most):
                self._packed.forward(batch, limits)
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
            self._give_up(rollout_id)

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int, keep_kv: bool) -> None:
        """New weights, copied in place. Raises OppoError, with nothing changed, if names or shapes differ."""
        self._packed.load(weights)
        self._version = version
        if not keep_kv:
            for rollout_id in self._running:
                self._packed.store.free(rollout_id)
            self._waiting = sorted((*self._waiting, *self._running))
            self._running = []
            for rollout_id in list(self._kept):
                self._give_up(rollout_id)

    def counts(self) -> ActorCounts:
        """Work done so far."""
        return ActorCounts(
            self._decoded, self._prefilled, self._recomputed, self._iterations, self._preemptions
        )

    def reset(self) -> None:
        """Be as new, with these weights; memory stays allocated."""
        self.abort([*self._rollouts, *self._kept])
        self._version = 0
        self._decoded = self._prefilled = self._recomputed = self._iterations = self._preemptions = 0

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
        self._kept.clear()
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
        final = request.final_length
        if not 1 <= final <= request.max_response_length - request.answer_tokens:
            raise OppoError(
                f"{whose} has forced_length {final}; give one from 1 to its max_response_length"
                f" {request.max_response_length}, the answers of tools included."
            )
        if len(request.generated) >= request.turn_end:
            raise OppoError(
                f"{whose} has {len(request.generated)} tokens already and may have {request.turn_end}; it is"
                " finished, do not submit it."
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
        if self._blocks is None or not self._running:
            return
        self._make_room()
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
            self._prefilled += rollout.unseen
            if self._kept.pop(rollout_id, None) is None:
                self._recomputed += len(rollout.context) - rollout.unseen
            rollout.unseen = 0
            insort(self._running, rollout_id)
        if self._kept:
            self._make_room()
        return joining

    def _make_room(self) -> None:
        """Give up KV that rollouts at tools keep, as long as it is in the way of the next iteration."""
        if self._blocks is None:
            return
        block = self._limits.kv_block_tokens
        used = sum(map(self._blocks_needed, self._running)) + sum(-(-c // block) for c in self._kept.values())
        while self._kept and used > self._blocks:
            highest = max(self._kept)
            used -= -(-self._kept[highest] // block)
            self._give_up(highest)

    def _give_up(self, rollout_id: int) -> None:
        if self._kept.pop(rollout_id, None) is not None:
            self._packed.store.free(rollout_id)

    def _leave(self, rollout_id: int, keep_kv: bool = False) -> None:
        (self._running if rollout_id in self._running else self._waiting).remove(rollout_id)
        if keep_kv:
            self._kept[rollout_id] = len(self._rollouts[rollout_id].context)
        elif rollout_id not in self._kept:
            self._packed.store.free(rollout_id)

    def _accept(self, rollout_id: int, token: int, log_prob: float) -> NewTokens:
        rollout = self._rollouts[rollout_id]
        rollout.context.append(token)
        rollout.generated += 1
        reason, calls = rollout.request.end_of_turn(rollout.generated)
        if rollout.request.forced_length is None and token == self._sampling.stop_token_id:
            reason, calls = "stop", False
        if reason is not None or calls:
            self._leave(rollout_id, keep_kv=calls and self._limits.keep_kv_on_tool_call)
            del self._rollouts[rollout_id]
        return NewTokens(rollout_id, (token,), (log_prob,), self._version, reason, calls)
