"""With nothing that a cut costs, and streams on shared devices, the model is what it was before either rule was
there: every column that it had, to the last bit."""

import runpy
from pathlib import Path

SCRIPT = runpy.run_path(str(Path(__file__).resolve().parent.parent / "experiments" / "before_cuts.py"))


def test_at_no_cost_and_with_streams_the_numbers_are_those_of_before() -> None:
    old, new = SCRIPT["stored"](), SCRIPT["tables"]()
    assert old.keys() == new.keys() == SCRIPT["CASES"].keys()
    assert all(len(columns) > 40 for columns in old.values())
    assert SCRIPT["differences"](old, new) == []


def test_a_last_digit_is_seen() -> None:
    old = {"case": {"column": [0.1 + 0.2, float("nan")]}}
    assert SCRIPT["differences"](old, {"case": {"column": [0.1 + 0.2, float("nan")]}}) == []
    assert len(SCRIPT["differences"](old, {"case": {"column": [0.3, float("nan")]}})) == 1
    assert len(SCRIPT["differences"](old, {"case": {}})) == 1
