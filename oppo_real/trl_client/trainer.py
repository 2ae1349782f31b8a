"""``OppoPPOTrainer``: TRL's PPO trainer, constructed in the same way, under a policy of ``oppo_sim``."""

from typing import Any, Final, Literal

import torch

from oppo_real.engines.interface import Sampling, Scorer
from oppo_real.engines.torch_actor import TorchActor
from oppo_real.engines.torch_scorer import TorchScorer
from oppo_real.placement.beside import BesideWorkerGroup
from oppo_real.placement.connected import ConnectedWorkerGroup
from oppo_real.placement.inline import InlineWorkerGroup
from oppo_real.placement.interface import WorkerGroup
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
from oppo_real.trl_client.requirements import require_trl
from oppo_real.trl_client.scorers import LoopScores, ResponseScorer
from oppo_real.trl_client.scoring_process import ScoringProcess, usable_cores
from oppo_real.trl_client.sessions import ContinuousSession, LoopParts, PromptStream, TrlLoop, TrlSession
from oppo_real.trl_client.steps import StepRecord
from oppo_real.trl_client.stream import policy_stream
from oppo_real.wrapper import RolloutStream
from oppo_sim.errors import OppoError
from oppo_sim.model.setup import MachineSetup
from oppo_sim.policies.interface import Batch, Policy
from oppo_sim.scenario.schema import DEFAULT_POLICY
from oppo_sim.schedule.rules import streams_pieces

ScoringChoice = Literal["auto", "inline", "process"]

MAX_SCORING_TOKENS: Final = 8192
"""Tokens of one scoring batch."""

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
        policy: PolicyChoice = DEFAULT_POLICY,
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
        check_choice("generation", generation, GenerationChoice)
        check_choice("scoring", scoring, ScoringChoice)
        super().__init__(*args, **kwargs)
        self._oppo_choice = policy
        self._oppo_scoring = scoring
        self._oppo_clear_kv = clear_kv_cache_on_weight_sync
        self._oppo_session: TrlLoop | None = None
        self.steps: list[StepRecord] = []
        chosen = self._oppo_policy()
        check_schedule(chosen)
        self._oppo_continuous = generates_continuously(generation, policy, chosen)
        if self._oppo_continuous:
            self._check_continuous(chosen)
        elif chosen.score_granularity != "batch":
            raise OppoError(
                f"policy '{chosen.name}' scores while it decodes, but generation='trl' scores whole batches:"
                " set generation='continuous'"
            )

    def train(self) -> None:
        """Train as TRL does, on the batches that the policy selects. A second call begins anew, with nothing
        in flight."""
        loader: Any = self.dataloader
        self.steps = []
        session, group = self._new_session(loader)
        self._oppo_session = session
        self.dataloader = session
        try:
            _TRL.train(self, session.functions())
        finally:
            self.dataloader = loader
            self._oppo_session = None
            group.close()

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """TRL's metrics, and those of the step beside them."""
        if self._oppo_session is not None and _SCORES in logs:
            record = self._oppo_session.close_step(float(logs[_SCORES]))
            self.steps.append(record)
            logs = {**logs, **record.metrics()}
        super().log(logs, *args, **kwargs)

    # ---- inside --------------------------------------------------------------------------------------------

    def _oppo_policy(self) -> Policy:
        return chosen_policy(self._oppo_choice, Batch(int(self.args.local_batch_size)))

    def _check_continuous(self, policy: Policy) -> None:
        if is_distributed(self):
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

    def _new_session(self, loader: Any) -> tuple[TrlLoop, WorkerGroup]:
        device = self.accelerator.device
        pad_token_id = self.processing_class.pad_token_id
        prompts = PromptStream(loader, pad_token_id)
        policy = self._oppo_policy()
        actor = self.accelerator.unwrap_model(self.model).policy
        parts = LoopParts(_TRL.functions, policy.name, self.reward_model, device, pad_token_id)
        group: WorkerGroup
        if not self._oppo_continuous:
            group = GenerateGroup(MAX_SCORING_TOKENS)
            stream = self._new_stream(policy, group, prompts, actor)
            return TrlSession(stream, actor.state_dict, parts, group, prompts, self.stop_token_id), group
        sampling = Sampling(
            self.args.temperature + 1e-7, 1.0, self.stop_token_id, self.args.seed
        )  # TRL's own temperature
        engine = TorchActor(sharing_weights(actor), sampling)
        loop_scores = policy.score_granularity == "batch"
        group = self._new_group(engine, policy, device, pad_token_id)
        stream = self._new_stream(policy, group, prompts, actor)
        return ContinuousSession(stream, actor.state_dict, parts, loop_scores=loop_scores), group

    def _new_stream(
        self, policy: Policy, group: WorkerGroup, prompts: PromptStream, actor: torch.nn.Module
    ) -> RolloutStream:
        return policy_stream(
            policy,
            group,
            PromptSource(lambda number: prompts.draw(), 1),
            actor,
            MachineSetup(
                clear_kv_cache_on_weight_sync=self._oppo_clear_kv, max_scoring_tokens=MAX_SCORING_TOKENS
            ),
            int(self.args.response_length),
        )

    def _new_group(
        self, engine: TorchActor, policy: Policy, device: torch.device, pad_token_id: int
    ) -> WorkerGroup:
        options: dict[str, Any] = {
            "stream": streams_pieces(policy, True),
            "max_scoring_tokens": MAX_SCORING_TOKENS,
            "lock_step": False,
        }
        batched = policy.score_granularity == "batch"
        beside = self._oppo_scoring == "process" or (self._oppo_scoring == "auto" and len(usable_cores()) > 1)
        if beside and not batched:
            process = ScoringProcess(self.reward_model, device, pad_token_id, MAX_SCORING_TOKENS)
            scoring = ConnectedWorkerGroup(process, lock_step=False)
            inline = InlineWorkerGroup([engine], [], elapsed=scoring.now(), **options)
            return BesideWorkerGroup(inline, scoring)
        scorer: Scorer = LoopScores()
        if not batched:
            reward = TorchScorer(sharing_weights(self.reward_model), max_batched_tokens=MAX_SCORING_TOKENS)
            scorer = ResponseScorer(reward, pad_token_id)
        return InlineWorkerGroup([engine], [scorer], **options)
