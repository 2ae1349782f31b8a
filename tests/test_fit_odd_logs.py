"""Logs in other forms than they were made for: read as what they are, used in part with a count, or refused in
one sentence; never read as something else."""

import gzip
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from oppo_sim.cli.main import run
from oppo_sim.errors import OppoError
from oppo_sim.fit.call import fit
from oppo_sim.fit.log.reading import read_step_log
from oppo_sim.fit.log.step_log import StepLog
from oppo_sim.fit.sources import open_log
from oppo_sim.fit.terms.features import build_features
from oppo_sim.given_command import given_command
from oppo_sim.scenario.load import load_scenario, scenario_from_plain
from oppo_sim.simulation import simulate
from oppo_sim.traces.importers import import_log
from tests.fit_logs import ALL, TRUTH, fit_scenario, seconds_of_a_step, short_chains, verl_log
from tests.import_cases import write_lines
from tests.test_fit_reading import BASE, console, reasons, refused

GEN, STEP_S = "timing_s/gen", "timing_s/step"


def seconds(path: Path, column: str = GEN, **options: Any) -> list[float]:
    return list(read_step_log(path, **options).frame[column].tolist())


def lines_of(path: Path, *lines: str, encoding: str = "utf-8") -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding=encoding)
    return path


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("20.75s", 20.75),
        ("20750ms", 20.75),
        ("20750.5ms", 20.7505),
        ("1,020.75", 1020.75),
        ("12,345,678", 12_345_678.0),
        ("2.075e1", 20.75),
        ("np.float64(20.75)", 20.75),
        ("tensor(20.75)", 20.75),
        ("'20.75'", 20.75),
        ("20.", 20.0),
    ],
)
def test_a_number_on_the_console_is_read_whole_with_its_unit(
    said: str, expected: float, tmp_path: Path
) -> None:
    line = f"response_length/mean:500.0 - timing_s/gen:{said} - timing_s/ref:3.0"
    path = lines_of(tmp_path / "a.log", *(f"step:{step} - {line}" for step in (1, 2)))
    assert seconds(path) == pytest.approx([expected] * 2)


@pytest.mark.parametrize("said", ["20,75", "20.75min", "20.75h", "1:20.5", "20/75", "nan", "inf"])
def test_what_is_no_plain_number_is_not_taken_for_another_one(said: str, tmp_path: Path) -> None:
    line = f"response_length/mean:500.0 - timing_s/gen:{said} - timing_s/ref:3.0"
    log = read_step_log(lines_of(tmp_path / "a.log", f"step:1 - {line}", f"step:2 - {line}"))
    assert GEN not in log.frame
    assert log.frame["timing_s/ref"].tolist() == [3.0, 3.0]


def test_json_lines_in_other_dresses_read_alike(tmp_path: Path) -> None:
    flat = [{"step": step, **BASE} for step in (1, 2, 3)]
    nested = [
        {
            "step": step,
            "timing_s": {name.split("/")[1]: value for name, value in BASE.items() if "timing" in name},
            "response_length": {"mean": 500.0, "max": 1000.0},
            "prompt_length": {"mean": 100.0},
        }
        for step in (1, 2, 3)
    ]
    text = [{name: str(value) for name, value in row.items()} for row in flat]
    expected = read_step_log(write_lines(tmp_path / "flat.jsonl", flat)).frame
    for name, rows in (("nested.jsonl", nested), ("text.jsonl", text), ("wrong_name.json", flat)):
        found = read_step_log(write_lines(tmp_path / name, rows)).frame
        pd.testing.assert_frame_equal(found[expected.columns.tolist()], expected)


def table(path: Path, rows: Sequence[Sequence[object]], delimiter: str = ",", end: str = "\n") -> Path:
    path.write_text("\n".join(delimiter.join(str(each) for each in row) for row in rows) + end)
    return path


HEADER = ("step", GEN, "response_length/mean")


def test_tables_with_other_separators(tmp_path: Path) -> None:
    for name, delimiter in (("a.csv", ","), ("b.csv", ";"), ("c.csv", "\t")):
        rows = [HEADER, (1, 20.5, 500), (2, 21.5, 501)]
        assert seconds(table(tmp_path / name, rows, delimiter)) == [20.5, 21.5]
    rows = [HEADER, (1, "20,5", "500,0"), (2, "21,5", "501,0")]
    assert seconds(table(tmp_path / "d.csv", rows, ";")) == [20.5, 21.5]
    rows = [HEADER, ("1,0", "20,5", "500,0"), ("2,0", "21,5", "501,0")]
    assert seconds(table(tmp_path / "e.csv", rows, ";")) == [20.5, 21.5]
    rows = [HEADER, (1, 20.5, 500), (2, 21.5, 501)]
    assert seconds(table(tmp_path / "f.tsv", rows, "\t")) == [20.5, 21.5]


def test_separators_of_thousands_in_a_table(tmp_path: Path) -> None:
    rows = [HEADER, (1, '"1,020.50"', '"1,500"'), (2, '"980.5"', '"1,501"')]
    log = read_step_log(table(tmp_path / "a.csv", rows))
    assert log.frame[GEN].tolist() == [1020.5, 980.5]
    assert log.frame["response_length/mean"].tolist() == [1500.0, 1501.0]


def test_a_parquet_table_is_no_log(tmp_path: Path) -> None:
    pd.DataFrame({"step": [1], GEN: [2.0]}).to_parquet(tmp_path / "steps.parquet")
    assert "is a Parquet table, not a log: write it as CSV" in refused(tmp_path / "steps.parquet")


def test_lines_that_grep_found_are_lines(tmp_path: Path) -> None:
    plain = console(tmp_path / "plain.log", [(step, {GEN: 20.0 + step}) for step in (1, 2, 3)])
    lines = plain.read_text().splitlines()
    for name, before in (("a", ""), ("b", "(TaskRunner pid=7) ")):
        found = [f"runs/train.log:{number}:{before}{line}" for number, line in enumerate(lines, start=207)]
        assert seconds(lines_of(tmp_path / f"{name}.log", *found)) == [21.0, 22.0, 23.0]


def test_two_runs_or_ranks_that_print_into_one_file_are_said(tmp_path: Path) -> None:
    def mixed(other: float) -> StepLog:
        figures = [{GEN: 20.0 + step} for step in range(1, 5)]
        later = [{GEN: other * each[GEN]} for each in figures]
        steps = [
            (step, each) for step, both in enumerate(zip(figures, later, strict=True), 1) for each in both
        ]
        return read_step_log(console(tmp_path / f"{other}.log", steps))

    two, copied = mixed(1.1), mixed(1.0)
    assert any("most steps are logged twice with other figures" in note for note in two.notes)
    assert two.frame[GEN].tolist() == pytest.approx([23.1, 24.2, 25.3, 26.4])
    assert not copied.notes
    assert "4 step logged twice" in reasons(copied)


def test_a_table_that_was_cut_off_or_has_its_header_twice(tmp_path: Path) -> None:
    cut = table(tmp_path / "cut.csv", [HEADER, (1, 20.5, 500), (2, 21.5, 501), (3, 2)], end="")
    log = read_step_log(cut)
    assert log.frame["step"].tolist() == [1, 2]
    assert "1 last line cut off" in reasons(log)
    again = table(tmp_path / "again.csv", [HEADER, (1, 20.5, 500), HEADER, (2, 21.5, 501)])
    assert seconds(again) == [20.5, 21.5]
    short = table(tmp_path / "short.csv", [HEADER, (1, 20.5), (2, 21.5, 501)])
    assert "line 2: there are 2 values but the header names 3" in refused(short)


def test_what_mlflow_exports_is_a_row_a_figure(tmp_path: Path) -> None:
    figures = [(name, step, value + step) for name, value in BASE.items() for step in (1, 2, 3)]
    rows = [f"a1b2,{name},{value},{step},17000{step}" for name, step, value in figures]
    head = "run_id,key,value,step,timestamp"
    log = read_step_log(lines_of(tmp_path / "metrics.csv", head, *rows))
    assert (log.framework, log.left_out, log.notes) == ("verl", {}, ())
    assert log.frame["step"].tolist() == [1, 2, 3]
    assert log.frame[GEN].tolist() == [21.0, 22.0, 23.0]
    assert log.frame["response_length/mean"].tolist() == [501.0, 502.0, 503.0]
    other = [row.replace("a1b2", "c3d4") for row in rows]
    path = lines_of(tmp_path / "two.csv", head, *rows, *other)
    assert "figures of 2 runs (a1b2, c3d4)" in refused(path)
    (tmp_path / "cut.csv").write_text("\n".join([head, *rows])[:-9], encoding="utf-8")
    assert sum(read_step_log(tmp_path / "cut.csv").left_out.values()) >= 1


def test_an_export_of_several_runs_is_not_mixed(tmp_path: Path) -> None:
    header = ("Step", f"old - {GEN}", f"old - {GEN}__MIN", f"new - {GEN}")
    path = table(tmp_path / "a.csv", [header, (1, 20, 20, 30), (2, 21, 21, 31)])
    assert "columns of 2 runs (new, old): export one run" in refused(path)
    twice = table(tmp_path / "b.csv", [("step", GEN, GEN), (1, 20, 30)])
    assert "names a column twice" in refused(twice)


def test_steps_out_of_order_are_sorted_and_none_is_lost(tmp_path: Path) -> None:
    for name, order in (("down", range(9, 0, -1)), ("pair", [1, 3, 2, 4, 5]), ("tail", [6, 7, 8, 1, 2, 3])):
        path = console(tmp_path / f"{name}.log", [(step, {GEN: 20.0 + step}) for step in order])
        log = read_step_log(path)
        assert log.frame["step"].tolist() == sorted(order)
        assert log.frame[GEN].tolist() == [20.0 + step for step in sorted(order)]
        assert log.frame["cold_start"].tolist() == [True] + [False] * (len(order) - 1)
        assert any("not in the order" in note for note in log.notes)
        assert not log.left_out


def test_figures_of_a_step_in_two_passes_come_together(tmp_path: Path) -> None:
    timed = [f"step:{step} - timing_s/gen:{20 + step}.0" for step in (1, 2, 3)]
    lengths = [f"step:{step} - response_length/mean:{500 + step}.0" for step in (1, 2, 3)]
    log = read_step_log(lines_of(tmp_path / "a.log", *timed, *lengths))
    assert log.frame[GEN].tolist() == [21.0, 22.0, 23.0]
    assert log.frame["response_length/mean"].tolist() == [501.0, 502.0, 503.0]


def test_a_folder_of_a_run_has_files_of_other_kinds(tmp_path: Path) -> None:
    """wandb's folder of a run, and what TRL's trainer writes."""
    run, trained = tmp_path / "run-1", tmp_path / "out"
    for folder in (run / "files", trained / "checkpoint-2", trained / "checkpoint-4"):
        folder.mkdir(parents=True)
    console(run / "files" / "output.log", [(1, {}), (2, {})])
    (run / "files" / "wandb-summary.json").write_text(json.dumps({GEN: 99.0, "_step": 9}))
    (run / "files" / "wandb-metadata.json").write_text(json.dumps({"gpu": "H100", "gpu_count": 8}))
    (run / "files" / "requirements.txt").write_text("torch==2.4")
    (run / "run-1.wandb").write_bytes(b"\x00\x01")
    log = read_step_log(run)
    assert (log.frame[GEN].tolist(), reasons(log)) == ([20.0, 20.0], "3 file of another kind")
    lines = [
        {
            "step": step,
            "step_time": 30.0 + step,
            "completions/max_length": 900,
            "completions/mean_length": 500.0,
        }
        for step in range(1, 5)
    ]
    for steps in (2, 4):
        folder = trained / f"checkpoint-{steps}"
        (folder / "config.json").write_text(json.dumps({"vocab_size": 1000}))
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": lines[:steps]}))
    log = read_step_log(trained)
    assert log.frame[STEP_S].tolist() == [31.0, 32.0, 33.0, 34.0]
    assert log.left_out["file of another kind"] == 2
    frame, provenance = import_log("trl", trained, rows_per_step=8)
    assert len(frame) == 32
    assert provenance["files_left_out"] == {"file of another kind": 2}
    (run / "files" / "output.log").unlink()
    assert "run-1.wandb is wandb's own binary log" in refused(run)
    assert "holds no list of metrics" in refused(trained / "checkpoint-2" / "config.json")


def test_files_of_two_runs_in_a_folder_are_not_mixed(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    console(folder / "1.log", [(step, {}) for step in range(1, 9)])
    console(folder / "2.log", [(step, {GEN: 30.0}) for step in range(1, 5)])
    assert "files with other figures of the same steps (4 steps)" in refused(folder)
    console(folder / "2.log", [(step, {}) for step in range(1, 9)])
    copied = read_step_log(folder)
    assert copied.frame["step"].tolist() == list(range(1, 9))
    assert "8 step logged twice, in two files" in reasons(copied)
    console(folder / "2.log", [(step, {GEN: 30.0}) for step in range(6, 12)])
    resumed = read_step_log(folder)
    assert resumed.frame[GEN].tolist() == [20.0] * 5 + [30.0] * 6
    assert resumed.frame[resumed.frame["cold_start"]]["step"].tolist() == [1, 6]


def test_a_whole_step_in_milliseconds_beside_stages_in_seconds(tmp_path: Path) -> None:
    log = read_step_log(console(tmp_path / "a.log", [(step, {STEP_S: 36_000.0}) for step in range(1, 6)]))
    assert log.frame[STEP_S].tolist() == [36.0] * 5
    assert any("timing_s/step was taken as milliseconds" in note for note in log.notes)


def test_a_share_in_percent(tmp_path: Path) -> None:
    steps = [(step, {"response_length/clip_ratio": 3.5}) for step in range(1, 4)]
    log = read_step_log(console(tmp_path / "a.log", steps))
    assert log.frame["response_length/clip_ratio"].tolist() == pytest.approx([0.035] * 3)
    assert any("taken as percent" in note for note in log.notes)


def test_figures_that_cannot_be_are_unknown_and_counted(tmp_path: Path) -> None:
    odd = {
        "response_length/clip_ratio": 300.0,
        "prompt_length/mean": -100.0,
        "timing_s/agent_loop/slowest/tool_calls": -5.0,
        "perf/total_num_tokens": 0.0,
        "timing_per_token_ms/update_actor": 0.0,
    }
    log = read_step_log(console(tmp_path / "a.log", [(1, {}), (2, odd), (3, {GEN: 1e-12})]))
    assert log.frame["step"].tolist() == [1, 2]
    for column in ("response_length/clip_ratio", "prompt_length/mean", "tokens/total"):
        assert f"1 {column} that cannot be" in reasons(log)
        assert column not in log.frame or np.isnan(log.frame[column].iloc[1])
    assert sum("cannot be" in reason for reason in log.left_out) == len(odd)
    assert "1 step whose generation or whole took zero seconds" in reasons(log)


@pytest.mark.parametrize("ending", ["log", "jsonl", "csv"])
def test_a_metric_without_a_number_in_any_step_is_counted(ending: str, tmp_path: Path) -> None:
    """Where only some steps lack it, these are; what is no figure of a step is nobody's business."""
    steps = [{"step": n, **BASE, "timing_s/ref": None, "mine/other": None} for n in (1, 2, 3)]
    steps[1]["timing_s/gen"] = None
    path = tmp_path / f"a.{ending}"
    if ending == "jsonl":
        write_lines(path, steps)
    elif ending == "csv":
        pd.DataFrame(steps).to_csv(path, index=False)
    else:
        path.write_text("".join(" - ".join(f"{k}:{v}" for k, v in each.items()) + "\n" for each in steps))
    log = read_step_log(path)
    assert "timing_s/ref" not in log.frame
    assert log.left_out == {"timing_s/ref that is no number in any step": 3, "step without timing_s/gen": 1}
    with pytest.raises(OppoError, match="'timing_s/ref' is no number in any of its 3 lines"):
        read_step_log(path, fields={"timing_s/adv": "timing_s/ref"})


@short_chains()
def test_seconds_of_a_stage_of_zero_seconds_are_not_of_the_others(tmp_path: Path) -> None:
    """They are what no metric names, as where it is not logged."""
    scenario = fit_scenario()
    log = verl_log(tmp_path / "a.log", scenario, TRUTH)
    said = re.sub(r"(timing_s/update_weights:np.float64)\([^)]*\)", r"\1(0.0)", log.read_text())
    log.write_text(said)
    point = fit(log, scenario, fit_steps=ALL, draws=50).point
    assert seconds_of_a_step(point) == pytest.approx(seconds_of_a_step(TRUTH), rel=0.03)


def test_lines_that_a_progress_bar_writes_over_are_lines(tmp_path: Path) -> None:
    text = console(tmp_path / "a.log", [(step, {GEN: 20.0 + step}) for step in (1, 2, 3)]).read_text()
    bar = "Training: 33%|###   | 1/3\r"
    (tmp_path / "b.log").write_text(bar + text.replace("\n", "\r" + bar))
    assert seconds(tmp_path / "b.log") == [21.0, 22.0, 23.0]


def test_a_framework_or_a_name_that_is_another_is_told(tmp_path: Path) -> None:
    path = console(tmp_path / "a.log", [(1, {}), (2, {})])
    assert "no seconds by trl's names, but by verl's: leave --from trl out" in refused(path, framework="trl")
    packed = tmp_path / "b.log"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert "packed by gzip, and its name does not say so: rename it to b.log.gz" in refused(packed)


def test_other_encodings(tmp_path: Path) -> None:
    text = console(tmp_path / "a.log", [(1, {}), (2, {})]).read_text()
    (tmp_path / "bom.log").write_text("\ufeff" + text, encoding="utf-8")
    (tmp_path / "crlf.log").write_bytes(text.replace("\n", "\r\n").encode())
    (tmp_path / "latin.log").write_bytes(b"caf\xe9 step:1\n" + text.encode())
    for name in ("bom", "crlf", "latin"):
        assert seconds(tmp_path / f"{name}.log") == [20.0, 20.0]
    (tmp_path / "wide.log").write_text(text, encoding="utf-16")
    assert "UTF-16" in refused(tmp_path / "wide.log")


STEPS = 6


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of a run of ``SCENARIO``."""
    path = tmp_path_factory.mktemp("odd") / "good.log"
    return verl_log(path, SCENARIO, TRUTH, steps=STEPS)


SCENARIO = fit_scenario(training={"critic": "none", "ref": False, "old_log_prob": "behaviour"}, steps=STEPS)


def fitting(log: object, **options: Any) -> str:
    with short_chains(), pytest.raises(OppoError) as caught:
        fit(log, SCENARIO, draws=20, fit_steps=STEPS, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def rescaled(log: Path, path: Path, factor: float) -> Path:
    frame = read_step_log(log).frame
    timed = [name for name in frame if name.startswith("timing_s/")]
    frame[timed] *= factor
    rows = [{k: float(v) for k, v in row.items() if k != "cold_start"} for row in frame.to_dict("records")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_seconds_in_minutes_or_milliseconds_are_refused(good: Path, tmp_path: Path) -> None:
    assert "--unit ms" in fitting(rescaled(good, tmp_path / "ms.jsonl", 1000.0))
    assert "timing_s/gen is a" in fitting(rescaled(good, tmp_path / "minutes.jsonl", 1 / 60))


def test_minutes_of_a_run_with_slow_generation_are_known_by_its_training(tmp_path: Path) -> None:
    """Tools make generation as long as the scenario's in seconds would be."""
    scenario = fit_scenario(steps=STEPS)
    log = verl_log(tmp_path / "a.log", scenario, TRUTH, steps=STEPS)
    low = rescaled(log, tmp_path / "low.jsonl", 1 / 60)
    rows = [json.loads(line) for line in low.read_text().splitlines()]
    slow = [{**row, GEN: 20 * row[GEN], STEP_S: row[STEP_S] + 19 * row[GEN]} for row in rows]
    with pytest.raises(OppoError) as caught:
        fit(write_lines(tmp_path / "slow.jsonl", slow), scenario, draws=20, fit_steps=STEPS)
    assert re.search(
        r"old_log_prob .*ref .*update_actor is a \d+th of what .*: is it in minutes", str(caught.value)
    )


def test_a_log_counts_once(good: Path) -> None:
    assert "are the same log" in fitting([good, good])
    assert "is fitted and judged" in fitting(good, judge=[(good, SCENARIO)])


@short_chains()
def test_a_scenario_of_another_run_is_told_by_its_lengths(good: Path) -> None:
    plain = SCENARIO.to_plain()
    other = scenario_from_plain({**plain, "max_response_length": 300})
    with pytest.raises(OppoError, match=r"has a response of [\d,]+ tokens, but max_response_length"):
        fit(good, other, draws=20)


@short_chains()
def test_stages_that_overlap_are_told(good: Path, tmp_path: Path) -> None:
    frame = read_step_log(good).frame
    rows = [{**row, STEP_S: 0.8 * row[STEP_S]} for row in frame.drop(columns="cold_start").to_dict("records")]
    path = write_lines(tmp_path / "async.jsonl", rows)
    for left, told in ((), True), (("timing_s/adv",), True), (("timing_s/gen",), False):
        result = fit(path, SCENARIO, draws=20, fit_steps=STEPS, leave_out=left)
        assert any("longer than its steps: they overlap" in note for note in result.notes) == told, left


def test_rollouts_of_another_step_or_run_are_told(good: Path, tmp_path: Path) -> None:
    frame = read_step_log(good).frame

    def trace(name: str, shift: int, factor: float) -> str:
        rows = [
            {"step": int(row["step"]) + shift, "response_length": int(each), "prompt_length": 100}
            for row in frame.to_dict("records")
            for each in np.full(64, round(factor * row["response_length/mean"]))
        ]
        path = tmp_path / f"{name}.parquet"
        pd.DataFrame(rows).to_parquet(path)
        return str(path)

    assert not open_log(good, lengths=trace("same", 0, 1.0)).notes
    with pytest.raises(OppoError, match="of the step after it: number their steps"):
        open_log(good, lengths=trace("early", -1, 1.0))
    # Means of neighbours are alike, and those of the right step are nearer by far.
    alike = frame.assign(**{"response_length/mean": [300.0, 306.0, 299.0, 307.0, 301.0, 306.0]})
    rows = [
        {"step": n, **BASE, "response_length/mean": m} for n, m in enumerate(alike["response_length/mean"])
    ]
    near = read_step_log(write_lines(tmp_path / "near.jsonl", rows))
    lengths = pd.DataFrame(
        [
            {"step": n - 1, "response_length": length, "prompt_length": 100}
            for n, row in enumerate(rows)
            for length in [int(row["response_length/mean"])] * 8
        ]
    )
    lengths[lengths["step"] >= 0].to_parquet(tmp_path / "near.parquet")
    with pytest.raises(OppoError, match="of the step after it"):
        open_log(near, lengths=str(tmp_path / "near.parquet"))
    for flag in ("--lengths", "--trace"):
        with (
            given_command(("oppo", "fit", str(good), flag, "early.parquet")),
            pytest.raises(OppoError, match=rf"^{flag} \S*early\.parquet: "),
        ):
            open_log(good, lengths=trace("early", -1, 1.0))
    (note,) = open_log(good, lengths=trace("other", 0, 2.0)).notes
    assert "other mean lengths than the log" in note
    assert "is among those of its rollouts" in fitting(open_log(good, lengths=trace("far", 100, 1.0)))


@short_chains()
def test_from_python_a_log_is_read_as_on_the_command_line(good: Path, tmp_path: Path) -> None:
    frame = read_step_log(good).frame
    rows = [
        {
            ("my_gen" if name == GEN else str(name)): value
            for name, value in row.items()
            if name != "cold_start"
        }
        for row in frame.to_dict("records")
    ]
    path = write_lines(tmp_path / "own.jsonl", rows)
    lengths = pd.DataFrame(
        [
            {
                "step": int(row["step"]),
                "response_length": round(row["response_length/mean"]),
                "prompt_length": 100,
            }
            for row in frame.to_dict("records")
            for _ in range(64)
        ]
    )
    how: dict[str, Any] = {"draws": 20, "fit_steps": STEPS - 3}
    result = fit(
        path, scenario=SCENARIO, fields={GEN: "my_gen"}, unit="s", lengths=lengths, from_step=4, **how
    )
    (part,) = result.parts
    assert part.log.covers[GEN] == ("gen",)
    assert part.log.frame["step"].min() == 4
    assert part.log.lengths is not None
    with pytest.raises(OppoError, match="there are 1 logs and 2 lengths"):
        fit(path, SCENARIO, lengths=[lengths, lengths])
    with pytest.raises(OppoError, match="fields and unit are of logs by path: give them to read_step_log"):
        fit(read_step_log(good), SCENARIO, fields={GEN: "my_gen"})


def test_a_line_that_another_process_printed_into_stays_one_step(tmp_path: Path) -> None:
    whole = [
        f"(pid=7) step:{step} - {GEN}:{20 + step} - timing_s/ref:3.0 - response_length/mean:500.0"
        for step in range(1, 7)
    ]
    middle = whole[2].index(" - response")
    whole[2] = whole[2][:middle] + " (pid=9) WARNING step:0 is old\n" + whole[2][middle:]
    log = read_step_log(lines_of(tmp_path / "a.log", *whole))
    assert log.frame[GEN].tolist() == [21.0, 22.0, 23.0, 24.0, 25.0, 26.0]
    assert log.frame["response_length/mean"].tolist() == [500.0] * 6
    assert not log.left_out


@pytest.mark.parametrize("width", [60, 80, 131, 200])
def test_lines_that_a_terminal_broke_are_put_together(width: int, tmp_path: Path) -> None:
    """A copy from a terminal breaks lines anywhere, also within a number or a name."""
    figures = "timing_s/ref:3.125 - timing_s/step:{step}.5 - response_length/mean:51{step}.25 - prompt_length/mean:98.5"
    whole = [
        f"(TaskRunner pid=7) step:{step} - critic/score/mean:0.{step:03d} - {GEN}:{20 + step}.0625 - "
        + figures.format(step=30 + step)
        for step in range(1, 12)
    ]
    told = [line for each in whole for line in (each, "Saved a checkpoint to ckpt/12, 4 ranks")]
    pieces = [line[at : at + width] for line in told for at in range(0, len(line), width)]
    log = read_step_log(lines_of(tmp_path / "a.log", *pieces))
    expected = read_step_log(lines_of(tmp_path / "b.log", *whole))
    pd.testing.assert_frame_equal(log.frame, expected.frame)
    assert log.frame["step"].tolist() == list(range(1, 12))
    assert not log.left_out


@pytest.mark.parametrize("at", range(6, 60, 3))
def test_a_line_that_was_broken_within_a_number_has_the_number(at: int, tmp_path: Path) -> None:
    """Where processes write into one file; of what is glued to another's text nothing is believed."""
    whole = [
        f"step:{step} - {GEN}:{20 + step}.0625 - timing_s/ref:3.125 - response_length/mean:51{step}.25"
        for step in range(1, 5)
    ]
    expected = read_step_log(lines_of(tmp_path / "whole.log", *whole)).frame
    broken = [part for line in whole for part in (line[:at], line[at:])]
    log = read_step_log(lines_of(tmp_path / "a.log", *broken))
    pd.testing.assert_frame_equal(log.frame, expected)
    assert not log.left_out
    broken[4] += "(WorkerDict pid=9) INFO 08-01 10:00:00 throughput: 12.0 tokens/s"
    frame = read_step_log(lines_of(tmp_path / "b.log", *broken)).frame
    for column in expected:
        if column in frame:
            assert set(frame[column].dropna()) <= set(expected[column])


def test_parts_of_a_line_stay_with_its_step_where_every_line_is_in_parts(tmp_path: Path) -> None:
    parts = [
        (f"step:{step} - {GEN}:{20 + step}.0", f" - timing_s/ref:{step}.5 - timing_s/step:3{step}.5", f" - response_length/mean:50{step}.0")
        for step in range(1, 6)
    ]  # fmt: skip
    log = read_step_log(lines_of(tmp_path / "a.log", *(part for each in parts for part in each)))
    assert log.frame["step"].tolist() == [1, 2, 3, 4, 5]
    assert log.frame[GEN].tolist() == [21.0, 22.0, 23.0, 24.0, 25.0]
    assert log.frame["timing_s/ref"].tolist() == [1.5, 2.5, 3.5, 4.5, 5.5]
    assert log.frame["response_length/mean"].tolist() == [501.0, 502.0, 503.0, 504.0, 505.0]


def test_seconds_of_a_step_are_not_its_number(tmp_path: Path) -> None:
    """A loop of one's own that prints what verl logs, without the number of a step."""
    lines = [str({GEN: 20.5, STEP_S: 36.5 - step, "response_length/mean": 500.0}) for step in range(4)]
    log = read_step_log(lines_of(tmp_path / "a.log", *lines))
    assert log.frame["step"].tolist() == [0, 1, 2, 3]
    assert log.frame[STEP_S].tolist() == [36.5, 35.5, 34.5, 33.5]


def test_figures_without_a_step_among_steps_are_counted_not_taken_for_one(tmp_path: Path) -> None:
    rows = [{"step": step, **BASE} for step in range(1, 6)]
    log = read_step_log(write_lines(tmp_path / "a.jsonl", [*rows, {**BASE, GEN: 900.0}]))
    assert log.frame["step"].tolist() == [1, 2, 3, 4, 5]
    assert log.frame[GEN].tolist() == [BASE[GEN]] * 5
    assert log.left_out == {"line without a step among lines that have one": 1}


@pytest.mark.parametrize("late", [3, 6, 7])
def test_a_log_that_went_over_to_milliseconds_half_way(late: int, tmp_path: Path) -> None:
    rows = [
        {
            "step": step,
            **{
                name: v * (1000 if name.startswith("timing") and step > 10 - late else 1)
                for name, v in BASE.items()
            },
        }
        for step in range(1, 11)
    ]
    log = read_step_log(write_lines(tmp_path / "a.jsonl", rows))
    assert log.frame[GEN].tolist() == pytest.approx([BASE[GEN]] * 10)
    assert log.frame[STEP_S].tolist() == pytest.approx([BASE[STEP_S]] * 10)
    assert log.left_out[f"{STEP_S} in milliseconds among seconds: divided by 1,000"] == late


def test_a_small_stage_of_a_line_in_milliseconds_is_in_them_too(tmp_path: Path) -> None:
    """0.02 s are 20 "seconds", less than a step."""
    base = {**BASE, "timing_s/adv": 0.02}
    rows = [
        {"step": n, **{k: v * (1000 if n > 5 and k.startswith("timing") else 1) for k, v in base.items()}}
        for n in range(1, 11)
    ]
    log = read_step_log(write_lines(tmp_path / "a.jsonl", rows))
    assert log.frame["timing_s/adv"].tolist() == pytest.approx([0.02] * 10)
    assert log.left_out["timing_s/adv in milliseconds among seconds: divided by 1,000"] == 5


def test_one_share_above_one_is_no_column_in_percent(tmp_path: Path) -> None:
    shares = [0.14] * 12
    shares[7] = 1.7
    path = console(
        tmp_path / "a.log", [(n, {"response_length/clip_ratio": share}) for n, share in enumerate(shares)]
    )
    log = read_step_log(path)
    assert log.frame["response_length/clip_ratio"].tolist() == pytest.approx(
        [0.14] * 7 + [np.nan] + [0.14] * 4, nan_ok=True
    )
    assert reasons(log) == "1 response_length/clip_ratio that cannot be"


def test_a_number_at_the_end_of_a_line_that_was_cut_off_is_not_believed(tmp_path: Path) -> None:
    path = console(tmp_path / "a.log", [(n, {}) for n in range(1, 6)])
    lines = path.read_text().splitlines()
    lines[2] = lines[2].split(":10.0")[0] + ":1"  # of 10.0 seconds
    assert lines[2].endswith("timing_s/update_actor:1")
    log = read_step_log(lines_of(path, *lines))
    assert log.frame["timing_s/update_actor"].tolist() == pytest.approx([10, 10, np.nan, 10, 10], nan_ok=True)
    assert "1 number at the end of a line that was cut off" in reasons(log)


def test_a_metric_that_is_named_and_not_there_is_refused(tmp_path: Path) -> None:
    path = console(tmp_path / "a.log", [(1, {}), (2, {})])
    said = refused(path, fields={"timing_s/gen": "timing_s/gne"})
    assert "has no metric 'timing_s/gne'; did you mean 'timing_s/gen'?" in said


def test_a_stage_is_not_counted_again_in_a_metric_that_holds_it(tmp_path: Path) -> None:
    """SkyRL's train_critic_and_policy holds policy_train."""
    line = {
        "timing/generate": 20.0,
        "timing/policy_train": 10.0,
        "timing/train_critic_and_policy": 10.5,
        "timing/step": 34.0,
        "generate/avg_num_tokens": 500.0,
    }
    path = write_lines(
        tmp_path / "sky.jsonl", [{"trainer/global_step": n, "step": n, **line} for n in range(1, 7)]
    )
    log = read_step_log(path, "skyrl")
    assert set(log.covers) == {"timing_s/gen+reward", "timing_s/update_actor"}


def test_after_a_restart_in_another_file_nothing_of_the_first_attempt_is_left(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for name, steps, saving in (("1.log", range(1, 7), 5), ("2.log", range(4, 10), 8)):
        late = 2.0 if name == "2.log" else 0.0
        console(
            tmp_path / "run" / name,
            [
                (
                    n,
                    {
                        "timing_s/gen": 20.0 + late,
                        **({"timing_s/save_checkpoint": 15.0, STEP_S: 51.0} if n == saving else {}),
                    },
                )
                for n in steps
            ],
        )
    frame = read_step_log(tmp_path / "run").frame.set_index("step")
    assert frame["timing_s/save_checkpoint"].dropna().index.tolist() == [8]
    assert frame[GEN].tolist() == [20.0] * 3 + [22.0] * 6


def test_the_step_is_the_metric_that_is_named_for_it(tmp_path: Path) -> None:
    rows = pd.DataFrame([{"_step": 7 * n, "training/global_step": n, **BASE} for n in range(1, 5)])
    rows.to_csv(tmp_path / "wandb.csv", index=False)
    assert seconds(tmp_path / "wandb.csv", "step") == [1, 2, 3, 4]
    assert seconds(tmp_path / "wandb.csv", "step", fields={"step": "_step"}) == [7, 14, 21, 28]


def test_a_number_whose_brackets_are_open_is_not_believed(tmp_path: Path) -> None:
    line = "response_length/mean:np.float64(500.0) - timing_s/gen:np.float64(20.0) - timing_s/ref:np.float64(3.0)"
    ends = {n: " - timing_s/update_actor:np.float64(1" + ("" if n == 3 else "0.0)") for n in range(1, 6)}
    path = lines_of(tmp_path / "a.log", *(f"step:{n} - {line}{end}" for n, end in ends.items()))
    assert seconds(path, "timing_s/update_actor") == pytest.approx([10, 10, np.nan, 10, 10], nan_ok=True)
    assert seconds(path) == [20.0] * 5


def test_a_fit_of_a_run_without_noise_has_its_seconds(tmp_path: Path) -> None:
    """Walkers that found no way from where they began are no draws: means were 2 % off by a few of them."""
    (tmp_path / "mine.yaml").write_text((scenario := fit_scenario()).to_yaml())
    run(["simulate", str(tmp_path / "mine.yaml"), "-o", str(tmp_path / "run"), "--no-figures", "-q"])
    fit(tmp_path / "run", scenario, draws=400, fit_steps=24, folder=tmp_path / "fit")
    written = load_scenario(tmp_path / "fit" / "scenario.yaml")
    again, first = (simulate(each, policy="sequential") for each in (written, scenario))
    for column in (GEN, "timing_s/update_actor", STEP_S):
        assert again.steps[column].mean() == pytest.approx(first.steps[column].mean(), rel=0.005)


def trl(path: Path, numbers: Sequence[int], every: int = 1) -> Path:
    """As TRL keeps its history: tokens of prompts and responses so far, and no prompt length."""
    rows = [
        {"step": n, "step_time": 40.0, "completions/mean_length": 500.0, "num_tokens": 8 * 700.0 * n}
        for n in numbers
    ]
    path.write_text(json.dumps({"log_history": rows}))
    return path


def test_tokens_so_far_are_told_apart_by_step(tmp_path: Path) -> None:
    tokens = "tokens/total"
    assert seconds(trl(tmp_path / "all.json", range(1, 7)), tokens) == [5600.0] * 6
    assert seconds(trl(tmp_path / "fifth.json", range(5, 35, 5)), tokens) == [5600.0] * 6
    found = seconds(trl(tmp_path / "hole.json", [1, 2, 3, 6, 7, 8]), tokens)
    assert found == pytest.approx([5600.0] * 3 + [np.nan] + [5600.0] * 2, nan_ok=True)


def test_without_a_prompt_length_tokens_tell_it(tmp_path: Path) -> None:
    scenario = fit_scenario(rollout_batch_size=8, max_prompt_length=300)
    found, kept = build_features(read_step_log(trl(tmp_path / "a.json", range(1, 7))), scenario)
    assert found.tokens.tolist() == pytest.approx([5600.0] * 6, rel=0.01)
    assert not any("are of other rollouts" in note for note in kept.notes)


@short_chains()
def test_a_batch_of_another_size_than_the_logs_tokens_is_refused(good: Path) -> None:
    """The log says what it trains, too, which is no reason to take half of a batch for filtered."""
    plain = SCENARIO.to_plain()
    for batch in (32, 128):
        with pytest.raises(OppoError, match=rf"(about|trains) 64 rollouts .* rollout_batch_size .* {batch}:"):
            fit(good, scenario_from_plain({**plain, "rollout_batch_size": batch}), draws=20)


@pytest.mark.parametrize(("said", "expected"), [("20.75 s", 20.75), ("20750ms", 20.75), ("20.75s", 20.75)])
def test_seconds_as_text_with_their_unit(said: str, expected: float, tmp_path: Path) -> None:
    rows = [{"step": step, **BASE, GEN: said} for step in (1, 2)]
    assert seconds(write_lines(tmp_path / "a.jsonl", rows)) == pytest.approx([expected] * 2)
    header = f"Step,{GEN},response_length/mean"
    path = lines_of(tmp_path / "a.csv", header, f"1,{said},500.0", f"2,{said},500.0")
    assert seconds(path) == pytest.approx([expected] * 2)


def test_a_restart_in_a_folder_of_a_file_a_metric_is_told_once(tmp_path: Path) -> None:
    for name, value in BASE.items():
        lines = [f"1.7e9,{step},{value}" for step in (1, 2, 3, 4, 5, 3, 4, 5, 6)]
        lines_of(tmp_path / f"run-x-tag-{name.replace('/', '_')}.csv", "Wall time,Step,Value", *lines)
    log = read_step_log(tmp_path)
    assert log.left_out == {"step repeated after a restart: the later one counts": 3}
    assert log.notes == ("the run was restarted at step 3",)


def test_the_last_number_of_a_table_without_its_end_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"Step,response_length/mean,{GEN}\n1,500,20.75\n2,500,20.75\n3,500,2")
    log = read_step_log(path)
    assert log.frame[GEN].tolist()[:2] == [20.75, 20.75]
    assert "which may have lost digits" in reasons(log)


def test_lengths_and_seconds_of_other_steps_are_refused(tmp_path: Path) -> None:
    seconds_alone = {name: value for name, value in BASE.items() if "timing" in name}
    lengths_alone = {name: value for name, value in BASE.items() if "length" in name}
    rows = [{"step": step, **seconds_alone} for step in range(1, 6)]
    rows += [{"step": step, **lengths_alone} for step in range(11, 16)]
    log = read_step_log(write_lines(tmp_path / "a.jsonl", rows))
    with pytest.raises(OppoError, match="no step with both response lengths and seconds"):
        fit(log, fit_scenario())


@pytest.mark.parametrize("column", ["timing_s/testing", "timing_s/save_checkpoint"])
@pytest.mark.parametrize(("took", "step"), [(500.0, 36.0), (20.0, 36.0), (20.0, 36.4), (20.0, 35.7)])
def test_what_is_timed_beside_the_step_is_not_taken_out_of_it(
    column: str, took: float, step: float, tmp_path: Path
) -> None:
    steps = [(number, {column: took, STEP_S: step} if number % 5 == 0 else {}) for number in range(1, 21)]
    log = read_step_log(console(tmp_path / "a.log", steps))
    assert column not in log.frame
    assert log.notes == (f"{column} stands beside timing_s/step, not in it: nothing is taken out",)
    assert log.frame[STEP_S].tolist() == [step if number % 5 == 0 else 36.0 for number in range(1, 21)]


@pytest.mark.parametrize(
    ("took", "step", "known"), [(500.0, 536.0, 500.0), (20.0, 55.0, 20.0), (20_000.0, 56.0, 20.0)]
)
def test_what_the_step_holds_is_known_in_seconds(
    took: float, step: float, known: float, tmp_path: Path
) -> None:
    column = "timing_s/testing"
    steps = [(number, {column: took, STEP_S: step} if number % 5 == 0 else {}) for number in range(1, 21)]
    log = read_step_log(console(tmp_path / "a.log", steps))
    assert log.frame[column].dropna().tolist() == [known] * 4


@pytest.mark.parametrize(("held", "beside"), [("save_checkpoint", "testing"), ("testing", "save_checkpoint")])
@pytest.mark.parametrize("took", [31.0, 10.0])
def test_of_validation_and_checkpoints_of_the_same_steps_one_may_stand_beside(
    held: str, beside: str, took: float, tmp_path: Path
) -> None:
    """As in verl of 2026: a checkpoint is within the step, validation follows it."""
    both = {f"timing_s/{held}": 18.0, f"timing_s/{beside}": took, STEP_S: 54.2}
    steps = [(number, both if number % 5 == 0 else {}) for number in range(1, 21)]
    log = read_step_log(console(tmp_path / "a.log", steps))
    assert log.frame[f"timing_s/{held}"].dropna().tolist() == [18.0] * 4
    assert f"timing_s/{beside}" not in log.frame
    within = [(number, {**each, STEP_S: 54.2 + took} if each else {}) for number, each in steps]
    log = read_step_log(console(tmp_path / "b.log", within))
    assert {f"timing_s/{held}", f"timing_s/{beside}"} <= set(log.frame)


def test_validation_of_every_step_is_told_by_what_stages_leave(tmp_path: Path) -> None:
    for step, held in ((36.0, False), (56.0, True)):
        steps = [(number, {"timing_s/testing": 20.0, STEP_S: step}) for number in range(1, 11)]
        frame = read_step_log(console(tmp_path / f"{step}.log", steps)).frame
        assert ("timing_s/testing" in frame) == held


def test_lines_of_json_that_a_killed_run_tore_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = [json.dumps({**BASE, "step": step}) for step in range(1, 7)]
    log = tmp_path / "torn.jsonl"
    # The tail of a line that another process finished, and one that a restart wrote behind.
    log.write_text("\n".join([*rows[:3], 'iming_s/gen": 30.5}', rows[3], rows[4][:25] + rows[4], rows[5]]))
    read = read_step_log(log)
    assert read.frame["step"].tolist() == [1, 2, 3, 4, 6]
    assert "2 line that is no JSON, as of a run that was killed while it wrote" in reasons(read)
    log.write_text("\n".join([rows[0], "loading", "warming up", rows[1]]))
    assert "line 3: this is no JSON" in refused(log)
