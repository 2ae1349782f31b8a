"""Mode train: sampled answers, PPO, new weights in the replicas."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from oppo_real.ppo import metrics
from oppo_real.run.folder import RealRequest, run_to_folder
from oppo_real.run.setup import build_real_setup
from oppo_real.run.start import run_real
from oppo_real.task.arithmetic import LONGEST_PROMPT
from oppo_sim import columns as c
from oppo_sim.finished_run import read_run_folder
from oppo_sim.report.html_run import run_chapter
from oppo_sim.report.run_figures import response_length_figure
from oppo_sim.scenario.schema import Scenario
from tests.real.real_scenario import real_scenario

ON_POLICY = {"num_ppo_epochs": 1, "learning_rate": 3e-3, "carried": "behaviour"}


def scenario_of(policy: Any, **fields: Any) -> Scenario:
    section = {"mode": "train", "models": {}, "sft": {"steps": 12, "batch_size": 8}, "ppo": ON_POLICY}
    return real_scenario(
        section, policy=policy, max_prompt_length=LONGEST_PROMPT, max_response_length=48, **fields
    )


def train(policy: Any, **fields: Any) -> Any:
    return run_real(scenario_of(policy, **fields))


def test_a_run_that_samples_its_answers_says_nothing_of_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def drawn(*args: Any) -> Figure:
        seen.append(response_length_figure(*args))
        return seen[-1]

    monkeypatch.setattr("oppo_sim.report.run_figures.response_length_figure", drawn)
    setup = build_real_setup(scenario_of("sequential", rollout_batch_size=4, steps=2))
    told: list[str] = []
    run_to_folder(
        RealRequest(setup, tmp_path / "run"), lambda done, row: told.append(f"{done} done"), told.append
    )
    assert told == [
        "loading models",
        "fitting the actor to the task",
        "fitting the reward model to the task",
        "starting the engines",
        "in its first step",
        "1 done",
        "2 done",
    ]
    (figure,) = seen
    assert [text.get_text()[:8] for axis in figure.axes for text in axis.get_legend().get_texts()] == [
        "trained:"
    ]
    found = read_run_folder(tmp_path / "run")
    assert not {"trace", "trace_sha256"} & set(found.manifest)
    assert found.manifest["real"]["ppo"]["enabled"] is True
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chapter = run_chapter(found, "run")
    said = [*chapter.answer, *(part.title for each in chapter.sections for part in each.pictures)]
    assert not [text for text in said if "trace" in text or "bias" in text]


def test_the_trainer_sees_the_log_probabilities_of_the_weights_that_sampled() -> None:
    run = train("sequential", rollout_batch_size=8, steps=4)
    ratios = run.training[metrics.RATIO]
    # On-policy and one pass: new and old log-probabilities are of the same weights, if every update reached
    # the replicas.
    assert ratios.tolist() == pytest.approx([1.0] * 4, abs=1e-4)
    assert run.training[metrics.POLICY_LOSS].abs().max() < 1.0
    assert (run.steps[c.timing("update_actor")] > 0).all()
    assert run.steps[c.REWARD_MEAN].map(math.isfinite).all()
    assert run.rollouts[c.RESPONSE_LENGTH].nunique() > 1


def test_rollouts_carried_over_updates_are_trained_with_their_versions() -> None:
    run = train({"name": "oppo", "overcommit": 4, "chunk_size": 8}, rollout_batch_size=6, steps=4, training={"stream_ref": True},
                costs={"kind": "linear", "decode": {"fixed": 1.0}, "score_ref": {}})  # fmt: skip
    carried = run.rollouts[run.rollouts[c.SPAN] > 1]
    assert len(carried)
    assert (carried[c.STALENESS] >= 1).all()
    assert run.training[metrics.CARRIED_TOKENS].max() > 0
    # The scoring worker ran the reference model over the pieces: the trainer did not.
    assert (run.steps[c.timing("ref")] < run.steps[c.timing("values")]).all()
    assert run.training[metrics.OBJECTIVE_KL].abs().max() < 5
