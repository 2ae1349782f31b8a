"""Figures inside a page: SVG in the page's own colours, PNG where the SVG would be too large."""

import base64
import io
import re
from typing import TYPE_CHECKING, Final

from oppo_sim.report.html_parts import Picture
from oppo_sim.report.palette import FAINT, IDLE, INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_SVG_BYTES: Final = 250_000
"""A larger picture (timelines of thousands of pieces) is embedded as PNG."""

_IN_PAGE: Final = {
    INK.lower(): "var(--ink)",
    "#000000": "var(--ink)",
    "#ffffff": "var(--paper)",
    FAINT.lower(): "var(--faint)",
    IDLE.lower(): "var(--idle)",
}
_PNG_DPI: Final = 120


def picture(name: str, figure: "Figure", title: str, alt: str) -> Picture:
    """Embed a figure under ``name`` (unique in the page; it becomes part of element ids)."""
    svg = svg_text(figure)
    if len(svg) <= MOST_SVG_BYTES:
        return Picture(name, title, alt, svg=in_page(svg, name))
    return Picture(name, title, alt, png_base64=base64.b64encode(png_bytes(figure, _PNG_DPI)).decode())


def svg_text(figure: "Figure") -> str:
    """The figure as a stand-alone SVG document; the same figure gives the same text, free of dates."""
    import matplotlib as mpl

    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "oppo", "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def png_bytes(figure: "Figure", dpi: float | None = None) -> bytes:
    """The figure as PNG; at its own resolution if none is given."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi or figure.dpi, metadata={"Software": None})
    return buffer.getvalue()


def in_page(svg: str, name: str) -> str:
    """An SVG document as an element of a page: no prolog, ids of its own, ink and paper as the page's theme
    has them."""
    element = svg[svg.index("<svg") :]
    element = re.sub(r"<metadata>.*?</metadata>\s*", "", element, flags=re.DOTALL)
    prefix = re.sub(r"[^A-Za-z0-9]", "-", name)
    element = re.sub(r'\bid="', f'id="{prefix}-', element)
    element = re.sub(r'href="#', f'href="#{prefix}-', element)
    element = element.replace("url(#", f"url(#{prefix}-")
    element = re.sub(
        "|".join(_IN_PAGE), lambda match: _IN_PAGE[match.group().lower()], element, flags=re.IGNORECASE
    )
    # Sized by the page's style sheet.
    return re.sub(
        r'<svg ([^>]*?)width="[^"]*"',
        r"<svg \1",
        re.sub(r'<svg ([^>]*?)height="[^"]*"', r"<svg \1", element, count=1),
        count=1,
    )
