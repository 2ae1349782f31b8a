"""Run the notebooks and store their outputs: ``python -m tests.notebooks.store [NAME …]``, after a change
that moves their numbers."""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.notebooks.execute import complaints, executed, notebook_paths, stored_form, write


def main(names: list[str]) -> None:
    """Store the notebooks whose names begin with one of ``names``; all, if there are none."""
    os.environ.setdefault("OPPO_ENGINE", "compiled")  # as under pytest (tests/conftest.py)
    for path in notebook_paths():
        if names and not path.name.startswith(tuple(names)):
            continue
        with TemporaryDirectory() as folder:
            book = executed(path, Path(folder))
        if said := complaints(book):
            raise SystemExit(f"{path.name} is not stored, it complains: {said[0]}")
        write(stored_form(book), path)
        print(f"stored {path.name}")


if __name__ == "__main__":
    main(sys.argv[1:])
