"""Policies by name: shipped ones, entry points of the group ``oppo_sim.policies``, and
``path/to/file.py:ClassName``."""

import difflib
import hashlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from oppo_sim.errors import OppoError
from oppo_sim.policies import settings as s
from oppo_sim.policies.controllers import ChunkControl
from oppo_sim.policies.interface import Batch, Policy
from oppo_sim.policies.own import PolicyClass, make_own
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
    "sequential": Shipped(
        Refill, s.SequentialSettings, "generate all, then score all, then train (the baseline)"
    ),
    "intra": Shipped(Refill, s.IntraSettings, "stream chunks to the scorer while decoding"),
    "rollout-overlap": Shipped(Refill, s.RolloutOverlapSettings, "score each rollout when it finishes"),
    "inter": Shipped(
        Refill, s.InterSettings, "overcommit a few prompts, carry the unfinished", NO_OVERCOMMIT
    ),
    "oppo": Shipped(
        Refill,
        s.OppoSettings,
        "both overlaps; overcommit and chunk size controlled online or fixed",
        NO_OVERCOMMIT,
    ),
    "partial-rollout": Shipped(
        Refill, s.PartialRolloutSettings, "rounds of a token budget, the rest continues", NO_OVERCOMMIT
    ),
    "april": Shipped(
        Refill, s.AprilSettings, "issue about twice the batch, stop at B, carry the rest", NO_OVERCOMMIT
    ),
    "tail-batching": Shipped(
        TailBatching,
        s.TailBatchingSettings,
        "short steps drop their tail, long steps run the dropped prompts",
        {"over_issue": 1.0},
    ),
    "one-step-off": Shipped(
        OneStepOff, s.OneStepOffSettings, "generate the next batch while this one trains"
    ),
    "async": Shipped(Async, s.AsyncSettings, "generation goes on during training, within a staleness bound"),
    "oracle": Shipped(
        Oracle,
        s.OracleSettings,
        "knows the lengths and sorts them: a bound, not a recommendation",
        {"window": 1},
    ),
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
    policy = (
        shipped.build(batch, _validated(name, settings))
        if shipped
        else make_own(_find_class(name, base_dir), name, batch, settings)
    )
    # One class serves several names: the instance carries its own.
    policy.name = name  # type: ignore[misc]
    return policy


def source_digest(name: str, base_dir: Path | None = None) -> str | None:
    """SHA-256 (hex) of the file that defines a policy of a user's own; None for a shipped one. Raises
    OppoError if it is not found."""
    if name in SHIPPED:
        return None
    try:
        source = inspect.getsourcefile(_find_class(name, base_dir))
        return hashlib.sha256(Path(source or "").read_bytes()).hexdigest()
    except (OSError, TypeError):
        return None


def inherited_settings(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The part of another policy's settings that ``name`` shares, for a comparison on equal terms."""
    if name not in SHIPPED:
        return {}
    shipped = SHIPPED[name].settings
    return {
        key: value
        for key, value in settings.items()
        if key in shipped.INHERITED and key in shipped.model_fields
    }


def baseline_settings(
    name: str, settings: Mapping[str, Any], batch: Batch, base_dir: Path | None = None
) -> dict[str, Any] | None:
    """Settings of the sequential baseline that stops as ``name`` does (same ``stop_check``, same rounds);
    None: it has no stop check.

    The rounds of a policy of a user's own are its attribute ``chunk_size``. Raises OppoError as
    ``make_policy``.
    """
    policy = make_policy(name, batch, settings, base_dir)
    if policy.schedule != "synchronous":
        return None
    if policy.stop_check == "token":
        return {}
    chunk_size = getattr(_validated(name, settings) if name in SHIPPED else policy, "chunk_size", None)
    if isinstance(chunk_size, ChunkControl):
        return {"stop_check": "chunk", "chunk_size": chunk_size.model_dump(mode="json")}
    if not isinstance(chunk_size, int):
        raise OppoError(
            f"policy '{name}' stops in rounds: give it an attribute chunk_size, so that the baseline can run"
            " the same rounds"
        )
    return {"stop_check": "chunk", "chunk_size": chunk_size}


def _validated(name: str, settings: Mapping[str, Any]) -> s.PolicySettings:
    model = SHIPPED[name].settings
    for key in settings:
        if key not in model.model_fields:
            close = difflib.get_close_matches(key, model.model_fields, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"it has {', '.join(model.model_fields)}"
            raise OppoError(f"policy '{name}' has no field '{key}': {hint}")
    try:
        # As JSON, so that a list may stand for a tuple while nothing else is converted.
        return model.model_validate_json(json.dumps(dict(settings)), strict=True)
    except TypeError:
        raise OppoError(
            f"policy '{name}' has settings that are no plain values: give numbers, text, lists and dicts"
        ) from None
    except ValidationError as error:
        # Of a union's complaints the one about the alternative that was meant: a rule that the values break,
        # else the innermost.
        first = max(
            error.errors(), key=lambda details: (details["type"] == "value_error", len(details["loc"]))
        )
        where = (
            ".".join(
                str(part) for part in first["loc"] if isinstance(part, str) and part in model.model_fields
            )
            or "settings"
        )
        given = settings.get(where, first.get("input"))
        why = first["msg"].removeprefix("Value error, ")
        raise OppoError(
            f"policy '{name}', {where} = {given!r}: {why}; mend it in the scenario or with --set"
        ) from None


def _find_class(name: str, base_dir: Path | None) -> PolicyClass:
    path, colon, class_name = name.rpartition(":")
    if colon and path.endswith(".py"):
        return _from_file((base_dir or Path()) / path, class_name)
    for point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        try:
            found = point.load()
        except (Exception, SystemExit) as error:
            raise OppoError(
                f"policy '{name}' ({point.value}) cannot be imported ({type(error).__name__}: {error}): mend"
                " its package"
            ) from error
        return _as_policy_class(found, f"entry point '{name}'")
    close = difflib.get_close_matches(name, SHIPPED, n=1)
    hint = (
        f"did you mean '{close[0]}'?"
        if close
        else f"shipped are {', '.join(SHIPPED)}; your own is 'path/to/file.py:ClassName'"
    )
    raise OppoError(f"unknown policy '{name}': {hint}")


def _from_file(path: Path, class_name: str) -> PolicyClass:
    if not path.is_file():
        raise OppoError(f"policy file {path} does not exist: check the path before ':{class_name}'")
    # Known to Python under a name of its own: dataclasses and pickle look a class's module up.
    module_name = (
        f"oppo_user_policy_{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    )
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise OppoError(
            f"policy file {path} cannot be imported ({type(error).__name__}: {error}): mend the file"
        ) from error
    if not hasattr(module, class_name):
        raise OppoError(f"policy file {path} has no class '{class_name}': name one that it defines")
    return _as_policy_class(getattr(module, class_name), f"{path}:{class_name}")


def _as_policy_class(candidate: object, where: str) -> PolicyClass:
    if not (isinstance(candidate, type) and issubclass(candidate, Policy)):
        raise OppoError(f"{where} is not a policy: make it a subclass of oppo_sim.policies.Policy")
    return candidate
