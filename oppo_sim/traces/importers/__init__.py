"""Traces from the logs of training frameworks and serving systems: ``import_log``, ``IMPORTERS``."""

from oppo_sim.traces.importers.importing import import_log
from oppo_sim.traces.importers.registry import IMPORTERS, find_importer

__all__ = ["IMPORTERS", "find_importer", "import_log"]
