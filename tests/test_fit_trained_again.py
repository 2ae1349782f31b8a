"""TRL's step is an update: several may train what one of them generated."""

import json
from pathlib import Path
from typing import Any

import pytest

from oppo_sim.errors import OppoError
from oppo_sim.fit.call import fit
from oppo_sim.fit.log.reading import read_step_log
from oppo_sim.fit.log.trained_again import of_generations
from oppo_sim.scenario.schema import Scenario
from tests.fit_logs import fit_scenario, short_chains

GENERATED, AGAIN = 50.0, 8.0


def scenario(**training: Any) -> Scenario:
    return fit_scenario(training={"critic": "none", "num_ppo_epochs": 1, **training})


def history(path: Path, generations: int = 8, times: int = 2, every: int = 1, rollouts: int = 64) -> Path:
    """Lines of ``every`` steps, their means, as TRL writes them; those without generation have no lengths."""
    lines: list[dict[str, float]] = []
    for number in range(1, generations + 1):
        made = {"completions/mean_length": 300.0 + number, "num_tokens": rollouts * (400.0 * number)}
        steps = [{"step_time": GENERATED + number, **made}]
        steps += [{"step_time": AGAIN} for _ in range(times - 1)]
        first = (number - 1) * times + 1
        if every == 1:
            lines += [{"step": first + at, **each} for at, each in enumerate(steps)]
        else:
            whole = sum(each["step_time"] for each in steps)
            lines.append({"step": first + times - 1, **made, "step_time": whole / times})
    path.write_text(json.dumps({"log_history": lines}), encoding="utf-8")
    return path


@pytest.mark.parametrize("times", [2, 4])
def test_steps_without_generation_belong_to_the_one_that_generated(times: int, tmp_path: Path) -> None:
    log = of_generations(read_step_log(history(tmp_path / "a.json", times=times)), scenario())
    assert log.frame["step"].tolist() == [1 + times * each for each in range(8)]
    whole = [GENERATED + number + (times - 1) * AGAIN for number in range(1, 9)]
    assert log.frame["timing_s/step"].tolist() == pytest.approx(whole)
    assert log.frame["tokens/total"].tolist()[1:] == pytest.approx([64 * 400.0] * 7)
    (said,) = [note for note in log.notes if "num_iterations" in note]
    assert said.startswith(f"{times} of its steps train what one of them generates")


def test_a_generation_that_the_log_does_not_end_is_counted(tmp_path: Path) -> None:
    path = history(tmp_path / "a.json")
    lines = json.loads(path.read_text())["log_history"][:-1]
    path.write_text(json.dumps({"log_history": lines}))
    log = read_step_log(path)
    assert len(log.frame) == 7
    assert log.left_out == {"step of a generation whose steps are not all logged": 1}


def test_where_lines_are_of_whole_generations_tokens_and_the_scenario_tell(tmp_path: Path) -> None:
    log = read_step_log(history(tmp_path / "a.json", every=2))
    for training in ({"num_ppo_epochs": 2}, {"num_mini_batches": 2}):
        found = of_generations(log, scenario(**training)).frame["timing_s/step"].tolist()
        assert found == pytest.approx([GENERATED + number + AGAIN for number in range(1, 9)])
    with pytest.raises(OppoError, match=r"at most \d+ responses a step, but rollout_batch_size .* is 64"):
        of_generations(log, scenario())


def test_steps_that_all_generate_are_as_they_are(tmp_path: Path) -> None:
    log = read_step_log(history(tmp_path / "a.json", times=1))
    for training in ({}, {"num_ppo_epochs": 2}):
        assert of_generations(log, scenario(**training)) is log


@short_chains()
def test_without_a_kl_there_may_have_been_no_reference_model(tmp_path: Path) -> None:
    """TRL's GRPO has none by default, and its log then no ``kl``."""
    path = history(tmp_path / "a.json", times=1)
    said = "no line has kl, which trl logs where it runs ref"
    assert any(said in note for note in fit(path, scenario()).notes)
    assert not any(said in note for note in fit(path, scenario(ref=False)).notes)
    lines = json.loads(path.read_text())["log_history"]
    path.write_text(json.dumps({"log_history": [{**line, "kl": 0.1} for line in lines]}))
    assert not any(said in note for note in fit(path, scenario()).notes)


@short_chains()
def test_a_fit_is_of_whole_generations(tmp_path: Path) -> None:
    path = history(tmp_path / "a.json", generations=12)
    lines = json.loads(path.read_text())["log_history"]
    lines[8]["step_time"] *= 3.0
    path.write_text(json.dumps({"log_history": lines}))
    result = fit(path, scenario(num_ppo_epochs=2), fit_steps=8)
    (held,) = result.held_out
    assert held.held_steps == 4
    assert any("num_iterations" in note for note in result.notes)
    # Whole steps are all that TRL names here: nothing is beside them.
    assert (9, "timing_s/step") in {(odd.step, odd.column) for odd in result.odd}
