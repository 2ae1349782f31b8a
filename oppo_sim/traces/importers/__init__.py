"""Traces from the logs of training frameworks and serving systems; what reads a log is
imported when it is first used."""

from typing import TYPE_CHECKING, Any

from oppo_sim.traces.importers.formats import IMPORTERS, find_importer

if TYPE_CHECKING:
    from oppo_sim.traces.importers.importing import import_log

__all__ = ["IMPORTERS", "find_importer", "import_log"]


def __getattr__(name: str) -> Any:
    if name != "import_log":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from oppo_sim.traces.importers.importing import import_log

    return import_log
