"""A small task without a tokenizer: chains of digit arithmetic, answered step by step.

A prompt is a digit and a chain of labelled operations, ``<bos> 3 a + 5 b - 4 ?``; the response does one step
after another, modulo 10, and then gives the last result: ``3 a + 5 = 8  8 b - 4 = 4  ! 4 <eos>``. The number
of operations has a long tail, and so has the response.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from oppo_sim.draws import draw_index, draw_normal, draw_uniform, stream_key
from oppo_sim.errors import OppoError

MAX_OPERATIONS: Final = 16
OPERATORS: Final = ("+", "-")
OPERANDS: Final = (1, 2, 3, 4, 5)
LABELS: Final = tuple("abcdefghijklmnop")
VOCABULARY: Final = ("<pad>", "<bos>", "<eos>", *"0123456789", *OPERATORS, "=", "?", "!", *LABELS)
_ID: Final = {token: index for index, token in enumerate(VOCABULARY)}
PAD: Final = _ID["<pad>"]
BOS: Final = _ID["<bos>"]
EOS: Final = _ID["<eos>"]
LONGEST_PROMPT: Final = 3 + 3 * MAX_OPERATIONS
"""Tokens: <bos>, the first digit, three an operation, ?."""
STEP_TOKENS: Final = 6
"""Of one step in a response: value, label, operator, operand, =, result."""


@dataclass(frozen=True)
class ArithmeticProblem:
    """A chain: start, then (operator, operand) one after another, all digits."""

    start: int
    operations: tuple[tuple[str, int], ...]

    def results(self) -> tuple[int, ...]:
        """The value after each operation, modulo 10."""
        values, value = [], self.start
        for operator, operand in self.operations:
            value = apply(operator, value, operand)
            values.append(value)
        return tuple(values)

    def prompt(self) -> tuple[int, ...]:
        """Token ids, at most LONGEST_PROMPT."""
        chain: list[str] = []
        for label, (operator, operand) in zip(LABELS, self.operations, strict=False):
            chain += [label, operator, str(operand)]
        return encode(["<bos>", str(self.start), *chain, "?"])


@dataclass(frozen=True)
class Lengths:
    """How many operations: log-normal with this median and shape, from 1 to ``largest``."""

    median: float = 3.0
    sigma: float = 0.8
    largest: int = MAX_OPERATIONS

    def __post_init__(self) -> None:
        if not (self.median > 0 and self.sigma >= 0 and 1 <= self.largest <= MAX_OPERATIONS):
            raise OppoError(
                f"lengths of the arithmetic task: median {self.median} must be above 0, sigma {self.sigma} at"
                f" least 0 and largest {self.largest} from 1 to {MAX_OPERATIONS}"
            )


@dataclass(frozen=True)
class Slips:
    """How demonstrations go wrong: probabilities, a step each."""

    wrong_result: float = 0.0
    """A result off by one; the steps behind it go on from it."""
    give_up: float = 0.0
    """The answer is given before the chain is done."""


def apply(operator: str, value: int, operand: int) -> int:
    """One operation, modulo 10."""
    return (value + operand if operator == "+" else value - operand) % 10


def encode(words: Sequence[str]) -> tuple[int, ...]:
    """Token ids of words of VOCABULARY."""
    return tuple(_ID[word] for word in words)


ANY_LENGTH: Final = Lengths()
NO_SLIPS: Final = Slips()


def draw_problem(seed: int, index: int, lengths: Lengths = ANY_LENGTH) -> ArithmeticProblem:
    """The index-th problem of a seed; no draw depends on another problem."""
    size_key = stream_key(seed, "arithmetic/operations")
    drawn = round(lengths.median * math.exp(lengths.sigma * draw_normal(size_key, index)))
    size = min(max(drawn, 1), lengths.largest)
    key = stream_key(seed, f"arithmetic/problem/{index}")
    operations = tuple(
        (
            OPERATORS[draw_index(key, 2 * position + 1, len(OPERATORS))],
            OPERANDS[draw_index(key, 2 * position + 2, len(OPERANDS))],
        )
        for position in range(size)
    )
    return ArithmeticProblem(draw_index(key, 0, 10), operations)


def demonstrate(
    problem: ArithmeticProblem, slips: Slips = NO_SLIPS, seed: int = 0, index: int = 0
) -> tuple[int, ...]:
    """Token ids of a response with its slips drawn from (seed, index); without slips, the right one."""
    key = stream_key(seed, f"arithmetic/slips/{index}")
    words: list[str] = []
    value = problem.start
    for position, (operator, operand) in enumerate(problem.operations):
        if position and draw_uniform(key, 2 * position) < slips.give_up:
            break
        result = apply(operator, value, operand)
        if draw_uniform(key, 2 * position + 1) < slips.wrong_result:
            result = (result + (1 if draw_index(key, 2 * MAX_OPERATIONS + position, 2) else 9)) % 10
        words += [str(value), LABELS[position], operator, str(operand), "=", str(result)]
        value = result
    return encode([*words, "!", str(value), "<eos>"])


def right_steps(problem: ArithmeticProblem, response: Sequence[int]) -> int:
    """Steps at the head of the response that are right, word for word."""
    solution = demonstrate(problem)
    for position in range(len(problem.operations)):
        step = slice(position * STEP_TOKENS, (position + 1) * STEP_TOKENS)
        if tuple(response[step]) != solution[step]:
            return position
    return len(problem.operations)


def reward(problem: ArithmeticProblem, response: Sequence[int]) -> float:
    """Half for the share of leading right steps, half for a right result and a clean end: 0 to 1."""
    end = encode(["!", str(problem.results()[-1]), "<eos>"])
    answered = tuple(response[-3:]) == end and response.count(EOS) == 1
    return 0.5 * right_steps(problem, response) / len(problem.operations) + 0.5 * answered
