"""Costs from logs, or from a few known numbers, in one call from Python, and into a folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oppo_sim.errors import OppoError, check_count
from oppo_sim.fit.estimate import FEWEST, FitResult, Fitted, fit_logs
from oppo_sim.fit.folder import write_fit
from oppo_sim.fit.inference.posterior import DRAWS
from oppo_sim.fit.log.step_log import StepLog
from oppo_sim.fit.observe import Observed, observe_record, observed_costs
from oppo_sim.fit.record import fit_record
from oppo_sim.fit.sources import open_log
from oppo_sim.fit.terms.gathers import GATHER
from oppo_sim.fit.terms.priors import TOOL_TOKENS
from oppo_sim.progress import OnProgress, listener, unheard
from oppo_sim.scenario.overrides import Overrides
from oppo_sim.scenario.schema import Scenario
from oppo_sim.simulation import loaded_scenario


def fit(
    logs: str | Path | StepLog | Sequence[str | Path | StepLog],
    scenario: str | Path | Scenario | Sequence[str | Path | Scenario],
    *,
    framework: str = "auto",
    fields: Mapping[str, str] | None = None,
    unit: str = "auto",
    lengths: Any = None,
    fit_steps: int | None = None,
    from_step: int | None = None,
    leave_out: str | Sequence[str] = (),
    judge: Sequence[tuple[str | Path | StepLog, str | Path | Scenario]] = (),
    log_lengths: bool = False,
    draws: int = DRAWS,
    seed: int = 0,
    overrides: Overrides = (),
    folder: str | Path | None = None,
    force: bool = False,
    figures: bool = True,
    progress: OnProgress | bool | None = None,
) -> FitResult:
    """Fit the costs of scenarios to logs of runs of one cluster.

    Args:
        logs: one log or several: paths, or what ``read_step_log`` gave.
        scenario: one for all logs, or a list of one a log.
        framework: of logs that are given by path, with ``fields`` (our column → the log's name of it) and
            ``unit`` (``s``, ``ms`` or ``auto``), as of ``read_step_log``.
        lengths: a trace with a ``step`` column that has the rollouts' lengths (tokens), or a list of one a
            log: a path, a frame or what ``open_trace`` gave.
        from_step: first step of the logs to use, where something changed at it.
        leave_out: metrics whose seconds are not fitted, such as ``timing_s/gen`` of a run with partial
            rollouts. Their terms stay as the scenario states them, else at their priors.
        fit_steps: steps of each log to fit before its rest is judged; None: two thirds.
        judge: (log, scenario) of runs that are only predicted.
        log_lengths: the written scenario simulates the lengths of its logs in place of its trace.
        draws: of the costs, for what stays unknown; ``seed``: of the draws.
        overrides: settings laid over every scenario that is given by name or path.
        folder: a folder to write, as ``oppo fit -o`` does; ``force`` replaces one. None: nothing is written.
        progress: called with what is being done (``oppo_sim.Progress``). True: lines on standard error.

    Without a log, from a few known numbers: ``oppo_sim.observe``. Raises OppoError for logs and scenarios
    that cannot be of one run.
    """
    _check_draws(draws, seed)
    if fit_steps is not None:
        check_count("fit_steps", fit_steps, FEWEST, 1_000_000)
    given = [logs] if isinstance(logs, str | Path | StepLog) else list(logs)
    named = [scenario] if isinstance(scenario, str | Path | Scenario) else list(scenario)
    if len(named) not in (1, len(given)):
        raise OppoError(f"there are {len(given)} logs and {len(named)} scenarios: give one, or one a log")
    each = named * len(given) if len(named) == 1 else named
    traces = list(lengths) if isinstance(lengths, list | tuple) else [lengths]
    traces = [None] * len(given) if lengths is None else traces
    if len(traces) != len(given):
        raise OppoError(f"there are {len(given)} logs and {len(traces)} lengths: give one a log")
    reading: dict[str, Any] = {"framework": framework, "fields": fields, "unit": unit}
    if all(isinstance(log, StepLog) for log in (*given, *(log for log, _ in judge))) and (
        fields or framework != "auto" or unit != "auto"
    ):
        raise OppoError("framework, fields and unit are of logs by path: give them to read_step_log")
    pairs = [
        (open_log(log, **reading, lengths=trace, from_step=from_step), loaded_scenario(one, overrides))
        for log, one, trace in zip(given, each, traces, strict=True)
    ]
    ahead = [(open_log(log, **reading), loaded_scenario(one, overrides)) for log, one in judge]
    result = fit_logs(
        pairs,
        ahead,
        fit_steps=fit_steps,
        leave_out=[leave_out] if isinstance(leave_out, str) else leave_out,
        draws=draws,
        seed=seed,
        log_lengths=log_lengths,
        progress=listener(progress) or unheard,
    )
    if folder is not None:
        _write(result, Path(folder), fit_record(result), force, figures)
    return result


def fit_to_folder(
    pairs: Sequence[tuple[StepLog, Scenario]],
    judged: Sequence[tuple[StepLog, Scenario]],
    folder: Path,
    *,
    fit_steps: int | None,
    leave_out: Sequence[str],
    draws: int,
    seed: int,
    log_lengths: bool,
    force: bool,
    figures: bool,
    progress: OnProgress,
) -> dict[str, Any]:
    """Fit and write; returns the record."""
    result = fit_logs(
        pairs, judged, fit_steps=fit_steps, leave_out=leave_out, draws=draws, seed=seed,
        log_lengths=log_lengths, progress=progress,
    )  # fmt: skip
    record = fit_record(result)
    _write(result, folder, record, force, figures)
    return record


def observe(
    scenario: str | Path | Scenario,
    observed: str | Sequence[str] | Mapping[str, float | tuple[float, float]],
    *,
    draws: int = DRAWS,
    seed: int = 0,
    overrides: Overrides = (),
    folder: str | Path | None = None,
    force: bool = False,
    figures: bool = True,
    progress: OnProgress | bool | None = None,
) -> Observed:
    """Costs from a few known numbers of the baseline instead of a log, as ``oppo fit --observe``.

    Args:
        scenario: of the run that the numbers are of.
        observed: quantity → number (seconds, or a share from 0 to 1) or (low, high): ``{"timing_s/step":
            171, "utilization/inference": (0.47, 0.54)}``; or texts as the command takes them, one or a list.
        draws: of the costs that agree; ``seed``: of the draws.
        overrides: settings laid over the scenario.
        folder: a folder to write, as ``oppo fit -o`` does; ``force`` replaces one. None: nothing is written.
        progress: called with what is being done (``oppo_sim.Progress``). True: lines on standard error.

    Raises OppoError for an unknown quantity, a number that cannot be, and where no costs agree.
    """
    _check_draws(draws, seed)
    texts = [observed] if isinstance(observed, str) else list(observed)
    if isinstance(observed, Mapping):
        texts = [_observation(name, value) for name, value in observed.items()]
    if not texts:
        raise OppoError('observed holds no number: give one, such as {"timing_s/step": 171}')
    loaded = loaded_scenario(scenario, overrides)
    result = observed_costs(loaded, texts, draws=draws, seed=seed, progress=listener(progress) or unheard)
    if folder is not None:
        comments = [
            "Costs drawn from the priors and kept where they agree with " + ", ".join(texts) + ".",
            "draws.csv holds what stays unknown; fit.json what was narrowed.",
        ]
        fitted = Fitted(loaded, result.draws)
        write_fit(Path(folder), [fitted], observe_record(result), comments, force=force, figures=figures)
    return result


def _check_draws(draws: int, seed: int) -> None:
    """Few draws are a caller's own, who may have many scenarios. Raises OppoError."""
    check_count("draws", draws, 1, 10_000)
    check_count("seed", seed, 0, 2**63 - 1)


def _observation(name: str, value: float | tuple[float, float]) -> str:
    if isinstance(value, tuple | list):
        return f"{name}=" + "..".join(str(end) for end in value)
    return f"{name}={value}"


def _write(result: FitResult, folder: Path, record: dict[str, Any], force: bool, figures: bool) -> None:
    comments = [
        f"Costs fitted to {', '.join(part.log.name for part in result.parts)}"
        f" ({sum(len(part.features) for part in result.parts)} steps).",
        "draws.csv holds what stays unknown of the terms; fit.json how well they predict.",
    ]
    if TOOL_TOKENS in result.posterior.terms and all(each.lengths is None for each in result.fitted):
        comments.append(
            "Response lengths of the logs hold the output of tools, which no engine decodes: the fit took"
            " that into account, a simulation of such lengths decodes them all."
        )
    if any(part.features.offload for part in result.parts):
        comments.append(
            "Offload: offload_bytes_per_s is the host link's rate; what it takes beyond that is in the"
            " seconds of the stages (old_log_prob_s, update_actor_s and their like)."
        )
    if GATHER in result.posterior.terms:
        comments.append(
            "Gathers of weights have the link's rate as before; what another rate takes is in the factors and"
            " seconds of the stages, as near as these can be over the lengths of the logs."
        )
    if result.posterior.first:
        comments.append("first_step_s holds what every stage of a first step took longer.")
    write_fit(folder, result.fitted, record, comments, force=force, figures=figures)
