"""The ``costs:`` section of a scenario: the union of its kinds."""

from typing import Annotated

from pydantic import Field

from oppo_sim.costs.kernels.composed_config import ComposedCostConfig
from oppo_sim.costs.linear_config import LinearCostConfig
from oppo_sim.costs.profile_config import ProfileCostConfig
from oppo_sim.costs.roofline_config import RooflineCostConfig

CostConfig = Annotated[
    LinearCostConfig | RooflineCostConfig | ComposedCostConfig | ProfileCostConfig,
    Field(discriminator="kind"),
]
