"""Prompts in the order in which the unmodified trainer would read them."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from oppo_sim.errors import OppoError


class PromptStream:
    """TRL's own data loader, again and again, as whole batches or prompt by prompt."""

    def __init__(self, loader: Iterable[Any], pad_token_id: int) -> None:
        self._batches = _forever(loader)
        self._pad = pad_token_id
        self._waiting: deque[tuple[int, ...]] = deque()

    def load(self) -> Any:
        """The next batch as the loader gives it; its prompts are drawn next."""
        batch = next(self._batches)
        # Padding tokens are left out: TRL's models never see them, wherever they stand.
        self._waiting.extend(
            tuple([token for token in row if token != self._pad]) for row in batch["input_ids"].tolist()
        )
        return batch

    def draw(self) -> tuple[int, ...]:
        """The next prompt, token ids."""
        if not self._waiting:
            self.load()
        return self._waiting.popleft()


def _forever(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        empty = True
        for batch in loader:
            empty = False
            yield batch
        if empty:
            raise OppoError(
                "the training dataset has fewer prompts than one batch needs: give more prompts, or lower the"
                " batch size"
            )
