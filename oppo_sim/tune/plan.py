"""What a search would do, and about how long it may take: nothing is searched or written."""

import os
from dataclasses import asdict, dataclass
from typing import Any

from oppo_sim.report.labels import counted
from oppo_sim.runs.evaluate import seconds_a_step
from oppo_sim.sweep.resolve import Resolver
from oppo_sim.tune.prepare import prepared
from oppo_sim.tune.request import TuneRequest


@dataclass(frozen=True)
class SearchPlan:
    """A search before it begins."""

    scenario: str
    space: dict[str, list[dict[str, Any]]]
    """Policy → its knobs."""
    left_out: dict[str, str]
    """Policy → why it is not searched."""
    worlds: tuple[str, ...]
    seeds: int
    fresh_seeds: int
    steps: int
    most_runs: int
    """Of the search, baselines apart; trials that are clearly worse are stopped early."""
    processes: int
    seconds: float | None
    """Of these in so many processes, from a run of the scenario timed here; None: it cannot run."""
    engine: str

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def sentences(self) -> list[str]:
        """For people."""
        found = [
            f"{policy}: {'; '.join(map(_range, knobs)) or 'no knobs'}" for policy, knobs in self.space.items()
        ]
        found += [f"{policy} is left out: {why}" for policy, why in self.left_out.items()]
        worlds = f" in {len(self.worlds)} worlds ({', '.join(self.worlds)})" if len(self.worlds) > 1 else ""
        seeds, fresh = counted(self.seeds, "seed"), counted(self.fresh_seeds, "fresh seed")
        found.append(
            f"runs: at most {self.most_runs:,} of {self.steps} steps, on {seeds}{worlds};"
            f" then the choice and what is near it on {fresh}, and every knob around it"
        )
        if self.seconds is not None:
            shown = f"at most about {self.seconds:,.0f} s" if self.seconds >= 1 else "less than a second"
            found.append(
                f"time of the search: {shown} in {self.processes} process(es), from one run timed here"
                f" ({self.engine})"
            )
        return found


def planned(request: TuneRequest) -> SearchPlan:
    """Check a request as ``tune`` does, and time one run. Raises OppoError for what cannot be searched."""
    search = prepared(request)
    scenario, seeds, space, steps = search.scenario, search.seeds, search.space, search.steps
    trials = int(min(request.trials, sum(map(space.size, space.policies))))
    runs = trials * len(seeds.search) * len(search.worlds)
    processes = max(1, min(request.jobs or os.cpu_count() or 1, runs))
    a_step, engine = seconds_a_step(Resolver(scenario, steps=steps).resolve({}).request)
    return SearchPlan(
        scenario.name,
        space.described(),
        dict(space.left_out),
        tuple(world.name for world in search.worlds),
        len(seeds.search),
        len(seeds.fresh),
        steps,
        runs,
        processes,
        None if a_step is None else a_step * steps * runs / processes,
        engine,
    )


def _range(knob: dict[str, Any]) -> str:
    if "choices" in knob:
        return f"{knob['field']} {', '.join(map(_shown, knob['choices']))}"
    return f"{knob['field']} {knob['low']:g} to {knob['high']:g}{' (log)' if knob['log'] else ''}"


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)
