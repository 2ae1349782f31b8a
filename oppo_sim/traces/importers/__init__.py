"""Traces from the logs of training frameworks and serving systems: ``import_log``, ``save_imported``,
``IMPORTERS``."""

from oppo_sim.traces.importers.importing import import_log
from oppo_sim.traces.importers.provenance import save_imported
from oppo_sim.traces.importers.registry import IMPORTERS, find_importer

__all__ = ["IMPORTERS", "find_importer", "import_log", "save_imported"]
