"""The arithmetic task: its problems, their rewards, the fitted actor and the learned reward model."""

import copy
from collections.abc import Sequence
from statistics import mean, median
from typing import Any

import pytest
import torch

from oppo_real.task.arithmetic import (
    EOS,
    LONGEST_PROMPT,
    MAX_OPERATIONS,
    STEP_TOKENS,
    VOCABULARY,
    ArithmeticProblem,
    Lengths,
    Slips,
    demonstrate,
    draw_problem,
    encode,
    reward,
    right_steps,
)
from oppo_real.task.reward_model import (
    RewardModelConfig,
    fit_reward_model,
    labelled,
    reward_model_from,
    training_example,
)
from oppo_real.task.sft import SftConfig, fit_actor, rate_factor
from oppo_real.task.tiny import new_actor
from oppo_sim.errors import OppoError

PROBLEM = ArithmeticProblem(3, (("+", 5), ("-", 4), ("+", 9)))
SHORT = Lengths(largest=4)


def decode(tokens: Sequence[int]) -> str:
    return " ".join(VOCABULARY[token] for token in tokens)


def words(text: str) -> tuple[int, ...]:
    return encode(text.split())


# ---- problems and rewards ----------------------------------------------------------------------------------


def test_a_problem_and_its_right_response_read_as_documented() -> None:
    assert decode(PROBLEM.prompt()) == "<bos> 3 a + 5 b - 4 c + 9 ?"
    assert decode(demonstrate(PROBLEM)) == "3 a + 5 = 8 8 b - 4 = 4 4 c + 9 = 3 ! 3 <eos>"
    assert PROBLEM.results() == (8, 4, 3)
    assert len(VOCABULARY) < 40


@pytest.mark.parametrize(
    ("response", "steps", "expected"),
    [
        ("3 a + 5 = 8 8 b - 4 = 4 4 c + 9 = 3 ! 3 <eos>", 3, 1.0),
        ("3 a + 5 = 8 8 b - 4 = 5 5 c + 9 = 4 ! 4 <eos>", 1, 0.5 / 3),  # wrong from the second step on
        ("3 a + 5 = 8 ! 3 <eos>", 1, 0.5 / 3 + 0.5),  # gave up and guessed well
        ("! 3 <eos>", 0, 0.5),
        ("! 4 <eos>", 0, 0.0),
        ("3 a + 5 = 8 8 b - 4 = 4 4 c + 9 = 3 ! 3", 3, 0.5),  # cut before its stop token
        ("3 a + 5 = 8 8 b - 4 = 4 4 c + 9 = 3 ! 5 <eos>", 3, 0.5),
        ("<eos>", 0, 0.0),
    ],
)
def test_rewards_by_hand(response: str, steps: int, expected: float) -> None:
    assert right_steps(PROBLEM, words(response)) == steps
    assert reward(PROBLEM, words(response)) == pytest.approx(expected)
    assert (words(response) == demonstrate(PROBLEM)) == (expected == 1.0)


def test_only_the_right_response_has_the_whole_reward() -> None:
    for index in range(60):
        problem = draw_problem(3, index)
        response = demonstrate(problem)
        assert reward(problem, response) == 1.0
        for position in range(len(response)):
            changed = (
                *response[:position],
                (response[position] + 1) % len(VOCABULARY),
                *response[position + 1 :],
            )
            assert reward(problem, changed) < 1.0


def test_problems_depend_on_seed_and_index_alone_and_vary() -> None:
    forwards = [draw_problem(1, index) for index in range(50)]
    assert [draw_problem(1, index) for index in reversed(range(50))] == forwards[::-1]
    assert [draw_problem(2, index) for index in range(50)] != forwards
    assert len(set(forwards)) > 45


def test_right_responses_have_a_long_tail() -> None:
    lengths = sorted(len(demonstrate(draw_problem(0, index))) for index in range(2000))
    assert lengths[0] == 9
    assert lengths[-1] == STEP_TOKENS * MAX_OPERATIONS + 3
    assert mean(lengths) > 1.2 * median(lengths)
    assert lengths[int(0.99 * len(lengths))] > 4 * median(lengths)
    assert max(len(draw_problem(0, index).prompt()) for index in range(2000)) == LONGEST_PROMPT


def test_slips_are_as_frequent_as_asked() -> None:
    lengths = Lengths(median=6, sigma=0.0)
    problems = [draw_problem(0, index, lengths) for index in range(600)]
    wrong = [
        demonstrate(problem, Slips(wrong_result=0.2), 0, index) for index, problem in enumerate(problems)
    ]
    assert mean(
        tuple(response) == demonstrate(problem) for problem, response in zip(problems, wrong, strict=True)
    ) == pytest.approx(0.8**6, abs=0.05)
    assert {len(response) for response in wrong} == {39}
    brief = [demonstrate(problem, Slips(give_up=0.3), 0, index) for index, problem in enumerate(problems)]
    assert mean(len(response) == 39 for response in brief) == pytest.approx(0.7**5, abs=0.05)
    assert all(
        response[-1] == EOS and right_steps(problem, response) >= 1
        for problem, response in zip(problems, brief, strict=True)
    )


def test_impossible_lengths_are_refused() -> None:
    with pytest.raises(OppoError, match="largest 17 from 1 to 16"):
        Lengths(largest=17)


# ---- learning ----------------------------------------------------------------------------------------------


def test_labels_say_where_a_response_goes_wrong() -> None:
    found = labelled(PROBLEM, words("3 a + 5 = 8 8 b - 4 = 5 5 c + 9 = 4 ! 4 <eos>"))
    assert found.right_so_far == (True,) * 11 + (False,) * 10
    assert all(labelled(PROBLEM, demonstrate(PROBLEM)).right_so_far)
    right = mean(training_example(RewardModelConfig(), index).right_so_far[-1] for index in range(400))
    assert 0.3 < right < 0.7


def test_rates_rise_and_fall() -> None:
    rates = [rate_factor(step, 10, 100) for step in range(100)]
    assert rates[0] == 0.1
    assert max(rates) == rates[9] == 1.0
    assert 0 < rates[-1] < 0.02
    assert rates[10:] == sorted(rates[10:], reverse=True)


@pytest.fixture(scope="module")
def actor() -> Any:
    torch.set_num_threads(1)
    model = new_actor(0)
    fit_actor(model, SftConfig(steps=250, batch_size=24, lengths=SHORT))
    return model


def test_the_fitted_actor_knows_the_form_and_beats_guessing(actor: Any) -> None:
    problems = [draw_problem(9, index, SHORT) for index in range(40)]
    right, formal = [], []
    for problem in problems:
        prompt = torch.tensor([problem.prompt()])
        produced = actor.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=48, do_sample=False
        )
        response = produced[0, prompt.shape[1] :].tolist()
        right.append(reward(problem, response))
        formal.append(response[-1] == EOS and len(response) % 6 == 3)
    assert mean(formal) > 0.9
    assert mean(right) > 0.3


def test_fitting_is_the_same_every_time() -> None:
    torch.set_num_threads(1)
    one, other = new_actor(3), new_actor(3)
    settings = SftConfig(steps=3, batch_size=4)
    assert fit_actor(one, settings) == fit_actor(other, settings)
    assert all(
        torch.equal(left, right) for left, right in zip(one.parameters(), other.parameters(), strict=True)
    )


def test_the_learned_reward_model_tells_right_from_wrong(actor: Any) -> None:
    model = reward_model_from(actor, seed=1)
    before = copy.deepcopy(actor.state_dict())
    settings = RewardModelConfig(steps=300, batch_size=24, lengths=SHORT)
    losses = fit_reward_model(model, settings)
    assert mean(losses[-10:]) < 0.5 * mean(losses[:10])
    fresh = [training_example(RewardModelConfig(seed=77, lengths=SHORT), index) for index in range(300)]
    # As any sequence classifier of transformers: the logit at the last token.
    with torch.no_grad():
        scores = [
            float(model(input_ids=torch.tensor([[*example.row.prompt, *example.row.response]])).logits)
            for example in fresh
        ]
    right = [score for score, example in zip(scores, fresh, strict=True) if example.right_so_far[-1]]
    wrong = [score for score, example in zip(scores, fresh, strict=True) if not example.right_so_far[-1]]
    assert mean(high > low for high in right for low in wrong) > 0.7  # area under the curve: 0.5 is guessing
    assert all(torch.equal(before[name], tensor) for name, tensor in actor.state_dict().items())
