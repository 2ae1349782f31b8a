"""A simulated run and what it gave, as plain data."""

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from oppo_sim.costs.terms import CostTerms
from oppo_sim.runs.placement import slower
from oppo_sim.scenario.schema import Scenario

ACTUAL: Final = "actual"
NOT_OF_A_RUN: Final = ("name", "description", "published", "real", "policy", "policies", "seed", "steps")
"""Fields of a scenario that a request leaves out or names beside it: what is left is what runs of one machine
and trace share."""


@dataclass(frozen=True)
class RunRequest:
    """One simulated run, as plain data: picklable, hashable, the same on every machine."""

    scenario: str
    """JSON of the whole scenario less ``NOT_OF_A_RUN``; see ``scenario_text``."""
    policy: str
    settings: str
    """JSON of the policy's settings, all that are not defaults."""
    seed: int
    steps: int
    base_dir: str | None = None
    """Folder in which the scenario's relative paths start; None: the working directory."""
    inputs: str = ""
    """Digests of what the text does not hold, ``trace:rest``: the contents of files that it names, this
    program (``runs/evaluate.py``)."""
    source: str = ""
    """Digest of the file of a policy of a user's own, or of its class (``policies/held.py``)."""
    variant: str = ACTUAL
    """``actual``, or the counterfactual that is simulated: a key of ``runs.evaluate.VARIANTS``."""
    terms: str = ""
    """JSON of the terms that replace the scenario's ``costs.terms``: a draw of the machine. Empty: the
    scenario's own."""

    @cached_property
    def key(self) -> str:
        """Content key: the same run has the same key, whatever search, machine or order it belongs to; the
        folder is no part of it."""
        content = [
            self.scenario,
            self.policy,
            self.settings,
            self.seed,
            self.steps,
            self.inputs,
            self.source,
            self.variant,
            *([self.terms] if self.terms else []),
        ]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:24]

    def at(self, seed: int) -> "RunRequest":
        """The same run under another seed."""
        return replace(self, seed=seed)

    def on(self, terms: CostTerms) -> "RunRequest":
        """The same run on a machine with these terms."""
        return replace(self, terms=json.dumps(terms.changed()))


@dataclass(frozen=True)
class RunResult:
    """What a run gave: totals, or the sentence that says why it could not run."""

    key: str
    totals: Mapping[str, float] | None
    """As ``results.summary.run_totals``; None: it failed."""
    engine: str = ""
    """``compiled`` or ``simpy``; empty: it failed."""
    error: str | None = None
    seconds: float = field(default=0.0, compare=False)
    """Real seconds that it took, for estimates; no part of the result."""

    def slower(self, factor: float) -> "RunResult":
        """The same with all its simulated seconds ``factor`` times as long."""
        if factor == 1.0 or self.totals is None:
            return self
        return replace(self, totals=slower(self.totals, factor))


Finished = list[tuple[RunRequest, RunResult]]
"""Runs that were finished together."""


def scenario_text(scenario: Scenario) -> str:
    """The part of a scenario that a ``RunRequest`` holds, as canonical JSON."""
    plain = {name: value for name, value in scenario.to_plain().items() if name not in NOT_OF_A_RUN}
    # Thousands of points share one text.
    return sys.intern(json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False))


def request_of(
    scenario: Scenario,
    policy: str | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    seed: int | None = None,
    steps: int | None = None,
    inputs: str = "",
) -> RunRequest:
    """A run of a checked scenario; None: its own policy, the settings it gives that policy, its seed and
    steps."""
    from oppo_sim.scenario.build import policy_settings_of

    name = scenario.policy.name if policy is None else policy
    chosen = policy_settings_of(scenario, name) if settings is None else settings
    return RunRequest(
        scenario_text(scenario),
        name,
        json.dumps(dict(chosen), sort_keys=True),
        scenario.seed if seed is None else seed,
        scenario.steps if steps is None else steps,
        None if scenario.base_dir is None else str(scenario.base_dir),
        inputs,
    )
