"""The ``costs:`` section of kind ``profile``: measured tables, from a file or the package."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import model_validator

from oppo_sim.columns import TRAINING_STAGES
from oppo_sim.costs.build_profile import costs_from_profile
from oppo_sim.costs.context import CostContext
from oppo_sim.costs.evidence import Evidence, all_of
from oppo_sim.costs.interface import Costs
from oppo_sim.costs.profile import Profile, load_profile
from oppo_sim.costs.roofline_config import RooflineCostConfig
from oppo_sim.costs.section import CostSection
from oppo_sim.costs.shipped_profiles import load_shipped
from oppo_sim.costs.terms import NO_TERMS


class ProfileCostConfig(CostSection):
    """Measured tables of format ``oppo-profile/1``: one's own file, or one that comes with the package."""

    kind: Literal["profile"]
    path: str | None = None
    """Relative to the scenario's folder."""
    name: str | None = None
    """Instead of ``path``: of a shipped profile, such as ``h200/qwen2.5-7b+1.5b/torch``."""
    roofline_training: RooflineCostConfig | None = None
    """The training part and the weight sync by a roofline instead, where training was not measured."""

    @property
    def evidence(self) -> Mapping[str, Evidence]:
        trained: Evidence = "measured" if self.roofline_training is None else "assumed"
        # The run that was measured had no phase that its tables leave out, unless its terms say so.
        return all_of("measured", phases="given", **dict.fromkeys(TRAINING_STAGES, trained))

    @model_validator(mode="after")
    def _one_source(self) -> "ProfileCostConfig":
        if (self.path is None) == (self.name is None):
            raise ValueError("a profile has either a path or a name: give one of them")
        inner = self.roofline_training
        if inner is not None and (inner.terms != NO_TERMS or inner.draws is not None):
            raise ValueError("terms and draws belong to the profile, not to roofline_training: move them up")
        return self

    def build(self, context: CostContext, base_dir: Path | None = None) -> Costs:
        profile = self.profile(base_dir)
        source = self.path if self.path is not None else f"shipped: {self.name}"
        if self.roofline_training is None:
            return costs_from_profile(profile, context, source=source)
        shape = self.roofline_training.build(context, base_dir)
        return costs_from_profile(profile, context, source, shape.training, shape.provenance)

    def profile(self, base_dir: Path | None) -> Profile:
        """The tables, from a file or the package. Raises OppoError."""
        if self.name is not None:
            return load_shipped(self.name)
        assert self.path is not None, "the section has one of the two"
        return load_profile((base_dir or Path()) / self.path)
