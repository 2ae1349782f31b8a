"""A recorder for hooks that a framework calls by name in processes of its own: its folder comes from the
environment."""

import os
from functools import cache
from typing import Final

from oppo_sim.errors import OppoError
from oppo_sim.traces.recorder import Recorder

FOLDER: Final = "OPPO_RECORD"
"""Environment variable: folder of the recorded run; on a disk they share where several machines record."""
REQUESTS: Final = "OPPO_RECORD_REQUESTS"
"""The same for requests of a vLLM server, so that a framework that starts one is not recorded twice."""
PER_STEP: Final = "OPPO_RECORD_ROLLOUTS_PER_STEP"
"""Environment variable: rollouts of a training step, where a hook is not told the step."""


def recorder_of_process(framework: str, variable: str = FOLDER) -> Recorder:
    """The recorder of this process, made at the first call. Raises OppoError where the environment names no
    folder, or a bad number."""
    return _recorder(framework, variable, os.environ.get(variable, ""), os.environ.get(PER_STEP, ""))


@cache
def _recorder(framework: str, variable: str, folder: str, per_step: str) -> Recorder:
    if not folder:
        raise OppoError(
            f"set {variable} to the folder of the recorded run, in the environment of every worker, or take"
            " the recorder out of the configuration"
        )
    if per_step and not (per_step.isdecimal() and int(per_step) > 0):
        raise OppoError(f"{PER_STEP}={per_step} is no number of rollouts: give prompts × samples of a step")
    return Recorder(folder, framework=framework, rollouts_per_step=int(per_step) if per_step else None)
