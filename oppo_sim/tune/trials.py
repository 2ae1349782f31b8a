"""Trials: how they are kept (a line each in Optuna's journal file) and ranked."""

import json
import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil, floor, inf
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from oppo_sim.errors import OppoError
from oppo_sim.files import whole_file, write_errors
from oppo_sim.plain_json import json_bytes
from oppo_sim.runs.journal import lock, whole_lines
from oppo_sim.tune.request import Robust
from oppo_sim.tune.space import Setting

JOURNAL = "trials.journal"
RUNS = "runs.jsonl"
REQUEST = "request.json"
LOCK = "in-use.lock"
STUDY = "oppo tune"
QUANTILE = 0.9

Status = Literal["ok", "infeasible", "stopped", "failed"]


@dataclass(frozen=True)
class Trial:
    """A setting that was tried on the search's seeds."""

    number: int
    setting: Setting
    status: Status
    """``stopped``: clearly worse, or beyond a bound, after some of the seeds; ``failed``: it cannot run."""
    costs: tuple[tuple[float, ...], ...] = ()
    """World by world, seed by seed: seconds per unit of the objective; fewer seeds where it was stopped."""
    measures: Mapping[str, float] = field(default_factory=dict)
    """What bounds are measured on, the worst of all worlds."""
    violations: Mapping[str, float] = field(default_factory=dict)
    """Bound → share by which it is broken, at most 0 where it is kept."""
    error: str | None = None

    def to_plain(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "number": self.number,
            "policy": self.setting.policy,
            "values": [list(pair) for pair in self.setting.values],
            "status": self.status,
            "costs": [list(world) for world in self.costs],
            "measures": dict(self.measures),
            "violations": dict(self.violations),
            "error": self.error,
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Trial":
        """The reverse of ``to_plain``."""
        return cls(
            plain["number"],
            Setting(plain["policy"], tuple((name, value) for name, value in plain["values"])),
            plain["status"],
            tuple(tuple(world) for world in plain["costs"]),
            plain["measures"],
            plain["violations"],
            plain["error"],
        )


def mean_cost(trial: Trial, world: int) -> float:
    """Seconds per unit of the objective in a world, over the seeds that the trial has."""
    return fmean(trial.costs[world])


def best_in(trials: Sequence[Trial], world: int) -> Trial | None:
    """The best trial of a world that keeps all bounds; the earlier of two equal ones. None: no trial does."""
    kept = [trial for trial in trials if trial.status == "ok"]
    return min(kept, key=lambda trial: (mean_cost(trial, world), trial.number), default=None)


def least_costs(trials: Sequence[Trial], worlds: int) -> list[float]:
    """The least cost in each world, of trials that keep all bounds, else of any; inf where nothing ran."""
    found = []
    for world in range(worlds):
        best = best_in(trials, world)
        ran = [mean_cost(trial, world) for trial in trials if trial.costs]
        found.append(mean_cost(best, world) if best is not None else min(ran, default=inf))
    return found


def regrets(trial: Trial, least: Sequence[float]) -> list[float]:
    """World by world, a share: 0.02 is 2 % slower than the best known there."""
    return [mean_cost(trial, world) / cost - 1.0 for world, cost in enumerate(least)]


def together(values: Sequence[float], how: Robust) -> float:
    """Regrets of all worlds as one number."""
    if how == "mean":
        return fmean(values)
    if how == "worst":
        return max(values)
    ordered = sorted(values)
    place = QUANTILE * (len(ordered) - 1)
    below, above = ordered[floor(place)], ordered[ceil(place)]
    return below + (above - below) * (place - floor(place))


def ranked(trials: Sequence[Trial], worlds: int, how: Robust) -> list[Trial]:
    """Trials that keep all bounds, the best first."""
    least = least_costs(trials, worlds)
    kept = [trial for trial in trials if trial.status == "ok"]
    return sorted(kept, key=lambda trial: (together(regrets(trial, least), how), trial.number))


def require_optuna() -> Any:
    """The module, quiet. Raises OppoError naming the extra where it is not installed."""
    try:
        import optuna
    except ImportError:
        raise OppoError(
            "oppo tune needs Optuna, which is not installed: pip install 'oppo-toolkit[tune]'"
        ) from None
    if not hasattr(optuna.trial.FrozenTrial, "set_constraint"):
        raise OppoError(
            f"oppo tune needs Optuna 5 or later, and {optuna.__version__} is installed: pip install -U"
            " 'oppo-toolkit[tune]'"
        )
    optuna.logging.set_verbosity(logging.ERROR)
    return optuna


class TrialStore:
    """The trials of one search, in order; written one by one."""

    def __init__(self, path: Path) -> None:
        """Open or begin the journal; a killed process's half line is cut off. Raises OppoError."""
        optuna = require_optuna()
        self._path = path
        with write_errors(path):
            with path.open("a+b") as file:
                deque(whole_lines(file), maxlen=0)  # half a line that a killed process left is cut off
            backend = optuna.storages.journal.JournalFileBackend(str(path), lock_obj=_HeldLock())
        try:
            storage = optuna.storages.JournalStorage(backend)
            self._study = optuna.create_study(storage=storage, study_name=STUDY, load_if_exists=True)
            self.trials = [
                Trial.from_plain(json.loads(each.user_attrs["trial"]))
                for each in self._study.get_trials(deepcopy=False)
            ]
        except (ValueError, KeyError, TypeError, AssertionError) as error:
            raise OppoError(
                f"{path} is damaged ({error}): delete the folder, or begin anew with --force"
            ) from None
        if [trial.number for trial in self.trials] != list(range(len(self.trials))):
            raise OppoError(
                f"{path} holds trials out of order: delete the folder, or begin anew with --force"
            )

    def add(self, trial: Trial, frozen: Any) -> None:
        """Keep a trial; ``frozen`` is the same as Optuna has it. Raises OppoError when the disk refuses."""
        frozen.set_user_attr("trial", json.dumps(trial.to_plain()))
        with write_errors(self._path):
            self._study.add_trial(frozen)
        self.trials.append(trial)


class _HeldLock:
    """The whole folder is locked (``locked``), so single writes need no lock of their own, which a killed
    process would leave behind."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        """Nothing to give back."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for as long as this process lives. Raises OppoError while another one holds it."""
    with write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("ab")
    with file:
        lock(file, f"another process is tuning in {folder}: wait for it, or choose another folder with -o")
        yield


def claim(folder: Path, identity: Mapping[str, Any], *, force: bool, written: tuple[str, ...]) -> None:
    """Make ``folder`` the place of the search ``identity``, or see that it is that already.

    ``force`` deletes the files of another search (those named in ``written`` and journals) and no others.
    Raises OppoError where the folder holds something else.
    """
    path = folder / REQUEST
    present = sorted(entry.name for entry in folder.iterdir() if entry.name != LOCK)
    if path.is_file():
        known = _read(path)
        if known == json.loads(json_bytes(identity)):
            return
        if not force:
            now = json.loads(json_bytes(identity))
            differs = [name for name in now if not isinstance(known, dict) or known.get(name) != now[name]]
            what = ", ".join(
                "the contents of its files, or this program" if name == "inputs" else name for name in differs
            )
            raise OppoError(
                f"{folder} holds another search (it differs in {what}): choose another folder with -o, or"
                " replace it with --force"
            )
        for name in (JOURNAL, RUNS, REQUEST, *written):
            (folder / name).unlink(missing_ok=True)
    elif present:
        raise OppoError(
            f"{folder} holds no search, but other files ({', '.join(present[:3])}): choose another folder"
            " with -o"
        )
    with whole_file(path) as file:
        file.write(json_bytes(identity))


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise OppoError(
            f"{path} is damaged ({error}): delete the folder, or choose another one with -o"
        ) from None
