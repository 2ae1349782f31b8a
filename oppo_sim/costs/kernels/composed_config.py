"""The ``costs:`` section of kind ``composed``: measured kernels, beside the parts of a roofline."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from oppo_sim.costs.context import CostContext
from oppo_sim.costs.evidence import Evidence, all_of
from oppo_sim.costs.interface import Costs, PrefillCost
from oppo_sim.costs.kernels.composed_engine import ComposedEngine, ComposedPrefill
from oppo_sim.costs.kernels.devices import KernelSource, own_kernels
from oppo_sim.costs.kernels.lookup import FoundTable, table_for
from oppo_sim.costs.kernels.table import KernelTable
from oppo_sim.costs.profile import RangeCounter
from oppo_sim.costs.roofline_config import ShapedCosts
from oppo_sim.costs.roofline_engine import RooflineEngine
from oppo_sim.costs.roofline_parts import RewardModel, RolloutEngine, Verifier
from oppo_sim.costs.scoring import SummedPrefill


class ComposedCostConfig(ShapedCosts):
    """Decode, prefill and scoring from kernels that were measured one by one; the host from its preset;
    memory, training and the weight sync by the roofline."""

    kind: Literal["composed"]
    kernels: KernelSource = KernelSource()

    @property
    def evidence(self) -> Mapping[str, Evidence]:
        def of(section: RolloutEngine | RewardModel | Verifier) -> Evidence:
            # Another chip's kernels, scaled, are a guess.
            return "composed" if own_kernels(self._device(section.device), self.kernels) else "assumed"

        rollout = of(self.rollout)
        reward = "given" if self.reward_model.kind == "verifier" else of(self.reward_model)
        return all_of("assumed", gen=rollout, prefill=rollout, reward=reward)

    def build(self, context: CostContext, base_dir: Path | None = None) -> Costs:
        tables: dict[str, FoundTable] = {}

        def table_of(engine: RooflineEngine, place: str) -> KernelTable:
            tables[place] = table_for(engine, self.kernels)
            return tables[place].table

        costs = composed_costs(super().build(context, base_dir), table_of, self.kernels.layer_gap_s)
        kernels = {place: _said(found) for place, found in tables.items()}
        return replace(costs, provenance={**costs.provenance, "kernels": kernels})


def composed_costs(
    costs: Costs,
    table_of: Callable[[RooflineEngine, str], KernelTable],
    layer_gap_s: float = 0.0,
) -> Costs:
    """Roofline costs with measured kernels in place of its engines'. ``table_of`` an engine in its place:
    rollout, score or score_ref."""
    ranges = RangeCounter()

    def scorer(cost: PrefillCost) -> PrefillCost:
        if isinstance(cost, SummedPrefill):
            return SummedPrefill(tuple(scorer(part) for part in cost.parts))
        if not isinstance(cost, RooflineEngine):  # a verifier has no kernels
            return cost
        place = _scoring_place(cost)
        return ComposedPrefill(cost, table_of(cost, place), ranges, layer_gap_s, place)

    assert isinstance(costs.actor, RooflineEngine)
    actor = ComposedEngine(costs.actor, table_of(costs.actor, "rollout"), ranges, layer_gap_s)
    return replace(costs, actor=actor, scorer=scorer(costs.scorer))


def roofline_engines(
    section: ShapedCosts, context: CostContext, base_dir: Path | None
) -> dict[str, RooflineEngine]:
    """The engines of a section by their place, as rooflines. Raises OppoError as ``build``."""
    found: dict[str, RooflineEngine] = {}
    costs = ShapedCosts.build(section, context, base_dir)
    scorer = costs.scorer.parts if isinstance(costs.scorer, SummedPrefill) else (costs.scorer,)
    for cost in (costs.actor, *scorer):
        if isinstance(cost, RooflineEngine):
            found["rollout" if cost is costs.actor else _scoring_place(cost)] = cost
    return found


def _scoring_place(engine: RooflineEngine) -> str:
    """A streamed reference model runs the head for every token, a reward model for none."""
    return "score_ref" if engine.logits == "all" else "score"


def _said(found: FoundTable) -> dict[str, Any]:
    """For the manifest."""
    table = found.table
    said = {"table": table.of.name, **table.of.model_dump(mode="json", exclude={"shape"})}
    return {**said, "scaled_from": found.scaled_from, "origin": table.origin.model_dump(mode="json")}
