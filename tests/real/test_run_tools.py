"""Replayed waits for tools: by the clock in free running, whatever the placement; what cannot wait is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import Any

import pandas as pd
import pytest

from oppo_real.engines.interface import Answer, Request, Sampling
from oppo_real.engines.models import build_causal_lm
from oppo_real.engines.torch_actor import ActorLimits, TorchActor
from oppo_real.placement.events import Event, Rested
from oppo_real.placement.inline import InlineWorkerGroup
from oppo_real.run.folder import RealRequest, run_to_folder
from oppo_real.run.setup import build_real_setup
from oppo_real.run.start import run_real
from oppo_real.wrapper import rollout_stream
from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.finished_run import read_run_folder
from oppo_sim.scenario.schema import Scenario
from oppo_sim.simulation import simulate
from tests.real.real_scenario import MODEL, real_scenario

TRACE = {
    "synth": {
        "mean": 12, "p99": 36, "rows": 60, "seed": 1,
        "tools": {"mean_calls": 1.2, "max_calls": 3, "mean_s": 0.2, "mean_tokens": 4},
    },
    "prompt_length": 6,
}  # fmt: skip
PROCESSES = {"placement": {"kind": "processes", "threads": 1}}
TWO = {"num_replicas": 2}


def with_tools(real: dict[str, Any] | None = None, **fields: Any) -> Scenario:
    return real_scenario(real, **{"trace": TRACE, **fields})


def calls_of(scenario: Scenario) -> list[float]:
    """Seconds that each row of the trace waits in all."""
    replay = build_real_setup(scenario).base.replay
    assert replay.waits is not None
    return [sum(wait.seconds for wait in waits) for waits in replay.waits]


@pytest.mark.parametrize("stop_check", ["token", "chunk"])
def test_lock_step_in_processes_equals_lock_step_in_one(stop_check: str) -> None:
    trace = {**TRACE, "synth": {**TRACE["synth"], "tools": {**TRACE["synth"]["tools"], "mean_s": 5.3}}}
    policy = {"name": "oppo", "overcommit": 2, "chunk_size": 5, "stop_check": stop_check}
    fields: dict[str, Any] = {"rollout": TWO, "trace": trace, "policy": policy, "steps": 3}
    inline = run_real(with_tools({"lock_step": True}, **fields))
    processes = run_real(with_tools({"lock_step": True, **PROCESSES}, **fields))
    pd.testing.assert_frame_equal(inline.rollouts, processes.rollouts)
    pd.testing.assert_frame_equal(inline.steps, processes.steps)


@pytest.mark.parametrize("placement", [{}, PROCESSES], ids=["inline", "processes"])
@pytest.mark.parametrize("cleared", [False, True], ids=["kept", "cleared"])
def test_in_free_running_nobody_finishes_before_his_tools_have_answered(
    placement: dict[str, Any], cleared: bool
) -> None:
    rollout = {**TWO, "clear_kv_cache_on_tool_call": cleared}
    scenario = with_tools(placement, steps=4, rollout=rollout)
    run = run_real(scenario)
    waited = calls_of(scenario)
    rollouts = run.rollouts
    assert len(rollouts) == 4 * scenario.rollout_batch_size
    began = rollouts[c.ADMITTED_S]
    needed = [waited[row] for row in rollouts[c.TRACE_ROW]]
    assert max(needed) > 0.2
    assert (rollouts[c.FINISHED_S] - began >= needed).all()
    assert run.steps[c.TOKENS_DECODED].sum() == (
        run.steps[c.TOKENS_TRAINED].sum() + run.steps[c.TOKENS_IN_FLIGHT].iloc[-1]
    )


@pytest.mark.parametrize(
    "policy", [{"name": "oppo", "overcommit": 2, "chunk_size": 5}, "sequential"], ids=["oppo", "sequential"]
)
def test_a_replica_that_is_joined_before_its_rest_is_heard_of_decodes_on(
    monkeypatch: pytest.MonkeyPatch, policy: Any
) -> None:
    own, late = InlineWorkerGroup.events, []

    def events(group: InlineWorkerGroup, timeout: float | None = None) -> list[Event]:
        """News that a replica rests come together with the next answer, and after it."""
        found = own(group, timeout)
        answer = group._alarms.next()
        if answer is not None and any(isinstance(event, Rested) for event in found):
            sleep(max(0.0, answer - group.now()))
            rested = [event for event in found if isinstance(event, Rested)]
            late.extend(rested)
            others = [event for event in found if not isinstance(event, Rested)]
            return [*others, *group._alarms.due(group.now()), *rested]
        return found

    monkeypatch.setattr(InlineWorkerGroup, "events", events)
    run = run_real(with_tools(steps=4, rollout=TWO, policy=policy))
    assert late
    assert run.steps[c.TOKENS_DECODED].sum() == (
        run.steps[c.TOKENS_TRAINED].sum() + run.steps[c.TOKENS_IN_FLIGHT].iloc[-1]
    )


def test_an_asynchronous_run_waits_on_while_it_trains() -> None:
    real = {**PROCESSES, "ppo": {"enabled": False}}
    scenario = with_tools(real, policy="async", steps=4, placement={"training": "separate"})
    run = run_real(scenario)
    waited = calls_of(scenario)
    needed = [waited[row] for row in run.rollouts[c.TRACE_ROW]]
    assert (run.rollouts[c.FINISHED_S] - run.rollouts[c.ADMITTED_S] >= needed).all()


def test_a_run_that_was_broken_off_resumes_with_those_who_wait(tmp_path: Path) -> None:
    trace = {**TRACE, "synth": {**TRACE["synth"], "tools": {**TRACE["synth"]["tools"], "mean_s": 30}}}
    policy = {"name": "oppo", "overcommit": 4, "chunk_size": 5}
    real = {"lock_step": True, "checkpoint_every": 1}

    def request(name: str, *, resume: bool = False) -> RealRequest:
        scenario = with_tools(real, trace=trace, policy=policy, steps=8)
        return RealRequest(build_real_setup(scenario), tmp_path / name, resume=resume, figures=False)

    class Stop(Exception):
        pass

    def crash(done: int, row: object) -> None:
        if done == 4:
            raise Stop

    run_to_folder(request("whole"), lambda done, row: None)
    with pytest.raises(Stop):
        run_to_folder(request("broken"), crash)
    run_to_folder(request("broken", resume=True), lambda done, row: None)
    whole, broken = (read_run_folder(tmp_path / name) for name in ("whole", "broken"))
    again = [c.TOKENS_PREFILLED, c.TOKENS_RECOMPUTED, c.TOKENS_SCORED, c.SCORER_PIECES, c.SCORER_BATCHES]
    for name in ("steps.parquet", "rollouts.parquet"):
        one, other = (run.frame(name) for run in (whole, broken))
        drop = [column for column in again if column in one.columns]
        pd.testing.assert_frame_equal(one.drop(columns=drop), other.drop(columns=drop))
    steps = whole.frame("steps.parquet")
    assert steps[c.ROLLOUTS_DEFERRED].iloc[3] > 0
    assert steps[c.TIMING_STEP].max() > 30


def test_the_lengths_that_a_run_made_wait_again_when_they_are_replayed() -> None:
    run = run_real(with_tools({"lock_step": True}, steps=3))
    rows = run.trace
    calls = [len(seconds) for seconds in rows[c.TOOL_SECONDS]]
    assert sum(calls) > 0
    assert [len(turns) - 1 for turns in rows[c.TURN_LENGTHS]] == calls
    assert [sum(turns) for turns in rows[c.TURN_LENGTHS]] == list(rows[c.RESPONSE_LENGTH])


def test_lock_step_of_a_scenario_file_decides_as_its_simulation() -> None:
    scenario = with_tools({"lock_step": True}, rollout=TWO)
    real, simulated = run_real(scenario), simulate(scenario)
    names = [c.ROLLOUT_ID, c.TRAINED_STEP, c.TRAINED_RANK, c.RESPONSE_LENGTH, c.STALENESS, c.DEFERRALS]
    pd.testing.assert_frame_equal(real.rollouts[names], simulated.rollouts[names])
    columns = [c.ROLLOUTS_DEFERRED, c.timing("gen"), c.TOKENS_PREFILLED, c.TOKENS_RECOMPUTED]
    pd.testing.assert_frame_equal(real.steps[columns], simulated.steps[columns])


def test_what_cannot_wait_is_refused() -> None:
    with pytest.raises(OppoError, match=r"real\.ppo cannot train the rollouts of a trace with turns"):
        build_real_setup(with_tools({"ppo": {"enabled": True}}))
    with (
        pytest.raises(OppoError, match="a stream of rollouts hands out no tokens of tools"),
        rollout_stream(with_tools()),
    ):
        pass


# ---- the torch actor -----------------------------------------------------------------------------------------


def turns(actor: TorchActor, request: Request, answers: list[Answer], ends: list[int]) -> list[int]:
    """Response tokens of one rollout that calls after each of ``ends`` but the last."""
    made: list[int] = []
    prompt, longest, unseen = request.prompt, request.max_response_length, len(request.prompt)
    given: tuple[Answer, ...] = ()
    for turn, end in enumerate(ends):
        last = turn == len(ends) - 1
        actor.submit(
            [
                Request(
                    request.rollout_id,
                    prompt,
                    longest,
                    ends[-1],
                    tuple(made),
                    given,
                    None if last else end,
                    unseen,
                )
            ]
        )
        while len(made) < end:
            (new,) = actor.step()
            made.extend(new.tokens)
        assert new.calls_tool == (not last)
        assert (new.finish_reason is not None) == last
        assert not actor.running()
        assert actor.step() == []
        if not last:
            given = (*given, answers[turn])
            unseen = len(answers[turn].tokens)
    return made


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("budget", [None, 3])
def test_a_turn_goes_on_from_the_whole_context_with_and_without_kept_kv(
    kept: bool, budget: int | None
) -> None:
    limits = ActorLimits(keep_kv_on_tool_call=kept, max_batched_tokens=budget)
    actor = TorchActor(build_causal_lm(MODEL), Sampling(temperature=0.0), limits)
    answers = [Answer(3, (7, 8, 9, 10)), Answer(8, ())]
    made = turns(actor, Request(4, (1, 2, 3, 4, 5), 40), answers, [3, 8, 11])
    # Greedily, each turn is what the model says after all before it, the answers in their places.
    oracle = TorchActor(build_causal_lm(MODEL), Sampling(temperature=0.0))
    context = [1, 2, 3, 4, 5]
    for begin, end, answer in zip((0, 3, 8), (3, 8, 11), [*answers, Answer(11, ())], strict=True):
        oracle.submit([Request(0, tuple(context), end - begin)])
        said = [token for _ in range(end - begin) for new in oracle.step() for token in new.tokens]
        assert made[begin:end] == said
        context += [*said, *answer.tokens]
    counts = actor.counts()
    assert counts.decoded == 11
    assert counts.prefilled == 5 + 4
    # 5 + 3 and 5 + 8 + 4 tokens again, where their KV was given up.
    assert counts.recomputed == (0 if kept else 8 + 17)


def test_kept_kv_is_given_up_for_those_that_run_and_at_new_weights() -> None:
    limits = ActorLimits(kv_capacity_tokens=20, kv_block_tokens=1, keep_kv_on_tool_call=True)
    model = build_causal_lm(MODEL)
    actor = TorchActor(model, Sampling(temperature=0.0), limits)
    actor.submit([Request(0, (1, 2, 3, 4), 8, 6, call_after=2), Request(1, (5, 6, 7), 12, 12)])
    while len(actor.running()) == 2:
        actor.step()
    # 6 are kept of id 0, id 1 grows to 15 and needs more than the 14 that are left.
    while actor.running():
        actor.step()
    back = Request(0, (1, 2, 3, 4), 8, 6, (9, 9), (Answer(2, (3,)),), unseen=1)
    actor.submit([back])
    actor.step()
    assert actor.counts().recomputed == 6
    assert actor.counts().preemptions == 0
    actor.abort([0])
    actor.submit([Request(2, (1, 2, 3, 4), 8, 6, call_after=2)])
    actor.step(), actor.step()
    actor.load_weights(model.state_dict(), 1, keep_kv=False)
    actor.submit([Request(2, (1, 2, 3, 4), 8, 6, (9, 9), (Answer(2, ()),), unseen=0)])
    actor.step()
    assert actor.counts().recomputed == 12


def test_no_more_kept_kv_is_given_up_than_is_in_the_way() -> None:
    limits = ActorLimits(kv_capacity_tokens=26, kv_block_tokens=1, keep_kv_on_tool_call=True)
    actor = TorchActor(build_causal_lm(MODEL), Sampling(temperature=0.0), limits)
    calling = [Request(i, (1, 2, 3, 4), 8, 6, call_after=2) for i in (0, 2)]
    actor.submit([*calling, Request(1, (5, 6, 7), 12, 12)])
    # 6 are kept of ids 0 and 2 each, id 1 grows to 15: the later one's are one too many.
    while actor.running():
        actor.step()
    recomputed = []
    for one in calling:
        actor.submit([replace(one, generated=(9, 9), answers=(Answer(2, (3,)),), unseen=1, call_after=None)])
        while actor.step():
            pass
        recomputed.append(actor.counts().recomputed)
    assert recomputed == [0, 6]


def test_a_request_keeps_the_order_of_turns_and_answers() -> None:
    request = Request(0, (1, 2), 20, 6, (3, 4, 5), (Answer(1, (9, 9)), Answer(3, (8,))), 5, 1)
    assert request.context == (1, 2, 3, 9, 9, 4, 5, 8)
    assert (request.turn_end, request.final_length, request.answer_tokens) == (5, 6, 3)
    assert [request.end_of_turn(made) for made in (4, 5, 6)] == [(None, False), (None, True), ("stop", False)]
