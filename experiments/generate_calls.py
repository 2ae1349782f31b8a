"""What a call of transformers' ``generate()`` costs beside its tokens: the same tokens of a tiny model in 1
to 16 calls, each from the token ids so far, as a loop that decodes in rounds makes them. Needs the extra
'trl'.

    python experiments/generate_calls.py     # writes experiments/results/cuts/calls.csv

A round ends as such a loop ends one: tokens to the host, rows that are finished told from the others, the
rest padded to the left anew. ``collected``: then with ``gc.collect()``, which TRL's PPO trainer calls after
every batch. Seconds are the slope over the number of calls; the model is so small that what is prefilled
again does not count. One thread of a CPU: the host's part of a GPU's loop, without what a device adds.
"""

import gc
import os
import time
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
import torch
from transformers import LlamaConfig, LlamaForCausalLM

RESULT: Final = Path(__file__).parent / "results" / "cuts" / "calls.csv"
TOKENS: Final = 64
CALLS: Final = (1, 2, 4, 8, 16)
ROWS: Final = (1, 16)
REPEATS: Final = 7
_PROMPT: Final = 32
_PAD: Final = 0


def tiny() -> LlamaForCausalLM:
    """A Llama that computes next to nothing."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=512,
    )
    return LlamaForCausalLM(config).eval()


def decode(model: LlamaForCausalLM, rows: int, calls: int, collected: bool) -> float:
    """Seconds of ``TOKENS`` tokens of ``rows`` sequences in so many calls."""
    ids = [[1 + place % 500 for place in range(_PROMPT)] for _ in range(rows)]
    began = time.perf_counter()
    for _ in range(calls):
        width = max(map(len, ids))
        left = torch.tensor([[_PAD] * (width - len(row)) + row for row in ids])
        mask = (left != _PAD).long()
        size = TOKENS // calls
        made = model.generate(
            left,
            attention_mask=mask,
            max_new_tokens=size,
            min_new_tokens=size,
            do_sample=True,
            pad_token_id=_PAD,
        )
        for row, tokens in zip(ids, made[:, width:].tolist(), strict=True):
            row.extend(token or 1 for token in tokens)
        if collected:
            gc.collect()
    return time.perf_counter() - began


def main() -> None:
    """Measure and write."""
    model, found = tiny(), []
    decode(model, 1, 2, collected=True)
    for rows in ROWS:
        for collected in (False, True):
            seconds = [[decode(model, rows, calls, collected) for calls in CALLS] for _ in range(REPEATS)]
            slopes = [np.polyfit(CALLS, each, 1)[0] for each in seconds]
            low, middle, high = np.quantile(slopes, (0, 0.5, 1))
            found.append((rows, collected, middle, low, high))
    table = pd.DataFrame(found, columns=["rows", "collected", "s_a_call", "least", "most"])
    table.to_csv(RESULT, index=False, float_format="%.3g")
    print(table)


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    main()
