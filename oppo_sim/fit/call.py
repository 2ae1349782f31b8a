"""A fit from Python in one call, and into a folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oppo_sim.errors import OppoError
from oppo_sim.fit.estimate import FitResult, Fitted, fit_logs
from oppo_sim.fit.folder import write_fit
from oppo_sim.fit.gathers import GATHER
from oppo_sim.fit.offload import OFFLOAD
from oppo_sim.fit.posterior import DRAWS
from oppo_sim.fit.reading import StepLog
from oppo_sim.fit.record import fit_record
from oppo_sim.fit.sources import open_log
from oppo_sim.progress import OnProgress, listener, unheard
from oppo_sim.scenario.load import Overrides
from oppo_sim.scenario.schema import Scenario
from oppo_sim.simulation import loaded_scenario


def fit(
    logs: str | Path | StepLog | Sequence[str | Path | StepLog],
    scenarios: str | Path | Scenario | Sequence[str | Path | Scenario],
    *,
    fit_steps: int | None = None,
    judge: Sequence[tuple[str | Path | StepLog, str | Path | Scenario]] = (),
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
        logs: one log or several: paths, or what ``open_log`` gave.
        scenarios: one for all logs, or one a log.
        fit_steps: steps of each log to fit before its rest is judged; None: two thirds.
        judge: (log, scenario) of runs that are only predicted.
        draws: of the costs, for what stays unknown; ``seed``: of the draws.
        overrides: settings laid over every scenario that is given by name or path.
        folder: a folder to write, as ``oppo fit -o`` does; ``force`` replaces one. None: nothing is written.
        progress: told what is being done (``oppo_sim.Progress``). True: lines on standard error.

    Raises OppoError for logs and scenarios that cannot be of one run.
    """
    given = [logs] if isinstance(logs, str | Path | StepLog) else list(logs)
    named = [scenarios] if isinstance(scenarios, str | Path | Scenario) else list(scenarios)
    if len(named) not in (1, len(given)):
        raise OppoError(f"there are {len(given)} logs and {len(named)} scenarios: give one, or one a log")
    each = named * len(given) if len(named) == 1 else named
    pairs = [(_log(log), loaded_scenario(one, overrides)) for log, one in zip(given, each, strict=True)]
    ahead = [(_log(log), loaded_scenario(one, overrides)) for log, one in judge]
    result = fit_logs(
        pairs, ahead, fit_steps=fit_steps, draws=draws, seed=seed, progress=listener(progress) or unheard
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
    draws: int,
    seed: int,
    force: bool,
    figures: bool,
    progress: OnProgress,
) -> dict[str, Any]:
    """Fit and write; returns the record."""
    result = fit_logs(pairs, judged, fit_steps=fit_steps, draws=draws, seed=seed, progress=progress)
    record = fit_record(result)
    _write(result, folder, record, force, figures)
    return record


def observe_to_folder(
    scenario: Scenario,
    observed: Sequence[str],
    folder: Path,
    *,
    draws: int,
    seed: int,
    force: bool,
    figures: bool,
    progress: OnProgress,
) -> dict[str, Any]:
    """Weigh draws of the priors by what was observed, and write; returns the record."""
    from oppo_sim.fit.observe import observe, observe_record

    result = observe(scenario, observed, draws=draws, seed=seed, progress=progress)
    record = observe_record(result)
    comments = [
        "Costs drawn from the priors and kept where they agree with " + ", ".join(observed) + ".",
        "draws.csv holds what stays unknown; fit.json what was narrowed.",
    ]
    fitted = Fitted(scenario, result.draws)
    write_fit(folder, [fitted], record, comments, force=force, figures=figures)
    return record


def _write(result: FitResult, folder: Path, record: dict[str, Any], force: bool, figures: bool) -> None:
    comments = [
        f"Costs fitted to {', '.join(part.log.name for part in result.parts)}"
        f" ({sum(len(part.features) for part in result.parts)} steps).",
        "draws.csv holds what stays unknown of the terms; fit.json how well they predict.",
    ]
    if result.wait_s > 0:
        comments.append(
            f"gen_phase_s holds {result.wait_s:.3g} s a step by which waits of the last rollout for tools"
            " lengthen it (mean of the logs)."
        )
    if "tool_tokens" in result.posterior.terms:
        comments.append(
            "Response lengths of the logs hold the output of tools, which no engine decodes: the fit took"
            " that into account, a simulation of such lengths decodes them all."
        )
    if OFFLOAD in result.posterior.terms:
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


def _log(given: str | Path | StepLog) -> StepLog:
    return given if isinstance(given, StepLog) else open_log(given)
