"""From the ``costs:`` section of a scenario to the cost models that the simulator asks."""

from pathlib import Path

from oppo_sim.costs.config import CostConfig, LinearCostConfig, RooflineCostConfig
from oppo_sim.costs.context import CostContext
from oppo_sim.costs.interface import Costs

__all__ = ["CostContext", "build_costs"]


def build_costs(config: CostConfig, *, shape: CostContext, base_dir: Path | None = None) -> Costs:
    """Cost models for a scenario; paths in ``config`` are relative to ``base_dir``.

    Raises OppoError for an unknown model or device, for a model that does not fit its devices (saying what
    and by how much), for a profile that cannot be read or lacks a table that the scenario needs.
    """
    if isinstance(config, LinearCostConfig):
        from oppo_sim.costs.build_linear import linear_costs

        return linear_costs(config, shape)
    if isinstance(config, RooflineCostConfig):
        from oppo_sim.costs.build_roofline import roofline_costs

        return roofline_costs(config, shape, base_dir)
    from oppo_sim.costs.build_profile import profile_costs

    return profile_costs(config, shape, base_dir)
