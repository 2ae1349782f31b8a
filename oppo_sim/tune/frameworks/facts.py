"""What a framework is told: the facts about a choice, and the lines that say them."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Final, NamedTuple

from oppo_sim.policies.interface import Policy
from oppo_sim.policies.refill import Refill
from oppo_sim.scenario.schema import Scenario


class Line(NamedTuple):
    """One option of a framework, or why there is none."""

    knob: str | None
    """As the framework writes it; None: it has no such knob."""
    value: Any
    meaning: str
    field: str | None = None
    """Scenario field that the knob says exactly, through ``scenario/aliases.py``."""


class Block(NamedTuple):
    """Text to paste."""

    how: str
    """What it is, and where it goes."""
    text: str


@dataclass(frozen=True)
class Recommended:
    """The facts about a choice that a framework could be told."""

    scenario: Scenario
    policy: str
    settings: Mapping[str, Any]
    """All settings that are given."""
    overcommit: int | None
    """Δ, rollouts; None: the policy has none, or controls it online."""
    controlled: bool
    """Δ or the chunk size is controlled online."""
    carries: bool
    schedule: str
    granularity: str
    chunk_size: int | None
    rounds: bool
    """Generation stops between rounds of ``chunk_size`` tokens only."""
    max_deferrals: int | None
    max_staleness: int | None
    """The setting of asynchronous policies."""
    over_issues: bool
    """Drops what it admitted beyond the batch and runs it again later."""

    @property
    def batch(self) -> int:
        """B, rollouts."""
        return self.scenario.rollout_batch_size

    @property
    def group(self) -> int:
        """Rollouts of a prompt."""
        return self.scenario.group_size

    @property
    def prompts(self) -> int:
        """B in prompts."""
        return self.batch // self.group

    @property
    def extra_prompts(self) -> int:
        """Δ in prompts, rounded up."""
        return ceil((self.overcommit or 0) / self.group)

    @property
    def synchronous_carry(self) -> bool:
        """Goes on with unfinished rollouts in the next step, and generates nothing while it trains."""
        return self.carries and self.schedule == "synchronous"

    @property
    def beside(self) -> bool:
        """Generates while it trains."""
        return self.schedule != "synchronous"

    @property
    def training_gpus(self) -> int | None:
        """GPUs that only train; None: training is on those that generate."""
        training = self.scenario.split.training
        return training if isinstance(training, int) else None

    @property
    def waits(self) -> bool:
        """Asynchronous: the trainer waits for what must not become staler."""
        return self.settings.get("max_staleness_strategy") == "wait"

    def nodes_of(self, gpus: int) -> tuple[int, int] | None:
        """(nodes, GPUs a node) that hold so many GPUs; None: they do not fill whole nodes."""
        per_node = self.scenario.cluster.num_gpus_per_node
        if per_node is None or gpus <= per_node:
            return 1, gpus
        return (gpus // per_node, per_node) if gpus % per_node == 0 else None


def recommended(scenario: Scenario, policy: Policy) -> Recommended:
    """What to tell a framework of a scenario's own policy, as built."""
    refill = policy if isinstance(policy, Refill) else None
    controlled = refill is not None and (refill.delta is not None or refill.chunk_control is not None)
    overcommit = refill.overcommit if refill is not None and refill.delta is None else None
    controls_chunk = getattr(policy, "chunk_control", None) is not None
    return Recommended(
        scenario,
        scenario.policy.name,
        scenario.policy.settings,
        overcommit,
        controlled,
        policy.carries
        and (refill is None or refill.delta is not None or refill.overcommit > 0)
        and (policy.schedule != "async" or policy.partial_rollout),
        policy.schedule,
        policy.score_granularity,
        None if controls_chunk else getattr(policy, "chunk_size", None),
        policy.stop_check == "chunk",
        policy.max_deferrals,
        policy.max_staleness if policy.schedule == "async" else None,
        policy.Settings is not None and "over_issue" in policy.Settings.model_fields,
    )


NO_STREAMING: Final = (
    "scores whole responses only: the reward model cannot begin before a response has finished"
)
NO_PER_ROLLOUT: Final = "scores the whole batch after generation, not each response when it finishes"
NO_DEFERRALS: Final = (
    "has no bound on how often a response is carried over; without one the tail can be staler than simulated"
    " here"
)
NO_OVER_ISSUE: Final = (
    "no knob for this here: prompts beyond the batch that are dropped and run again in long steps"
    " (tail-batching)"
)
NO_ROUNDS: Final = "no knob for this here: generation that stops after a budget of tokens"
NO_CONTROL: Final = "no knob for this here: an overcommit or chunk size that is controlled online"
NO_CARRY: Final = (
    "no knob for this here: unfinished responses that go on in the next step of synchronous training"
)
KV_ANEW: Final = "KV is always computed anew after an update; simulated here: kept"


def none(why: str) -> Line:
    """What the framework has no knob for."""
    return Line(None, None, why)


def lacking(it: Recommended, *, scores: str, deferrals: bool = False) -> list[Line]:
    """What no framework, or not this one, has: streaming, rounds, over-issue, control, deferrals. ``scores``:
    how finely it scores, ``batch`` or ``rollout``."""
    found = []
    if it.granularity == "chunk":
        found.append(none(NO_STREAMING))
    elif it.granularity == "rollout" and scores == "batch":
        found.append(none(NO_PER_ROLLOUT))
    if it.over_issues:
        found.append(none(NO_OVER_ISSUE))
    if it.rounds:
        found.append(none(NO_ROUNDS))
    if it.controlled:
        found.append(none(NO_CONTROL))
    if it.carries and it.max_deferrals is not None and not deferrals:
        found.append(none(NO_DEFERRALS))
    return found


def batch_of(it: Recommended, knob: str) -> Line:
    """A knob that counts prompts in this framework, and means B exactly where a prompt is one rollout."""
    return Line(knob, it.prompts, *(("B", "rollout_batch_size") if it.group == 1 else ("B in prompts",)))


def group_of(it: Recommended, knob: str) -> Line:
    """Responses of a prompt."""
    return Line(knob, it.group, "responses of a prompt", "group_size")


def max_num_seqs(it: Recommended, knob: str) -> list[Line]:
    """A cap on one engine, where the scenario has one."""
    bound = it.scenario.rollout.max_num_seqs
    what = "running responses of one engine"
    return [] if bound is None else [Line(knob, bound, what, "rollout.max_num_seqs")]


def no_max_num_seqs(it: Recommended, section: str | None = None) -> list[Line]:
    """A cap on one engine, for a framework without an option of its own; ``section``: of arguments of
    vLLM."""
    bound = it.scenario.rollout.max_num_seqs
    if bound is None:
        return []
    if section is None:
        return [
            none(f"no knob for this here: at most {bound} running responses of one engine (max_num_seqs)")
        ]
    what = f"running responses of one engine: give max_num_seqs {bound} to {section}"
    return [none(f"{what}, which takes arguments of vLLM")]
