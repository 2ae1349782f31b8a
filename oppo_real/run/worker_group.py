"""The engines of a run: what replicas and scoring workers are built from, on which cores, and their group."""

from typing import TYPE_CHECKING, Any

from oppo_real.config import RealConfig
from oppo_real.engines.interface import Sampling
from oppo_real.placement.cores import available_cores
from oppo_real.placement.engines import ActorSpec, ScorerSpec, build_actor, build_scorer
from oppo_real.placement.interface import WorkerGroup
from oppo_real.run.setup import RealSetup
from oppo_sim.policies.interface import Policy
from oppo_sim.schedule.rules import streams_pieces

if TYPE_CHECKING:
    from oppo_real.placement.processes import KeptEngines
    from oppo_real.ppo.trainer import PPOTrainer
    from oppo_real.run.models import FrozenTraining, Models


def build_worker_group(
    setup: RealSetup,
    policy: Policy,
    models: "Models",
    training: "PPOTrainer | FrozenTraining",
    stop_token_id: int | None,
    elapsed: float,
    kept: "KeptEngines | None",
) -> WorkerGroup:
    """Engines in this process, in processes or under Ray, as ``real.placement`` says. ``elapsed``: what their
    clock shows at first, seconds. Raises OppoError for an engine that does not start."""
    config, machine = setup.config, setup.base.machine
    actors = [_actor_spec(setup, models.actor, stop_token_id, index) for index in range(machine.num_replicas)]
    scorers = [
        _scorer_spec(setup, models.reward, models.reference, index) for index in range(machine.num_workers)
    ]
    stream, max_scoring_tokens = streams_pieces(policy, machine.streamable), machine.max_scoring_tokens
    if config.placement.kind == "inline":
        from oppo_real.placement.inline import InlineWorkerGroup

        return InlineWorkerGroup(
            [build_actor(spec) for spec in actors],
            [build_scorer(spec) for spec in scorers],
            stream=stream,
            max_scoring_tokens=max_scoring_tokens,
            lock_step=config.lock_step,
            elapsed=elapsed,
        )
    pins = _pins(config, len(actors), len(scorers))
    placed_actors = list(zip(actors, pins[: len(actors)], strict=True))
    placed_scorers = list(zip(scorers, pins[len(actors) :], strict=True))
    from oppo_real.placement.connected import ConnectedWorkerGroup, Transport

    transport: Transport
    weights = training.weights()
    options: dict[str, Any] = {
        "stream": stream,
        "max_scoring_tokens": max_scoring_tokens,
        "timeout_s": config.placement.worker_timeout_s,
    }
    if config.placement.kind == "ray":
        from oppo_real.placement.ray_cluster import RayTransport

        transport = RayTransport(placed_actors, placed_scorers, weights, config.placement.cluster, **options)
    else:
        from oppo_real.placement.processes import ProcessTransport

        transport = ProcessTransport(placed_actors, placed_scorers, weights, kept=kept, **options)
    return ConnectedWorkerGroup(transport, lock_step=config.lock_step, elapsed=elapsed)


def _pins(config: RealConfig, replicas: int, workers: int) -> list[Any]:
    from oppo_real.placement.worker import Pin

    cores, cluster = config.placement.cores, config.placement.cluster
    equal = max(1, len(available_cores()) // (replicas + workers))
    pins = []
    for lists, taken, count in (
        (cores.rollout, cluster.rollout, replicas),
        (cores.scoring, cluster.scoring, workers),
    ):
        share = max(1, int(taken.num_cpus)) if config.placement.kind == "ray" else equal
        for index in range(count):
            bound = None if lists is None else lists[index % len(lists)]
            pins.append(Pin(bound, config.placement.threads or (share if bound is None else len(bound))))
    return pins


def _actor_spec(setup: RealSetup, model: Any, stop: int | None, index: int) -> ActorSpec:
    config, machine = setup.config, setup.base.machine
    devices = config.devices.rollout
    return ActorSpec(
        config.engine,
        model,
        Sampling(config.temperature, config.top_p, stop, setup.seed),
        setup.seed,
        config.dtype,
        devices[index % len(devices)],
        setup.longest,
        machine.kv_capacity_tokens,
        machine.kv_block_tokens,
        machine.max_num_seqs,
        config.lock_step,
        setup.base.replay.waits is not None and not machine.clear_kv_cache_on_tool_call,
        machine.shares_prefixes and setup.base.batch.group_size > 1,
        config.actor_args,
    )


def _scorer_spec(setup: RealSetup, model: Any, reference: Any, index: int) -> ScorerSpec:
    config = setup.config
    devices = config.devices.scoring
    return ScorerSpec(
        config.scorer,
        model,
        setup.seed + 2,
        config.dtype,
        devices[index % len(devices)],
        setup.longest,
        setup.base.machine.kv_block_tokens,
        (
            config.models.reference
            if reference is not None and config.models.reference is not None
            else reference
        ),
        setup.seed,
        config.temperature,
        config.scorer_args,
    )
