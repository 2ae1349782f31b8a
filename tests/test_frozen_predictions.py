"""A change that moves the predictions of the shipped scenarios has to say so."""

import json
import runpy
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent.parent / "experiments" / "freeze_predictions.py"


def test_predictions_of_the_shipped_scenarios_stand() -> None:
    script = runpy.run_path(str(SCRIPT))
    old = json.loads(script["FROZEN"].read_text())
    moved = script["differences"](old, script["predictions"](), 1e-9)
    assert not moved, (
        "predictions moved; if that is meant, run 'python experiments/freeze_predictions.py --write':\n"
        + "\n".join(moved[:20])
    )


def test_a_prediction_that_is_no_longer_a_number_has_moved() -> None:
    differences = runpy.run_path(str(SCRIPT))["differences"]
    table = {"s": {"p": {"c": 2.0}}}
    for other in (float("nan"), float("inf"), 2.1):
        moved = {"s": {"p": {"c": other}}}
        assert len(differences(table, moved, 1e-9)) == len(differences(moved, table, 1e-9)) == 1
        assert differences(moved, moved, 1e-9) == []
