"""What a schedule waits for in a real run."""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any


class Signal:
    """Happens when ``succeed`` is called."""

    patience: float | None = None
    """How long events are awaited at a stretch, seconds; None: until one comes."""

    def __init__(self) -> None:
        self._happened = False
        self._value: Any = None

    def succeed(self, value: Any = None) -> None:
        """It has happened."""
        self._happened, self._value = True, value

    @property
    def happened(self) -> bool:
        """``succeed`` was called."""
        return self._happened

    @property
    def value(self) -> Any:
        """What it came with."""
        return self._value


class CallerSignal(Signal):
    """Only the caller of the run can give it."""


def happened() -> CallerSignal:
    """A pause: the caller goes on when he likes."""
    signal = CallerSignal()
    signal.succeed()
    return signal


class Background(Signal):
    """Happens when a thread has done its work. ``value`` is what that returned, or raises what it raised."""

    patience = 1.0

    def __init__(self, action: Callable[[], Any], wake: Callable[[], None]) -> None:
        """``wake``: called at the end, by the thread."""
        super().__init__()
        self._action = action
        self._wake = wake
        self._failed: BaseException | None = None

    def run(self) -> None:
        """Do it."""
        try:
            self.succeed(self._action())
        except BaseException as error:
            self._failed = error
            self.succeed()
        finally:
            self._wake()

    @property
    def value(self) -> Any:
        if self._failed is not None:
            raise self._failed
        return self._value


class TrainingThread:
    """Does one thing after the other. It has all updates of a run: malloc keeps what was freed for the thread
    that freed it, and a new thread would fault it in anew."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[Background | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def do(self, action: Callable[[], Any], wake: Callable[[], None] = lambda: None) -> Background:
        """When what was asked for before is done; then ``wake`` is called, by the thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="training", daemon=True)
            self._thread.start()
        work = Background(action, wake)
        self._asked.put(work)
        return work

    def do_now(self, action: Callable[[], Any]) -> Any:
        """What ``action`` returns; waits for it, and raises what it raises."""
        ended = threading.Event()
        work = self.do(action, ended.set)
        ended.wait()
        return work.value

    def close(self) -> None:
        """Nothing more will be asked; does not wait for what was."""
        self._asked.put(None)

    def _run(self) -> None:
        while (work := self._asked.get()) is not None:
            work.run()
            del work  # and the batch with it
