"""What seconds of generation are linear in, step by step: decode seconds, iterations, prefill, rounds."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from oppo_sim.fit.terms.decoding import AS_IT_IS, Decoding, seconds_by_host
from oppo_sim.fit.terms.phases import one_after_other, slowest_phase

if TYPE_CHECKING:
    from oppo_sim.scenario.build import Parts

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

TOOL_SHARE: Final = 0.2
"""Share of a tool's tokens at which phases are summed a second time; they are linear in it."""


class Generated(NamedTuple):
    """What a step generates (``in_batches``)."""

    responses: Ints
    """Draws × batches × rollouts."""
    prompts: Ints
    """Batches × rollouts."""
    cut: int
    """``max_response_length``."""
    slowest: float
    """Response tokens of the rollout that finished last (inf: not logged). It ends the last batch, though
    others are longer: a tool made it wait."""


class Generation(NamedTuple):
    """One entry a step, the mean over its draws."""

    decode: Floats
    """Decode seconds of the phase with the host's part times each factor of ``HOST_GRID``: 2 × grid × steps;
    the second is where ``TOOL_SHARE`` of the tokens of rollouts that were not cut are a tool's."""
    iterations: Floats
    """2 × steps; so is the area."""
    area: Floats
    """Rollouts × iterations."""
    prefill: Floats
    """Seconds, of prompts and of tools' answers; 2 × steps, too."""
    rounds: Floats
    """Of generation, each a cut; 0 where the phase is not cut."""
    spread: Floats
    """Relative standard deviation of the decode seconds over the draws."""
    has_host: bool
    """The cost model holds seconds of a host that a factor can change."""


def generation_of(
    steps: Sequence[Generated], parts: "Parts", round_size: int | None, *, tools: bool
) -> Generation:
    """``tools``: rollouts call tools, so that phases are summed a second time."""
    owner, phases = [], []
    engine = Decoding(parts.costs.actor)
    for share in (0.0, TOOL_SHARE) if tools else (0.0,):
        for number, step in enumerate(steps):
            for responses in step.responses:
                ended = responses.astype(np.float64)
                ended[-1] = np.minimum(ended[-1], max(1.0, step.slowest))
                decoded = np.where(ended < step.cut, np.maximum(1.0, ended * (1.0 - share)), ended)
                # Answers come at once, as in the scenario that is written (``log_lengths``).
                answers = np.rint(ended - decoded).astype(np.int64)
                each = [
                    slowest_phase(batch, before, parts.machine, parts.costs, engine, round_size)
                    for batch, before in zip(
                        np.rint(decoded).astype(np.int64), step.prompts + answers, strict=True
                    )
                ]
                owner.append(number)
                phases.append(one_after_other(each))
    whole = slice(0, sum(len(step.responses) for step in steps))
    both = (whole, slice(whole.stop, None) if tools else whole)
    stretches = [phase.stretches for phase in phases]
    decode = seconds_by_host(parts.costs.actor, stretches)
    mean = _by_step(owner[whole], len(steps))
    prefill, rounds = (
        np.array([getattr(phase, name) for phase in phases], dtype=np.float64)
        for name in ("prefill_s", "rounds")
    )
    iterations, area = (
        np.array([getattr(each, name) for each in stretches]) for name in ("total_iterations", "area")
    )
    as_it_is = decode[AS_IT_IS][whole]
    variance = np.maximum(0.0, mean(as_it_is**2) - mean(as_it_is) ** 2)
    return Generation(
        decode=np.array([[mean(row[part]) for row in decode] for part in both]),
        iterations=np.array([mean(iterations[part]) for part in both]),
        area=np.array([mean(area[part]) for part in both]),
        prefill=np.array([mean(prefill[part]) for part in both]),
        rounds=mean(rounds[whole]),
        spread=np.sqrt(variance) / mean(as_it_is),
        has_host=bool(np.any(decode[-1][whole] > as_it_is * (1 + 1e-9))),
    )


def _by_step(owner: list[int], steps: int) -> Callable[[Floats], Floats]:
    """Means over the draws of each step."""
    counts = np.bincount(owner, minlength=steps)
    return lambda values: np.bincount(owner, weights=values, minlength=steps) / counts
