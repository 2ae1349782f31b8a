"""Steps that a run prints a figure a line: as lists under headings (NeMo RL's console), or as a dictionary
(SkyRL's); in a table (AReaL's) or a panel (open-instruct's); and steps that only a progress bar counts
(TRL's)."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Final

_STEP: Final = re.compile(r"={5,} Step (\d{1,18})(?:/\d+)? ={5,}\s*$")
_HEADINGS: Final = (
    "Training Results",
    "Timing",
    "Performance Metrics",
    "Validation Results",
    "Validation Timing",
)
_HEADING: Final = re.compile(rf"^\W*({'|'.join(_HEADINGS)}):\s*$")
"""Other processes print in between; a line of theirs is no heading."""
_NUMBER: Final = r"([+-]?\d{1,15}(?:\.\d{1,15})?)"
_FIGURE: Final = re.compile(rf"•\s*([\w/ ]{{2,80}}?)\s*:\s*{_NUMBER}s?(?: \(\d+\.\d+%\))?\s*$")
_PLACES: Final = {"Timing": "timing/train", "Validation Timing": "timing/validation"}
"""Where figures under a heading go in the run's other logs (wandb, TensorBoard)."""
_GENERATED: Final = "train/mean_gen_tokens_per_sample"
_ALL: Final = "train/mean_total_tokens_per_sample"
_PROMPT: Final = "train/mean_prompt_length"
_NAMES: Final = {
    ("Training Results", "Mean Generation Length"): _GENERATED,
    ("Training Results", "Avg Reward"): "train/reward",
    ("Timing", "Total step time"): "timing/train/total_step_time",
    ("Validation Timing", "Total validation time"): "timing/validation/total_validation_time",
    ("Performance Metrics", "Mean Total Tokens per Sample"): _ALL,
}


class ConsoleLists:
    """Reads such lines one after another."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._heading = ""
        self._generated: float | None = None

    def read(self, line: str) -> tuple[int, dict[str, float]] | None:
        """The step and its figures, as the run's other logs name them; none are known of most lines. None:
        the line belongs to no list of a step, or lacks its end, so that its number may have lost digits."""
        if (begun := _STEP.search(line)) is not None:
            self._step, self._heading, self._generated = int(begun[1]), "", None
            return self._step, {}
        if self._step is None:
            return None
        if (titled := _HEADING.match(line)) is not None:
            self._heading = titled[1]
            return None
        found = _FIGURE.search(line)
        if found is None or not line.endswith(("\n", "\r")):
            return None
        name = _NAMES.get((self._heading, found[1]))
        if name is None and self._heading in _PLACES and " " not in found[1]:
            name = f"{_PLACES[self._heading]}/{found[1]}"
        if name is None:
            return self._step, {}
        figures = {name: float(found[2])}
        if name == _GENERATED:
            self._generated = figures[name]
        elif name == _ALL and self._generated is not None:
            figures[_PROMPT] = max(0.0, figures[name] - self._generated)
        return self._step, figures


_TITLE: Final = re.compile(r"\bstep (\d{1,18}):\s*$", re.IGNORECASE)
_ENTRY: Final = re.compile(r"(?:\([^()]*\) )?[{ ]\s*(['\"])[^'\"]+\1: .*[,}]\s*$")
"""Ray puts the process before it."""


class ConsoleDict:
    """Reads the lines of a dictionary that is printed under ``Step 3:``."""

    def __init__(self) -> None:
        self._step: int | None = None

    def step_of(self, line: str) -> int | None:
        """The step of a line that is one of its entries, None of any other."""
        if (titled := _TITLE.search(line)) is not None:
            self._step = int(titled[1])
            return None
        if self._step is None or not _ENTRY.match(line):
            return None
        step, ended = self._step, line.rstrip().endswith("}")
        self._step = None if ended else step
        return step


_DONE: Final = re.compile(r"\bTrain step (\d{1,18})/\d+ done\.\s*$")
_TABLE: Final = re.compile(r"\bStats \((\d{1,6})/\d{1,6}\):\s*$")
_CELLS: Final = re.compile(rf"│ *([\w./-]+) *│ *({_NUMBER[1:-1]}(?:e[+-]\d{{1,3}})?) *(?=│)")


class ConsoleTable:
    """Reads tables of names and numbers that follow ``Train step 3/580 done.``; the run's other logs count
    steps from 0. A table without its end, as where a run was stopped, is none."""

    def __init__(self) -> None:
        self._done: int | None = None
        self._further = 0
        self._figures: dict[str, float] = {}

    def read(self, line: str) -> tuple[int, dict[str, float]] | None:
        """The step and its figures where the line is the end of a table, None of any other."""
        if (done := _DONE.search(line)) is not None:
            self._done, self._further, self._figures = int(done[1]), 0, {}
        elif (table := _TABLE.search(line)) is not None:
            self._further, self._figures = int(table[1]) - 1, {}
        elif self._done is not None and "│" in line:
            self._figures |= _finite((found[1], found[2]) for found in _CELLS.finditer(line))
        elif self._done is not None and "╘" in line and self._figures:
            figures, self._figures = self._figures, {}
            return max(0, self._done - 1) + self._further, figures
        return None


_PANEL: Final = re.compile(r"╭─+ Metrics ─+╮\s*$")
_PANEL_ROW: Final = re.compile(r"│  (\S+| ) +(.*?) *│\s*$")
_PANEL_VALUE: Final = re.compile(rf"([\w./-]+): ({_NUMBER[1:-1]}(?:e[+-]\d{{1,3}})?)")
_PANEL_STEP: Final = "training_step"


class ConsolePanel:
    """Reads panels of categories, each with its names and numbers in as many lines as they take. One that
    names no step of training, as of an evaluation, or lacks its end, is none."""

    def __init__(self) -> None:
        self._rows: list[list[str]] | None = None

    def read(self, line: str) -> tuple[int, dict[str, float]] | None:
        """The step and its figures where the line is the end of a panel, None of any other."""
        if _PANEL.search(line) is not None:
            self._rows = []
        elif self._rows is not None and (row := _PANEL_ROW.search(line)) is not None:
            if row[1] != " ":
                self._rows.append([row[1], row[2]])
            elif self._rows:
                self._rows[-1][1] += f" {row[2]}"
        elif self._rows is not None and "╰" in line:
            rows, self._rows = self._rows, None
            figures = _finite(
                (name if category == "other" else f"{category}/{name}", number)
                for category, values in rows
                for name, number in _PANEL_VALUE.findall(values)
            )
            step = figures.pop(_PANEL_STEP, -1.0)
            if step >= 0 and step.is_integer():
                return int(step), figures
        return None


def _finite(pairs: Iterable[tuple[str, str]]) -> dict[str, float]:
    """Names and numbers; none of those that are too large for one."""
    return {name: value for name, text in pairs if math.isfinite(value := float(text))}


_BAR: Final = re.compile(r"\s*\d{1,3}%\|[^|]*\|\s*(\d{1,15})/(\d{1,15}) \[")
"""A trainer's bar says nothing before the share, those of other loops say what they do."""
_EPOCH: Final = 0.01
"""Older versions print no more of it."""
Printed = tuple[int | None, dict[str, float], int | None]
"""A line's step, its figures, and what the trainer's bar said last. Without figures, the last of all: the
steps of the run where the bar came to its end."""


def moved_to(line: str) -> tuple[int, int] | None:
    """The step of a trainer's bar, and the last one; None if the line is none."""
    found = _BAR.match(line)
    return None if found is None else (int(found[1]), int(found[2]))


def with_steps_of_bar(printed: Iterable[Printed]) -> Iterator[tuple[int | None, dict[str, float]]]:
    """Lines that name no step with the bar's, as transformers' trainer moves it and then prints its figures.
    Where it was not moved before every line, as where output is written in blocks or after the other stream,
    they are counted if they divide the steps of a run that came to its end, as their epochs do."""
    lines = iter(printed)
    for step, figures, at in lines:
        if step is None and _of_training(figures):
            every: list[Printed] = [(step, figures, at), *lines]
            held = [each for each in every if each[1]]
            of_all = None if every[-1][1] else every[-1][2]
            stepless = [each for each in held if each[0] is None and _of_training(each[1])]
            shown = [bar for _, _, bar in stepless]
            moved = all(two is not None and one is not None and one < two for one, two in pairwise(shown))
            apart = None if moved else _apart([each["epoch"] for _, each, _ in stepless], of_all)
            number = 0
            for named, each, bar in held:
                if named is None and _of_training(each):
                    number += 1
                    yield bar if moved else apart and number * apart, each
                else:
                    yield named, each
            return
        if figures:
            yield step, figures


def _apart(epochs: list[float], steps: int | None) -> int | None:
    """How many of all ``steps`` lie between two lines of which only the epoch is known; None if they do not
    divide them evenly."""
    if not steps or steps % len(epochs):
        return None
    each = epochs[-1] / len(epochs)
    even = all(abs(epoch - number * each) <= each / 2 + _EPOCH for number, epoch in enumerate(epochs, 1))
    return steps // len(epochs) if even else None


def _of_training(figures: Mapping[str, float]) -> bool:
    return "epoch" in figures and not any(name.startswith("eval_") for name in figures)
