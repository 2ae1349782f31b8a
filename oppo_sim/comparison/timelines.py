"""What every device did in some steps of a comparison: simulated again, with a timeline."""

from collections.abc import Mapping
from dataclasses import replace

from oppo_sim.one_run import check_timeline, run_setup
from oppo_sim.results.sinks import SummarySink
from oppo_sim.results.spans import Marker, Span
from oppo_sim.scenario.build import Setup

Timelines = dict[str, tuple[list[Span], list[Marker]]]
"""By policy, the baseline first."""


def shown_steps(warmup_steps: int, steps: int) -> tuple[int, int]:
    """First and last step of the timelines of so many steps where nobody says: two after the warm-up."""
    first = min(warmup_steps, steps - 1)
    return first, min(first + 1, steps - 1)


def timelines_of(setups: Mapping[str, Setup], steps: int, shown: tuple[int, int]) -> Timelines:
    """Steps ``shown[0]`` to ``shown[1]`` of ``steps``, of each policy's first seed. Raises OppoError for
    steps that were not run."""
    check_timeline(shown, steps)
    return {
        policy: run_setup(replace(setup, steps=shown[1] + 1), SummarySink(0), timeline=shown)
        for policy, setup in setups.items()
    }
