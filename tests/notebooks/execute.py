"""Run a notebook as a reader would, and bring it into the form in which it is stored."""

import re
import shutil
from pathlib import Path
from typing import Any, Final

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

ROOT: Final = Path(__file__).resolve().parents[2]
NOTEBOOKS: Final = ROOT / "notebooks"
MEASUREMENTS: Final = Path("experiments") / "validate_cpu"
POLICY_MAP: Final = Path("experiments") / "paper" / "results" / "map.csv"
"""What notebooks read of the repository, beside themselves: a folder and a file."""

WIDGET: Final = "application/vnd.jupyter.widget-view+json"
COMPILING: Final = "oppo: compiling the fast path"
LIMIT_S: Final = 300
"""For one cell on a busy machine; a whole notebook takes less than a minute on a quiet one."""

_FIGURE: Final = re.compile(r"<Figure size [\dx]+ with \d+ Axes>")


def notebook_paths() -> list[Path]:
    """The shipped notebooks, in reading order."""
    return sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))


def read(path: Path) -> NotebookNode:
    """A notebook, checked against the format."""
    book: NotebookNode = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    nbformat.validate(book)
    return book


def write(book: NotebookNode, path: Path) -> None:
    """Store a notebook."""
    nbformat.write(book, path)  # type: ignore[no-untyped-call]


def executed(path: Path, folder: Path) -> NotebookNode:
    """A copy of the notebook at ``path``, run from its first cell to its last in ``folder``/notebooks with a
    fresh kernel.

    Raises nbclient's CellExecutionError where a cell fails.
    """
    shutil.copytree(ROOT / MEASUREMENTS, folder / MEASUREMENTS)
    (folder / POLICY_MAP).parent.mkdir(parents=True)
    shutil.copy(ROOT / POLICY_MAP, folder / POLICY_MAP)
    (folder / "notebooks").mkdir()
    book = read(path)
    # Outputs of another kernel must not pass for this one's.
    for cell in code_cells(book):
        cell.outputs, cell.execution_count = [], None
    client = NotebookClient(
        book,
        timeout=LIMIT_S,
        kernel_name="python3",
        record_timing=False,
        store_widget_state=False,
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(folder / "notebooks")}},
    )
    client.execute()
    return book


def code_cells(book: NotebookNode) -> list[NotebookNode]:
    """The cells that run."""
    return [cell for cell in book.cells if cell.cell_type == "code"]


def stored_form(book: NotebookNode) -> NotebookNode:
    """The notebook without what differs from run to run: kernel details, ids, and sliders, which need a
    kernel anyway."""
    book.metadata.clear()
    book.metadata.update(
        kernelspec={"display_name": "Python 3", "language": "python", "name": "python3"},
        language_info={"name": "python", "file_extension": ".py", "mimetype": "text/x-python"},
    )
    for number, cell in enumerate(book.cells):
        cell.metadata.clear()
        cell.id = f"cell-{number:02d}"
        if cell.cell_type == "code":
            kept = [
                output
                for output in cell.outputs
                if output.get("name") != "stderr" and WIDGET not in output.get("data", {})
            ]
            cell.outputs = joined(kept)
    return book


def complaints(book: NotebookNode) -> list[str]:
    """What cells wrote to standard error, warnings among it; that the fast path is compiled when it is first
    used is none."""
    written = [
        output.text for cell in code_cells(book) for output in cell.outputs if output.get("name") == "stderr"
    ]
    return [
        line
        for text in written
        for line in text.splitlines()
        if line.strip() and not line.startswith(COMPILING)
    ]


def joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Outputs with neighbouring pieces of one stream put together: where a stream is split depends on the
    moment."""
    kept: list[NotebookNode] = []
    for output in outputs:
        if (
            kept
            and output.output_type == "stream"
            and kept[-1].output_type == "stream"
            and kept[-1].name == output.name
        ):
            kept[-1].text += output.text
        else:
            kept.append(output)
    return kept


def text_of(output: Any) -> str:
    """The text of an output, a figure's size left out; of an error its message."""
    if output["output_type"] == "error":
        return f"{output['ename']}: {output['evalue']}"
    if output["output_type"] == "stream":
        return str(output["text"])
    data = output["data"]
    kinds = [kind for kind in ("text/markdown", "text/html", "text/plain") if kind in data]
    return _FIGURE.sub("<Figure>", "\n".join(str(data[kind]) for kind in kinds))
