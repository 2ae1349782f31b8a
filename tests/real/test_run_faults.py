"""Real runs whose workers or driver are killed or hang, and a full disk at a checkpoint: what goes on afterwards
decides as the undisturbed run does, and loses or repeats nothing. ``experiments/faults/run.py`` does it fifty times."""

from __future__ import annotations

from dataclasses import replace
from errno import ENOSPC
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch

from oppo_real.checkpoint import write_body
from oppo_real.run.folder import run_to_folder
from oppo_sim.errors import OppoError
from tests.broken_disk import Crash, broken_disk, crash_at, full_from
from tests.real.faults import (
    HUNG_S,
    Case,
    Count,
    Fault,
    assert_same_decisions,
    assert_whole,
    run_case,
    suffer,
)

OPPO = Case("oppo", ())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nobody disturbs."""
    folder = tmp_path_factory.mktemp("faults") / "whole"
    count = Count()
    run_case(OPPO, folder, count)
    assert_whole(folder)
    assert count.messages > 300
    return folder


@pytest.mark.parametrize(
    "faults",
    [
        (Fault("replica 1", 117, 0.004), Fault("scoring worker 0", 140)),
        (Fault("scoring worker 0", 150, hangs=True),),
    ],
    ids=["killed twice", "hung"],
)
def test_a_run_that_lost_a_worker_goes_on_with_the_same_decisions(
    faults: tuple[Fault, ...], whole: Path, tmp_path: Path
) -> None:
    outcome = suffer(replace(OPPO, faults=faults), tmp_path / "run")
    assert outcome.struck == len(faults)
    assert all(0 < kept < 8 for kept in outcome.kept)
    assert_whole(tmp_path / "run")
    assert_same_decisions(whole, tmp_path / "run")
    for said, fault in zip(outcome.said, faults, strict=True):
        how = f"said nothing for {HUNG_S:g} s" if fault.hangs else "was ended by signal 9"
        assert (
            said.startswith(f"{fault.who} (process ") and how in said and "--resume goes on from it" in said
        )
    # It was stopped while it had something to do: noticed after the limit, not long after.
    assert all(HUNG_S <= seconds < HUNG_S + 5 for seconds in outcome.noticed_s)


def test_a_replica_that_hangs_while_it_decodes_by_itself_is_noticed(tmp_path: Path) -> None:
    case = Case("sequential", (Fault("replica 0", 25, hangs=True),), lock_step=False)
    outcome = suffer(case, tmp_path / "run")
    assert len(outcome.noticed_s) == 1 and outcome.noticed_s[0] < HUNG_S + 5
    assert outcome.said[0].startswith("replica 0 (process ")
    assert_whole(tmp_path / "run")


def test_a_worker_lost_while_the_driver_trains_is_told_and_nothing_is_trained_twice(tmp_path: Path) -> None:
    case = Case("inter", (Fault("replica 1", 4, trains=True),), lock_step=False)
    outcome = suffer(case, tmp_path / "run")
    assert (outcome.struck, outcome.training) == (1, 1)
    assert outcome.kept[0] in (3, 4), "that update was the fourth"
    assert_whole(tmp_path / "run")


def _inline(folder: Path, *, resume: bool = False) -> None:
    asked = OPPO.request(folder, resume=resume)
    inline = asked.setup.config.placement.model_copy(update={"kind": "inline"})
    config = asked.setup.config.model_copy(update={"placement": inline})
    run_to_folder(replace(asked, setup=replace(asked.setup, config=config)), lambda done, row: None)


@pytest.fixture(scope="module")
def changes(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """What an undisturbed run asks of the disk, in order."""
    folder = tmp_path_factory.mktemp("faults") / "changes"
    with broken_disk(folder) as disk:
        _inline(folder)
    return [(change.kind, change.path.name) for change in disk.changes]


def test_a_disk_that_is_full_at_a_checkpoint_loses_nothing_that_was_saved(
    changes: list[tuple[str, str]], whole: Path, tmp_path: Path
) -> None:
    replaced = [at for at, change in enumerate(changes, 1) if change == ("rename", "checkpoint.pt")]
    third = changes.index(("write", "checkpoint.pt.partial"), replaced[1]) + 3  # after some of it was written
    folder = tmp_path / "run"
    with (
        pytest.raises(
            OppoError, match=r"no space left for .*checkpoint\.pt: .*--resume goes on from it"
        ) as raised,
        broken_disk(folder, on_change=full_from(third)),
    ):
        _inline(folder)
    assert "(3 steps were done; the folder keeps a checkpoint" in str(raised.value)
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint.pt", "unfinished.jsonl"]
    _inline(folder, resume=True)
    assert_whole(folder)
    assert_same_decisions(whole, folder)


class FullFile(BytesIO):
    """Takes as many bytes as a full disk had."""

    def write(self, data: Any, /) -> int:
        if self.tell() + len(memoryview(data)) > 10_000:
            raise OSError(ENOSPC, "No space left on device")
        return super().write(data)


def test_a_disk_that_is_full_within_a_checkpoint_is_what_is_told() -> None:
    """torch ends its archive all the same, and fails with an error of its own."""
    with pytest.raises(OSError, match="No space left"):
        write_body({"weights": torch.zeros(10_000)}, FullFile())


@pytest.mark.parametrize("where", ["first checkpoint", "a later one", "tables", "manifest"])
def test_a_driver_that_dies_goes_on_where_the_disk_has_it(
    where: str, changes: list[tuple[str, str]], whole: Path, tmp_path: Path
) -> None:
    replaced = [at for at, change in enumerate(changes, 1) if change == ("rename", "checkpoint.pt")]
    at = {
        "first checkpoint": replaced[0],
        "a later one": replaced[4] - 2,
        "tables": changes.index(("rename", "steps.parquet")) + 1,
        "manifest": changes.index(("rename", "manifest.json")) + 1,
    }[where]
    folder = tmp_path / "run"
    with pytest.raises(Crash), broken_disk(folder, on_change=crash_at(at, torn=True)):
        _inline(folder)
    _inline(folder, resume=True)
    assert_whole(folder)
    assert_same_decisions(whole, folder)


def test_a_finished_run_has_nothing_left_to_do(whole: Path) -> None:
    with pytest.raises(OppoError, match="nothing is left to do; raise steps to go on"):
        _inline(whole, resume=True)
