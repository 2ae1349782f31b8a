"""The modes of ``async``: who is trained first, the strict bound, what an update does to rollouts
(docs/policies.md)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.model.setup import MachineSetup
from oppo_sim.policies import Batch
from oppo_sim.policies.registry import make_policy
from tests.cases import Case, cases
from tests.small import Result, linear_costs, run

EXAMPLES = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def simulated(responses: list[int], steps: int, train_s: float, **chosen: Any) -> Result:
    """B = 1, one second an iteration, an update of one second, training of ``train_s`` seconds."""
    machine = chosen.pop("machine", MachineSetup())
    costs = linear_costs(stages={"update_actor": (train_s, 0.0, 0.0)}, update_weights=1.0)
    return run("async", responses, steps=steps, batch=1, costs=costs, machine=machine, settings=chosen)


# Ids 0, 1, 2 from 0 (max_staleness 2). Id 0 (2 tokens) trains 2–8, update 8–9. Id 2 (5 tokens) is scored at 5
# and trains 9–15; id 3 (1 token) is admitted at 9 and scored at 10; id 1 (10 tokens) has 8 at 8 and is scored
# at 11. Update 15–16: then id 3, of version 1, and id 1, of version 0, both wait.
@pytest.mark.parametrize(
    ("order", "trained", "staleness"),
    [("oldest", [0, 2, 1, 3], [0, 1, 2, 2]), ("scored", [0, 2, 3, 1], [0, 1, 1, 3])],
)
def test_what_waits_is_trained_oldest_weights_first_or_in_order_of_scores(
    order: str, trained: list[int], staleness: list[int]
) -> None:
    result = simulated([2, 10, 5, 1, 50, 50], 4, 6.0, max_staleness=2, train_order=order)
    assert result.trained() == [[rollout] for rollout in trained]
    assert list(result.rollouts["staleness"]) == staleness
    assert result.column("timing_s/step") == [9.0, 7.0, 7.0, 7.0]


def test_the_strict_bound_waits_for_what_the_next_update_would_make_too_old() -> None:
    # Two from 0 (8 and 2 tokens). Id 1 trains 2–5, update 5–6. Id 2 (1 token) is scored at 7, but id 0, of
    # version 0, must train now: it has 5 tokens at 5 and is scored at 9. It trains 9–12, update 12–13; id 2
    # trains 13–16, update 16–17. By admission alone id 2 trains 7–10 and id 0 after it, with staleness 2.
    result = simulated([8, 2, 1, 50], 3, 3.0, max_staleness_strategy="wait")
    assert result.trained() == [[1], [0], [2]]
    assert list(result.rollouts["staleness"]) == [0, 1, 1]
    assert result.column("timing_s/step") == [6.0, 7.0, 4.0]
    assert result.column("timing_s/gen") == [2.0, 3.0, 0.0]
    loose = simulated([8, 2, 1, 50], 3, 3.0)
    assert loose.trained() == [[1], [2], [0]]
    assert list(loose.rollouts["staleness"]) == [0, 0, 2]


def test_the_strict_bound_looks_ahead_where_more_than_a_batch_would_be_due_at_once() -> None:
    # B = 1, max_staleness 2, training 0 s, updates 1 s; ids 0, 1, 2 (1, 3, 3 tokens) from 0. Id 0 trains at 1,
    # update 1–2. Id 3 (1 token) is scored at 3, but if it trained now, ids 1 and 2 of version 0 would both be
    # due at version 2. They have 2 tokens at 3 and are scored at 4: id 1 trains, then id 2, then id 3.
    result = simulated([1, 3, 3, 1, 50, 50], 4, 0.0, max_staleness=2, max_staleness_strategy="wait")
    assert result.trained() == [[0], [1], [2], [3]]
    assert list(result.rollouts["staleness"]) == [0, 1, 2, 2]
    assert result.column("timing_s/step") == [2.0, 3.0, 1.0, 1.0]
    loose = simulated([1, 3, 3, 1, 50, 50], 4, 0.0, max_staleness=2)
    assert loose.trained() == [[0], [3], [1], [2]]
    assert list(loose.rollouts["staleness"]) == [0, 0, 2, 3]


def test_without_partial_rollouts_an_update_waits_for_what_has_begun() -> None:
    # One at a time (8, 4, 3, 8 tokens), three from 0. Id 0 trains 8–11; id 1 has 3 tokens then and runs on to
    # 12; id 2 has none and waits for the new weights: update 12–13. Id 1 trains 13–16 while id 2 decodes;
    # both are done at 16, id 3 has not begun: update 16–17. Id 2 trains 17–20; id 3 has 3 tokens and runs on
    # to 25: update 25–26.
    one = MachineSetup(max_num_seqs=1)
    result = simulated([8, 4, 3, 8], 3, 3.0, max_staleness=2, partial_rollout=False, machine=one)
    assert result.trained() == [[0], [1], [2]]
    assert result.column("timing_s/step") == [13.0, 4.0, 9.0]
    assert list(result.rollouts["staleness"]) == [0, 1, 1]
    assert list(result.rollouts["span"]) == [1, 1, 1]
    assert list(result.rollouts["head_version"]) == [0, 0, 1]
    assert result.column(c.TOKENS_RECOMPUTED) == [0, 0, 0]


@pytest.mark.parametrize(("anew", "finished", "recomputed"), [(False, 15.0, 0), (True, 18.0, 3)])
def test_an_interrupted_rollout_keeps_its_kv_or_computes_it_anew(
    anew: bool, finished: float, recomputed: int
) -> None:
    # One at a time, prefill of a second a token, prompts of one token. Id 0 (8 tokens): prompt 0–1, done at
    # 9, trains 9–12. Id 1 (4 tokens): prompt 9–10, tokens at 11 and 12; update 12–13. With its KV its last
    # two tokens come at 14 and 15; without, 1 + 2 tokens are prefilled until 16 and they come at 17 and 18.
    result = run(
        "async",
        [8, 4, 50],
        steps=2,
        batch=1,
        prompts=1,
        settings={"max_staleness": 2},
        machine=MachineSetup(max_num_seqs=1, clear_kv_cache_on_weight_sync=anew),
        costs=linear_costs(
            prefill=(0.0, 1.0, 0.0), stages={"update_actor": (3.0, 0.0, 0.0)}, update_weights=1.0
        ),
    )
    assert list(result.rollouts["finished_s"]) == [9.0, finished]
    assert list(result.rollouts["span"]) == [1, 2]
    # Both first tokens are of version 0, the last token of id 1 is of version 1, which its update begins with.
    assert result.column(c.STALENESS_MEAN) == [0.0, 1.0]
    assert result.column(c.STALENESS_NEWEST_MEAN) == [0.0, 0.0]
    assert result.column(c.TOKENS_RECOMPUTED) == [0, recomputed]


@EXAMPLES
@given(cases(("async",)))
def test_what_each_mode_promises(case: Case) -> None:
    chosen = case.settings
    strict = case.run(settings=chosen | {"max_staleness_strategy": "wait", "train_order": "oldest"})
    assert max(strict.column(c.STALENESS_MAX)) <= chosen["max_staleness"]
    uninterrupted = case.run(settings=chosen | {"partial_rollout": False})
    assert set(uninterrupted.column(c.SPANS_MAX)) == {1}


@EXAMPLES
@given(cases(("async",)))
def test_nothing_scored_is_older_than_what_is_trained_before_it(case: Case) -> None:
    result = case.run(settings=case.settings | {"train_order": "oldest"})
    starts = result.column(c.START_S)
    rows = result.rollouts.to_dict("records")
    groups: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["group_id"], []).append(row)
    first = {group: min(row["head_version"] for row in members) for group, members in groups.items()}
    for row in rows:
        if row["trained_step"] == 0:
            continue
        # What was scored when the step began could have been taken in its place.
        began = starts[row["trained_step"]] * (1 - 1e-9) - 1e-9
        for group, members in groups.items():
            if members[0]["trained_step"] > row["trained_step"] and all(
                m["scored_s"] < began for m in members
            ):
                assert first[group] >= first[row["group_id"]]


def test_the_strict_bound_in_order_of_scores_is_refused() -> None:
    with pytest.raises(OppoError, match="max_staleness_strategy wait needs train_order oldest"):
        make_policy("async", Batch(4), {"max_staleness_strategy": "wait", "train_order": "scored"})
