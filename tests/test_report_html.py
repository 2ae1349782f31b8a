"""The one-file report: what it says of each kind of folder, and that nothing in it leads out or runs."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from oppo_sim.errors import OppoError
from oppo_sim.plain_json import json_bytes
from oppo_sim.report.html_page import page_html, report_chapters, report_html
from oppo_sim.report.html_parts import (
    Chapter,
    Explorer,
    Grid,
    Section,
    in_page,
    joined,
    picture,
    svg_text,
)
from oppo_sim.report.html_run import shared_steps
from oppo_sim.report.perfetto import read_trace, write_trace
from oppo_sim.report.points import Points
from oppo_sim.results.spans import Marker, Span
from oppo_sim.run_folder import open_run_folder
from oppo_sim.run_kinds import SIMULATED
from oppo_sim.runs.best import not_told_apart
from tests.cli_runs import Oppo, assert_refused, write_scenario
from tests.report_page import HOSTILE, check_page
from tests.report_points import FAILURE, OVERCOMMITS, made_points, seconds, table
from tests.test_report_timeline import two_steps


@pytest.fixture(name="oppo")
def oppo_in_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Oppo:
    monkeypatch.chdir(tmp_path)
    write_scenario(tmp_path)
    return Oppo(capsys)


# ---- a comparison ------------------------------------------------------------------------------------------


def test_a_comparison_is_answered_in_words_and_tables(oppo: Oppo) -> None:
    compared = oppo(
        "compare", "tiny.yaml", "--policies", "intra,oppo", "--seeds", "3", "-o", "cmp", "--jobs", "1"
    )
    assert compared.code == 0
    printed = oppo("report", "cmp", "-o", "cmp.html")
    assert (printed.code, printed.err) == (0, "")
    assert printed.out.startswith("wrote cmp.html (")
    assert printed.out.endswith("comparison\n")
    page = check_page(Path("cmp.html").read_text())
    table = pd.read_parquet("cmp/comparison.parquet").set_index("policy")
    best = str(table["step_s"].idxmin())
    (answer,) = page.text("p", class_="answer")
    assert answer.startswith(f"{best}: ")
    assert f"{table.loc[best, 'speedup']:.2f} times the speed of sequential (95 % interval" in answer
    (data,) = page.data
    (axis,) = data["axes"]
    assert [axis["values"][at] for at in axis["at"]] == list(table.index)
    speedup = next(measure for measure in data["measures"] if measure["column"] == "speedup")
    assert np.allclose(speedup["values"], table["speedup"], rtol=1e-5)
    assert np.allclose(speedup["low"], table["speedup_low"], rtol=1e-5)
    assert data["best"] == list(table.index).index(best)
    rows = [text for text in page.text("pre") if text.startswith("policy:")]
    assert rows[0].startswith(f"policy: name: {best}")
    assert any("oppo-scenario/1" in text for text in page.text("pre"))
    assert "Timeline" in page.text("h2")
    assert page.text("strong", class_="badge predicted") == ["predicted"]


def test_a_report_is_the_same_each_time_and_holds_no_path(oppo: Oppo, tmp_path: Path) -> None:
    oppo("simulate", "tiny.yaml", "-o", "run")
    first = report_html(["run"])
    assert report_html([tmp_path / "run"]) == first
    assert str(tmp_path) not in first


def test_one_seed_claims_no_certainty(oppo: Oppo) -> None:
    oppo(
        "compare",
        "tiny.yaml",
        "--policies",
        "oppo",
        "--seeds",
        "1",
        "-o",
        "cmp",
        "--no-figures",
        "--no-attribution",
    )
    page = check_page(report_html(["cmp"]))
    assert "(one seed: no interval)" in page.text("p", class_="answer")[0]
    assert any("With one seed nothing says how sure this is" in text for text in page.text("li"))


def test_a_bound_of_a_users_own_is_shown_and_not_recommended(oppo: Oppo) -> None:
    Path("mine.py").write_text(
        "from oppo_sim import Policy\n\nclass Mine(Policy):\n    oracle = True\n\n    def plan(self, pool):\n"
        "        return self.refill(pool, overcommit=4, chunk_size=8)\n"
    )
    compared = oppo(
        "compare", "tiny.yaml", "--policies", "mine.py:Mine", "-o", "cmp", "--seeds", "2", "--jobs", "1"
    )
    assert compared.code == 0, compared.err
    table = pd.read_parquet("cmp/comparison.parquet").set_index("policy")
    assert table["step_s"].idxmin() == "mine.py:Mine"
    page = check_page(report_html(["cmp"]))
    assert page.text("p", class_="answer")[0].startswith("sequential: ")
    (data,) = page.data
    assert data["best"] == list(table.index).index("sequential")
    assert data["bounds"] == [list(table.index).index("mine.py:Mine")]
    assert "mine.py:Mine" in data["axes"][0]["values"]


def test_policies_are_told_apart_by_paired_seeds() -> None:
    frame = pd.DataFrame(
        {
            "a": [10.0, 12.0, 14.0],
            "b": [10.1, 12.1, 14.2],
            "c": [10.3, 11.8, 14.1],
            "a again": [10.0, 12.0, 14.0],
        }
    )
    assert not_told_apart(frame, "a") == ["c", "a again"]
    assert not_told_apart(frame.iloc[:1], "a") == []
    apart = next(name for name in frame if name not in ("a", "c", "a again"))
    ratio = float((frame[apart] / frame["a"]).mean()) - 1
    assert apart in not_told_apart(frame, "a", practical=1.5 * ratio)
    assert apart not in not_told_apart(frame, "a", practical=0.5 * ratio)


# ---- runs --------------------------------------------------------------------------------------------------


def test_runs_are_reported_one_by_one_and_their_timelines_side_by_side(oppo: Oppo) -> None:
    for policy in ("oppo", "sequential"):
        assert oppo("simulate", "tiny.yaml", "--policy", policy, "-o", policy, "--no-figures").code == 0
    assert oppo("report", "oppo", "sequential", "-o", "both.html", "--title", "Both & more").code == 0
    page = check_page(Path("both.html").read_text())
    assert page.text("title") == page.text("h1") == ["Both & more"]
    assert page.text("h2", class_="title") == [
        "Simulated run: tiny, oppo",
        "Simulated run: tiny, sequential",
        "Timelines side by side",
    ]
    steps = pd.read_parquet("oppo/steps.parquet").iloc[1:]
    mean = steps["timing_s/step"].mean()
    assert f"A step takes {mean:.2f} s on average" in page.text("p", class_="answer")[0]
    assert "gen" in page.text("th", scope="row")


def test_a_lock_step_run_counts_iterations_and_shares_no_axis_with_seconds(oppo: Oppo) -> None:
    for name in ("lockstep", "seconds"):
        assert oppo("simulate", "tiny.yaml", "-o", name, "--no-figures").code == 0
    manifest = Path("lockstep/manifest.json")
    facts = json.loads(manifest.read_text()) | {"kind": "measured", "clock": "decode iterations"}
    manifest.write_text(json.dumps(facts))
    mean = pd.read_parquet("lockstep/steps.parquet")["timing_s/step"].iloc[1:].mean()
    page = check_page(report_html(["lockstep"]))
    words = " ".join((*page.text("p"), *page.text("td"), *page.text("li")))
    assert f"A step takes {mean:.2f} iterations on average" in words
    assert not re.search(r"\d (s|min|h|ms|µs)\b", words)
    assert [chapter.kind for chapter in report_chapters(["lockstep", "seconds"])] == [
        "real run",
        "simulated run",
    ]


def test_runs_without_a_common_step_have_no_timelines_side_by_side(oppo: Oppo) -> None:
    for first in (1, 4):
        oppo("simulate", "tiny.yaml", "--timeline", f"{first}:{first}", "-o", f"run{first}", "--no-figures")
    assert [chapter.kind for chapter in report_chapters(["run1", "run4"])] == [
        "simulated run",
        "simulated run",
    ]


def test_a_trace_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    spans, markers = two_steps()
    for name in ("t.json", "t.json.gz"):
        write_trace({"simulated": (spans, markers), "real · twice": (spans[:5], markers)}, tmp_path / name)
        runs = read_trace(tmp_path / name)
        assert list(runs) == ["simulated", "real · twice"]
        back, marks = runs["simulated"]

        def order(span: Span) -> tuple[float, str, int, str]:
            return (span.start_s, span.group, span.index, span.stage)

        assert sorted(back, key=order) == sorted(spans, key=order)
        assert sorted(marks, key=lambda mark: mark.at_s) == sorted(markers, key=lambda mark: mark.at_s)
    for text in ("", "{}", '{"traceEvents": [{"ph": "X"}]}', "[]"):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(OppoError, match=r"bad\.json is no timeline"):
            read_trace(tmp_path / "bad.json")
    with pytest.raises(OppoError, match="there is no timeline"):
        read_trace(tmp_path / "none.json")


def test_steps_shown_side_by_side_are_those_that_all_runs_have() -> None:
    def timeline(*steps: int) -> tuple[list[Span], list[Marker]]:
        return [], [Marker("step_end", "training", 0, float(step), step) for step in steps]

    assert shared_steps({"a": timeline(1, 2, 3, 4, 5), "b": timeline(2, 3, 4, 5)}) == (2, 4)
    assert shared_steps({"a": timeline(1, 2, 4), "b": timeline(2, 4)}) == (2, 2)
    assert shared_steps({"a": timeline(1), "b": timeline(2)}) is None
    assert shared_steps({}) is None


# ---- a validation ------------------------------------------------------------------------------------------


def write_validation(root: Path) -> None:
    """A folder as ``oppo validate`` writes it."""
    cell = {"predicted": 1.9, "measured": 2.0, "lowest": 1.8, "highest": 2.2, "error": -0.05, "spread": 0.2}
    record = {
        "format": "oppo-validation/1", "scenario": "two cores", "unit": "seconds", "policies": ["sequential", "oppo"],
        "repeats": 3, "steps": 6, "warmup_steps": 2, "rank_agreement": 1.0, "regret": 0.021,
        "runs": [{"core_share": 0.483}, {"core_share": 0.968}, {"core_share": None}],
        "pairs_told_apart": 2, "swaps": [{"told_apart": True}, {"told_apart": False}],
        "speedups": [{"policy": "oppo", "baseline": "sequential", "predicted": 1.21, "predicted_interval": [1.1, 1.3], "measured": 1.1,
                      "measured_interval": [None, None], "error": 0.1}],
        "stages": {policy: {"gen": cell, "step": cell} for policy in ("sequential", "oppo")},
        "largest_error": {policy: {"stage": "gen", "of_step": -0.05} for policy in ("sequential", "oppo")},
        "decisions": [{"policy": "oppo", "repeat": 0, "steps": 6, "alike": 5, "first_difference": 4, "why": "trained rollout 3",
                       "trained_alike": 0.9}],
        "shares": {"sequential": {"staleness": {"predicted": [1.0], "measured": [1.0]}},
                   "oppo": {"staleness": {"predicted": [0.7, 0.3], "measured": [0.75, 0.25]}}},
    }  # fmt: skip
    folder = open_run_folder(root, SIMULATED)
    folder.write_json("validation.json", record)
    folder.finish(
        {
            "kind": "validation",
            "scenario": "two cores",
            "hardware": "2 cores",
            "versions": {"python": "3"},
            "warnings": ["mind this"],
        }
    )


def test_a_validation_shows_measured_beside_predicted(tmp_path: Path) -> None:
    write_validation(tmp_path / "v")
    page = check_page(report_html([tmp_path / "v"]))
    assert page.text("strong", class_="badge measured") == ["measured"]
    assert page.text("p", class_="answer") == ["The largest error of a predicted speed-up is +10.0 % (oppo)."]
    assert "5 of 6 steps made the same decisions." in page.text("li")
    assert "Of 2 pairs that the repeats tell apart, 1 is in the predicted order." in page.text("li")
    assert "mind this" in page.text("li")
    assert "Regret of the policy that is predicted fastest: 2.1 % of the best step." in page.text("li")
    told = "A busy process got 48.3 % to 96.8 % of its core just before a run (100 % on a quiet machine)."
    assert told in page.text("li")
    cells = page.text("td")
    for text in ("1.21×", "1.10 to 1.30", "1.10×", "–", "step 4: trained rollout 3", "75.0 %"):
        assert text in cells, text
    assert "oppo: measured" in page.text("th")


# ---- a sweep -----------------------------------------------------------------------------------------------


def write_sweep(root: Path, made: Points, **changes: object) -> None:
    """A folder as ``oppo sweep`` writes it, of a sweep in closed form."""
    statuses = made.table["status"].value_counts().to_dict()
    record = {
        "format": "oppo-sweep-folder/1", "kind": "simulated sweep", "scenario": "closed form", "scenario_sha256": "ab",
        "scenario_yaml": "a: 1\n",
        "spec": {"scenario": "x", "set": {"policy.name": "oppo"}, "grid": {axis: made.values(axis) for axis in made.axes}, "random": {},
                 "samples": 64, "sampler": "random", "sampler_seed": 0, "seeds": 5, "steps": 200, "objective": "rollouts",
                 "stop_dominated": False},
        "fields": list(made.axes), "objective": "rollouts", "points": len(made.table), "statuses": statuses, "best": made.best,
        "region": sorted(made.region), "seeds": [0, 1, 2, 3, 4], "steps": 200, "warmup_steps": 20,
        "engines": {"compiled": 400, "simpy": 20},
        "baselines": {"sequential": len(made.table)}, "trace": {"name": "some"}, "costs": {"kind": "linear"}, "versions": {"python": "3"},
        "warnings": ["mind this"],
    }  # fmt: skip
    root.mkdir()
    (root / "sweep.json").write_bytes(json_bytes(record | changes))
    made.table.to_parquet(root / "points.parquet")


def test_a_sweep_is_answered_in_words_settings_points_and_pictures(tmp_path: Path) -> None:
    points = made_points()
    write_sweep(tmp_path / "s", points)
    page = check_page(report_html([tmp_path / "s"]))
    took = seconds("separate", 512, 24)
    (answer,) = page.text("p", class_="answer")
    assert answer.startswith(
        f"Scoring placement separate, chunk size 512, overcommit Δ 24: {took:.0f} s a step, {150 / took:.2f}"
        " times the speed"
    )
    said = " ".join(page.text("li"))
    assert (
        f"{len(points.region) - 1} other configurations cannot be told apart from it over paired seeds (5 %"
        " level)" in said
    )
    assert "4 of 84 configurations could not run" in said
    worst = max(seconds("separate", 512, over) for over in OVERCOMMITS) / took - 1
    assert f"overcommit Δ up to {worst * 100:.1f} %" in said
    assert "mind this" in page.text("li")
    copied = page.text("pre")[0]
    assert (
        copied
        == "oppo simulate x \\ --set policy.name=oppo \\ --set placement.scoring=separate \\ --set policy.chunk_size=512 \\"
        " --set policy.overcommit=24"
    )
    (data,) = page.data
    assert data["heat"] == ["policy.overcommit", "policy.chunk_size"]
    assert data["region"] == sorted(points.region)
    step = next(one for one in data["measures"] if one["column"] == "step_s")
    assert np.allclose(
        [np.nan if value is None else value for value in step["values"]],
        points.table["step_s"],
        rtol=1e-5,
        equal_nan=True,
    )
    assert data["errors"].count(FAILURE) == 4
    assert [
        page.text("th", scope="row")[page.text("th", scope="row").index(FAILURE)],
        page.text("td", class_="num")[0],
    ] == [FAILURE, "4"]
    titles = page.text("figcaption")
    assert titles[0] == "Step time by overcommit Δ (rollouts) and chunk size (tokens)"
    assert {
        "Step time by chunk size (tokens)",
        "Speed-up against staleness",
        "Speed-up against length bias",
    } <= set(titles)
    assert "compiled: 400 runs, simpy: 20 runs" in page.text("td", class_="long")
    assert not any(text.startswith("oppo sweep") for text in page.text("td", class_="long")), "none was given"


def test_a_sweep_of_24_by_16_stays_below_three_megabytes(tmp_path: Path) -> None:
    write_sweep(
        tmp_path / "s",
        made_points(
            chunks=tuple(range(64, 64 * 17, 64)), overcommits=tuple(range(24)), placements=("separate",)
        ),
    )
    html = report_html([tmp_path / "s"])
    assert len(html.encode()) < 3_000_000
    assert len(check_page(html).data[0]["status"]) == 384


def test_random_samples_are_scattered_not_mapped(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = table(placements=("separate",))
    frame["policy.chunk_size"] = rng.integers(32, 4096, len(frame))
    frame["policy.overcommit"] = rng.random(len(frame))
    write_sweep(
        tmp_path / "s",
        Points(frame, ("policy.chunk_size", "policy.overcommit"), int(frame["step_s"].idxmin())),
    )
    page = check_page(report_html([tmp_path / "s"]))
    assert page.data[0]["heat"] is None
    assert "Step time by field" in page.text("figcaption")
    assert "Heat map" not in page.text("h2")
    best = frame["policy.overcommit"][int(frame["step_s"].idxmin())]
    assert page.text("pre")[0].endswith(f"--set policy.overcommit={float(best)!r}")


def test_one_rollout_is_not_the_whole_batch(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"policy.overcommit": ["1", "1.0", "null"], "step_s": [3.0, 2.0, 4.0], "status": "ok", "error": None}
    )
    write_sweep(tmp_path / "s", Points(frame, ("policy.overcommit",), 1))
    page = check_page(report_html([tmp_path / "s"]))
    assert page.data[0]["axes"][0]["texts"] == ["1", "1.0", "null"]
    assert page.text("pre")[0].endswith("--set policy.overcommit=1.0")


def test_figures_are_written_as_png_and_svg_and_not_over_others(oppo: Oppo, tmp_path: Path) -> None:
    write_sweep(tmp_path / "s", made_points(chunks=(64, 128), overcommits=(0, 4)))
    assert oppo("report", "s", "-o", "s.html", "--figures", "drawn").code == 0
    names = sorted(path.name for path in (tmp_path / "drawn").iterdir())
    # Their length biases are too close for a trade-off.
    stems = ("chunk_curve", "overcommit_curve", "speedup", "staleness", "step_time")
    assert names == sorted(f"{stem}.{kind}" for stem in stems for kind in ("png", "svg"))
    assert_refused(oppo("report", "s", "-o", "t.html", "--figures", "drawn"), "step_time.png exists")
    assert not (tmp_path / "t.html").exists()


def test_a_damaged_or_unfinished_sweep_is_refused(oppo: Oppo, tmp_path: Path) -> None:
    points = made_points(chunks=(64, 128), overcommits=(0, 4))
    write_sweep(tmp_path / "half", points)
    (tmp_path / "half" / "points.parquet").write_bytes(b"PAR1")
    write_sweep(tmp_path / "other", points, points=5)
    write_sweep(tmp_path / "torn", points)
    (tmp_path / "torn" / "sweep.json").write_text("{")
    assert_refused(oppo("report", "half", "-o", "a.html"), "points.parquet is damaged", "run the sweep again")
    assert_refused(oppo("report", "other", "-o", "a.html"), "is not the table of sweep.json")
    assert_refused(oppo("report", "torn", "-o", "a.html"), "sweep.json is damaged")


# ---- a tuning ----------------------------------------------------------------------------------------------


def test_a_tuning_says_its_advice_and_shows_its_search(oppo: Oppo, tmp_path: Path) -> None:
    arguments = (
        "--trials",
        "12",
        "--seeds",
        "2",
        "--fresh-seeds",
        "2",
        "--policies",
        "intra,inter",
        "--jobs",
        "1",
        "-o",
        "tuned",
    )
    assert oppo("tune", "tiny.yaml", *arguments).code == 0
    page = check_page(report_html(["tuned"]))
    record = json.loads((tmp_path / "tuned" / "tune.json").read_text())
    (answer,) = page.text("p", class_="answer")
    assert answer.startswith(("Set ", "The best found is "))  # its interval may include 1
    assert "Expect " in answer
    trials = pd.read_parquet("tuned/trials.parquet")
    (data,) = page.data
    assert len(data["status"]) == len(trials)
    assert data["best"] == list(trials["trial"]).index(record["chosen"]["trial"])
    assert data["measures"][0]["column"] == data["objective"] == "s_per_rollout"
    assert page.text("pre")[0] == "oppo simulate tuned/best.yaml"
    assert oppo(*page.text("pre")[0].split()[1:], "-o", "again", "--no-figures").code == 0
    assert data["fixed"] == "oppo simulate tuned/best.yaml"
    assert {"How the search went", "Which knob matters"} <= set(page.text("figcaption"))
    assert {"In the words of TRL", "In the words of verl", "In the words of prime-rl"} <= set(page.text("h2"))
    assert any(text.startswith("python3 -m verl.trainer.main_ppo") for text in page.text("pre"))
    # Flags for a shell and code for Python are copied each by itself.
    (flags,) = [text for text in page.text("pre") if text.startswith("--per_device_train_batch_size")]
    (code,) = [text for text in page.text("pre") if text.startswith("from oppo_real.trl_client import")]
    assert "import" not in flags
    assert "--" not in code
    assert len(page.all("button", class_="copy")) >= len(page.all("pre"))
    (tmp_path / "tuned" / "tune.json").write_text('{"scenario": "x"}')
    assert_refused(oppo("report", "tuned", "-o", "a.html"), "tune.json is damaged")


# ---- texts that would be markup ----------------------------------------------------------------------------


def test_no_text_becomes_markup_or_script(oppo: Oppo, tmp_path: Path) -> None:
    write_scenario(tmp_path, name=HOSTILE, description=HOSTILE)
    assert (
        oppo("compare", "tiny.yaml", "--policies", "oppo", "--seeds", "2", "-o", "cmp", "--no-figures").code
        == 0
    )
    page = check_page(report_html(["cmp"], title=HOSTILE))
    assert page.text("title") == [HOSTILE]
    assert all(
        "onerror" not in one.attributes and one.attributes.get("src") != "x" for one in page.all("img")
    )


def test_data_for_the_script_cannot_end_its_element() -> None:
    data = {"text": HOSTILE + "\u2028&", "heat": None}
    section = Section(
        HOSTILE, (HOSTILE,), (Grid(HOSTILE, (HOSTILE, "b"), ((HOSTILE, HOSTILE),)),), code=HOSTILE
    )
    chapter = Chapter(
        HOSTILE, "sweep", HOSTILE, False, HOSTILE, (HOSTILE, HOSTILE), ((HOSTILE, HOSTILE),), HOSTILE, (section,), Explorer(data),
        ((HOSTILE, HOSTILE),), (HOSTILE,)
    )  # fmt: skip
    page = check_page(page_html(HOSTILE, [chapter]))
    assert page.data == [data]


def test_pictures_take_the_colours_of_the_page_and_ids_of_their_own() -> None:
    from oppo_sim.report.style import new_figure

    figure, (axis,) = new_figure([2.0])
    axis.plot([0, 1], [0, 1], color="#222222")
    axis.set_title("a < b")
    one, two = (in_page(svg_text(figure), name) for name in ("one", "two"))
    assert one.startswith("<svg ")
    assert "var(--ink)" in one
    assert "#222222" not in one
    assert "var(--paper)" in one
    assert "metadata" not in one
    assert 'id="one-' in one
    assert 'id="two-' not in one
    assert one.replace("one-", "two-") == two
    small = picture("x", figure, "a title", "an alt")
    assert small.svg
    assert not small.png_base64


def test_a_picture_of_very_many_pieces_is_embedded_as_png() -> None:
    from oppo_sim.report.style import new_figure

    figure, (axis,) = new_figure([2.0])
    axis.scatter(np.arange(6000), np.arange(6000) % 17, s=np.arange(6000) % 5)
    large = picture("x", figure, "a title", "an alt")
    assert large.png_base64.startswith("iVBOR")
    assert not large.svg


# ---- folders and files that will not do --------------------------------------------------------------------


def test_what_cannot_be_reported_is_refused_in_one_sentence(oppo: Oppo, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    folder = open_run_folder(tmp_path / "other", SIMULATED)
    folder.finish({"kind": "dance"})
    oppo("simulate", "tiny.yaml", "-o", "run", "--no-figures")
    (tmp_path / "taken.html").write_text("keep me")
    assert_refused(oppo("report", "none", "-o", "a.html"), "there is no run folder none")
    Path("log.txt").touch()
    assert_refused(oppo("report", "log.txt", "-o", "a.html"), "log.txt is a file")
    assert_refused(oppo("report", "empty", "-o", "a.html"), "empty is not a run folder")
    assert_refused(oppo("report", "other", "-o", "a.html"), "kind 'dance'")
    assert_refused(oppo("report", "run", "-o", "taken.html"), "taken.html exists", "--force")
    assert_refused(oppo("report", "run", "-o", "no/such/folder.html"), "folder no/such does not exist")
    assert_refused(oppo("report"), "FOLDERS")
    assert (tmp_path / "taken.html").read_text() == "keep me"
    assert not (tmp_path / "a.html").exists()
    assert oppo("report", "run", "-o", "taken.html", "--force").code == 0
    check_page((tmp_path / "taken.html").read_text())


def test_without_a_name_the_file_lies_beside_its_folder(oppo: Oppo, tmp_path: Path) -> None:
    oppo("simulate", "tiny.yaml", "-o", "deep/run", "--no-figures")
    assert oppo("report", "deep/run").code == 0
    assert (tmp_path / "deep" / "run.html").is_file()


def test_lists_read_as_in_a_sentence() -> None:
    assert [joined(["a"]), joined(["a", "b"]), joined(["a", "b", "c"], "or"), joined([])] == [
        "a",
        "a and b",
        "a, b or c",
        "",
    ]
