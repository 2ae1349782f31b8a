"""Priors at the size of what a log measured (``fit/inference/typical_seconds.py``)."""

from pathlib import Path

import numpy as np

from oppo_sim.fit.call import fit
from oppo_sim.fit.estimate import judge_rest
from oppo_sim.fit.sources import open_log
from oppo_sim.fit.terms.priors import priors_for
from oppo_sim.scenario.load import load_scenario
from tests.fit_logs import COSTS, TRUTH, fit_scenario, short_chains, verl_log


@short_chains()
def test_steps_that_are_held_back_do_not_move_what_is_predicted_of_them(tmp_path: Path) -> None:
    """Also where fewer steps are fitted than tell the size of a stage elsewhere."""
    predicted = []
    for name, later in (("as_before", 1.0), ("slower", 40.0)):
        extra = {step: {"timing_s/ref": 0.5 * (later if step > 4 else 1.0)} for step in range(1, 13)}
        log = verl_log(tmp_path / f"{name}.log", fit_scenario(), TRUTH, steps=12, extra=extra)
        held = judge_rest(open_log(log), fit_scenario(), fit_steps=4, draws=50)
        judged = next(each for each in held.judgements if each.column == "timing_s/ref")
        predicted.append(judged.prediction.predicted)
    assert np.array_equal(*predicted)


@short_chains()
def test_an_engine_that_is_said_not_to_sleep_is_believed_to_wake_in_no_time(tmp_path: Path) -> None:
    """Unless the log says otherwise, which is told."""
    stated = fit_scenario(costs={**COSTS, "terms": {"gen_phase_s": 0}})
    found, notes = {}, {}
    for seconds in (0.0, 4.0):
        truth = TRUTH.model_copy(update={"gen_phase_s": seconds})
        log = verl_log(tmp_path / f"{seconds}.log", fit_scenario(), truth, steps=10)
        for scenario in (fit_scenario(), stated):
            result = fit(log, scenario, fit_steps=10, draws=100)
            found[seconds, scenario is stated] = result.point.gen_phase_s
            notes[seconds, scenario is stated] = " ".join(result.notes)
    assert found[0.0, True] < 0.5 * found[0.0, False]
    assert abs(found[4.0, True] - 4.0) < 0.3
    outside = "outside the 95 % of their priors: gen_phase_s"
    assert [key for key, said in notes.items() if outside in said] == [(4.0, True)]


def test_of_an_engine_whose_weights_stay_a_log_decides_how_long_it_wakes() -> None:
    """Of several scenarios all must say so; a few numbers in place of a log decide nothing."""
    asleep, stays, awake = (
        load_scenario("agentic-a800x4", overrides)
        for overrides in (
            (),
            ["costs.rollout.sleep_mode=false"],
            ["costs.terms.gen_phase_s=0", "costs.terms.decode=2"],
        )
    )
    medians = [
        priors_for(scenarios, logged=True)["gen_phase_s"].median
        for scenarios in ([asleep], [stays], [awake], [awake, asleep], [stays, asleep])
    ]
    assert medians == [2.0, 0.5, 0.05, 2.0, 2.0]
    assert priors_for([stays])["gen_phase_s"].median == 2.0
    assert priors_for([awake])["decode"].median == 1.0
