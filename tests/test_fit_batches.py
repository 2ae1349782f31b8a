"""Runs whose steps generate several batches one after the other (DAPO's dynamic sampling): their fit, and the
scenario that is written from it."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import beta

from oppo_sim.columns import ROLLOUTS_ADMITTED, TIMING_STEP
from oppo_sim.fit.call import fit
from oppo_sim.fit.estimate import HeldOut, judge_rest
from oppo_sim.fit.log.batches import as_sampled, kept_shares
from oppo_sim.fit.log.reading import read_step_log
from oppo_sim.fit.sources import open_log
from oppo_sim.fit.terms.features import build_features
from oppo_sim.simulation import simulate
from tests.fit_logs import TRUTH, fit_scenario, seconds_of_a_step, short_chains, verl_log


def batched_log(folder: Path, counts: Sequence[int]) -> Path:
    """What verl would print of a run that generates ``counts`` batches in its steps: each step of the log is
    as many simulated ones, of which the last is trained."""
    whole = verl_log(folder / "whole.log", fit_scenario(), TRUTH, steps=sum(counts))
    each = iter(whole.read_text().splitlines())
    lines = []
    for number, count in enumerate(counts, start=1):
        steps = [next(each) for _ in range(count)]
        gen = [float(re.search(r"timing_s/gen:np.float64\(([^)]*)\)", line)[1]) for line in steps]  # type: ignore[index]
        last = re.sub(r"step:\d+ ", f"step:{number} ", steps[-1], count=1)
        last = last.replace(f"gen:np.float64({gen[-1]})", f"gen:{sum(gen)}")
        step = float(re.search(r"timing_s/step:np.float64\(([^)]*)\)", last)[1])  # type: ignore[index]
        last = last.replace(f"step:np.float64({step})", f"step:{step + sum(gen[:-1])}")
        lines.append(f"{last} - train/num_gen_batches:{count}")
    path = folder / "batches.log"
    path.write_text("\n".join(lines) + "\n")
    return path


def step_error(held: HeldOut) -> float:
    """Median error of a step that was held back."""
    return next(each.model.median for each in held.judgements if each.column == TIMING_STEP)


def test_batches_of_a_step_are_generated_one_after_the_other(tmp_path: Path) -> None:
    path = batched_log(tmp_path, [1, 2, 3, 2] * 6)
    result = fit(path, fit_scenario(), draws=100, fit_steps=16)
    error = step_error(result.held_out[0])
    assert error < 0.1  # the longest of batches that are not trained are not known
    assert seconds_of_a_step(result.point) == pytest.approx(seconds_of_a_step(TRUTH), rel=0.06)
    assert any("1 to 3 batches" in note for note in result.notes)
    text = path.read_text()
    (tmp_path / "uncounted.log").write_text(re.sub(" - train/num_gen_batches:\\d", "", text))
    uncounted = open_log(tmp_path / "uncounted.log")
    without = judge_rest(uncounted, fit_scenario(), draws=100, fit_steps=16)
    assert step_error(without) > 2 * error


def test_the_size_of_generation_batches_is_the_scenarios(tmp_path: Path) -> None:
    path = batched_log(tmp_path, [1, 2] * 3)
    log = read_step_log(path)
    alone, _ = build_features(log, fit_scenario())
    larger, _ = build_features(log, fit_scenario(dynamic_sampling={"gen_batch_size": 128}))
    assert alone.batches.tolist() == [1, 2] * 3
    assert larger.area == pytest.approx(2 * alone.area, rel=0.1)
    path.write_text(re.sub(" - train/num_gen_batches:\\d", "", path.read_text()))
    uncounted, _ = build_features(read_step_log(path), fit_scenario(dynamic_sampling={"gen_batch_size": 128}))
    assert uncounted.area == pytest.approx(alone.area / alone.batches, rel=0.1)


@short_chains()
def test_the_written_scenario_generates_in_batches_as_the_run_did(tmp_path: Path) -> None:
    judged = {"enable": True, "pass_rate": {"alpha": 0.3, "beta": 0.3}, "gen_batch_size": 96}
    truth = fit_scenario(group_size=4, dynamic_sampling=judged)
    run = simulate(truth, policy="sequential", steps=30)
    counts = (run.steps[ROLLOUTS_ADMITTED] / 96).round().astype(int).tolist()
    assert len(set(counts)) > 1
    path = batched_log(tmp_path, counts)
    known = fit_scenario(group_size=4, dynamic_sampling={"gen_batch_size": 96})
    result = fit(path, known, draws=20, fit_steps=30)
    written = result.fitted[0].scenario.dynamic_sampling
    assert written.enable
    assert written.gen_batch_size == 96
    assert written.pass_rate is not None
    # 30 counts tell the share within a tenth or so.
    share = truth.dynamic_sampling.pass_rate.kept_share(4)  # type: ignore[union-attr]
    assert written.pass_rate.kept_share(4) == pytest.approx(share, abs=0.08)
    assert any("generates in batches of 96 rollouts, too" in note for note in result.notes)
    again = simulate(result.fitted[0].scenario, policy="sequential", steps=30)
    assert again.steps[ROLLOUTS_ADMITTED].mean() / 96 == pytest.approx(np.mean(counts), rel=0.15)
    # What the user says of rewards stays; so does a run whose steps generate one batch.
    assert as_sampled(truth, [read_step_log(path)]) == (truth, None)
    assert as_sampled(known, [read_step_log(batched_log(tmp_path, [1] * 4))]) == (known, None)


def test_shares_of_groups_that_are_kept_by_hand() -> None:
    # 16 of 16 groups in one batch, always: nearly all are kept. Always two batches of 16 for 16: between half
    # and all.
    low, share, _ = kept_shares([1] * 50, groups=16, needed=16)
    assert low > 0.97
    assert share > 0.98
    low, share, high = kept_shares([2] * 50, groups=1000, needed=1000)
    assert 0.5 < low < 0.55
    assert share == pytest.approx(0.75, abs=0.01)
    assert 0.97 < high < 0.99
    # One group of one: a geometric distribution, whose posterior under a flat prior is a beta distribution.
    counts = [1, 3, 2, 2, 1, 5]
    low, share, high = kept_shares(counts, groups=1, needed=1)
    exact = beta(1 + len(counts), 1 + sum(counts) - len(counts))
    assert (low, share, high) == pytest.approx((exact.ppf(0.025), exact.mean(), exact.ppf(0.975)), abs=0.005)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "set group_size to 2 or more"),
        (
            {"group_size": 4, "dynamic_sampling": {"gen_batch_size": 32}},
            "gen_batch_size 32 is less than rollout_batch_size 64",
        ),
        ({"group_size": 4, "dynamic_sampling": {"gen_batch_size": 65}}, "gen_batch_size 65"),
    ],
)
def test_why_a_written_scenario_cannot_generate_in_batches(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    log = read_step_log(batched_log(tmp_path, [1, 2] * 4))
    written, said = as_sampled(fit_scenario(**changes), [log])
    assert not written.dynamic_sampling.enable
    assert said is not None
    assert reason in said


def test_a_run_of_ours_has_the_batches_that_it_admitted(tmp_path: Path) -> None:
    judged = {"enable": True, "pass_rate": {"alpha": 0.3, "beta": 0.3}, "gen_batch_size": 64}
    scenario = fit_scenario(group_size=4, dynamic_sampling=judged)
    run = simulate(scenario, policy="sequential", steps=6, folder=tmp_path / "run")
    features, _ = build_features(open_log(tmp_path / "run"), scenario)
    assert features.batches.tolist() == (run.steps[ROLLOUTS_ADMITTED] / 64).tolist()
    assert features.batches.max() > 1
