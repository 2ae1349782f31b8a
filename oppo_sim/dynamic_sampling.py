"""Groups whose rewards are all equal teach nothing: they are dropped and replaced (DAPO's dynamic sampling).
Here: what a simulation knows of the rewards."""

from collections.abc import Sequence
from typing import Annotated, Protocol

from pydantic import BaseModel, ConfigDict, Field

from oppo_sim.draws import stream_key, uniforms
from oppo_sim.errors import OppoError
from oppo_sim.policies.interface import Policy

_Shape = Annotated[float, Field(gt=0, le=1000)]


class PassRate(BaseModel):
    """Each prompt is passed with a probability of its own, from a beta distribution."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    alpha: _Shape = Field(1.0, description="first shape of the beta distribution")
    beta: _Shape = Field(1.0, description="second shape; the mean rate is alpha / (alpha + beta)")

    def kept_share(self, group_size: int) -> float:
        """Expected share of groups with rewards that differ: 1 − E[p^g] − E[(1 − p)^g]."""
        passed = failed = 1.0
        for i in range(group_size):
            total = self.alpha + self.beta + i
            passed *= (self.alpha + i) / total
            failed *= (self.beta + i) / total
        return 1.0 - passed - failed


class DynamicSampling(BaseModel):
    """What the scenario says."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    enable: bool = Field(False, description="groups whose rewards are all equal are dropped and replaced")
    pass_rate: PassRate | None = Field(
        None,
        description=(
            "alpha and beta of how often a prompt's samples pass, such as {alpha: 0.5, beta: 0.7}: a sample's"
            " reward is 1 with its prompt's probability, else 0, by hash of the seed and the trace's row;"
            " null: the trace's rewards"
        ),
    )
    gen_batch_size: Annotated[int, Field(gt=0)] | None = Field(
        None,
        description=(
            "rollouts that a policy which carries none generates at a time: once all have finished, as many"
            " again where groups are missing, and what is left over is dropped (verl, NeMo RL); null: a"
            " dropped group is replaced at once"
        ),
    )


class RowsWithRewards(Protocol):
    """Of a replay."""

    @property
    def rewards(self) -> Sequence[float] | None:
        """One a row."""

    @property
    def response_lengths(self) -> Sequence[int]:
        """One a row."""

    @property
    def blocks(self) -> Sequence[tuple[int, int]]:
        """First row and number of groups of each part from which groups are drawn."""


_LEAST_KEPT = 0.01


def sample_rewards(
    config: DynamicSampling, rows: RowsWithRewards, group_size: int, seed: int
) -> Sequence[float] | None:
    """Reward of each row of the trace, or None where groups are not judged.

    Rows stay what they are however often they are drawn: every policy of a comparison sees the same groups
    dropped. Raises OppoError where no group, or hardly one, would be kept.
    """
    if not config.enable:
        return None
    rewards: Sequence[float]
    if config.pass_rate is None:
        if rows.rewards is None:
            raise OppoError(
                "dynamic_sampling.enable needs rewards, and this trace has not one in every row: give"
                " dynamic_sampling.pass_rate, such as {alpha: 0.5, beta: 0.7}: alpha / (alpha + beta) of the"
                " samples pass, and the smaller both are, the more groups are dropped"
            )
        rewards = rows.rewards
    else:
        share = config.pass_rate.kept_share(group_size)
        if share < _LEAST_KEPT:
            raise OppoError(
                f"dynamic_sampling.pass_rate leaves {share:.2g} of the groups of {group_size} with rewards"
                " that differ: give one that leaves a hundredth or more"
            )
        rewards = _passed(config.pass_rate, len(rows.response_lengths), group_size, seed)
    for first, groups in rows.blocks:
        starts = range(first, first + groups * group_size, group_size)
        if all(len(set(rewards[start : start + group_size])) == 1 for start in starts):
            raise OppoError(
                f"all rewards are equal in each of {groups} groups of {group_size}, from which dynamic"
                " sampling would draw for ever: give another trace or dynamic_sampling.pass_rate"
            )
    return rewards


def _passed(rate: PassRate, rows: int, group_size: int, seed: int) -> list[float]:
    """0 or 1 for each row; the rate of group k of the trace is the quantile of draw k."""
    from scipy.stats import beta

    rates = beta.ppf(uniforms(stream_key(seed, "pass_rate"), rows // group_size), rate.alpha, rate.beta)
    drawn = uniforms(stream_key(seed, "pass"), rows)
    return [float(drawn[row] < rates[row // group_size]) for row in range(rows)]


def generation_batch(config: DynamicSampling, policy: Policy) -> int | None:
    """Rollouts that ``policy`` generates at a time; None: a dropped group is replaced at once, as by policies
    that carry rollouts, run dropped ones again, or generate the next batch meanwhile."""
    again = policy.carries or type(policy).drop is not Policy.drop
    return config.gen_batch_size if config.enable and not again and policy.schedule == "synchronous" else None


def check_dynamic_sampling(policy: Policy) -> None:
    """Refuse policies that cannot replace a group. Raises OppoError."""
    if policy.oracle:
        raise OppoError(
            f"policy '{policy.name}' arranges its rollouts by lengths known beforehand and cannot replace"
            " groups: set dynamic_sampling.enable to false"
        )
    if policy.schedule == "async" and policy.score_granularity == "batch":
        raise OppoError(
            f"policy '{policy.name}' with score_granularity batch cannot judge a group before a batch of them"
            " has finished, which dropped ones may prevent: use rollout or chunk"
        )
