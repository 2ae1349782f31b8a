"""A fit as plain data, for ``fit.json``, the report and ``--json``."""

from dataclasses import asdict
from typing import Any, Final

import numpy as np

from oppo_sim.fit.checks.judging import Judgement, predict
from oppo_sim.fit.estimate import FitResult, HeldOut
from oppo_sim.fit.log_part import LogPart

FORMAT: Final = "oppo-fit/1"


def fit_record(result: FitResult) -> dict[str, Any]:
    """Everything but the draws: logs, errors, terms, odd steps, seconds by step."""
    return {
        "format": FORMAT,
        "from": "logs",
        "logs": [_log(part) for part in result.parts],
        "fitted_terms": result.fitted_terms,
        "held_out": [_held(each) for each in result.held_out],
        "judged": [_held(each) for each in result.judged],
        "written": "fitted to all steps of all logs",
        "point": result.point.changed(),
        "not_fitted": list(dict.fromkeys(each for part in result.parts for each in part.log.not_fitted)),
        "drawn_from_priors": list(dict.fromkeys(each for one in result.fitted for each in one.believed)),
        "draws": len(result.draws),
        "terms": [asdict(each) for each in result.estimates],
        "odd_steps": [asdict(odd) for odd in result.odd],
        "drift": [trend._asdict() for trend in result.trends],
        "tool_wait_s": result.wait_s,
        "left_out": result.left_out,
        "notes": list(result.notes),
        "steps": _steps(result),
    }


def _log(part: LogPart) -> dict[str, Any]:
    log = part.log
    return {
        "name": log.name,
        "framework": log.framework,
        "steps": len(part.features),
        "scenario": part.scenario.name,
        "scenario_hash": part.scenario.content_hash,
        "stages": {column: list(stages) for column, stages in log.covers.items()},
        "not_fitted": list(log.not_fitted),
        "note": log.note,
        "files": list(log.files),
    }


def _held(held: HeldOut) -> dict[str, Any]:
    return {
        "log": held.log,
        "fitted_steps": held.fitted_steps,
        "held_steps": held.held_steps,
        "errors": {each.column: _judgement(each) for each in held.judgements},
        "steps": {each.column: _prediction(each) for each in held.judgements},
    }


def _judgement(judgement: Judgement) -> dict[str, Any]:
    return {
        "model": asdict(judgement.model),
        **{f"naive_{name}": asdict(error) for name, error in judgement.naive.items()},
    }


def _prediction(judgement: Judgement) -> dict[str, Any]:
    return {name: np.asarray(values).tolist() for name, values in judgement.prediction._asdict().items()}


def _steps(result: FitResult) -> list[dict[str, Any]]:
    """Seconds by step of every fitted log, given all its steps."""
    return [
        {
            "log": part.log.name,
            "columns": {
                column: {name: np.asarray(values).tolist() for name, values in found._asdict().items()}
                for column, found in predict(part.features, part.members, result.posterior, seen=True).items()
            },
        }
        for part in result.parts
    ]
