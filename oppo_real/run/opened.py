"""A run with its engines up: models, training, worker group and prompts, freed at the end."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oppo_real.config import RealConfig
from oppo_real.models_folder import models_folder
from oppo_real.placement.cores import bound
from oppo_real.placement.interface import WorkerGroup
from oppo_real.run.inputs import RunInput, Training
from oppo_real.run.setup import RealSetup
from oppo_real.run.signals import TrainingThread
from oppo_real.run.source import PromptSource, ReplaySource, Source, TaskSource
from oppo_real.run.worker_group import build_worker_group
from oppo_sim.columns import STAGES, timing
from oppo_sim.errors import OppoError
from oppo_sim.policies.interface import Policy

if TYPE_CHECKING:
    import torch

    from oppo_real.placement.processes import KeptEngines
    from oppo_real.ppo.trainer import PPOTrainer
    from oppo_real.run.models import FrozenTraining


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
    from oppo_real.run.models import build_training, prepare_models

    base, config = setup.base, setup.config
    scenario = base.scenario
    if own is not None:
        _check_own_loop(setup, own)
    trains = config.trains and own is None
    stream_ref = scenario.training.stream_ref and (trains or own is not None)
    with _models_folder(setup, kept, stream_ref) as folder:
        models = prepare_models(config, setup.seed, setup.longest, folder, stream_ref, tell)
        ppo = config.ppo_config(scenario.training) if trains else None
        training = build_training(config, ppo, models, setup.seed, stream_ref)
        policy = base.policy_factory()
        stop = _stop_token(config) if own is None or own.stop_token_id is None else own.stop_token_id
        tell("starting the engines")
        worker_group = build_worker_group(setup, policy, models, training, stop, elapsed, kept)
        cores = config.placement.cores.driver
        threads = config.placement.threads or (None if cores is None else len(cores))
        training_thread = TrainingThread()
        try:
            worker_group.load_weights(training.weights(), 0, True)
            source = _source(setup, own, models.vocab_size)
            recorded_timing = _recorded_timing(config, scenario.base_dir)
            # Not before the workers were started, which would inherit the binding.
            with bound(cores, threads):
                _preallocate(setup, training, worker_group, training_thread)
                yield OpenRun(
                    setup,
                    policy,
                    worker_group,
                    training,
                    source,
                    models.policy,
                    recorded_timing,
                    training_thread,
                    worker_group.resolved_configs(),
                )
        finally:
            training_thread.close()
            worker_group.close()


def _check_own_loop(setup: RealSetup, own: OwnLoop) -> None:
    if own.prompts is None and setup.config.mode == "replay" and setup.base.replay.waits is not None:
        raise OppoError(
            "a stream of rollouts hands out no tokens of tools: leave out the columns of turns, or give"
            " prompts"
        )
    if setup.base.sample_rewards is not None:
        raise OppoError(
            "a stream of rollouts knows no rewards by which groups could be dropped: set"
            " dynamic_sampling.enable to false"
        )


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


def _stop_token(config: RealConfig) -> int | None:
    if config.mode == "replay":
        return None
    from oppo_real.task.arithmetic import EOS

    return EOS


def _source(setup: RealSetup, own: OwnLoop | None, vocab_size: int) -> Source:
    base = setup.base
    if own is not None and own.prompts is not None:
        return PromptSource(own.prompts, base.batch.group_size)
    if setup.config.mode == "replay":
        return ReplaySource(
            base.replay,
            base.replay.cursor(),
            vocab_size=vocab_size,
            seed=setup.seed,
            group_size=base.batch.group_size,
            waits=base.replay.waits,
        )
    return TaskSource(seed=setup.seed, group_size=base.batch.group_size)


def _preallocate(
    setup: RealSetup,
    training: "PPOTrainer | FrozenTraining",
    worker_group: WorkerGroup,
    training_thread: TrainingThread,
) -> None:
    """Let the trainer take its memory now, in the thread that will train."""
    from oppo_real.ppo.trainer import PPOTrainer

    if not isinstance(training, PPOTrainer):
        return
    memory = partial(training.preallocate, setup.base.scenario.rollout_batch_size, *_longest(setup))
    if worker_group.concurrent:
        training_thread.do_now(memory)
    else:
        memory()


def _longest(setup: RealSetup) -> tuple[int, int]:
    """Of the prompts and of the responses that come, tokens."""
    scenario, replay = setup.base.scenario, setup.base.replay
    if setup.config.mode != "replay":
        return scenario.max_prompt_length, scenario.max_response_length
    return max(replay.prompt_lengths), min(max(replay.response_lengths), scenario.max_response_length)


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
