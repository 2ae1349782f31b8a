"""Tiny random-init models in local folders. Engines are started once a module: a start takes seconds."""

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("vllm") is None and "OPPO_REQUIRE_VLLM" not in os.environ:
    # Only what can be said without vLLM; where the tests are meant to run in full, OPPO_REQUIRE_VLLM=1 turns
    # its absence into failures.
    collect_ignore = [
        "test_vllm_actor.py",
        "test_vllm_cuts.py",
        "test_vllm_free_running.py",
        "test_vllm_turns.py",
        "test_vllm_scorer.py",
        "test_vllm_features.py",
        "test_vllm_lockstep.py",
        "test_vllm_recorder.py",
        "test_vllm_reset.py",
        "test_vllm_gpu_arguments.py",
        "test_vllm_threads.py",
    ]

VOCAB, POSITIONS = 96, 256


def tiny_config(**changes: Any) -> Any:
    from transformers import Qwen2Config

    # Weights wide enough that greedy choices are far from ties and answers do not repeat one token.
    shape = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    return Qwen2Config(
        vocab_size=VOCAB, max_position_embeddings=POSITIONS, initializer_range=0.3, **shape, **changes
    )


def causal_model(seed: int, tied: bool = True) -> Any:
    import torch
    from transformers import Qwen2ForCausalLM

    torch.manual_seed(seed)
    return Qwen2ForCausalLM(tiny_config(tie_word_embeddings=tied)).eval()


@pytest.fixture(scope="session")
def actor_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("actor")
    causal_model(seed=1).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def scorer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    from transformers import Qwen2ForSequenceClassification

    torch.manual_seed(2)
    folder = tmp_path_factory.mktemp("scorer")
    Qwen2ForSequenceClassification(tiny_config(num_labels=1, pad_token_id=0)).eval().save_pretrained(folder)
    return folder
