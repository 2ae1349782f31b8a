"""PPO with a clipped surrogate: one call a batch. docs/ppo.md has the formulas."""

import copy
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any, Final

import torch
from torch import nn

from oppo_real.engines.packed_model import head_of, prepare
from oppo_real.ppo import metrics
from oppo_real.ppo.batching import (
    TrainingGroup,
    in_micro_batches,
    mini_batches,
    token_positions,
    training_groups,
)
from oppo_real.ppo.config import PPOConfig
from oppo_real.ppo.experience import Experience, ExperienceBatch, make_batch, make_experience
from oppo_real.ppo.formulas import importance_weights, policy_losses, value_losses
from oppo_real.ppo.forward import policy_outputs, state_values
from oppo_real.ppo.optimize import Stepper
from oppo_real.ppo.rollout import TokenRow, TrainRollout
from oppo_real.ppo.stopwatch import Stopwatch
from oppo_sim.columns import TRAINING_STAGES, timing
from oppo_sim.errors import OppoError

FORMAT: Final = "oppo-ppo-trainer/1"
_STAGES: Final = TRAINING_STAGES[:-1]  # update_weights is the driver's


class PPOTrainer:
    """Owns the weights that learn, and what is needed to go on learning after a restart."""

    def __init__(
        self,
        policy: nn.Module,
        reference: nn.Module | None,
        critic: nn.Module | None,
        config: PPOConfig,
        device: torch.device | str = "cpu",
    ) -> None:
        """Models of transformers: ``policy`` and ``reference`` causal, ``critic`` a sequence classifier with
        one label and its head in ``score``, None with a value head. ``reference`` may be None if ``kl_coef``
        is 0. All are moved to ``device``, without dropout, and keep packed attention.

        Raises OppoError where the models do not fit the settings.
        """
        _check_models(policy, reference, critic, config)
        self._config = config
        self._device = torch.device(device)
        self._policy = policy.to(self._device).eval()
        self._reference = None if reference is None else reference.to(self._device).eval()
        self._critic = None if critic is None else critic.to(self._device).eval()
        for model in (self._policy, self._reference, self._critic):
            if model is not None:
                prepare(model)
        double = next(policy.parameters()).dtype == torch.float64
        self._dtype = torch.float64 if double else torch.float32
        self._value_head: nn.Linear | None = None
        self._critic_stepper: Stepper | None = None
        actor_parameters = list(policy.parameters())
        if self._critic is None:
            self._value_head = _new_value_head(policy).to(self._device)
            actor_parameters += self._value_head.parameters()
        else:
            rate = config.critic_learning_rate or config.learning_rate
            self._critic_stepper = Stepper("critic", self._critic.parameters(), rate, config)
        self._actor_stepper = Stepper("actor", actor_parameters, config.learning_rate, config)
        self._updates = 0
        self._episode = 0
        self._started = perf_counter()
        self._episodes_here = 0

    @property
    def episode(self) -> int:
        """Rollouts trained so far."""
        return self._episode

    def weights(self) -> dict[str, torch.Tensor]:
        """The policy's weights by name, a tied head included; the next update changes them in place."""
        return {name: tensor.detach() for name, tensor in self._policy.state_dict().items()}

    def preallocate(self, rollouts: int, prompt: int, response: int) -> None:
        """Run the fullest micro-batch that ``rollouts`` of these lengths (tokens) make forward and backward,
        and change nothing, so that no update waits for memory: otherwise every batch that is larger than all
        before it does, on a CPU by up to a third of its time.

        Raises OppoError where it does not fit into memory.
        """
        room = self._config.micro_batch_tokens
        prompt = min(prompt, max(1, room - 1))
        response = max(1, min(response, room - prompt))
        rows = [TokenRow((0,) * prompt, (0,) * response)] * max(1, min(rollouts, room // (prompt + response)))
        steppers = [one for one in (self._actor_stepper, self._critic_stepper) if one is not None]
        try:
            states = [one.stand_ins() for one in steppers]
            with torch.no_grad():
                self._values(rows)
            outputs = policy_outputs(self._policy, rows, self._config.temperature, self._value_head)
            told = [outputs.log_probs] if outputs.values is None else [outputs.log_probs, outputs.values]
            torch.stack(told).sum().backward()  # type: ignore[no-untyped-call]
            self._actor_stepper.forget()
            if self._critic_stepper is not None:
                self._values(rows).sum().backward()  # type: ignore[no-untyped-call]
                self._critic_stepper.forget()
            del states  # not before
        except RuntimeError as error:  # torch.OutOfMemoryError is one; a CPU raises the plain kind
            if not isinstance(error, torch.OutOfMemoryError) and "memory" not in str(error):
                raise
            raise OppoError(
                f"There is no memory on {self._device} to train {len(rows)} rollouts of {prompt + response}"
                " tokens at once, as may come; lower real.ppo.micro_batch_tokens or max_response_length."
            ) from error

    def update(self, batch: Sequence[TrainRollout], version: int) -> dict[str, float]:
        """Train on finished, scored rollouts; ``version`` is the number of updates done before this one, as
        in their ``weight_versions``.

        Returns the metrics (``metrics.py``) and the seconds of the stages (``timing_s/*``). Raises OppoError
        for a batch that cannot be trained and for gradients that are not finite; the weights are then those
        before the step that failed.
        """
        watch = Stopwatch(self._device, _STAGES)
        data = make_batch(batch, version, self._config, self._device, self._dtype)
        factor = self._rate_factor()
        rate = self._actor_stepper.begin(factor)
        if self._critic_stepper is not None:
            self._critic_stepper.begin(factor)

        with watch.stage("old_log_prob"):
            old_log_probs, values = self._old_log_probs(data)
        with watch.stage("ref"):
            ref_log_probs = self._ref_log_probs(batch, data)
        with watch.stage("values"):
            if values is None:
                values = in_micro_batches(
                    self._values, data.rows, self._config.micro_batch_tokens, self._device
                )
        with watch.stage("adv"):
            experience, found = make_experience(data, old_log_probs, ref_log_probs, values, self._config)
            deals = [
                mini_batches(
                    len(data.rows), self._config.num_mini_batches, self._config.seed, self._updates, epoch
                )
                for epoch in range(self._config.num_ppo_epochs)
            ]
        if self._critic_stepper is not None:
            with watch.stage("update_critic"):
                found |= self._update_critic(self._critic_stepper, data, experience, deals)
        with watch.stage("update_actor"):
            found |= self._update_actor(data, experience, old_log_probs, deals)

        self._updates += 1
        self._episode += len(batch)
        self._episodes_here += len(batch)
        found[metrics.LEARNING_RATE] = rate
        found[metrics.EPISODE] = float(self._episode)
        found[metrics.EPISODES_PER_SECOND] = self._episodes_here / (perf_counter() - self._started)
        return found | {timing(stage): seconds for stage, seconds in watch.take().items()}

    def state_dict(self) -> dict[str, Any]:
        """A copy of all the next update depends on but the reference (draws hang on seed and updates)."""
        critic_optimizer = None if self._critic_stepper is None else self._critic_stepper.state_dict()
        return copy.deepcopy(
            {
                "format": FORMAT,
                "config": self._config.model_dump(mode="json"),
                "policy": self._policy.state_dict(),
                "critic": self._trained_critic.state_dict(),
                "actor_optimizer": self._actor_stepper.state_dict(),
                "critic_optimizer": critic_optimizer,
                "updates": self._updates,
                "episode": self._episode,
            }
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was taken. Raises OppoError for another format, critic or model shape."""
        if state.get("format") != FORMAT:
            raise OppoError(
                f"the trainer's state has format {state.get('format')!r}, not {FORMAT}: load one that this"
                " version saved"
            )
        saved = state["config"]["critic"]
        if saved != self._config.critic:
            raise OppoError(
                f"the trainer's state has critic {saved}, the settings say {self._config.critic}: make them"
                " the same"
            )
        copied = copy.deepcopy(dict(state))  # an optimizer keeps the tensors that it is given
        try:
            self._policy.load_state_dict(copied["policy"])
            self._trained_critic.load_state_dict(copied["critic"])
        except RuntimeError as error:
            raise OppoError(
                f"the trainer's state is of models of another shape: {' '.join(str(error).split())}"
            ) from None
        self._actor_stepper.load_state_dict(copied["actor_optimizer"])
        if self._critic_stepper is not None:
            self._critic_stepper.load_state_dict(copied["critic_optimizer"])
        self._updates, self._episode = copied["updates"], copied["episode"]

    @property
    def _trained_critic(self) -> nn.Module:
        critic = self._critic if self._critic is not None else self._value_head
        assert critic is not None
        return critic

    def _rate_factor(self) -> float:
        total = self._config.total_episodes
        if self._config.lr_scheduler_type == "constant" or total is None:
            return 1.0
        return max(0.0, 1.0 - self._episode / total)

    # ---- before the first optimizer step -------------------------------------------------------------------

    def _old_log_probs(self, data: ExperienceBatch) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Of the policy at the start, or the stored ones; and values where the same forward gives them."""
        if self._config.carried != "recompute":
            return data.behaviour_log_probs, None

        def run(rows: Sequence[TokenRow]) -> torch.Tensor:
            found = policy_outputs(self._policy, rows, self._config.temperature, self._value_head)
            return torch.stack([one for one in (found.log_probs, found.values) if one is not None])

        columns = in_micro_batches(run, data.rows, self._config.micro_batch_tokens, self._device)
        return columns[0], columns[1] if len(columns) > 1 else None

    def _ref_log_probs(self, batch: Sequence[TrainRollout], data: ExperienceBatch) -> torch.Tensor | None:
        reference = self._reference
        if reference is None:
            return None
        listed = [one for rollout in batch for one in rollout.ref_log_probs or (0.0,) * len(rollout.response)]
        known = torch.tensor(listed, dtype=self._dtype, device=self._device)
        missing = [index for index, rollout in enumerate(batch) if rollout.ref_log_probs is None]
        if missing:

            def run(rows: Sequence[TokenRow]) -> torch.Tensor:
                return policy_outputs(reference, rows, self._config.temperature).log_probs

            rows = [data.rows[index] for index in missing]
            computed = in_micro_batches(run, rows, self._config.micro_batch_tokens, self._device)
            known[token_positions(missing, data.lengths, self._device)] = computed
        return known

    def _values(self, rows: Sequence[TokenRow]) -> torch.Tensor:
        if self._critic is not None:
            return state_values(self._critic, self._critic.get_submodule("score"), rows)
        assert self._value_head is not None
        return state_values(self._policy, self._value_head, rows)

    # ---- epochs and mini-batches ---------------------------------------------------------------------------

    def _groups(self, data: ExperienceBatch, part: Sequence[int]) -> list[TrainingGroup]:
        left_out = data.told_older if self._config.carried == "mask" else None
        return training_groups(data.rows, left_out, part, self._config.micro_batch_tokens, self._device)

    def _update_critic(
        self,
        stepper: Stepper,
        data: ExperienceBatch,
        experience: Experience,
        deals: Sequence[Sequence[Sequence[int]]],
    ) -> dict[str, float]:
        steps: list[torch.Tensor] = []
        norms: list[float] = []
        for part in (part for deal in deals for part in deal):
            groups = self._groups(data, part)
            count = sum(group.tokens for group in groups)
            if count == 0:
                continue
            sums = torch.zeros(2, device=self._device)
            for group in groups:
                loss, seen = self._value_loss(self._values(group.rows), experience, group)
                (self._config.vf_coef * loss / count).backward()  # type: ignore[no-untyped-call]
                sums += seen
            norms.append(stepper.step())
            steps.append(sums / count)
        return {**_value_metrics(steps), metrics.CRITIC_GRAD_NORM: _mean(norms)}

    def _update_actor(
        self,
        data: ExperienceBatch,
        experience: Experience,
        old_log_probs: torch.Tensor,
        deals: Sequence[Sequence[Sequence[int]]],
    ) -> dict[str, float]:
        config = self._config
        anchors = old_log_probs.clone()
        # Older tokens have no log-probability under the weights at the start; the first pass over them,
        # before the step that they are part of, gives one without a forward of its own.
        unanchored = (
            data.older
            if config.carried == "behaviour" and config.importance_clip is not None
            else torch.zeros_like(data.older)
        )
        steps: list[torch.Tensor] = []
        value_steps: list[torch.Tensor] = []
        norms: list[float] = []
        for epoch, deal in enumerate(deals):
            for part in deal:
                groups = self._groups(data, part)
                count = sum(group.tokens for group in groups)
                if count == 0:
                    # A step without gradients would still move the weights, by the optimizer's momentum.
                    continue
                sums, value_sums = torch.zeros(5, device=self._device), torch.zeros(2, device=self._device)
                for group in groups:
                    positions = group.positions
                    outputs = policy_outputs(self._policy, group.rows, config.temperature, self._value_head)
                    if epoch == 0:
                        anchors[positions] = torch.where(
                            unanchored[positions], outputs.log_probs.detach(), anchors[positions]
                        )
                    anchor = anchors[positions]
                    weights, _ = self._importance(anchor, data.behaviour_log_probs[positions])
                    losses, clipped = policy_losses(
                        outputs.log_probs, anchor, experience.advantages[positions], config.cliprange, weights
                    )
                    loss = group.taken(losses).sum() / count
                    if outputs.values is not None:
                        value_loss, seen = self._value_loss(outputs.values, experience, group)
                        loss = loss + config.vf_coef * value_loss / count
                        value_sums += seen
                    loss.backward()  # type: ignore[no-untyped-call]
                    with torch.no_grad():
                        moved = outputs.log_probs - anchor
                        kl = 0.5 * moved.square()
                        columns = (kl, clipped.to(moved), losses, outputs.entropies, moved.exp())
                        sums += group.taken(torch.stack(columns)).sum(dim=1)
                norms.append(self._actor_stepper.step())
                steps.append(sums / count)
                value_steps.append(value_sums / count)
        found = _policy_metrics(steps) | {metrics.ACTOR_GRAD_NORM: _mean(norms)}
        if self._value_head is not None:
            found |= _value_metrics(value_steps)
        weights, cut = self._importance(anchors, data.behaviour_log_probs)
        trained = experience.trained
        found[metrics.IMPORTANCE_MEAN] = float(weights[trained].mean()) if steps else 1.0
        found[metrics.IMPORTANCE_MAX] = float(weights[trained].max()) if steps else 1.0
        found[metrics.IMPORTANCE_CLIPPED] = float(cut[trained].float().mean()) if steps else 0.0
        return found

    def _value_loss(
        self, values: torch.Tensor, experience: Experience, group: TrainingGroup
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sum of the losses of trained tokens, and the sums for the metrics."""
        positions = group.positions
        losses, clipped = value_losses(
            values, experience.values[positions], experience.returns[positions], self._config.cliprange_value
        )
        loss = group.taken(losses).sum()
        return loss, torch.stack([loss.detach(), group.taken(clipped).float().sum()])

    def _importance(
        self, anchors: torch.Tensor, behaviour: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return importance_weights(anchors, behaviour, self._config.importance_clip)


def _check_models(
    policy: nn.Module, reference: nn.Module | None, critic: nn.Module | None, config: PPOConfig
) -> None:
    if getattr(policy, "get_output_embeddings", lambda: None)() is None:
        raise OppoError(
            f"{type(policy).__name__} has no output embeddings: give a causal language model, such as"
            " Qwen2ForCausalLM"
        )
    if reference is None and config.kl_coef > 0:
        raise OppoError(f"kl_coef {config.kl_coef} needs a reference model: give one, or set kl_coef to 0")
    if reference is policy:
        raise OppoError(
            "the reference model is the policy itself, so its KL would always be 0: give a copy with weights"
            " of its own"
        )
    if (config.critic == "separate") != (critic is not None):
        wanted = "needs a critic model" if critic is None else "takes no critic model"
        raise OppoError(f"critic {config.critic} {wanted}: change the settings or the model")
    if critic is not None:
        score = getattr(critic, "score", None)
        if not isinstance(score, nn.Module):
            raise OppoError(
                f"the critic {type(critic).__name__} has no score head: give a sequence classifier with"
                " num_labels 1"
            )
        if getattr(score, "out_features", 1) != 1:
            raise OppoError(
                f"the critic's head gives {score.out_features} numbers a token, not one: set num_labels 1"
            )


def _new_value_head(policy: nn.Module) -> nn.Linear:
    """All zero, so that the first values are 0 whatever the policy."""
    weight = head_of(policy).weight
    assert isinstance(weight, torch.Tensor)
    head = nn.Linear(weight.shape[1], 1, dtype=weight.dtype)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


def _policy_metrics(steps: Sequence[torch.Tensor]) -> dict[str, float]:
    """``steps``, each [5]: means of approximate KL, clipping, loss, entropy and ratio."""
    table = torch.stack(list(steps)) if steps else torch.zeros(1, 5)
    names = (metrics.APPROX_KL, metrics.CLIP_FRACTION, metrics.POLICY_LOSS, metrics.ENTROPY, metrics.RATIO)
    found = dict(zip(names, table.mean(dim=0).tolist(), strict=True))
    return found | {metrics.RATIO_VARIANCE: float(table[:, -1].var()) if len(table) > 1 else 0.0}


def _value_metrics(steps: Sequence[torch.Tensor]) -> dict[str, float]:
    table = torch.stack(list(steps)) if steps else torch.zeros(1, 2)
    return dict(
        zip((metrics.VALUE_LOSS, metrics.VALUE_CLIP_FRACTION), table.mean(dim=0).tolist(), strict=True)
    )


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0
