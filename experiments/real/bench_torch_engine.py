"""Decode speed of the torch engine against transformers' own ``generate()`` with padding: useful tokens a
second, as ratios.

Both decode the same prompts greedily on the same weights. ``equal``: all responses have the same length, so
nothing is padded but the prompts, and the ratio is the engine's own overhead or gain. ``ragged``: response
lengths are geometric with the same mean; ``generate()`` runs every row until the longest has finished, the
engine lets finished rollouts leave. Runs alternate; the fastest of each counts.

    python experiments/real/bench_torch_engine.py --batch-size 1 --batch-size 8 --batch-size 32
"""

import math
import time
from typing import Any

import click
import torch

from oppo_real.engines.interface import Request, Sampling
from oppo_real.engines.models import build_causal_lm
from oppo_real.engines.torch_actor import TorchActor
from oppo_sim.draws import draw_uniform, stream_key


def _lengths(count: int, mean: int, ragged: bool) -> list[int]:
    if not ragged:
        return [mean] * count
    key = stream_key(0, "bench:lengths")
    return [
        max(1, min(8 * mean, math.ceil(math.log(draw_uniform(key, i)) / math.log1p(-1 / mean))))
        for i in range(count)
    ]


def _prompts(count: int, mean: int, vocabulary: int) -> list[tuple[int, ...]]:
    key = stream_key(0, "bench:prompts")
    sizes = [mean // 2 + int(draw_uniform(key, i) * mean) for i in range(count)]
    return [
        tuple(int(draw_uniform(key, 1000 * (i + 1) + t) * vocabulary) for t in range(max(1, size)))
        for i, size in enumerate(sizes)
    ]


def _engine_seconds(engine: TorchActor, prompts: list[tuple[int, ...]], lengths: list[int]) -> float:
    begin = time.perf_counter()
    engine.submit([Request(i, prompts[i], lengths[i], forced_length=lengths[i]) for i in range(len(prompts))])
    while engine.step():
        pass
    return time.perf_counter() - begin


def _generate_seconds(model: Any, prompts: list[tuple[int, ...]], lengths: list[int]) -> float:
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    device = next(model.parameters()).device
    begin = time.perf_counter()
    out = model.generate(
        ids.to(device),
        attention_mask=mask.to(device),
        max_new_tokens=max(lengths),
        min_new_tokens=max(lengths),
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
    )
    out.cpu()
    return time.perf_counter() - begin


@click.command()
@click.option("--batch-size", "batch_sizes", multiple=True, type=int, default=(1, 8, 32), show_default=True)
@click.option("--prompt-length", default=32, show_default=True, help="Mean; prompts are uniform around it.")
@click.option("--response-length", default=48, show_default=True, help="Mean.")
@click.option("--hidden-size", default=256, show_default=True)
@click.option("--layers", default=4, show_default=True)
@click.option("--vocab-size", default=8192, show_default=True)
@click.option("--repeats", default=3, show_default=True)
@click.option("--threads", default=1, show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--dtype", default="float32", show_default=True)
def main(
    batch_sizes: tuple[int, ...],
    prompt_length: int,
    response_length: int,
    hidden_size: int,
    layers: int,
    vocab_size: int,
    repeats: int,
    threads: int,
    device: str,
    dtype: str,
) -> None:
    """Print one line a batch size and kind of lengths."""
    torch.set_num_threads(threads)
    config = {
        "model_type": "qwen2",
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": 3 * hidden_size,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden_size // 32,
        "num_key_value_heads": max(1, hidden_size // 128),
        "tie_word_embeddings": True,
    }
    model = build_causal_lm(config, seed=0, dtype=dtype, device=device)
    engine = TorchActor(
        build_causal_lm(config, seed=0, dtype=dtype, device=device), Sampling(temperature=0.0)
    )
    click.echo(
        f"{'lengths':8}{'batch':>6}{'engine tok/s':>14}{'generate tok/s':>16}"
        f"{'engine / generate':>19}{'generate rows useful':>22}"
    )
    for kind in ("equal", "ragged"):
        for size in batch_sizes:
            prompts, lengths = (
                _prompts(size, prompt_length, vocab_size),
                _lengths(size, response_length, kind == "ragged"),
            )
            ours = theirs = math.inf
            for _ in range(repeats):
                ours = min(ours, _engine_seconds(engine, prompts, lengths))
                theirs = min(theirs, _generate_seconds(model, prompts, lengths))
            useful = sum(lengths)
            share = useful / (size * max(lengths))
            click.echo(
                f"{kind:8}{size:6}{useful / ours:14.0f}{useful / theirs:16.0f}"
                f"{theirs / ours:19.2f}{share:21.0%}"
            )
    resolved = engine.resolved_config()
    shown = (
        "device_name",
        "dtype",
        "threads",
        "attention_path",
        "cuda_graphs",
        "parameters",
        "torch",
        "transformers",
    )
    click.echo(", ".join(f"{name}={resolved[name]}" for name in shown))


if __name__ == "__main__":
    main()
