"""The chosen knobs in the words of other frameworks. Only knobs that these have; where one has none, that is
said.

Names are those of ``scenario/aliases.py`` where it has them, else of the projects' own documentation (verl
0.10, slime, OpenRLHF 0.11, ROLL, TRL up to 1.12 for PPO, vLLM 0.33; read in 2026). Check them against the
installed version.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Final, NamedTuple

from oppo_sim.policies.interface import Policy
from oppo_sim.policies.refill import Refill
from oppo_sim.scenario.schema import Scenario


class Line(NamedTuple):
    """One knob of a framework, or why there is none."""

    knob: str | None
    """As the framework writes it; None: it has no such knob."""
    value: Any
    meaning: str
    field: str | None = None
    """Scenario field that the knob says exactly, through ``scenario/aliases.py``."""


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
    max_deferrals: int | None
    max_staleness: int | None
    """The setting of asynchronous policies."""
    stalest: int
    """Highest staleness that was simulated, updates."""

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


def recommended(scenario: Scenario, policy: Policy, stalest: float) -> Recommended:
    """What to tell a framework of a scenario's own policy, as built."""
    settings = scenario.policy.settings
    name = scenario.policy.name
    refill = policy if isinstance(policy, Refill) else None
    controlled = refill is not None and (refill.delta is not None or refill.chunk_control is not None)
    overcommit = refill.overcommit if refill is not None and refill.delta is None else None
    controls_chunk = getattr(policy, "chunk_control", None) is not None
    fixed_chunk = None if controls_chunk else getattr(policy, "chunk_size", None)
    return Recommended(
        scenario,
        name,
        settings,
        overcommit,
        controlled,
        policy.carries
        and (refill is None or refill.delta is not None or refill.overcommit > 0)
        and (policy.schedule != "async" or policy.partial_rollout),
        policy.schedule,
        policy.score_granularity,
        fixed_chunk,
        policy.max_deferrals,
        policy.max_staleness if policy.schedule == "async" else None,
        int(stalest),
    )


NO_STREAMING: Final = (
    "scores whole responses only: the reward model cannot begin before a response has finished"
)
NO_PER_ROLLOUT: Final = "scores the whole batch after generation, not each response when it finishes"
NO_DEFERRALS: Final = (
    "has no bound on how often a response is carried over; without one the tail can be staler than simulated"
    " here"
)


def frameworks(it: Recommended) -> dict[str, list[Line]]:
    """Framework → its lines."""
    return {name: lines(it) for name, lines in FRAMEWORKS.items()}


# ---- inside ------------------------------------------------------------------------------------------------


def _none(why: str) -> Line:
    """What the framework has no knob for."""
    return Line(None, None, why)


def _batch(it: Recommended, knob: str) -> Line:
    """A knob that counts prompts in this framework, and means B exactly where a prompt is one rollout."""
    return Line(knob, it.prompts, *(("B", "rollout_batch_size") if it.group == 1 else ("B in prompts",)))


def _with_extra(it: Recommended, knob: str) -> list[Line]:
    """B + Δ, likewise."""
    if not it.overcommit:
        return []
    meaning = ("B + Δ", "policy.overcommit") if it.group == 1 else ("B + Δ in prompts",)
    return [Line(knob, it.prompts + it.extra_prompts, *meaning)]


def _trl(it: Recommended) -> list[Line]:
    length = it.scenario.max_response_length
    exact = "rollout_batch_size" if it.group == 1 else None
    lines = [
        Line("batch_size", it.batch, "B, per update over all processes", exact),
        Line("response_length", length, "longest response, tokens", "max_response_length"),
    ]
    if it.schedule != "synchronous":
        why = "PPO in TRL (up to 1.12) does not generate while it trains; AsyncGRPO (1.16) does, with GRPO"
        return [*lines, _none(why)]
    if it.carries:
        what = "it has no over-sampling and carries nothing over"
        why = f"PPO in TRL (up to 1.12) generates whole batches: {what}"
        lines.append(_none(why))
    if it.granularity != "batch":
        lines.append(_none(f"PPO in TRL {NO_STREAMING if it.granularity == 'chunk' else NO_PER_ROLLOUT}"))
    if it.carries or it.granularity != "batch":
        settings = ", ".join(f"{key!r}: {value!r}" for key, value in it.settings.items())
        what = "this project's client for TRL's trainer does all of it (docs/trl.md)"
        lines.append(Line("OppoPPOTrainer(policy=…)", f"({it.policy!r}, {{{settings}}})", what))
    return lines


def _verl(it: Recommended) -> list[Line]:
    mode = "trainer.v1.trainer_mode"
    threshold = "trainer.v1.sampler.max_off_policy_threshold"
    strategy = "trainer.v1.sampler.max_off_policy_strategy"
    lines = [
        Line("data.train_batch_size", it.prompts, "B in prompts", "rollout_batch_size"),
        Line("actor_rollout_ref.rollout.n", it.group, "responses of a prompt", "group_size"),
        *_max_num_seqs(it, "actor_rollout_ref.rollout.max_num_seqs"),
    ]
    if it.synchronous_carry:
        what = "unfinished responses are kept and resubmitted after the update"
        lines += [Line(mode, "colocate_async", what), _verl_ahead(it)]
    elif it.schedule != "synchronous":
        lines.append(Line(mode, "separate_async", "generation on its own devices, during training"))
    if it.max_staleness is not None:
        lines.append(Line(threshold, it.max_staleness, "bound on staleness", "policy.max_staleness"))
        what = "nothing is dropped here"
        if it.settings.get("max_staleness_strategy") != "wait":
            what += "; it also waits for what is too old there, which max_staleness_strategy: wait simulates"
        lines.append(Line(strategy, "wait", what))
        if not it.carries:
            why = "updates that wait for rollouts: recipe fully_async, async_training.partial_rollout=False"
            lines.append(_none(f"an update always interrupts rollouts; {why}"))
    elif it.carries and it.max_deferrals is not None:
        what = "nearest to max_deferrals: the highest staleness simulated"
        lines.append(Line(threshold, max(1, it.stalest), what))
        lines.append(Line(strategy, "wait", "wait for what has become too old, as here"))
    if it.carries and not it.scenario.rollout.clear_kv_cache_on_weight_sync:
        why = "KV is always computed anew after an update (the replicas sleep); simulated here: kept"
        lines.append(_none(why))
    return [*lines, *_scoring(it, per_rollout=True)]


def _verl_ahead(it: Recommended) -> Line:
    knob = "trainer.v1.colocate_async.num_warmup_batches"
    if it.overcommit is None:
        return _none(
            "the overcommit is not controlled online; num_warmup_batches is a fixed number of whole batches"
        )
    batches = it.overcommit / it.batch
    if batches.is_integer() and batches >= 1:
        return Line(knob, int(batches), f"Δ of {it.overcommit} rollouts in batches", "policy.overcommit")
    nearest = max(1, round(batches))
    what = f"counts whole batches: Δ of {it.overcommit} rollouts ({batches:.2f} batches) has no value there;"
    return Line(knob, nearest, f"{what} {nearest} means {nearest * it.batch}")


def _openrlhf(it: Recommended) -> list[Line]:
    lines = [
        _batch(it, "--rollout.batch_size"),
        Line("n_samples_per_prompt", it.group, "responses of a prompt", "group_size"),
    ]
    if it.carries or it.schedule != "synchronous":
        what = "generates during training"
        if it.schedule == "synchronous":
            what = f"needed for what follows; it also {what}, which is not what was simulated here"
        lines.append(Line("--train.async_enable", True, what))
    if it.carries:
        what = "unfinished responses go on after the update"
        lines.append(Line("--train.partial_rollout_enable", True, what))
    lines += _with_extra(it, "--rollout.vllm_generate_batch_size")
    if it.max_staleness is not None:
        what = "batches waiting: the nearest to a bound on staleness"
        lines.append(Line("--train.async_queue_size", it.max_staleness, what))
    return [*lines, *_deferrals(it), *_scoring(it, per_rollout=False)]


def _slime(it: Recommended) -> list[Line]:
    lines = [
        _batch(it, "--rollout-batch-size"),
        Line("--n-samples-per-prompt", it.group, "responses of a prompt", "group_size"),
        *_with_extra(it, "--over-sampling-batch-size"),
    ]
    if it.carries:
        what = "unfinished groups go back to the buffer; finished ones beyond B are dropped there, kept here"
        lines.append(Line("--partial-rollout", True, what))
        if not it.scenario.rollout.clear_kv_cache_on_weight_sync:
            lines.append(_none("KV is always computed anew after an update; simulated here: kept"))
    if it.max_staleness is not None:
        lines.append(_none("has no bound on staleness"))
    return [*lines, *_deferrals(it), *_scoring(it, per_rollout=True)]


def _roll(it: Recommended) -> list[Line]:
    lines = [_batch(it, "rollout_batch_size")]
    if it.overcommit:
        extra = Line("max_additional_running_prompts", it.extra_prompts, "Δ in prompts", "policy.overcommit")
        lines += [Line("is_use_additional_prompts", True, "more prompts than B in flight"), extra]
    if it.max_staleness is not None:
        knob = "async_generation_ratio"
        lines.append(Line(knob, it.max_staleness, "batches ahead", "policy.max_staleness"))
    return [*lines, *_deferrals(it), *_scoring(it, per_rollout=True)]


def _vllm(it: Recommended) -> list[Line]:
    replicas = it.scenario.rollout.num_replicas
    lines = list(_max_num_seqs(it, "max_num_seqs"))
    if not lines and it.overcommit is not None:
        fewest = ceil((it.batch + it.overcommit) / replicas)
        what = f"at least: B + Δ over {replicas} replica(s) ran together in the simulation"
        lines.append(Line("max_num_seqs", fewest, what))
    if it.granularity == "chunk" and it.chunk_size is not None:
        pieces = "of SamplingParams, with output_kind DELTA: pieces of this many tokens to the reward model"
        prefix = (
            "on a pooling reward model that gets the growing prefix; whole blocks are kept, so take a"
            " multiple of the block size"
        )
        lines.append(Line("stream_interval", it.chunk_size, pieces, "policy.chunk_size"))
        lines.append(Line("enable_prefix_caching", True, prefix))
    if it.carries:
        clear = it.scenario.rollout.clear_kv_cache_on_weight_sync
        what = "around the update; " + ("KV is computed anew" if clear else "KV is kept, stale")
        first = "with a lower priority= number for carried requests, so that they run first"
        lines.append(Line("pause_generation(mode='keep', clear_cache=…)", clear, what))
        lines.append(Line("scheduling_policy", "priority", first))
    return lines or [_none("nothing beyond its defaults: the policy needs no knob of the engine")]


def _max_num_seqs(it: Recommended, knob: str) -> list[Line]:
    bound = it.scenario.rollout.max_num_seqs
    what = "running responses of one engine"
    return [] if bound is None else [Line(knob, bound, what, "rollout.max_num_seqs")]


def _scoring(it: Recommended, *, per_rollout: bool) -> list[Line]:
    if it.granularity == "chunk":
        return [_none(NO_STREAMING)]
    return [_none(NO_PER_ROLLOUT)] if it.granularity == "rollout" and not per_rollout else []


def _deferrals(it: Recommended) -> list[Line]:
    return [_none(NO_DEFERRALS)] if it.carries and it.max_deferrals is not None else []


FRAMEWORKS: Final[Mapping[str, Callable[[Recommended], list[Line]]]] = {
    "TRL": _trl,
    "verl": _verl,
    "OpenRLHF": _openrlhf,
    "slime": _slime,
    "ROLL": _roll,
    "vLLM": _vllm,
}
