"""The advice: what to set, what to expect, how sure that is; values and sentences."""

from collections.abc import Mapping, Sequence
from math import isfinite, nan
from typing import Any

from oppo_sim import columns as c
from oppo_sim.costs.evidence import evidence_text
from oppo_sim.learning import Learning
from oppo_sim.policies.registry import BASELINE, policy_class
from oppo_sim.report.labels import (
    capital,
    counted,
    format_seconds,
    format_signed,
    other_lengths,
    signed_ends,
    significant,
)
from oppo_sim.report.ranges import drawn_words, ends_text, placement_sentence, split_sentence
from oppo_sim.runs.machine import MachineDraws
from oppo_sim.runs.ranges import SPEEDUP_ENDS, SPEEDUP_PER_TOKEN_ENDS
from oppo_sim.runs.to_reward import TO_REWARD_COLUMNS
from oppo_sim.scenario.build import cost_context
from oppo_sim.scenario.schema import Scenario
from oppo_sim.tune.advice_page import shown
from oppo_sim.tune.check import AS_GIVEN
from oppo_sim.tune.request import (
    MEASURED_BY,
    UNIT_COST,
    Constraints,
    Objective,
    Robust,
    Seeds,
    bound_text,
    broken,
    limit_text,
)
from oppo_sim.tune.space import Setting, machine_overrides
from oppo_sim.tune.trials import Interaction, KnobEffect, PairedResult

_SPEEDUP = ("speedup", "speedup_low", "speedup_high")
MOST_ALIKE = 6
NEAR = 0.01
_SAME = 1e-9
"""Of costs that differ by no more the runs are the same."""
AFFORDABLE = 0.05
"""A setting that is this much slower on these seeds may still be advised, where it is not told apart."""


def choice(
    chosen: PairedResult, settings: Mapping[str, Any], objective: Objective, world: str
) -> dict[str, Any]:
    """The chosen setting and what to expect of it in the scenario as given."""
    return {
        "policy": chosen.checked.setting.policy,
        "policy_settings": dict(settings),
        "machine": dict(machine_overrides(chosen.checked.setting)),
        "world": world,
        **expected(chosen, objective),
    }


def expected(result: PairedResult, objective: Objective) -> dict[str, Any]:
    """Numbers of a setting on fresh seeds, in the scenario as given; intervals of 95 %. The speed-up is that
    of the objective: by trained rollouts, by trained tokens, or to the target reward."""
    row = result.checked.rows[0]
    speedup, ranges = (c.SPEEDUP, c.SPEEDUP_LOW, c.SPEEDUP_HIGH), dict(result.ranges)
    if objective == "time_to_reward":
        speedup = c.REWARD_SPEEDUP, c.REWARD_SPEEDUP_LOW, c.REWARD_SPEEDUP_HIGH
    if objective == "tokens":
        speedup = c.SPEEDUP_PER_TOKEN, c.SPEEDUP_PER_TOKEN_LOW, c.SPEEDUP_PER_TOKEN_HIGH
        ends = zip(SPEEDUP_ENDS, SPEEDUP_PER_TOKEN_ENDS, strict=True)
        ranges |= {shown: ranges[own] for shown, own in ends if own in ranges}
    return {
        UNIT_COST[objective]: row[UNIT_COST[objective]],
        c.STEP_S: row[c.STEP_S],
        c.STEP_S_LOW: row[c.STEP_S_LOW],
        c.STEP_S_HIGH: row[c.STEP_S_HIGH],
        "baseline": result.checked.baseline,
        **{name: row[column] for name, column in zip(_SPEEDUP, speedup, strict=True)},
        c.COMPARED_STALENESS_MEAN: row[c.COMPARED_STALENESS_MEAN],
        c.COMPARED_STALENESS_MAX: row[c.COMPARED_STALENESS_MAX],
        c.LENGTH_BIAS: row[c.LENGTH_BIAS],
        c.LENGTH_BIAS_PAIRED: row[c.LENGTH_BIAS_PAIRED],
        c.DEFERRED: row[c.DEFERRED],
        c.COMPARED_KV_PEAK_TOKENS: row[c.COMPARED_KV_PEAK_TOKENS],
        c.HOURS_PER_10K: row[c.HOURS_PER_10K],
        **{name: row[name] for name in TO_REWARD_COLUMNS},
        **ranges,
    }


def unknowns(machine: MachineDraws, learning: Learning, objective: Objective) -> str:
    """What draws are of; empty where nothing is drawn."""
    return drawn_words(bool(machine.draws), objective, len(learning.effect.draws))


def summary_sentences(
    chosen: PairedResult, objective: Objective, seeds: Seeds, steps: int, warmup: int, drawn: str
) -> list[str]:
    """What to expect, in words; ``drawn``: ``unknowns``."""
    numbers = expected(chosen, objective)
    runs = "one exact replay" if seeds.exact else counted(len(seeds.fresh), "fresh seed")
    low, high = numbers["speedup_low"], numbers["speedup_high"]
    between = f"95 % interval {low:.2f} to {high:.2f}" if isfinite(low) and isfinite(high) else ""
    least, most = (numbers.get(name, nan) for name in (c.SPEEDUP_BOTH_LOW, c.SPEEDUP_BOTH_HIGH))
    if isfinite(least) and isfinite(most):
        alone = f"; of the rollouts alone: {between}" if between else ""
        of = f"rollouts and {drawn.replace('the ', '')}"
        between = f"95 % interval of {of} {least:.2f} to {most:.2f}{alone}"
    between = f" ({between})" if between else ""
    step = format_seconds(numbers[c.STEP_S])
    aim = " to the target reward" if objective == "time_to_reward" else ""
    other = other_lengths(numbers[c.LENGTH_BIAS_PAIRED])
    bound, oldest = (
        chosen.checked.setting.knobs.get("policy.max_staleness"),
        numbers[c.COMPARED_STALENESS_MAX],
    )
    older = isinstance(bound, int) and oldest > bound
    surely = least if isfinite(least) else low
    label = chosen.checked.setting.label
    return [
        (
            f"The best found is {label}. It may be no faster than {numbers['baseline']}, since its interval"
            " includes 1: more seeds, or costs fitted to a log, narrow it."
            if surely <= 1.0 < (most if isfinite(most) else high)
            else f"Set {label}."
        ),
        (
            f"Expect {step} a step and {numbers['speedup']:.2f} times the speed of"
            f" {numbers['baseline']}{aim}{between}, over {runs} of {steps} steps ({warmup} of warm-up left"
            " out)."
        ),
        (
            f"Staleness {numbers[c.COMPARED_STALENESS_MEAN]:.3g} on average,"
            f" {numbers[c.COMPARED_STALENESS_MAX]:.0f} at most; {significant(numbers[c.DEFERRED])} rollouts"
            f" deferred a step; length of trained responses {format_signed(numbers[c.LENGTH_BIAS_PAIRED], 2)}"
            " against sequential on the same seeds; KV peak"
            f" {numbers[c.COMPARED_KV_PEAK_TOKENS]:,.0f} tokens a replica."
        ),
        *([f"{capital(other)}."] if other else []),
        *(
            [f"max_staleness {bound} bounds how many rollouts are begun ahead, not the age of each."]
            if older
            else []
        ),
    ]


def to_reward_sentences(chosen: PairedResult, learning: Learning, objective: Objective) -> list[str]:
    """Time and GPU-hours to the target reward, and what they rest on; nothing under another objective."""
    if objective != "time_to_reward":
        return []
    row = {**chosen.checked.rows[0], **chosen.ranges}
    low, high = (significant(row[name]) for name in (c.HOURS_TO_REWARD_LOW, c.HOURS_TO_REWARD_HIGH))
    of = "seeds, machine and effect" if c.HOURS_TO_REWARD in chosen.ranges else "seeds and effect"
    between = f" (95 % interval of {of} {low} to {high})" if isfinite(row[c.HOURS_TO_REWARD_LOW]) else ""
    return [
        f"To the target reward: {significant(row[c.HOURS_TO_REWARD])} h{between},"
        f" {significant(row[c.GPU_HOURS_TO_REWARD])} GPU-hours; a step is worth"
        f" {significant(row[c.PROGRESS])} of an on-policy one.",
        f"{capital(learning.sentence)}.",
    ]


def beside_given(others: Sequence[PairedResult], practical: float) -> list[str]:
    """The chosen setting against the scenario's own, which may be what runs today."""
    own, gain = _own(others), against_own(others)
    if own is None or not gain:
        return []
    value = gain[c.SPEEDUP]
    ends = ends_text(gain[c.SPEEDUP_LOW], gain[c.SPEEDUP_HIGH], value)
    faster = f"{value:.2f} times as fast{f' {ends}' if ends else ''}"
    given = f"the scenario's own setting ({gain['policy']})"
    bounds = "" if own.keeps_bounds else f", which breaks {' and '.join(broken(own.checked.violations))}"
    if max(map(abs, own.difference)) < _SAME:
        return [f"The choice runs as {given} does{bounds}."]
    if not own.alike:
        return [f"The choice is {faster} as {given}{bounds}."]
    near = f", or is within {100 * practical:g} % of it" if practical else ""
    return [f"The choice cannot be told apart from {given}{bounds}{near}: {faster}."]


def against_own(others: Sequence[PairedResult]) -> dict[str, Any]:
    """How many times as fast the choice is as the scenario's own setting, with the interval of seeds and,
    where it was drawn, machine. Empty where that is the baseline, or could not run."""
    own = _own(others)
    if own is None or own.checked.setting.label == BASELINE:
        return {}
    value, low, high = (1.0 + share for share in own.difference)
    label = own.checked.setting.label
    return {"policy": label, c.SPEEDUP: value, c.SPEEDUP_LOW: low, c.SPEEDUP_HIGH: high}


def _own(others: Sequence[PairedResult]) -> PairedResult | None:
    return next((one for one in others if one.checked.why == AS_GIVEN), None)


def alike_sentences(
    chosen: PairedResult,
    others: Sequence[PairedResult],
    seeds: Seeds,
    practical: float,
    objective: Objective,
    drawn: str,
) -> list[str]:
    """What cannot be told apart from the choice, or differs by no more than ``practical``, and which of these
    is the least stale; ``drawn``: ``unknowns``."""
    if seeds.exact:
        return [
            "The trace is replayed in order: differences are exact for it, and say nothing about other draws."
        ]
    if len(seeds.fresh) < 2 and not chosen.ranges:
        return [
            "With one fresh seed nothing can be said about which differences are real: give two or more of"
            " them."
        ]
    same = [one for one in others if one.alike and one.keeps_bounds and one.checked.why != AS_GIVEN]
    found = []
    if same:
        shown = "; ".join(f"{one.checked.setting.label} ({_signed(one)})" for one in same[:MOST_ALIKE])
        more = f"; and {len(same) - MOST_ALIKE} more" if len(same) > MOST_ALIKE else ""
        where = f"these seeds and draws of {drawn}" if chosen.ranges else "these seeds"
        also = f", or within {100 * practical:g} % of it" if practical else ""
        found.append(f"Not told apart from it on {where}{also}: {shown}{more}.")
    key = c.COMPARED_STALENESS_MEAN
    tried = [one for one in others if one.keeps_bounds and one.checked.why != AS_GIVEN]
    near = [one for one in tried if one.relative[0] <= (AFFORDABLE if one.alike else NEAR)]
    least = min((chosen, *near), key=lambda one: one.checked.measures[key])
    if least.checked.measures[key] < chosen.checked.measures[key] - 0.01:
        found.append(
            "Of those within 1 % of it, or within 5 % and not told apart, the least stale is"
            f" {least.checked.setting.label}"
            f" ({_signed(least)}), with a mean staleness of {least.checked.measures[key]:.3g} instead of"
            f" {chosen.checked.measures[key]:.3g}: prefer it where staleness costs"
            f" {'more than is assumed' if objective == 'time_to_reward' else 'learning'}."
        )
    better = [one for one in others if not one.alike and one.keeps_bounds and one.relative[0] < 0]
    if better:
        shown = "; ".join(f"{one.checked.setting.label} ({_signed(one)})" for one in better[:MOST_ALIKE])
        found.append(
            "On the fresh seeds these were better than the choice, which was made on the search's seeds:"
            f" {shown}. Search with more seeds."
        )
    if not tried and not same and not better:
        found.append("Nothing else that keeps the bounds was checked on fresh seeds: there was no choice.")
    elif not same and not better:
        found.append(
            "Everything else that was searched, keeps the bounds and was checked on fresh seeds is"
            " significantly worse."
        )
    return found


def machine_sentences(
    chosen: PairedResult,
    others: Sequence[PairedResult],
    machine: MachineDraws,
    learning: Learning,
    drawn: str,
) -> list[str]:
    """What is unknown about the machine, how probably the choice is the best given that, and which unknown
    matters most, also where ``others`` are on another split of the GPUs; ``drawn``: ``unknowns``."""
    found = []
    if chosen.ranges:
        count = len(machine.draws) or len(learning.effect.draws)
        found.append(
            f"Of the settings that ran on {count} draws of {drawn} it is the best in"
            f" {100 * chosen.ranges[c.P_BEST]:.0f} %."
        )
    if chosen.ranges.get(c.MACHINE_WIDEST):
        share = 100 * chosen.ranges[c.MACHINE_WIDEST_SHARE]
        found.append(
            f"The unknown that widens its speed-up most is {chosen.ranges[c.MACHINE_WIDEST]} ({share:.0f} %"
            " of the variance)."
        )
    names = c.DIFFERENCE_WIDEST, c.DIFFERENCE_WIDEST_SHARE
    if told := placement_sentence((one.ranges.get(names[0]), one.ranges.get(names[1])) for one in others):
        found.append(f"{capital(told)}.")
    if machine.sentence:
        found.append(f"{capital(machine.sentence)}.")
    return found


def knob_sentences(effects: Sequence[KnobEffect], interactions: Sequence[Interaction]) -> list[str]:
    """How flat the optimum is, which knob matters, which depend on each other."""
    found = []
    for effect in effects:
        name = effect.field.removeprefix("policy.")
        if effect.flat is None:
            flat = f"{shown(effect.least)} took {-100 * effect.below:.1f} % less"
        else:
            first, last = (shown(value) for value in effect.flat)
            kept = " of those that keep the bounds" if effect.others_break else ""
            flat = (
                f"within 1 % from {first} to {last}" if first != last else f"only {first}{kept} is within 1 %"
            )
        worst = f"at worst {100 * effect.most:.1f} % slower; {100 * effect.share:.0f} % of the variance"
        share, importance = effect.importance, ""
        if share is not None:
            importance = f"; importance {100 * share:.0f} % over its whole range"
        found.append(f"{name} ({shown(effect.chosen)}): {flat}; {worst}{importance}.")
        if effect.better is not None:
            found.append(
                f"{name} {shown(effect.better)} was significantly better in this sweep: search on with more"
                " trials."
            )
    real = [one for one in interactions if one.real and abs(one.effect) >= 0.002]
    for one in real:
        first, second = (field.removeprefix("policy.") for field in one.fields)
        values = " and ".join(shown(value) for value in one.values)
        by = format_signed(one.effect, 2)
        found.append(
            f"{first} and {second} depend on each other: at {values} the cost differs by {by} from what the"
            " changes do alone."
        )
    if interactions and not real:
        found.append(
            "No two knobs depend on each other noticeably around the choice: they can be set one at a time."
        )
    return found


def constraint_sentences(
    constraints: Constraints, chosen: PairedResult, kv_limit: float | None, worlds: int
) -> list[str]:
    """Each bound, and what the choice has."""
    found = []
    where = ", in the worst world" if worlds > 1 else ""
    for name in constraints.measured:
        limit = kv_limit if name == "kv_capacity" else getattr(constraints, name)
        if limit is not None:
            measured = bound_text(name, chosen.checked.measures[MEASURED_BY[name]])
            found.append(f"{measured}, of {limit_text(name, limit)} allowed{where}.")
    if constraints.max_deferrals is not None:
        found.append(
            f"No rollout is deferred more than {constraints.max_deferrals} times: the policy waits for it."
        )
    return found


def robust_sentences(
    robust: Robust, worlds: Sequence[str], robust_choice: PairedResult, nominal: PairedResult
) -> list[str]:
    """The robust choice against the one that is best in the scenario as given."""
    if len(worlds) < 2:
        return []
    how = {"mean": "mean regret", "worst": "worst regret", "quantile": "90 % quantile of the regret"}[robust]
    same = robust_choice.checked.setting == nominal.checked.setting
    found = [
        f"The choice has the least {how} over {len(worlds)} worlds:"
        f" {format_signed(sum(robust_choice.regrets) / len(worlds), 2)} on average,"
        f" {format_signed(max(robust_choice.regrets), 2)} at worst"
        f" ({worlds[robust_choice.regrets.index(max(robust_choice.regrets))]})."
    ]
    if same:
        found.append("It is also what is best in the scenario as given.")
    else:
        mean, worst = sum(nominal.regrets) / len(worlds), max(nominal.regrets)
        where = worlds[nominal.regrets.index(worst)]
        found.append(
            f"What is best in the scenario as given ({nominal.checked.setting.label}) has"
            f" {format_signed(mean, 2)} on average and {format_signed(worst, 2)} at worst ({where})."
        )
    return found


def caveats(scenario: Scenario, chosen: Setting, objective: Objective, *, moved: bool = False) -> list[str]:
    """What these numbers are not; ``moved``: settings are on other splits of the GPUs."""
    known = evidence_text(scenario.costs.stage_evidence(cost_context(scenario), scenario.base_dir))
    found = [f"All of this is predicted, not measured. Its seconds: {known}."]
    if scenario.real is None:
        found[0] += " Where there is a real: section (docs/real.md), oppo validate measures it."
    policy = policy_class(chosen.policy, scenario.base_dir)
    if policy.carries or policy.schedule != "synchronous":
        said = "is not simulated"
        if objective == "time_to_reward":
            said = f"is no more than rewards.staleness_effect: {_effect_name(scenario)}"
        found.append(
            f"What staleness does to learning {said}: compare learning curves before trusting a"
            " stale setting."
        )
    if moved:
        found.append(capital(f"{split_sentence()}."))
    return found


# ---- inside ------------------------------------------------------------------------------------------------


def _effect_name(scenario: Scenario) -> str:
    given = scenario.rewards.staleness_effect
    return given if isinstance(given, str) else "the scenario's own"


def _signed(one: PairedResult) -> str:
    mean, low, high = one.difference
    return format_signed(mean) + signed_ends(low, high)


def _slower(one: PairedResult) -> str:
    mean, low, high = one.difference
    return f"{abs(100 * mean):.1f} % {'slower' if mean >= 0 else 'faster'}{signed_ends(low, high)}"
