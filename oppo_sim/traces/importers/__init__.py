"""Traces from the logs of training frameworks and serving systems."""

from oppo_sim.traces.importers.formats import IMPORTERS, find_importer
from oppo_sim.traces.importers.importing import import_log
from oppo_sim.traces.importers.provenance import save_imported

__all__ = ["IMPORTERS", "find_importer", "import_log", "save_imported"]
