"""A GRPO trainer over the tiny model, with a reward that prefers some tokens."""

from pathlib import Path
from typing import Any

from tests.real_trl import toy

GROUP = 4


def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """The share of even tokens."""
    return [sum(token % 2 == 0 for token in ids) / max(1, len(ids)) for ids in completion_ids]


def make(
    trainer_class: Any, folder: Path, steps: int, arguments: dict[str, Any] | None = None, **extra: Any
) -> Any:
    """A trainer of ``trainer_class``; ``arguments`` change the configuration, ``extra`` the constructor."""
    from datasets import Dataset
    from transformers import Qwen2ForCausalLM
    from trl import GRPOConfig

    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": toy.BATCH // 2,
        "gradient_accumulation_steps": 2,
        "num_generations": GROUP,
        "max_steps": steps,
        "max_completion_length": toy.RESPONSE_LENGTH,
        "temperature": 1.0,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "beta": 0.0,
        "seed": 7,
        "report_to": [],
        "bf16": False,
        "use_cpu": True,
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    # A reference model is read from where the policy was.
    toy.models()["model"].save_pretrained(folder / "model")
    # An epoch is two generations and a prompt that is left over.
    words = [" ".join(f"t{token}" for token in prompt) for prompt in toy.prompts(5)]
    return trainer_class(
        args=GRPOConfig(**{**settings, **(arguments or {})}),
        processing_class=toy.spaced_tokenizer(),
        train_dataset=Dataset.from_dict({"prompt": words}),
        **{"model": Qwen2ForCausalLM.from_pretrained(folder / "model"), "reward_funcs": reward, **extra},
    )


def train(trainer: Any) -> list[dict[str, float]]:
    """TRL's metrics of every update; those of a generation stand at its first one."""
    trainer.train()
    return [entry for entry in trainer.state.log_history if "loss" in entry]
