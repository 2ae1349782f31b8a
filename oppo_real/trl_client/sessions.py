"""One call of ``train``: batches for TRL's loop, and the answers that its functions give about them."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch

from oppo_real.trl_client.batches import PaddedBatch
from oppo_real.trl_client.generation import Generation
from oppo_real.trl_client.prompts import PromptStream
from oppo_real.trl_client.steps import StepRecord, Steps
from oppo_sim.errors import OppoError

Functions = Mapping[str, Callable[..., Any]]


class TrlLoop(Protocol):
    """What stands in for the data loader and for some of the functions of TRL's loop."""

    def __iter__(self) -> Iterator[Any]:
        """Batches without end, as a data loader gives them."""

    def functions(self) -> Functions:
        """In place of TRL's."""

    def close_step(self, reward_mean: float) -> StepRecord:
        """The weights have been updated with the last batch."""

    def close(self) -> None:
        """Free everything."""


class TrlSession:
    """TRL generates and scores, with its own calls and draws; the ledger and the policy only look on and must
    agree."""

    def __init__(
        self, steps: Steps, stream: PromptStream, own: Functions, reward_model: Any, stop_token_id: int | None
    ) -> None:
        self._steps = steps
        self._stream = stream
        self._own = own
        self._reward_model = reward_model
        self._stop = stop_token_id

    def __iter__(self) -> Iterator[Any]:
        while True:
            self._steps.watch.start()
            batch = self._stream.load()
            self._admit(len(batch["input_ids"]))
            yield batch

    def _admit(self, size: int) -> None:
        steps = self._steps
        carried = steps.ledger.in_flight
        begun = steps.begin()
        plan = begun.plan
        if (
            carried
            or begun.new != size
            or plan.readmit
            or begun.arrangement.hold
            or plan.stop_after not in (None, size)
        ):
            raise OppoError(
                f"policy '{steps.policy.name}' does not train exactly the {size} rollouts that it admits,"
                " which TRL's generate() does: set generation='continuous'"
            )

    def functions(self) -> Functions:
        return {**_timed(self._own, self._steps, self._reward_model), "batch_generation": self._generate}

    def _generate(
        self, model: Any, queries: torch.Tensor, rows: int, pad_token_id: int, config: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        steps = self._steps
        with steps.watch.stage("gen"):
            found: tuple[torch.Tensor, torch.Tensor] = self._own["batch_generation"](
                model, queries, rows, pad_token_id, config
            )
        whole = found[0]
        responses = whole[:, queries.shape[1] :].tolist()
        at = steps.watch.now()
        for rollout, padded in zip(list(steps.ledger.unfinished.values()), responses, strict=True):
            stopped = self._stop is not None and self._stop in padded
            length = padded.index(self._stop) + 1 if stopped else len(padded)
            rollout.take_whole(padded[:length], steps.version, truncated=not stopped)
            steps.work.decoded += length
            steps.work.padding += len(padded) - length
            # generate() hands out all its rows when the last one is done.
            steps.ledger.finish(rollout, at, steps.version)
            steps.ledger.ready(rollout, at)
        trained = [rollout.rollout_id for rollout in steps.end_phase().trained]
        if trained != sorted(trained):
            raise OppoError(
                f"policy '{steps.policy.name}' reorders the batch, which TRL's generate() does not allow: set"
                " generation='continuous'"
            )
        return found

    def close_step(self, reward_mean: float) -> StepRecord:
        return self._steps.close(reward_mean)

    def close(self) -> None:
        pass


class ContinuousSession:
    """The policy's rollouts are decoded by an actor of ours; TRL's loop is given a batch that is generated,
    and perhaps scored."""

    def __init__(self, steps: Steps, generation: Generation, own: Functions, reward_model: Any) -> None:
        self._steps = steps
        self._generation = generation
        self._own = own
        self._reward_model = reward_model
        self._batch: PaddedBatch | None = None
        self._scored_rows = 0

    def __iter__(self) -> Iterator[Any]:
        while True:
            self._steps.watch.start()
            self._batch = self._generation.next_batch()
            self._scored_rows = 0
            yield {"input_ids": self._batch.queries}

    def functions(self) -> Functions:
        timed = _timed(self._own, self._steps, self._reward_model)
        own_reward, own_log_softmax = timed["get_reward"], self._own["selective_log_softmax"]

        def get_reward(
            model: Any, query_responses: torch.Tensor, pad_token_id: int, context_length: int
        ) -> Any:
            if model is not self._reward_model or self._given().scores is None:
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

    def _given(self) -> PaddedBatch:
        assert self._batch is not None
        return self._batch

    def _generated(self, model: Any, queries: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        batch = self._given()
        if not torch.equal(queries, batch.queries):
            raise OppoError("TRL's loop trains other prompts than it was given: use an unmodified trl 1.12.0")
        return batch.query_responses, batch.log_probs

    def _next_scores(self, rows: int) -> torch.Tensor:
        scores = self._given().scores
        assert scores is not None
        begin, self._scored_rows = self._scored_rows, self._scored_rows + rows
        # TRL changes scores in place (missing_eos_penalty).
        return scores[begin : begin + rows].clone()

    def close_step(self, reward_mean: float) -> StepRecord:
        self._generation.update_weights()
        record = self._steps.close(reward_mean)
        self._batch = None
        return record

    def close(self) -> None:
        self._generation.close()


def _timed(own: Functions, steps: Steps, reward_model: Any) -> dict[str, Callable[..., Any]]:
    """TRL's functions, with their seconds counted as the stage that they are."""

    def get_reward(model: Any, *arguments: Any) -> Any:
        with steps.watch.stage("reward" if model is reward_model else "values"):
            return own["get_reward"](model, *arguments)

    def forward(model: Any, *arguments: Any) -> Any:
        if torch.is_grad_enabled():  # a pass of the update
            return own["forward"](model, *arguments)
        with steps.watch.stage("ref"):
            return own["forward"](model, *arguments)

    return {"get_reward": get_reward, "forward": forward}
