"""The shipped policies. Seven of them differ in their settings only (``Refill``)."""

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from oppo_sim.policies.controllers import ChunkControl, ChunkController, DeltaControl, DeltaController
from oppo_sim.policies.interface import Arrangement, Batch, OraclePoolView, Policy, PoolView, Schedule, StepPlan, StepReport
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


class _ChunkKnob:
    """A chunk size, fixed or controlled."""

    def __init__(self, chunk_size: int | ChunkControl) -> None:
        self.controller = ChunkController(chunk_size) if isinstance(chunk_size, ChunkControl) else None
        self._fixed = chunk_size if isinstance(chunk_size, int) else 0

    @property
    def value(self) -> int:
        return self.controller.value if self.controller else self._fixed

    def observe(self, report: StepReport) -> None:
        if self.controller:
            self.controller.observe(report)

    def state_dict(self) -> dict[str, Any]:
        return self.controller.state_dict() if self.controller else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.controller:
            self.controller.load_state_dict(state)


class Refill(Policy):
    """Admit until B + Δ, end at B finished, carry the rest. Δ and chunk size are fixed or controlled."""

    def __init__(self, batch: Batch, settings: RefillSettings) -> None:
        super().__init__(batch)
        self.score_granularity = settings.score_granularity
        self.stop_check = settings.stop_check
        self.max_deferrals = settings.max_deferrals
        self._chunk = _ChunkKnob(settings.chunk_size)
        control = settings.overcommit if isinstance(settings.overcommit, DeltaControl) else None
        self._delta = DeltaController(control, batch) if control else None
        self._fixed_delta = 0 if isinstance(settings.overcommit, DeltaControl) else overcommit_rollouts(settings.overcommit, batch)

    def plan(self, pool: PoolView) -> StepPlan:
        delta = self._delta.value if self._delta else self._fixed_delta
        return self.refill(pool, overcommit=delta, chunk_size=self._chunk.value)

    def observe(self, report: StepReport) -> None:
        self._chunk.observe(report)
        if self._delta:
            self._delta.observe(report)

    def state_dict(self) -> dict[str, Any]:
        return {"chunk": self._chunk.state_dict(), "delta": self._delta.state_dict() if self._delta else {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._chunk.load_state_dict(state["chunk"])
        if self._delta:
            self._delta.load_state_dict(state["delta"])


class TailBatching(Policy):
    """Short steps over-issue and drop; dropped prompts run again in long steps. Strictly on-policy."""

    def __init__(self, batch: Batch, settings: TailBatchingSettings) -> None:
        super().__init__(batch)
        self.score_granularity = settings.score_granularity
        self.stop_check = settings.stop_check
        self._chunk = _ChunkKnob(settings.chunk_size)
        self._short_step = batch.whole_groups(round(settings.over_issue * batch.rollout_batch_size, 9))
        self._long_queue: list[int] = []

    def plan(self, pool: PoolView) -> StepPlan:
        size = self.batch.rollout_batch_size
        if len(self._long_queue) >= size:
            readmit = tuple(self._long_queue[:size])
            del self._long_queue[:size]
            return StepPlan(admit=0, chunk_size=self._chunk.value, readmit=readmit)
        return StepPlan(admit=self._short_step, chunk_size=self._chunk.value, overcommit=self._short_step - size)

    def drop(self, pool: PoolView) -> Collection[int]:
        dropped = [view.rollout_id for view in (*pool.finished, *pool.unfinished)]
        self._long_queue = sorted((*self._long_queue, *dropped))
        return dropped

    def observe(self, report: StepReport) -> None:
        self._chunk.observe(report)

    def state_dict(self) -> dict[str, Any]:
        return {"chunk": self._chunk.state_dict(), "long_queue": list(self._long_queue)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._chunk.load_state_dict(state["chunk"])
        self._long_queue = list(state["long_queue"])


class OneStepOff(Policy):
    """The next batch is generated while this one trains."""

    schedule: ClassVar[Schedule] = "one-step-off"

    def __init__(self, batch: Batch, settings: OneStepOffSettings) -> None:
        super().__init__(batch)
        self.score_granularity = settings.score_granularity
        self._chunk = _ChunkKnob(settings.chunk_size)

    def plan(self, pool: PoolView) -> StepPlan:
        return StepPlan(admit=self.batch.rollout_batch_size, chunk_size=self._chunk.value)

    def observe(self, report: StepReport) -> None:
        self._chunk.observe(report)

    def state_dict(self) -> dict[str, Any]:
        return {"chunk": self._chunk.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._chunk.load_state_dict(state["chunk"])


class Async(Policy):
    """Generation never waits for training, within a bound on admission."""

    schedule: ClassVar[Schedule] = "async"

    def __init__(self, batch: Batch, settings: AsyncSettings) -> None:
        super().__init__(batch)
        self.score_granularity = settings.score_granularity
        self._chunk = _ChunkKnob(settings.chunk_size)
        self.max_staleness = settings.max_staleness

    def plan(self, pool: PoolView) -> StepPlan:
        bound = self.batch.rollout_batch_size * (pool.weight_version + self.max_staleness + 1)
        return StepPlan(admit=max(0, bound - pool.admitted), chunk_size=self._chunk.value)

    def observe(self, report: StepReport) -> None:
        self._chunk.observe(report)

    def state_dict(self) -> dict[str, Any]:
        return {"chunk": self._chunk.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._chunk.load_state_dict(state["chunk"])


class Oracle(Policy):
    """Sorts a window of batches by length and runs it shortest first (docs/model.md C18). A bound, never a recommendation."""

    oracle: ClassVar[bool] = True

    def __init__(self, batch: Batch, settings: OracleSettings) -> None:
        super().__init__(batch)
        self.score_granularity = settings.score_granularity
        self.stop_check = settings.stop_check
        self._chunk = _ChunkKnob(settings.chunk_size)
        self._window = settings.window

    def plan(self, pool: PoolView) -> StepPlan:
        admit = 0 if pool.in_flight else self._window * self.batch.rollout_batch_size
        ahead = admit + pool.in_flight - self.batch.rollout_batch_size
        return StepPlan(admit=admit, chunk_size=self._chunk.value, overcommit=max(0, ahead))

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
        return Arrangement(hold=frozenset(view.rollout_id for view in pool.unfinished if view.rollout_id not in running), move=move)

    def observe(self, report: StepReport) -> None:
        self._chunk.observe(report)

    def state_dict(self) -> dict[str, Any]:
        return {"chunk": self._chunk.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._chunk.load_state_dict(state["chunk"])
