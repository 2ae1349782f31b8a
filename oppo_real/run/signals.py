"""What a schedule waits for in a real run."""

import threading
from collections.abc import Callable
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
        self._thread = threading.Thread(target=self._run, name="training", daemon=True)
        self._thread.start()

    def _run(self) -> None:
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
