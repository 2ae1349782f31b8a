"""The text that ``oppo scenario init`` writes."""

from pathlib import Path

from oppo_sim.scenario.load import find_shipped, read_scenario_text

TEMPLATE = Path(__file__).parent / "template.yaml"


def scenario_text(name: str | None) -> str:
    """The shipped scenario ``name`` with its comments, or a minimal one. Raises OppoError for an unknown
    name."""
    return read_scenario_text(TEMPLATE if name is None else find_shipped(name))
