"""Logs of one file name, as each run's folder has: called by as much of their paths as tells them apart."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from oppo_sim.fit.log.step_log import StepLog


def with_own_names(logs: Sequence[StepLog]) -> list[StepLog]:
    """The logs, no two of one name: ``a/train.log`` and ``b/train.log``; numbered where paths do not tell."""
    found = list(logs)
    for name, count in Counter(log.name for log in logs).items():
        if count > 1:
            places = [place for place, log in enumerate(logs) if log.name == name]
            for place, own in zip(places, _names([logs[place] for place in places]), strict=True):
                found[place] = replace(found[place], name=own)
    return found


def _names(alike: Sequence[StepLog]) -> list[str]:
    paths = [Path(log.path).parts for log in alike]
    for length in range(2, max(map(len, paths)) + 1):
        names = [str(Path(*parts[-length:])) for parts in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{log.name} ({number})" for number, log in enumerate(alike, start=1)]
