"""A toy task with long-tailed responses, without a tokenizer's text: the first token of a prompt says how
likely a response is to stop.

A tiny Qwen2 with random weights is taught that (next-token distributions that are known exactly), so that
lengths come from sampling: most prompts have short responses, some long ones, each geometrically distributed
up to the cap.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

VOCABULARY = 64
PAD, BOS, EOS, SHORT, LONG = 0, 1, 2, 3, 4
FIRST_WORD = 5
PROMPT_LENGTH = 8


@dataclass(frozen=True)
class Task:
    """Mean response lengths in tokens, before the cap, and the share of prompts with long ones."""

    mean_short: float = 24.0
    mean_long: float = 240.0
    long_share: float = 0.15
    response_length: int = 512
    hidden_size: int = 64
    num_hidden_layers: int = 2


def config(task: Task, **changes: Any) -> Any:
    from transformers import Qwen2Config

    hidden = task.hidden_size
    shape = {
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_attention_heads": hidden // 16,
        "num_key_value_heads": hidden // 32,
    }
    tokens = {"vocab_size": VOCABULARY, "pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
    longest = 2 * (PROMPT_LENGTH + task.response_length)
    return Qwen2Config(
        **shape,
        **tokens,
        num_hidden_layers=task.num_hidden_layers,
        max_position_embeddings=longest,
        tie_word_embeddings=False,
        **changes,
    )


def tokenizer() -> Any:
    """Only names and padding; nobody tokenizes text."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": PAD, "<bos>": BOS, "<eos>": EOS, "short": SHORT, "long": LONG}
    words |= {f"w{index}": index for index in range(FIRST_WORD, VOCABULARY)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="w5")),
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        padding_side="left",
    )


def prompts(task: Task, count: int, seed: int) -> list[list[int]]:
    """Token ids; every prompt has the same length."""
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.where(torch.rand(count, generator=generator) < task.long_share, LONG, SHORT).tolist()
    words = torch.randint(FIRST_WORD, VOCABULARY, (count, PROMPT_LENGTH - 1), generator=generator).tolist()
    return [[kind, *row] for kind, row in zip(kinds, words, strict=True)]


def teach(task: Task, seed: int, updates: int, rows: int = 8, length: int = 256) -> Any:
    """A policy whose responses stop as the task says. ``updates`` of ``rows`` sequences of ``length`` random
    words each."""
    from transformers import Qwen2ForCausalLM

    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(config(task))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    stop = {SHORT: 1.0 / task.mean_short, LONG: 1.0 / task.mean_long}
    for update in range(updates):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, (updates - update) / (0.5 * updates))
        asked = prompts(Task(long_share=0.5), rows, seed=1000 * (seed + 1) + update)
        words = torch.randint(FIRST_WORD, VOCABULARY, (rows, length))
        ids = torch.cat((torch.tensor(asked), words), dim=1)
        target = torch.zeros(rows, VOCABULARY)
        chance = torch.tensor([stop[row[0]] for row in asked])
        target[:, EOS] = chance
        target[:, FIRST_WORD:] = ((1.0 - chance) / (VOCABULARY - FIRST_WORD)).unsqueeze(1)
        predicted = model(input_ids=ids).logits[:, PROMPT_LENGTH - 1 :].log_softmax(-1)
        loss = -(target.unsqueeze(1) * predicted).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


def models(task: Task, taught: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Policy and reference with the weights ``taught``, reward model and critic with random weights."""
    from transformers import Qwen2ForCausalLM, Qwen2ForSequenceClassification

    torch.manual_seed(seed)
    policy, reference = Qwen2ForCausalLM(config(task)), Qwen2ForCausalLM(config(task))
    for model in (policy, reference):
        model.load_state_dict(taught)
    scored = config(task, num_labels=1)
    reward, value = Qwen2ForSequenceClassification(scored), Qwen2ForSequenceClassification(scored)
    return {"model": policy, "ref_model": reference, "reward_model": reward, "value_model": value}


def quantiles(lengths: Sequence[int]) -> dict[str, float]:
    """Tokens."""
    values = torch.tensor(lengths, dtype=torch.float64)
    names = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    found = {name: float(values.quantile(share)) for name, share in names.items()}
    return {"count": float(len(values)), "mean": float(values.mean()), **found, "max": float(values.max())}
