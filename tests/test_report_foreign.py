"""A stranger's run folder: nothing of it is run, nothing outside of it is read, and its names are only names."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from oppo_sim.notebook_figure import Figure
from oppo_sim.report.html_page import report_html
from oppo_sim.report.html_parts import png_bytes
from oppo_sim.report.style import bar_figure
from oppo_sim.run_folder import MANIFEST
from tests.cli_runs import Oppo, assert_refused, write_scenario
from tests.report_hostile import NASTY, hostile_folders
from tests.report_page import HOSTILE, check_page

SECRET = "what nobody named"
FORMULA = r"$\frac{^$"


@pytest.fixture(name="oppo")
def oppo_in_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Oppo:
    monkeypatch.chdir(tmp_path)
    write_scenario(tmp_path, name=f"{FORMULA} {HOSTILE}")
    Path("secret").write_text(SECRET)
    return Oppo(capsys)


@pytest.fixture(name="tuned")
def tuned_folder(oppo: Oppo) -> Path:
    made = oppo("tune", "tiny.yaml", "--seeds", "2", "--trials", "3", "--jobs", "1", "-o", "tuned", "--quiet")
    assert made.code == 0, made.err
    return Path("tuned")


@pytest.fixture(name="run")
def run_folder(oppo: Oppo) -> Path:
    assert oppo("simulate", "tiny.yaml", "-o", "run", "--quiet", "--no-figures").code == 0
    return Path("run")


def linked(path: Path) -> None:
    path.unlink()
    path.symlink_to(Path("secret").resolve())


def climbing(path: Path) -> None:
    path.unlink()
    path.symlink_to("../secret")


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def circling(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


@pytest.mark.parametrize("put", [linked, climbing, piped, circling])
def test_links_out_of_a_folder_and_pipes_are_not_read(
    put: Callable[[Path], None], oppo: Oppo, run: Path
) -> None:
    for name in ("steps.parquet", "timeline.json", "command.txt"):
        kept = (run / name).read_bytes()
        put(run / name)
        assert_refused(oppo("report", "run", "-o", "a.html"), name)
        (run / name).unlink()
        (run / name).write_bytes(kept)
    assert oppo("report", "run", "-o", "a.html").code == 0


def test_texts_that_a_page_would_show_are_those_of_the_folder(oppo: Oppo, tuned: Path) -> None:
    linked(tuned / "best.yaml")
    assert_refused(oppo("report", "tuned", "-o", "a.html"), "best.yaml is a link out of the folder")
    assert not Path("a.html").exists()


def test_links_inside_a_folder_are_followed(oppo: Oppo, run: Path) -> None:
    (run / "steps.parquet").rename(run / "elsewhere")
    (run / "steps.parquet").symlink_to("elsewhere")
    assert oppo("report", "run", "-o", "a.html").code == 0


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "figures/../../secret", "a\0b", "\ud800"])
def test_names_in_a_manifest_stay_inside(name: str, oppo: Oppo, run: Path) -> None:
    manifest = json.loads((run / MANIFEST).read_text())
    manifest["files"][name] = manifest["files"]["steps.parquet"]
    (run / MANIFEST).write_text(json.dumps(manifest))
    printed = oppo("report", "run", "-o", "a.html")
    assert SECRET not in (Path("a.html").read_text() if Path("a.html").exists() else "")
    if ".." in name or name.startswith("/"):
        assert_refused(printed, "cannot be a file of run")


def test_a_policy_that_a_folder_names_is_not_run(oppo: Oppo, run: Path) -> None:
    Path("evil.py").write_text("open('ran', 'w').close()\n")
    manifest = json.loads((run / MANIFEST).read_text())
    manifest["policy"] = "evil.py:Evil"
    (run / MANIFEST).write_text(json.dumps(manifest))
    oppo("report", "run", "-o", "a.html")
    assert not Path("ran").exists()


def test_what_no_report_can_be_made_of_is_said_in_a_sentence(oppo: Oppo, run: Path) -> None:
    manifest = json.loads((run / MANIFEST).read_text())
    for key, value in (("policy", [[]]), ("scenario", 3), ("costs", 3), ("trace", "x"), ("summary", None)):
        (run / MANIFEST).write_text(json.dumps({**manifest, key: value}))
        printed = oppo("report", "run", "-o", "a.html", "--force")
        if printed.code != 0:
            assert_refused(printed, "run")
    (run / MANIFEST).write_text("[" * 100_000)
    assert_refused(oppo("report", "run", "-o", "a.html", "--force"), "nested too deeply")


def test_a_name_with_dollar_signs_is_no_formula(oppo: Oppo) -> None:
    compared = oppo("compare", "tiny.yaml", "--policies", "oppo", "--seeds", "2", "--jobs", "1", "-o", "cmp")
    assert compared.code == 0, compared.err
    page = check_page(report_html(["cmp"]))
    assert any(FORMULA in text for text in page.text("h1"))


def test_letters_that_no_font_has_and_long_names_are_drawn_without_complaint() -> None:
    figure, axis = bar_figure(["\u6570\u636e" * 400, "b"])
    axis.set_title("\u4e2d\u6587")
    assert png_bytes(figure)


def test_powers_on_a_logarithmic_axis_stay_formulas() -> None:
    figure = Figure()
    axis = figure.subplots()
    axis.set_xscale("log")
    axis.set_xlim(1e-3, 1e9)
    axis.set_title("$x$")
    figure.draw_without_rendering()
    assert not axis.title.get_parse_math()
    labels = [each for each in axis.get_xticklabels() if each.get_text()]
    assert len(labels) > 3
    assert all(each.get_parse_math() for each in labels)


def test_no_text_of_any_folder_becomes_markup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = hostile_folders(tmp_path)
    html = report_html(folders, title=NASTY)
    page = check_page(html)
    assert page.text("title") == [" ".join(NASTY.split())]
    assert len(page.all("article")) >= len(folders)
    assert all(one.attributes.get("src", "").startswith("data:image/png;base64,") for one in page.all("img"))
    assert capsys.readouterr().err == ""
