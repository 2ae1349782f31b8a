"""Policies by name: shipped ones, entry points of the group ``oppo_sim.policies``, and ``path/to/file.py:ClassName``."""

import difflib
import importlib.util
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from oppo_sim.errors import OppoError
from oppo_sim.policies import settings as s
from oppo_sim.policies.interface import Batch, Policy
from oppo_sim.policies.shipped import Async, OneStepOff, Oracle, Refill, TailBatching

ENTRY_POINT_GROUP = "oppo_sim.policies"


class Shipped(NamedTuple):
    """A shipped policy."""

    build: Callable[[Batch, Any], Policy]
    settings: type[s.PolicySettings]
    summary: str
    without_tail: Mapping[str, Any] | None = None
    """Settings under which it shortens no tail (Δ = 0); None: it has no such knob."""


NO_OVERCOMMIT = {"overcommit": 0}

SHIPPED: Mapping[str, Shipped] = {
    "sequential": Shipped(Refill, s.SequentialSettings, "generate all, then score all, then train (the baseline)"),
    "intra": Shipped(Refill, s.IntraSettings, "stream chunks to the scorer while decoding"),
    "rollout-overlap": Shipped(Refill, s.RolloutOverlapSettings, "score each rollout when it finishes"),
    "inter": Shipped(Refill, s.InterSettings, "overcommit a few prompts, carry the unfinished", NO_OVERCOMMIT),
    "oppo": Shipped(Refill, s.OppoSettings, "both overlaps; overcommit and chunk size controlled online or fixed", NO_OVERCOMMIT),
    "partial-rollout": Shipped(Refill, s.PartialRolloutSettings, "rounds of a token budget, the rest continues", NO_OVERCOMMIT),
    "april": Shipped(Refill, s.AprilSettings, "issue about twice the batch, stop at B, carry the rest", NO_OVERCOMMIT),
    "tail-batching": Shipped(
        TailBatching, s.TailBatchingSettings, "short steps drop their tail, long steps run the dropped prompts", {"over_issue": 1.0}
    ),
    "one-step-off": Shipped(OneStepOff, s.OneStepOffSettings, "generate the next batch while this one trains"),
    "async": Shipped(Async, s.AsyncSettings, "generation goes on during training, within a staleness bound"),
    "oracle": Shipped(Oracle, s.OracleSettings, "knows the lengths and sorts them: a bound, not a recommendation", {"window": 1}),
}

BASELINE = "sequential"


def check_settings(name: str, settings: Mapping[str, Any], base_dir: Path | None = None) -> None:
    """Raise OppoError if ``name`` is unknown or ``settings`` do not fit it."""
    if name in SHIPPED:
        _validated(name, settings)
    else:
        _find_class(name, base_dir)


def make_policy(name: str, batch: Batch, settings: Mapping[str, Any], base_dir: Path | None = None) -> Policy:
    """A fresh policy. ``base_dir`` is where relative ``file.py:Class`` paths start.

    Raises OppoError for an unknown name, unknown or impossible settings, or a file that gives no policy.
    """
    shipped = SHIPPED.get(name)
    policy = shipped.build(batch, _validated(name, settings)) if shipped else _find_class(name, base_dir)(batch, settings)
    # One class serves several names: the instance carries its own.
    policy.name = name  # type: ignore[misc]
    return policy


def inherited_settings(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The part of another policy's settings that ``name`` shares, for a comparison on equal terms."""
    if name not in SHIPPED:
        return {}
    shipped = SHIPPED[name].settings
    return {key: value for key, value in settings.items() if key in shipped.INHERITED and key in shipped.model_fields}


def baseline_settings(name: str, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Settings of the sequential baseline that stops as ``name`` does (same ``stop_check``, same rounds); None: it has no stop check."""
    if name not in SHIPPED:
        return {}
    checked = _validated(name, settings)
    if SHIPPED[name].build in (OneStepOff, Async):
        return None
    if getattr(checked, "stop_check", "token") == "token":
        return {}
    chunk_size = getattr(checked, "chunk_size")  # noqa: B009
    return {"stop_check": "chunk", "chunk_size": chunk_size if isinstance(chunk_size, int) else chunk_size.model_dump()}


def _validated(name: str, settings: Mapping[str, Any]) -> s.PolicySettings:
    model = SHIPPED[name].settings
    for key in settings:
        if key not in model.model_fields:
            close = difflib.get_close_matches(key, model.model_fields, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"it has {', '.join(model.model_fields)}"
            raise OppoError(f"policy '{name}' has no field '{key}': {hint}")
    try:
        return model.model_validate(dict(settings))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if isinstance(part, str) and part in model.model_fields) or "settings"
        given = settings.get(where, first.get("input"))
        why = first["msg"].removeprefix("Value error, ")
        raise OppoError(f"policy '{name}', {where} = {given!r}: {why}; mend it in the scenario or with --set") from None


def _find_class(name: str, base_dir: Path | None) -> Callable[[Batch, Mapping[str, Any]], Policy]:
    path, colon, class_name = name.rpartition(":")
    if colon and path.endswith(".py"):
        return _from_file((base_dir or Path()) / path, class_name)
    found = entry_points(group=ENTRY_POINT_GROUP, name=name)
    for point in found:
        return _as_policy_class(point.load(), f"entry point '{name}'")
    close = difflib.get_close_matches(name, SHIPPED, n=1)
    hint = f"did you mean '{close[0]}'?" if close else f"shipped are {', '.join(SHIPPED)}; your own is 'path/to/file.py:ClassName'"
    raise OppoError(f"unknown policy '{name}': {hint}")


def _from_file(path: Path, class_name: str) -> Callable[[Batch, Mapping[str, Any]], Policy]:
    if not path.is_file():
        raise OppoError(f"policy file {path} does not exist: check the path before ':{class_name}'")
    spec = importlib.util.spec_from_file_location(f"oppo_user_policy_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise OppoError(f"policy file {path} cannot be imported ({type(error).__name__}: {error}): mend the file") from error
    if not hasattr(module, class_name):
        raise OppoError(f"policy file {path} has no class '{class_name}': name one that it defines")
    return _as_policy_class(getattr(module, class_name), f"{path}:{class_name}")


def _as_policy_class(candidate: object, where: str) -> Callable[[Batch, Mapping[str, Any]], Policy]:
    if not (isinstance(candidate, type) and issubclass(candidate, Policy)):
        raise OppoError(f"{where} is not a policy: make it a subclass of oppo_sim.policies.Policy")
    return candidate
