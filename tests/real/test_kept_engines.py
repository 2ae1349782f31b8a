"""Engines that outlive a run: the next one finds them as new."""

from __future__ import annotations

import os
import signal
from typing import Any

import pandas as pd
import pytest

from oppo_real.engines.interface import Sampling
from oppo_real.placement.engines import ActorSpec, ScorerSpec, build_actor, build_scorer
from oppo_real.placement.processes import KeptEngines
from oppo_real.run.setup import build_real_setup
from oppo_real.run.start import execute
from oppo_sim.errors import OppoError
from oppo_sim.results.sinks import FrameSink
from tests.real.as_new import check_as_new
from tests.real.real_scenario import real_scenario

LOCK_STEP = {"placement": {"kind": "processes", "threads": 1}, "lock_step": True}
TINY = {
    "model_type": "qwen2",
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
}


def run(policy: str, kept: KeptEngines | None, **settings: Any) -> tuple[pd.DataFrame, pd.DataFrame]:
    frames = FrameSink()
    scenario = real_scenario({**LOCK_STEP, "ppo": {"enabled": True}, **settings}, steps=3)
    execute(build_real_setup(scenario, policy=policy), frames, kept=kept)
    return frames.steps(), frames.rollouts()


def processes(kept: KeptEngines) -> list[int | None]:
    return [link.process.pid for _, link in kept._idle]


def test_a_run_on_kept_engines_is_the_run_on_new_ones() -> None:
    with KeptEngines() as kept:
        # oppo leaves rollouts in the engines at its end, and trained weights
        first = run("oppo", kept)
        used = processes(kept)
        second = run("sequential", kept)
        again = run("oppo", kept)
        assert processes(kept) == used, "engines were started anew"
    assert kept._idle == []
    for found, policy in ((first, "oppo"), (second, "sequential"), (again, "oppo")):
        for table, expected in zip(found, run(policy, None), strict=True):
            wanted = [column for column in table if not str(column).startswith("timing_s")]
            pd.testing.assert_frame_equal(table[wanted], expected[wanted])


def test_an_engine_that_is_gone_is_started_again() -> None:
    with KeptEngines() as kept:
        expected = run("sequential", kept)
        before = processes(kept)
        for _, link in kept._idle:
            assert link.process.pid is not None
            os.kill(link.process.pid, signal.SIGKILL)
            link.process.join(30)
        found = run("sequential", kept)
        assert not set(before) & set(processes(kept))
        pd.testing.assert_frame_equal(found[1], expected[1])


def test_engines_that_another_run_asks_for_are_new_ones() -> None:
    with KeptEngines() as kept:
        run("sequential", kept)
        before = processes(kept)
        run("sequential", kept, temperature=0.5)
        after = processes(kept)
        assert len(after) == len(before)
        assert not set(before) & set(after)


def test_a_run_that_fails_leaves_engines_as_new(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(count: int, row: object) -> None:
        raise OppoError("no")

    scenario = real_scenario(LOCK_STEP, steps=3)
    with KeptEngines() as kept:
        with pytest.raises(OppoError, match="no"):
            execute(build_real_setup(scenario, policy="oppo"), FrameSink(), progress=fail, kept=kept)
        used = processes(kept)
        assert used
        frames = FrameSink()
        execute(build_real_setup(scenario, policy="oppo"), frames, kept=kept)
        assert processes(kept) == used
    fresh = FrameSink()
    execute(build_real_setup(scenario, policy="oppo"), fresh)
    pd.testing.assert_frame_equal(frames.rollouts(), fresh.rollouts())


def test_torch_engines_are_as_new_after_reset() -> None:
    actor = build_actor(ActorSpec("torch", TINY, Sampling(1.0, 1.0, None, 3)))
    check_as_new(actor, build_scorer(ScorerSpec("torch", TINY)))
