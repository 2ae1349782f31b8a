"""What the ``costs:`` section of every kind has: its answers, and terms on its seconds."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from oppo_sim.costs.adjusted import adjusted
from oppo_sim.costs.context import CostContext, stages_run
from oppo_sim.costs.evidence import Evidence, of_stages, under_terms
from oppo_sim.costs.interface import Costs
from oppo_sim.costs.priors import Prior, median_terms, priors_of
from oppo_sim.costs.shipped_draws import draws_path
from oppo_sim.costs.strict import Strict
from oppo_sim.costs.terms import CostTerms, read_draws

EXACT = "none"
"""In ``costs.draws``: nothing is unknown."""


class CostSection(Strict, ABC):
    """What every kind answers. A new kind: a class here and in ``CostConfig``, with its models beside it."""

    terms: CostTerms = CostTerms()
    """What the seconds are adjusted by."""
    draws: str | None = None
    """What is unknown about the terms: a CSV file of draws, relative to the scenario's folder, or
    ``shipped:NAME``; ``none``: they are exact; null: the priors that hold here, whose medians are the terms
    that ``terms`` does not state."""
    drawn_from_priors: tuple[str, ...] = ()
    """Terms whose draws in the file are those of the priors: no fit identified them."""

    pads_batches: ClassVar[bool] = False
    """It knows what padded rows cost."""

    @abstractmethod
    def build(self, context: CostContext, base_dir: Path | None = None) -> Costs:
        """The cost models without ``terms``; paths are relative to ``base_dir``.

        Raises OppoError for an unknown model or device, for a model that does not fit its devices (saying
        what and by how much), for a profile that cannot be read or lacks a table that the scenario needs.
        """

    @property
    @abstractmethod
    def evidence(self) -> Mapping[str, Evidence]:
        """Where the seconds of ``build`` come from, by ``evidence.PLACES``."""

    @property
    def rollout_host(self) -> str | None:
        """Host preset of the rollout engine, ``own`` for overheads given inline; None: no such thing."""
        return None

    @property
    def weights_leave(self) -> bool | None:
        """The rollout engine's weights leave its devices while training runs; None: no such thing."""
        return None

    @property
    def device_measured(self) -> bool:
        """Kernels of the devices were measured by somebody; also where there are no devices."""
        return True

    def priors(self, context: CostContext) -> tuple[Prior, ...]:
        """What is believed of the terms where nobody measured them."""
        evidence = of_stages(self.evidence, stages_run(context.training))
        shared = context.training.weight_sync.kind == "shared"
        if shared:
            evidence.pop("update_weights", None)
        # An engine that is a loop in the training process, or that uses the trained weights, never sleeps.
        sleeps = context.colocated_training and self.rollout_host != "generate" and not shared
        return priors_of(evidence, self.rollout_host, sleeps, self.device_measured, context.trains_experts)

    def point(self, context: CostContext) -> CostTerms:
        """``terms``; those that it does not state are the medians of the priors, if ``draws`` leaves it to
        them."""
        return self.terms if self.draws is not None else median_terms(self.priors(context), self.terms)

    def costs(self, context: CostContext, base_dir: Path | None = None) -> Costs:
        """What ``build`` gives, at the ``point``. Raises OppoError as it does, and for a file of draws that
        cannot be used."""
        known, point = self.stage_evidence(context, base_dir), self.point(context)
        built = replace(self.build(context, base_dir), evidence=known)
        costs = self.under(built, point, context)
        believed = sorted(point.changed().keys() - self.terms.stated().keys())
        return (
            replace(costs, provenance={**costs.provenance, "terms_believed": believed}) if believed else costs
        )

    def under(self, built: Costs, terms: CostTerms, context: CostContext) -> Costs:
        """What ``build`` gave for ``context``, under other terms: many draws share what was built."""
        return adjusted(built, terms, stages_run(context.training), context.nominal_batch)

    def stage_evidence(self, context: CostContext, base_dir: Path | None) -> dict[str, Evidence]:
        """``evidence`` of what takes time in a scenario, under terms and draws. Raises OppoError for a file
        of draws that cannot be used."""
        given, fitted = set(self.terms.stated()), set[str]()
        if self.draws is not None and self.draws != EXACT:
            drawn = read_draws(draws_path(self.draws, base_dir), self.terms)
            fitted = given.union(*(draw.changed() for draw in drawn)).difference(self.drawn_from_priors)
        believed = set() if self.draws is not None else {prior.term for prior in self.priors(context)} - given
        found = under_terms(self.evidence, given, fitted, believed)
        return of_stages(found, stages_run(context.training))

    def to_plain(self) -> dict[str, Any]:
        """As a file says it, defaults written out, the kind first; of the terms those that were given.

        No serializer of pydantic's does it: what is raised in one, Ctrl-C too, is swallowed or made another
        error.
        """
        plain = self.model_dump(mode="json", exclude={"terms", "draws"})
        inner = {name: value.to_plain() for name, value in self if isinstance(value, CostSection)}
        if not self.drawn_from_priors:
            del plain["drawn_from_priors"]
        return {**plain, **inner, "terms": self.terms.stated(), "draws": self.draws}

    @property
    def streamable(self) -> bool:
        """The reward model can score a growing prefix."""
        return True
