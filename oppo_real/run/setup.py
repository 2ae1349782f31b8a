"""From a scenario with a ``real:`` section to a run that can start. Whatever cannot run is refused here."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oppo_real.config import RealConfig, check_engines, real_config
from oppo_real.engines.interface import Sampling
from oppo_real.models_folder import models_folder
from oppo_real.placement.cores import available_cores, bound, check_cores
from oppo_real.placement.engines import (
    ActorSpec,
    ScorerSpec,
    build_actor,
    build_scorer,
    require_ray,
)
from oppo_real.placement.interface import WorkerGroup
from oppo_real.run.inputs import RunInput, Training
from oppo_real.run.signals import TrainingThread
from oppo_real.run.source import PromptSource, ReplaySource, Source, TaskSource
from oppo_real.task.arithmetic import LONGEST_PROMPT
from oppo_sim.columns import STAGES, timing
from oppo_sim.errors import OppoError
from oppo_sim.policies.interface import Policy
from oppo_sim.scenario.build import Setup, build_setup
from oppo_sim.scenario.schema import Scenario
from oppo_sim.schedule.rules import streams_pieces

if TYPE_CHECKING:
    import torch

    from oppo_real.placement.processes import KeptEngines
    from oppo_real.ppo.trainer import PPOTrainer
    from oppo_real.run.models import FrozenTraining


@dataclass(frozen=True)
class RealSetup:
    """A scenario, built as for the simulator, and how it is run for real."""

    base: Setup
    config: RealConfig
    policy_name: str
    seed: int
    """Of weights, prompts and sampling."""

    @property
    def checkpoint_every(self) -> int | None:
        """Steps from one checkpoint to the next; None: none is written, as under policies that never pause
        between steps."""
        return self.config.checkpoint_every if self.base.policy_factory().schedule == "synchronous" else None

    @property
    def longest(self) -> int:
        """Prompt and response together, tokens."""
        return self.base.scenario.max_prompt_length + self.base.scenario.max_response_length


@dataclass(frozen=True)
class OwnLoop:
    """What a caller brings who trains by himself."""

    prompts: Callable[[int], Sequence[int]] | None = None
    """Group number → token ids; None: prompts as ``real.mode`` says."""
    stop_token_id: int | None = None


@dataclass
class OpenRun:
    """A run with its engines up."""

    setup: RealSetup
    policy: Policy
    worker_group: WorkerGroup
    training: "PPOTrainer | FrozenTraining"
    source: Source
    policy_model: "torch.nn.Module"
    recorded_timing: Sequence[Mapping[str, float]] | None
    training_thread: TrainingThread
    resolved: dict[str, Any] = field(default_factory=dict)

    def inputs(
        self,
        timeline: tuple[int, int] | None = None,
        first_step: int = 0,
        after_step: Callable[[int], None] | None = None,
        training: Training | None = None,
    ) -> RunInput:
        """What the schedules take; ``training`` replaces its own."""
        base, config = self.setup.base, self.setup.config
        replays = isinstance(self.source, ReplaySource)
        return RunInput(
            self.policy,
            base.batch,
            base.machine,
            self.worker_group,
            self.source,
            training or self.training,
            base.rewards() if replays and training is None else None,
            base.scenario.max_response_length,
            base.steps,
            config.lock_step,
            replays,
            timeline,
            self.recorded_timing,
            first_step,
            after_step or (lambda step: None),
            base.sample_rewards,
            training_thread=self.training_thread,
            own_loop=training is not None,
        )


def build_real_setup(
    scenario: Scenario,
    *,
    policy: str | None = None,
    steps: int | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    own_prompts: bool = False,
) -> RealSetup:
    """Check a scenario for a real run. ``own_prompts``: the caller brings them, in place of the task's.

    Raises OppoError for whatever cannot run, before anything is built.
    """
    config = real_config(scenario)
    base = build_setup(scenario, policy=policy, policy_settings=settings, steps=steps, seed=seed)
    chosen = base.policy_factory()
    check_engines(config)
    cores = config.placement.cores
    for where, lists in (("driver", [cores.driver]), ("rollout", cores.rollout), ("scoring", cores.scoring)):
        for listed in lists or ():
            if listed is not None:
                check_cores(listed, f"real.placement.cores.{where}")
    if base.machine.batching == "static":
        raise OppoError("rollout.batching static is simulated only: set it to continuous for a real run")
    if base.machine.shares_prefixes and base.batch.group_size > 1:
        if config.engine == "torch":
            raise OppoError(
                "rollout.enable_prefix_caching needs the vllm engine, since the torch engine prefills the"
                " prompt of every sample: set real.engine to vllm, or it to false"
            )
        if base.machine.clear_kv_cache_on_tool_call and base.replay.waits is not None:
            raise OppoError(
                "vLLM's prefix cache keeps the KV of a rollout that calls a tool: set"
                " rollout.clear_kv_cache_on_tool_call or rollout.enable_prefix_caching to false"
            )
    if base.sample_rewards is not None and config.mode != "replay":
        raise OppoError(
            "dynamic_sampling judges groups by the rewards of a trace: set real.mode to replay, or"
            " dynamic_sampling.enable to false"
        )
    if base.gen_batch_size is not None:
        raise OppoError(
            "real runs replace a dropped group at once: set dynamic_sampling.gen_batch_size to null"
        )
    if base.replay.waits is not None and config.mode == "replay" and config.trains:
        raise OppoError(
            "real.ppo cannot train the rollouts of a trace with turns, whose tools' tokens are no response:"
            " set real.ppo.enabled to false"
        )
    if chosen.oracle and config.mode != "replay":
        raise OppoError(
            f"policy '{chosen.name}' is an oracle: it needs lengths known beforehand, so set real.mode to"
            " replay"
        )
    if chosen.schedule != "synchronous" and config.placement.kind == "inline" and not config.lock_step:
        raise OppoError(
            f"the {chosen.schedule} policy generates during training, which needs engines in processes of"
            " their own: set real.placement.kind to processes or ray (or real.lock_step to true)"
        )
    if config.placement.kind == "ray":
        require_ray()
        shared = config.placement.cluster.shared_folder
        if shared is not None and not Path(shared).is_dir():
            raise OppoError(
                f"real.placement.cluster.shared_folder: there is no folder {shared}; make it, on a disk that"
                " all machines see"
            )
    if scenario.training.stream_ref and config.scorer != "torch":
        raise OppoError(
            "training.stream_ref needs the torch scorer, which runs the reference model too: set real.scorer"
            " to torch"
        )
    setup = RealSetup(base, config, chosen.name, base.seed if config.seed is None else config.seed)
    _check_models(config, setup.longest)
    if config.mode == "train" and not own_prompts and scenario.max_prompt_length < LONGEST_PROMPT:
        # The torch engine would take longer prompts, vLLM gives up at the first, minutes later.
        raise OppoError(
            f"real.mode train: prompts of the arithmetic task have up to {LONGEST_PROMPT} tokens, and"
            f" max_prompt_length is {scenario.max_prompt_length}: set it to {LONGEST_PROMPT} or more"
        )
    if config.trains:
        wanted = config.ppo_config(scenario.training).num_mini_batches
        if wanted > scenario.rollout_batch_size:
            raise OppoError(
                f"a batch of {scenario.rollout_batch_size} rollouts cannot fill num_mini_batches {wanted}:"
                " lower it, or raise rollout_batch_size"
            )
    return setup


def _check_models(config: RealConfig, longest: int) -> None:
    """Raises OppoError for models that cannot run together; from their configurations."""
    if config.models.actor is None and config.models.reward is None:
        return
    from oppo_real.engines.models import vocabulary_and_positions
    from oppo_real.run.models import require_context, tiny_vocabulary

    found: dict[str, int] = {}
    for name in ("actor", "reward", "reference"):
        if (source := getattr(config.models, name)) is None:
            continue
        try:
            found[name], positions = vocabulary_and_positions(source)
        except OppoError as error:
            raise OppoError(f"real.models.{name}: {error}") from None
        if name == "actor":
            require_context(longest, positions)
    known = found.pop("actor", tiny_vocabulary())
    if config.models.reward is None and config.mode == "train":
        found["reward"] = tiny_vocabulary()
    for name, tokens in found.items():
        if tokens < known:
            given = getattr(config.models, name) is not None
            left_out = "" if given else " (left out: a tiny one, fitted to the task)"
            raise OppoError(
                f"real.models.{name}{left_out} knows {tokens} tokens and the actor {known}: give"
                f" real.models.{name} a model with the actor's vocabulary"
            )


@contextmanager
def open_run(
    setup: RealSetup,
    elapsed: float = 0.0,
    own: OwnLoop | None = None,
    kept: "KeptEngines | None" = None,
    tell: Callable[[str], None] = lambda phase: None,
) -> Iterator[OpenRun]:
    """Build models and engines; they are freed at the end. ``elapsed``: what the run's clock shows at first,
    seconds. ``own``: the caller trains. ``kept``: where engines in processes come from and go to instead.
    ``tell``: called with what is done now.

    Raises OppoError for a model that does not fit, an engine that does not start, and a worker that fails.
    """
    from oppo_real.ppo.trainer import PPOTrainer
    from oppo_real.run.models import build_training, prepare_models

    base, config = setup.base, setup.config
    scenario = base.scenario
    if own is not None and own.prompts is None and config.mode == "replay" and base.replay.waits is not None:
        raise OppoError(
            "a stream of rollouts hands out no tokens of tools: leave out the columns of turns, or give"
            " prompts"
        )
    if own is not None and base.sample_rewards is not None:
        raise OppoError(
            "a stream of rollouts knows no rewards by which groups could be dropped: set"
            " dynamic_sampling.enable to false"
        )
    trains = config.trains and own is None
    stream_ref = scenario.training.stream_ref and (trains or own is not None)
    with _models_folder(setup, kept, stream_ref) as folder:
        models = prepare_models(config, setup.seed, setup.longest, folder, stream_ref, tell)
        ppo = config.ppo_config(scenario.training) if trains else None
        training = build_training(config, ppo, models, setup.seed, stream_ref)
        policy = base.policy_factory()
        options: dict[str, Any] = {
            "stream": streams_pieces(policy, base.machine.streamable),
            "max_scoring_tokens": base.machine.max_scoring_tokens,
            "lock_step": config.lock_step,
            "elapsed": elapsed,
        }
        stop = _stop_token(config) if own is None or own.stop_token_id is None else own.stop_token_id
        actors = [_actor_spec(setup, models.actor, stop, index) for index in range(base.machine.num_replicas)]
        scorers = [
            _scorer_spec(setup, models.reward, models.reference, index)
            for index in range(base.machine.num_workers)
        ]
        tell("starting the engines")
        worker_group = _worker_group(config, actors, scorers, training, options, kept)
        cores = config.placement.cores.driver
        threads = config.placement.threads or (None if cores is None else len(cores))
        training_thread = TrainingThread()
        try:
            worker_group.load_weights(training.weights(), 0, True)
            source: Source
            if own is not None and own.prompts is not None:
                source = PromptSource(own.prompts, base.batch.group_size)
            elif config.mode == "replay":
                source = ReplaySource(
                    base.replay,
                    base.replay.cursor(),
                    vocab_size=models.vocab_size,
                    seed=setup.seed,
                    group_size=base.batch.group_size,
                    waits=base.replay.waits,
                )
            else:
                source = TaskSource(seed=setup.seed, group_size=base.batch.group_size)
            timing_told = _recorded_timing(config, scenario.base_dir)
            # Not before the workers were started, which would inherit the binding.
            with bound(cores, threads):
                if isinstance(training, PPOTrainer):
                    memory = partial(training.preallocate, scenario.rollout_batch_size, *_longest(setup))
                    if worker_group.concurrent:
                        training_thread.do_now(memory)
                    else:
                        memory()
                yield OpenRun(
                    setup,
                    policy,
                    worker_group,
                    training,
                    source,
                    models.policy,
                    timing_told,
                    training_thread,
                    worker_group.resolved_configs(),
                )
        finally:
            training_thread.close()
            worker_group.close()


@contextmanager
def _models_folder(setup: RealSetup, kept: "KeptEngines | None", stream_ref: bool) -> Iterator[Path]:
    """Where engines read their models: for this run, or for all that have the same ones."""
    config = setup.config
    if kept is not None and config.placement.kind == "processes":
        what = (config.models, config.mode, config.sft, config.engine, config.scorer, config.dtype)
        yield kept.models(repr((what, config.training_dtype, setup.seed, setup.longest, stream_ref)))
        return
    with models_folder(config.placement.cluster.shared_folder) as folder:
        yield folder


def _longest(setup: RealSetup) -> tuple[int, int]:
    """Of the prompts and of the responses that come, tokens."""
    scenario, replay = setup.base.scenario, setup.base.replay
    if setup.config.mode != "replay":
        return scenario.max_prompt_length, scenario.max_response_length
    return max(replay.prompt_lengths), min(max(replay.response_lengths), scenario.max_response_length)


def _worker_group(
    config: RealConfig,
    actors: Sequence[ActorSpec],
    scorers: Sequence[ScorerSpec],
    training: "PPOTrainer | FrozenTraining",
    options: dict[str, Any],
    kept: "KeptEngines | None",
) -> WorkerGroup:
    if config.placement.kind == "inline":
        from oppo_real.placement.inline import InlineWorkerGroup

        return InlineWorkerGroup(
            [build_actor(spec) for spec in actors], [build_scorer(spec) for spec in scorers], **options
        )
    pins = _pins(config, len(actors), len(scorers))
    placed_actors = list(zip(actors, pins[: len(actors)], strict=True))
    placed_scorers = list(zip(scorers, pins[len(actors) :], strict=True))
    from oppo_real.placement.connected import ConnectedWorkerGroup, Transport

    transport: Transport
    weights = training.weights()
    sizes = {name: options[name] for name in ("stream", "max_scoring_tokens")}
    sizes["timeout_s"] = config.placement.worker_timeout_s
    if config.placement.kind == "ray":
        from oppo_real.placement.ray_cluster import RayTransport

        transport = RayTransport(placed_actors, placed_scorers, weights, config.placement.cluster, **sizes)
    else:
        from oppo_real.placement.processes import ProcessTransport

        transport = ProcessTransport(placed_actors, placed_scorers, weights, kept=kept, **sizes)
    return ConnectedWorkerGroup(transport, lock_step=config.lock_step, elapsed=options["elapsed"])


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


def _stop_token(config: RealConfig) -> int | None:
    if config.mode == "replay":
        return None
    from oppo_real.task.arithmetic import EOS

    return EOS


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


def _recorded_timing(config: RealConfig, base_dir: Path | None) -> list[Mapping[str, float]] | None:
    if config.recorded_timing is None:
        return None
    import pandas as pd

    path = (base_dir or Path()) / config.recorded_timing
    if path.is_dir():
        path = path / "steps.parquet"
    names = {stage: timing(stage) for stage in (*STAGES, "step")}
    try:
        table = pd.read_parquet(path, columns=list(names.values()))
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise OppoError(
            f"real.recorded_timing: {path} holds no step table ({reason}): name a run folder or its"
            " steps.parquet"
        ) from None
    return [
        {stage: float(row[column]) for stage, column in names.items()}
        for row in table.to_dict(orient="records")
    ]
