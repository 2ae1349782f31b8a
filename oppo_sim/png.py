"""Figures as PNG files, the same bytes for the same figure."""

from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_png(figure: "Figure", file: BinaryIO) -> None:
    """The figure as PNG at its own resolution, without a date or version. Drawn once: ``savefig`` draws twice
    where texts are measured for the layout."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure).print_png(  # type: ignore[no-untyped-call]
        file, metadata={"Software": None}, pil_kwargs={"compress_level": 3}
    )
