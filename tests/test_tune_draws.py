"""A search's choice on draws of the machine: what is reported of it, and what cannot be told apart from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oppo_sim import columns as c
from oppo_sim.scenario.load import load_scenario
from oppo_sim.tune.trials import PairedResult
from tests.tuning import CHEAP_SCORE, choices, scenario, search

KNOBS: dict[str, Any] = {
    "policies": ("intra",),
    "space": (choices("policy.chunk_size", 4, 40),),
    "trials": 4,
}


def streaming(folder: Path, draws: str) -> Any:
    """Chunks of 4 hide more of the scoring than chunks of 40, unless a scoring batch has a price."""
    (folder / "draws.csv").write_text(draws)
    return scenario(
        folder,
        costs={**CHEAP_SCORE, "score": {"fixed": 0.0, "per_token": 0.05}, "draws": "draws.csv"},
        scoring={"max_scoring_tokens": 1},
        policy={"name": "intra", "chunk_size": 4},
    )


def other(results: Any) -> PairedResult:
    return next(one for one in results if one.checked.setting.knobs.get("policy.chunk_size") == 40)


def test_draws_say_what_the_choice_is_worth_and_what_is_alike(tmp_path: Path) -> None:
    given = streaming(tmp_path, "score_batch_s\n0\n0\n1\n")
    alone = search(given, draws=0, **KNOBS)
    drawn = search(given, **KNOBS)
    assert alone.chosen is not None
    assert drawn.chosen is not None
    assert alone.chosen.checked.setting == drawn.chosen.checked.setting
    assert drawn.chosen.checked.setting.knobs["policy.chunk_size"] == 4
    assert (other(alone.others).alike, other(drawn.others).alike) == (False, True)
    assert alone.chosen.ranges == {}
    ranges = drawn.chosen.ranges
    assert ranges[c.P_BEST] == pytest.approx(2 / 3)
    assert ranges[c.MACHINE_WIDEST] == "score_batch_s"
    assert ranges[c.SPEEDUP_MACHINE_LOW] < ranges[c.SPEEDUP_MACHINE_HIGH]
    assert (ranges[c.DIFFERENCE_BOTH_LOW], ranges[c.DIFFERENCE_BOTH_HIGH]) == (0, 0)
    sure = " ".join(drawn.advised["sections"]["How sure the choice is"])
    assert "Not told apart from it on these seeds and draws of the machine: intra" in sure
    assert "Ranges use 3 fitted draws of the machine (draws.csv); a range of 95 % takes 39 draws." in sure
    expected = " ".join(drawn.advised["sections"]["What to set, and what to expect"])
    assert "95 % interval of rollouts and machine" in expected
    assert drawn.record["machine"]["draws"] == 3
    assert drawn.record["chosen"][c.SPEEDUP_BOTH_LOW] == ranges[c.SPEEDUP_BOTH_LOW]
    assert "machine" not in alone.record


def test_a_finished_search_takes_other_draws_without_searching_again(tmp_path: Path) -> None:
    given = streaming(tmp_path, "score_batch_s\n0\n0.5\n1\n")
    folder = tmp_path / "found"
    search(given, folder, draws=0, **KNOBS)
    before = (folder / "runs.jsonl").read_text().splitlines()
    found = search(given, folder, draws=2, **KNOBS)
    after = (folder / "runs.jsonl").read_text().splitlines()
    assert after[: len(before)] == before
    assert found.record["machine"]["draws"] == 2
    # The best scenario, in its own folder, finds the draws.
    best = load_scenario(folder / "best.yaml")
    assert best.base_dir is not None
    assert best.costs.draws is not None
    assert (best.base_dir / best.costs.draws).resolve() == (tmp_path / "draws.csv").resolve()
