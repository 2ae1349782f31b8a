"""TRL's own PPO trainer under a policy of ``oppo_sim``. Importing this package imports neither TRL nor
torch."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oppo_real.trl_client.trainer import OppoPPOTrainer

__all__ = ["OppoPPOTrainer"]


def __getattr__(name: str) -> Any:
    # A class needs its base: only who asks for the trainer needs TRL.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from oppo_real.trl_client import trainer

    return getattr(trainer, name)
