"""Engines in processes: the same decisions in lock-step, and real overlap in free running."""

from __future__ import annotations

from threading import Event, Thread

import pandas as pd
import pytest
import torch

from oppo_real.placement.connected import ConnectedWorkerGroup
from oppo_real.placement.processes import ProcessTransport
from oppo_real.run.signals import TrainingThread
from oppo_real.run.start import run_real
from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.results.spans import Span
from tests.real.real_scenario import real_scenario

PROCESSES = {"placement": {"kind": "processes", "threads": 1}}
TWO = {"rollout": {"num_replicas": 2}}


def overlap(one: list[Span], other: list[Span]) -> float:
    """Seconds during which an activity of ``one`` and one of ``other`` went on together."""
    return sum(max(0.0, min(a.end_s, b.end_s) - max(a.start_s, b.start_s)) for a in one for b in other)


def test_lock_step_in_processes_equals_lock_step_in_one() -> None:
    inline = run_real(real_scenario({"lock_step": True}, **TWO))
    processes = run_real(real_scenario({"lock_step": True, **PROCESSES}, **TWO))
    pd.testing.assert_frame_equal(inline.rollouts, processes.rollouts)
    pd.testing.assert_frame_equal(inline.steps, processes.steps)


def test_free_running_scores_while_it_decodes_and_orders_by_measured_instants() -> None:
    run = run_real(real_scenario(PROCESSES, steps=3), timeline=(0, 2))
    assert list(run.steps[c.STEP]) == [0, 1, 2]
    assert (run.steps[c.timing("gen")] > 0).all()
    decoding = [span for span in run.spans if span.stage == "decode"]
    scoring = [span for span in run.spans if span.stage == "score"]
    assert overlap(decoding, scoring) > 0
    finished = run.rollouts.sort_values([c.TRAINED_STEP, c.TRAINED_RANK])
    for _, batch in finished.groupby(c.TRAINED_STEP):
        fresh = batch[batch[c.FINISHED_S] >= run.steps[c.START_S][batch[c.TRAINED_STEP].iloc[0]]]
        assert fresh[c.FINISHED_S].is_monotonic_increasing
    assert (run.rollouts[c.SCORED_S] >= run.rollouts[c.FINISHED_S]).all()
    assert (
        run.steps[c.TOKENS_DECODED].sum()
        == run.steps[c.TOKENS_TRAINED].sum() + run.steps[c.TOKENS_IN_FLIGHT].iloc[-1]
    )
    assert (
        run.steps[c.TIMING_STEP].cumsum().iloc[:-1].to_numpy()
        <= run.steps[c.START_S].iloc[1:].to_numpy() + 1e-6
    ).all()


def test_an_asynchronous_policy_decodes_during_training() -> None:
    ppo = {"enabled": True, "num_ppo_epochs": 4, "learning_rate": 1e-4}
    run = run_real(
        real_scenario({**PROCESSES, "ppo": ppo}, policy="async", steps=4, placement={"training": "separate"}),
        timeline=(0, 3),
    )
    decoding = [span for span in run.spans if span.stage == "decode"]
    training = [span for span in run.spans if span.group == "training" and span.stage != "update_weights"]
    assert overlap(decoding, training) > 0
    assert run.steps[c.STALENESS_MAX].max() >= 1


def test_the_end_of_training_wakes_a_driver_that_waits() -> None:
    transport = ProcessTransport([], [], {"w": torch.zeros(2)}, stream=False, max_scoring_tokens=1)
    group = ConnectedWorkerGroup(transport, lock_step=False)
    training = TrainingThread().do(lambda: "trained", group.wake)
    waiting = Thread(target=group.events, args=(600.0,), daemon=True)
    waiting.start()
    waiting.join(30.0)
    assert not waiting.is_alive(), "it waited on for its timeout"
    assert training.happened and training.value == "trained"
    group.close()


def test_training_that_fails_wakes_the_driver_too() -> None:
    def fail() -> None:
        raise OppoError("no")

    woken = Event()
    training = TrainingThread().do(fail, woken.set)
    assert woken.wait(30.0)
    assert training.happened
    with pytest.raises(OppoError, match="no"):
        _ = training.value
