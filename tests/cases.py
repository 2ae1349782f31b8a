"""Random small scenarios for the property tests and for the comparison with the brute force."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from oppo_sim.costs.adjusted import adjusted
from oppo_sim.costs.context import StagesRun
from oppo_sim.costs.interface import BatchShape, Costs
from oppo_sim.costs.terms import FACTORS, NO_TERMS, SECONDS, CostTerms
from oppo_sim.model.setup import MachineSetup
from oppo_sim.turns import ToolWait
from tests.own_policies import OWN
from tests.small import Result, linear_costs, run

STAGES = ("old_log_prob", "ref", "values", "adv", "update_critic", "update_actor")
CARRYING = ("inter", "oppo", "partial-rollout", "april")
PHASED = ("sequential", "intra", "rollout-overlap", *CARRYING, "tail-batching", "oracle")
POLICIES = (*PHASED, "one-step-off", "async")
ASYNCHRONOUS = ("one-step-off", "async", "ahead", "free", "uninterrupted")

Triple = tuple[float, float, float]


@dataclass(frozen=True)
class Case:
    """Everything one random run needs."""

    policy: str
    settings: dict[str, Any]
    batch: int
    group_size: int
    steps: int
    prompts: tuple[int, ...]
    responses: tuple[int, ...]
    machine: MachineSetup
    decode: Triple
    prefill: Triple
    score: Triple
    stages: dict[str, Triple]
    update_weights: float
    parallel_inference: bool
    demands: dict[str, tuple[float, float]]
    rewards: tuple[float, ...]
    terms: CostTerms = NO_TERMS
    sample_rewards: tuple[float, ...] = ()
    """By which groups are judged, one entry a row; empty: no group is."""
    calls: tuple[tuple[ToolWait, ...], ...] = ()
    """For tools, one entry a row."""
    gen_batch_size: int | None = None
    """Rollouts generated at a time; None: a group is replaced at once."""

    @property
    def nominal(self) -> BatchShape:
        """What demands of training are meant for."""
        return BatchShape((6,) * self.batch, (30,) * self.batch)

    def costs(self) -> Costs:
        costs = linear_costs(
            self.decode,
            self.prefill,
            self.score,
            self.stages,
            self.update_weights,
            self.parallel_inference,
            self.demands,
        )
        return adjusted(costs, self.terms, StagesRun(True, True, True, True), self.nominal)

    def run(self, **changes: Any) -> Result:
        given: dict[str, Any] = {
            "steps": self.steps,
            "batch": self.batch,
            "prompts": list(self.prompts),
            "group_size": self.group_size,
            "settings": self.settings,
            "machine": self.machine,
            "costs": self.costs(),
            "rewards": list(self.rewards),
            "waits": list(self.calls) or None,
            "sample_rewards": self.sample_rewards or None,
            "gen_batch_size": self.gen_batch_size,
        }
        policy = changes.pop("policy", self.policy)
        return run(policy, list(self.responses), **(given | changes))


def seconds(low: float = 0.0, high: float = 2.0) -> st.SearchStrategy[float]:
    """Costs on a coarse grid, so that ties happen, and off it; short ones, too, but none within the tolerance
    of an instant, where what is one instant depends on who asks."""
    anywhere = st.floats(low, high, allow_nan=False).map(lambda x: 0.0 if x < 1e-6 else x)
    short = st.floats(-6.0, -3.0).map(lambda power: max(low, 10.0**power))
    return st.one_of(st.sampled_from([low, 0.25, 0.5, 1.0, high]), anywhere, short)


def triples(fixed_low: float, scale: float) -> st.SearchStrategy[Triple]:
    small = st.sampled_from([0.0, scale, scale * 1.7, scale / 3])
    return st.tuples(seconds(fixed_low), small, st.sampled_from([0.0, scale / 30, scale / 170]))


def terms() -> st.SearchStrategy[CostTerms]:
    """None at all, or some of the terms."""
    factors = st.one_of(st.sampled_from([0.5, 2.0]), st.floats(0.3, 3.0))
    some = dict.fromkeys(FACTORS, factors) | dict.fromkeys(SECONDS, seconds())
    chosen = st.fixed_dictionaries({}, optional=some).map(lambda given: CostTerms(**given))
    return st.one_of(st.just(NO_TERMS), chosen)


@st.composite
def cases(
    draw: st.DrawFn,
    policies: tuple[str, ...] = POLICIES,
    contention: bool = True,
    tools: bool = True,
    in_batches: bool = False,
) -> Case:
    """A random scenario that the model accepts; in a third of those with ``tools`` rollouts wait for some.
    ``in_batches``: groups are judged, and replaced in whole generation batches."""
    policy = draw(st.sampled_from(policies))
    group_size = draw(st.sampled_from([2, 3] if in_batches else [1, 1, 1, 2, 3]))
    batch = group_size * draw(st.integers(1, 4))
    rows = draw(st.integers(3, 40))
    longest = draw(st.sampled_from([3, 8, 20, 60]))
    responses = tuple(draw(st.lists(st.integers(1, longest), min_size=rows, max_size=rows)))
    prompts = tuple(draw(st.lists(st.integers(1, 12), min_size=rows, max_size=rows)))
    if group_size > 1 and draw(st.integers(0, 3)):  # samples of one prompt, mostly
        prompts = tuple(prompts[row // group_size] for row in range(rows))
    asynchronous = policy in ASYNCHRONOUS
    static = not (asynchronous or in_batches) and draw(st.integers(0, 4)) == 0
    calls = () if static or not tools or draw(st.integers(0, 2)) else draw(tool_calls(responses))
    answers = max((sum(call.tokens for call in row) for row in calls), default=0)
    block = draw(st.sampled_from([1, 2, 5, 16]))
    needed = -(-(12 + longest + answers) // block) * block
    capacity = None if static or draw(st.booleans()) else needed + draw(st.integers(0, 3 * needed))
    scorer_block = draw(st.sampled_from([1, 1, 2, 8, 128]))
    cache = -(-(12 + longest + answers) // scorer_block) * scorer_block + draw(st.integers(0, 3 * longest))
    scoring_on = (
        draw(st.sampled_from(["separate", "separate", "rollout", "training"])) if contention else "separate"
    )
    machine = MachineSetup(
        num_replicas=draw(st.integers(1, 3)),
        num_workers=draw(st.integers(1, 3)),
        batching="static" if static else "continuous",
        kv_capacity_tokens=capacity,
        kv_block_tokens=block,
        max_num_seqs=None if static else draw(st.sampled_from([None, None, 1, 2, 5])),
        clear_kv_cache_on_weight_sync=draw(st.booleans()),
        keeps_kv_between_rounds=draw(st.sampled_from([True, True, False])),
        send_s_per_token=draw(st.sampled_from([0.0, 0.0, 0.013, 0.1])),
        clear_kv_cache_on_tool_call=bool(calls) and draw(st.booleans()),
        shares_prefixes=not static and draw(st.booleans()),
        groups_together=draw(st.booleans()),
        max_scoring_tokens=draw(st.sampled_from([1, 7, 30, 10_000])),
        scorer_kv_capacity_tokens=draw(st.sampled_from([None, None, 5, 40])),
        scorer_block_tokens=scorer_block,
        scorer_cache_tokens=draw(st.sampled_from([None, None, cache])),
        scorer_iteration_tokens=draw(st.sampled_from([None, 1, 9, 60])),
        streamable=draw(st.integers(0, 5)) > 0,
        scoring_on=scoring_on,
        training_on="separate" if asynchronous else draw(st.sampled_from(["separate", "rollout"])),
        sharing=draw(st.sampled_from(["time_slice", "mps", "streams"])),
        interference=draw(st.sampled_from([1.0, 1.3])),
        turn_s=draw(st.sampled_from([0.0, 0.4])),
        shares_host=contention and scoring_on == "separate" and draw(st.booleans()),
        slowdowns=draw(st.sampled_from([None, None, (1.5, 1.0), (1.0, 1.2), (1.1, 1.4)])),
    )
    shares = st.sampled_from([0.0, 0.3, 0.6, 1.0])
    settings = draw(policy_settings(policy, group_size, batch))
    judged: tuple[float, ...] = ()
    unjudged = asynchronous and settings.get("score_granularity") == "batch"
    judge = group_size > 1 and policy != "oracle" and not unjudged and not static
    if in_batches or (judge and draw(st.booleans())):
        judged = draw(sample_rewards(rows, group_size))
    return Case(
        policy,
        settings,
        batch,
        group_size,
        draw(st.integers(1, 8)),
        prompts,
        responses,
        machine,
        draw(triples(0.25, 0.3)),
        draw(triples(0.0, 0.02)),
        draw(triples(0.0, 0.05)),
        {stage: draw(triples(0.0, 0.01)) for stage in STAGES},
        draw(seconds()),
        draw(st.booleans()),
        {kind: (draw(shares), draw(shares)) for kind in ("decode", "prefill", "score", "train", "sync")},
        tuple(draw(st.lists(st.floats(-1, 1, allow_nan=False), min_size=9, max_size=9))),
        draw(terms()),
        judged,
        calls,
        batch + group_size * draw(st.integers(0, 4)) if in_batches else None,
    )


@st.composite
def sample_rewards(draw: st.DrawFn, rows: int, group_size: int) -> tuple[float, ...]:
    """0 or 1 a row; rewards differ in a group of each half of the trace, so that no step lasts for ever."""
    rewards = draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=rows, max_size=rows))
    for group in (0, rows // group_size // 2):
        rewards[group * group_size : group * group_size + 2] = [0.0, 1.0]
    return tuple(rewards)


@st.composite
def tool_calls(draw: st.DrawFn, responses: tuple[int, ...]) -> tuple[tuple[ToolWait, ...], ...]:
    """Up to three calls of tools in a response, some of no seconds or no tokens."""
    call = st.tuples(st.integers(0, 60), seconds(0.0, 5.0), st.integers(0, 9))
    kinds = draw(st.lists(st.lists(call, max_size=3), min_size=1, max_size=5))
    rows = []
    for row, length in enumerate(responses):
        places = {1 + place % (length - 1): rest for place, *rest in kinds[row % len(kinds)] if length > 1}
        rows.append(tuple(ToolWait(after, *places[after]) for after in sorted(places)))
    return tuple(rows)


@st.composite
def policy_settings(draw: st.DrawFn, policy: str, group_size: int, batch: int) -> dict[str, Any]:
    """Settings that ``policy`` accepts."""
    settings: dict[str, Any] = {}
    if policy in OWN:
        return settings
    chunk_sizes = st.integers(1, 25)
    explored = st.fixed_dictionaries(
        {
            "control": st.just("explore"),
            "candidates": st.lists(chunk_sizes, min_size=1, max_size=2, unique=True),
            "explore_every": st.integers(4, 6),
            "explore_steps": st.integers(1, 2),
        }
    )
    raced = st.fixed_dictionaries(
        {
            "control": st.just("race"),
            "candidates": st.lists(chunk_sizes, min_size=1, max_size=3, unique=True),
            "explore_every": st.integers(9, 11),
            "min_steps": st.just(2),
            "max_steps": st.integers(2, 3),
            "level": st.sampled_from([0.05, 0.3]),
        }
    )
    granularities = st.sampled_from(["batch", "rollout", "chunk"])
    if policy != "partial-rollout":
        settings["chunk_size"] = draw(st.one_of(chunk_sizes, explored, raced))
    else:
        settings["token_budget"] = draw(chunk_sizes)
    if policy in ("sequential", "intra", "rollout-overlap", "inter", "oppo", "tail-batching", "oracle"):
        settings["stop_check"] = draw(st.sampled_from(["token", "chunk"]))
    if policy in CARRYING:
        rollouts = st.integers(0, 2 * batch // group_size).map(lambda groups: groups * group_size)
        controlled = st.fixed_dictionaries(
            {
                "control": st.just("reward_slope"),
                "initial": st.just(group_size),
                "min": st.just(0),
                "max": st.just(4 * group_size),
                "window": st.integers(1, 3),
                "proportional": st.booleans(),
            }
        )
        if policy != "april":
            settings["overcommit"] = draw(st.one_of(rollouts, controlled) if policy == "oppo" else rollouts)
        settings["max_deferrals"] = draw(st.sampled_from([None, None, 0, 1, 2]))
    if policy in ("inter", "oppo", "april", "tail-batching", "one-step-off", "async", "oracle"):
        settings["score_granularity"] = draw(granularities)
    if policy == "tail-batching":
        settings["over_issue"] = draw(st.sampled_from([1.0, 1.25, 1.5, 2.0]))
    if policy == "async":
        settings["max_staleness"] = draw(st.integers(0, 3))
        settings["max_staleness_strategy"] = draw(st.sampled_from(["admission", "wait"]))
        if settings["max_staleness_strategy"] == "admission":
            settings["train_order"] = draw(st.sampled_from(["oldest", "scored"]))
        settings["partial_rollout"] = draw(st.booleans())
    if policy == "oracle":
        settings["window"] = draw(st.integers(1, 3))
    return settings
