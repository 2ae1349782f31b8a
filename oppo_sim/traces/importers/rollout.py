"""One rollout as an importer finds it in a log."""

from typing import NamedTuple


class Rollout(NamedTuple):
    """Lengths in tokens; ``None`` is unknown."""

    line: int
    """Line or row of the file, from 1."""
    response_length: int
    prompt_length: int | None = None
    step: int | None = None
    prompt_id: str | None = None
    sample_id: str | None = None
    finish_reason: str | None = None
    """``stop``, ``length`` or ``abort``."""
    reward: float | None = None
    source: str | None = None
    """Part of the log, such as the model that answered; put behind the name of the whole."""
    head_version: int | None = None
    tail_version: int | None = None
    arrival_s: float | None = None
    reason_inferred: bool = False
    """The finish reason was concluded already, or cannot be, whatever the length: an estimate does not tell a
    cut response."""
