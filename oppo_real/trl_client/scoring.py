"""Where pieces of rollouts are scored while others are still being decoded: in this process, or in one beside
it."""

import io
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Final, Protocol

import torch

from oppo_real.engines.interface import ScorePiece
from oppo_real.engines.torch_scorer import TorchScorer
from oppo_sim.errors import OppoError

MAX_SCORING_TOKENS: Final = 8192
"""Tokens of one scoring batch."""

_END_S = 10.0


class Scoring(Protocol):
    """A scorer that is fed without waiting for it."""

    tokens: int
    """Prefilled so far."""

    def send(self, pieces: Sequence[ScorePiece]) -> None:
        """Queue pieces."""

    def poll(self) -> dict[int, float]:
        """Scores that have come since the last call, by key."""

    def wait(self) -> dict[int, float]:
        """As ``poll``, but waits for at least one answer of the scorer."""

    def forget(self, keys: Sequence[int]) -> None:
        """Rollouts that will not be scored."""

    def close(self) -> None:
        """Free everything."""


class InlineScoring:
    """Scores a piece when it is sent, in the same process: nothing overlaps."""

    def __init__(self, model: torch.nn.Module) -> None:
        """``model``: a copy whose attention may be changed."""
        self._scorer = TorchScorer(model, max_batched_tokens=MAX_SCORING_TOKENS)
        self._scores: dict[int, float] = {}
        self.tokens = 0

    def send(self, pieces: Sequence[ScorePiece]) -> None:
        self._scores.update(self._scorer.append(pieces))
        self.tokens = self._scorer.counts().prefilled

    def poll(self) -> dict[int, float]:
        scores, self._scores = self._scores, {}
        return scores

    def wait(self) -> dict[int, float]:
        return self.poll()

    def forget(self, keys: Sequence[int]) -> None:
        self._scorer.release(keys)

    def close(self) -> None:
        self._scorer.close()


class ProcessScoring:
    """A scorer in a process of its own; on the CPU pinned to the last of the cores that this process may
    use."""

    def __init__(self, model: torch.nn.Module, device: torch.device) -> None:
        """Raises OppoError where the reward model cannot be brought into another process or cannot be scored
        in pieces."""
        self.tokens = 0
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
        self._connection: Connection[Any, Any] = Connection(ours.detach())
        self._closed = False
        try:
            self._connection.send((_pickled(model), str(device), MAX_SCORING_TOKENS, _spare_core(device)))
            self._take(self._receive())
        except OppoError:
            self.close()
            raise

    def send(self, pieces: Sequence[ScorePiece]) -> None:
        self._tell(("pieces", [(piece.rollout_id, piece.tokens, piece.last) for piece in pieces]))

    def poll(self) -> dict[int, float]:
        scores: dict[int, float] = {}
        while self._connection.poll():
            scores |= self._take(self._receive())
        return scores

    def wait(self) -> dict[int, float]:
        return self._take(self._receive()) | self.poll()

    def forget(self, keys: Sequence[int]) -> None:
        self._tell(("forget", list(keys)))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with suppress(OSError):  # it has ended already
            self._connection.send(("close",))
        self._connection.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _tell(self, message: tuple[Any, ...]) -> None:
        try:
            self._connection.send(message)
        except OSError as error:
            raise self._ended() from error

    def _receive(self) -> tuple[Any, ...]:
        try:
            message: tuple[Any, ...] = self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._ended() from error
        return message

    def _take(self, message: tuple[Any, ...]) -> dict[int, float]:
        if message[0] == "failed":
            raise OppoError(
                f"the scoring process cannot score with this reward model ({message[1]}); set"
                " scoring='inline' or another policy"
            )
        if message[0] == "ready":
            return {}
        _, scores, tokens, _ = message
        self.tokens += tokens
        found: dict[int, float] = scores
        return found

    def _ended(self) -> OppoError:
        code = self._process.poll()
        return OppoError(
            f"the scoring process has ended (exit status {code}): see its output above, or set"
            " scoring='inline'"
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
