"""The page of public GPU measurements: what is held out, how errors are counted, and that the stored page is
what its code gives."""

import csv
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments" / "public_gpu"))

import measures
import overview
import page
import rows as page_rows
import split
import tiers
import unshipped

FOLDER = split.FOLDER


def test_units_are_held_out_by_the_hash_alone() -> None:
    stored = pd.read_csv(split.SPLIT, dtype=str)
    pd.testing.assert_frame_equal(split.split().astype(str), stored)
    for unit, part in zip(stored["unit"], stored["split"], strict=True):
        odd = hashlib.sha256(f"public_gpu/1:{unit}".encode()).digest()[0] % 2
        assert part == ("held-out" if odd else "develop")


def test_both_parts_of_the_split_have_units_of_every_source() -> None:
    counts = split.split().groupby(["source", "split"]).size().unstack(fill_value=0)
    alone = counts[(counts == 0).any(axis=1)]
    # One run, held out; five runs, all held out.
    assert list(alone.index) == ["openagentrl_later_steps", "verl_gpg_fsdp_steps"]


def test_every_shipped_table_has_its_origin_and_licence() -> None:
    said = (FOLDER / "data" / "README.md").read_text(encoding="utf-8")
    for path in (FOLDER / "data").glob("*.csv.gz"):
        line = next(line for line in said.splitlines() if f"`{path.name}`" in line)
        assert "@" in line and ("Apache-2.0" in line or "MIT" in line), path.name


def test_an_unshipped_run_is_read_from_its_log(tmp_path: Path) -> None:
    """verl of 2024: no step, no tokens, generation with its log-probabilities. Of 2025: validation and
    checkpoints inside the step."""
    lengths = "response_length/mean:30.0 - response_length/max:60.0 - prompt_length/mean:10.0"
    old = "timing/gen:5.0 - timing/ref:1.0 - timing/values:2.0 - timing/adv:1.0 - timing/update_critic:3.0"
    old += " - timing/update_actor:4.0"
    log = tmp_path / "old.log"
    log.write_text("".join(f"step:{step} - {old} - {lengths}\n" for step in range(1, 4)))
    run = unshipped.unshipped_run("verl_qwen05b_512", log)
    assert (
        run.steps[["gen_s", "values_s", "step_s", "tokens"]].to_numpy().tolist() == [[5, 2, 16, 256 * 40]] * 3
    )
    new = (
        "timing_s/gen:5.0 - timing_s/old_log_prob:1.0 - timing_s/update_actor:4.0 - perf/total_num_tokens:900"
    )
    save = "timing_s/testing:6.0 - timing_s/save_checkpoint:17.0 - timing_s/step:33.5"
    log.write_text(
        "".join(
            f"step:{step} - {new} - {save if step == 2 else 'timing_s/step:10.5'} - {lengths}\n"
            for step in range(1, 4)
        )
    )
    run = unshipped.unshipped_run("dstack_h100", log)
    assert run.steps[["gen_s", "step_s", "tokens"]].to_numpy().tolist() == [[5, 10.5, 900]] * 3


def test_errors_by_hand() -> None:
    found = measures.errors_of(np.array([90.0, 110.0, 60.0]), np.array([100.0, 100.0, 100.0]))
    assert found.n == 3
    assert found.median == pytest.approx(0.1)
    assert found.p90 == pytest.approx(0.34)
    assert found.worst == pytest.approx(0.4)
    assert found.sign == pytest.approx(-0.1)


def test_the_line_finds_a_line_and_the_mean_a_mean() -> None:
    generator = np.random.default_rng(1)
    steps = pd.DataFrame(
        {"response_max": generator.uniform(100, 900, 30), "tokens": generator.uniform(1e5, 9e5, 30)}
    )
    steps["step_s"] = 5 + 0.02 * steps["response_max"] + 3e-5 * steps["tokens"]
    known, asked = steps[:15], steps[15:]
    assert measures.line_predictor(known, asked, "step_s") == pytest.approx(asked["step_s"].to_numpy())
    assert set(measures.mean_predictor(known, asked, "step_s")) == {known["step_s"].mean()}


def test_only_the_first_scoring_of_a_kind_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = page_rows.SCORINGS.read_text(encoding="utf-8").splitlines()[0]
    log = tmp_path / "scorings.csv"
    log.write_text(header + "\n", encoding="utf-8")
    monkeypatch.setattr(page_rows, "SCORINGS", log)
    pairs = pd.DataFrame({"predicted": [1.1, 0.9], "measured": [1.0, 1.0]})
    first = page_rows.row_of("step", "s", "step", "H100", "verl", "unfitted", pairs)
    second = page_rows.row_of("step", "s", "step", "H100", "verl", "unfitted", pairs.assign(predicted=1.0))
    page_rows.log_scoring([first], "first")
    page_rows.log_scoring([second], "later")
    (shown, when), *more = page_rows.first_scorings()
    assert not more and shown.median == pytest.approx(0.1) and when.endswith("first")
    assert len(page_rows.all_scorings()) == 2
    (again, when), *more = page_rows.later_scorings()
    assert not more and again.median == pytest.approx(0.0) and when.endswith("later")
    assert header.split(",") == list(csv.DictReader(log.read_text().splitlines()).fieldnames or [])


def _stored() -> dict[tuple[str, ...], page_rows.Row]:
    return {row.key: row for row in page_rows.read_rows()}


def _same(made: Iterator[page_rows.Row] | list[page_rows.Row]) -> int:
    """Compare with the stored rows; how many there were."""
    stored, count = _stored(), 0
    for row in made:
        old = stored[row.key]
        for name in ("n", "median", "p90", "worst", "sign"):
            assert getattr(row, name) == pytest.approx(getattr(old, name), rel=1e-4, abs=1e-6), (
                row.key,
                name,
            )
        count += 1
    return count


RERUN = "the page is older than the code: run 'python experiments/public_gpu/run.py'"


def test_pages_are_those_of_what_was_scored() -> None:
    for name, text in page.pages().items():
        assert (page.FOLDER / name).read_text(encoding="utf-8") == text, f"{name}: {RERUN}"


def test_the_overview_counts_runs_by_their_first_scoring() -> None:
    found = overview.scored()
    first, last = (
        [
            row
            for each in found
            if each.held_out
            and ", all " not in (row := getattr(each, when)).source
            and row.way == overview.FIRST_STEPS
        ]
        for when in ("first", "last")
    )
    line = next(
        line for line in overview.aims_table(found).splitlines() if "first 15 steps, first scoring" in line
    )
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert int(cells[1]) == len(first) == len(last)
    assert int(cells[4]) == sum(row.median <= 0.04 for row in first)
    assert int(cells[5]) == sum(row.p90 <= 0.1 for row in first)
    # Runs were scored again after mends: what stands in the table as first must not be the last.
    assert sum(row.median <= 0.04 for row in last) > int(cells[4])


def test_kernels_and_engines_are_as_the_page_says() -> None:
    assert _same(tiers.kernel_rows(held_out=False)) >= 7, RERUN
    assert _same(tiers.engine_rows(held_out=False)) >= 8, RERUN


def test_small_runs_are_as_the_page_says(tmp_path: Path) -> None:
    made, _ = tiers.unfitted_rows(held_out=False, folder=tmp_path, only=tiers.SMALL_RUNS)
    assert _same(made) == len(tiers.SMALL_RUNS) * 5, RERUN
