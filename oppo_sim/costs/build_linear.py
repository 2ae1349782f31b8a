"""Linear costs from their section of a scenario."""

from oppo_sim.costs.config import DemandShares, LinearCostConfig, LinearForward
from oppo_sim.costs.context import CostContext
from oppo_sim.costs.interface import Costs, Demand
from oppo_sim.costs.linear import LinearEngine, LinearStage, LinearTraining
from oppo_sim.costs.stages import stages_run, unused_fields
from oppo_sim.errors import OppoError


def linear_costs(config: LinearCostConfig, context: CostContext) -> Costs:
    """See ``build.build_costs``. ``stages`` are whole stages: epochs and mini-batches do not multiply
    them."""
    training = context.training
    score = config.score
    if training.stream_ref:
        if config.score_ref is None:
            raise OppoError(
                "costs: training.stream_ref needs costs.score_ref, the reference model's coefficients; add it"
            )
        score = LinearForward(
            fixed=score.fixed + config.score_ref.fixed,
            per_token=score.per_token + config.score_ref.per_token,
            per_pair=score.per_pair + config.score_ref.per_pair,
        )
    demands, stages, run = config.demands, config.stages, stages_run(training)
    return Costs(
        actor=LinearEngine(
            decode_fixed=config.decode.fixed,
            decode_per_rollout=config.decode.per_rollout,
            decode_per_kv_token=config.decode.per_kv_token,
            prefill_fixed=config.prefill.fixed,
            prefill_per_token=config.prefill.per_token,
            prefill_per_pair=config.prefill.per_pair,
            decode_demand_shares=_demand(demands.decode),
            prefill_demand_shares=_demand(demands.prefill),
        ),
        scorer=LinearEngine(
            decode_fixed=config.decode.fixed,  # never asked: a scoring worker only prefills
            prefill_fixed=score.fixed,
            prefill_per_token=score.per_token,
            prefill_per_pair=score.per_pair,
            prefill_demand_shares=_demand(demands.score),
        ),
        training=LinearTraining(
            old_log_prob=_stage(stages.old_log_prob, run.old_log_prob),
            ref=_stage(stages.ref, run.ref),
            values=_stage(stages.values, run.values),
            adv=_stage(stages.adv, True),
            update_critic=_stage(stages.update_critic, run.update_critic),
            update_actor=_stage(stages.update_actor, True),
            update_weights=stages.update_weights,
            parallel_inference=training.parallel_inference,
            demand_shares=_demand(demands.training),
            sync_demand_shares=_demand(demands.update_weights),
        ),
        provenance={
            "kind": "linear",
            "measured": False,
            "parameters": config.model_dump(mode="json"),
            "unused_training_fields": unused_fields(training),
        },
    )


def _demand(shares: DemandShares) -> Demand:
    return Demand(shares.memory, shares.arithmetic)


def _stage(coefficients: LinearForward, runs: bool) -> LinearStage:
    return (
        LinearStage(coefficients.fixed, coefficients.per_token, coefficients.per_pair)
        if runs
        else LinearStage()
    )
