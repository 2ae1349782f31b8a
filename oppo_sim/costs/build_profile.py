"""Costs from a measured profile."""

import hashlib
from pathlib import Path

from oppo_sim.costs.config import DemandShares, ProfileCostConfig
from oppo_sim.costs.context import CostContext
from oppo_sim.costs.interface import Costs, Demand, EngineCost
from oppo_sim.costs.profile import PrefillTable, Profile, load_profile, profile_text
from oppo_sim.costs.profile_engine import ProfileEngine, ProfileTraining
from oppo_sim.costs.scoring import SummedPrefill
from oppo_sim.costs.stages import stages_run, unused_fields
from oppo_sim.errors import OppoError


def profile_costs(config: ProfileCostConfig, context: CostContext, base_dir: Path | None) -> Costs:
    """See ``build.build_costs``."""
    return costs_from_profile(load_profile((base_dir or Path()) / config.path), context, source=config.path)


def costs_from_profile(profile: Profile, context: CostContext, source: str = "") -> Costs:
    """Cost models of a loaded profile. Raises OppoError where it lacks a table that the scenario asks for."""
    run = stages_run(context.training)
    wanted = {"old_log_prob": run.old_log_prob, "ref": run.ref, "values": run.values, "update_critic": run.update_critic}
    for stage, runs in wanted.items():
        if runs and getattr(profile.training, stage) is None:
            raise OppoError(f"cost profile {profile.name}: training.{stage} was not measured and the scenario has that stage; measure it")
    return Costs(
        actor=ProfileEngine(
            profile.decode,
            profile.prefill,
            profile.ranges,
            "prefill",
            profile.host.decode_per_iteration,
            profile.host.decode_per_rollout,
            profile.host.prefill,
            _demand(profile.demands.decode),
            _demand(profile.demands.prefill),
        ),
        scorer=_scorer(profile, context.training.stream_ref),
        training=ProfileTraining(
            profile.training,
            run,
            profile.update_weights,
            profile.ranges,
            context.training.parallel_inference,
            _demand(profile.demands.training),
            _demand(profile.demands.update_weights),
        ),
        provenance={
            "kind": "profile",
            "measured": profile.measured.model_dump(mode="json"),
            "name": profile.name,
            "path": source,
            "sha256": hashlib.sha256(profile_text(profile).encode()).hexdigest(),
            "host": profile.host.model_dump(mode="json"),
            "demands": profile.demands.model_dump(mode="json"),
            "contention_factor": profile.contention_factor,
            "unused_training_fields": unused_fields(context.training),
        },
        actor_kv_capacity_tokens=profile.kv_capacity_tokens,
    )


def _scorer(profile: Profile, stream_ref: bool) -> EngineCost:
    def engine(table: PrefillTable, name: str) -> ProfileEngine:
        shares = _demand(profile.demands.score)
        return ProfileEngine(profile.decode, table, profile.ranges, name, host_prefill=profile.host.score, prefill_shares=shares)

    score = engine(profile.score, "score")
    if not stream_ref:
        return score
    if profile.score_ref is None:
        raise OppoError(f"cost profile {profile.name}: score_ref was not measured and training.stream_ref is true; measure it")
    return SummedPrefill((score, engine(profile.score_ref, "score_ref")))


def _demand(shares: DemandShares) -> Demand:
    return Demand(shares.memory, shares.arithmetic)
