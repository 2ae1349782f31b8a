"""The models of a run: named ones, or tiny ones that are random (replay) or fitted to the arithmetic task
(train)."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from oppo_real.config import RealConfig
from oppo_real.engines.models import build_causal_lm, build_value_model
from oppo_real.placement.cores import keep_memory
from oppo_real.placement.engines import ENGINES, EngineKind
from oppo_real.ppo.config import PPOConfig
from oppo_real.ppo.rollout import TrainRollout
from oppo_real.ppo.trainer import PPOTrainer
from oppo_real.quiet import without_bars
from oppo_real.task.tiny import new_actor, new_classifier, tiny_config
from oppo_sim.errors import OppoError


@dataclass(frozen=True)
class Models:
    """What the engines are built from, and the policy that the driver keeps."""

    policy: torch.nn.Module
    actor: Any
    """Source for the replicas."""
    reward: Any
    reference: Any
    """Source for scoring workers that run the reference model; None: they do not."""
    vocab_size: int
    context_length: int
    """Longest prompt + response that the model takes, tokens."""


def prepare_models(
    config: RealConfig,
    seed: int,
    longest: int,
    folder: Path,
    stream_ref: bool,
    tell: Callable[[str], None] = lambda phase: None,
) -> Models:
    """Build or load the policy, and write to ``folder`` what engines can only read from a folder.

    ``longest``: prompt + response, tokens. ``tell``: called with what is done now. Raises OppoError for a
    model that cannot be built, does not fit, or is too short.
    """
    sources, fitted = config.models, config.mode == "train"
    tell("loading models")
    actor = sources.actor if sources.actor is not None else _tiny(longest, config.engine)
    policy = build_causal_lm(actor, seed, config.training_dtype, config.devices.training)
    if sources.actor is None and fitted:
        from oppo_real.task.sft import SftConfig, fit_actor

        tell("fitting the actor to the task")
        policy = new_actor(seed, _tiny_config(longest, config.engine))
        policy.to(torch.device(config.devices.training))  # type: ignore[arg-type]
        fit_actor(policy, SftConfig(steps=config.sft.steps, batch_size=config.sft.batch_size, seed=seed + 1))
    shape: Any = policy.config
    shape = shape.get_text_config()
    context = int(getattr(shape, "max_position_embeddings", None) or 1 << 30)
    require_context(longest, context)
    kept = None
    if ENGINES[config.engine].reads_folders or stream_ref:
        kept = _save(policy, folder / "actor")
    reward = sources.reward
    if reward is None:  # of what the actor generates
        reward = {**_tiny(longest, config.scorer), "vocab_size": int(shape.vocab_size)}
    if sources.reward is None and fitted:
        tell("fitting the reward model to the task")
        reward = _save(
            _fitted_reward_model(config, seed, longest, policy if sources.actor is None else None),
            folder / "reward",
        )
    elif ENGINES[config.scorer].reads_folders and not (isinstance(reward, str) and Path(reward).is_dir()):
        from oppo_real.engines.models import build_reward_model

        reward = _save(build_reward_model(reward, seed + 2, config.dtype), folder / "reward")
    source = kept if ENGINES[config.engine].reads_folders else actor
    return Models(policy, source, reward, kept if stream_ref else None, int(shape.vocab_size), context)


def require_context(longest: int, context: int | None) -> None:
    """Raises OppoError for an actor that takes fewer tokens than prompt and response may have together."""
    if context is not None and longest > context:
        raise OppoError(
            f"prompt and response may have {longest} tokens together but the actor takes {context}: lower"
            " max_prompt_length or max_response_length, or choose a model with a longer context"
            " (real.models.actor)"
        )


def tiny_vocabulary() -> int:
    """Tokens of the models that a run makes where none are given."""
    return int(tiny_config().vocab_size)


class FrozenTraining:
    """Weights that never change; they are sent to the replicas all the same, as a run that trains does."""

    def __init__(self, policy: torch.nn.Module) -> None:
        self._weights = {name: tensor.detach() for name, tensor in policy.state_dict().items()}

    def update(self, batch: Sequence[TrainRollout], version: int) -> Mapping[str, float]:
        """Nothing."""
        return {}

    def weights(self) -> Mapping[str, torch.Tensor]:
        """The policy's."""
        return self._weights

    def state_dict(self) -> dict[str, Any]:
        """Nothing changes."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to restore."""


def build_training(
    config: RealConfig, ppo: PPOConfig | None, models: Models, seed: int, stream_ref: bool
) -> PPOTrainer | FrozenTraining:
    """PPO on the policy, or nothing (``ppo`` None)."""
    if ppo is None:
        return FrozenTraining(models.policy)
    device, dtype = config.devices.training, config.training_dtype
    keep_memory(device)
    reference = None
    if ppo.kl_coef > 0 or stream_ref:
        source = config.models.reference
        reference = (
            copy.deepcopy(models.policy) if source is None else build_causal_lm(source, seed, dtype, device)
        )
    critic = None
    if ppo.critic == "separate":
        source = config.models.critic if config.models.critic is not None else config.models.actor
        critic = (
            _critic_of(models.policy, seed + 3)
            if source is None
            else build_value_model(source, seed + 3, dtype, device)
        )
    return PPOTrainer(models.policy, reference, critic, ppo, device)


def _critic_of(policy: torch.nn.Module, seed: int) -> torch.nn.Module:
    from transformers import Qwen2ForCausalLM

    from oppo_real.task.tiny import critic_from

    assert isinstance(policy, Qwen2ForCausalLM)
    return critic_from(policy, seed)


def _fitted_reward_model(config: RealConfig, seed: int, longest: int, fitted: Any) -> torch.nn.Module:
    """Begun from the fitted actor where there is one: it ranks far better than one begun from nothing
    (docs/ppo.md)."""
    from oppo_real.task.reward_model import RewardModelConfig, fit_reward_model, reward_model_from

    alike = fitted is not None and ENGINES[config.engine].tiny_model == ENGINES[config.scorer].tiny_model
    model = (
        reward_model_from(fitted, seed + 2)
        if alike
        else new_classifier(seed + 2, _tiny_config(longest, config.scorer))
    )
    # It needs more steps than the actor: 500 beside 300.
    fit_reward_model(
        model,
        RewardModelConfig(steps=config.sft.steps * 5 // 3, batch_size=config.sft.batch_size, seed=seed + 2),
    )
    return model


def _tiny_config(longest: int, engine: EngineKind) -> Any:
    return tiny_config(max_position_embeddings=max(longest, 256), **ENGINES[engine].tiny_model)


def _tiny(longest: int, engine: EngineKind) -> dict[str, Any]:
    shown = _tiny_config(longest, engine)
    names = (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads",
        "max_position_embeddings", "tie_word_embeddings", "initializer_range",
    )  # fmt: skip
    return {"model_type": "qwen2", **{name: getattr(shown, name) for name in names}}


def _save(model: torch.nn.Module, folder: Path) -> str:
    """Write a model, unless a run before left it: engines that are kept may still read that."""
    if not folder.is_dir():
        writer: Any = model
        unfinished = folder.with_suffix(".part")
        try:
            with without_bars():
                writer.save_pretrained(str(unfinished))
            unfinished.rename(folder)
        except (OSError, SafetensorError) as error:
            raise OppoError(
                f"cannot write the model that the engines read to {folder} ({error}): free space there, or"
                " name another folder (TMPDIR; on several machines real.placement.cluster.shared_folder)"
            ) from error
    return str(folder)
