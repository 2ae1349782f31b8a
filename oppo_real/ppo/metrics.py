"""Names of what an update reports: TRL's where it has one, verl's for gradient norms."""

from typing import Final

OBJECTIVE_KL: Final = (
    "objective/kl"  # a response: sum over its tokens, mean over responses; the same for the next two
)
OBJECTIVE_ENTROPY: Final = "objective/entropy"
NON_SCORE_REWARD: Final = "objective/non_score_reward"
RLHF_REWARD: Final = "objective/rlhf_reward"
SCORES: Final = "objective/scores"  # after missing_eos_penalty
APPROX_KL: Final = (  # means over optimizer steps of means over trained tokens, down to VALUE_CLIP_FRACTION
    "policy/approxkl_avg"
)
CLIP_FRACTION: Final = "policy/clipfrac_avg"
POLICY_LOSS: Final = "loss/policy_avg"
VALUE_LOSS: Final = "loss/value_avg"  # before vf_coef
VALUE_CLIP_FRACTION: Final = "val/clipfrac_avg"
ENTROPY: Final = "policy/entropy_avg"
RATIO: Final = "val/ratio"
RATIO_VARIANCE: Final = "val/ratio_var"  # over optimizer steps
EOS_TOKENS: Final = "val/num_eos_tokens"
LEARNING_RATE: Final = "lr"
EPISODES_PER_SECOND: Final = "eps"
EPISODE: Final = "episode"  # rollouts trained so far

ACTOR_GRAD_NORM: Final = "actor/grad_norm"  # before clipping, mean over optimizer steps
CRITIC_GRAD_NORM: Final = "critic/grad_norm"
CARRIED_TOKENS: Final = "carried/token_ratio"  # share of the batch's response tokens made by older weights
MASKED_TOKENS: Final = "carried/masked_ratio"  # share left out of the losses
IMPORTANCE_MEAN: Final = "carried/importance_mean"  # of the weights of trained tokens
IMPORTANCE_MAX: Final = "carried/importance_max"
IMPORTANCE_CLIPPED: Final = "carried/importance_clip_ratio"
