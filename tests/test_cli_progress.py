"""How far a long command is, where there is no terminal; and quiet commands."""

from __future__ import annotations

import re
import signal
import time
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console
from rich.progress import TaskID

from oppo_sim.cli import progress
from oppo_sim.cli.progress import Lines, progress_bar, span, told_progress
from oppo_sim.progress import Progress
from oppo_sim.report.terminal import Column, fitted
from oppo_sim.text_lines import in_lines
from tests.cli_runs import Oppo, write_scenario


def test_a_line_says_what_is_done_and_how_long_the_rest_may_take() -> None:
    lines = Lines("tiny: simulated runs", 1)
    assert lines.line(60) == "oppo: tiny: simulated runs: 0 of 1, 60 s so far"
    lines.update(TaskID(0), completed=0, total=400)
    lines.update(TaskID(0), completed=100)
    assert lines.line(120).startswith(
        "oppo: tiny: simulated runs: 100 of 400, 2 min so far, about 6 min left"
    )
    lines.update(TaskID(0), advance=300, description="tiny: drawing")
    assert lines.line(480) == "oppo: tiny: drawing: 400 of 400, 8 min so far"


def test_a_line_of_a_log_has_80_columns_at_most() -> None:
    """The name leaves first, then the end of what is done; the count and the time stay."""
    lines = Lines("mine: search, 1,000 steps/s, best so far: april, overcommit 256, chunk_size 1,024", 1)
    lines.update(TaskID(0), completed=0, total=2_000)
    lines.update(TaskID(0), completed=1_234)
    line = lines.line(5_400)
    assert len(line) == 80
    assert line.startswith("oppo: search, 1,000 steps/s, …")
    assert line.endswith(": 1,234 of 2,000, 90 min so far, about 56 min left")


def test_what_an_earlier_attempt_finished_says_nothing_of_the_time_left() -> None:
    lines = Lines("tiny", 100)
    lines.update(TaskID(0), completed=50)
    assert "left" not in lines.line(60)
    lines.update(TaskID(0), completed=75)
    assert ", about 60 s left" in lines.line(60)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_count_and_time_stay_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    screen = StringIO()
    monkeypatch.setattr(
        "rich.console.Console",
        lambda stderr: Console(file=screen, force_terminal=True, width=width, color_system=None),
    )
    with told_progress("mine", "search", quiet=False) as tell:
        best = "april, overcommit 256, max_deferrals none, chunk_size 1,024"
        tell(Progress("search", 1_234, 2_000, seconds=2.0, simulated_steps=2_000, best=best))
        time.sleep(0.3)
    line = next(each for each in re.split(r"[\r\n]", screen.getvalue()) if "1234/2000" in each)
    assert "search, 1,000 steps/s" in line
    assert re.search(r"\d:\d\d:\d\d|-:--:--", line)
    assert len(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).rstrip()) <= width


def test_no_more_is_left_than_of_the_budget() -> None:
    lines = Lines("calibrate", 138, 150.0)
    lines.update(TaskID(0), completed=0, total=138)
    lines.update(TaskID(0), completed=15)
    assert lines.line(120).endswith("15 of 138, 2 min so far, about 30 s left")
    assert lines.line(155).endswith("about 0 s left")


def test_each_count_of_a_command_has_its_own_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(progress, "monotonic", lambda: now)
    lines = Lines("validate", 1)
    lines.update(TaskID(0), completed=0, total=144, description="calibrating")
    now = 120.0
    lines.update(TaskID(0), completed=144, total=144)
    lines.update(TaskID(0), completed=1, total=48, description="runs")
    assert "left" not in lines.line(120)
    now = 180.0
    lines.update(TaskID(0), completed=4, total=48)
    assert lines.line(180).endswith("runs: 4 of 48, 3 min so far, about 15 min left")
    lines.update(TaskID(0), completed=144, total=288, description="calibrating")
    now = 240.0
    lines.update(TaskID(0), completed=216, total=288)
    assert lines.line(240).endswith("216 of 288, 4 min so far, about 60 s left")


def test_what_is_done_once_is_not_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling for 50 s, then two seconds a run."""
    now = 0.0
    monkeypatch.setattr(progress, "monotonic", lambda: now)
    lines = Lines("sweep", 1)
    lines.update(TaskID(0), completed=0, total=45)
    for done in range(1, 6):
        now = 50.0 + 2.0 * done
        lines.update(TaskID(0), completed=done)
    assert lines.line(60).endswith("5 of 45, 60 s so far, about 80 s left")


def test_durations_are_for_people() -> None:
    assert [span(1), span(89), span(600), span(3 * 3600 + 300)] == ["1 s", "89 s", "10 min", "3 h 05 min"]


def test_lines_come_without_being_asked_for_and_end_with_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.01)
    with progress_bar("validate", 9, quiet=False) as (bar, task):
        bar.update(task, completed=3)
        found = ""
        while "3 of 9" not in found:
            found += capsys.readouterr().err
            time.sleep(0.01)
    capsys.readouterr()
    time.sleep(0.05)
    assert capsys.readouterr().err == ""
    with progress_bar("validate", 9, quiet=True) as (bar, task):
        bar.update(task, completed=3)
        time.sleep(0.05)
    assert capsys.readouterr().err == ""


def test_quiet_leaves_the_result_and_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_scenario(tmp_path)
    oppo = Oppo(capsys)
    noted = (
        "simulate",
        "tiny.yaml",
        "--no-figures",
        "--set",
        "policy.overcommit={control: reward_slope}",
        "-o",
    )
    assert oppo(*noted, "told").err.startswith("note: ")
    quiet = oppo(*noted, "quiet", "--quiet")
    assert (quiet.code, quiet.err) == (0, "")
    assert "wrote quiet" in quiet.out
    assert oppo(*noted, "quiet", "-q").err.startswith("oppo: error: ")


def test_tables_are_as_wide_as_columns_says_where_there_is_no_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At every width the setting is whole and no number is broken."""
    monkeypatch.chdir(tmp_path)
    write_scenario(tmp_path)
    oppo = Oppo(capsys)
    grid = ("--grid", "policy.overcommit=0,2", "--grid", "policy.chunk_size=4,8", "--seeds", "2")
    for width in (40, 60, 80, 100, 140):
        monkeypatch.setenv("COLUMNS", str(width))
        printed = oppo("sweep", "tiny.yaml", *grid, "--jobs", "1", "-o", "sw", "--no-figures")
        lines = printed.out.split("\nnot shown at")[0].split("\n")
        assert max(map(len, lines)) <= width
        if width < 80:  # an interval has a line of its own
            settings = [" ".join(line.split()[:2]) for line in lines]
            assert {"0 4", "0 8", "2 4", "2 8"} <= set(settings)
            continue
        rows = [line.split() for line in lines if "× [" in line]
        assert sorted((row[0], row[1]) for row in rows) == [("0", "4"), ("0", "8"), ("2", "4"), ("2", "8")]
        assert {row[2:4][1] for row in rows} <= {"s", "ms"}
        below = printed.out.partition("\n\n")[2].split("\n")
        assert all(len(line) <= width for line in below if not line.startswith("    oppo sweep tiny.yaml "))


COLUMNS = (
    Column("setting", left=True, folds_at=16),
    Column("step"),
    Column("speed-up\n[95 %]"),
    Column("from choice\n[95 %]", 1),
    Column("staleness\nmean ≤ max", 3),
    Column("KV peak", 8),
    Column("", folds_at=6, stays=True),
)
"""As the table of a search has them."""


@given(
    st.lists(
        st.tuples(
            st.lists(st.from_regex(r"[a-z_]{1,14}(, )?|[0-9.]{1,5}", fullmatch=True), min_size=1, max_size=7),
            st.floats(0, 1e5),
            st.sampled_from(["choice", "≈", "breaks a bound", ""]),
        ),
        min_size=1,
        max_size=5,
    ),
    st.integers(40, 140),
)
@example([(["tail-batching,", "over_issue", "1.25"], 5.5, "choice")], 40)
@example([(["my_policy.py:MyVeryLongNamedPolicyOfMineWhichHasNoEnd"], 5.5, "≈")], 40)
def test_a_table_fits_any_width_and_cuts_no_word_and_no_number(
    settings: list[tuple[list[str], float, str]], width: int
) -> None:
    rows = [
        (" ".join(words), f"{one:,.1f} s", f"{one:.2f}× [{one:.1f}, {one:.1f}]", "+1.0 % [−1.0, +3.0]", "0 ≤ 1",
         f"{one:,.0f}", mark)
        for words, one, mark in settings
    ]  # fmt: skip
    table, gone = fitted("ten fresh seeds of a scenario with a long name (simulated)", COLUMNS, rows, width)
    console = Console(width=width, file=StringIO(), color_system=None)
    console.print(table)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= width
    heads = [column.head.replace("\n", " ") for column in COLUMNS]
    shown = [head not in gone for head in heads]
    assert shown[0]
    assert shown[-1]
    flat = " ".join(text.split())
    for row in rows:
        for cell, there in zip(row[1:], shown[1:], strict=True):
            assert not there or all(word in flat for word in re.findall(r"\[.*\]|\S+", cell))
        assert all(word in flat for word in row[0].split() if len(word) <= 20)
    # What there is room for is not left out.
    assert not gone or width < 140


@pytest.mark.parametrize("stays", [False, True])
def test_where_nothing_says_otherwise_the_last_column_leaves_first(stays: bool) -> None:
    columns = [Column("name", left=True), *(Column(head, stays=stays) for head in ("what", "value", "error"))]
    rows = [("decode, 16 rollouts", "0.123456789", "0.123456789", "0.123456789")]
    for width, left in (
        (63, ()),
        (56, ("error",)),
        (42, ("value", "error")),
        (25, ("what", "value", "error")),
    ):
        assert fitted("", columns, rows, width)[1] == left


def test_a_long_name_parts_at_a_dot_or_a_capital() -> None:
    name = "my_policy.py:MyVeryLongNamedPolicyOfMineWhichHasNoEnd"
    table, gone = fitted("", COLUMNS, [(name, "1 s", "1×", "–", "0", "1", "≈")], 40)
    (cell,) = table.columns[0].cells
    assert str(cell) == "my_policy.py:MyVeryLong\nNamedPolicyOfMineWhich\nHasNoEnd"
    assert "KV peak" in gone


def test_sentences_are_laid_out_and_what_is_copied_stays_whole() -> None:
    told = "best at an edge: it is the lowest searched; search beyond it: oppo sweep a.yaml --grid b=1,2,3,4"
    assert in_lines(told, None) == in_lines(told, 200) == told
    assert in_lines(told, 50) == (
        "best at an edge: it is the lowest searched; search\n  beyond it:\n    oppo sweep a.yaml --grid b=1,2,3,4"
    )
    path = "/a/long/path/" + "name-" * 12
    assert in_lines(f"wrote {path}\n\n  an indented sentence stays indented", 30) == (
        f"wrote\n  {path}\n\n  an indented sentence stays\n    indented"
    )
    assert (
        in_lines("of these settings one took 95 % longer", 30) == "of these settings one took\n  95 % longer"
    )
    pasted = "    trainer.x=1 \\" + " trainer.y=2" * 9
    assert in_lines(pasted, 60) == pasted


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_that_a_library_swallows_ends_the_command_when_it_next_tells(number: int) -> None:
    def interrupt(_number: int, _frame: object) -> NoReturn:
        raise KeyboardInterrupt

    told = Progress("runs", 1, 2)
    before = signal.signal(number, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt), told_progress("mine", "runs", quiet=True) as tell:
            tell(told)
            with suppress(KeyboardInterrupt):
                signal.raise_signal(number)
            tell(told)
        assert signal.getsignal(number) is interrupt
    finally:
        signal.signal(number, before)
