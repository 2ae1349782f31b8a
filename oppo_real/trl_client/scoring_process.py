"""A scoring worker in a process of its own that needs nothing of the caller's script (which
``multiprocessing`` would import again)."""

import io
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from oppo_real.placement.connected import PATIENCE_S, WORKER_TIMEOUT_S, PipeLink, limit_waiting
from oppo_sim.errors import OppoError


class ScoringProcess(PipeLink):
    """Both a ``Transport`` without replicas and the ``Link`` to its one worker; on the CPU that is pinned to
    the last of the cores that this process may use."""

    name = "the scoring process (scoring='inline' does without)"
    replicas: Sequence["ScoringProcess"] = ()
    timeout_s = WORKER_TIMEOUT_S

    def __init__(
        self, model: torch.nn.Module, device: torch.device, pad_token_id: int, max_scoring_tokens: int
    ) -> None:
        """Raises OppoError where the reward model cannot be brought into another process."""
        self.workers = (self,)
        sent = _pickled(model)
        ours, theirs = socket.socketpair()
        try:
            os.set_inheritable(theirs.fileno(), True)
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
            self._process = subprocess.Popen(
                [sys.executable, "-m", "oppo_real.trl_client.scoring_worker", str(theirs.fileno())],
                env=environment,
                pass_fds=(theirs.fileno(),),
            )
        finally:
            theirs.close()
        self.connection = Connection(ours.detach())
        limit_waiting(self.connection, self.timeout_s)
        self.send(sent, str(device), pad_token_id, max_scoring_tokens, _spare_core(device))

    def ready(self, timeout: float | None) -> Sequence["ScoringProcess"]:
        return self.workers if wait([self.connection], timeout) else ()

    def wake(self) -> None:
        raise AssertionError("nobody trains in a thread beside a trainer of TRL's")

    def publish(self, weights: Mapping[str, torch.Tensor]) -> Any:
        raise AssertionError("a scoring worker takes no weights")

    def close(self) -> None:
        if self.connection.closed:
            return
        with suppress(OSError):  # it has ended already
            self.connection.send(("close",))
        self.connection.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def ended(self) -> OppoError:
        return OppoError(
            f"the scoring process has ended (exit status {self._process.poll()}): see its output above, or"
            " set scoring='inline'"
        )

    def hung(self) -> OppoError:
        self._process.kill()
        return OppoError(
            f"the scoring process had something to score, said nothing for {self.timeout_s:g} s and was"
            " ended: see its output above, or set scoring='inline'"
        )


def usable_cores() -> list[int]:
    """Ids of the cores that this process may use; empty where the system does not say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def _spare_core(device: torch.device) -> int | None:
    cores = usable_cores()
    return cores[-1] if device.type == "cpu" and len(cores) > 1 else None


def _pickled(model: torch.nn.Module) -> bytes:
    buffer = io.BytesIO()
    try:
        torch.save(model, buffer)
    except Exception as error:  # pickling a model of the user's can fail in any way
        raise OppoError(
            f"{type(model).__name__} cannot be sent to a scoring process ({error}); set scoring='inline'"
        ) from error
    return buffer.getvalue()
