"""What a user may say about a log that is imported."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from oppo_sim.columns import (
    FINISH_REASON,
    PROMPT_ID,
    PROMPT_LENGTH,
    RESPONSE_LENGTH,
    REWARD,
    SAMPLE_ID,
    STEP,
    TURN_COLUMNS,
)
from oppo_sim.errors import OppoError
from oppo_sim.traces.config import LONGEST_WAIT_S, MAX_LENGTH

ROLLOUT_FIELDS: Final = (
    RESPONSE_LENGTH,
    PROMPT_LENGTH,
    "response",
    "prompt",
    STEP,
    PROMPT_ID,
    SAMPLE_ID,
    FINISH_REASON,
    REWARD,
    *TURN_COLUMNS,
)
"""What a field of a rollout record can stand for; ``response`` and ``prompt`` are text or token ids."""

METRIC_FIELDS: Final = ("mean", "max", "min", "median", "std", "clip_ratio", "prompt_mean", "reward_mean")
"""What a metric of a per-step log can stand for; tokens, a share (``clip_ratio``), a reward."""

MOST_ROWS_PER_STEP: Final = 1_000_000


@dataclass(frozen=True)
class MetricNames:
    """What a framework calls its per-step figures, the preferred name first; empty where it has none."""

    mean: tuple[str, ...] = ()
    max: tuple[str, ...] = ()
    min: tuple[str, ...] = ()
    median: tuple[str, ...] = ()
    std: tuple[str, ...] = ()
    clip_ratio: tuple[str, ...] = ()
    prompt_mean: tuple[str, ...] = ()
    reward_mean: tuple[str, ...] = ()
    tokens_so_far: tuple[str, ...] = ()
    """Of all prompts and responses since the run began."""


@dataclass(frozen=True)
class ImportOptions:
    """How to read a log; ``None`` where nothing was said. Raises OppoError for what makes no sense."""

    tokenizer: str | Path | None = None
    """A ``tokenizer.json``, or a folder with one or with a tokenizer of the transformers library."""
    chars_per_token: float | None = None
    """Instead of a tokenizer: an estimate, and reported as one."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Field of the log by what it stands for (``ROLLOUT_FIELDS``, ``METRIC_FIELDS``)."""
    max_response_length: int | None = None
    """Responses of this many tokens were cut, shorter ones were not."""
    steps: tuple[int, int] | None = None
    """Keep these steps, both ends included."""
    name: str | None = None
    """``source`` of the rows; otherwise the framework's name."""
    rows_per_step: int | None = None
    """Rollouts in a step, for logs that hold only per-step figures."""
    like: str | None = None
    """Trace whose shape is taken where a log has a mean and nothing else."""
    tool_seconds: float | None = None
    """Of each wait for a tool, where a log has turns but not their seconds."""

    def __post_init__(self) -> None:
        if self.tokenizer is not None and self.chars_per_token is not None:
            raise OppoError(
                "tokenizer and chars_per_token contradict each other: give the tokenizer alone, which is"
                " exact"
            )
        chars, steps = self.chars_per_token, self.steps
        if chars is not None and not (math.isfinite(chars) and 0.1 <= chars <= 100):
            raise OppoError(
                f"chars_per_token is {chars:g} but must lie between 0.1 and 100: English text has about 4"
            )
        wait = self.tool_seconds
        if wait is not None and not 0 <= wait <= LONGEST_WAIT_S:
            raise OppoError(
                f"tool_seconds is {wait:g} but must lie between 0 and {LONGEST_WAIT_S:,.0f}: give the"
                " seconds of one wait"
            )
        _whole("max_response_length", self.max_response_length, MAX_LENGTH)
        _whole("rows_per_step", self.rows_per_step, MOST_ROWS_PER_STEP)
        if steps is not None and not 0 <= steps[0] <= steps[1]:
            raise OppoError(
                f"steps {steps[0]}:{steps[1]} is not a range: give the first and the last step, the first not"
                " above the last"
            )
        if self.name == "":
            raise OppoError("the source's name is empty: give a name, or leave it out")
        for target, given in self.fields.items():
            known = (*ROLLOUT_FIELDS, *METRIC_FIELDS)
            if target not in known:
                close = get_close_matches(target, known, n=1)
                raise OppoError(
                    f"field {target}={given}: there is no '{target}' in a trace,"
                    f" {f'did you mean {close[0]}?' if close else 'give one of'}"
                    f" {'' if close else ', '.join(known)}".rstrip()
                )
            if not given:
                raise OppoError(f"field {target}= names no field of the log: give its name after the sign")

    def record(self) -> dict[str, Any]:
        """Plain data, what was said only."""
        given = {name: value for name, value in asdict(self).items() if value not in (None, {})}
        if self.tokenizer is not None:
            given["tokenizer"] = Path(self.tokenizer).name
        return given


def _whole(name: str, value: int | None, most: int) -> None:
    if value is not None and not 1 <= value <= most:
        raise OppoError(f"{name} is {value} but must lie between 1 and {most:,}: correct it")
