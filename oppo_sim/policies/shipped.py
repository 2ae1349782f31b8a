"""The shipped policies. Seven of them differ in their settings only (``Refill``)."""

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from oppo_sim.policies.controllers import ChunkControl, ChunkController, DeltaControl, DeltaController
from oppo_sim.policies.interface import (
    Arrangement,
    Batch,
    OraclePoolView,
    Policy,
    PoolView,
    Schedule,
    ScoreGranularity,
    StepPlan,
    StepReport,
    StopCheck,
)
from oppo_sim.policies.settings import (
    AprilSettings,
    AsyncSettings,
    InterSettings,
    OneStepOffSettings,
    OppoSettings,
    OracleSettings,
    PartialRolloutSettings,
    SequentialSettings,
    TailBatchingSettings,
    overcommit_rollouts,
)

RefillSettings = SequentialSettings | InterSettings | OppoSettings | PartialRolloutSettings | AprilSettings


class _Chunked(Policy):
    """What all shipped policies share: a scoring granularity, a stop check and a chunk size, fixed or
    controlled."""

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
        self._chunk = ChunkController(chunk_size) if isinstance(chunk_size, ChunkControl) else None
        self._fixed_chunk = chunk_size if isinstance(chunk_size, int) else 0

    @property
    def chunk_size(self) -> int:
        """Chunk size of the coming step, tokens."""
        return self._chunk.value if self._chunk else self._fixed_chunk

    @property
    def chunk_control(self) -> ChunkControl | None:
        """How the chunk size is controlled; None: it is fixed."""
        return self._chunk.control if self._chunk else None

    def observe(self, report: StepReport) -> None:
        if self._chunk:
            self._chunk.observe(report)

    def state_dict(self) -> dict[str, Any]:
        return {"chunk": self._chunk.state_dict() if self._chunk else {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self._chunk:
            self._chunk.load_state_dict(state["chunk"])


class Refill(_Chunked):
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

    def observe(self, report: StepReport) -> None:
        super().observe(report)
        if self._delta:
            self._delta.observe(report)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"delta": self._delta.state_dict() if self._delta else {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        if self._delta:
            self._delta.load_state_dict(state["delta"])


class TailBatching(_Chunked):
    """Short steps over-issue and drop; dropped prompts run again in long steps. Strictly on-policy."""

    def __init__(self, batch: Batch, settings: TailBatchingSettings) -> None:
        super().__init__(batch, settings.score_granularity, settings.stop_check, settings.chunk_size)
        self._short_step = batch.whole_groups(round(settings.over_issue * batch.rollout_batch_size, 9))
        self._long_queue: list[int] = []

    def plan(self, pool: PoolView) -> StepPlan:
        size = self.batch.rollout_batch_size
        if len(self._long_queue) >= size:
            readmit = tuple(self._long_queue[:size])
            del self._long_queue[:size]
            return StepPlan(admit=0, chunk_size=self.chunk_size, readmit=readmit)
        return StepPlan(
            admit=self._short_step, chunk_size=self.chunk_size, overcommit=self._short_step - size
        )

    def drop(self, pool: PoolView) -> Collection[int]:
        dropped = [view.rollout_id for view in (*pool.finished, *pool.unfinished)]
        self._long_queue = sorted((*self._long_queue, *dropped))
        return dropped

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"long_queue": list(self._long_queue)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._long_queue = list(state["long_queue"])


class OneStepOff(_Chunked):
    """The next batch is generated while this one trains."""

    schedule: ClassVar[Schedule] = "one-step-off"

    def __init__(self, batch: Batch, settings: OneStepOffSettings) -> None:
        super().__init__(batch, settings.score_granularity, "token", settings.chunk_size)

    def plan(self, pool: PoolView) -> StepPlan:
        return StepPlan(admit=self.batch.rollout_batch_size, chunk_size=self.chunk_size)


class Async(_Chunked):
    """Generation never waits for training, within a bound on admission."""

    schedule: ClassVar[Schedule] = "async"

    def __init__(self, batch: Batch, settings: AsyncSettings) -> None:
        super().__init__(batch, settings.score_granularity, "token", settings.chunk_size)
        self.max_staleness = settings.max_staleness

    def plan(self, pool: PoolView) -> StepPlan:
        bound = self.batch.rollout_batch_size * (pool.weight_version + self.max_staleness + 1)
        return StepPlan(admit=max(0, bound - pool.admitted), chunk_size=self.chunk_size)


class Oracle(_Chunked):
    """Sorts a window of batches by length and runs it shortest first (docs/model.md C18). A bound, never a
    recommendation."""

    oracle: ClassVar[bool] = True

    def __init__(self, batch: Batch, settings: OracleSettings) -> None:
        super().__init__(batch, settings.score_granularity, settings.stop_check, settings.chunk_size)
        self._window = settings.window

    @property
    def window(self) -> int:
        """Batches that it knows at once."""
        return self._window

    def plan(self, pool: PoolView) -> StepPlan:
        admit = 0 if pool.in_flight else self._window * self.batch.rollout_batch_size
        ahead = admit + pool.in_flight - self.batch.rollout_batch_size
        return StepPlan(admit=admit, chunk_size=self.chunk_size, overcommit=max(0, ahead))

    def arrange(self, pool: PoolView) -> Arrangement:
        assert isinstance(pool, OraclePoolView)
        lengths = pool.response_lengths
        groups: dict[int, list[int]] = {}
        for view in pool.unfinished:
            groups.setdefault(view.group_id, []).append(view.rollout_id)
        shortest_first = sorted(groups, key=lambda group: (max(lengths[i] for i in groups[group]), group))
        chosen = [i for group in shortest_first for i in groups[group]][: self.batch.rollout_batch_size]
        load = [0] * pool.num_replicas
        move = {}
        for rollout_id in sorted(chosen, key=lambda i: (-lengths[i], i)):
            replica = load.index(min(load))
            load[replica] += lengths[rollout_id]
            move[rollout_id] = replica
        running = set(chosen)
        return Arrangement(
            hold=frozenset(view.rollout_id for view in pool.unfinished if view.rollout_id not in running),
            move=move,
        )
