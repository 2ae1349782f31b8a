"""The response lengths of a log beside those of its scenario's trace, which are simulated: how far apart they
are, and the log's as a trace (``--log-lengths``)."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri
from scipy.stats import rankdata

from oppo_sim.columns import (
    FINISH_REASON,
    LENGTH_MEAN,
    PROMPT_ID,
    PROMPT_LENGTH,
    RESPONSE_LENGTH,
    STEP,
    TOOL_SECONDS,
    TOOL_TOKENS,
    TURN_LENGTHS,
)
from oppo_sim.errors import OppoError
from oppo_sim.fit.log.rebuilt_lengths import rebuilt_lengths
from oppo_sim.fit.log.step_log import StepLog
from oppo_sim.fit.terms.features import length_figures
from oppo_sim.rewards import TraceRewards
from oppo_sim.scenario.build import build_trace
from oppo_sim.scenario.schema import Scenario
from oppo_sim.traces.sources import load_path

if TYPE_CHECKING:
    import pandas as pd

Ints = npt.NDArray[np.int64]

_ALIKE: Final = 1.25
"""Steps of a run, and draws of a trace, differ by as much."""


@dataclass(frozen=True)
class LogLengths:
    """A trace made of logs."""

    frame: "pd.DataFrame | None"
    """Its rows; None: ``run`` is the trace as it lies."""
    run: str
    """Folder of a run of this tool."""
    said: str
    """What it is, in words."""
    sampling: Literal["by_step", "resample"] = "by_step"
    """A step takes the lengths of a step of the log: in a run whose lengths drift, draws from all of them
    have other longest ones. ``resample``: what a step trained was not begun together."""
    takes_turns: bool = True
    """The scenario can run rollouts that call tools, which a static batch cannot."""

    def trace(self, file: str, folder: Path) -> dict[str, Any]:
        """The ``trace`` section of a scenario in ``folder``, whose rows are ``file`` there."""
        path = file if self.frame is not None else Path(os.path.relpath(self.run, folder)).as_posix()
        return {"path": path, "sampling": self.sampling}

    def with_tools(self, share: float) -> "LogLengths":
        """``share`` of each response that was not cut is the answer of a tool, which nobody decodes. It comes
        at once, since ``gen_phase_s`` has the waits, and after the first token, where all answers are one
        prefill, as the fit counts it."""
        if self.frame is None or not self.takes_turns:
            return self
        lengths = self.frame[RESPONSE_LENGTH].to_numpy()
        answers = np.where(self.frame[FINISH_REASON] == "stop", np.rint(share * lengths), 0).astype(np.int64)
        made = lengths - answers
        calls = (answers > 0) & (made > 1)
        made = np.where(calls, made, lengths)
        frame = self.frame.assign(**{RESPONSE_LENGTH: made})
        frame[TURN_LENGTHS] = [
            [1, each - 1] if call else [each] for each, call in zip(made.tolist(), calls, strict=True)
        ]
        frame[TOOL_SECONDS] = [[0.0] if call else [] for call in calls]
        frame[TOOL_TOKENS] = [
            [each] if call else [] for each, call in zip(answers.tolist(), calls, strict=True)
        ]
        return replace(self, frame=frame, said=f"{self.said}, {share:.0%} of their tokens answers of tools")


def lengths_of_logs(logs: Sequence[StepLog], scenario: Scenario, seed: int) -> LogLengths:
    """Lengths of the rollouts of ``logs``, runs of ``scenario``: those of a run of this tool as they are,
    others rebuilt from the figures of each step (``rebuilt_lengths``).

    Where lengths say nothing of prompts, with ``group_size`` above 1 they are dealt so that the samples of a
    prompt are as alike as those of the scenario's own trace. Raises OppoError where the scenario needs what
    no log has: tool calls, or rewards of rollouts.
    """
    if any(_of_a_trace(log) for log in logs):
        raise OppoError(
            "the rollouts of the log are known from a trace: give it to compare, sweep and tune as --trace,"
            " and leave --log-lengths out"
        )
    if len(logs) == 1 and logs[0].lengths is not None and _is_trace(logs[0].path):
        return LogLengths(None, logs[0].path, "the rollouts of the log")
    old = build_trace(scenario)
    if old.waits is not None:
        raise OppoError(
            "the rollouts of the scenario's trace call tools, which the lengths of a log do not show: leave"
            " --log-lengths out"
        )
    _refuse_rewards(scenario)
    alike = prompt_correlation(old.response_lengths, scenario.group_size)
    generator = np.random.default_rng([seed, scenario.group_size])
    default_prompt, cut = float(np.mean(old.prompt_lengths)), scenario.max_response_length
    prompts: list[Ints] = []
    responses: list[Ints] = []
    for log in logs:
        for row in log.frame.iloc[log.ramp :].to_dict("records"):
            step = int(row[STEP])
            if log.lengths is not None:
                lengths = np.asarray(log.lengths[step], dtype=np.int64)
                known = None if log.prompts is None else log.prompts.get(step)
                prompt = default_prompt if known is None else float(np.mean(known))
            else:
                figures, prompt = length_figures(row, scenario, default_prompt)
                lengths = rebuilt_lengths(figures, 1, generator)[0]
            responses.append(dealt(lengths, scenario.group_size, alike, generator))
            prompts.append(np.full(len(lengths), max(0, round(prompt)), dtype=np.int64))
    every = all(log.lengths is not None for log in logs)
    source = "of the rollouts" if every else "rebuilt from the figures"
    mixed = any(log.mixed for log in logs)
    said = f"lengths {source} of {len(responses)} steps"
    if mixed:
        said += ", in any order and without the first ones, since what a step trained was not begun together"
    else:
        said += _other_steps(len(responses), scenario)
    if scenario.group_size > 1:
        said += f", correlation {alike:.2f} of the samples of a prompt"
    takes_turns = scenario.rollout.batching != "static"
    frame = _frame(prompts, responses, scenario.group_size, cut)
    return LogLengths(frame, "", said, "resample" if mixed else "by_step", takes_turns)


def _other_steps(logged: int, scenario: Scenario) -> str:
    """Where a simulation is not as long as its logs, which have other lengths at their end."""
    if scenario.steps == logged:
        return ""
    what = (
        f"the first {scenario.steps} of them"
        if scenario.steps < logged
        else "its first ones again after them"
    )
    return f" ({what}, as its steps are {scenario.steps}: --steps {logged} simulates each once)"


def other_lengths(log: StepLog, scenario: Scenario) -> str | None:
    """A sentence with what to do; None: the mean lengths of log and trace are alike."""
    logged, simulated = _mean_logged(log), float(np.mean(build_trace(scenario).response_lengths))
    if not logged > 0 or max(logged / simulated, simulated / logged) < _ALIKE:
        return None
    trace = scenario.trace.name or scenario.trace.path or "synthetic"
    return (
        f"responses of the log have {logged:,.0f} tokens in the mean, those of the scenario's trace"
        f" ({trace}) {simulated:,.0f}, and the written scenario simulates its trace: "
    ) + (
        "give compare, sweep and tune the trace of --lengths as --trace"
        if _of_a_trace(log)
        else "with --log-lengths it simulates the log's (log_lengths=True in Python)"
    )


def _is_trace(path: str) -> bool:
    """A run's folder that keeps its rollouts as a trace: their prompts and calls too."""
    try:
        load_path(Path(path))
    except OppoError:
        return False
    return True


def _of_a_trace(log: StepLog) -> bool:
    """Its lengths came from another file; a run's folder, also a recorded one, has them itself."""
    return log.lengths is not None and log.framework != "oppo" and not _is_trace(log.path)


def _mean_logged(log: StepLog) -> float:
    if log.lengths is not None:
        return float(np.mean([each for rollouts in log.lengths.values() for each in rollouts]))
    return float(log.frame[LENGTH_MEAN].mean()) if LENGTH_MEAN in log.frame else 0.0


def _refuse_rewards(scenario: Scenario) -> None:
    if scenario.dynamic_sampling.enable and scenario.dynamic_sampling.pass_rate is None:
        raise OppoError(
            "groups are filtered by the rewards of the trace's rollouts, which no log has: set"
            " dynamic_sampling.pass_rate, or leave --log-lengths out"
        )
    if isinstance(scenario.rewards, TraceRewards):
        raise OppoError(
            "rewards.kind trace takes the rewards of the trace's rollouts, which no log has: set another, or"
            " leave --log-lengths out"
        )


def prompt_correlation(lengths: Sequence[int], group_size: int) -> float:
    """How alike the samples of a prompt are: the intraclass correlation of the normal scores of ``lengths``,
    ``group_size`` in turn of one prompt (one-way analysis of variance); at least 0."""
    groups = len(lengths) // group_size
    if group_size < 2 or groups < 2:
        return 0.0
    ranks = rankdata(lengths[: groups * group_size])
    scores = ndtri(ranks / (len(ranks) + 1)).reshape(groups, group_size)
    between = group_size * scores.mean(axis=1).var(ddof=1)
    within = scores.var(axis=1, ddof=1).mean()
    whole = between + (group_size - 1) * within
    return float(max(0.0, (between - within) / whole)) if whole > 0 else 0.0


def dealt(lengths: Ints, group_size: int, alike: float, generator: np.random.Generator) -> Ints:
    """The same lengths in an order in which ``group_size`` in turn are as ``alike``."""
    if group_size < 2:
        return lengths
    groups = -(-len(lengths) // group_size)
    common = np.repeat(generator.standard_normal(groups), group_size)[: len(lengths)]
    own = generator.standard_normal(len(lengths))
    ranks = np.argsort(np.argsort(np.sqrt(alike) * common + np.sqrt(1.0 - alike) * own))
    ordered: Ints = np.sort(lengths)[ranks]
    return ordered


def _frame(prompts: list[Ints], responses: list[Ints], group_size: int, cut: int) -> "pd.DataFrame":
    import pandas as pd

    counts = [len(each) for each in responses]
    lengths = np.concatenate(responses)
    columns: dict[str, Any] = {
        STEP: np.repeat(np.arange(len(counts)), counts),
        PROMPT_LENGTH: np.concatenate(prompts),
        RESPONSE_LENGTH: lengths,
        FINISH_REASON: np.where(lengths >= cut, "length", "stop"),
    }
    if group_size > 1:
        columns[PROMPT_ID] = [
            f"{step}-{place // group_size}" for step, count in enumerate(counts) for place in range(count)
        ]
    return pd.DataFrame(columns)
