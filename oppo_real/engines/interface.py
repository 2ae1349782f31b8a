"""What the driver asks of an engine. Tokens are ids; seconds are wall-clock and measured by the caller."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class Sampling:
    """How the actor samples; temperature 0 is greedy.

    ``seed``, a rollout's id and the token's position fix every draw (vLLM: as long as the rollout is not
    restored in between).
    """

    temperature: float = 1.0
    top_p: float = 1.0
    stop_token_id: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class Answer:
    """What a tool gave a rollout after its call."""

    after: int
    """Response tokens made before the call."""
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Request:
    """A rollout to generate, or to go on with (``generated`` tokens already made)."""

    rollout_id: int
    prompt: tuple[int, ...]
    max_response_length: int
    """Of response and answers of tools together."""
    forced_length: int | None = None
    """Replay: the response ends after exactly this many tokens, stop tokens or not."""
    generated: tuple[int, ...] = ()
    """Response tokens, without the answers of tools."""
    answers: tuple[Answer, ...] = ()
    """Of the calls so far, in order."""
    call_after: int | None = None
    """Replay: after so many response tokens it calls a tool and leaves the engine."""
    unseen: int | None = None
    """Tokens of its context that no prefill has had, at its end; None: all."""
    prompt_key: int | None = None
    """Samples with the same key have the same prompt."""

    @property
    def answer_tokens(self) -> int:
        """Of all answers so far."""
        return sum(len(answer.tokens) for answer in self.answers)

    @property
    def context(self) -> tuple[int, ...]:
        """Prompt, response and answers, in order."""
        cuts = [0, *(answer.after for answer in self.answers), len(self.generated)]
        turns = [self.generated[begin:end] for begin, end in pairwise(cuts)]
        answers = [*(answer.tokens for answer in self.answers), ()]
        parts = (part for turn in zip(turns, answers, strict=True) for part in turn)
        return (*self.prompt, *chain.from_iterable(parts))

    @property
    def turn_end(self) -> int:
        """Response tokens at which it leaves the engine at the latest: finished, or with a call."""
        if self.call_after is not None:
            return self.call_after
        return self.final_length

    @property
    def final_length(self) -> int:
        """Response tokens at which it is finished at the latest."""
        if self.forced_length is not None:
            return self.forced_length
        return self.max_response_length - self.answer_tokens

    def end_of_turn(self, generated: int) -> "tuple[FinishReason | None, bool]":
        """(Finish reason, whether it calls) after ``generated`` response tokens, stop tokens apart. A forced
        length below the maximum counts as a stop."""
        if generated == self.call_after:
            return None, True
        if generated < self.final_length:
            return None, False
        return ("stop" if generated + self.answer_tokens < self.max_response_length else "length"), False


@dataclass(frozen=True)
class NewTokens:
    """What one ``step`` gave one rollout."""

    rollout_id: int
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    """As sampled: at the weights and temperature then (torch: before the ``top_p`` cut; vLLM: after it)."""
    weight_version: int
    finish_reason: FinishReason | None
    """None while unfinished."""
    calls_tool: bool = False
    """It has left the engine, until it is submitted again with the answer."""


@dataclass(frozen=True)
class ActorCounts:
    """Since the engine started. Tokens, iterations."""

    decoded: int = 0
    prefilled: int = 0
    recomputed: int = 0
    """Prefilled again: after cleared KV or a preemption."""
    iterations: int = 0
    preemptions: int = 0
    prefix_cached: int = 0
    """Of prompts, found in the KV of another sample, and not prefilled."""


class Actor(Protocol):
    """Generates. All rollouts submitted run together (continuous batching)."""

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue rollouts; they are prefilled before the next iteration, in id order. Of one that comes back
        from a tool only what is new, where its KV was kept."""

    def step(self) -> list[NewTokens]:
        """Prefill what joins, then decode one token for every running rollout; empty if nothing runs."""

    def running(self) -> tuple[int, ...]:
        """Ids of unfinished rollouts, ascending."""

    def abort(self, rollout_ids: Sequence[int]) -> None:
        """Forget rollouts, those at tools too, and free their KV."""

    def load_weights(self, weights: "Mapping[str, torch.Tensor]", version: int, keep_kv: bool) -> None:
        """New weights from the next iteration on; without ``keep_kv`` running rollouts prefill again."""

    def counts(self) -> ActorCounts:
        """Work done so far."""

    def reset(self) -> None:
        """Be as new, for another run: no rollouts, no KV, counts and version from zero. Weights stay."""

    def resolved_config(self) -> dict[str, Any]:
        """What the engine really runs with: shape, dtype, device, KV tokens, attention, versions."""

    def close(self) -> None:
        """Free everything."""


@dataclass(frozen=True)
class ScorePiece:
    """The next tokens of a rollout (the first piece starts with the prompt)."""

    rollout_id: int
    tokens: tuple[int, ...]
    last: bool


@dataclass(frozen=True)
class ScorerCounts:
    """Since the engine started."""

    prefilled: int = 0
    """Tokens that went through the model; equals ``appended`` when each token is prefilled once."""
    appended: int = 0
    pieces: int = 0
    batches: int = 0
    extra: dict[str, int] = field(default_factory=dict)


class ReferenceStream(Protocol):
    """What a scorer offers that also runs a reference model over its pieces (``training.stream_ref``)."""

    def expect(self, prompt_lengths: Mapping[int, int]) -> None:
        """By rollout, before its first piece: how many of its tokens are the prompt."""

    def pop_reference_log_probs(self, rollout_id: int) -> tuple[float, ...]:
        """Of the response tokens of a scored rollout, under the reference model; handed out once."""


class Scorer(Protocol):
    """A reward model over growing sequences; it keeps a rollout's KV until it is scored or released."""

    def append(self, pieces: Sequence[ScorePiece]) -> dict[int, float]:
        """Prefill pieces as one batch; the scores of rollouts whose last piece this was (KV freed)."""

    def release(self, rollout_ids: Sequence[int]) -> None:
        """Forget rollouts without scoring them."""

    def reference_stream(self) -> ReferenceStream | None:
        """The reference model's side; None if it has none."""

    def counts(self) -> ScorerCounts:
        """Work done so far."""

    def reset(self) -> None:
        """As for an actor."""

    def resolved_config(self) -> dict[str, Any]:
        """As for an actor."""

    def close(self) -> None:
        """Free everything."""


class PrefixCaching(NamedTuple):
    """Tokens of a scorer that keeps prefixes in whole blocks and only as long as there is room."""

    block: int
    kv: int
    iteration: int | None
    """That it prefills in one iteration at most; None: not said."""


def prefix_caching(scorer: Mapping[str, Any]) -> PrefixCaching | None:
    """Of a scorer's resolved configuration; None: it holds all that it is given."""
    block, kv = scorer.get("prefill_block_tokens"), scorer.get("kv_capacity_tokens")
    if not isinstance(block, int) or block <= 1 or not isinstance(kv, int) or kv < block:
        return None
    iteration = scorer.get("max_num_batched_tokens")
    return PrefixCaching(block, kv, iteration if isinstance(iteration, int) and iteration >= 1 else None)
