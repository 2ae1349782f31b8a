"""What the ``costs:`` section of every kind has: its answers, and terms on its seconds."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from pydantic import SerializerFunctionWrapHandler, model_serializer

from oppo_sim.costs.adjusted import adjusted
from oppo_sim.costs.context import CostContext, stages_run
from oppo_sim.costs.interface import Costs
from oppo_sim.costs.strict import Strict
from oppo_sim.costs.terms import CostTerms


class CostSection(Strict, ABC):
    """What every kind answers. A new kind: a class here and in ``CostConfig``, with its models beside it."""

    terms: CostTerms = CostTerms()
    """What the seconds are adjusted by."""
    draws: str | None = None
    """What is unknown about the terms: a CSV file of draws, relative to the scenario's folder; ``none``: they
    are exact; null: the priors of the kind."""

    evidence: ClassVar[str]
    """Where its seconds come from, for advice: "seconds come from …"."""
    pads_batches: ClassVar[bool] = False
    """It knows what padded rows cost."""

    @abstractmethod
    def build(self, context: CostContext, base_dir: Path | None = None) -> Costs:
        """The cost models without ``terms``; paths are relative to ``base_dir``.

        Raises OppoError for an unknown model or device, for a model that does not fit its devices (saying
        what and by how much), for a profile that cannot be read or lacks a table that the scenario needs.
        """

    def costs(self, context: CostContext, base_dir: Path | None = None) -> Costs:
        """What ``build`` gives, under ``terms``. Raises OppoError as it does."""
        built = self.build(context, base_dir)
        return adjusted(built, self.terms, stages_run(context.training), context.nominal_batch)

    @model_serializer(mode="wrap")
    def _kind_first(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        plain: dict[str, Any] = dump(self)
        shared = {name: plain.pop(name) for name in ("terms", "draws")}
        return {**plain, **shared}

    @property
    def streamable(self) -> bool:
        """The reward model can score a growing prefix."""
        return True
