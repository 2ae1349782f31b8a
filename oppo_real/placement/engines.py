"""Engines from plain descriptions, which can be sent to another process and be built there."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from math import prod
from typing import Any, Literal

from oppo_real.engines.interface import Actor, Sampling, Scorer
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


def parallel_size(spec: ActorSpec | ScorerSpec) -> int:
    """Devices that one engine is spread over: vLLM's tensor and pipeline parallelism, else 1."""
    given = (spec.engine_args.get(name) for name in ("tensor_parallel_size", "pipeline_parallel_size"))
    return prod(size for size in given if isinstance(size, int)) if spec.engine == "vllm" else 1


def require_engine(engine: EngineKind) -> None:
    """Raise OppoError, naming the extra, if an engine's packages are not installed."""
    needed = {"torch": ("torch", "transformers"), "vllm": ("vllm",)}[engine]
    missing = [package for package in needed if find_spec(package) is None]
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
    if spec.engine == "vllm":
        from oppo_real.engines.vllm_actor import VllmActor

        sizes: dict[str, Any] = {} if spec.max_num_seqs is None else {"max_num_seqs": spec.max_num_seqs}
        return VllmActor(
            spec.model,
            spec.sampling,
            lock_step=spec.lock_step,
            dtype=spec.dtype,
            max_model_len=spec.max_model_len,
            kv_capacity_tokens=spec.kv_capacity_tokens,
            engine_args=spec.engine_args,
            **sizes,
        )
    from oppo_real.engines.models import build_causal_lm
    from oppo_real.engines.torch_actor import ActorLimits, TorchActor

    limits = ActorLimits(spec.kv_capacity_tokens, spec.kv_block_tokens, spec.max_num_seqs, **spec.engine_args)
    return TorchActor(build_causal_lm(spec.model, spec.seed, spec.dtype, spec.device), spec.sampling, limits)


def build_scorer(spec: ScorerSpec) -> Scorer:
    """Build a scoring worker's engine. Raises OppoError if its packages are missing or the model does not
    fit."""
    require_engine(spec.engine)
    if spec.engine == "vllm":
        from oppo_real.engines.vllm_scorer import VllmScorer

        if spec.reference is not None:
            raise OppoError(
                "training.stream_ref needs the torch scorer, which runs the reference model too: set"
                " real.scorer to torch"
            )
        return VllmScorer(
            spec.model, dtype=spec.dtype, max_model_len=spec.max_model_len, engine_args=spec.engine_args
        )
    from oppo_real.engines.models import build_causal_lm, build_reward_model
    from oppo_real.engines.torch_scorer import TorchScorer

    reference = (
        None
        if spec.reference is None
        else build_causal_lm(spec.reference, spec.reference_seed, spec.dtype, spec.device)
    )
    model = build_reward_model(spec.model, spec.seed, spec.dtype, spec.device)
    return TorchScorer(
        model,
        kv_block_tokens=spec.kv_block_tokens,
        reference_model=reference,
        reference_temperature=spec.temperature or 1.0,
        **spec.engine_args,
    )
