"""The journal of finished work: torn and damaged lines, other formats, one holder, numbers that are none."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from oppo_sim.errors import OppoError
from oppo_sim.runs.differing import differing
from oppo_sim.runs.journal import FORMAT, Journal, known_keys, read_head
from oppo_sim.runs.request import RunRequest, RunResult
from oppo_sim.runs.store import RunStore


def journal(path: Path, taken: list[Any]) -> Journal:
    return Journal(path, "test", lambda entry: taken.append(entry["key"]), {"about": 1})


def kept(path: Path) -> list[Any]:
    taken: list[Any] = []
    with journal(path, taken):
        return taken


def test_entries_come_back_and_a_torn_line_does_not(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "runs.jsonl"
    with journal(path, []) as file:
        file.append([{"key": "a"}, {"key": "b"}])
        file.append([{"key": "c"}])
        assert known_keys(path) == {"a", "b", "c"}  # while it is held
    assert read_head(path) == {"format": FORMAT, "about": 1}
    whole = path.read_bytes()
    for cut in range(1, len(b'{"key": "c"}\n')):
        path.write_bytes(whole[:-cut])
        assert kept(path) == ["a", "b"]
        assert path.read_bytes() == whole[: -len(b'{"key": "c"}\n')]
    path.write_bytes(b'{"form')  # killed while it wrote the first line
    assert kept(path) == []
    assert read_head(path) == {"format": FORMAT, "about": 1}


def test_one_process_at_a_time_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    held = pytest.raises(OppoError, match=r"another test is writing .*runs\.jsonl: wait for it")
    with journal(path, []), held:
        journal(path, [])
    assert kept(path) == []


@pytest.mark.parametrize("line", ["{}", "[1]", '{"key"', "3", "[" * 3000])
def test_a_damaged_line_is_named_and_left_as_it_is(line: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    with journal(path, []) as file:
        file.append([{"key": "a"}])
    with path.open("a") as text:
        text.write(f'{line}\n{{"key": "b"}}\n')
    before = path.read_bytes()
    with pytest.raises(OppoError, match=r"runs\.jsonl, line 3 is no finished run: delete the line"):
        kept(path)
    assert path.read_bytes() == before


def test_another_format_and_another_subject_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text('{"format": "oppo-sweep-runs/1"}\n')
    with pytest.raises(OppoError, match="does not begin as the runs of a test of this version do: delete it"):
        kept(path)
    path.unlink()
    kept(path)
    with pytest.raises(OppoError, match="it is about 1"):
        Journal(path, "test", lambda entry: None, differs=lambda head: f"it is about {head['about']}")
    assert kept(path) == []  # what refused holds nothing


@pytest.mark.parametrize("fields", ["null", "3", "[3]", '"x"'])
def test_a_first_line_with_other_contents_is_refused(fields: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(f'{{"format": "{FORMAT}", "fields": {fields}}}\n')

    def differs(head: dict[str, Any]) -> str:
        return "other fields: " + ", ".join(head["fields"].keys())

    with pytest.raises(OppoError, match=r"does not begin as the runs of a test"):
        Journal(path, "test", lambda _entry: None, {}, differs)
    path.write_text("[" * 3000 + "\n")
    assert read_head(path) is None


def test_totals_come_back_bit_by_bit(tmp_path: Path) -> None:
    request = RunRequest("{}", "intra", "{}", 0, 5)
    totals = {"a": 0.1 + 0.2, "b": math.nan, "c": math.inf, "d": -math.inf, "e": 5e-324}
    results = [RunResult(request.key, totals, "simpy"), RunResult("failed", None, error="no memory")]

    class Given:
        def run(self, requests: list[RunRequest]) -> Any:
            assert requests == [request]
            yield [(request, result) for result in results]

    with RunStore(tmp_path / "runs.jsonl") as store:
        list(store.run([request, request], Given()))  # type: ignore[arg-type]
        assert store.missing([request]) == []
    with RunStore(tmp_path / "runs.jsonl") as again:
        back = again[request.key]
        assert json.dumps(back.totals) == json.dumps(totals)
        assert (back.engine, again["failed"].error) == ("simpy", "no memory")
    assert all("NaN" not in line for line in (tmp_path / "runs.jsonl").read_text().splitlines())


def test_settings_that_differ_are_named_with_both_values() -> None:
    """One that is missing on one side is not set there; long values are not shown twice alike."""
    kept = {"batch": 4, "costs": {"kind": "linear", "note": None}, "lengths": [*range(100)]}
    given = {"batch": 4, "costs": {"kind": "roofline", "device": "A100"}, "lengths": [*range(101)]}
    assert differing(kept, given) == (
        'costs.kind is "linear" there and "roofline" here, costs.device is not set there and "A100" here,'
        " lengths differs"
    )
    assert differing(kept, {**kept, "new": None}) == ""
