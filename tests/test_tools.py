"""Rollouts that wait for tools, worked out by hand; the working stands above each check. One decode iteration
takes 1 s unless a test says otherwise."""

from typing import Any

import pytest

from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.model.setup import MachineSetup
from oppo_sim.policies.interface import Batch, Policy, PoolView, StepPlan
from oppo_sim.scenario.build import build_setup
from oppo_sim.scenario.load import load_scenario
from oppo_sim.turns import ToolWait
from tests.small import linear_costs, run

PREFILL = (0.5, 0.1, 0.01)
"""Seconds of a batch, of a token, of a query-key pair."""


def test_a_replica_waits_for_a_tool_when_it_has_nothing_else() -> None:
    # Id 0 calls after 2 of 4 tokens and waits 3 s; id 1 has 3 tokens. t = 2: id 0 leaves; t = 3: id 1
    # finishes; t = 5: the answer; 2 more tokens: t = 7. Busy 5 of 7 s; 7 tokens decoded, 5 of the tool
    # prefilled.
    waits = [(ToolWait(2, 3.0, 5),), ()]
    result = run("sequential", [4, 3], steps=1, batch=2, waits=waits)
    assert result.column(c.timing("gen")) == [7.0]
    assert result.column(c.TOKENS_DECODED) == [7]
    assert result.column(c.TOKENS_TRAINED) == [7]
    assert result.column(c.TOKENS_PREFILLED) == [5]
    assert result.column(c.BUSY_ROLLOUT) == [pytest.approx(5 / 7)]


def test_an_answer_joins_before_the_next_iteration() -> None:
    # Id 0 calls at t = 1 for 1.5 s, the answer is there at 2.5 while id 1 decodes its third token: id 0 goes on
    # at t = 3 and finishes with its second token at t = 4.
    result = run("sequential", [2, 6], steps=1, batch=2, waits=[(ToolWait(1, 1.5, 0),), ()])
    assert list(result.rollouts[c.FINISHED_S]) == [4.0, 6.0]


@pytest.mark.parametrize(
    ("cleared", "seconds", "recomputed"),
    [
        # The answer's 4 tokens over the 12 there are: 0.5 + 0.4 + (4·12 + 8)·0.01.
        (False, 0.5 + 0.4 + 0.56, 0),
        # The whole context of 16: 0.5 + 1.6 + 128·0.01.
        (True, 0.5 + 1.6 + 1.28, 12),
    ],
)
def test_the_answer_is_prefilled_over_kept_kv_or_with_all_before_it(
    cleared: bool, seconds: float, recomputed: int
) -> None:
    # Prompt 10: 0.5 + 1 + 0.5 = 2 s; 2 tokens; 7 s of waiting; the prefill; 3 tokens.
    machine = MachineSetup(clear_kv_cache_on_tool_call=cleared)
    costs = linear_costs(prefill=PREFILL)
    given: dict[str, Any] = {
        "prompts": 10,
        "machine": machine,
        "costs": costs,
        "waits": [(ToolWait(2, 7.0, 4),)],
    }
    result = run("sequential", [5], steps=1, batch=1, **given)
    assert result.column(c.timing("gen")) == [pytest.approx(2 + 2 + 7 + seconds + 3)]
    assert result.column(c.TOKENS_PREFILLED) == [14]
    assert result.column(c.TOKENS_RECOMPUTED) == [recomputed]


def test_training_and_scoring_see_the_tools_tokens() -> None:
    # 10 prompt, 5 decoded, 4 of the tool: 19 tokens, 19²/2 pairs. Pieces of 2 decoded tokens: 12 at t = 2, then
    # 4 + 2 with the answer, then the last 1.
    stages = {"update_actor": (0.0, 1.0, 0.1)}
    given: dict[str, Any] = {
        "prompts": 10,
        "costs": linear_costs(stages=stages),
        "waits": [(ToolWait(2, 7.0, 4),)],
    }
    result = run("intra", [5], steps=1, batch=1, settings={"chunk_size": 2}, **given)
    assert result.column(c.timing("update_actor")) == [pytest.approx(19 + 19 * 19 / 2 * 0.1)]
    assert result.column(c.TOKENS_SCORED) == [19]
    assert result.column(c.SCORER_PIECES) == [3]


def test_a_carried_rollout_waits_on_while_others_train() -> None:
    # B = 1, Δ = 1. Id 1 calls at t = 1 for 10 s; id 0 finishes at t = 2 and trains for 6 s. Step 1 begins at
    # t = 8 with id 2 of 9 tokens; the answer comes at t = 11 and id 1 finishes with one token at t = 12: it is
    # trained in step 1, stale by 1.
    costs = linear_costs(stages={"update_actor": (6.0, 0.0, 0.0)})
    waits = [(), (ToolWait(1, 10.0, 0),), ()]
    result = run("inter", [2, 2, 9], steps=2, batch=1, settings={"overcommit": 1}, costs=costs, waits=waits)
    assert result.trained() == [[0], [1]]
    assert result.column(c.timing("gen")) == [2.0, 4.0]
    assert list(result.rollouts[c.STALENESS]) == [0, 1]


def test_a_round_that_nobody_can_begin_waits_for_an_answer() -> None:
    # Rounds of 2. Id 0 calls at t = 1, for 4 s; id 1 finishes at t = 2: the barrier. Nobody has work until
    # t = 5, when the next round begins: 2 tokens, a barrier at 7, the last one at 8.
    settings = {"chunk_size": 2, "stop_check": "chunk"}
    waits = [(ToolWait(1, 4.0, 0),), ()]
    result = run("intra", [4, 2], steps=1, batch=2, settings=settings, waits=waits)
    assert result.column(c.timing("gen")) == [8.0]


def test_an_answer_within_a_round_waits_for_the_barrier_where_its_replica_has_reached_it() -> None:
    # Two replicas, rounds of 4. Id 0 calls at t = 1 for 1 s; its replica has nothing else and is at the barrier,
    # which the other reaches at t = 4. Id 0 then makes its last token: t = 5.
    settings = {"chunk_size": 4, "stop_check": "chunk"}
    given: dict[str, Any] = {"machine": MachineSetup(num_replicas=2), "settings": settings}
    result = run("intra", [2, 4], steps=1, batch=2, waits=[(ToolWait(1, 1.0, 0),), ()], **given)
    assert list(result.rollouts[c.ROLLOUT_ID]) == [1, 0]
    assert list(result.rollouts[c.FINISHED_S]) == [4.0, 5.0]


def test_kept_kv_makes_room_for_those_that_run() -> None:
    # Room for 14 tokens. Prompts of 4; id 0 calls after 2 and is to keep 6, id 1 grows to 4 + 6 = 10: when its
    # fifth token needs a ninth place, 6 + 9 > 14, and id 0 gives its 6 up. They are recomputed.
    machine = MachineSetup(kv_capacity_tokens=14, kv_block_tokens=1)
    given: dict[str, Any] = {"prompts": 4, "machine": machine, "waits": [(ToolWait(2, 9.0, 1),), ()]}
    result = run("sequential", [3, 6], steps=1, batch=2, **given)
    assert result.column(c.TOKENS_RECOMPUTED) == [6]
    assert result.column(c.KV_PREEMPTIONS) == [0]
    roomy = {**given, "machine": MachineSetup(kv_capacity_tokens=16, kv_block_tokens=1)}
    assert run("sequential", [3, 6], steps=1, batch=2, **roomy).column(c.TOKENS_RECOMPUTED) == [0]


def test_a_waiting_rollout_is_not_deferred_for_it() -> None:
    # Id 1 calls at t = 1 for 100 s. In step 0 it decodes and is deferred; in steps 1 and 2 it does not decode:
    # one deferral when it is trained at last.
    waits = [(), (ToolWait(1, 100.0, 0),), (), (), (ToolWait(1, 500.0, 0),), ()]
    result = run("inter", [40, 2, 40, 40, 3, 40], steps=4, batch=1, settings={"overcommit": 1}, waits=waits)
    deferrals = dict(zip(result.rollouts[c.ROLLOUT_ID], result.rollouts[c.DEFERRALS], strict=True))
    assert deferrals[1] == 1


def test_a_dropped_rollout_hears_of_no_tool() -> None:
    # Tail batching, B = 2, three in flight: id 0 calls at t = 1 and is dropped at t = 3. Its answer, due at t = 6,
    # finds it dropped; run again in the long step it calls again.
    waits = [(ToolWait(1, 5.0, 2),), (), (), (ToolWait(1, 5.0, 2),), (), ()]
    result = run(
        "tail-batching", [2, 3, 3, 2, 3, 3], steps=3, batch=2, settings={"over_issue": 1.5}, waits=waits
    )
    assert result.trained() == [[1, 2], [4, 5], [0, 3]]
    assert result.column(c.timing("gen")) == [3.0, 3.0, 7.0]


def test_policies_see_who_waits_and_the_turns_that_are_done() -> None:
    seen: list[list[tuple[int, bool, int]]] = []

    class Looking(Policy):
        name = "looking"

        def plan(self, pool: PoolView) -> StepPlan:
            seen.append([(view.turns_done, view.waits_for_tool, view.generated) for view in pool.unfinished])
            return self.refill(pool, overcommit=1, chunk_size=1)

    # Id 1 calls at t = 1 and at t = 4, for 2 and for 90 s; steps end at t = 2 and 5.
    waits = [(), (ToolWait(1, 2.0, 0), ToolWait(2, 90.0, 0)), (), ()]
    run(Looking(Batch(1)), [2, 9, 3, 3], steps=3, batch=1, waits=waits)
    assert seen == [[], [(0, True, 1)], [(1, True, 2)]]


def test_a_padded_batch_does_not_wait_for_tools(tmp_path: Any) -> None:
    import numpy as np
    import pandas as pd

    from oppo_sim.traces.storage import save_trace

    lists = {
        "turn_response_lengths": [np.array([3, 4])],
        "tool_seconds": [np.array([1.5])],
        "tool_tokens": [np.array([7])],
    }
    path = tmp_path / "tools.parquet"
    save_trace(pd.DataFrame({"prompt_length": [5], "response_length": [7], **lists}), path)
    scenario = ["rollout.batching=static", f"trace={{path: {path}}}", "rollout.kv_capacity_tokens=null"]
    with pytest.raises(OppoError, match="static cannot run a trace with turns"):
        build_setup(load_scenario("h200-single", [*scenario, "rollout.max_num_seqs=null"]))
