"""``OppoPPOTrainer``: TRL's PPO trainer, constructed in the same way, under a policy of ``oppo_sim``."""

import copy
from collections.abc import Mapping
from typing import Any, Final, Literal

import torch

from oppo_real.engines.interface import Sampling
from oppo_real.engines.torch_actor import TorchActor
from oppo_real.trl_client.generation import Generation, GenerationSettings
from oppo_real.trl_client.prompts import PromptStream
from oppo_real.trl_client.requirements import require_trl
from oppo_real.trl_client.scoring import InlineScoring, ProcessScoring, Scoring, usable_cores
from oppo_real.trl_client.sessions import ContinuousSession, TrlLoop, TrlSession
from oppo_real.trl_client.steps import StepRecord, Steps
from oppo_sim.errors import OppoError
from oppo_sim.policies.interface import Batch, Policy
from oppo_sim.policies.registry import BASELINE, make_policy

PolicyChoice = Policy | str | tuple[str, Mapping[str, Any]]
GenerationChoice = Literal["auto", "trl", "continuous"]
ScoringChoice = Literal["auto", "inline", "process"]

_SCORES: Final = "objective/scores"  # of TRL's metrics: the mean score of the trained batch
_TRL = require_trl()
_TrlTrainer: Any = _TRL.trainer_class


class OppoPPOTrainer(_TrlTrainer):  # type: ignore[misc]
    """TRL's ``PPOTrainer`` whose rollouts a policy schedules.

    All arguments of TRL's constructor are taken as they are; after ``train()``, ``steps`` holds a
    ``StepRecord`` a step, whose figures are also logged beside TRL's metrics.
    """

    dataloader: Any

    def __init__(
        self,
        *args: Any,
        policy: PolicyChoice = "oppo",
        generation: GenerationChoice = "auto",
        scoring: ScoringChoice = "auto",
        clear_kv_cache_on_weight_sync: bool = True,
        **kwargs: Any,
    ) -> None:
        """``policy``: a name, a name and settings, or a ``Policy`` made for the trainer's batch size.

        ``generation``: ``trl`` calls TRL's ``generate()`` for whole batches, draw for draw as the unmodified
        trainer; ``continuous`` decodes token by token and can carry rollouts; ``auto`` takes ``trl`` for the
        shipped sequential policy only. ``scoring``: where pieces are scored while decoding goes on; ``auto``
        takes a process where there is a second core. ``clear_kv_cache_on_weight_sync``: carried rollouts
        prefill prompt and partial response again after an update.

        Raises OppoError for a policy that TRL's loop cannot follow, and for models that cannot be decoded or
        scored in pieces.
        """
        _check_choice("generation", generation, GenerationChoice)
        _check_choice("scoring", scoring, ScoringChoice)
        super().__init__(*args, **kwargs)
        self._oppo_choice = policy
        self._oppo_scoring = scoring
        self._oppo_clear_kv = clear_kv_cache_on_weight_sync
        self._oppo_session: TrlLoop | None = None
        self.steps: list[StepRecord] = []
        made = self._oppo_policy()
        _check_schedule(made)
        shipped = not isinstance(policy, Policy) and made.name == BASELINE
        self._oppo_continuous = generation == "continuous" or (generation == "auto" and not shipped)
        if self._oppo_continuous:
            self._check_continuous(made)
        elif made.score_granularity != "batch":
            raise OppoError(
                f"policy '{made.name}' scores while it decodes, but generation='trl' scores whole batches:"
                " set generation='continuous'"
            )

    def train(self) -> None:
        """Train as TRL does, on the batches that the policy selects. A second call begins anew, with nothing
        in flight."""
        loader: Any = self.dataloader
        self.steps = []
        session = self._new_session(loader)
        self._oppo_session = session
        self.dataloader = session
        try:
            _TRL.train(self, session.functions())
        finally:
            self.dataloader = loader
            self._oppo_session = None
            session.close()

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """TRL's metrics, and those of the step beside them."""
        if self._oppo_session is not None and _SCORES in logs:
            record = self._oppo_session.close_step(float(logs[_SCORES]))
            self.steps.append(record)
            logs = {**logs, **record.metrics()}
        super().log(logs, *args, **kwargs)

    # ---- inside --------------------------------------------------------------------------------------------

    def _oppo_policy(self) -> Policy:
        batch = Batch(int(self.args.local_batch_size))
        choice = self._oppo_choice
        if isinstance(choice, Policy):
            if choice.batch != batch:
                raise OppoError(
                    f"policy '{choice.name}' was made for {choice.batch}, but the trainer's batch is {batch}:"
                    " make it for per_device_train_batch_size · gradient_accumulation_steps rollouts"
                )
            return choice
        name, settings = (choice, {}) if isinstance(choice, str) else choice
        return make_policy(name, batch, settings)

    def _check_continuous(self, policy: Policy) -> None:
        if self.accelerator.num_processes > 1 or self.is_deepspeed_enabled or self.is_fsdp_enabled:
            raise OppoError(
                "generation='continuous' runs in one process without DeepSpeed or FSDP: start it so, or take"
                " policy 'sequential'"
            )
        if self.is_peft_model:
            raise OppoError(
                "generation='continuous' needs a policy without adapters: leave peft_config out, or take"
                " policy 'sequential'"
            )
        if self.processing_class.pad_token_id is None:
            raise OppoError(
                "the tokenizer has no padding token, which TRL's PPO needs: set processing_class.pad_token"
            )
        if policy.score_granularity != "batch" and self.reward_model is self.value_model:
            raise OppoError(
                "value_model and reward_model are one object, so training would change the scores: give a"
                " copy as value_model"
            )

    def _new_session(self, loader: Any) -> TrlLoop:
        device = self.accelerator.device
        pad_token_id = self.processing_class.pad_token_id
        stream = PromptStream(loader, pad_token_id)
        policy = self._oppo_policy()
        steps = Steps(policy, Batch(int(self.args.local_batch_size)), device, stream.draw)
        if not self._oppo_continuous:
            return TrlSession(steps, stream, _TRL.functions, self.reward_model, self.stop_token_id)
        actor = self.accelerator.unwrap_model(self.model).policy
        sampling = Sampling(
            self.args.temperature + 1e-7, 1.0, self.stop_token_id, self.args.seed
        )  # TRL's own temperature
        engine = TorchActor(_sharing_weights(actor), sampling)
        scoring = None if policy.score_granularity == "batch" else self._new_scoring(device)
        settings = GenerationSettings(
            int(self.args.response_length), pad_token_id, device, self._oppo_clear_kv
        )
        generation = Generation(steps, engine, scoring, actor.state_dict, settings)
        return ContinuousSession(steps, generation, _TRL.functions, self.reward_model)

    def _new_scoring(self, device: torch.device) -> Scoring:
        beside = self._oppo_scoring == "process" or (self._oppo_scoring == "auto" and len(usable_cores()) > 1)
        return (
            ProcessScoring(self.reward_model, device)
            if beside
            else InlineScoring(_sharing_weights(self.reward_model))
        )


def _sharing_weights(model: torch.nn.Module) -> torch.nn.Module:
    """A copy of the modules and the configuration over the same parameters: its attention may be changed, and
    it is always up to date."""
    shared = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(tensor): tensor for tensor in shared})


def _check_schedule(policy: Policy) -> None:
    if policy.schedule != "synchronous":
        raise OppoError(
            f"policy '{policy.name}' generates while it trains, which TRL's loop does not do: take a"
            " synchronous policy, for instance oppo"
        )
    if policy.oracle:
        raise OppoError(
            f"policy '{policy.name}' is an oracle: it needs lengths known beforehand, so it runs in replay"
            " only"
        )


def _check_choice(name: str, given: Any, choices: Any) -> None:
    allowed = choices.__args__
    if given not in allowed:
        raise OppoError(f"{name} is {given!r}: choose one of {', '.join(allowed)}")
