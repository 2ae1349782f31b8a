"""The figures of a log a step, gathered from its files under the names that drawing uses."""

from collections.abc import Mapping, Sequence
from dataclasses import fields as fields_of
from pathlib import Path
from typing import Final

from oppo_sim.errors import OppoError
from oppo_sim.traces.importers.gathering import OUTSIDE
from oppo_sim.traces.importers.metric_files import read_metrics
from oppo_sim.traces.importers.options import MetricNames
from oppo_sim.traces.importers.reading import Reading

PREFIXES: Final = ("", "train/", "training/", "metrics/")


_MESSAGES: Final = "num_turns/mean"
"""verl's: of a rollout, prompt and all answers, 2 without tools."""
_TOOL_S: Final = "timing_s/agent_loop/tool_calls/mean"
"""Of a rollout, all its waits together."""


def chosen(figures: Mapping[str, float], names: MetricNames, given: Mapping[str, str]) -> dict[str, float]:
    """Figures by ``METRIC_FIELDS``: those the user named, else the framework's first name that is there."""
    result = {}
    for each in fields_of(names):
        target = each.name
        value = (
            first_figure(figures, (given[target],))
            if target in given
            else first_figure(figures, getattr(names, target), PREFIXES)
        )
        if value is not None:
            result[target] = value
    return result


def first_figure(
    figures: Mapping[str, float], names: Sequence[str], prefixes: Sequence[str] = ("",)
) -> float | None:
    """The first of ``names`` that is there, behind any of ``prefixes``; None if none is."""
    for name in names:
        for prefix in prefixes:
            # TensorBoard writes the / of a name as _ in the names of exported files.
            for each in (prefix + name, (prefix + name).replace("/", "_")):
                if each in figures:
                    return figures[each]
    return None


def figures_by_step(
    path: Path, names: MetricNames, reading: Reading, steps: dict[int, dict[str, float]]
) -> int:
    """Add the figures of one file to ``steps``; returns how many lines had any. Figures of a step from
    several files come together; of a step that was logged twice the later ones count, as after a resumed run.
    """
    given = reading.options.fields
    lines = 0
    waits: list[tuple[float, float]] = []
    for logged, figures in read_metrics(path, reading):
        if figures.get(_MESSAGES, 0.0) > 2.0:  # said above
            waits.append((figures[_MESSAGES] / 2 - 1, figures.get(_TOOL_S, 0.0)))
        if logged is not None and not any(name.startswith("eval_") for name in figures):
            reading.logged_steps.add(logged)
        found = chosen(figures, names, given)
        if not found:
            continue
        for target in found:
            if target in given:
                reading.used_fields.add(target)
        if logged is None:
            if "mean" not in found:
                continue
            reading.notes["the log has no steps, so its lines were counted from 0"] = 1
            reading.counted_lines = True
        known = steps.setdefault(lines if logged is None else logged, {})
        lines += 1
        if "mean" in found and "mean" in known:
            reading.notes["steps logged twice: the later figures count"] += 1
        known.update(found)
    if waits:
        reading.notes[_of_tools(waits)] = 1
    return lines


def _of_tools(waits: Sequence[tuple[float, float]]) -> str:
    """What is lost of a log whose rollouts wait for tools; ``waits``: calls and seconds of each step's."""
    calls, seconds = (sum(column) / len(waits) for column in zip(*waits, strict=True))
    each = f" --tool-seconds {seconds / calls:.3g}" if seconds > 0 else " --tool-seconds S"
    return (
        f"rollouts wait for tools (about {calls:.3g} calls, {seconds:.3g} s in all), and a drawn one does"
        " not: it is one response, in which the answers of tools count as generated; 'oppo trace synth --like"
        f" THIS --tool-calls {calls:.3g}{each}' makes one of such turns, recording the run has them all"
    )


def usable_steps(
    steps: Mapping[int, dict[str, float]], reading: Reading, where: str
) -> dict[int, dict[str, float]]:
    """Steps within --steps that have a mean. Raises OppoError if there are none."""
    kept = {}
    chosen_steps = reading.options.steps
    for step, figures in steps.items():
        if chosen_steps is not None and not chosen_steps[0] <= step <= chosen_steps[1]:
            reading.left_out[OUTSIDE] += 1
        elif "mean" not in figures:
            reading.left_out["step without a mean length"] += 1
        else:
            kept[step] = figures
    if not kept:
        raise OppoError(
            f"{where} has no step with a mean response length: name the metric with --field mean=NAME, or"
            " change --steps"
        )
    return kept
