"""SkyRL's class of that name, as far as its pickles go: they name it by module ``skyrl``."""

import sys
from types import ModuleType
from typing import Any


class TrainingInputBatch(dict[str, Any]):
    """A table with a state."""

    def __init__(self, fields: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.fields = fields or {}

    def __reduce__(self) -> Any:
        return TrainingInputBatch, (), self.fields

    def __setstate__(self, state: Any) -> None:
        self.fields = state


TrainingInputBatch.__module__ = "skyrl"
_module = ModuleType("skyrl")
_module.TrainingInputBatch = TrainingInputBatch  # type: ignore[attr-defined]
sys.modules["skyrl"] = _module
