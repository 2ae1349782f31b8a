"""``oppo_sim.simulate`` from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import oppo_sim
from oppo_sim import columns as c
from oppo_sim import load_scenario, simulate
from oppo_sim.errors import OppoError
from oppo_sim.one_run import run_setup
from oppo_sim.policies.registry import SHIPPED
from oppo_sim.progress import Progress
from oppo_sim.results import sinks
from oppo_sim.results.sinks import FrameSink, Moments, SummarySink
from oppo_sim.results.summary import run_totals, summarise
from oppo_sim.scenario.build import build_setup
from tests.cli_runs import write_scenario


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_scenario(tmp_path)


def test_a_name_a_path_and_an_object_are_the_same_scenario(tiny: Path) -> None:
    by_text, by_path, by_object = simulate(str(tiny)), simulate(tiny), simulate(load_scenario(tiny))
    for other in (by_path, by_object):
        pd.testing.assert_frame_equal(other.steps, by_text.steps)
        pd.testing.assert_frame_equal(other.rollouts, by_text.rollouts)
        assert other.manifest == by_text.manifest


def test_a_shipped_scenario_runs_by_name() -> None:
    run = simulate("paper-gsm8k-7b", policy="sequential", steps=12)
    assert len(run.steps) == 12
    assert run.step_s == run.steps[c.TIMING_STEP][run.manifest["warmup_steps"] :].mean()
    assert run.policy == "sequential"


def test_every_policy_of_the_package_runs(tiny: Path) -> None:
    assert list(oppo_sim.POLICIES) == list(SHIPPED)
    for name in oppo_sim.POLICIES:
        run = simulate(tiny, policy=name)
        assert (run.policy, len(run.steps), len(run.rollouts)) == (name, 6, 24)
        assert run.rollouts[c.ROLLOUT_ID].is_unique


def test_overrides_change_the_scenario(tiny: Path) -> None:
    run = simulate(tiny, overrides=["policy.overcommit=3", "costs.decode.fixed=0.2"], seed=2, steps=4)
    assert run.steps[c.OVERCOMMIT].tolist() == [3] * 4
    assert (run.seed, run.manifest["seed"]) == (2, 2)
    assert run.manifest["costs"]["parameters"]["decode"]["fixed"] == 0.2
    assert simulate(tiny, policy="inter", policy_settings={"overcommit": 1}).manifest["policy_settings"] == {
        "overcommit": 1
    }


def test_rollouts_are_kept_unless_told_otherwise(tiny: Path) -> None:
    with_rollouts, without = simulate(tiny), simulate(tiny, keep_rollouts=False)
    pd.testing.assert_frame_equal(with_rollouts.steps, without.steps)
    assert tuple(without.rollouts.columns) == c.ROLLOUT_COLUMNS
    assert len(without.rollouts) == 0


def test_the_timeline_holds_the_steps_that_were_asked_for_and_changes_nothing(tiny: Path) -> None:
    plain, shown = simulate(tiny), simulate(tiny, timeline=(2, 3))
    pd.testing.assert_frame_equal(plain.steps, shown.steps)
    assert {span.step for span in shown.spans} == {2, 3}
    assert {"decode", "score", "update_actor", "update_weights"} <= {span.stage for span in shown.spans}
    starts = shown.steps.set_index(c.STEP)[c.START_S]
    assert all(starts[2] <= span.start_s <= span.end_s <= starts[4] + 1e-9 for span in shown.spans)


def test_progress_counts_the_steps(tiny: Path) -> None:
    seen: list[Progress] = []
    simulate(tiny, progress=seen.append)
    assert [(at.done, at.total) for at in seen] == [(done, 6) for done in range(1, 7)]
    assert str(seen[2]) == "simulated steps: 3 of 6"


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "overrides of an object": (
        {"overrides": ["steps=3"]},
        "overrides and trace go with a scenario's name or path",
    ),
    "timeline": ({"timeline": (0, 6)}, "timeline 0:6 lies outside steps 0 to 5"),
    "timeline backwards": ({"timeline": (3, 2)}, "timeline 3:2"),
    "no steps": ({"steps": 0}, "steps 0 is out of range"),
    "steps as text": ({"steps": "3"}, "steps is '3': give a whole number"),
    "seed": ({"seed": -1}, "seed -1 is out of range"),
    "policy": ({"policy": "intr"}, "unknown policy 'intr': did you mean 'intra'?"),
    "settings": ({"policy_settings": {"overcommit": "2"}}, "policy 'oppo', overcommit = '2'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_arguments_are_refused_in_one_sentence(case: str, tiny: Path) -> None:
    arguments, words = WRONG[case]
    with pytest.raises(OppoError) as refused:
        simulate(load_scenario(tiny), **arguments)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_is_no_scenario_is_refused() -> None:
    with pytest.raises(OppoError, match="a scenario is a name, a path or a Scenario, not dict"):
        simulate({"steps": 3})  # type: ignore[arg-type]


def test_the_same_seed_draws_the_same_rollouts_for_every_policy(tiny: Path) -> None:
    rows: dict[int, list[int]] = {}
    for name in SHIPPED:
        rollouts = simulate(tiny, policy=name, seed=3).rollouts
        drawn = zip(rollouts[c.ROLLOUT_ID], rollouts[c.TRACE_ROW], rollouts[c.RESPONSE_LENGTH], strict=True)
        for rollout_id, *row in drawn:
            assert rows.setdefault(rollout_id, row) == row
    assert len(rows) >= 24


def test_a_table_kept_in_blocks_is_the_table_of_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {
            "whole": n,
            "seconds": n / 3,
            "both": n if n % 2 else n / 2,
            "late": None if n < 5 else n,
            "never": None,
            "counts": [n, 1],
            "word": f"w{n}",
            "yes": n > 3,
            **({"more": 2.5} if n > 6 else {}),
        }
        for n in range(10)
    ]
    for size in (1, 4, 5, 100):
        monkeypatch.setattr(sinks, "BLOCK", size)
        kept = FrameSink()
        for number, row in enumerate(rows):
            kept.on_step(row)
            pd.testing.assert_frame_equal(kept.steps(), pd.DataFrame(rows[: number + 1]))


def test_running_totals_agree_with_the_frame(tiny: Path) -> None:
    setup = build_setup(load_scenario(tiny))
    totals_only, frames = SummarySink(setup.warmup_steps), FrameSink()
    run_setup(setup, totals_only)
    run_setup(setup, frames)
    kept = frames.steps()[setup.warmup_steps :]
    totals = run_totals(totals_only, 4, 2)
    assert totals["steps"] == 5
    assert totals["seconds"] == pytest.approx(kept[c.TIMING_STEP].sum(), rel=1e-12)
    assert totals["s_per_rollout"] == pytest.approx(kept[c.TIMING_STEP].sum() / 20, rel=1e-12)
    assert totals["s_per_token"] == pytest.approx(
        kept[c.TIMING_STEP].sum() / kept[c.TOKENS_TRAINED].sum(), rel=1e-12
    )
    assert totals["staleness_max"] == kept[c.STALENESS_MAX].max()
    assert totals[c.timing("gen")] == pytest.approx(kept[c.timing("gen")].mean(), rel=1e-12)
    assert all(isinstance(value, float) for value in totals.values())


def test_moments_are_those_of_the_definition() -> None:
    moments = Moments()
    for value in (4.0, float("nan"), 1.0, 7.0, 2.0):
        moments.add(value)
    frame = pd.Series([4.0, 1.0, 7.0, 2.0])
    assert (moments.count, moments.minimum, moments.maximum, moments.total) == (4, 1.0, 7.0, 14.0)
    assert (moments.mean, moments.std) == pytest.approx((frame.mean(), frame.std()))
    assert Moments().std == 0.0


def test_a_summary_leaves_out_the_warm_up_and_what_is_no_measure() -> None:
    steps = pd.DataFrame(
        {
            c.STEP: [0, 1, 2, 3],
            c.TIMING_STEP: [100.0, 1.0, 2.0, 6.0],
            c.STALENESS_HISTOGRAM: [[1]] * 4,
            c.DEFERRALS_HISTOGRAM: [[1]] * 4,
        }
    )
    summary = summarise(steps, 1)
    assert summary.index.tolist() == [c.TIMING_STEP]
    row = summary.loc[c.TIMING_STEP]
    assert (row["mean"], row["p50"], row["min"], row["max"]) == (3.0, 2.0, 1.0, 6.0)
    # numpy's linear quantile: 0.95 · 2 = 1.9 → 2 + 0.9 · 4.
    assert row["p95"] == pytest.approx(5.6)


def test_a_first_look_at_few_steps_shortens_the_warm_up() -> None:
    run = simulate("h200-single", steps=5, keep_rollouts=False)
    assert len(run.steps) == 5
    assert run.manifest["warmup_steps"] == 1
    assert run.step_s == pytest.approx(run.steps[c.TIMING_STEP][1:].mean())
