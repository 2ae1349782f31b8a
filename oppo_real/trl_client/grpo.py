"""``OppoGRPOTrainer``: TRL's GRPO trainer, constructed in the same way, whose groups a policy of ``oppo_sim``
schedules."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from accelerate.utils import is_peft_model
from transformers import TrainerCallback
from trl import GRPOTrainer
from trl import __version__ as TRL_VERSION

from oppo_real.engines.interface import Sampling
from oppo_real.engines.torch_actor import TorchActor
from oppo_real.placement.inline import InlineWorkerGroup
from oppo_real.placement.interface import WorkerGroup
from oppo_real.ppo.rollout import TrainRollout
from oppo_real.ppo.stopwatch import Stopwatch
from oppo_real.run.source import PromptSource
from oppo_real.trl_client.choices import (
    GenerationChoice,
    PolicyChoice,
    check_choice,
    check_schedule,
    chosen_policy,
    generates_continuously,
    is_distributed,
    sharing_weights,
)
from oppo_real.trl_client.generate import GenerateGroup
from oppo_real.trl_client.scorers import LoopScores
from oppo_real.trl_client.steps import StepRecord
from oppo_real.trl_client.stream import policy_stream
from oppo_real.wrapper import RolloutStream, StepBatch
from oppo_sim.errors import OppoError
from oppo_sim.model.setup import MachineSetup
from oppo_sim.policies.interface import Batch, Policy

METHODS: Final = {
    "_generate_and_score_completions": ("self", "inputs"),
    "_generate": ("self", "prompts"),
    "_tokenize_prompts": ("self", "prompts"),
    "_calculate_rewards": ("self", "inputs"),
    "_get_per_token_logps_and_entropies": ("self", "model"),
    "_get_train_sampler": ("self", "dataset"),
}
"""What is taken from the insides of TRL's trainer; beside them its public ``rollout_func``."""

_UNBOUNDED: Final = 1 << 30  # LoopScores takes no time and no memory


class OppoGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """TRL's ``GRPOTrainer`` whose groups a policy schedules.

    All arguments of TRL's constructor but ``rollout_func`` are taken as they are; after ``train()``,
    ``steps`` holds a ``StepRecord`` a generation, whose figures are also logged beside TRL's metrics.
    """

    def __init__(
        self,
        *args: Any,
        policy: PolicyChoice = "inter",
        generation: GenerationChoice = "auto",
        clear_kv_cache_on_weight_sync: bool = True,
        **kwargs: Any,
    ) -> None:
        """``policy``: a name, a name and settings, or a ``Policy`` made for the batch of a generation and its
        groups. ``generation``: ``trl`` calls TRL's own generation, draw for draw as the unmodified trainer;
        ``continuous`` decodes token by token and can carry groups; ``auto`` takes ``trl`` for the shipped
        sequential policy only. ``clear_kv_cache_on_weight_sync``: carried rollouts prefill prompt and partial
        response again after an update.

        Raises OppoError for a policy that TRL's loop cannot follow, and for what cannot be decoded here.
        """
        check_choice("generation", generation, GenerationChoice)
        _check_form()
        if kwargs.get("rollout_func") is not None:
            raise OppoError("rollout_func is how the policy's rollouts get into TRL: leave it out")
        super().__init__(*args, **kwargs)
        self._oppo_choice = policy
        self._oppo_clear_kv = clear_kv_cache_on_weight_sync
        self._oppo_session: _Session | None = None
        self.steps: list[StepRecord] = []
        chosen = self._oppo_policy()
        check_schedule(chosen)
        if chosen.score_granularity != "batch":
            raise OppoError(
                f"policy '{chosen.name}' has responses scored while others are decoded, but TRL calls reward"
                " functions for the whole batch: take a policy with batch scoring, for instance inter"
            )
        self._oppo_continuous = generates_continuously(generation, policy, chosen)
        self._oppo_check()
        self.add_callback(_Closing(self))

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train as TRL does, on the groups that the policy selects. A second call begins anew, with nothing
        in flight. Raises OppoError where it is to resume: what was in flight is in no checkpoint."""
        if resume_from_checkpoint:
            raise OppoError("what was in flight is in no checkpoint of TRL: train from the saved model anew")
        self.steps = []
        self._oppo_session = session = self._new_session()
        try:
            return super().train(resume_from_checkpoint, *args, **kwargs)
        finally:
            self._oppo_session = None
            session.close()

    # ---- TRL's own, in which the policy takes part -------------------------------------------------------

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        own, session = super()._generate_and_score_completions, self._oppo_session
        if session is None or not self.model.training:
            return own(inputs)
        session.scoring = True
        try:
            scored = session.scored(own, inputs)
        finally:
            session.scoring = False
        session.reward_mean = float(self._metrics["train"]["reward"][-1])
        return scored

    def _generate(self, prompts: Any) -> Any:
        generated, session = super()._generate(prompts), self._oppo_session
        if session is not None and session.scoring:
            session.generated(generated[0], generated[1])
        return generated

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
        session = self._oppo_session
        if session is None or not session.scoring:
            return super()._calculate_rewards(*args, **kwargs)
        with session.watch.stage("reward"):
            return super()._calculate_rewards(*args, **kwargs)

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        session = self._oppo_session
        if session is None or not session.scoring:
            return super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        with session.watch.stage("ref" if model is self.ref_model else "old_log_prob"):
            return super()._get_per_token_logps_and_entropies(model, *args, **kwargs)

    # ---- inside ------------------------------------------------------------------------------------------

    def oppo_update_done(self) -> None:
        """TRL has updated the weights; behind the last update of a generation its step ends."""
        session = self._oppo_session
        if session is not None and self._step % (self.args.steps_per_generation * self.num_iterations) == 0:
            record = session.close_step()
            self.steps.append(record)
            for name, value in record.metrics().items():
                self._metrics["train"][name].append(value)

    def _oppo_policy(self) -> Policy:
        batch = Batch(int(self.args.generation_batch_size), int(self.num_generations))
        return chosen_policy(self._oppo_choice, batch)

    def _oppo_check(self) -> None:
        if is_distributed(self):
            raise OppoError("OppoGRPOTrainer runs in one process without DeepSpeed or FSDP: start it so")
        if isinstance(self.train_dataset, torch.utils.data.IterableDataset) or not hasattr(
            self.train_dataset, "__getitem__"
        ):
            raise OppoError("the policy needs to look ahead in the prompts: give a dataset with a length")
        if self.args.steps_per_generation % self.args.gradient_accumulation_steps:
            raise OppoError(
                "an update trains parts of several generations: make steps_per_generation a multiple of"
                " gradient_accumulation_steps"
            )
        if getattr(self, "tools", None) or getattr(self, "environments", None) or self._is_vlm:
            raise OppoError("OppoGRPOTrainer has text and no tools or environments: leave them out")
        if not self._oppo_continuous:
            return
        if self.use_vllm or self.use_transformers_continuous_batching:
            raise OppoError(
                "the policy's groups are decoded by an engine of this package: set use_vllm and"
                " use_transformers_continuous_batching to False"
            )
        if is_peft_model(self.model):
            raise OppoError(
                "generation='continuous' needs a policy without adapters: leave peft_config out, or take"
                " policy 'sequential'"
            )
        settings = self.args
        plain = settings.top_p == 1.0 and not settings.top_k and not settings.min_p
        if not plain or settings.repetition_penalty != 1.0 or settings.generation_kwargs:
            raise OppoError(
                "generation='continuous' samples by temperature alone: leave top_p, top_k, min_p,"
                " repetition_penalty and generation_kwargs as they are"
            )
        if len(self._oppo_stops()) != 1:
            raise OppoError(f"generation='continuous' has one stop token, the model has {self._oppo_stops()}")

    def _oppo_stops(self) -> Sequence[int]:
        return list(getattr(self, "eos_token_ids", None) or [self._tokenizer.eos_token_id])

    def _new_session(self) -> "_Session":
        policy = self._oppo_policy()
        prompts = _Prompts(self)
        model: Any = self.accelerator.unwrap_model(self.model)
        group: WorkerGroup
        kind: type[_Session]
        if self._oppo_continuous:
            sampling = Sampling(self.temperature, 1.0, self._oppo_stops()[0], self.args.seed)
            engine = TorchActor(sharing_weights(model), sampling)
            group = InlineWorkerGroup(
                [engine], [LoopScores()], stream=False, max_scoring_tokens=_UNBOUNDED, lock_step=False
            )
            kind = _Carrying
        else:
            group, kind = GenerateGroup(_UNBOUNDED), _Watching
        stream = policy_stream(
            policy,
            group,
            PromptSource(prompts.token_ids, policy.batch.group_size),
            model,
            MachineSetup(clear_kv_cache_on_weight_sync=self._oppo_clear_kv, max_scoring_tokens=_UNBOUNDED),
            int(self.max_completion_length),
        )
        return kind(self, stream, model, group, prompts)


class _Closing(TrainerCallback):
    """Hears of every update."""

    def __init__(self, trainer: OppoGRPOTrainer) -> None:
        self._trainer = trainer

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._trainer.oppo_update_done()


class _Prompts:
    """The prompts in the order in which TRL's own sampler deals them out, one a group, as far ahead as a
    policy asks."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._indices = _order(trainer)
        self._drawn: list[int] = []
        self._ids: dict[int, tuple[int, ...]] = {}

    def example(self, group: int) -> dict[str, Any]:
        """Row of the dataset that a group is of."""
        while len(self._drawn) <= group:
            self._drawn.append(next(self._indices))
        return dict(self._trainer.train_dataset[self._drawn[group]])

    def token_ids(self, group: int) -> tuple[int, ...]:
        """Of the prompt, as TRL tokenizes it."""
        if group not in self._ids:
            found = self._trainer._tokenize_prompts([self.example(group)["prompt"]])
            ids = found[0] if isinstance(found, tuple) else found
            self._ids[group] = tuple(ids[0])
        return self._ids[group]


def _order(trainer: Any) -> Iterator[int]:
    """Each prompt once, epoch after epoch; TRL's sampler repeats it for its group and for every use of a
    generation."""
    batch, size = int(trainer.args.generation_batch_size), int(trainer.num_generations)
    sampler = trainer._get_train_sampler(trainer.train_dataset)
    block = batch * sampler.repeat_count
    while True:
        indices = list(sampler)
        if len(indices) < block:
            raise OppoError(
                f"the training dataset has fewer prompts than one generation needs ({batch // size}): give"
                " more prompts, or lower the batch size"
            )
        for begin in range(0, len(indices), block):
            yield from indices[begin : begin + batch : size]


class _Session:
    """A stream of rollouts whose user is TRL's loop."""

    def __init__(
        self, trainer: Any, stream: RolloutStream, model: Any, group: WorkerGroup, prompts: _Prompts
    ) -> None:
        self.watch = Stopwatch(trainer.accelerator.device)
        self.scoring = False
        """TRL is between its batch of prompts and the scored batch of a training step."""
        self.reward_mean = float("nan")
        """Of the batch, as TRL logs it."""
        self.close = group.close
        self._trainer = trainer
        self._stream = stream
        self._model = model
        self._group = group
        self._prompts = prompts
        self._batch: StepBatch | None = None

    def scored(self, own: Any, inputs: Any) -> Any:
        """TRL's generation and scoring of a step, or what stands for it."""
        raise NotImplementedError

    def generated(self, prompt_ids: Any, completion_ids: Any) -> None:
        """TRL has completions."""

    def close_step(self) -> StepRecord:
        """The weights have been updated with the last batch, for the last time."""
        assert self._batch is not None
        rollouts = self._batch.rollouts
        rewards = [self.reward_mean] * len(rollouts)
        self._stream.update(self._model.state_dict(), rewards, self.watch.take())
        return StepRecord(self._stream.row, rollouts)


class _Watching(_Session):
    """TRL generates, with its own calls and draws; the schedule waits for it, and must agree."""

    def scored(self, own: Any, inputs: Any) -> Any:
        self._stream.begin()
        jobs: Any = self._group.jobs  # type: ignore[attr-defined]
        if not (len(jobs) == self._stream.in_flight == len(inputs)):
            raise OppoError(
                f"the policy does not train exactly the {len(inputs)} rollouts that it admits, which TRL"
                " does: set generation='continuous'"
            )
        return own(inputs)

    def generated(self, prompt_ids: Any, completion_ids: Any) -> None:
        group: Any = self._group
        if [list(job.request.prompt) for job in group.jobs] != [list(ids) for ids in prompt_ids]:
            raise OppoError(f"TRL {TRL_VERSION} deals prompts out in an order unknown here")
        stops = set(self._trainer._oppo_stops())
        group.deliver(
            [list(ids) for ids in completion_ids], [bool(ids) and ids[-1] in stops for ids in completion_ids]
        )
        self._batch = self._stream.next_batch()


class _Carrying(_Session):
    """Groups are decoded by an engine of ours; TRL's loop is given those that are complete, with their
    prompts."""

    def scored(self, own: Any, inputs: Any) -> Any:
        batch = self._stream.next_batch()
        assert batch is not None
        size = int(self._trainer.num_generations)
        rollouts = _by_groups(batch.rollouts, size)
        self._batch = StepBatch(batch.step, batch.weight_version, tuple(rollouts))
        answer = {
            "prompt_ids": [list(rollout.prompt) for rollout in rollouts],
            "completion_ids": [list(rollout.response) for rollout in rollouts],
            "logprobs": [list(rollout.log_probs) for rollout in rollouts],
        }
        self._trainer.rollout_func = lambda prompts, trainer: answer
        try:
            output = own([self._prompts.example(rollout.rollout_id // size) for rollout in rollouts])
        finally:
            self._trainer.rollout_func = None
        # The ratio is to the weights that made each token, of whichever step.
        output["old_per_token_logps"] = output["sampling_per_token_logps"]
        return output


def _by_groups(rollouts: Sequence[TrainRollout], size: int) -> list[TrainRollout]:
    """Groups together, as TRL reads advantages, in the order of their first members."""
    places: dict[int, int] = {}
    for rollout in rollouts:
        places.setdefault(rollout.rollout_id // size, len(places))
    return sorted(rollouts, key=lambda each: (places[each.rollout_id // size], each.rollout_id))


def _check_form() -> None:
    for name, wanted in METHODS.items():
        method = getattr(GRPOTrainer, name, None)
        if method is None or tuple(inspect.signature(method).parameters)[: len(wanted)] != wanted:
            found = "is missing" if method is None else "takes other arguments"
            raise OppoError(
                f"the GRPO trainer of TRL {TRL_VERSION} is not of the form that this client knows ({name}()"
                f" {found}): TRL 1.12 and 1.16 work"
            )
    parameters: Mapping[str, Any] = inspect.signature(GRPOTrainer.__init__).parameters
    if "rollout_func" not in parameters:
        raise OppoError(
            f"the GRPO trainer of TRL {TRL_VERSION} takes no rollout_func: TRL 1.12 and 1.16 work"
        )
