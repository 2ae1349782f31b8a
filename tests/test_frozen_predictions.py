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
