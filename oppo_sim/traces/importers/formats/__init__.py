"""One module a framework or serving system, each with an ``IMPORTER``; all of them by name."""

from difflib import get_close_matches
from importlib import import_module
from pkgutil import iter_modules
from typing import Final

from oppo_sim.errors import OppoError
from oppo_sim.traces.importers.importer import Importer

AUTO: Final = "auto"
IMPORTERS: Final[tuple[Importer, ...]] = tuple(
    import_module(f"{__name__}.{module.name}").IMPORTER for module in iter_modules(__path__)
)


def find_importer(name: str) -> Importer:
    """The importer of that name; ``-`` counts as ``_``. Raises OppoError, with close names."""
    wanted = name.strip().lower().replace("-", "_")
    for importer in IMPORTERS:
        if wanted in (importer.name, *importer.aliases):
            return importer
    names = [importer.name for importer in IMPORTERS]
    close = get_close_matches(wanted, names, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}, and {AUTO}"
    raise OppoError(f"there is no importer '{name}': {hint}")
