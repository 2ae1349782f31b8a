"""Where prompts come from: random tokens with the lengths of a trace, or the arithmetic task."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from oppo_real.task.arithmetic import draw_problem
from oppo_sim.draws import draw_index, stream_key
from oppo_sim.model.run import RowCursor, Rows
from oppo_sim.turns import ToolWait


class Drawn(NamedTuple):
    """A prompt, and what is known of its response beforehand."""

    prompt: tuple[int, ...]
    forced_length: int | None
    clipped: bool
    trace_row: int
    waits: tuple[ToolWait, ...] = ()
    answers: tuple[tuple[int, ...], ...] = ()
    """Of the tools, token ids."""


class Source(Protocol):
    """Gives each admission its prompt, in order of ids."""

    def draw(self, rollout_id: int, step: int) -> Drawn:
        """For the rollout first admitted in ``step``. A pure function of the order of calls, so that a
        resumed run can repeat them."""

    def mean_response_length(self, step: int) -> float:
        """Mean of the rows that rollouts first admitted in ``step`` are drawn from; NaN where there are
        none."""


class ReplaySource:
    """Random prompts with the lengths of a trace; responses are forced to its lengths. Tools answer after the
    seconds of the trace, with random tokens, as many as it says."""

    def __init__(
        self,
        rows: Rows,
        cursor: RowCursor,
        *,
        vocab_size: int,
        seed: int,
        group_size: int,
        waits: Sequence[tuple[ToolWait, ...]] | None,
    ) -> None:
        """``waits``: for tools, one entry a row; None: no rollout waits."""
        self._rows = rows
        self._cursor = cursor
        self._vocab = vocab_size
        self._seed = seed
        self._group_size = group_size
        self._waits = waits
        self._prompt_length = 0
        """Of the group drawn last, its first member's."""

    def draw(self, rollout_id: int, step: int) -> Drawn:
        row = self._cursor.draw(rollout_id, step)
        length = max(1, self._rows.prompt_lengths[row])  # an engine needs a token to begin with
        group, member = divmod(rollout_id, self._group_size)
        if not member:
            self._prompt_length = length
        # A sample whose prompt is of another length has another prompt (docs/model.md, C23).
        other = "" if length == self._prompt_length else f":{length}"
        prompt = self._tokens(f"prompt:{group}{other}", length)
        waits = () if self._waits is None else self._waits[row]
        answers = [self._tokens(f"tool:{rollout_id}:{turn}", wait.tokens) for turn, wait in enumerate(waits)]
        response = self._rows.response_lengths[row]
        return Drawn(prompt, response, self._rows.clipped[row], row, waits, tuple(answers))

    def _tokens(self, purpose: str, count: int) -> tuple[int, ...]:
        key = stream_key(self._seed, purpose)
        return tuple([draw_index(key, position, self._vocab) for position in range(count)])

    def mean_response_length(self, step: int) -> float:
        return self._rows.mean_response_length(step)


class PromptSource:
    """Prompts that a function gives, one a group."""

    def __init__(self, prompts: Callable[[int], Sequence[int]], group_size: int) -> None:
        self._prompts = prompts
        self._group_size = group_size

    def draw(self, rollout_id: int, step: int) -> Drawn:
        return Drawn(tuple(self._prompts(rollout_id // self._group_size)), None, False, rollout_id)

    def mean_response_length(self, step: int) -> float:
        return float("nan")


class TaskSource(PromptSource):
    """Prompts of the arithmetic task, one problem a group; the actor decides how long its answers are."""

    def __init__(self, *, seed: int, group_size: int) -> None:
        super().__init__(lambda number: draw_problem(seed, number).prompt(), group_size)
