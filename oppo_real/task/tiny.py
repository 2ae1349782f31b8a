"""Models small enough to be trained on a CPU in a minute."""

import copy
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2ForSequenceClassification

from oppo_real.task.arithmetic import BOS, EOS, PAD, VOCABULARY


def tiny_config(hidden_size: int = 64, num_hidden_layers: int = 2, **changes: Any) -> Qwen2Config:
    """A Qwen2 for the arithmetic task: heads of 16, grouped queries, no dropout, an untied head."""
    settings = {
        "vocab_size": len(VOCABULARY),
        "hidden_size": hidden_size,
        "intermediate_size": 4 * hidden_size,
        "num_hidden_layers": num_hidden_layers,
        "num_attention_heads": hidden_size // 16,
        "num_key_value_heads": max(1, hidden_size // 32),
        "max_position_embeddings": 1024,
        "tie_word_embeddings": False,
        "initializer_range": 0.06,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
    }
    return Qwen2Config(**{**settings, **changes})


def new_actor(seed: int, config: Qwen2Config | None = None) -> Qwen2ForCausalLM:
    """A random causal model; ``seed`` alone decides its weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config or tiny_config())


def new_classifier(seed: int, config: Qwen2Config | None = None) -> Qwen2ForSequenceClassification:
    """A random model with one score a token and a zero head: a critic, or an unfitted reward model."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = copy.deepcopy(config) if config else tiny_config()
        config.num_labels = 1
        model = Qwen2ForSequenceClassification(config)  # type: ignore[no-untyped-call]
        torch.nn.init.zeros_(model.score.weight)
        return model


def critic_from(actor: Qwen2ForCausalLM, seed: int) -> Qwen2ForSequenceClassification:
    """A critic that starts from the actor's backbone, as is usual; its values start at 0."""
    critic = new_classifier(seed, Qwen2Config.from_dict(actor.config.to_dict()))
    critic.model.load_state_dict(actor.model.state_dict())
    return critic
