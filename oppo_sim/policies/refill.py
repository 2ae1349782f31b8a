"""What shipped policies share: ``ShippedPolicy``, and ``Refill``, whose policies differ in their settings
only."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from oppo_sim.errors import OppoError
from oppo_sim.policies.chunk_control import ChunkControl
from oppo_sim.policies.delta_control import DeltaControl, DeltaController
from oppo_sim.policies.interface import (
    Batch,
    Policy,
    PoolView,
    ScoreGranularity,
    StepPace,
    StepPlan,
    StepReport,
    StopCheck,
)
from oppo_sim.policies.knobs import Knob
from oppo_sim.policies.settings import Overcommit, PolicySettings

NO_OVERCOMMIT: Mapping[str, Any] = {"overcommit": 0}
SMALLEST_CHUNK = 32
"""Tokens; below it every piece costs more than it hides under any cost model that is shipped."""
DEFERRALS: tuple[Any, ...] = (None, 1, 2, 3, 4, 5, 6, 8)


class ShippedPolicy(Policy):
    """A scoring granularity, a stop check and a chunk size, fixed or controlled."""

    Settings: ClassVar[type[PolicySettings]]

    def __init__(
        self,
        batch: Batch,
        score_granularity: ScoreGranularity,
        stop_check: StopCheck,
        chunk_size: int | ChunkControl,
    ) -> None:
        super().__init__(batch)
        self.score_granularity = score_granularity
        self.stop_check = stop_check
        self._chunk = chunk_size.controller() if isinstance(chunk_size, ChunkControl) else None
        self._fixed_chunk = chunk_size if isinstance(chunk_size, int) else 0

    @property
    def chunk_size(self) -> int:
        """Chunk size of the coming step, tokens."""
        return self._chunk.value if self._chunk else self._fixed_chunk

    @property
    def chunk_control(self) -> ChunkControl | None:
        """How the chunk size is controlled; None: it is fixed."""
        return self._chunk.control if self._chunk else None

    def knobs(self, max_response_length: int) -> Sequence[Knob]:
        """The chunk size where it does something: pieces are streamed, or steps end in rounds."""
        used = self.stop_check == "chunk" or self.score_granularity == "chunk"
        return (chunk_knob("chunk_size", max_response_length),) if used else ()

    def observe(self, report: StepReport) -> None:
        self.observe_pace(report)

    def observe_pace(self, pace: StepPace) -> None:
        """What ``observe`` does: controllers of knobs take the step."""
        if self._chunk:
            self._chunk.observe(pace)

    def state_dict(self) -> dict[str, Any]:
        return {"chunk": self._chunk.state_dict() if self._chunk else {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self._chunk:
            self._chunk.load_state_dict(state["chunk"])


class RefillSettings(Protocol):
    """What the settings of a ``Refill`` have, as fields or fixed."""

    @property
    def score_granularity(self) -> ScoreGranularity: ...
    @property
    def stop_check(self) -> StopCheck: ...
    @property
    def chunk_size(self) -> int | ChunkControl: ...
    @property
    def overcommit(self) -> Overcommit | DeltaControl: ...
    @property
    def max_deferrals(self) -> int | None: ...


class Refill(ShippedPolicy):
    """Admit until B + Δ, end at B finished, carry the rest. Δ and chunk size are fixed or controlled."""

    def __init__(self, batch: Batch, settings: RefillSettings) -> None:
        super().__init__(batch, settings.score_granularity, settings.stop_check, settings.chunk_size)
        self.max_deferrals = settings.max_deferrals
        control = settings.overcommit if isinstance(settings.overcommit, DeltaControl) else None
        self._delta = DeltaController(control, batch) if control else None
        self._fixed_delta = (
            0
            if isinstance(settings.overcommit, DeltaControl)
            else overcommit_rollouts(settings.overcommit, batch)
        )

    @property
    def overcommit(self) -> int:
        """Δ of the coming step, rollouts."""
        return self._delta.value if self._delta else self._fixed_delta

    @property
    def delta(self) -> DeltaController | None:
        """What controls Δ; None: it is fixed."""
        return self._delta

    def plan(self, pool: PoolView) -> StepPlan:
        return self.refill(pool, overcommit=self.overcommit, chunk_size=self.chunk_size)

    def knobs(self, max_response_length: int) -> Sequence[Knob]:
        """The chunk size where it does something; with carrying also Δ from 0 to B, and ``max_deferrals``."""
        batch = self.batch
        carried = (
            Knob("overcommit", "int", 0, batch.rollout_batch_size, step=batch.group_size),
            Knob("max_deferrals", "choice", choices=DEFERRALS),
        )
        return (*super().knobs(max_response_length), *(carried if self.carries else ()))

    def observe_pace(self, pace: StepPace) -> None:
        super().observe_pace(pace)
        if self._delta:
            self._delta.observe(pace)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"delta": self._delta.state_dict() if self._delta else {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        if self._delta:
            self._delta.load_state_dict(state["delta"])


def chunk_knob(name: str, max_response_length: int) -> Knob:
    """A number of tokens up to the longest response."""
    shortest = min(SMALLEST_CHUNK, max(1, max_response_length // 4))
    return Knob(name, "int", shortest, max_response_length, log=True)


def overcommit_rollouts(overcommit: Overcommit, batch: Batch) -> int:
    """Δ in rollouts: a float is a share of B, rounded up to whole groups (docs/model.md C17).

    Raises OppoError for rollouts that make up no whole groups.
    """
    if isinstance(overcommit, float):
        return batch.whole_groups(round(overcommit * batch.rollout_batch_size, 9))
    if overcommit % batch.group_size:
        raise OppoError(
            f"overcommit {overcommit} is not a multiple of group_size {batch.group_size}: make it one, or"
            " give a share of B such as 0.1"
        )
    return overcommit
