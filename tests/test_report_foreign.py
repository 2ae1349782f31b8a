"""A stranger's run folder: nothing of it is run, nothing outside of it is read, and its names are only names."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from oppo_sim.notebook_figure import Figure
from oppo_sim.report.html_page import report_html
from oppo_sim.report.html_parts import png_bytes
from oppo_sim.report.style import bar_figure
from oppo_sim.run_files import MANIFEST
from tests.cli_runs import Oppo, assert_refused
from tests.report_hostile import NASTY, hostile_folders
from tests.report_page import check_page

SECRET = "what nobody named"
RUN = Path("simulated")


@pytest.fixture(scope="module", name="made")
def made_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where ``hostile_folders`` are."""
    root = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        hostile_folders(root)
    return root


@pytest.fixture(name="oppo")
def oppo_in_a_folder(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Oppo:
    monkeypatch.chdir(tmp_path)
    for name in ("simulated", "tuned"):
        shutil.copytree(made / name, name)
    Path("secret").write_text(SECRET)
    return Oppo(capsys)


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
def test_links_out_of_a_folder_and_pipes_are_not_read(put: Callable[[Path], None], oppo: Oppo) -> None:
    for name in ("steps.parquet", "timeline.json", "command.txt"):
        kept = (RUN / name).read_bytes()
        put(RUN / name)
        assert_refused(oppo("report", "simulated", "-o", "a.html"), name)
        (RUN / name).unlink()
        (RUN / name).write_bytes(kept)
    assert oppo("report", "simulated", "-o", "a.html").code == 0


def test_texts_that_a_page_would_show_are_those_of_the_folder(oppo: Oppo) -> None:
    linked(Path("tuned", "best.yaml"))
    assert_refused(oppo("report", "tuned", "-o", "a.html"), "best.yaml is a link out of the folder")
    assert not Path("a.html").exists()


def test_links_inside_a_folder_are_followed(oppo: Oppo) -> None:
    (RUN / "steps.parquet").rename(RUN / "elsewhere")
    (RUN / "steps.parquet").symlink_to("elsewhere")
    assert oppo("report", "simulated", "-o", "a.html").code == 0


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "figures/../../secret", "a\0b", "\ud800"])
def test_names_in_a_manifest_stay_inside(name: str, oppo: Oppo) -> None:
    manifest = json.loads((RUN / MANIFEST).read_text())
    manifest["files"][name] = manifest["files"]["steps.parquet"]
    (RUN / MANIFEST).write_text(json.dumps(manifest))
    printed = oppo("report", "simulated", "-o", "a.html")
    assert SECRET not in (Path("a.html").read_text() if Path("a.html").exists() else "")
    if ".." in name or name.startswith("/"):
        assert_refused(printed, "cannot be a file of simulated")


def test_a_policy_that_a_folder_names_is_not_run(oppo: Oppo) -> None:
    Path("evil.py").write_text("open('ran', 'w').close()\n")
    manifest = json.loads((RUN / MANIFEST).read_text())
    manifest["policy"] = "evil.py:Evil"
    (RUN / MANIFEST).write_text(json.dumps(manifest))
    oppo("report", "simulated", "-o", "a.html")
    assert not Path("ran").exists()


def test_what_no_report_can_be_made_of_is_said_in_a_sentence(oppo: Oppo) -> None:
    manifest = json.loads((RUN / MANIFEST).read_text())
    for key, value in (("policy", [[]]), ("scenario", 3), ("costs", 3), ("trace", "x"), ("summary", None)):
        (RUN / MANIFEST).write_text(json.dumps({**manifest, key: value}))
        printed = oppo("report", "simulated", "-o", "a.html", "--force")
        if printed.code != 0:
            assert_refused(printed, "simulated")
    del manifest["kind"]
    (RUN / MANIFEST).write_text(json.dumps({**manifest, "format": "oppo-recorded-run/1"}))
    assert_refused(
        oppo("report", "simulated", "-o", "a.html", "--force"), "'oppo fit simulated --scenario YAML'"
    )
    (RUN / MANIFEST).write_text("[" * 100_000)
    assert_refused(oppo("report", "simulated", "-o", "a.html", "--force"), "nested too deeply")


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


def test_no_text_of_any_folder_becomes_markup(made: Path) -> None:
    folders = [made / name for name in ("simulated", "compared", "swept", "tuned")]
    page = check_page(report_html(folders, title=NASTY))
    assert page.text("title") == [" ".join(NASTY.split())]
    assert len(page.all("article")) >= len(folders)
    assert all((one.attributes["src"] or "").startswith("data:image/png;base64,") for one in page.all("img"))
