"""What the client needs of an installed TRL, asked for by feature; everything it takes from TRL's insides is
in this file."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, Final, cast

from oppo_sim.errors import OppoError

MODULE: Final = "trl.experimental.ppo.ppo_trainer"
INSTALL: Final = (
    "TRL 1.0 to 1.12 work, install the last: pip install 'trl==1.12.0' (or the extra: pip install"
    " 'oppo-toolkit[trl]')"
)

# The module functions whose results a policy may supply, and the arguments that ``train`` gives them, in
# order.
FUNCTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "batch_generation": (
        "model",
        "queries",
        "local_rollout_forward_batch_size",
        "pad_token_id",
        "generation_config",
    ),
    "selective_log_softmax": ("logits", "index"),
    "get_reward": ("model", "query_responses", "pad_token_id", "context_length"),
    "forward": ("model", "query_responses", "pad_token_id"),
}
_ATTRIBUTES: Final = ("dataloader", "reward_model", "log")


@dataclass(frozen=True)
class Trl:
    """The parts of TRL that the client works with."""

    version: str
    trainer_class: Any
    functions: Mapping[str, Callable[..., Any]]
    """TRL's own, by name."""

    def train(self, trainer: Any, functions: Mapping[str, Callable[..., Any]]) -> None:
        """Run TRL's training loop on ``trainer`` with some of its module functions replaced, for this call
        alone.

        The loop keeps its code; only the names that it looks up in its module differ. The module itself is
        left as it is, so that an unmodified trainer in the same process stays unmodified.
        """
        own = self.trainer_class.train
        loop = FunctionType(
            own.__code__, {**own.__globals__, **functions}, own.__name__, own.__defaults__, own.__closure__
        )
        loop.__kwdefaults__ = own.__kwdefaults__
        loop(trainer)


def require_trl() -> Trl:
    """The installed TRL. Raises OppoError, saying which versions work, where it is missing, too new or shaped
    otherwise."""
    try:
        trl = importlib.import_module("trl")
    except ImportError as error:
        raise OppoError(f"TRL cannot be imported ({_first_line(error)}): {INSTALL}") from error
    version = str(getattr(trl, "__version__", "of unknown version"))
    try:
        module: Any = importlib.import_module(MODULE)
    except ImportError as error:
        raise OppoError(
            f"TRL {version} has no PPO trainer that can be imported ({_first_line(error)}): {INSTALL}"
        ) from error
    missing = _missing(module)
    if missing:
        raise OppoError(
            f"the PPO trainer of TRL {version} is not of the form that this client knows ({missing}):"
            f" {INSTALL}"
        )
    return Trl(version, module.PPOTrainer, {name: getattr(module, name) for name in FUNCTIONS})


def _missing(module: Any) -> str | None:
    """What ``train`` lacks for the client to take part in it; None if nothing."""
    train: Any = getattr(getattr(module, "PPOTrainer", None), "train", None)
    if not isinstance(train, FunctionType) or list(inspect.signature(train).parameters) != ["self"]:
        return "no PPOTrainer.train(self)"
    used = _names(train.__code__)
    for name, parameters in FUNCTIONS.items():
        function: Any = getattr(module, name, None)
        if not callable(function) or train.__globals__.get(name) is not function or name not in used:
            return f"its train() does not call {name}()"
        if (
            tuple(inspect.signature(cast(Callable[..., Any], function)).parameters)[: len(parameters)]
            != parameters
        ):
            return f"{name}() takes other arguments"
    unused = [name for name in _ATTRIBUTES if name not in used]
    return f"its train() does not use self.{unused[0]}" if unused else None


def _names(code: CodeType) -> set[str]:
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _names(constant)
    return found


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
