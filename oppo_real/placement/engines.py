"""Engines from plain descriptions, which can be sent to another process and be built there."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from importlib.util import find_spec
from math import prod
from typing import Any, Final, Literal, TypeVar

from oppo_real.engines.interface import Actor, Sampling, Scorer
from oppo_real.node import VISIBLE
from oppo_real.placement.cores import keep_memory
from oppo_sim.errors import OppoError

EngineKind = Literal["torch", "vllm"]


@dataclass(frozen=True)
class ActorSpec:
    """One replica. Tokens."""

    engine: EngineKind
    model: Any
    """A configuration as a mapping, or a path."""
    sampling: Sampling
    seed: int = 0
    dtype: str = "float32"
    device: str = "cpu"
    max_model_len: int | None = None
    kv_capacity_tokens: int | None = None
    kv_block_tokens: int = 16
    max_num_seqs: int | None = None
    lock_step: bool = False
    keep_kv_on_tool_call: bool = False
    """KV of a rollout that calls a tool is kept as long as nobody needs the memory."""
    share_prompts: bool = False
    """Samples of one prompt have it in KV once."""
    engine_args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ScorerSpec:
    """One scoring worker. Tokens."""

    engine: EngineKind
    model: Any
    seed: int = 0
    dtype: str = "float32"
    device: str = "cpu"
    max_model_len: int | None = None
    kv_block_tokens: int = 16
    reference: Any = None
    """Model source of a reference model that runs over the same pieces; None: none does."""
    reference_seed: int = 0
    temperature: float = 1.0
    engine_args: Mapping[str, Any] = field(default_factory=dict)


Spec = TypeVar("Spec", ActorSpec, ScorerSpec)
_LISTED: Final = 10
"""Arguments of an engine that a sentence can name."""


@dataclass(frozen=True)
class EngineFacts:
    """What there is to know of an engine before it is imported."""

    packages: tuple[str, ...]
    build_actor: Callable[[ActorSpec], Actor]
    build_scorer: Callable[[ScorerSpec], Scorer]
    reads_folders: bool = False
    """It takes models from folders of ``save_pretrained`` only."""
    tiny_model: Mapping[str, int] = field(default_factory=dict)
    """What the configuration of a tiny model must have for it."""
    parallel_args: tuple[str, ...] = ()
    """Engine arguments by whose product one engine is spread over devices."""
    first_gpus: bool = False
    """It takes the first GPUs that its process sees, whatever its device is called."""
    args_inside_ray: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of an engine that is spread over devices inside a worker of Ray."""
    arguments: Callable[[], frozenset[str] | None] = lambda: None
    """Names of further arguments that its replicas and scorers take; None: they are not known."""
    check_argument: Callable[[str, Any], str | None] = lambda name, value: None
    """What is wrong with the value of one, in words; None: nothing that can be said before it is built."""
    preload: tuple[str, ...] = ()
    """Modules that take seconds to import, and use no device when they are imported."""


def parallel_size(spec: ActorSpec | ScorerSpec) -> int:
    """Devices that one engine is spread over."""
    return spread_over(spec.engine, spec.engine_args)


def spread_over(engine: EngineKind, engine_args: Mapping[str, Any]) -> int:
    """Devices that one engine with these arguments is spread over."""
    given = (engine_args.get(name) for name in ENGINES[engine].parallel_args)
    return prod(size for size in given if isinstance(size, int))


def require_arguments(engine: EngineKind, engine_args: Mapping[str, Any], where: str) -> None:
    """Raises OppoError for an argument that the engine does not take; ``where``: the field that gives it."""
    known = ENGINES[engine].arguments() if engine_args else None
    for name, value in engine_args.items():
        if known is not None and name not in known:
            raise OppoError(
                f"{where}: the {engine} engine has no argument '{name}' here; {_instead(name, known)}"
            )
        if wrong := ENGINES[engine].check_argument(name, value):
            raise OppoError(f"{where}: {name} is {value!r} but must be {wrong}")


def _instead(name: str, known: frozenset[str]) -> str:
    if len(known) <= _LISTED:
        return f"it takes {', '.join(sorted(known))}"
    close = get_close_matches(name, known, n=1)
    return f"did you mean '{close[0]}'?" if close else "leave it out"


def gpu_number(device: str) -> int | None:
    """2 of ``cuda:2``, 0 of ``cuda``; None of another device."""
    kind, _, number = device.partition(":")
    return int(number or 0) if kind == "cuda" else None


def in_own_process(spec: Spec) -> Spec:
    """The engine of a process that has no other: one that takes the first GPUs it sees is shown its own,
    only, by CUDA_VISIBLE_DEVICES; nothing may have used CUDA here before.

    Raises OppoError where there are fewer."""
    first = gpu_number(spec.device)
    if first is None or not ENGINES[spec.engine].first_gpus:
        return spec
    count, named = parallel_size(spec), os.environ.get(VISIBLE)
    seen = None if named is None else [part for part in named.split(",") if part.strip()]
    if seen is not None and first + count > len(seen):
        raise OppoError(
            f"an engine on {count} GPU(s) from {spec.device} on needs more than {VISIBLE}={named} leaves:"
            " name other devices (real.devices), or show more of them"
        )
    numbers = range(first, first + count)
    os.environ[VISIBLE] = ",".join(str(number) if seen is None else seen[number] for number in numbers)
    return replace(spec, device="cuda")


def require_engine(engine: EngineKind) -> None:
    """Raise OppoError, naming the extra, if an engine's packages are not installed."""
    missing = [package for package in ENGINES[engine].packages if find_spec(package) is None]
    if missing:
        raise OppoError(
            f"engine {engine} needs {', '.join(missing)}, which is not installed: pip install"
            f" 'oppo-toolkit[{engine}]'"
        )


def require_ray() -> None:
    """Raise OppoError, naming the extra, if Ray is not installed."""
    if find_spec("ray") is None:
        raise OppoError(
            "real.placement.kind ray needs ray, which is not installed: pip install 'oppo-toolkit[ray]'"
        )


def build_actor(spec: ActorSpec) -> Actor:
    """Build a replica's engine. Raises OppoError if its packages are missing or the model does not fit."""
    require_engine(spec.engine)
    keep_memory(spec.device)
    return ENGINES[spec.engine].build_actor(spec)


def build_scorer(spec: ScorerSpec) -> Scorer:
    """Build a scoring worker's engine. Raises OppoError if its packages are missing or the model does not
    fit."""
    require_engine(spec.engine)
    keep_memory(spec.device)
    return ENGINES[spec.engine].build_scorer(spec)


def _torch_actor(spec: ActorSpec) -> Actor:
    from oppo_real.engines.models import build_causal_lm
    from oppo_real.engines.torch_actor import ActorLimits, TorchActor

    limits = ActorLimits(
        spec.kv_capacity_tokens,
        spec.kv_block_tokens,
        spec.max_num_seqs,
        keep_kv_on_tool_call=spec.keep_kv_on_tool_call,
        **spec.engine_args,
    )
    return TorchActor(build_causal_lm(spec.model, spec.seed, spec.dtype, spec.device), spec.sampling, limits)


def _torch_scorer(spec: ScorerSpec) -> Scorer:
    from oppo_real.engines.models import build_causal_lm, build_reward_model
    from oppo_real.engines.torch_scorer import TorchScorer

    reference = None
    if spec.reference is not None:
        reference = build_causal_lm(spec.reference, spec.reference_seed, spec.dtype, spec.device)
    return TorchScorer(
        build_reward_model(spec.model, spec.seed, spec.dtype, spec.device),
        kv_block_tokens=spec.kv_block_tokens,
        reference_model=reference,
        reference_temperature=spec.temperature or 1.0,
        **spec.engine_args,
    )


def _positive_whole(_name: str, value: Any) -> str | None:
    fits = value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1)
    return None if fits else "a whole number of at least 1, or null"


def _vllm_arguments() -> frozenset[str] | None:
    from oppo_real.engines.vllm_arguments import installed_arguments

    return installed_arguments()


def _vllm_actor(spec: ActorSpec) -> Actor:
    from oppo_real.engines.vllm_actor import VllmActor
    from oppo_real.engines.vllm_probe import require_device

    require_device(spec.device)
    sizes: dict[str, Any] = {} if spec.max_num_seqs is None else {"max_num_seqs": spec.max_num_seqs}
    return VllmActor(
        spec.model,
        spec.sampling,
        lock_step=spec.lock_step,
        dtype=spec.dtype,
        max_model_len=spec.max_model_len,
        kv_capacity_tokens=spec.kv_capacity_tokens,
        keep_kv_on_tool_call=spec.keep_kv_on_tool_call,
        share_prompts=spec.share_prompts,
        engine_args=spec.engine_args,
        **sizes,
    )


def _vllm_scorer(spec: ScorerSpec) -> Scorer:
    from oppo_real.engines.vllm_probe import require_device
    from oppo_real.engines.vllm_scorer import VllmScorer

    require_device(spec.device)
    if spec.reference is not None:
        raise OppoError(
            "training.stream_ref needs the torch scorer, which runs the reference model too: set real.scorer"
            " to torch"
        )
    return VllmScorer(
        spec.model, dtype=spec.dtype, max_model_len=spec.max_model_len, engine_args=spec.engine_args
    )


ENGINES: Final[Mapping[EngineKind, EngineFacts]] = {
    "torch": EngineFacts(
        ("torch", "transformers"),
        _torch_actor,
        _torch_scorer,
        arguments=lambda: frozenset({"max_batched_tokens"}),
        check_argument=_positive_whole,
        preload=(
            "oppo_real.engines.torch_actor",
            "oppo_real.engines.torch_scorer",
            "transformers.modeling_utils",
        ),
    ),
    "vllm": EngineFacts(
        ("vllm",),
        _vllm_actor,
        _vllm_scorer,
        reads_folders=True,
        # It has no attention for heads of 16 on a CPU.
        tiny_model={"num_attention_heads": 2, "num_key_value_heads": 2},
        parallel_args=("tensor_parallel_size", "pipeline_parallel_size"),
        arguments=_vllm_arguments,
        first_gpus=True,
        # It would look for the GPUs of a split engine in bundles of its own; they are in the actor's.
        args_inside_ray={"distributed_executor_backend": "mp"},
    ),
}
"""All engines. Another one: its file in ``engines/``, its name and facts here, its test."""
