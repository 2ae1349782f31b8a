"""What a user reads where vLLM does not start or run, for whatever reason."""

from __future__ import annotations

from subprocess import CalledProcessError
from types import SimpleNamespace
from typing import Any, cast

import pytest

from oppo_real.engines import vllm_engine
from oppo_real.engines.vllm_probe import VllmFeatures
from oppo_sim.errors import OppoError

FEATURES = cast(
    VllmFeatures, SimpleNamespace(engine_args=frozenset({"model"}), vllm_version="0.33.0", device_type="cuda")
)
NO_COMPILER = CalledProcessError(1, ["/usr/bin/gcc", "main.c", "-lcuda"])


def failing(error: Exception) -> Any:
    def fail(*_: Any) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (NO_COMPILER, "CalledProcessError: Command .*gcc.* install a C compiler and Python's headers"),
        (KeyError("qwen9"), "model folder 'm': KeyError: 'qwen9'$"),
        (ImportError("libcudart.so.13: cannot open"), r"ImportError: libcudart\.so\.13: cannot open"),
        (RuntimeError("No CUDA GPUs are available"), "model folder 'm': No CUDA GPUs are available$"),
    ],
)
def test_a_start_that_fails_is_one_sentence(
    error: Exception, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm = SimpleNamespace(
        LLMEngine=SimpleNamespace(from_engine_args=failing(error)), EngineArgs=SimpleNamespace
    )
    monkeypatch.setattr(vllm_engine, "require_vllm", lambda: vllm)
    with pytest.raises(OppoError, match=told):
        vllm_engine.start_engine({"model": "m"}, FEATURES)


def test_an_iteration_that_fails_is_one_sentence() -> None:
    with pytest.raises(
        OppoError, match=r"failed in an iteration \(CalledProcessError: .*install a C compiler"
    ):
        vllm_engine.step_engine(SimpleNamespace(step=failing(NO_COMPILER)), FEATURES)
