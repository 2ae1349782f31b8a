"""From a scenario to everything that one simulated run needs. Whatever cannot run is refused here."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from oppo_sim.costs.context import CostContext
from oppo_sim.costs.demands import Demands, explained_slowdown
from oppo_sim.costs.interface import Costs
from oppo_sim.costs.models import find_model
from oppo_sim.costs.roofline_memory import NoRoomError
from oppo_sim.draws import stream_key
from oppo_sim.dynamic_sampling import check_dynamic_sampling, generation_batch, sample_rewards
from oppo_sim.errors import OppoError, check_count
from oppo_sim.model.setup import MachineSetup
from oppo_sim.policies.delta_control import DeltaControl
from oppo_sim.policies.interface import Batch, Policy
from oppo_sim.policies.registry import check_settings, inherited_settings, policy_maker
from oppo_sim.rewards import BatchRewards, NoRewards
from oppo_sim.scenario.schema import PlacementConfig, Scenario
from oppo_sim.scenario.yaml_text import show_value
from oppo_sim.traces.replay import Replay, build_replay

_ROOFLINES: Final = ("roofline", "composed")
"""Kinds of costs that know device memory, and whose updates take as long as they have epochs; others have
seconds of whole stages."""
_WOKEN_S: Final = 0.5
"""A reward model that takes so long before its first batch slept."""


@dataclass(frozen=True)
class Setup:
    """One run of a scenario, built: nothing in it reads a file any more."""

    machine: MachineSetup
    costs: Costs
    policy_factory: Callable[[], Policy]
    """Gives a fresh policy; controllers keep state, so each run needs its own."""
    batch: Batch
    replay: Replay
    rewards: Callable[[], BatchRewards]
    steps: int
    warmup_steps: int
    seed: int
    scenario: Scenario
    sample_rewards: Sequence[float] | None = None
    """Of each row of the trace, by which groups are judged; None: no group is dropped for its rewards."""
    gen_batch_size: int | None = None
    """Rollouts that are generated at a time; None: a dropped group is replaced at once."""
    warnings: tuple[str, ...] = ()
    """What is likely not meant, one sentence each."""


@dataclass(frozen=True)
class Parts:
    """What all runs of a scenario share, whatever their policy and seed."""

    replay: Replay
    """Under the scenario's own seed."""
    costs: Costs
    machine: MachineSetup
    longest_prompt: int
    """Tokens."""


def policy_settings_of(scenario: Scenario, policy: str) -> dict[str, Any]:
    """Settings under which ``policy`` runs in a scenario: its own if it is the scenario's policy; else what
    the two share, then ``policies.<name>`` over that."""
    if policy == scenario.policy.name:
        return scenario.policy.settings
    return inherited_settings(policy, scenario.policy.settings, scenario.base_dir) | scenario.policies.get(
        policy, {}
    )


def build_trace(scenario: Scenario) -> Replay:
    """The scenario's trace. Raises OppoError if it cannot be replayed so."""
    return build_replay(
        scenario.trace,
        seed=scenario.seed,
        group_size=scenario.group_size,
        max_prompt_length=scenario.max_prompt_length,
        max_response_length=scenario.max_response_length,
        base_dir=scenario.base_dir,
    )


def build_parts(scenario: Scenario, replay: Replay | None = None) -> Parts:
    """Trace (unless ``replay`` is it), costs and machine of a scenario. Raises OppoError for whatever of
    these cannot be."""
    built = build_trace(scenario) if replay is None else replay
    if built.waits is not None and scenario.rollout.batching == "static":
        raise OppoError(
            "rollout.batching static cannot run a trace with turns, since a padded batch does not wait for"
            " tools: use batching continuous"
        )
    if scenario.dynamic_sampling.enable and scenario.rollout.batching == "static":
        raise OppoError(
            "rollout.batching static cannot run dynamic sampling, since nobody joins a padded batch in place"
            " of a dropped group: use batching continuous"
        )
    context = cost_context(scenario)
    try:
        costs = scenario.costs.costs(context, scenario.base_dir)
    except NoRoomError as error:
        if idle := _idle(scenario):
            raise OppoError(f"{error}; {idle}") from None
        raise
    return Parts(built, costs, machine_setup(scenario, costs, context), max(built.prompt_lengths))


def build_setup(
    scenario: Scenario,
    *,
    policy: str | None = None,
    policy_settings: Mapping[str, Any] | None = None,
    steps: int | None = None,
    seed: int | None = None,
    parts: Parts | None = None,
) -> Setup:
    """Build one run.

    Args:
        policy: a policy instead of the scenario's.
        policy_settings: its settings, all of them; None: those of ``policy_settings_of``.
        steps: training steps instead of the scenario's.
        seed: seed instead of the scenario's.
        parts: what ``build_parts`` gave for this scenario; None: built now.

    Raises OppoError for whatever cannot run: the trace, the cost model, the memory, the policy and its
    settings, and what they require of the machine together.
    """
    name = scenario.policy.name if policy is None else policy
    chosen = policy_settings_of(scenario, name) if policy_settings is None else dict(policy_settings)
    steps = scenario.steps if steps is None else steps
    seed = scenario.seed if seed is None else seed
    check_count("steps", steps, 1, 1_000_000)
    check_count("seed", seed, 0, 2**63 - 1)
    if scenario.warmup_steps >= steps:
        raise OppoError(
            f"steps {steps} leaves nothing after the warm-up of {scenario.warmup_steps} steps: give more than"
            f" {scenario.warmup_steps} steps, or for a first look --set warmup_steps={steps // 5}"
        )
    batch = Batch(scenario.rollout_batch_size, scenario.group_size)
    policy_factory = policy_maker(name, batch, chosen, scenario.base_dir)
    built = policy_factory()
    shared = build_parts(scenario) if parts is None else parts
    # Of the trace only the draws depend on the seed.
    replay = replace(shared.replay, key=stream_key(seed, "trace"))
    shared.machine.check(shared.longest_prompt, scenario.max_response_length, built.schedule)

    judged = sample_rewards(scenario.dynamic_sampling, replay, batch.group_size, seed)
    if judged is not None:
        check_dynamic_sampling(built)

    def rewards() -> BatchRewards:
        return BatchRewards(scenario.rewards, seed, replay.rewards)

    rewards()  # refuse now what it would refuse later
    return Setup(
        machine=shared.machine,
        costs=shared.costs,
        policy_factory=policy_factory,
        batch=batch,
        replay=replay,
        rewards=rewards,
        steps=steps,
        warmup_steps=scenario.warmup_steps,
        seed=seed,
        scenario=scenario,
        sample_rewards=judged,
        gen_batch_size=generation_batch(scenario.dynamic_sampling, built),
        warnings=(*replay.warnings, *_warnings(scenario, built, name, chosen, shared.costs)),
    )


def cost_context(scenario: Scenario) -> CostContext:
    """What its costs may know of a scenario. Raises OppoError for more GPUs than ``cluster`` has, and for a
    replica that does not fit a node."""
    cluster, split = scenario.cluster, scenario.split
    if cluster.num_gpus is not None and split.num_gpus > cluster.num_gpus:
        raise OppoError(
            f"cluster.num_gpus {cluster.num_gpus} is less than the {split.num_gpus} that {split} takes: raise"
            " it, or give cluster.split"
        )
    node = cluster.num_gpus_per_node or max(split.num_gpus, 1)
    if split.tensor_parallel > node:
        _check_replica_over_nodes(scenario, split.tensor_parallel, node)
    if scenario.training.tensor_parallel > node:
        raise OppoError(
            f"training.tensor_parallel {scenario.training.tensor_parallel} is more than"
            f" cluster.num_gpus_per_node {node}: a tensor-parallel group does not span nodes here"
        )
    degree = getattr(getattr(scenario.costs, "reward_model", None), "tensor_parallel", 1)
    if split.scoring != "cpu" and degree > node:
        raise OppoError(
            f"costs.reward_model.tensor_parallel {degree} is more than cluster.num_gpus_per_node {node}: a"
            " scoring worker does not span nodes here"
        )
    training = split.training if isinstance(split.training, int) else split.rollout_gpus
    apart = isinstance(split.training, int) and split.num_gpus > node
    return CostContext(
        num_replicas=scenario.rollout.num_replicas,
        num_scoring_workers=scenario.scoring.num_workers,
        rollout_batch_size=scenario.rollout_batch_size,
        max_prompt_length=scenario.max_prompt_length,
        max_response_length=scenario.max_response_length,
        training=scenario.training,
        colocated_training=scenario.placement.training == "rollout",
        colocated_scoring=scenario.placement.scoring == "rollout"
        or (scenario.placement.scoring == "training" and scenario.placement.training == "rollout"),
        scores_beside_training=scenario.placement.scoring == "training"
        and scenario.placement.training == "separate",
        node_link_bytes_per_s=cluster.node_link_bytes_per_s if split.num_gpus > node else None,
        gpus_per_node=node,
        training_spans_nodes=training > node,
        sync_spans_nodes=apart or training > node,
        max_num_seqs=scenario.rollout.max_num_seqs,
        trains_experts=_has_experts(scenario),
    )


def _check_replica_over_nodes(scenario: Scenario, degree: int, node: int) -> None:
    """Raises OppoError for a replica of several nodes whose seconds are not known."""
    if degree % node:
        raise OppoError(
            f"costs.rollout.tensor_parallel {degree} is no multiple of cluster.num_gpus_per_node {node}: a"
            " replica that spans nodes takes whole ones"
        )
    if scenario.costs.kind == "composed":
        raise OppoError(
            f"costs.rollout.tensor_parallel {degree} spans {degree // node} nodes of {node} GPUs, and no"
            " collective between nodes was measured: take costs.kind roofline, which assumes them"
        )


def _has_experts(scenario: Scenario) -> bool:
    """Whether the actor is known, and a mixture of experts; one that cannot be found is refused where costs
    are built."""
    model = getattr(scenario.costs, "actor_model", None)
    try:
        return model is not None and find_model(model, scenario.base_dir).num_experts > 0
    except OppoError:
        return False


def machine_setup(scenario: Scenario, costs: Costs, context: CostContext) -> MachineSetup:
    """The machine as the scenario gives it, else as its costs know it (a profile: interference, time slices,
    a scorer's blocks). Raises OppoError for a KV capacity that nothing knows, and for what cannot stream."""
    rollout, scoring, placement = scenario.rollout, scenario.scoring, scenario.placement
    link = _piece_link(scenario, context)
    capacity = rollout.kv_capacity_tokens
    if capacity == "auto":
        if rollout.batching == "static":
            raise OppoError(
                "rollout.batching static cannot have kv_capacity_tokens auto: make it null, or use batching"
                " continuous"
            )
        if costs.actor_kv_capacity_tokens is None:
            raise OppoError(
                "rollout.kv_capacity_tokens auto needs a cost model that knows device memory, and costs.kind"
                f" {scenario.costs.kind} does not: give a number of tokens, or null for ample"
            )
        capacity = costs.actor_kv_capacity_tokens
    interference, turn_s = _sharing_costs(placement, costs.contention_factor, costs.time_slices)
    return MachineSetup(
        num_replicas=rollout.num_replicas,
        num_workers=scoring.num_workers,
        batching=rollout.batching,
        kv_capacity_tokens=capacity,
        kv_block_tokens=rollout.kv_block_tokens,
        max_num_seqs=rollout.max_num_seqs,
        clear_kv_cache_on_weight_sync=rollout.clear_kv_cache_on_weight_sync,
        keeps_kv_between_rounds=rollout.keeps_kv_between_rounds,
        clear_kv_cache_on_tool_call=rollout.clear_kv_cache_on_tool_call,
        shares_prefixes=rollout.enable_prefix_caching,
        groups_together=rollout.group_placement == "together",
        max_scoring_tokens=scoring.max_scoring_tokens,
        scorer_kv_capacity_tokens=scoring.kv_capacity_tokens,
        scorer_block_tokens=scoring.kv_block_tokens or costs.scoring_block_tokens or 1,
        scorer_cache_tokens=scoring.prefix_cache_tokens or costs.scoring_cache_tokens,
        scorer_iteration_tokens=scoring.max_num_batched_tokens or costs.scoring_iteration_tokens,
        send_s_per_token=0.0 if link is None else scoring.bytes_per_token / link,
        streamable=_streamable(scenario),
        scoring_on=placement.scoring,
        training_on=placement.training,
        sharing=placement.sharing,
        interference=interference,
        turn_s=turn_s,
        shares_host=placement.shares_host is True,
        slowdowns=costs.slowdowns if placement.interference is None else None,
    )


def _piece_link(scenario: Scenario, context: CostContext) -> float | None:
    """Bytes a second of what pieces cross to the scorer; None: they take no time. Nobody says which node a
    scorer is in: where the job spans nodes and scoring does not share the rollout's GPUs, pieces cross."""
    split = scenario.split
    apart = isinstance(split.scoring, int) or (
        split.scoring == "training" and isinstance(split.training, int)
    )
    between = context.node_link_bytes_per_s if apart else None
    return scenario.scoring.link_bytes_per_s or between


def _sharing_costs(
    placement: PlacementConfig, contention_factor: float | None, time_slices: tuple[float, float] | None
) -> tuple[float, float]:
    """f and ``turn_s``: as the scenario gives them, else as a profile measured them (1 and 0: nobody did).

    Args:
        contention_factor: measured slow-down of decoding beside scoring over that of kernels that run
            together. Where that is all a profile has, shared time explains more of it in time slices.
        time_slices: the two as measured where activities take turns.
    """
    if placement.takes_turns and time_slices is not None:
        interference, turn_s = time_slices
    elif placement.takes_turns and contention_factor is not None:
        together, apart = (explained_slowdown(Demands(), turns) for turns in (False, True))
        interference, turn_s = max(1.0, contention_factor * together / apart), 0.0
    else:
        interference, turn_s = contention_factor or 1.0, 0.0
    given = placement.interference, placement.turn_s
    return (
        interference if given[0] is None else given[0],
        turn_s if given[1] is None else given[1],
    )


def _streamable(scenario: Scenario) -> bool:
    asked, possible = scenario.scoring.streamable, scenario.costs.streamable
    if asked and not possible:
        raise OppoError(
            "scoring.streamable true does not fit costs.reward_model.kind verifier, which needs the whole"
            " response: remove it"
        )
    return possible if asked is None else asked


class PolicyWarning(str):
    """A warning that holds for a policy, and may for others: ``policy 'NAME' REST``."""

    def __new__(cls, policy: str, rest: str) -> "PolicyWarning":
        warning = super().__new__(cls, f"policy '{policy}' {rest}")
        warning.policy, warning.rest = policy, rest
        return warning

    policy: str
    rest: str

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]  # for other processes
        return self.policy, self.rest


def merged_warnings(warnings: Iterable[str]) -> list[str]:
    """Each once, and what holds for several policies in one sentence."""
    policies: dict[str, dict[str, None]] = {}
    for warning in warnings:
        if isinstance(warning, PolicyWarning):
            policies.setdefault(warning.rest, {})[warning.policy] = None
        else:
            policies.setdefault(warning, {})
    found = []
    for rest, names in policies.items():
        first, *others = names or [""]
        likewise = f"; likewise {', '.join(map(repr, others))}" if others else ""
        found.append(f"{PolicyWarning(first, rest)}{likewise}" if first else rest)
    return found


def _warnings(
    scenario: Scenario, policy: Policy, name: str, settings: Mapping[str, Any], costs: Costs
) -> list[str]:
    found = []
    if scenario.trace.sampling == "in_order":
        noisy = getattr(scenario.rewards, "noise", 0.0) > 0
        rest = "only the noise of rewards depends on the seed" if noisy else "the seed changes nothing"
        found.append(f"trace.sampling in_order replays the same rollouts under every seed: {rest}")
    if policy.score_granularity == "chunk" and not _streamable(scenario):
        rest = "streams chunks, but this reward model is scored when a rollout has finished"
        found.append(PolicyWarning(name, f"{rest} (scoring.streamable)"))
    place = scenario.placement
    shared = place.scoring == "rollout" or (place.scoring == "training" and place.training == "rollout")
    if policy.score_granularity != "batch" and shared and costs.phases.reward_phase_s >= _WOKEN_S:
        rest = (
            "scores on the devices of generation while it goes on: a reward model that is woken for scoring"
            " (costs.terms.reward_phase_s) must be awake beside the engine then, which takes memory for both"
        )
        found.append(PolicyWarning(name, f"{rest}{_left_beside_both(scenario, costs)}"))
    if isinstance(scenario.rewards, NoRewards) and _controls_overcommit(name, settings, scenario.base_dir):
        rest = "controls overcommit by rewards, but rewards.kind is none: it keeps its first value"
        found.append(PolicyWarning(name, rest))
    training = scenario.training
    if (
        scenario.costs.kind in _ROOFLINES
        and training.critic == "none"
        and "num_ppo_epochs" not in training.model_fields_set
    ):
        found.append(
            f"training.num_ppo_epochs is not given: every batch is trained {training.num_ppo_epochs} times,"
            " as TRL's PPO does; verl, OpenRLHF, slime and TRL's GRPO train it once"
            " (training.num_ppo_epochs=1)"
        )
    if idle := _idle(scenario):
        found.append(idle)
    placement = scenario.placement
    measured = placement.interference is not None or costs.contention_factor is not None
    if not measured and (placement.scoring != "separate" or placement.shares_host):
        found.append(
            f"scoring shares {'a machine' if placement.shares_host else 'devices'} and its interference was"
            " not measured: slow-down beyond shared demand is left out (placement.interference, or a"
            " calibrated profile)"
        )
    return found


def _left_beside_both(scenario: Scenario, costs: Costs) -> str:
    """What the memory check of a roofline leaves beside an engine and a reward model, whose weights it counts
    as awake at all times; empty where nothing counts them."""
    if scenario.costs.kind not in _ROOFLINES or costs.actor_kv_capacity_tokens is None:
        return ""
    if scenario.rollout.kv_capacity_tokens == "auto":
        return " (rollout.kv_capacity_tokens auto counts its weights)"
    room = f"{costs.actor_kv_capacity_tokens:,} tokens of KV a replica"
    return f": {room} are left (rollout.kv_capacity_tokens auto)"


def _idle(scenario: Scenario) -> str:
    """What to know of GPUs that no part of the run has; empty where there are none."""
    split, total = scenario.split, scenario.num_gpus
    idle = total - split.num_gpus
    if not idle:
        return ""
    fields, having = scenario.training, []
    more, over = divmod(idle, split.tensor_parallel)
    if not over:
        having.append(split._replace(replicas=split.replicas + more))
    degree = fields.model_parallel * fields.sequence_parallel
    if isinstance(split.training, int) and (split.training + idle) % degree == 0:
        having.append(split._replace(training=split.training + idle))
    named = " or ".join(show_value(str(each)) for each in having)
    mend = f"cluster.split: {named} has them all" if named else "give cluster.split"
    return f"{idle} of cluster.num_gpus {total} GPUs do nothing under {split}: {mend}"


def _controls_overcommit(name: str, settings: Mapping[str, Any], base_dir: Path | None) -> bool:
    return isinstance(getattr(check_settings(name, settings, base_dir), "overcommit", None), DeltaControl)
