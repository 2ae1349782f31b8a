"""What a process has built and may need again."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """The ``most`` values that were used last, by key: memory stays flat."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable, build: Callable[[], T]) -> T:
        """The value under ``key``, built if it is not there."""
        if key in self._values:
            self._values.move_to_end(key)
            return self._values[key]
        value = self._values[key] = build()
        while len(self._values) > self._most:
            self._values.popitem(last=False)
        return value

    def clear(self) -> None:
        """Forget all."""
        self._values.clear()
