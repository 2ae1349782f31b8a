"""TRL's GRPO trainer, recorded: every rollout's length, finish and reward, and the seconds of the stages.

    recording = record_grpo(trainer, "runs/recorded")
    trainer.train()
    recording.close()

The trainer trains exactly as it would without: its methods are called once each, with what they were given,
and only looked at. A recorded step is one generation and the updates that it is trained in.
"""

import hashlib
import inspect
import time
from collections.abc import Callable
from typing import Any, Final

from transformers import TrainerCallback

from oppo_sim.errors import OppoError
from oppo_sim.traces.recorder import Recorder

METHODS: Final = {
    "_generate": ("prompts",),
    "_generate_single_turn": ("prompt_ids",),
    "_generate_and_score_completions": ("inputs",),
    "_calculate_rewards": ("inputs", "prompts", "completions", "completion_ids_list"),
    "_get_per_token_logps_and_entropies": ("model",),
}
"""What is looked at of a trainer, and the arguments that it must begin with."""


def record_grpo(trainer: Any, folder: str) -> "GrpoRecording":
    """Record what ``trainer`` trains into ``folder``; every process records its own rollouts, the main one
    the seconds. Call it before ``trainer.train()``, and ``close`` behind it, or leave that: the journal can
    be read as it is.

    Raises OppoError for a trainer of another form, or one whose steps do not begin with a generation.
    """
    missing = _missing(trainer)
    if missing:
        raise OppoError(
            f"{type(trainer).__name__} is not of the form that this recorder knows ({missing}): it works with"
            " trl.GRPOTrainer of TRL 1.12 and 1.16; record with oppo_sim.traces.recorder.Recorder instead"
        )
    if trainer.args.steps_per_generation % trainer.args.gradient_accumulation_steps:
        raise OppoError(
            f"steps_per_generation={trainer.args.steps_per_generation} is no multiple of"
            f" gradient_accumulation_steps={trainer.args.gradient_accumulation_steps}, so an update trains"
            " several generations: their seconds cannot be told apart"
        )
    recording = GrpoRecording(trainer, folder)
    trainer.add_callback(recording)
    return recording


class GrpoRecording(TrainerCallback):
    """Times what the trainer does, as its callback and around its methods."""

    def __init__(self, trainer: Any, folder: str) -> None:
        import trl

        arguments = trainer.args
        self.recorder = Recorder(
            folder,
            framework="trl",
            about={
                "trl": trl.__version__,
                "group_size": trainer.num_generations,
                "rollout_batch_size": arguments.generation_batch_size,
                "max_response_length": trainer.max_completion_length,
                "model": str(getattr(trainer.model.config, "_name_or_path", "")),
            },
        )
        self._trainer = trainer
        self._main = trainer.accelerator.is_main_process
        self._step = 0
        micro_steps = arguments.steps_per_generation * trainer.num_iterations
        self._updates = micro_steps // arguments.gradient_accumulation_steps
        self._optimizer_step_began: float | None = None
        self._told: dict[str, float] = {}
        """Seconds of the step's stages other than the update."""
        self._whole = 0.0
        self._ticks: list[float] = []
        """Instants of the iterations of TRL's ``generate()``."""
        self._rollouts: list[dict[str, Any]] = []
        """Of the generation that TRL is at, as ``Recorder.rollout_finished`` takes them."""
        self._scoring = False
        self._wrap("_generate", self._around_generate)
        self._wrap("_generate_single_turn", self._around_single_turn)
        self._wrap("_generate_and_score_completions", self._around_scored)
        self._wrap("_calculate_rewards", self._around_rewards)
        self._wrap("_get_per_token_logps_and_entropies", self._around_log_probs)

    def close(self) -> Any:
        """Write the last step down, end the recording and seal it; only the main process seals. Returns the
        folder."""
        self._end_step()
        self._trainer.remove_callback(self)
        for name in METHODS:
            self._trainer.__dict__.pop(name, None)
        if self._main:
            return self.recorder.close()
        self.recorder.stop()
        return self.recorder.folder

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """The trainer begins an update."""
        self._optimizer_step_began = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """The trainer has updated the weights."""
        if self._optimizer_step_began is not None:
            self._whole += time.perf_counter() - self._optimizer_step_began
            self._optimizer_step_began = None

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """The last step is whole also where nobody closes."""
        self._end_step()

    def _wrap(self, name: str, around: Callable[..., Any]) -> None:
        own = getattr(self._trainer, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return around(own, *args, **kwargs)

        setattr(self._trainer, name, wrapped)

    def _around_scored(self, own: Callable[..., Any], inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._trainer.model.training:
            return own(inputs, *args, **kwargs)
        self._end_step()
        # Counted by TRL, so that a run that is resumed goes on where it was.
        self._step = int(self._trainer.state.global_step) // self._updates
        self.recorder.start_step(self._step)
        self._scoring = True
        try:
            scored = own(inputs, *args, **kwargs)
        finally:
            self._scoring = False
        for rollout in self._rollouts:
            self.recorder.rollout_finished(**rollout)
        self._rollouts = []
        return scored

    def _around_generate(self, own: Callable[..., Any], prompts: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._scoring:
            return own(prompts, *args, **kwargs)
        began, at = time.perf_counter(), time.time()
        self._ticks = []
        generated = own(prompts, *args, **kwargs)
        self._add("gen", time.perf_counter() - began)
        prompt_ids, completion_ids, mask = generated[:3]
        lengths = [len(ids) for ids in completion_ids] if mask is None else [sum(each) for each in mask]
        ticks = [at + tick - began for tick in self._ticks]
        stops = self._stops()
        self._rollouts = [
            {
                "response_length": length,
                "prompt_length": len(prompt_ids[place]),
                "prompt_id": _name(prompts[place]),
                "sample_id": str(place % self._trainer.num_generations),
                "finish_reason": "stop" if completion_ids[place][-1:] in stops else "length",
                "started_at": at,
                "finished_at": ticks[length - 1] if 0 < length <= len(ticks) else None,
            }
            for place, length in enumerate(lengths)
        ]
        return generated

    def _around_single_turn(self, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        trainer = self._trainer
        continuous = getattr(trainer, "use_transformers_continuous_batching", False)
        if not self._scoring or trainer.use_vllm or continuous or trainer.tools:
            return own(*args, **kwargs)
        # generate() makes one token of every row a forward: the n-th forward is the n-th token.
        ticks = self._ticks
        hook = trainer.model.register_forward_hook(lambda *_: ticks.append(time.perf_counter()))
        try:
            return own(*args, **kwargs)
        finally:
            hook.remove()

    def _around_rewards(self, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        rewards = own(*args, **kwargs)
        if self._scoring:
            self._add("reward", time.perf_counter() - began)
            for rollout, reward in zip(self._rollouts, self._of_this_process(rewards), strict=True):
                rollout["reward"] = reward
        return rewards

    def _around_log_probs(self, own: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        told = own(model, *args, **kwargs)
        if self._scoring:
            trainer = self._trainer
            if trainer.ref_model is not None:
                stage = "ref" if model is trainer.ref_model else "old_log_prob"
            else:  # under an adapter the policy is its own reference
                stage = "old_log_prob+ref" if trainer.beta != 0.0 else "old_log_prob"
            self._add(stage, time.perf_counter() - began)
        return told

    def _of_this_process(self, rewards: Any) -> list[float]:
        """The weighted sum of the reward functions, as TRL takes it; TRL has gathered all processes' rows."""
        weights = self._trainer.reward_weights.to(rewards.device)
        total = (rewards * weights.unsqueeze(0)).nansum(dim=1)
        total[rewards.isnan().all(dim=1)] = float("nan")
        rows = len(self._rollouts)
        first = self._trainer.accelerator.process_index * rows
        own: list[float] = total[first : first + rows].tolist()
        return own

    def _stops(self) -> list[list[int]]:
        """Tokens, as lists of one, behind which TRL takes a response to be complete."""
        tokenizer = getattr(self._trainer.processing_class, "tokenizer", self._trainer.processing_class)
        ends = getattr(self._trainer, "eos_token_ids", None) or [tokenizer.eos_token_id]
        return [[token] for token in (*ends, tokenizer.pad_token_id)]

    def _add(self, stage: str, seconds: float) -> None:
        self._told[stage] = self._told.get(stage, 0.0) + seconds

    def _end_step(self) -> None:
        """Write the seconds of the step before down; what the stages leave of it is the update."""
        if self._whole > 0.0 and self._told and self._main:
            for stage, seconds in self._told.items():
                self.recorder.stage(stage, seconds, step=self._step)
            update = self._whole - sum(self._told.values())
            self.recorder.stage("update_actor", max(0.0, update), step=self._step)
            self.recorder.stage("step", self._whole, step=self._step)
        self._told, self._whole = {}, 0.0


def _name(prompt: Any) -> str:
    return hashlib.sha256(repr(prompt).encode()).hexdigest()[:16]


def _missing(trainer: Any) -> str | None:
    for name, wanted in METHODS.items():
        method = getattr(trainer, name, None)
        if not callable(method):
            return f"it has no {name}()"
        if tuple(inspect.signature(method).parameters)[: len(wanted)] != wanted:
            return f"its {name}() takes other arguments"
    lacking = [
        name for name in ("num_generations", "reward_weights", "use_vllm") if not hasattr(trainer, name)
    ]
    return f"it has no {lacking[0]}" if lacking else None
