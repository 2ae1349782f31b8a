"""Costs from a measured profile."""

import hashlib
from collections.abc import Mapping

from oppo_sim.costs.context import CostContext, stages_run, unused_fields
from oppo_sim.costs.demands import demand_of
from oppo_sim.costs.interface import Costs, Cuts, PrefillCost, TrainingCost
from oppo_sim.costs.profile import PrefillTable, Profile, profile_text
from oppo_sim.costs.profile_engine import ProfileEngine, ProfilePrefill, ProfileTraining
from oppo_sim.costs.scoring import SummedPrefill
from oppo_sim.errors import OppoError


def costs_from_profile(
    profile: Profile,
    context: CostContext,
    source: str = "",
    training: TrainingCost | None = None,
    training_provenance: Mapping[str, object] | None = None,
) -> Costs:
    """Cost models of a loaded profile. ``training`` stands in for its training part, weight sync included,
    and ``training_provenance`` says what that is.

    Raises OppoError where the profile lacks a table that the scenario needs.
    """
    run = stages_run(context.training)
    if training is None and not profile.training.measured:
        raise OppoError(
            f"cost profile {profile.name}: training was not measured (real.ppo.enabled was false): measure"
            " it, or let a roofline stand in for it with costs.roofline_training"
        )
    for stage, runs in run._asdict().items():
        if training is None and runs and getattr(profile.training, stage) is None:
            raise OppoError(
                f"cost profile {profile.name}: training.{stage} was not measured and the scenario has that"
                " stage; measure it"
            )
    slices, slowdowns, on_device = profile.time_slices, profile.slowdowns, profile.on_device
    return Costs(
        actor=ProfileEngine(
            decode=profile.decode,
            prefill=profile.prefill,
            ranges=profile.ranges,
            host_per_iteration=profile.host.decode_per_iteration,
            host_per_rollout=profile.host.decode_per_rollout,
            host_prefill=profile.host.prefill,
            decode_shares=demand_of(profile.demands.decode),
            prefill_shares=demand_of(profile.demands.prefill),
            prefill_on_device=None if on_device is None else on_device.prefill,
            decode_on_device=None if on_device is None else on_device.decode,
        ),
        scorer=_scorer(profile, context.training.stream_ref),
        training=training
        or ProfileTraining(
            profile.training,
            run,
            profile.update_weights,
            profile.ranges,
            context.training.parallel_inference,
            demand_of(profile.demands.training),
            demand_of(profile.demands.update_weights),
        ),
        provenance={
            **_provenance(profile, source),
            "unused_training_fields": unused_fields(context.training) if training is None else [],
            **({} if training is None else {"training": dict(training_provenance or {})}),
        },
        actor_kv_capacity_tokens=profile.kv_capacity_tokens,
        contention_factor=profile.contention_factor,
        slowdowns=None if slowdowns is None else (slowdowns.decode, slowdowns.score),
        time_slices=None if slices is None else (slices.interference, slices.turn_s),
        cuts=Cuts(*(getattr(profile, name) or 0.0 for name in Cuts._fields)),
        scoring_block_tokens=profile.scoring_block_tokens,
        scoring_cache_tokens=profile.scoring_cache_tokens,
        scoring_iteration_tokens=profile.scoring_iteration_tokens,
    )


def _provenance(profile: Profile, source: str) -> dict[str, object]:
    """Where the seconds of a profile are from, and what it does not know."""
    slices, slowdowns, on_device = profile.time_slices, profile.slowdowns, profile.on_device
    return {
        "kind": "profile",
        "measured": profile.measured.model_dump(mode="json"),
        "name": profile.name,
        "path": source,
        "sha256": hashlib.sha256(profile_text(profile).encode()).hexdigest(),
        "host": profile.host.model_dump(mode="json"),
        "demands": profile.demands.model_dump(mode="json"),
        "on_device": "not measured" if on_device is None else on_device.model_dump(mode="json"),
        "cuts": {name: getattr(profile, name) for name in Cuts._fields},
        "scoring_block_tokens": profile.scoring_block_tokens or "not measured",
        "scoring_cache_tokens": profile.scoring_cache_tokens or "not measured",
        "scoring_iteration_tokens": profile.scoring_iteration_tokens or "not measured",
        "contention_factor": profile.contention_factor or "not measured",
        "slowdowns": "not measured" if slowdowns is None else slowdowns.model_dump(mode="json"),
        "time_slices": "not measured" if slices is None else slices.model_dump(mode="json"),
    }


def _scorer(profile: Profile, stream_ref: bool) -> PrefillCost:
    def forward(table: PrefillTable, name: str) -> ProfilePrefill:
        shares = demand_of(profile.demands.score)
        # A reference model beside it is taken to be as busy as the reward model.
        busy = None if profile.on_device is None else profile.on_device.score
        return ProfilePrefill(table, profile.ranges, name, profile.host.score, shares, busy)

    score = forward(profile.score, "score")
    if not stream_ref:
        return score
    if profile.score_ref is None:
        raise OppoError(
            f"cost profile {profile.name}: score_ref was not measured and training.stream_ref is true;"
            " measure it"
        )
    return SummedPrefill((score, forward(profile.score_ref, "score_ref")))
