"""Spans: what a timeline is made of, whether simulated or measured."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """One activity on one track."""

    group: str
    """Device group: ``rollout``, ``scoring`` or ``training``."""
    index: int
    """Replica or worker number within the group."""
    stage: str
    """``decode``, ``prefill``, ``score``, a training stage (``update_actor`` …), ``update_weights``."""
    start_s: float
    end_s: float
    step: int
    """Training step during which it started."""
    args: dict[str, float | int | str]
    """Details for the viewer, e.g. {"n": 16, "iterations": 40, "kv_tokens": 12345}."""


@dataclass(frozen=True, slots=True)
class Marker:
    """A moment: ``gen_end``, ``step_end``, ``chunk`` (a piece handed to the scorer)."""

    name: str
    group: str
    index: int
    at_s: float
    step: int
