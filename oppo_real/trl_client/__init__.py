"""TRL's own PPO and GRPO trainers under a policy of ``oppo_sim``. Importing this package imports neither TRL
nor torch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oppo_real.trl_client.grpo import OppoGRPOTrainer
    from oppo_real.trl_client.trainer import OppoPPOTrainer

_HOME = {
    "OppoGRPOTrainer": "oppo_real.trl_client.grpo",
    "OppoPPOTrainer": "oppo_real.trl_client.trainer",
}
__all__ = ["OppoGRPOTrainer", "OppoPPOTrainer"]


def __getattr__(name: str) -> Any:
    # A class needs its base: only who asks for the trainer needs TRL.
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
