"""A tiny random-init model, a dataset of token ids, and trainers over them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

VOCABULARY = 24
PAD, BOS, EOS = 0, 1, 2
BATCH = 8
RESPONSE_LENGTH = 48


def config(**changes: Any) -> Any:
    from transformers import Qwen2Config

    shape = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    tokens = {"vocab_size": VOCABULARY, "pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
    return Qwen2Config(
        **shape,
        **tokens,
        max_position_embeddings=128,
        initializer_range=0.1,
        tie_word_embeddings=False,
        **changes,
    )


def tokenizer() -> Any:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = {
        "<pad>": PAD,
        "<bos>": BOS,
        "<eos>": EOS,
        **{f"t{index}": index for index in range(3, VOCABULARY)},
    }
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="t3")),
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        padding_side="left",
    )


def spaced_tokenizer() -> Any:
    """The same, for prompts that are text: words of one token each."""
    from tokenizers.pre_tokenizers import WhitespaceSplit

    made = tokenizer()
    made.backend_tokenizer.pre_tokenizer = WhitespaceSplit()
    return made


def prompts(count: int = 40) -> list[list[int]]:
    """Random prompts of 3 to 6 tokens."""
    generator = torch.Generator().manual_seed(5)
    lengths = torch.randint(3, 7, (count,), generator=generator).tolist()
    return [torch.randint(3, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]


def models(seed: int = 0) -> dict[str, Any]:
    """Policy, reference, reward model and critic, as the constructor names them."""
    from transformers import Qwen2ForCausalLM, Qwen2ForSequenceClassification

    torch.manual_seed(seed)
    policy, reference = Qwen2ForCausalLM(config()), Qwen2ForCausalLM(config())
    reference.load_state_dict(policy.state_dict())
    scored = config(num_labels=1)
    reward, value = Qwen2ForSequenceClassification(scored), Qwen2ForSequenceClassification(scored)
    return {"model": policy, "ref_model": reference, "reward_model": reward, "value_model": value}


def make(
    trainer_class: Any, folder: Path, steps: int, arguments: dict[str, Any] | None = None, **extra: Any
) -> Any:
    """A trainer of ``trainer_class``; ``arguments`` change the configuration, ``extra`` the constructor."""
    from datasets import Dataset
    from trl.experimental.ppo import PPOConfig

    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": BATCH // 2,
        "gradient_accumulation_steps": 2,
        "num_mini_batches": 2,
        "num_ppo_epochs": 2,
        "total_episodes": steps * BATCH,
        "local_rollout_forward_batch_size": BATCH // 2,
        "response_length": RESPONSE_LENGTH,
        "stop_token": "eos",
        "missing_eos_penalty": 1.0,
        "temperature": 1.0,
        "learning_rate": 1e-3,
        "num_sample_generations": 0,
        "seed": 7,
        "report_to": [],
        "bf16": False,
        "use_cpu": True,
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    given = models()
    given.update({name: extra.pop(name) for name in list(extra) if name in given})
    return trainer_class(
        args=PPOConfig(**{**settings, **(arguments or {})}),
        processing_class=tokenizer(),
        train_dataset=Dataset.from_dict({"input_ids": prompts()}),
        **given,
        **extra,
    )


def train(trainer: Any, seed: int = 3) -> list[dict[str, float]]:
    """TRL's metrics of every step. numpy deals the mini-batches, so its seed is part of the run."""
    import numpy as np

    np.random.seed(seed)
    trainer.train()
    return [entry for entry in trainer.state.log_history if "objective/scores" in entry]


def weights(trainer: Any) -> Sequence[torch.Tensor]:
    return list(trainer.accelerator.unwrap_model(trainer.model).state_dict().values())
