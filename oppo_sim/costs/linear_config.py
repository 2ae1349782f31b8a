"""The ``costs:`` section of kind ``linear``: coefficients as the scenario gives them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from oppo_sim.costs.context import CostContext, stages_run, unused_fields
from oppo_sim.costs.demands import Demands, demand_of
from oppo_sim.costs.evidence import Evidence, all_of
from oppo_sim.costs.interface import Costs
from oppo_sim.costs.linear import LinearEngine, LinearPrefill, LinearStage, LinearTraining
from oppo_sim.costs.section import CostSection
from oppo_sim.costs.strict import NonNegative, Positive, Strict
from oppo_sim.errors import OppoError


class LinearDecode(Strict):
    """Seconds of an iteration: fixed + per_rollout·n + per_kv_token·kv."""

    fixed: Positive
    per_rollout: NonNegative = 0.0
    per_kv_token: NonNegative = 0.0


class LinearForward(Strict):
    """Seconds: fixed + per_token·tokens + per_pair·pairs (query-key pairs; Σ n²/2 for a trained batch)."""

    fixed: NonNegative = 0.0
    per_token: NonNegative = 0.0
    per_pair: NonNegative = 0.0


class LinearStages(Strict):
    """The training stages, each for the whole stage (all epochs); ``update_weights`` in seconds."""

    old_log_prob: LinearForward = LinearForward()
    ref: LinearForward = LinearForward()
    values: LinearForward = LinearForward()
    adv: LinearForward = LinearForward()
    update_critic: LinearForward = LinearForward()
    update_actor: LinearForward = LinearForward()
    update_weights: NonNegative = 0.0


class LinearCostConfig(CostSection):
    """Coefficients in seconds. Stages that ``training:`` switches off cost nothing."""

    kind: Literal["linear"]
    decode: LinearDecode
    prefill: LinearForward = LinearForward()
    score: LinearForward = LinearForward()
    """The reward model over a scoring batch."""
    score_ref: LinearForward | None = None
    """The reference model over the same batch; needed by ``training.stream_ref``."""
    stages: LinearStages = LinearStages()
    demands: Demands = Demands()

    @property
    def evidence(self) -> Mapping[str, Evidence]:
        return all_of("given")

    def build(self, context: CostContext, base_dir: Path | None = None) -> Costs:
        training = context.training
        score = self.score
        if training.stream_ref:
            if self.score_ref is None:
                raise OppoError(
                    "costs: training.stream_ref needs costs.score_ref, the reference model's coefficients;"
                    " add it"
                )
            score = LinearForward(**{name: value + getattr(self.score_ref, name) for name, value in score})
        demands, stages, run = self.demands, self.stages, stages_run(training)
        return Costs(
            actor=LinearEngine(
                decode_fixed=self.decode.fixed,
                decode_per_rollout=self.decode.per_rollout,
                decode_per_kv_token=self.decode.per_kv_token,
                prefill_fixed=self.prefill.fixed,
                prefill_per_token=self.prefill.per_token,
                prefill_per_pair=self.prefill.per_pair,
                decode_demand_shares=demand_of(demands.decode),
                prefill_demand_shares=demand_of(demands.prefill),
            ),
            scorer=LinearPrefill(score.fixed, score.per_token, score.per_pair, demand_of(demands.score)),
            training=LinearTraining(
                old_log_prob=_stage(stages.old_log_prob, run.old_log_prob),
                ref=_stage(stages.ref, run.ref),
                values=_stage(stages.values, run.values),
                adv=_stage(stages.adv, True),
                update_critic=_stage(stages.update_critic, run.update_critic),
                update_actor=_stage(stages.update_actor, True),
                update_weights=stages.update_weights,
                parallel_inference=training.parallel_inference,
                demand_shares=demand_of(demands.training),
                sync_demand_shares=demand_of(demands.update_weights),
            ),
            provenance={
                "kind": "linear",
                "measured": False,
                "parameters": self.to_plain(),
                "unused_training_fields": unused_fields(training),
            },
        )


def _stage(coefficients: LinearForward, runs: bool) -> LinearStage:
    return LinearStage(**dict(coefficients)) if runs else LinearStage()
