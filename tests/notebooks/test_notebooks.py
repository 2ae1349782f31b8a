"""The notebooks run from top to bottom, say nothing on standard error, and show what is stored in them."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode, v4

from tests.notebooks.execute import (
    code_cells,
    complaints,
    executed,
    notebook_paths,
    read,
    stored_form,
    text_of,
    write,
)
from tests.notebooks.same_text import differences

PATHS = notebook_paths()
NAMES = [path.stem for path in PATHS]

LARGEST_BYTES = 1_000_000
PROSE_CELLS = 3


def test_the_six_notebooks_are_there() -> None:
    assert NAMES == [
        "01_sweep_chunk_and_overcommit",
        "02_replay_and_timeline",
        "03_import_your_logs",
        "04_choose_and_check",
        "05_write_your_own_policy",
        "06_put_your_log_on_the_map",
    ]


@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_a_fresh_run_shows_what_is_stored(path: Path, tmp_path: Path) -> None:
    stored = read(path)
    run = executed(path, tmp_path)
    assert complaints(run) == []
    found = []
    for number, (before, after) in enumerate(
        zip(code_cells(stored), code_cells(stored_form(run)), strict=True)
    ):
        texts = [[text_of(output) for output in cell.outputs] for cell in (before, after)]
        if len(texts[0]) != len(texts[1]):
            found.append(f"code cell {number}: {len(texts[0])} outputs are stored, {len(texts[1])} were made")
            continue
        found += [
            f"code cell {number}: {line}" for pair in zip(*texts, strict=True) for line in differences(*pair)
        ]
        pictures = [
            sum("image/png" in output.get("data", {}) for output in cell.outputs) for cell in (before, after)
        ]
        if pictures[0] != pictures[1]:
            found.append(f"code cell {number}: {pictures[0]} pictures are stored, {pictures[1]} were made")
    assert not found, "\n".join(
        [*found, f"if this is meant: python -m tests.notebooks.store {path.stem[:2]}"]
    )


@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_what_is_stored_is_the_same_for_everybody(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < LARGEST_BYTES
    book = read(path)
    plain = [text_of(output) for cell in code_cells(book) for output in cell.outputs]
    for place in re.findall(
        r"(?:/(?:tmp|home|root|work|usr|Users|var|opt)/|[A-Z]:\\\\)\S*",
        "\n".join([*plain, *(cell.source for cell in book.cells)]),
    ):
        pytest.fail(f"{path.name} names a place on a machine: {place}")
    assert json.loads(json.dumps(stored_form(read(path)))) == json.loads(json.dumps(book)), (
        "not in the form that tests.notebooks.store writes"
    )
    counts = [cell.execution_count for cell in code_cells(book)]
    assert counts == list(range(1, len(counts) + 1)), "stored outputs are not of one run from top to bottom"


@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_every_picture_is_followed_by_how_to_read_it(path: Path) -> None:
    cells = read(path).cells
    for number, cell in enumerate(cells):
        if cell.cell_type == "code" and any("image/png" in output.get("data", {}) for output in cell.outputs):
            after = "\n".join(_prose(each) for each in cells[number + 1 : number + 1 + PROSE_CELLS])
            assert "How to read it" in after, f"{path.name}, cell {number}"


@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_links_lead_somewhere(path: Path) -> None:
    book = read(path)
    prose = "\n".join(_prose(cell) for cell in book.cells)
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", prose):
        assert (path.parent / target).is_file(), f"{path.name} links to {target}"
    for named in re.findall(r"\b(?:docs|experiments|oppo_sim)/[\w/]+\.(?:md|py)\b", prose):
        assert (path.parents[1] / named).is_file(), f"{path.name} names {named}"


def _prose(cell: NotebookNode) -> str:
    if cell.cell_type == "markdown":
        return str(cell.source)
    return "\n".join(text_of(output) for output in cell.outputs if _is_prose(output))


def _is_prose(output: Any) -> bool:
    return "text/markdown" in output.get("data", {})


@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_no_cell_names_a_private_thing(path: Path) -> None:
    for cell in code_cells(read(path)):
        source = "\n".join("" if line.startswith("%") else line for line in cell.source.splitlines())
        names = [
            node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute | ast.ImportFrom)
        ]
        used = [
            node.attr if isinstance(node, ast.Attribute) else alias.name
            for node in names
            for alias in getattr(node, "names", [None])
        ]
        private = [name for name in used if name and name.startswith("_") and not name.endswith("__")]
        assert not private, f"{path.name} reaches into something private: {private}"


@pytest.mark.parametrize(
    ("stored", "made", "same"),
    [
        ("step 4.110 s", "step 4.110 s", True),
        ("step 4.110 s", "step 4.109 s", True),
        ("step 4.11 s", "step 4.31 s", False),
        ("oppo 1.5", "intra 1.5", False),
        ("a 1 b 2", "a 1", False),
        ("Δ = 32, 7 of 56 cells", "Δ = 32, 8 of 56 cells", False),
        ("-0.001", "0.000", True),
        ("1,234 runs", "1,240 runs", False),
        ("1-0  198", "1-0   198", True),
    ],
)
def test_texts_are_the_same_up_to_the_last_digit_shown(stored: str, made: str, same: bool) -> None:
    assert (differences(stored, made) == []) is same


def test_a_warning_in_a_cell_is_found(tmp_path: Path) -> None:
    path = tmp_path / "made.ipynb"
    write(
        v4.new_notebook(cells=[v4.new_code_cell("import warnings\nwarnings.warn('look here')\nprint(1)")]),
        path,
    )  # type: ignore[no-untyped-call]
    run = executed(path, tmp_path)
    assert any("look here" in line for line in complaints(run))
    (cell,) = code_cells(stored_form(run))
    assert [text_of(output) for output in cell.outputs] == ["1\n"]


def test_a_cell_that_fails_ends_the_run(tmp_path: Path) -> None:
    path = tmp_path / "made.ipynb"
    write(v4.new_notebook(cells=[v4.new_code_cell("1 / 0")]), path)  # type: ignore[no-untyped-call]
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        executed(path, tmp_path)
