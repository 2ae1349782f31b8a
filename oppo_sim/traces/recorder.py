"""Writes down a training run while it goes on: one line a rollout and a stage, in a journal that outlives a
crash; ``close`` makes a recorded run of it.

    recorder = Recorder("runs/recorded", framework="my loop")
    for step in range(steps):
        recorder.start_step(step)
        with recorder.timed("gen"):
            ...
        recorder.rollout_finished(812, prompt_length=95, finish_reason="stop", reward=1.0)
    recorder.close()

The journal is the folder ``runs/recorded.journal``; every process that records has a file of its own there,
so workers record into one run without knowing of one another. Lines are whole: what reads them leaves out a
last one that was cut off.
"""

import json
import math
import os
import socket
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

from oppo_sim.columns import RECORDED_REASONS, STAGES
from oppo_sim.errors import OppoError
from oppo_sim.files import disk_error, write_errors
from oppo_sim.traces.journal_format import FORMAT, journal_of

TIMED: Final = ("step", "testing", "save_checkpoint")
"""What may be timed beside the stages: the whole step, and what lies inside it."""


class Recorder:
    """Records into ``folder``. Times are Unix seconds, so that those of several machines can be compared.

    Args:
        folder: of the recorded run; it must not exist yet. A journal of it that exists is gone on with.
        framework: what trains.
        about: what else is to be kept in the manifest, plain JSON data.
        rollouts_per_step: for who does not know the step of a rollout: of those recorded without one, so many
            make a step, in the order in which they finished, in all processes together.
        first_step: the number of the first such step, as the framework counts them.

    A disk that fails while the run goes on ends the recording with one warning, not the training. Raises
    OppoError where nothing can be written from the start.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        framework: str = "",
        about: Mapping[str, Any] | None = None,
        rollouts_per_step: int | None = None,
        first_step: int = 0,
    ) -> None:
        self.folder = Path(folder)
        if os.path.lexists(self.folder):
            raise OppoError(
                f"{self.folder} exists: a recorded run is never overwritten, choose another folder"
            )
        if rollouts_per_step is not None and rollouts_per_step < 1:
            raise OppoError(f"rollouts_per_step is {rollouts_per_step}: a step has one rollout at least")
        first_step = _step(first_step)
        self.step: int | None = None
        """The step that what is recorded belongs to, where no other is named."""
        head = {
            "format": FORMAT,
            "framework": framework,
            "about": dict(about or {}),
            "rollouts_per_step": rollouts_per_step,
            "first_step": first_step,
            "at": time.time(),
        }
        try:
            line = json.dumps(head, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise OppoError(f"'about' of a recorder is not plain JSON data ({error})") from None
        journal = journal_of(self.folder)
        name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}.jsonl"
        with write_errors(journal):
            journal.mkdir(parents=True, exist_ok=True)
            self._file: int | None = os.open(journal / name, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
            os.write(self._file, line.encode() + b"\n")
        self._path = journal / name

    def start_step(self, step: int) -> None:
        """What is recorded from now on belongs to ``step``. Of a step that is started again, as after a
        restart, and of those behind it, what was recorded before is left out. Raises OppoError for what is no
        step."""
        self.step = _step(step)
        self._write({"start": self.step, "at": time.time()})

    def rollout_finished(
        self,
        response_length: int,
        *,
        step: int | None = None,
        prompt_length: int | None = None,
        prompt_id: str | int | None = None,
        sample_id: str | int | None = None,
        finish_reason: str | None = None,
        reward: float | None = None,
        started_at: float | None = None,
        finished_at: float | None = None,
        head_version: int | None = None,
        tail_version: int | None = None,
        turn_response_lengths: Sequence[int] | None = None,
        tool_seconds: Sequence[float] | None = None,
        tool_tokens: Sequence[int] | None = None,
    ) -> None:
        """A response is complete.

        Args:
            response_length: tokens that the actor decoded; ``prompt_length``: tokens.
            finish_reason: ``stop``, ``length`` or ``abort``; None: unknown.
            started_at: Unix seconds at which it was admitted; ``finished_at``: of its last token.
            head_version: updates behind its first token's weights; ``tail_version``: its last one's.
            turn_response_lengths, tool_seconds, tool_tokens: of a rollout that waited for tools, all three:
                tokens of each turn, which add up; seconds and answer's tokens after each turn but the last.

        Raises OppoError for numbers that no rollout has.
        """
        at_step = self.step if step is None else _step(step)
        response_length = _whole("response_length", response_length, "tokens")
        prompt_length = None if prompt_length is None else _whole("prompt_length", prompt_length, "tokens")
        head_version = None if head_version is None else _whole("head_version", head_version, "updates")
        tail_version = None if tail_version is None else _whole("tail_version", tail_version, "updates")
        started_at = None if started_at is None else _instant("started_at", started_at)
        finished_at = None if finished_at is None else _instant("finished_at", finished_at)
        if finish_reason is not None and finish_reason not in RECORDED_REASONS:
            raise OppoError(
                f"finish_reason of a recorded rollout is {finish_reason!r}: give one of"
                f" {', '.join(RECORDED_REASONS)}, or leave it out"
            )
        if reward is not None:
            known_reward = _float(reward)
            if known_reward is None:
                raise OppoError(f"reward of a recorded rollout is {reward!r}: give a number, or leave it out")
            reward = known_reward if math.isfinite(known_reward) else None
        if started_at is not None and finished_at is not None and finished_at < started_at:
            raise OppoError(
                f"a recorded rollout finished {started_at - finished_at:.3g} s before it started: give both"
                " in Unix seconds"
            )
        turns = (turn_response_lengths, tool_seconds, tool_tokens)
        if any(each is not None for each in turns):
            turn_response_lengths = _plain("turn_response_lengths", turn_response_lengths, int)
            tool_seconds = _plain("tool_seconds", tool_seconds, float)
            tool_tokens = _plain("tool_tokens", tool_tokens, int)
            _check_turns(response_length, turn_response_lengths or (), tool_seconds or (), tool_tokens or ())
        known = {
            "response_length": response_length,
            "prompt_length": prompt_length,
            "prompt_id": None if prompt_id is None else str(prompt_id),
            "sample_id": None if sample_id is None else str(sample_id),
            "finish_reason": finish_reason,
            "reward": reward,
            "started_at": started_at,
            "finished_at": finished_at,
            "head_version": head_version,
            "tail_version": tail_version,
            "turn_response_lengths": turn_response_lengths,
            "tool_seconds": tool_seconds,
            "tool_tokens": tool_tokens,
        }
        told = {name: value for name, value in known.items() if value is not None}
        self._write({"rollout": told, "step": at_step, "at": time.time()})

    def stage(self, name: str, seconds: float, *, step: int | None = None) -> None:
        """Seconds of a stage, of stages that were timed together (``old_log_prob+ref``), of the whole
        ``step``, or of ``testing`` and ``save_checkpoint`` inside it. Several of one step add up.

        Raises OppoError for an unknown stage, seconds that cannot be, or where no step was started.
        """
        parts = name.split("+")
        if name not in TIMED and not set(parts) <= set(STAGES[:-1]):
            raise OppoError(
                f"there is no stage '{name}': give one of {', '.join((*STAGES[:-1], *TIMED))}, or stages that"
                " were timed together, as old_log_prob+ref"
            )
        taken = _float(seconds)
        if taken is None or not (math.isfinite(taken) and taken >= 0):
            raise OppoError(f"{name} took {seconds!r} seconds: give a number from 0")
        at_step = self.step if step is None else _step(step)
        if at_step is None:
            raise OppoError(f"{name} belongs to no step: call start_step first, or give step=")
        self._write({"stage": name, "step": at_step, "s": taken, "at": time.time()})

    @contextmanager
    def timed(self, name: str, *, step: int | None = None) -> Iterator[None]:
        """The block is (a part of) a stage. Nothing is recorded where it raises."""
        began = time.perf_counter()
        yield
        self.stage(name, time.perf_counter() - began, step=step)

    def close(self) -> Path:
        """End the recording and make the recorded run of all that the journal holds, whoever wrote it; the
        journal goes. Returns the folder. Raises OppoError where nothing was recorded, or the disk refuses;
        the journal then stays."""
        from oppo_sim.traces.journal import seal

        self.stop()
        return seal(journal_of(self.folder), self.folder)

    def stop(self) -> None:
        """End the recording of this process; the journal stays, to be read as it is or sealed later."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.stop()

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._file is None:
            return
        try:
            os.write(self._file, (json.dumps(line, separators=(",", ":")) + "\n").encode())
        except OSError as error:
            self.stop()
            warnings.warn(f"recording has ended: {disk_error(self._path, error)}", stacklevel=3)


def _step(step: Any) -> int:
    whole = _int(step)
    if whole is None:
        raise OppoError(f"{step!r} is no step: number the steps from 0")
    return whole


def _whole(name: str, value: Any, unit: str) -> int:
    whole = _int(value)
    if whole is None:
        raise OppoError(f"{name} of a recorded rollout is {value!r}: give {unit}, a whole number from 0")
    return whole


def _instant(name: str, value: Any) -> float:
    number = _float(value)
    if number is None or not math.isfinite(number):
        raise OppoError(f"{name} of a recorded rollout is {value!r}: give Unix seconds, or leave it out")
    return number


def _int(value: Any) -> int | None:
    """Frameworks count in integers of NumPy and in tensors of one number, too."""
    try:
        whole = int(value)
        return None if isinstance(value, bool | str | bytes) or value != whole or whole < 0 else whole
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None


def _float(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None


def _plain(name: str, values: Sequence[Any] | None, kind: type) -> list[Any] | None:
    try:
        return None if values is None else [kind(value) for value in values]
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise OppoError(f"{name} of a recorded rollout is {values!r}: give a list of numbers") from None


def _check_turns(
    response_length: int, lengths: Sequence[int], seconds: Sequence[float], tokens: Sequence[int]
) -> None:
    waits = len(lengths) - 1
    if sum(lengths) != response_length or min(lengths, default=0) < 1:
        raise OppoError(
            f"turns of {list(lengths)} tokens are none of a response of {response_length}: give what the"
            " actor decoded in each turn"
        )
    if not len(seconds) == len(tokens) == waits:
        raise OppoError(
            f"a rollout of {waits + 1} turns has {len(seconds)} tool_seconds and {len(tokens)} tool_tokens:"
            " give one of each for each turn but the last"
        )
    if not all(math.isfinite(each) and each >= 0 for each in (*seconds, *tokens)):
        raise OppoError("tool_seconds or tool_tokens of a recorded rollout are below 0: give numbers from 0")
