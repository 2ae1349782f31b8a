"""The ledger of a TRL run, its stop-watch, and what a finished step tells the policy, the log and the
user."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

import torch

from oppo_real.trl_client.rollout import TrlRollout
from oppo_sim import columns as c
from oppo_sim.policies.interface import Batch, Policy, StepPlan, StepReport
from oppo_sim.schedule.ledger import Begun, Ledger, PhaseOutcome


@dataclass(frozen=True)
class StepRecord:
    """One training step. Seconds and tokens."""

    step: int
    timing_s: Mapping[str, float]
    """Stage → seconds, and ``step``. TRL updates actor and critic together: ``update_actor`` is all that no
    other stage is."""
    trained: tuple[int, ...]
    """Rollout ids in the order of the batch."""
    prompts: tuple[tuple[int, ...], ...]
    responses: tuple[tuple[int, ...], ...]
    """Of the trained batch, without padding."""
    versions: tuple[tuple[int, ...], ...]
    """Weight version of each response token."""
    truncated: int
    """Rollouts of the batch that ended at ``response_length``."""
    weight_version: int
    admitted: int
    deferred: int
    surplus: int
    dropped: int
    overcommit: int
    chunk_size: int
    tokens_decoded: int
    tokens_recomputed: int
    tokens_padding: int
    tokens_dropped: int
    tokens_scored: int
    """Prefilled by a scorer beside the loop; 0 where TRL's loop scores."""
    tokens_in_flight: int
    reward_mean: float

    @property
    def response_lengths(self) -> tuple[int, ...]:
        """Of the trained batch."""
        return tuple(len(response) for response in self.responses)

    @property
    def staleness(self) -> tuple[int, ...]:
        """Of each trained rollout: versions between its first token and the update."""
        return tuple(self.weight_version - versions[0] for versions in self.versions)

    @property
    def spans(self) -> tuple[int, ...]:
        """Distinct weight versions of each trained rollout."""
        return tuple(len(set(versions)) for versions in self.versions)

    def metrics(self) -> dict[str, float]:
        """Under the column names of ``oppo_sim``, to be logged beside TRL's own."""
        lengths, staleness, spans = self.response_lengths, self.staleness, self.spans
        size = len(lengths)
        return {
            **{c.timing(stage): seconds for stage, seconds in self.timing_s.items()},
            c.LENGTH_MEAN: sum(lengths) / size,
            c.LENGTH_MAX: float(max(lengths)),
            c.LENGTH_MIN: float(min(lengths)),
            c.LENGTH_CLIP_RATIO: self.truncated / size,
            c.ROLLOUTS_ADMITTED: float(self.admitted),
            c.ROLLOUTS_DEFERRED: float(self.deferred),
            c.ROLLOUTS_SURPLUS: float(self.surplus),
            c.ROLLOUTS_DROPPED: float(self.dropped),
            c.PARTIAL_RATIO: sum(span > 1 for span in spans) / size,
            c.STALENESS_MEAN: sum(staleness) / size,
            c.STALENESS_MAX: float(max(staleness)),
            c.SPANS_MEAN: sum(spans) / size,
            c.SPANS_MAX: float(max(spans)),
            c.OVERCOMMIT: float(self.overcommit),
            c.CHUNK_SIZE: float(self.chunk_size),
            c.TOKENS_DECODED: float(self.tokens_decoded),
            c.TOKENS_TRAINED: float(sum(lengths)),
            c.TOKENS_RECOMPUTED: float(self.tokens_recomputed),
            c.TOKENS_PADDING: float(self.tokens_padding),
            c.TOKENS_DROPPED: float(self.tokens_dropped),
            c.TOKENS_SCORED: float(self.tokens_scored),
            c.TOKENS_IN_FLIGHT: float(self.tokens_in_flight),
        }

    def report(self) -> StepReport:
        """For the policy."""
        return StepReport(
            self.step,
            self.timing_s,
            self.trained,
            sum(self.response_lengths),
            self.reward_mean,
            self.deferred,
            self.surplus,
            self.overcommit,
            self.chunk_size,
        )


@dataclass
class WorkDone:
    """Counted in one step. Tokens."""

    decoded: int = 0
    recomputed: int = 0
    padding: int = 0
    scored: int = 0


class Stopwatch:
    """Seconds of the stages of one step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.start()

    def start(self) -> None:
        """A step begins."""
        self._seconds = dict.fromkeys(c.STAGES, 0.0)
        self._began = self.now()

    def now(self) -> float:
        """Seconds, after everything given to the device is done."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return perf_counter()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add what is inside to a stage."""
        began = self.now()
        try:
            yield
        finally:
            self._seconds[name] += self.now() - began

    def read(self) -> dict[str, float]:
        """Stage → seconds since ``start``; what was not measured as a stage of its own is
        ``update_actor``."""
        whole = self.now() - self._began
        measured = sum(self._seconds.values())
        return {**self._seconds, "update_actor": max(0.0, whole - measured), "step": whole}


class Steps:
    """Ledger, weight version and step number of one call of ``train``."""

    def __init__(
        self, policy: Policy, batch: Batch, device: torch.device, draw_prompt: Callable[[], tuple[int, ...]]
    ) -> None:
        def admit(rollout_id: int, step: int) -> TrlRollout:
            return TrlRollout(rollout_id, draw_prompt(), step)

        self.policy = policy
        self.ledger: Ledger[TrlRollout] = Ledger(policy, batch, 1, admit)
        self.watch = Stopwatch(device)
        self.work = WorkDone()
        self.step = 0
        self.version = 0
        """Updates done."""
        self._admitted = 0
        self._outcome: PhaseOutcome[TrlRollout] | None = None
        self._plan = StepPlan(0, 1)
        self._dropped_tokens = 0

    def begin(self) -> Begun[TrlRollout]:
        """Ask for the plan and admit (the stop-watch was started before). Raises OppoError for an impossible
        plan."""
        self.work = WorkDone()
        begun = self.ledger.begin_step(self.step, self.version)
        self._admitted, self._plan = begun.new, begun.plan
        return begun

    def end_phase(self) -> PhaseOutcome[TrlRollout]:
        """The phase is over: select, drop."""
        self._outcome = self.ledger.end_phase(self.version)
        self._dropped_tokens = sum([rollout.generated for rollout in self._outcome.dropped])
        return self._outcome

    def close(self, reward_mean: float) -> StepRecord:
        """The weights have been updated: count the version, tell the policy."""
        assert self._outcome is not None
        outcome, work = self._outcome, self.work
        record = StepRecord(
            step=self.step,
            timing_s=self.watch.read(),
            trained=tuple([rollout.rollout_id for rollout in outcome.trained]),
            prompts=_frozen(rollout.prompt for rollout in outcome.trained),
            responses=_frozen(rollout.tokens for rollout in outcome.trained),
            versions=_frozen(rollout.versions for rollout in outcome.trained),
            truncated=sum([rollout.truncated for rollout in outcome.trained]),
            weight_version=self.version,
            admitted=self._admitted,
            deferred=outcome.deferred,
            surplus=outcome.surplus,
            dropped=len(outcome.dropped),
            overcommit=self._plan.overcommit,
            chunk_size=self._plan.chunk_size,
            tokens_decoded=work.decoded,
            tokens_recomputed=work.recomputed,
            tokens_padding=work.padding,
            tokens_dropped=self._dropped_tokens,
            tokens_scored=work.scored,
            tokens_in_flight=sum([rollout.generated for rollout in self.ledger.unfinished.values()])
            + self.ledger.finished_tokens(),
            reward_mean=reward_mean,
        )
        self.policy.observe(record.report())
        self.step += 1
        self.version += 1
        self._outcome = None
        return record


def _frozen(rows: Iterable[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple([tuple(row) for row in rows])
