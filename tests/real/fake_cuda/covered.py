"""Which public calls of the torch engine have a test on the fake machine; a test proves what it says of itself."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any
from unittest.mock import patch

from oppo_real.engines import attention_check, device, models
from oppo_real.engines.interface import Actor, ReferenceStream, Scorer
from oppo_real.engines.torch_actor import TorchActor
from oppo_real.engines.torch_scorer import TorchScorer
from oppo_real.placement import shared_weights
from oppo_real.placement.shared_weights import SharedWeights
from oppo_real.ppo.trainer import PPOTrainer

ENGINES: dict[type, tuple[type, ...]] = {TorchActor: (Actor,), TorchScorer: (Scorer, ReferenceStream)}
"""What serves which interface."""
CLASSES: tuple[type, ...] = (PPOTrainer, SharedWeights, device.CudaCapture)
MODULES: tuple[ModuleType, ...] = (device, models, shared_weights)
FUNCTIONS = (
    "attention_check.verify_attention",
    "attention_check.cached_path",
    "attention_check.training_path",
)

COVERED: dict[str, set[str]] = {}
"""Call → tests."""
_OWNERS: dict[str, Any] = {
    one.__name__.rpartition(".")[2]: one for one in (*ENGINES, *CLASSES, *MODULES, attention_check)
}


def public_calls() -> set[str]:
    """Of the interfaces, and of what else of the torch engine touches a device."""
    found = set(FUNCTIONS)
    for engine, interfaces in ENGINES.items():
        found |= {f"{engine.__name__}.{name}" for one in interfaces for name in _names(one)}
    for owner in CLASSES:
        found |= {f"{owner.__name__}.{name}" for name in _names(owner)}
    for module in MODULES:
        short = module.__name__.rpartition(".")[2]
        functions = inspect.getmembers(module, inspect.isfunction)
        found |= {
            f"{short}.{name}"
            for name, one in functions
            if one.__module__ == module.__name__ and not name.startswith("_")
        }
    return found


def _names(owner: type) -> set[str]:
    called = {
        name
        for name, one in vars(owner).items()
        if not name.startswith("_") and (callable(one) or isinstance(one, property))
    }
    return called | ({"__call__"} if "__call__" in vars(owner) else set())


def covers(*calls: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Of a test: it makes these calls. One that it does not make fails it."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        for call in calls:
            COVERED.setdefault(call, set()).add(test.__name__)

        @functools.wraps(test)
        def watched(*args: Any, **kwargs: Any) -> None:
            made: set[str] = set()
            watches = [_watch(call, made) for call in calls]
            for watch in watches:
                watch.start()
            try:
                test(*args, **kwargs)
            finally:
                for watch in watches:
                    watch.stop()
            assert made == set(calls), f"never called: {sorted(set(calls) - made)}"

        return watched

    return decorate


def _watch(call: str, made: set[str]) -> Any:
    owner_name, _, name = call.rpartition(".")
    owner = _OWNERS[owner_name]
    one = inspect.getattr_static(owner, name)
    inner = one.fget if isinstance(one, property) else one

    @functools.wraps(inner)
    def noting(*args: Any, **kwargs: Any) -> Any:
        made.add(call)
        return inner(*args, **kwargs)

    if hasattr(inner, "cache_clear"):
        noting.cache_clear = inner.cache_clear  # type: ignore[attr-defined]
    return patch.object(owner, name, property(noting) if isinstance(one, property) else noting)
