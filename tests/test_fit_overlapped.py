"""Logs of runs that generate while they train: what the trainer waited is not taken for generation."""

import re
from pathlib import Path

import pytest

import oppo_sim
from oppo_sim.fit.call import fit
from oppo_sim.fit.log.reading import read_step_log
from oppo_sim.scenario.load import load_scenario
from oppo_sim.simulation import simulate
from tests.fit_logs import ALL, TRUTH, fit_scenario, short_chains, verl_log
from tests.import_cases import write_lines
from tests.test_fit_reading import BASE, console, reasons

VERL_TOLD = [
    "fully_async/trainer/idle_ratio",
    "fully_async/count/stale_trajectory_processed",
    "separate_async/switch/threshold_ratio",
    "training/off_policy/trajectory_staleness_worst/mean",
]
TRAINING = {
    "nemo_rl": {"timing/train/policy_training": 10.0, "train/mean_gen_tokens_per_sample": 500.0},
    "skyrl": {"timing/policy_train": 10.0, "generate/avg_num_tokens": 500.0},
    "roll": {"time/ref_log_probs_values": 10.0, "token/response_length/mean": 500.0},
}
WAITED = {
    "nemo_rl": {"timing/train/exposed_generation": 3.0, "timing/train/total_step_time": 15.0},
    "skyrl": {"timing/wait_for_generation_buffer": 3.0, "timing/step": 15.0},
    "roll": {"time/step_stop_server": 0.4, "time/step_generate": 3.0, "time/step_total": 15.0},
}


@pytest.mark.parametrize("told", VERL_TOLD)
def test_what_verls_trainer_waited_is_left_out_and_counted(told: str, tmp_path: Path) -> None:
    figures = {told: 0.4, "timing_s/switch_to_trainer": 1.0}
    log = read_step_log(console(tmp_path / "a.log", [(1, figures), (2, {told: 0.4})]))
    assert log.frame["timing_s/update_actor"].tolist() == [10.0, 10.0]
    assert {"timing_s/gen", "timing_s/step"}.isdisjoint(log.frame.columns)
    assert "2 timing_s/gen of a run that generates while it trains" in reasons(log)
    assert "2 timing_s/step of a run" in reasons(log)
    assert any(told in note and "still waited" in note for note in log.notes)


def test_verls_colocated_run_that_carries_rollouts_is_not_said_to_generate_while_it_trains(
    tmp_path: Path,
) -> None:
    """It takes turns; only the separate trainer switches engines over to training as it begins."""
    late = {VERL_TOLD[-1]: 0.4}
    log = read_step_log(console(tmp_path / "a.log", [(1, {VERL_TOLD[-1]: 0.0}), (2, late), (3, late)]))
    assert {"timing_s/gen", "timing_s/step"}.isdisjoint(log.frame.columns)
    assert "3 timing_s/gen of a run whose generation is not of whole batches" in reasons(log)
    assert any("carries unfinished rollouts over (verl's colocate_async)" in note for note in log.notes)
    assert not any("still waited" in note or "trainer waits" in note for note in log.notes)


def test_what_verls_fully_asynchronous_trainer_prints_of_its_weights_is_no_step(tmp_path: Path) -> None:
    """A line before each step's own, and one before the first."""
    log = verl_log(tmp_path / "a.log", fit_scenario(), TRUTH, noise=0.01)
    figures = {
        "update_weights": "timing_s/param_sync",
        "adv": "fully_async/count/current_param_version:1 - timing_s/adv",
    }
    text = re.sub(r"timing_s/reward:\S+", "timing_s/reward:4e-05", log.read_text())
    for ours, theirs in figures.items():
        text = text.replace(f"timing_s/{ours}", theirs)
    lines = ["[T] _fit_update_weights, timing_s/param_sync: 99.0 seconds self.current_param_version: 0"]
    for number, line in enumerate(text.splitlines()):
        lines += [f"[T] _fit_update_weights, timing_s/param_sync: 99.{number} seconds self.v: {number}", line]
    beside = tmp_path / "b.log"
    beside.write_text("\n".join(lines) + "\n")
    plain, read = read_step_log(log), read_step_log(beside)
    assert read.frame["step"].tolist() == plain.frame["step"].tolist()
    assert read.frame["timing_s/update_weights"].tolist() == plain.frame["timing_s/update_weights"].tolist()
    assert f"{len(plain.frame) + 1} line without a step" in reasons(read)
    with short_chains():
        result = fit(beside, fit_scenario(), fit_steps=ALL, draws=50)
    assert "score" not in {each.term for each in result.estimates}
    assert any("nor of gen, reward" in note for note in result.notes)


def test_waits_beside_those_for_the_batch_are_counted(tmp_path: Path) -> None:
    """verl's trainers that lend their GPUs to generation."""
    waits = {"separate_async/switch/idle": 1.0, "timing_s/switch_wait": 8.0, "timing_s/step": 48.0}
    log = read_step_log(console(tmp_path / "a.log", [(step, waits) for step in (1, 2, 3)]))
    assert any("its trainer waits 28 s of a step of 48 s" in note for note in log.notes)


def test_rollouts_of_the_newest_weights_are_of_no_such_run(tmp_path: Path) -> None:
    log = read_step_log(console(tmp_path / "a.log", [(1, {VERL_TOLD[-1]: 0.0}), (2, {VERL_TOLD[-1]: 0.0})]))
    assert log.frame["timing_s/gen"].tolist() == [20.0, 20.0]
    assert not log.left_out


@pytest.mark.parametrize("framework", sorted(TRAINING))
def test_other_frameworks_tell_it_by_names_of_their_own(framework: str, tmp_path: Path) -> None:
    lines = [{"_step": step, **TRAINING[framework], **WAITED[framework]} for step in (1, 2, 3)]
    log = read_step_log(write_lines(tmp_path / "history.jsonl", lines))
    assert log.framework == framework
    assert not [column for column in log.covers if "gen" in column.split("/")[-1].split("+")]
    assert "timing_s/step" not in log.frame
    assert any(next(iter(WAITED[framework])) in note for note in log.notes)
    plain = [{"_step": step, "time/step_stop_server": 1e-5, "time/step_generate": 30.0, **TRAINING["roll"]}
             for step in (1, 2, 3)]  # fmt: skip
    assert (
        read_step_log(write_lines(tmp_path / "b.jsonl", plain)).frame["timing_s/gen+reward"].tolist()
        == [30.0] * 3
    )


def test_a_batch_that_is_timed_beside_the_wait_is_used(tmp_path: Path) -> None:
    """verl one step off: ``gen`` waits for the rest of a batch whose seconds are ``generate_async``'s."""
    beside = {"timing_s/gen": 6.0, "timing_s/generate_async": 20.0, "timing_s/sync_rollout_weights": 2.0}
    log = read_step_log(console(tmp_path / "a.log", [(1, beside), (2, beside)]))
    assert log.frame["timing_s/gen"].tolist() == [20.0, 20.0]
    assert log.covers["timing_s/gen"] == ("gen",)
    assert log.frame["timing_s/update_weights"].tolist() == [2.0, 2.0]


def test_a_metric_that_is_named_is_believed(tmp_path: Path) -> None:
    path = console(tmp_path / "a.log", [(1, {VERL_TOLD[0]: 0.4, "mine/gen": 25.0}), (2, {"mine/gen": 26.0})])
    log = read_step_log(path, fields={"timing_s/gen": "mine/gen"})
    assert log.frame["timing_s/gen"].tolist() == [25.0, 26.0]
    assert log.frame["timing_s/step"].tolist() == [BASE["timing_s/step"]] * 2


def test_its_fit_has_training_from_the_log_and_generation_as_it_was(tmp_path: Path) -> None:
    """The wait is a tenth of generation, which decoding would otherwise have been fitted to."""
    stale = {step: {VERL_TOLD[-1]: 1.0, "timing_s/gen": 2.0} for step in range(1, ALL + 1)}
    asked = fit_scenario()
    log = verl_log(tmp_path / "a.log", asked, TRUTH, extra=stale)
    with short_chains():
        result = fit(log, asked, fit_steps=ALL, folder=tmp_path / "fit", figures=False)
    assert any("nor of gen" in note for note in result.notes)
    had = asked.model_copy(update={"costs": asked.costs.model_copy(update={"terms": TRUTH})})
    written = load_scenario(tmp_path / "fit" / "scenario.yaml")
    for column, wanted in (("timing_s/gen", asked), ("timing_s/update_actor", had)):
        seconds = [simulate(each, policy="sequential", steps=3).steps[column] for each in (written, wanted)]
        assert seconds[0].tolist() == pytest.approx(seconds[1].tolist(), rel=0.05)


ASYNCHRONOUS: dict[str, dict[str, float]] = {
    "areal": {"timeperf/rollout": 3.0, "timeperf/recompute_logp": 2.0, "timeperf/train_step": 10.0,
              "timeperf/update_weights": 1.0, "ppo_actor/seq_len/avg": 600.0, "ppo_actor/prompt_len/avg": 100.0,
              "ppo_actor/correct_seq_len/avg": 400.0},
    "prime_rl": {"time/wait_for_batch": 0.0, "time/step": 15.0, "time/forward_backward": 10.0,
                 "time/broadcast_weights": 1.0, "train/agg/all/num_output_tokens/mean": 500.0},
    "open_instruct": {"time/trainer_waiting_for_data": 3.0, "time/total": 15.0, "time/training": 10.0,
                      "time/weight_sync": 1.0, "val/sequence_lengths": 500.0},
}  # fmt: skip


@pytest.mark.parametrize("framework", sorted(ASYNCHRONOUS))
def test_of_asynchronous_frameworks_training_is_read(framework: str, tmp_path: Path) -> None:
    counts = {"areal": {}, "prime_rl": {}, "open_instruct": {"global_step": 64, "training_step": 1}}[
        framework
    ]
    lines = [
        {"_step": step, **ASYNCHRONOUS[framework], **{name: step * each for name, each in counts.items()}}
        for step in (1, 2, 3)
    ]
    log = read_step_log(write_lines(tmp_path / "history.jsonl", lines))
    assert log.framework == framework
    assert log.frame["step"].tolist() == [1, 2, 3]
    update = next(column for column in log.covers if "update_actor" in str(column))
    assert log.frame[update].tolist() == [10.0] * 3
    assert log.frame["timing_s/update_weights"].tolist() == [1.0] * 3
    assert log.frame["response_length/mean"].tolist() == [500.0] * 3
    assert not any("gen" in stages for stages in log.covers.values())
    assert any("still waited" in note for note in log.notes)


@short_chains()
@pytest.mark.parametrize("timed", [False, True])
def test_prime_rl_computes_no_probabilities_before_the_update(timed: bool, tmp_path: Path) -> None:
    """Its trainer takes those of the engine; versions of 2025 computed them, and named their seconds."""
    more = {"time/compute_logprobs": 2.0} if timed else {}
    lines = [{"_step": step, **ASYNCHRONOUS["prime_rl"], **more} for step in range(1, 7)]
    for line in lines:
        line["train/agg/all/num_output_tokens/mean"] = 200.0 + 10.0 * line["_step"]
    log = write_lines(tmp_path / "history.jsonl", lines)
    result = oppo_sim.fit(log, fit_scenario(), fit_steps=4, folder=tmp_path / "fit")
    (said,) = [note for note in result.notes if "taken as not run" in note]
    written = load_scenario(tmp_path / "fit" / "scenario.yaml").training
    assert not written.ref
    assert written.old_log_prob == ("recompute" if timed else "behaviour")
    assert ("old_log_prob" in said) == (not timed)
    assert ("old_log_prob" in {each.term for each in result.estimates}) == timed
