"""Priors at the size of what a log measured (``fit/inference/typical_seconds.py``)."""

from pathlib import Path

import numpy as np

from oppo_sim.fit.estimate import judge_rest
from oppo_sim.fit.sources import open_log
from tests.fit_logs import TRUTH, fit_scenario, short_chains, verl_log


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
