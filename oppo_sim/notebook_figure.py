"""The figure that everything here draws on."""

from io import BytesIO

import matplotlib.figure


class Figure(matplotlib.figure.Figure):
    """Matplotlib's, which shows itself in a notebook also where pyplot was never imported."""

    def _repr_png_(self) -> bytes:
        drawn = BytesIO()
        self.savefig(drawn, format="png")
        return drawn.getvalue()
