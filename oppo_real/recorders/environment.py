"""A recorder for hooks that a framework calls by name in processes of its own: its folder comes from the
environment."""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final, TypeVar

from oppo_sim.errors import OppoError
from oppo_sim.traces.recorder import Recorder

FOLDER: Final = "OPPO_RECORD"
"""Environment variable: folder of the recorded run; on a disk they share where several machines record."""
REQUESTS: Final = "OPPO_RECORD_REQUESTS"
"""The same for requests of a vLLM server, so that a framework that starts one is not recorded twice."""
PER_STEP: Final = "OPPO_RECORD_ROLLOUTS_PER_STEP"
"""Environment variable: rollouts of a training step, where a hook is not told the step."""
FIRST_STEP: Final = "OPPO_RECORD_FIRST_STEP"
"""Environment variable: the step of the first of these rollouts, where it is not the framework's first."""


_T = TypeVar("_T")


def recorder_of_process(framework: str, variable: str = FOLDER, first_step: int = 0) -> Recorder:
    """The recorder of this process, made at the first call. ``first_step``: that of the framework. Raises
    OppoError where the environment names no folder, or a bad number."""
    told = [os.environ.get(name, "") for name in (variable, PER_STEP, FIRST_STEP)]
    return _recorder(framework, variable, first_step, *told)


def known(framework: str, name: str, get: Callable[[], _T]) -> _T | None:
    """A value that a framework gave its hook; None, with one warning a name, where it is odd: a hook must not
    end a training."""
    with unharmed(framework, name):
        return get()
    return None


@contextmanager
def unharmed(framework: str, name: str) -> Iterator[None]:
    """What fails in the block is left out of the recording, with one warning a name."""
    try:
        yield
    except Exception as error:
        if (framework, name) not in _WARNED:
            _WARNED.add((framework, name))
            reason = " ".join(str(error).split()) or type(error).__name__
            warnings.warn(
                f"the recorder of {framework} leaves out {name} where it is odd ({reason}); said once",
                stacklevel=3,
            )


_WARNED: Final[set[tuple[str, str]]] = set()


@cache
def _recorder(
    framework: str, variable: str, first_step: int, folder: str, per_step: str, first_told: str
) -> Recorder:
    if not folder:
        raise OppoError(
            f"set {variable} to the folder of the recorded run, in the environment of every worker, or take"
            " the recorder out of the configuration"
        )
    if per_step and not (per_step.isdecimal() and int(per_step) > 0):
        raise OppoError(f"{PER_STEP}={per_step} is no number of rollouts: give prompts × samples of a step")
    if first_told and not first_told.isdecimal():
        raise OppoError(f"{FIRST_STEP}={first_told} is no step: give the first recorded one, from 0")
    return Recorder(
        folder,
        framework=framework,
        rollouts_per_step=int(per_step) if per_step else None,
        first_step=int(first_told) if first_told else first_step,
    )
