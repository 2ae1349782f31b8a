"""One call of ``train``: prompts from TRL's loader, padded batches for its loop, and the answers that its
functions give about them."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from oppo_real.ppo.rollout import TrainRollout
from oppo_real.ppo.stopwatch import Stopwatch
from oppo_real.trl_client.generate import GenerateGroup
from oppo_real.trl_client.steps import StepRecord
from oppo_real.wrapper import RolloutStream, StepBatch
from oppo_sim import columns as c
from oppo_sim.errors import OppoError

Functions = Mapping[str, Callable[..., Any]]
Weights = Callable[[], Mapping[str, torch.Tensor]]


class PromptStream:
    """TRL's own data loader, again and again, as whole batches or prompt by prompt."""

    def __init__(self, loader: Iterable[Any], pad_token_id: int) -> None:
        self._batches = _forever(loader)
        self._pad = pad_token_id
        self._waiting: deque[tuple[int, ...]] = deque()

    def load(self) -> Any:
        """The next batch as the loader gives it; its prompts are drawn next."""
        batch = next(self._batches)
        # Padding tokens are left out: TRL's models never see them, wherever they stand.
        self._waiting.extend(
            tuple([token for token in row if token != self._pad]) for row in batch["input_ids"].tolist()
        )
        return batch

    def draw(self) -> tuple[int, ...]:
        """The next prompt, token ids."""
        if not self._waiting:
            self.load()
        return self._waiting.popleft()


def _forever(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        empty = True
        for batch in loader:
            empty = False
            yield batch
        if empty:
            raise OppoError(
                "the training dataset has fewer prompts than one batch needs: give more prompts, or lower the"
                " batch size"
            )


@dataclass(frozen=True)
class PaddedBatch:
    """Prompts padded on the left, responses on the right, both to the longest of the batch, as TRL pads
    them."""

    queries: torch.Tensor
    """[B, context]."""
    query_responses: torch.Tensor
    """[B, context + response]."""
    log_probs: torch.Tensor
    """[B, response], float32: of each response token when it was sampled; 0 under padding, which TRL
    masks."""
    scores: torch.Tensor
    """[B], float32; 0 where TRL's loop scores them."""


def pad_batch(rollouts: Sequence[TrainRollout], pad_token_id: int, device: torch.device) -> PaddedBatch:
    """The batch to train, in the order given."""
    context = max(len(rollout.prompt) for rollout in rollouts)
    width = max(len(rollout.response) for rollout in rollouts)
    rows, log_probs = [], []
    for rollout in rollouts:
        left = [pad_token_id] * (context - len(rollout.prompt))
        missing = width - len(rollout.response)
        rows.append([*left, *rollout.prompt, *rollout.response, *[pad_token_id] * missing])
        log_probs.append([*rollout.log_probs, *[0.0] * missing])
    whole = torch.tensor(rows, dtype=torch.long).to(device)
    return PaddedBatch(
        queries=whole[:, :context].contiguous(),
        query_responses=whole,
        log_probs=torch.tensor(log_probs, dtype=torch.float32).to(device),
        scores=torch.tensor([rollout.score for rollout in rollouts], dtype=torch.float32).to(device),
    )


@dataclass(frozen=True)
class LoopParts:
    """What TRL's loop works with."""

    functions: Functions
    """TRL's own."""
    policy: str
    reward_model: Any
    device: torch.device
    pad_token_id: int


class TrlLoop(Protocol):
    """What stands in for the data loader and for some of the functions of TRL's loop."""

    def __iter__(self) -> Iterator[Any]:
        """Batches without end, as a data loader gives them."""

    def functions(self) -> Functions:
        """In place of TRL's."""

    def close_step(self, reward_mean: float) -> StepRecord:
        """The weights have been updated with the last batch."""


class _Loop:
    """A stream of rollouts whose user is TRL's loop."""

    def __init__(self, stream: RolloutStream, weights: Weights, parts: LoopParts) -> None:
        self._stream = stream
        self._weights = weights
        self._parts = parts
        self._watch = Stopwatch(parts.device)
        self._batch: StepBatch | None = None

    def close_step(self, reward_mean: float) -> StepRecord:
        """The weights have been updated with the last batch."""
        assert self._batch is not None
        rollouts = self._batch.rollouts
        self._stream.update(self._weights(), [reward_mean] * len(rollouts), self._watch.take())
        return StepRecord(self._stream.row, rollouts)

    def _timed(self) -> dict[str, Callable[..., Any]]:
        """TRL's functions, with their seconds counted as the stage that they are."""
        own, watch, reward_model = self._parts.functions, self._watch, self._parts.reward_model

        def get_reward(model: Any, *arguments: Any) -> Any:
            with watch.stage("reward" if model is reward_model else "values"):
                return own["get_reward"](model, *arguments)

        def forward(model: Any, *arguments: Any) -> Any:
            if torch.is_grad_enabled():  # a pass of the update
                return own["forward"](model, *arguments)
            with watch.stage("ref"):
                return own["forward"](model, *arguments)

        return {"get_reward": get_reward, "forward": forward}


class TrlSession(_Loop):
    """TRL generates and scores, with its own calls and draws; the schedule waits for it, and must agree."""

    def __init__(
        self,
        stream: RolloutStream,
        weights: Weights,
        parts: LoopParts,
        group: GenerateGroup,
        prompts: PromptStream,
        stop_token_id: int | None,
    ) -> None:
        super().__init__(stream, weights, parts)
        self._group = group
        self._prompts = prompts
        self._stop = stop_token_id
        self._padding = 0

    def __iter__(self) -> Iterator[Any]:
        while True:
            batch = self._prompts.load()
            self._stream.begin()
            self._check(len(batch["input_ids"]))
            yield batch

    def _check(self, size: int) -> None:
        jobs, in_flight = self._group.jobs, self._stream.in_flight
        if not (len(jobs) == in_flight == size) or any(job.request.generated for job in jobs):
            raise OppoError(
                f"policy '{self._parts.policy}' does not train exactly the {size} rollouts that it admits,"
                " which TRL's generate() does: set generation='continuous'"
            )

    def functions(self) -> Functions:
        return {**self._timed(), "batch_generation": self._generate}

    def _generate(
        self, model: Any, queries: torch.Tensor, rows: int, pad_token_id: int, config: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        found: tuple[torch.Tensor, torch.Tensor] = self._parts.functions["batch_generation"](
            model, queries, rows, pad_token_id, config
        )
        padded = found[0][:, queries.shape[1] :].tolist()
        stopped = [self._stop is not None and self._stop in row for row in padded]
        responses = [
            row[: row.index(self._stop) + 1] if ended else row
            for row, ended in zip(padded, stopped, strict=True)
        ]
        self._padding = sum(map(len, padded)) - sum(map(len, responses))
        self._group.deliver(responses, stopped)
        self._batch = self._stream.next_batch()
        assert self._batch is not None
        trained = [rollout.rollout_id for rollout in self._batch.rollouts]
        if trained != sorted(trained):
            raise OppoError(
                f"policy '{self._parts.policy}' reorders the batch, which TRL's generate() does not allow:"
                " set generation='continuous'"
            )
        return found

    def close_step(self, reward_mean: float) -> StepRecord:
        record = super().close_step(reward_mean)
        return StepRecord({**record.row, c.TOKENS_PADDING: self._padding}, record.rollouts)


class ContinuousSession(_Loop):
    """Rollouts are decoded by engines of ours; TRL's loop is given a batch that is generated, and perhaps
    scored."""

    def __init__(
        self, stream: RolloutStream, weights: Weights, parts: LoopParts, *, loop_scores: bool
    ) -> None:
        super().__init__(stream, weights, parts)
        self._loop_scores = loop_scores
        self._padded: PaddedBatch | None = None
        self._scored_rows = 0

    def __iter__(self) -> Iterator[Any]:
        for batch in self._stream:
            self._batch = batch
            padded = pad_batch(batch.rollouts, self._parts.pad_token_id, self._parts.device)
            self._padded = padded
            self._scored_rows = 0
            yield {"input_ids": padded.queries}

    def functions(self) -> Functions:
        timed = self._timed()
        own_reward, own_log_softmax = timed["get_reward"], self._parts.functions["selective_log_softmax"]

        def get_reward(
            model: Any, query_responses: torch.Tensor, pad_token_id: int, context_length: int
        ) -> Any:
            if model is not self._parts.reward_model or self._loop_scores:
                return own_reward(model, query_responses, pad_token_id, context_length)
            return None, self._next_scores(query_responses.shape[0]), None

        def selective_log_softmax(logits: torch.Tensor, index: torch.Tensor) -> Any:
            # Where TRL has the logits of generate(), it is given log-probabilities of the tokens, which have
            # no vocabulary dimension.
            return logits if logits.ndim == index.ndim else own_log_softmax(logits, index)

        return {
            **timed,
            "batch_generation": self._generated,
            "get_reward": get_reward,
            "selective_log_softmax": selective_log_softmax,
        }

    def _generated(self, model: Any, queries: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        batch = self._padded
        assert batch is not None
        if not torch.equal(queries, batch.queries):
            raise OppoError("TRL's loop trains other prompts than it was given: use an unmodified trl 1.12.0")
        return batch.query_responses, batch.log_probs

    def _next_scores(self, rows: int) -> torch.Tensor:
        assert self._padded is not None
        begin, self._scored_rows = self._scored_rows, self._scored_rows + rows
        # TRL changes scores in place (missing_eos_penalty).
        return self._padded.scores[begin : begin + rows].clone()
