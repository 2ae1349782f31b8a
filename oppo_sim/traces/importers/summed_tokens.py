"""Prompt lengths from the tokens of all prompts and responses since a run began (TRL's ``num_tokens``): what
is left of a step's without its responses."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Final

import numpy as np
import numpy.typing as npt

from oppo_sim.traces.importers.reading import Reading

SUM: Final = "tokens_so_far"
SHOWN_DIGITS: Final = 4
"""Of every number in the console lines of transformers since version 5."""
_LEAST_SHOWN: Final = 10
"""Numbers with more digits, which all end in zeros only where they were rounded."""
_OPEN: Final = 0.05
"""Of a prompt's length, that rounded sums may leave open."""
_LEAST: Final = 0.5
"""Tokens of a prompt."""
_UNKNOWN: Final = (
    "prompt lengths are not known, though the log counts tokens of prompts and responses together: "
)

Steps = Mapping[int, Mapping[str, float]]
Floats = npt.NDArray[np.float64]


def grid_of(sums: Sequence[float]) -> Floats:
    """How far apart the numbers are that a console could show of each of ``sums``; 0 where they have all
    their digits, NaN where there is none."""
    given = np.array(sums, dtype=np.float64)
    known = np.maximum(given, 1.0)
    unit = 10.0 ** (np.floor(np.log10(known)) - (SHOWN_DIGITS - 1))
    long = unit > 1.0
    shown = np.isclose(known / unit, np.round(known / unit), rtol=0.0, atol=1e-6)
    rounded = long.sum() >= _LEAST_SHOWN and bool(shown[long].all())
    found: Floats = 0.0 * given + np.where(long & rounded, unit, 0.0)
    return found


def steps_of_a_line(lines: Sequence[int]) -> int:
    """Of how many steps a line is, as ``logging_steps`` says, where these are the steps of all lines."""
    return max(1, round(median(after - before for before, after in pairwise(lines)))) if lines[1:] else 1


def with_prompts(
    steps: Steps, lines: Sequence[int], rows: int | None, reading: Reading
) -> dict[int, dict[str, float]]:
    """The figures of each step, ``prompt_mean`` too where none has it and sums of tokens give it; without
    these sums.

    ``lines``: sorted steps of all lines, also of those that generate nothing (``num_iterations``); ``rows``:
    rollouts of a step.
    """
    found = {
        step: {name: value for name, value in figures.items() if name != SUM}
        for step, figures in steps.items()
    }
    known = sorted(step for step, figures in steps.items() if {SUM, "mean"} <= figures.keys())
    if rows is None or not known or any("prompt_mean" in figures for figures in steps.values()):
        return found
    if reading.counted_lines:
        reading.notes[f"{_UNKNOWN}it does not say of how many steps a line is (logging_steps)"] = 1
        return found
    sums = [steps[step][SUM] for step in known]
    tokens, prompts = _of_each(steps, known, lines, rows)
    usable = tokens > 0
    if not usable.any():
        return found
    means = np.array([steps[step]["mean"] for step in known])
    of_run = float(tokens[usable].sum() / usable.sum()) / rows - float(means[usable].mean())
    if of_run < _LEAST:
        reading.notes[
            f"{_UNKNOWN}{rows} responses a step have more, is --rows-per-step what the run had?"
        ] = 1
        return found
    told = usable & (prompts >= _LEAST) & (grid_of(sums) / rows <= _OPEN * np.maximum(prompts, _LEAST))
    for at, step in enumerate(known):
        found[step]["prompt_mean"] = float(prompts[at]) if told[at] else of_run
    if told.any():
        reading.notes[
            "prompts were given the mean length of their step: tokens of prompts and responses together"
            " (num_tokens) less the responses"
        ] = int(told.sum())
    if not told.all():
        reading.notes["steps whose prompts were given the mean length of all prompts of the run"] = int(
            (~told).sum()
        )
    return found


def _of_each(steps: Steps, known: Sequence[int], lines: Sequence[int], rows: int) -> tuple[Floats, Floats]:
    """Tokens of a step at each line, and tokens of a prompt; NaN and less where they are not known."""
    a_line, logged = steps_of_a_line(lines), set(lines)
    tokens = []
    for at, step in enumerate(known):
        before, sum_before = (known[at - 1], steps[known[at - 1]][SUM]) if at else (0, 0.0)
        apart = step - before
        if at and a_line == 1 and step - 1 in logged:
            apart = 1  # the steps between trained what was generated before them
        whole = apart > 0 and (at > 0 or step == a_line)
        tokens.append((steps[step][SUM] - sum_before) / apart if whole else np.nan)
    found = np.array(tokens, dtype=np.float64)
    return found, found / rows - np.array([steps[step]["mean"] for step in known])
