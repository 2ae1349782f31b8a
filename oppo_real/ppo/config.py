"""Settings of PPO. Names and defaults are those of TRL 1.12's ``PPOConfig`` where it has the field
(docs/ppo.md lists what is added)."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from oppo_sim.costs.strict import Count, NonNegative, Positive, Strict

Carried = Literal["behaviour", "recompute", "mask"]
KlEstimator = Literal["k1", "k3"]
CriticKind = Literal["separate", "value_head"]
_Discount = Annotated[float, Field(ge=0, le=1)]


class PPOConfig(Strict):
    """How one batch of rollouts changes the weights."""

    learning_rate: Positive = 3e-6
    lr_scheduler_type: Literal["constant", "linear"] = "constant"
    """``linear``: down to 0 when ``total_episodes`` rollouts have been trained."""
    total_episodes: Count | None = None
    """Rollouts that the whole run trains; only the linear schedule needs it."""
    adam_beta1: _Discount = 0.9
    adam_beta2: _Discount = 0.999
    adam_epsilon: Positive = 1e-8
    weight_decay: NonNegative = 0.0
    max_grad_norm: Positive | None = 1.0
    """Gradients of a larger norm are scaled down to it; None: never."""
    num_ppo_epochs: Count = 4
    num_mini_batches: Count = 1
    """Optimizer steps an epoch; the batch is dealt to them at random, in rollouts."""
    whiten_rewards: bool = False
    kl_coef: NonNegative = 0.05
    kl_estimator: KlEstimator = "k1"
    cliprange: Positive = 0.2
    cliprange_value: Positive = 0.2
    vf_coef: NonNegative = 0.1
    gamma: _Discount = 1.0
    lam: _Discount = 0.95
    temperature: Positive = 0.7
    """Of the sampling; log-probabilities are those of the tempered distribution."""
    missing_eos_penalty: Positive | None = None
    """Taken off the score of a response that was cut before its stop token."""
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 42

    whiten_advantages: bool = True
    critic: CriticKind = "separate"
    critic_learning_rate: Positive | None = None
    """Of a separate critic; None: ``learning_rate``."""
    carried: Carried = "behaviour"
    """What is done about tokens made by older weights than those being updated (docs/ppo.md)."""
    importance_clip: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = 2.0
    """Largest importance weight of a token; None: no importance correction at all."""
    micro_batch_tokens: Annotated[int, Field(ge=1)] = 16384
    """Tokens of one forward; a longer rollout goes alone. Changes memory and speed, not the result."""

    @model_validator(mode="after")
    def _consistent(self) -> "PPOConfig":
        if self.lr_scheduler_type == "linear" and self.total_episodes is None:
            raise ValueError(
                "lr_scheduler_type linear needs total_episodes, the rollouts of the whole run: give it, or"
                " take constant"
            )
        if self.adam_beta1 == 1.0 or self.adam_beta2 == 1.0:
            raise ValueError("adam_beta1 and adam_beta2 must be below 1, or Adam's averages never change")
        if self.critic == "value_head" and self.critic_learning_rate is not None:
            raise ValueError(
                "critic_learning_rate is for critic separate: remove it, a value head has learning_rate"
            )
        return self
