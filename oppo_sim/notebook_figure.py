"""The figure that everything here draws on."""

import re
import warnings
from io import BytesIO
from typing import Any, Final

import matplotlib.figure
from matplotlib.text import Text

_POWERS: Final = re.compile(r"\$\\mathdefault\{[-−]?[\d.]*(\\times)?\d*(\^\{[-−]?\d+\})?\}\$")
"""What a logarithmic axis writes at its ticks."""


class Figure(matplotlib.figure.Figure):
    """Matplotlib's, which shows itself in a notebook also where pyplot was never imported, and in which a
    name with dollar signs is a name, not a formula."""

    def draw(self, renderer: Any) -> None:
        """As matplotlib's."""
        for axes in self.axes:
            for axis in (axes.xaxis, axes.yaxis):
                axis.get_ticklabels()  # makes those of fixed names
        for text in self.findobj(Text):
            if isinstance(text, Text) and "$" in text.get_text() and not _POWERS.fullmatch(text.get_text()):
                text.set_parse_math(False)
        with warnings.catch_warnings():
            # Letters that the font lacks are boxes, a name too long for its place is cut: nobody can mend it.
            warnings.filterwarnings("ignore", r"Glyph .* missing from|Tight layout not applied", UserWarning)
            super().draw(renderer)

    def _repr_png_(self) -> bytes:
        drawn = BytesIO()
        self.savefig(drawn, format="png")
        return drawn.getvalue()
