"""Draws of what is unknown about seconds that come with the package, found by name:
``costs: {draws: "shipped:paper-stackexchange-7b"}``."""

from difflib import get_close_matches
from pathlib import Path
from typing import Final

from oppo_sim.errors import OppoError

SHIPPED_FOLDER: Final = Path(__file__).parent / "drawn"
PREFIX: Final = "shipped:"
"""In ``costs.draws``, before the name; anything else is a path."""


def draws_path(draws: str, base_dir: Path | None = None) -> Path:
    """The file that ``costs.draws`` names. Raises OppoError for a shipped name that there is not."""
    if not draws.startswith(PREFIX):
        return (base_dir or Path()) / draws
    name, names = draws.removeprefix(PREFIX), sorted(path.stem for path in SHIPPED_FOLDER.glob("*.csv"))
    if name not in names:
        close = get_close_matches(name, names, n=1) or names
        raise OppoError(f"costs.draws: no shipped draws {name!r}: there are {', '.join(close)}")
    return SHIPPED_FOLDER / f"{name}.csv"
