"""What a framework's log says beside its stages: groups that were replaced, whose GPUs are shared, how many
rollouts a step trains, and metrics that wait for another stage."""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from oppo_sim.columns import RESPONSE_LENGTH, TRAINED_STEP
from oppo_sim.errors import OppoError
from oppo_sim.fit.call import fit
from oppo_sim.fit.log.reading import read_step_log
from oppo_sim.fit.log.step_log import StepLog
from oppo_sim.simulation import simulate
from tests.fit_logs import ALL, TRUTH, fit_scenario, short_chains, verl_log
from tests.import_cases import write_lines
from tests.test_fit_reading import reasons

LENGTHS = {
    "openrlhf": {"timing/generation": 20.0, "rollout/response_length_mean": 500.0},
    "slime": {"perf/rollout_time": 20.0, "rollout/response_len/mean": 500.0},
    "roll": {"time/step_generate": 20.0, "token/response_length/mean": 500.0},
}


def history(path: Path, *lines: Mapping[str, float]) -> Path:
    return write_lines(path, [{"_step": step, **each} for step, each in enumerate(lines)])


def replaced(log: StepLog) -> list[str]:
    return [note for note in log.notes if "more rollouts than the scenario's batch" in note]


@pytest.mark.parametrize(
    ("framework", "some", "none"),
    [
        ("openrlhf", {"dynamic_filtering_pass_rate": 71.3}, {"dynamic_filtering_pass_rate": 100.0}),
        ("slime", {"rollout/dynamic_filter/drop_zero_std_0.0": 3}, {"rollout/zero_std/count_0.0": 3}),
        ("slime", {"rollout_dynamic_filter_drop_zero_std_1.0": 3}, {}),
        (
            "roll",
            {"math_rule/scheduler/query_filter_count": 4},
            {"math_rule/scheduler/query_filter_count": 0},
        ),
        ("roll", {"scheduler/group_filter_count": 4}, {"scheduler/group_filter_count": 0}),
    ],
)
def test_groups_that_were_replaced_are_told_of(
    framework: str, some: dict[str, float], none: dict[str, float], tmp_path: Path
) -> None:
    figures = LENGTHS[framework]
    log = read_step_log(history(tmp_path / "a.jsonl", {**figures, **some}, {**figures, **none}, figures))
    assert log.framework == framework
    # slime logs a reason only of a step that dropped for it.
    assert ["in 1 of 3 steps" in note for note in replaced(log)] == [True]
    assert not replaced(read_step_log(history(tmp_path / "b.jsonl", {**figures, **none}, figures)))


AREAL = {
    "timeperf/rollout": 30.0,
    "timeperf/train_step": 10.0,
    "ppo_actor/seq_len/avg": 600.0,
    "ppo_actor/seq_len/max": 4500.0,
    "ppo_actor/prompt_len/avg": 100.0,
    "ppo_actor/prompt_len/max": 300.0,
    "ppo_actor/correct_seq_len/max": 4000.0,
}


def test_areal_on_shared_gpus_waits_for_all_of_generation(tmp_path: Path) -> None:
    """Its rollout workers leave the GPUs to training, so nothing is generated beside it."""
    shared = {**AREAL, "timeperf/rollout_offload": 1.0, "timeperf/rollout_onload": 1.2}
    log = read_step_log(history(tmp_path / "a.jsonl", shared, shared))
    assert log.frame["timing_s/gen+reward"].tolist() == [30.0, 30.0]
    assert not any("still waited" in note for note in log.notes)
    apart = read_step_log(history(tmp_path / "b.jsonl", AREAL, AREAL))
    assert "timing_s/gen+reward" not in apart.frame
    assert any("timeperf/rollout is logged" in note and "still waited" in note for note in apart.notes)


@pytest.mark.parametrize(("wait", "told"), [(30.0, True), (0.5, False)])
def test_a_trainer_that_generation_holds_up_is_told_of(wait: float, told: bool, tmp_path: Path) -> None:
    """Generation stays at its priors, under which the same run may be much faster than it was."""
    log = read_step_log(
        history(tmp_path / "a.jsonl", *({**AREAL, "timeperf/rollout": wait} for _ in range(3)))
    )
    said = [note for note in log.notes if "generation holds the run up" in note]
    assert [f"waits {wait:.3g} s of a step of {wait + 10:.3g} s" in note for note in said] == [True] * told


def test_areals_longest_response_is_its_longest_sequence_without_a_prompt(tmp_path: Path) -> None:
    figures = read_step_log(history(tmp_path / "a.jsonl", AREAL)).frame.iloc[0]
    assert figures["response_length/mean"] == 500.0
    assert figures["response_length/max"] == 4400.0
    # At most the slack of a scenario's maximum above the shortest that it can be.
    long_prompts = {**AREAL, "ppo_actor/prompt_len/max": 2500.0}
    figures = read_step_log(history(tmp_path / "b.jsonl", long_prompts)).frame.iloc[0]
    assert figures["response_length/max"] == pytest.approx(2100.0)
    without = {name: value for name, value in AREAL.items() if not name.endswith("/max")}
    assert "response_length/max" not in read_step_log(history(tmp_path / "c.jsonl", without)).frame


def test_rolls_checkpoints_and_advantages_by_domain_are_read(tmp_path: Path) -> None:
    """A checkpoint was seconds that no metric names, and advantages were taken for the rest of the step."""
    step = {
        **LENGTHS["roll"],
        "time/step_train": 10.0,
        "math/time/compute_advantage": 0.25,
        "code/time/compute_advantage": 0.5,
    }
    saves = {
        **step,
        "time/actor_train/do_checkpoint/total": 40.0,
        "time/critic/do_checkpoint/total": 38.0,
        "time/step_total": 33.0,
    }
    after = {**step, "time/step_total": 73.0}
    log = read_step_log(history(tmp_path / "a.jsonl", {**step, "time/step_total": 0.0}, saves, after, after))
    assert log.frame["timing_s/adv"].tolist() == [0.75] * 4
    assert log.frame["timing_s/save_checkpoint"].dropna().tolist() == [40.0]
    assert log.frame["timing_s/step"].dropna().tolist() == [33.0, 73.0, 73.0]


def openrlhf_lines(beside: bool, count: int = ALL, generation: float = 1.0) -> list[dict[str, float]]:
    """A sequential run, or the same one step off: weights wait for the generation beside."""
    scenario = fit_scenario()
    costs = scenario.costs.model_copy(update={"terms": TRUTH})
    run = simulate(scenario.model_copy(update={"costs": costs}), policy="sequential", steps=count, seed=0)
    rows = run.steps.to_dict("records")
    lines = []
    for number, row in enumerate(rows):
        lengths = run.rollouts[run.rollouts[TRAINED_STEP] == number][RESPONSE_LENGTH].to_numpy()
        generated = generation * float(row["timing_s/gen"])
        made = sum(float(row[f"timing_s/{stage}"]) for stage in ("reward", "old_log_prob", "ref", "adv"))
        trained, sent = float(row["timing_s/update_actor"]), float(row["timing_s/update_weights"])
        if beside:
            following = generation * float(rows[min(number + 1, count - 1)]["timing_s/gen"])
            sent += max(0.0, following - made - trained)
        lines.append(
            {
                "timing/generation": generated,
                "timing/make_experience": made,
                "timing/ppo_train": trained,
                "timing/broadcast": sent,
                "timing/step_total": made + trained + sent + (0.05 if beside else generated),
                "rollout/response_length_mean": float(lengths.mean()),
                "rollout/truncated_rate": float((lengths == scenario.max_response_length).mean()),
                "rollout/num_samples": float(len(lengths)),
            }
        )
    return lines


def test_openrlhfs_weights_wait_for_generation_that_is_beside_training(tmp_path: Path) -> None:
    """They are sent under a lock that generation holds: of the metric most is that wait."""
    log = read_step_log(history(tmp_path / "a.jsonl", *openrlhf_lines(beside=True)))
    assert {"timing_s/update_weights", "timing_s/step"}.isdisjoint(log.frame.columns)
    assert "timing_s/gen" in log.frame
    assert f"{ALL} timing_s/update_weights of a run that generates while it trains" in reasons(log)
    assert any("waits there until generation is done" in note for note in log.notes)
    named = read_step_log(tmp_path / "a.jsonl", fields={"timing_s/update_weights": "timing/broadcast"})
    assert {"timing_s/update_weights", "timing_s/step"} <= set(named.frame.columns)


def test_openrlhfs_weights_that_wait_for_nothing_are_used(tmp_path: Path) -> None:
    """A sequential run; generation that is done before training is; partial rollouts, of which the trainer
    waits for the batch, not for the lock."""
    sequential, shorter = (
        openrlhf_lines(beside=beside, generation=each) for beside, each in ((False, 1.0), (True, 0.1))
    )
    partial = [
        {**line, "timing/broadcast": 1.0, "timing/step_total": 1.1 * line["timing/step_total"]}
        for line in openrlhf_lines(beside=True)
    ]
    for number, lines in enumerate((sequential, shorter, partial)):
        log = read_step_log(history(tmp_path / f"{number}.jsonl", *lines))
        assert {"timing_s/update_weights", "timing_s/step"} <= set(log.frame.columns)
        assert not log.notes


def test_some_metrics_of_openrlhf_alone_say_nothing_of_waits(tmp_path: Path) -> None:
    """A table of two or three columns: that they are less than the step is no wait."""
    chosen = ("timing/generation", "timing/broadcast", "timing/step_total", "rollout/response_length_mean")
    lines = [{name: line[name] for name in chosen} for line in openrlhf_lines(beside=False, count=4)]
    log = read_step_log(history(tmp_path / "a.jsonl", *lines))
    assert {"timing_s/update_weights", "timing_s/step"} <= set(log.frame.columns)


def test_weights_that_wait_stay_at_their_priors(tmp_path: Path) -> None:
    path = history(tmp_path / "a.jsonl", *openrlhf_lines(beside=True))
    with short_chains():
        fitted = fit(path, fit_scenario(), fit_steps=ALL, folder=tmp_path / "fit", figures=False)
    assert "update_weights" not in set(fitted.terms["term"])
    assert any("nor of update_weights" in note for note in fitted.notes)


@pytest.mark.parametrize("batch", [16, 512])
def test_a_batch_that_is_not_the_logs_is_refused(batch: int, tmp_path: Path) -> None:
    """Prompts in place of rollouts, or samples counted twice."""
    path = history(tmp_path / "a.jsonl", *openrlhf_lines(beside=False, count=6))
    with pytest.raises(OppoError, match=rf"trains 64 rollouts a step.*rollout_batch_size is {batch}"):
        fit(path, fit_scenario(rollout_batch_size=batch), folder=tmp_path / "fit", figures=False)


def slime_lines(unnamed_s: float) -> list[dict[str, float]]:
    scenario = fit_scenario()
    costs = scenario.costs.model_copy(update={"terms": TRUTH})
    run = simulate(scenario.model_copy(update={"costs": costs}), policy="rollout-overlap", steps=ALL, seed=0)
    lines = []
    for number, row in enumerate(run.steps.to_dict("records")):
        lengths = run.rollouts[run.rollouts[TRAINED_STEP] == number][RESPONSE_LENGTH]
        seconds = {
            "perf/rollout_time": float(row["timing_s/gen"] + row["timing_s/reward"]),
            "perf/log_probs_time": float(row["timing_s/old_log_prob"]),
            "perf/ref_log_probs_time": float(row["timing_s/ref"]),
            "perf/actor_train_time": float(row["timing_s/update_actor"]),
            "perf/update_weights_time": float(row["timing_s/update_weights"]),
        }
        lines.append(
            {
                **seconds,
                "perf/step_time": sum(seconds.values()) + unnamed_s,
                "rollout/response_len/mean": float(lengths.mean()),
                "rollout/response_len/max": float(lengths.max()),
                "rollout/truncated_ratio": float((lengths == scenario.max_response_length).mean()),
            }
        )
    return lines


def test_rewards_of_verls_reward_loop_are_hidden_behind_generation(tmp_path: Path) -> None:
    """``timing_s/reward`` holds no more than reading them: the reward model is not free."""
    log = verl_log(tmp_path / "a.log", fit_scenario(), TRUTH, noise=0.01)
    loop = tmp_path / "b.log"
    loop.write_text(re.sub(r"timing_s/reward:\S+", "timing_s/reward:4e-05", log.read_text()))
    with short_chains():
        timed, along = (fit(path, fit_scenario(), fit_steps=ALL, draws=50) for path in (log, loop))
    said = "so they were computed as rollouts finished"
    assert not any(said in note for note in timed.notes)
    (note,) = (note for note in along.notes if said in note)
    assert "rollout-overlap" in note
    assert "score" not in {each.term for each in along.estimates} and along.point.score == 1.0
    unnamed = timed.point.other_s + timed.parts[0].log.frame["timing_s/reward"].median()
    assert along.point.other_s == pytest.approx(unnamed, rel=0.1)


def test_verls_v1_trainer_that_times_no_rewards_computed_them_behind_generation(tmp_path: Path) -> None:
    """It times them where a reward model shares the GPUs. Its advantages hold none, unlike those of 0.3."""
    log = verl_log(tmp_path / "a.log", fit_scenario(), TRUTH, noise=0.01)
    v1 = tmp_path / "v1.log"
    v1.write_text(
        re.sub(r"timing_s/reward:\S+", "training/off_policy/trajectory_spans/mean:1.0", log.read_text())
    )
    with short_chains():
        result = fit(v1, fit_scenario(), fit_steps=ALL, draws=50)
    (note,) = (note for note in result.notes if "as rollouts finished" in note)
    assert "it times no rewards" in note and "So this run is rollout-overlap" in note
    assert "score" not in {each.term for each in result.estimates} and result.point.score == 1.0
    assert read_step_log(v1).covers["timing_s/adv"] == ("adv",)


def test_a_run_that_overlaps_generation_with_training_is_no_rollout_overlap(tmp_path: Path) -> None:
    log = verl_log(tmp_path / "a.log", fit_scenario(), TRUTH, noise=0.01)
    beside = tmp_path / "b.log"
    text = re.sub(r"timing_s/reward:\S+", "timing_s/reward:4e-05", log.read_text())
    shorter = re.sub(
        r"timing_s/step:np.float64\((\S+)\)", lambda at: f"timing_s/step:{float(at[1]) * 0.7}", text
    )
    beside.write_text(shorter)
    with short_chains():
        result = fit(beside, fit_scenario(), fit_steps=ALL, draws=50)
    (note,) = (note for note in result.notes if "as rollouts finished" in note)
    assert any("they overlap" in note for note in result.notes)
    assert "rollout-overlap" not in note


def test_rewards_that_slime_computes_within_generation_are_hidden_behind_it(tmp_path: Path) -> None:
    """The run is rollout-overlap. What no metric names is no doubt about the scenario."""
    path = history(tmp_path / "a.jsonl", *slime_lines(unnamed_s=60.0))
    scenario = fit_scenario()
    result = fit(path, scenario, fit_steps=ALL)
    (along,) = (note for note in result.notes if "computes rewards as rollouts finish" in note)
    assert "So this run is rollout-overlap" in along
    assert result.point.score == 1.0 and "score" not in {each.term for each in result.estimates}
    costs = scenario.costs.model_copy(update={"terms": result.point})
    written = scenario.model_copy(update={"costs": costs})
    logged = np.median([line["perf/rollout_time"] for line in slime_lines(unnamed_s=60.0)])
    again = simulate(written, policy="rollout-overlap", steps=ALL, seed=0).steps
    assert np.median(again["timing_s/gen"] + again["timing_s/reward"]) == pytest.approx(logged, rel=0.02)
    (outside,) = (note for note in result.notes if "outside the 95 % of their priors" in note)
    assert "seconds of a step that no metric names" in outside
