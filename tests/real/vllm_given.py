"""All that the engines give vLLM's own classes, in the forms that runs have: tests look for the names of each
version, experiments/vllm_configs.py has each version take them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.gpu.subjects import VLLM_UTILIZATION
from oppo_real.engines.interface import Answer, Request, Sampling
from oppo_real.engines.vllm_arguments import (
    Sizes,
    actor_arguments,
    sampling_arguments,
    scorer_arguments,
)
from oppo_real.placement.engines import ENGINES

SIZES = Sizes("bfloat16", 512, 8, 4096)


def engine_arguments(folder: Path, device_type: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Of ``EngineArgs``, each with what it is for: actors and scorers, alone and spread over devices, also inside
    a worker of Ray, with the budgets of the GPU experiment."""
    facts = ENGINES["vllm"]
    alone = {"gpu_memory_utilization": VLLM_UTILIZATION}
    spread = {**alone, "enforce_eager": True, **dict.fromkeys(facts.parallel_args, 2)}
    for name, own in (
        ("", alone),
        (" over 4", spread),
        (" over 4 in ray", {**spread, **facts.args_inside_ray}),
    ):
        for lock_step in (True, False):
            for samples in (True, False):
                pace = "lock-step" if lock_step else "free-running"
                yield (
                    f"{'sampling' if samples else 'greedy'} {pace} actor{name}",
                    actor_arguments(
                        folder, device_type, SIZES, lock_step=lock_step, samples=samples, caches=True, own=own
                    ),
                )
        yield f"scorer{name}", scorer_arguments(folder, device_type, Sizes(max_model_len=512), own)


def request_arguments() -> Iterator[dict[str, Any]]:
    """Of ``SamplingParams``, without the kind of output."""
    prompt = (1, 2)
    requests = (
        Request(0, prompt, 9),
        Request(1, prompt, 9, forced_length=4),
        Request(2, prompt, 9, answers=(Answer(1, (3,)),), generated=(5,), call_after=4),
    )
    for sampling in (Sampling(temperature=0.0), Sampling(temperature=0.7, top_p=0.9, stop_token_id=3)):
        for request in requests:
            yield sampling_arguments(request, sampling, len(request.generated))
