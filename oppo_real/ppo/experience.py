"""What a batch teaches: old log-probabilities, rewards, values, advantages, and which tokens count."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from oppo_real.ppo import metrics
from oppo_real.ppo.config import PPOConfig
from oppo_real.ppo.formulas import generalized_advantages, kl_estimate, whiten
from oppo_real.ppo.rollout import TokenRow, TrainRollout
from oppo_sim.errors import OppoError


@dataclass(frozen=True)
class ExperienceBatch:
    """Rollouts as flat tensors over their response tokens, [tokens]; ``lengths`` cuts them into responses."""

    rows: tuple[TokenRow, ...]
    lengths: tuple[int, ...]
    behaviour_log_probs: torch.Tensor
    older: torch.Tensor
    """bool: made by older weights than those now updated."""
    told_older: tuple[bool, ...]
    """The same where the host sees it without waiting for the device."""
    scores: torch.Tensor
    """[rollouts], the penalty of a missing stop token taken off."""
    num_eos_tokens: int


@dataclass(frozen=True)
class Experience:
    """Flat tensors over the response tokens, [tokens]; constants of the update."""

    trained: torch.Tensor
    """bool: takes part in the losses."""
    values: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor


def make_batch(
    rollouts: Sequence[TrainRollout],
    version: int,
    config: PPOConfig,
    device: torch.device,
    dtype: torch.dtype,
) -> ExperienceBatch:
    """Rollouts on the device. Raises OppoError for too few, repeated ids, tokens newer than ``version``."""
    if len(rollouts) < config.num_mini_batches:
        raise OppoError(
            f"a batch of {len(rollouts)} rollouts cannot fill num_mini_batches {config.num_mini_batches}"
        )
    if len({rollout.rollout_id for rollout in rollouts}) < len(rollouts):
        raise OppoError("a rollout_id occurs twice in one batch: every rollout is trained once")
    newest = max(rollouts, key=lambda rollout: rollout.weight_versions[-1])
    if newest.weight_versions[-1] > version:
        raise OppoError(
            f"rollout {newest.rollout_id} has tokens of weight version {newest.weight_versions[-1]}, but"
            f" version {version} is updated: pass the number of updates done"
        )
    older = tuple(one < version for rollout in rollouts for one in rollout.weight_versions)
    log_probs = [one for rollout in rollouts for one in rollout.log_probs]
    penalty = config.missing_eos_penalty or 0.0
    scores = [rollout.score - (penalty if rollout.finish_reason == "length" else 0.0) for rollout in rollouts]
    return ExperienceBatch(
        rows=tuple(rollout.row for rollout in rollouts),
        lengths=tuple(len(rollout.response) for rollout in rollouts),
        behaviour_log_probs=torch.tensor(log_probs, dtype=dtype, device=device),
        older=torch.tensor(older, device=device),
        told_older=older,
        scores=torch.tensor(scores, dtype=dtype, device=device),
        num_eos_tokens=sum(rollout.finish_reason == "stop" for rollout in rollouts),
    )


def make_experience(
    batch: ExperienceBatch,
    log_probs: torch.Tensor,
    ref_log_probs: torch.Tensor | None,
    values: torch.Tensor,
    config: PPOConfig,
) -> tuple[Experience, dict[str, float]]:
    """Rewards, advantages and returns, and the metrics ``objective/*`` and ``carried/*_ratio``.

    ``log_probs`` are the policy's at the start (behaviour's, or recomputed), ``ref_log_probs`` None without a
    KL penalty, all [tokens]. A token's reward is -kl_coef times its estimated KL; the last token of a
    response has the score besides (Ouyang et al., 2022).
    """
    against = log_probs if ref_log_probs is None else ref_log_probs
    kl = kl_estimate(log_probs, against, config.kl_estimator)
    penalties = -config.kl_coef * kl
    ends = torch.tensor(batch.lengths, device=log_probs.device).cumsum(0) - 1
    rewards = penalties.index_add(0, ends, batch.scores)
    trained = ~batch.older if config.carried == "mask" else torch.ones_like(batch.older)
    if config.whiten_rewards:
        rewards = whiten(rewards, trained, shift_mean=False)
    advantages, returns = generalized_advantages(rewards, values, batch.lengths, config.gamma, config.lam)
    if config.whiten_advantages:
        advantages = whiten(advantages, trained)

    def a_response(flat: torch.Tensor) -> float:
        return float(flat.sum()) / len(batch.lengths)

    score, penalty = float(batch.scores.mean()), a_response(penalties)
    found = {} if ref_log_probs is None else {metrics.OBJECTIVE_KL: a_response(kl)}
    return Experience(trained, values, advantages, returns), found | {
        metrics.OBJECTIVE_ENTROPY: a_response(-log_probs),
        metrics.NON_SCORE_REWARD: penalty,
        metrics.RLHF_REWARD: penalty + score,
        metrics.SCORES: score,
        metrics.EOS_TOKENS: float(batch.num_eos_tokens),
        metrics.CARRIED_TOKENS: float(batch.older.float().mean()),
        metrics.MASKED_TOKENS: float((~trained).float().mean()),
    }
