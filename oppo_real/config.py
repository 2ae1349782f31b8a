"""The ``real:`` section of a scenario: which engines run it, where, and what is trained."""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from oppo_real.placement.connected import WORKER_TIMEOUT_S
from oppo_real.placement.engines import (
    ENGINES,
    EngineKind,
    gpu_number,
    require_arguments,
    require_engine,
)
from oppo_real.ppo.config import PPOConfig
from oppo_sim.costs.strict import Count, NonNegative, Positive, Share, Strict
from oppo_sim.costs.training_config import TrainingConfig
from oppo_sim.errors import OppoError
from oppo_sim.scenario.problems import more_than_one, problems_of
from oppo_sim.scenario.schema import Scenario

Model = dict[str, Any] | str | None
Cores = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)]


class ModelsConfig(Strict):
    """A transformers configuration (random weights), a config.json, or a folder of ``save_pretrained``."""

    actor: Model = Field(
        None,
        description="null: a tiny model; random in mode replay, fitted to the arithmetic task in mode train",
    )
    reward: Model = Field(
        None,
        description=(
            "null: a tiny model; random in mode replay, fitted to judge the arithmetic task in mode train"
        ),
    )
    reference: Model = Field(None, description="null: the actor before training")
    critic: Model = Field(
        None,
        description="null: the actor's configuration with random weights (replay) or its backbone (train)",
    )


class DevicesConfig(Strict):
    """torch device names. Lists have one entry a replica or worker; one entry alone serves all."""

    training: str = "cpu"
    rollout: Annotated[tuple[str, ...], Field(min_length=1)] = ("cpu",)
    scoring: Annotated[tuple[str, ...], Field(min_length=1)] = ("cpu",)

    @field_validator("training", "rollout", "scoring")
    @classmethod
    def _timed(cls, given: str | tuple[str, ...]) -> str | tuple[str, ...]:
        for name in (given,) if isinstance(given, str) else given:
            if re.fullmatch(r"cpu|cuda(:\d+)?", name) is None:
                # Nothing would wait for the work of another where it is timed.
                raise ValueError(
                    f"{name!r} is no device that can be timed: give cpu, cuda or a GPU such as cuda:0"
                )
        return given


class CoresConfig(Strict):
    """CPU cores each process is bound to."""

    driver: Cores | None = None
    rollout: Annotated[tuple[Cores, ...], Field(min_length=1)] | None = None
    scoring: Annotated[tuple[Cores, ...], Field(min_length=1)] | None = None


class RayShare(Strict):
    """What one worker takes of a Ray cluster."""

    num_cpus: Positive = 1.0
    num_gpus: NonNegative | None = Field(
        None, description="null: one for each device of an engine on cuda, else 0; 0.5 shares one"
    )
    resources: dict[str, Positive] = Field(
        {}, description="custom resources of Ray, such as those that mark a machine"
    )


class RaySection(Strict):
    """Where Ray places the workers (``kind: ray``)."""

    address: Annotated[str, Field(min_length=1)] | None = Field(
        None,
        description=(
            "null: start Ray on this machine for this run; auto or host:port: join a cluster that this"
            " machine belongs to"
        ),
    )
    strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"
    rollout: RayShare = RayShare()
    scoring: RayShare = RayShare()
    shared_folder: str | None = Field(
        None,
        description=(
            "a folder that all machines see, for models that engines read from one; null: one of this machine"
        ),
    )
    start_timeout_s: Positive = Field(60.0, description="how long the cluster may take to make room")

    @model_validator(mode="after")
    def _member(self) -> "RaySection":
        if self.address is not None and self.address.startswith("ray://"):
            raise ValueError(
                "address is a Ray client's: run this command on a machine of the cluster, with address auto"
            )
        return self


class RealPlacement(Strict):
    """Where engines run."""

    kind: Literal["inline", "processes", "ray"] = Field(
        "inline", description="inline: all in one process, nothing overlaps"
    )
    cores: CoresConfig = CoresConfig()
    threads: Count | None = Field(
        None, description="torch threads of each process; null: its cores, or an equal share of them all"
    )
    worker_timeout_s: Annotated[float, Field(ge=3)] | None = Field(
        WORKER_TIMEOUT_S,
        description=(
            "how long a replica or scoring worker that has something to do may say nothing (an iteration, new"
            " weights, a batch of pieces; for building its engine never less than 900 s); null: for ever"
        ),
    )
    cluster: RaySection = Field(RaySection(), description="kind ray: which cluster, and what of it")

    @model_validator(mode="after")
    def _possible(self) -> "RealPlacement":
        if (
            self.kind == "ray"
            and self.cluster.address is not None
            and (self.cores.rollout or self.cores.scoring)
        ):
            raise ValueError(
                "cores.rollout and cores.scoring are cores of this machine, but cluster.address names others:"
                " give cluster.*.num_cpus"
            )
        return self


class PPOSection(PPOConfig):
    """PPO's settings, and whether it runs."""

    enabled: bool | None = None
    """None: in mode train."""


class SftSection(Strict):
    """How the tiny actor learns the arithmetic task before PPO (mode train without ``models.actor``)."""

    steps: Count = 400
    batch_size: Count = 32


class RealConfig(Strict):
    """How a scenario is run for real."""

    engine: EngineKind = Field("torch", description="of the replicas")
    scorer: EngineKind = Field("torch", description="of the scoring workers")
    mode: Literal["replay", "train"] = Field(
        "replay",
        description=(
            "replay: random prompts, responses forced to the trace's lengths; train: the arithmetic task"
        ),
    )
    lock_step: bool = Field(
        False, description="one clock counts decode iterations; everything else takes no time"
    )
    recorded_timing: str | None = Field(
        None, description="run folder or steps.parquet whose stage times the policy is told instead"
    )
    models: ModelsConfig = ModelsConfig()
    sft: SftSection = SftSection()
    dtype: Literal["float32", "bfloat16", "float16", "float64"] = "float32"
    training_dtype: Literal["float32", "bfloat16", "float64"] = Field(
        "float32", description="of the models that the driver trains"
    )
    devices: DevicesConfig = DevicesConfig()
    placement: RealPlacement = RealPlacement()
    temperature: NonNegative = Field(1.0, description="of sampling; 0 is greedy (mode replay only)")
    top_p: Share = 1.0
    actor_args: dict[str, Any] = Field({}, description="further arguments of the replicas' engine")
    scorer_args: dict[str, Any] = Field({}, description="further arguments of the scoring workers' engine")
    ppo: PPOSection = PPOSection()
    checkpoint_every: Count | None = Field(
        1, description="steps from one checkpoint of a run folder to the next; null: none is written"
    )
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] | None = Field(
        None, description="of weights, prompts, sampling; null: the scenario's"
    )

    @model_validator(mode="after")
    def _consistent(self) -> "RealConfig":
        if self.trains and self.temperature == 0:
            raise ValueError(
                "temperature 0 (greedy) gives nothing to train on: give a number above 0, or set ppo.enabled"
                " to false"
            )
        if "temperature" in self.ppo.model_fields_set and self.ppo.temperature != self.temperature:
            raise ValueError(
                f"ppo.temperature {self.ppo.temperature} differs from temperature {self.temperature} of the"
                " sampling: leave ppo.temperature out"
            )
        if self.placement.kind == "inline":
            placed = ((self.engine, self.devices.rollout), (self.scorer, self.devices.scoring))
            for engine, devices in placed:
                other = next((one for one in devices if (gpu_number(one) or 0) > 0), None)
                if other is not None and ENGINES[engine].first_gpus:
                    raise ValueError(
                        f"{engine} takes the first GPU of its process, so {other} needs a process of its own:"
                        " set placement.kind to processes"
                    )
        if self.recorded_timing is not None and not self.lock_step:
            raise ValueError(
                "recorded_timing is for lock_step: true, where nothing is measured: leave it out"
            )
        return self

    @property
    def trains(self) -> bool:
        """Weights change."""
        return self.mode == "train" if self.ppo.enabled is None else self.ppo.enabled

    def ppo_config(self, training: TrainingConfig) -> PPOConfig:
        """The trainer's settings; where this section is silent, those of the scenario's ``training:`` section
        that mean the same.

        Raises OppoError where that section asks for what the trainer does not do.
        """
        if training.lora_rank:
            raise OppoError(
                "training.lora_rank is simulated only, since this trainer trains all weights: set it to 0 for"
                " a real run"
            )
        fields = {
            name: getattr(self.ppo, name)
            for name in self.ppo.model_fields_set
            if name in PPOConfig.model_fields
        }
        fields["temperature"] = self.temperature
        fields.setdefault("num_ppo_epochs", training.num_ppo_epochs)
        fields.setdefault("num_mini_batches", training.num_mini_batches)
        fields.setdefault("carried", training.old_log_prob)
        if not training.ref:
            fields.setdefault("kl_coef", 0.0)
        if "critic" not in fields:
            if training.critic == "none":
                raise OppoError(
                    "PPO needs a critic: set real.ppo.critic (or training.critic) to separate or value_head"
                )
            fields["critic"] = training.critic
        return PPOConfig(**fields)


def real_config(scenario: Scenario) -> RealConfig:
    """The scenario's ``real:`` section, checked; all defaults if there is none. Raises OppoError."""
    return parse_real_config(scenario.real or {}, scenario.source)


def parse_real_config(section: Mapping[str, Any], where: str = "scenario") -> RealConfig:
    """The same from the section's data. Raises OppoError."""
    data = dict(section)
    try:
        return RealConfig.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        problems = problems_of(error, data, RealConfig.model_json_schema(), ("real",))
        raise OppoError(f"{where}: {problems[0].sentence}{more_than_one(problems)}") from None


def check_engines(config: RealConfig) -> None:
    """Raises OppoError for engines that are not installed, or do not take the arguments that are given."""
    for engine in ("torch", config.engine, config.scorer):
        require_engine(engine)
    require_arguments(config.engine, config.actor_args, "real.actor_args")
    require_arguments(config.scorer, config.scorer_args, "real.scorer_args")
