"""What a report is made of, before it is HTML: plain text and numbers. Nothing here is markup but
``Picture.svg``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Picture:
    """A figure, as inline SVG in the page's colours or as PNG bytes."""

    name: str
    """File-name stem."""
    title: str
    alt: str
    """What it shows, for those who do not see it."""
    svg: str = ""
    png_base64: str = ""


@dataclass(frozen=True)
class Grid:
    """A table of texts; the first column heads its rows."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()
    """Columns set flush right."""


@dataclass(frozen=True)
class Section:
    """A part of a chapter under a heading of its own."""

    title: str
    texts: tuple[str, ...] = ()
    grids: tuple[Grid, ...] = ()
    pictures: tuple[Picture, ...] = ()
    code: str = ""
    """Text to copy as it is."""
    folded: bool = False


@dataclass(frozen=True)
class Explorer:
    """Points to sort, filter and map; see ``report/html_explorer.py`` for ``data``."""

    data: Mapping[str, Any]
    heat: Picture | None = None
    """Shown where scripts do not run."""


@dataclass(frozen=True)
class Chapter:
    """Everything about one folder."""

    title: str
    kind: str
    """``sweep``, ``comparison``, ``simulated run``, …"""
    source: str
    """Where the numbers come from: predicted or measured, in a sentence."""
    measured: bool
    question: str
    answer: tuple[str, ...]
    settings: tuple[tuple[str, str], ...] = ()
    """(field, value) of the choice."""
    copy_text: str = ""
    """The same for the command line or a scenario file."""
    sections: tuple[Section, ...] = ()
    explorer: Explorer | None = None
    provenance: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = field(default=())
    """Warnings: what is likely not meant."""
