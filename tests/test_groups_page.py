"""docs/howto/shared-prompts.md: its example says what it says, and its sentence is so."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "howto" / "shared-prompts.md"


def test_sharing_long_prompts_moves_the_best_split() -> None:
    text = PAGE.read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (shown,) = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(code, str(PAGE), "exec"), {})
    assert said.getvalue() == shown
    seconds = [[float(cell) for cell in re.findall(r"([\d.]+) s", line)] for line in shown.splitlines()[1:]]
    alone, shared = zip(*seconds, strict=True)
    assert alone.index(min(alone)) == 2
    assert shared.index(min(shared)) == 1
