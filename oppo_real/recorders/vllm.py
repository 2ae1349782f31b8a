"""A vLLM server's requests, recorded: tokens in and out, when each came and finished, and why.

Installed beside vLLM, the server (and every ``AsyncLLM``) finds this by itself, by the entry point
``vllm.stat_logger_plugins``; it records nothing until OPPO_RECORD_REQUESTS names a folder. A server does not
know of training steps: OPPO_RECORD_ROLLOUTS_PER_STEP deals requests out in the order in which they finished.
"""

import math
import os
import time
from typing import Any, Final

from vllm.v1.metrics.loggers import StatLoggerBase

from oppo_real.recorders.environment import REQUESTS, known, recorder_of_process, unharmed
from oppo_sim.errors import OppoError
from oppo_sim.traces.recorder import Recorder

_REASONS: Final = {"stop": "stop", "length": "length", "abort": "abort", "repetition": "stop"}


class RequestRecorder(StatLoggerBase):  # type: ignore[misc]
    """Told by the engine what finished in each iteration."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self._recorder: Recorder | None = None
        if os.environ.get(REQUESTS):
            self._recorder = recorder_of_process("vllm", REQUESTS)

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        """Write down the requests that finished."""
        if self._recorder is None or iteration_stats is None:
            return
        now = time.time()
        for request in iteration_stats.finished_requests:
            with unharmed("vllm", "a request"):
                _tell(self._recorder, request, now)

    def log_engine_initialized(self) -> None:
        """Nothing is to be said of it."""


def _tell(recorder: Recorder, request: Any, now: float) -> None:
    if not request.num_generation_tokens:
        return
    recorder.rollout_finished(
        request.num_generation_tokens,
        prompt_length=request.num_prompt_tokens,
        finish_reason=_REASONS.get(str(request.finish_reason)),
        started_at=known("vllm", "when a request came", lambda: now - _seconds(request.e2e_latency)),
        finished_at=now,
    )


def _seconds(latency: Any) -> float:
    """Raises OppoError for what no request takes, as after a step of the clock."""
    if not 0 <= float(latency) < math.inf:
        raise OppoError(f"it took {latency} s")
    return float(latency)
