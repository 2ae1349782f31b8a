"""The two tasks: the arithmetic task of `oppo_real.task`, and a countdown. Both have answers with a long
tail, a reward from a rule, and a fitted actor that is often wrong."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from oppo_real.engines.packed_model import packed
from oppo_real.ppo.batching import micro_batches
from oppo_real.ppo.forward import policy_outputs
from oppo_real.ppo.rollout import TokenRow
from oppo_real.task import arithmetic
from oppo_real.task.arithmetic import Slips, encode
from oppo_real.task.sft import fit
from oppo_real.task.tiny import new_actor, tiny_config
from oppo_sim.draws import draw_normal, draw_uniform, stream_key

Tokens = tuple[int, ...]

LENGTHS: Final = arithmetic.Lengths(median=3.0, sigma=0.8, largest=8)
LARGEST_COUNT: Final = 20
SLIPS: Final = Slips(wrong_result=0.2, give_up=0.1)
COUNT_SLIPS: Final = Slips(wrong_result=0.12, give_up=0.06)
SFT_BATCH: Final = 32


@dataclass(frozen=True)
class Task:
    """Problems by (seed, number); token ids."""

    name: str
    prompt: Callable[[int, int], Tokens]
    answer: Callable[[int, int], Tokens]
    """The right one."""
    demonstration: Callable[[int, int], Tokens]
    """One with slips."""
    reward: Callable[[int, int, Sequence[int]], float]
    """Of a response, 0 to 1."""
    max_prompt_length: int
    max_response_length: int
    sft_steps: int
    learning_rate: float


def _problem(seed: int, number: int) -> arithmetic.ArithmeticProblem:
    return arithmetic.draw_problem(seed, number, LENGTHS)


ARITHMETIC: Final = Task(
    "arithmetic",
    lambda seed, number: _problem(seed, number).prompt(),
    lambda seed, number: arithmetic.demonstrate(_problem(seed, number)),
    lambda seed, number: arithmetic.demonstrate(_problem(seed, number), SLIPS, seed, number),
    lambda seed, number, response: arithmetic.reward(_problem(seed, number), response),
    max_prompt_length=3 + 3 * LENGTHS.largest,
    max_response_length=6 * LENGTHS.largest + 10,
    sft_steps=250,
    learning_rate=1.5e-4,
)


# ---- countdown: `<bos> 1 2 ?` is answered `1 1 = 1 0 = 0 9 = … 0 0 = ! <eos>` ------------------------------


def count_of(seed: int, number: int) -> int:
    """Log-normal, median 5, from 1 to ``LARGEST_COUNT``."""
    drawn = round(5.0 * math.exp(0.8 * draw_normal(stream_key(seed, "countdown/count"), number)))
    return min(max(drawn, 1), LARGEST_COUNT)


def _digits(value: int) -> list[str]:
    return list(f"{value:02d}")


def _written(values: Sequence[int]) -> Tokens:
    return encode([*(word for value in values for word in (*_digits(value), "=")), "!", "<eos>"])


def _counted(seed: int, number: int, slips: Slips) -> Tokens:
    key = stream_key(seed, f"countdown/slips/{number}")
    values, value, position = [], count_of(seed, number), 0
    while value > 0:
        if position and draw_uniform(key, 2 * position) < slips.give_up:
            break
        # A slip leaves out a number.
        value -= 2 if value > 1 and draw_uniform(key, 2 * position + 1) < slips.wrong_result else 1
        values.append(value)
        position += 1
    return _written(values)


def _count_reward(seed: int, number: int, response: Sequence[int]) -> float:
    """Half for the share of leading right numbers, half for the whole answer."""
    right = _counted(seed, number, Slips())
    count, leading = count_of(seed, number), 0
    while leading < count and tuple(response[3 * leading : 3 * leading + 3]) == right[3 * leading :][:3]:
        leading += 1
    return 0.5 * leading / count + 0.5 * (tuple(response) == right)


COUNTDOWN: Final = Task(
    "countdown",
    lambda seed, number: encode(["<bos>", *_digits(count_of(seed, number)), "?"]),
    lambda seed, number: _counted(seed, number, Slips()),
    lambda seed, number: _counted(seed, number, COUNT_SLIPS),
    _count_reward,
    max_prompt_length=4,
    max_response_length=3 * LARGEST_COUNT + 10,
    sft_steps=250,
    learning_rate=1e-4,
)

TASKS: Final[Mapping[str, Task]] = {task.name: task for task in (ARITHMETIC, COUNTDOWN)}


# ---- the fitted actor --------------------------------------------------------------------------------------


def fitted_actor(task: Task, seed: int, folder: Path) -> dict[str, torch.Tensor]:
    """Weights that all runs of a task and seed start from; fitted once, kept under ``folder``."""
    kept = folder / f"{task.name}-{seed}.pt"
    if not kept.exists():
        model = new_actor(seed, _config(task))
        _fit(model, task, seed)
        part = kept.with_suffix(".part")
        torch.save(model.state_dict(), part)
        part.rename(kept)
    found: dict[str, torch.Tensor] = torch.load(kept, weights_only=True)
    return found


def tiny_shape(task: Task) -> dict[str, Any]:
    """The actor's configuration, as a scenario names it."""
    shown = _config(task).to_dict()
    names = (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "max_position_embeddings", "tie_word_embeddings", "initializer_range",
    )  # fmt: skip
    return {"model_type": "qwen2", **{name: shown[name] for name in names}}


def _config(task: Task) -> Any:
    return tiny_config(max_position_embeddings=max(256, task.max_prompt_length + task.max_response_length))


def _fit(model: torch.nn.Module, task: Task, seed: int) -> None:
    drawn_from = seed + 1_000_000  # no problem that PPO or the evaluation sees

    def step_loss(step: int) -> Iterator[torch.Tensor]:
        numbers = range(step * SFT_BATCH, (step + 1) * SFT_BATCH)
        rows = [TokenRow(task.prompt(drawn_from, n), task.demonstration(drawn_from, n)) for n in numbers]
        tokens = sum(len(row.response) for row in rows)
        for group in micro_batches([row.length for row in rows], 2048):
            found = policy_outputs(model, [rows[index] for index in group], temperature=1.0)
            yield -found.log_probs.sum() / tokens

    with packed(model):
        fit(list(model.parameters()), task.sft_steps, 5e-3, 20, step_loss)
