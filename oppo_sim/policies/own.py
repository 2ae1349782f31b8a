"""Policies of a user's own: whatever they raise, or answer in the wrong form, is said in one sentence."""

import traceback
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import replace
from functools import wraps
from operator import index
from pathlib import Path
from typing import Any, get_args

from oppo_sim.errors import OppoError
from oppo_sim.policies.held import source_file
from oppo_sim.policies.interface import (
    Arrangement,
    Batch,
    Policy,
    PoolView,
    Schedule,
    ScoreGranularity,
    StepPlan,
    StepReport,
    StopCheck,
    TrainOrder,
)
from oppo_sim.policies.knobs import Knob
from oppo_sim.policies.settings import PolicySettings


def make_own(
    policy_class: type[Policy], name: str, batch: Batch, settings: PolicySettings | Mapping[str, Any]
) -> Policy:
    """A fresh policy of ``policy_class``, watched: what its methods raise is said with the step and the line.

    Raises OppoError if it cannot be made, or has attributes that mean nothing.
    """
    try:
        # A copy: what a run changes in a list must not reach the next run.
        policy = policy_class(batch, deepcopy(settings))
    except OppoError:
        raise
    except (Exception, SystemExit) as error:
        raise OppoError(
            f"policy '{name}' cannot be made: it raised {_raised(error, policy_class)}; mend the policy, or"
            " its settings"
        ) from error
    policy.name = name  # type: ignore[misc]  # the path, which tells apart what classes are called
    _check_attributes(policy, name)
    for method, answer in _ANSWERS.items():
        setattr(policy, method, _watched(getattr(policy, method), name, method, answer))
    return policy


# ---- inside ------------------------------------------------------------------------------------------------


def _check_attributes(policy: Policy, name: str) -> None:
    known = {
        "schedule": get_args(Schedule),
        "score_granularity": get_args(ScoreGranularity),
        "stop_check": get_args(StopCheck),
        "train_order": get_args(TrainOrder),
    }
    for attribute, values in known.items():
        given = getattr(policy, attribute)
        if given not in values:
            raise OppoError(
                f"policy '{name}' has {attribute} {given!r}, which is none of {', '.join(values)}: mend the"
                " policy"
            )
    for attribute in ("oracle", "carries", "recomputes", "partial_rollout"):
        if not isinstance(getattr(policy, attribute), bool):
            raise OppoError(
                f"policy '{name}' has {attribute} {getattr(policy, attribute)!r}, which is neither True nor"
                " False: mend the policy"
            )
    for attribute, lowest in (("max_deferrals", 0), ("max_staleness", 0)):
        given = getattr(policy, attribute)
        if given is None and attribute == "max_deferrals":
            continue
        if isinstance(given, bool) or not isinstance(given, int) or given < lowest:
            raise OppoError(
                f"policy '{name}' has {attribute} {given!r}, which is no whole number from {lowest} on: mend"
                " the policy"
            )


def _watched(
    method: Callable[[Any], Any], name: str, called: str, answer: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    @wraps(method)
    def ask(seen: PoolView | StepReport | int) -> Any:
        where = f"policy '{name}'" if isinstance(seen, int) else f"policy '{name}', step {seen.step}"
        try:
            return answer(method(seen))
        except OppoError:
            raise
        except _WrongAnswerError as wrong:
            raise OppoError(f"{where}: {called}() answered {wrong}; mend the policy") from None
        except (Exception, SystemExit) as error:
            raise OppoError(
                f"{where}: {called}() raised {_raised(error, method)}; mend the policy"
            ) from error

    return ask


class _WrongAnswerError(Exception):
    """An answer in the wrong form."""


def _plan(answer: Any) -> StepPlan:
    if not isinstance(answer, StepPlan):
        raise _WrongAnswerError(f"{_shown(answer)}, which is no StepPlan")
    numbers = {name: _whole(getattr(answer, name), name) for name in ("admit", "chunk_size", "overcommit")}
    stop_after = None if answer.stop_after is None else _whole(answer.stop_after, "stop_after")
    return replace(
        answer,
        **numbers,
        stop_after=stop_after,
        wait_for=frozenset(_ids(answer.wait_for)),
        readmit=tuple(_ids(answer.readmit)),
    )


def _arrangement(answer: Any) -> Arrangement:
    if not isinstance(answer, Arrangement):
        raise _WrongAnswerError(f"{_shown(answer)}, which is no Arrangement")
    if not answer.hold and not answer.move:
        return answer
    if not isinstance(answer.move, Mapping):
        raise _WrongAnswerError(f"move {_shown(answer.move)}, which is no mapping of rollout ids to replicas")
    move = {
        _whole(rollout_id, "move"): _whole(replica, "move") for rollout_id, replica in answer.move.items()
    }
    return Arrangement(hold=frozenset(_ids(answer.hold)), move=move)


def _ids(answer: Any) -> list[int]:
    if not isinstance(answer, Iterable) or isinstance(answer, str | bytes):
        raise _WrongAnswerError(f"{_shown(answer)}, which is no collection of rollout ids")
    return [_whole(rollout_id, "rollout id") for rollout_id in answer]


def _whole(value: Any, what: str) -> int:
    try:
        # Also numpy's integers.
        return index(value)
    except TypeError:
        raise _WrongAnswerError(f"{what} {_shown(value)}, which is no whole number") from None


def _knobs(answer: Any) -> tuple[Knob, ...]:
    if not isinstance(answer, Iterable) or isinstance(answer, str | bytes):
        raise _WrongAnswerError(f"{_shown(answer)}, which is no collection of Knob")
    knobs = tuple(answer)
    for knob in knobs:
        if not isinstance(knob, Knob):
            raise _WrongAnswerError(f"{_shown(knob)}, which is no Knob")
    return knobs


def _nothing(answer: Any) -> None:
    """What observe() returns is not used."""


_ANSWERS: Mapping[str, Callable[[Any], Any]] = {
    "plan": _plan,
    "arrange": _arrangement,
    "select": _ids,
    "drop": _ids,
    "observe": _nothing,
    "knobs": _knobs,
}


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _raised(error: BaseException, raiser: Callable[..., Any]) -> str:
    """``ValueError: message (mine.py, line 12)``: the innermost line in the file of ``raiser``, if it got
    there."""
    file = source_file(raiser)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    where = f" ({Path(file).name}, line {lines[-1]})" if file and lines else ""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}{f': {message}' if message else ''}{where}"
