"""A worker as a Ray actor: the loop of ``worker`` runs in one of its threads, mail comes and goes in
others."""

import os
import threading
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from oppo_real.placement.shared_weights import Layout

if TYPE_CHECKING:
    import torch

THREADS = 4
"""Calls that an actor must be able to serve at once: ``run``, a ``collect`` that waits, and two short
ones."""


class Mail:
    """A ``Channel`` between the threads of an actor."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inbox: deque[Any] = deque()
        self._outbox: list[Any] = []
        self._early: dict[int, Any] = {}
        self._next = 0

    def poll(self, timeout: float, /) -> bool:
        return bool(self._inbox)

    def recv(self) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: self._inbox)
            return self._inbox.popleft()

    def send(self, message: Any, /) -> None:
        with self._changed:
            self._outbox.append(message)
            self._changed.notify_all()

    def deliver(self, number: int, message: Any) -> None:
        """A message from the driver, its ``number``-th. Ray keeps no order among the calls of an actor with
        threads."""
        with self._changed:
            self._early[number] = message
            while self._next in self._early:
                self._inbox.append(self._early.pop(self._next))
                self._next += 1
            self._changed.notify_all()

    def collect(self) -> list[Any]:
        """All messages for the driver, waiting for one."""
        with self._changed:
            self._changed.wait_for(lambda: self._outbox)
            made, self._outbox = self._outbox, []
            return made


class RayWorker:
    """The actor."""

    def __init__(self) -> None:
        self._mail = Mail()

    def run(self, serve: Callable[..., None], *arguments: Any) -> None:
        """``serve_replica`` or ``serve_scorer``, until the driver says close."""
        serve(self._mail, *arguments)

    def post(self, number: int, message: Any) -> None:
        """The driver's ``number``-th message."""
        self._mail.deliver(number, message)

    def collect(self) -> list[Any]:
        """All messages for the driver, waiting for one."""
        return self._mail.collect()

    def where(self) -> dict[str, Any]:
        """The machine and the process."""
        import ray

        context = ray.get_runtime_context()
        return {
            "node": context.get_node_id(),
            "address": ray.util.get_node_ip_address(),  # type: ignore[no-untyped-call]
            "process": os.getpid(),
        }

    def clock(self) -> float:
        """This machine's time.monotonic, seconds."""
        return monotonic()


@dataclass(frozen=True)
class StoredWeights:
    """Reads weights that the driver put into Ray's object store."""

    layout: Layout

    def __call__(self, published: Any) -> "dict[str, torch.Tensor]":
        """The tensors, by name, in the store's own read-only memory."""
        import ray
        import torch

        block = ray.get(published)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return self.layout.views(torch.from_numpy(block))
