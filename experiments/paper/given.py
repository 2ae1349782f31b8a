"""given.md: every number that a fit of OPPO's baselines is given, with its source.

python experiments/paper/given.py     # writes the page again
"""

import csv
import json
import sys
from math import exp
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent))

import pandas as pd
from answers import table
from asking import priors_of
from fitting import digest, draws_file
from setups import BASELINE, SETUPS
from study import FOLDER
from unknowns import CHOICES, scenario_of, world_of

PAGE: Final = FOLDER / "given.md"
TEXT: Final = FOLDER / "given.text.md"
_ENDS: Final = 1.96


def page_text() -> str:
    """The text with its tables."""
    text = TEXT.read_text("utf-8")
    for mark, made in {
        "{baselines}": _baselines(),
        "{unknowns}": _unknowns(),
        "{lengths}": _lengths(),
        "{priors}": _priors(),
        "{digest}": digest(SETUPS),
    }.items():
        text = text.replace(mark, made)
    return text


def _baselines() -> str:
    with BASELINE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    return table(rows[0], rows[1:])


def _unknowns() -> str:
    lines = []
    for name, choice in CHOICES.items():
        odds = choice.odds or [1 / len(choice.values)] * len(choice.values)
        values = ", ".join(f"{value} ({share:.2g})" for value, share in zip(choice.values, odds, strict=True))
        lines.append([name, values, choice.source])
    return table(["unknown", "values (prior)", "why these"], lines)


def _lengths() -> str:
    lines = [
        [
            setup.name,
            *(_ranged(*known) for known in (setup.mean_tokens, setup.prompt_tokens)),
            " or ".join(f"{longest:,}" for longest in setup.longest),
            setup.device,
            str(setup.nodes),
        ]
        for setup in SETUPS.values()
    ]
    head = ["set-up", "mean response, tokens", "mean prompt, tokens", "longest response", "device", "nodes"]
    return table(head, lines)


def _priors() -> str:
    world = world_of(SETUPS["se-7b"], 0)
    drawn = {name for text in pd.read_csv(draws_file("se-7b"))["terms"] for name in json.loads(text)}
    found = {}
    for engine in CHOICES["engine"].values:
        for name, prior in priors_of(scenario_of(SETUPS["se-7b"], {**world, "engine": engine})).items():
            if name in drawn:
                same = found.get(name, prior) == prior
                found[name if same else f"{name}, {engine}"] = prior
    lines = [[name, _ranged(prior.median, prior.sigma), prior.source] for name, prior in found.items()]
    return table(["term", "median [95 %]", "source"], lines)


def _ranged(median: float, sigma: float) -> str:
    low, high = (median * exp(sign * _ENDS * sigma) for sign in (-1, 1))
    return f"{median:.3g} [{low:.2g}, {high:.2g}]" if median < 10 else f"{median:.3g} [{low:.0f}, {high:.0f}]"


if __name__ == "__main__":
    PAGE.write_text(page_text(), "utf-8")
