"""What a policy sees and what it answers. Simulator and real engines drive the same object.

A policy is called, in this order, once a step: ``plan`` (how many to admit, chunk size, when the phase ends),
``arrange`` (hold or move rollouts), ``select`` (which to train), ``drop`` (what does not carry over);
afterwards it is fed a ``StepReport``. It has no other input.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

from oppo_sim.errors import OppoError

if TYPE_CHECKING:
    from oppo_sim.policies.knobs import Knob
    from oppo_sim.policies.settings import PolicySettings

ScoreGranularity = Literal["batch", "rollout", "chunk"]
StopCheck = Literal["token", "chunk"]
Schedule = Literal["synchronous", "one-step-off", "async"]
TrainOrder = Literal["oldest", "scored"]


class RolloutView(NamedTuple):
    """A rollout in flight, as far as a real run knows it. A response's length is ``generated`` once it has
    finished, and unknown before."""

    rollout_id: int
    group_id: int
    prompt_length: int
    generated: int
    replica: int
    admitted_step: int
    deferrals: int
    """Steps in which it (or a member of its group) decoded and did not finish."""
    head_version: int | None
    """Weight version of its first token; None while it has none."""
    finished_step: int | None
    """Step in which its whole group finished; None while unfinished."""
    turns_done: int = 0
    """Calls of tools that were answered."""
    waits_for_tool: bool = False
    """It called a tool that has not answered: until then it does not decode."""


class PoolView:
    """The rollouts in flight. Views are built when requested."""

    __slots__ = (
        "_finished",
        "_ids",
        "_in_flight",
        "_make",
        "_unfinished",
        "admitted",
        "filtered",
        "num_replicas",
        "step",
        "weight_version",
    )

    def __init__(
        self,
        step: int,
        weight_version: int,
        admitted: int,
        in_flight: int,
        num_replicas: int,
        make: Callable[[bool], tuple[RolloutView, ...]],
        ids: Callable[[], Sequence[int]] = tuple,
        filtered: int = 0,
    ) -> None:
        self.step = step
        self.filtered = filtered
        """Of those, rollouts of groups that dynamic sampling dropped."""
        self.weight_version = weight_version
        self.admitted = admitted
        """Rollouts admitted since the run began."""
        self.num_replicas = num_replicas
        self._in_flight = in_flight
        self._make = make
        self._ids = ids
        self._finished: tuple[RolloutView, ...] | None = None
        self._unfinished: tuple[RolloutView, ...] | None = None

    @property
    def in_flight(self) -> int:
        """Rollouts admitted and not yet trained or dropped."""
        return self._in_flight

    @property
    def in_flight_ids(self) -> Sequence[int]:
        """Ids of the rollouts in flight, in any order; cheaper than their views."""
        return self._ids()

    @property
    def finished(self) -> tuple[RolloutView, ...]:
        """Finished (under ``async``: scored), not yet trained: surplus of earlier steps in their order, then
        by (instant, id); under ``train_order`` oldest by version of the first token before that; whole
        groups."""
        if self._finished is None:
            self._finished = self._make(True)
        return self._finished

    @property
    def unfinished(self) -> tuple[RolloutView, ...]:
        """Unfinished ones by id (with groups: every member of an unfinished group)."""
        if self._unfinished is None:
            self._unfinished = self._make(False)
        return self._unfinished


class OraclePoolView(PoolView):
    """What a policy that declares ``oracle = True`` sees: the lengths too."""

    __slots__ = ("response_lengths",)

    response_lengths: Mapping[int, int]
    """rollout id → response length in tokens, for every rollout in flight."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A policy's answer for one step."""

    admit: int
    """New rollouts to admit (whole groups)."""
    chunk_size: int
    """Response tokens of a streamed piece, and iterations of a round under ``stop_check: chunk``."""
    overcommit: int = 0
    """Δ in force, for the report."""
    stop_after: int | None = None
    """Finished rollouts (surplus included) that end the phase; None: ``rollout_batch_size``. Under ``async``:
    scored ones that let the trainer take its batch."""
    wait_for: frozenset[int] = frozenset()
    """Rollouts that must have finished (under ``async``: been scored) too."""
    readmit: tuple[int, ...] = ()
    """Dropped rollouts to generate again, by id."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Where rollouts run in this step. Moving one that has tokens costs a prefill."""

    hold: frozenset[int] = frozenset()
    """Unfinished rollouts that do not decode in this step."""
    move: Mapping[int, int] = field(default_factory=dict)
    """rollout id → replica."""


KEEP = Arrangement()


class StepPace(Protocol):
    """What controllers of knobs look at in a ``StepReport``."""

    @property
    def step_s(self) -> float: ...
    @property
    def tokens_trained(self) -> int: ...
    @property
    def reward_mean(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a policy observes of a finished step. Seconds and tokens."""

    step: int
    timing_s: Mapping[str, float]
    """Stage → seconds, and ``step``."""
    trained: tuple[int, ...]
    tokens_trained: int
    """Response tokens of the trained batch."""
    reward_mean: float | None
    """Mean reward of the trained batch; None where the run has no rewards."""
    deferred: int
    surplus: int
    overcommit: int
    chunk_size: int

    @property
    def step_s(self) -> float:
        """Seconds of the whole step."""
        return self.timing_s["step"]


@dataclass(frozen=True)
class Batch:
    """The facts about a run that every policy may know."""

    rollout_batch_size: int
    group_size: int = 1

    def __post_init__(self) -> None:
        if self.rollout_batch_size % self.group_size:
            raise OppoError(
                f"rollout_batch_size {self.rollout_batch_size} is not a multiple of group_size"
                f" {self.group_size}: make it one, since groups are admitted and trained whole"
            )

    def whole_groups(self, rollouts: float) -> int:
        """The smallest multiple of the group size that is at least ``rollouts``."""
        return -int(-rollouts // self.group_size) * self.group_size


class Policy:
    """Base of every policy: sequential PPO unless overridden. Subclass it, give it a ``name``, and override
    what differs.

    The attributes up to ``inherited`` say what a policy is to those who run, compare, search and describe
    it: nothing else knows it by name. Their defaults hold for any policy.
    """

    name: ClassVar[str] = "policy"
    summary: ClassVar[str] = ""
    """What it does, in one line."""
    schedule: ClassVar[Schedule] = "synchronous"
    oracle: ClassVar[bool] = False
    """True shows the policy response lengths; its results are a bound, never a recommendation."""
    carries: ClassVar[bool] = True
    """Unfinished rollouts may go on in a later step, under new weights."""
    recomputes: ClassVar[bool] = True
    """May make the actor compute KV again that it had (without being short of it): carries rollouts over an
    update, moves them, or runs dropped ones again."""
    without_tail: ClassVar[Mapping[str, Any] | None] = None
    """Settings under which it shortens no tail; None: it has no such knob."""
    Settings: ClassVar["type[PolicySettings] | None"] = None
    """What it accepts; each field becomes an attribute. None: its class attributes are its settings."""
    inherited: ClassVar[tuple[str, ...]] = ()
    """Settings that a comparison takes over from the scenario's own policy."""
    score_granularity: ScoreGranularity = "batch"
    stop_check: StopCheck = "token"
    max_deferrals: int | None = None
    # Only read under ``schedule = "async"``:
    max_staleness: int = 1
    train_order: TrainOrder = "oldest"
    """Of what is scored: by version of the first token (of a group's oldest), or by instant of the score."""
    partial_rollout: bool = True
    """A weight update interrupts rollouts, which go on after it; False: it waits until they are done."""

    def __init__(self, batch: Batch, settings: "Mapping[str, Any] | PolicySettings | None" = None) -> None:
        """``settings``: an instance of ``Settings`` where the class has them, else a mapping. Raises
        OppoError for a setting that the policy has not."""
        self.batch = batch
        if self.Settings is not None and isinstance(settings, self.Settings):
            for field in self.Settings.model_fields:
                setattr(self, field, getattr(settings, field))
            return
        given: Mapping[str, Any] = settings or {}  # type: ignore[assignment]
        for key, value in given.items():
            if key.startswith("_") or not hasattr(type(self), key) or callable(getattr(type(self), key)):
                own = type(self).__name__ if self.name == Policy.name else self.name
                raise OppoError(
                    f"policy '{own}' has no setting '{key}': remove it, or make it a class attribute of the"
                    " policy"
                )
            setattr(self, key, value)

    def plan(self, pool: PoolView) -> StepPlan:
        """Before a step: how many to admit, the chunk size, when the phase ends."""
        return self.refill(pool, overcommit=0, chunk_size=256)

    def arrange(self, pool: PoolView) -> Arrangement:
        """After admission: what to hold back, what to move."""
        return KEEP

    def select(self, pool: PoolView) -> Sequence[int]:
        """At the end of the phase: the ids of the B finished rollouts to train, in order."""
        finished = pool.finished
        if self.max_deferrals is not None:
            limit = self.max_deferrals
            waited = sorted(
                (view for view in finished if view.deferrals >= limit),
                key=lambda v: (v.finished_step, v.group_id, v.rollout_id),
            )
            finished = (*waited, *(view for view in finished if view.deferrals < limit))
        return [view.rollout_id for view in finished[: self.batch.rollout_batch_size]]

    def drop(self, pool: PoolView) -> Collection[int]:
        """After selection: ids in flight that do not carry over (``pool`` no longer holds the selected)."""
        return ()

    def observe(self, report: StepReport) -> None:
        """Learn from the finished step."""

    def knobs(self, max_response_length: int) -> "Sequence[Knob]":
        """Settings that a search may change, with their ranges; queried from the policy as the scenario has
        it.

        ``max_response_length``: of the scenario, tokens.
        """
        return ()

    def state_dict(self) -> dict[str, Any]:
        """Everything that must survive a checkpoint, as JSON-able values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` gave."""

    def refill(self, pool: PoolView, *, overcommit: int, chunk_size: int) -> StepPlan:
        """The usual plan: admit until B + ``overcommit`` are in flight, end at B finished, wait for the
        overdue ones."""
        admit = max(0, self.batch.rollout_batch_size + overcommit - pool.in_flight)
        wait_for: frozenset[int] = frozenset()
        if self.max_deferrals is not None:
            wait_for = frozenset(
                view.rollout_id for view in pool.unfinished if view.deferrals >= self.max_deferrals
            )
            if self.max_deferrals == 0:
                wait_for |= frozenset(range(pool.admitted, pool.admitted + admit))
        return StepPlan(admit=admit, chunk_size=chunk_size, overcommit=overcommit, wait_for=wait_for)
