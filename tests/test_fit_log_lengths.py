"""``oppo fit --log-lengths``: the written scenario simulates what the log's rollouts were."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oppo_sim import columns as c
from oppo_sim.cli.main import run
from oppo_sim.errors import OppoError
from oppo_sim.fit.call import fit
from oppo_sim.fit.log_lengths import dealt, lengths_of_logs, prompt_correlation
from oppo_sim.fit.sources import open_log
from oppo_sim.fit.terms.decoding import AS_IT_IS
from oppo_sim.fit.terms.generation import TOOL_SHARE, Generated, generation_of
from oppo_sim.fit.terms.priors import TOOL_TOKENS
from oppo_sim.fit.terms.stages import tool_share
from oppo_sim.scenario.build import build_parts
from oppo_sim.scenario.load import load_scenario
from oppo_sim.scenario.schema import Scenario
from oppo_sim.simulation import simulate
from oppo_sim.traces.storage import load_trace, save_trace
from tests.fit_logs import TRUTH, fit_scenario, short_chains, verl_log

EXAMPLE = Path(__file__).parents[1] / "experiments" / "fit"
SHORTER = {"synth": {"distribution": "lognormal", "mean": 60.0, "p99": 300.0, "rows": 960}}
GROUPED = {
    "synth": {**SHORTER["synth"], "samples_per_prompt": 8, "prompt_correlation": 0.6},
    "prompt_length": 100,
}


@given(
    st.lists(st.integers(1, 2000), min_size=1, max_size=60),
    st.integers(1, 8),
    st.floats(0, 1),
    st.integers(0, 99),
)
def test_lengths_dealt_to_prompts_are_the_same_lengths(
    lengths: list[int], group_size: int, alike: float, seed: int
) -> None:
    found = dealt(np.array(lengths), group_size, alike, np.random.default_rng(seed))
    assert sorted(found.tolist()) == sorted(lengths)


@pytest.mark.parametrize("alike", [0.0, 0.4, 0.9])
def test_samples_of_a_prompt_are_as_alike_as_they_were(alike: float) -> None:
    generator = np.random.default_rng(3)
    lengths = np.rint(np.exp(generator.normal(6, 1, 8000))).astype(np.int64)
    assert prompt_correlation(dealt(lengths, 8, alike, generator).tolist(), 8) == pytest.approx(
        alike, abs=0.04
    )


def test_equal_lengths_and_single_samples_have_no_correlation() -> None:
    assert prompt_correlation([7] * 16, 4) == prompt_correlation([1, 2, 3], 1) == 0.0


def test_the_written_scenario_takes_as_long_as_the_logged_run(tmp_path: Path) -> None:
    """A real run whose rollouts call tools and whose longest response falls from thousands of tokens to a
    dozen: its own trace, and draws of all of its lengths, are far off."""
    with short_chains():
        result = fit(
            EXAMPLE / "train.log.gz",
            EXAMPLE / "scenario.yaml",
            fit_steps=15,
            log_lengths=True,
            folder=tmp_path / "fit",
            figures=False,
        )
    logged = result.parts[0].log.frame
    simulated = simulate(tmp_path / "fit" / "scenario.yaml", policy="sequential", steps=len(logged)).steps
    for name in (c.TIMING_STEP, c.timing("gen"), c.timing("update_actor")):
        assert simulated[name].mean() == pytest.approx(logged[name].mean(), rel=0.08), name
    trace = load_trace(tmp_path / "fit" / "lengths.parquet")
    assert trace[c.TOOL_TOKENS].map(sum).sum() > 0.1 * trace[c.RESPONSE_LENGTH].sum()


def test_each_step_has_the_logged_figures_and_prompts_their_samples(tmp_path: Path) -> None:
    log = open_log(verl_log(tmp_path / "train.log", fit_scenario(), TRUTH, steps=6))
    scenario = fit_scenario(group_size=8, trace=GROUPED)
    found = lengths_of_logs([log, log], scenario, seed=1)
    assert found.frame is not None
    by_step = found.frame.groupby(c.STEP)[c.RESPONSE_LENGTH]
    assert by_step.count().tolist() == [64] * 12
    for name, values in ((c.LENGTH_MEAN, by_step.mean()), (c.LENGTH_MAX, by_step.max())):
        assert values.tolist() == pytest.approx([*log.frame[name], *log.frame[name]], abs=0.02)
    assert set(found.frame.groupby(c.PROMPT_ID).size()) == {8}
    assert (found.frame[c.PROMPT_LENGTH] == 100).all()
    assert prompt_correlation(found.frame[c.RESPONSE_LENGTH].tolist(), 8) == pytest.approx(0.6, abs=0.15)
    assert "correlation 0." in found.said


def test_a_log_of_other_lengths_than_the_trace_is_told_with_what_mends_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    verl_log(tmp_path / "train.log", fit_scenario(), TRUTH)
    for name, scenario in {"same": fit_scenario(), "other": fit_scenario(trace=SHORTER)}.items():
        (tmp_path / f"{name}.yaml").write_text(scenario.to_yaml())
        with short_chains():
            assert run(["fit", "train.log", "--scenario", f"{name}.yaml", "-o", name, "--no-figures"]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "tokens in the mean" in line]
    assert len(said) == 1  # of the other one
    assert "--log-lengths" in said[0]
    again = ["fit", "train.log", "--scenario", "other.yaml", "-o", "mended", "--no-figures", "--log-lengths"]
    with short_chains():
        assert run([*again, "--set", "training.num_mini_batches=2"]) == 0
    assert load_scenario("mended/scenario.yaml").training.num_mini_batches == 2
    assert "simulates lengths rebuilt from the figures of 24 steps" in capsys.readouterr().err
    logged = open_log("train.log").frame
    for name, right in (("other", False), ("mended", True)):
        steps = simulate(f"{name}/scenario.yaml", policy="sequential", steps=24).steps
        error = abs(steps[c.TIMING_STEP].mean() / logged[c.TIMING_STEP].mean() - 1)
        assert (error < 0.05) == right, (name, error)


def test_lengths_of_a_log_need_no_trace_with_as_many_samples(tmp_path: Path) -> None:
    log = verl_log(tmp_path / "train.log", fit_scenario(), TRUTH, steps=6)
    alone = {"name": "reason_r1distill_math", "prompt_length": 100}
    scenario = fit_scenario(group_size=8, trace=alone)
    with pytest.raises(OppoError, match=r"has 8 samples: .*--log-lengths"):
        fit(log, scenario, fit_steps=6)
    with short_chains():
        result = fit(log, scenario, fit_steps=6, log_lengths=True, folder=tmp_path / "fit", figures=False)
    assert any("taken to be alike by 0.5 (assumed" in note for note in result.notes)
    lengths = load_trace(tmp_path / "fit" / "lengths.parquet")[c.RESPONSE_LENGTH].to_numpy()
    assert 0.3 < prompt_correlation(lengths, 8) < 0.7
    steps = simulate(tmp_path / "fit" / "scenario.yaml", policy="inter", steps=6).steps
    assert steps[c.TIMING_STEP].gt(0).all()


@pytest.mark.parametrize("batching", ["continuous", "static"])
def test_answers_of_tools_are_apart_where_rollouts_can_call_them(tmp_path: Path, batching: str) -> None:
    log = open_log(verl_log(tmp_path / "train.log", fit_scenario(), TRUTH, steps=3))
    found = lengths_of_logs([log], fit_scenario(rollout={"batching": batching}), seed=0)
    apart = found.with_tools(0.25)
    assert found.frame is not None
    assert apart.frame is not None
    if batching == "static":
        assert apart == found
        return
    whole, made = found.frame[c.RESPONSE_LENGTH], apart.frame[c.RESPONSE_LENGTH]
    assert (made + apart.frame[c.TOOL_TOKENS].map(sum)).tolist() == whole.tolist()
    cut = found.frame[c.FINISH_REASON] == "length"
    assert (made[cut] == whole[cut]).all()
    assert made[~cut].sum() == pytest.approx(0.75 * whole[~cut].sum(), rel=0.01)


def test_a_fit_counts_answers_of_tools_as_its_written_scenario_does(tmp_path: Path) -> None:
    log = open_log(verl_log(tmp_path / "train.log", fit_scenario(), TRUTH, steps=1))
    whole = lengths_of_logs([log], fit_scenario(), seed=0)
    path = tmp_path / "answers.parquet"
    scenario = fit_scenario(trace={"path": str(path), "sampling": "in_order"}, rollout={"num_replicas": 2})
    seconds = []
    for made in (whole, whole.with_tools(TOOL_SHARE)):
        assert made.frame is not None
        save_trace(made.frame, path, overwrite=True)
        seconds.append(simulate(scenario, policy="sequential", steps=1).steps[c.timing("gen")].sum())
    assert whole.frame is not None
    responses, prompts = (whole.frame[name].to_numpy() for name in (c.RESPONSE_LENGTH, c.PROMPT_LENGTH))
    step = Generated(responses[None, None, :], prompts[None, :], scenario.max_response_length, np.inf)
    generated = generation_of([step], build_parts(scenario), None, tools=True)
    counted = generated.decode[:, AS_IT_IS, 0] + generated.prefill[:, 0]
    assert counted == pytest.approx(seconds, rel=0.01)
    assert generated.prefill[1, 0] > 1.1 * generated.prefill[0, 0]


def test_no_more_than_half_of_a_response_is_taken_for_answers_of_tools() -> None:
    assert tool_share({TOOL_TOKENS: np.array([0.1, 0.7, 3.0])}).tolist() == [0.1, 0.5, 0.5]
    assert tool_share({}).tolist() == [0.0]


@pytest.mark.parametrize("real", [True, False])
def test_rollouts_of_a_run_of_this_tool_are_simulated_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real: bool
) -> None:
    """A real run keeps its rollouts as a trace, a simulated one their lengths."""
    monkeypatch.chdir(tmp_path)
    first = simulate(fit_scenario(), policy="sequential", steps=8, folder="logged")
    if real:
        monkeypatch.setattr("oppo_sim.fit.log_lengths._is_trace", lambda path: path == "logged")
    (tmp_path / "other.yaml").write_text(fit_scenario(trace=SHORTER).to_yaml())
    with short_chains():
        result = fit("logged", "other.yaml", log_lengths=True)
    (lengths,) = (each.lengths for each in result.fitted)
    assert lengths is not None
    if real:
        section = lengths.trace("lengths.parquet", tmp_path / "fits" / "one")
        assert section == {"path": "../../logged", "sampling": "by_step"}
        return
    assert lengths.frame is not None
    means = lengths.frame.groupby(c.STEP)[c.RESPONSE_LENGTH].mean()
    assert means.tolist() == pytest.approx(first.steps[c.LENGTH_MEAN].tolist())


def _with_calls() -> Scenario:
    tools = {"mean_calls": 1.0, "mean_s": 1.0}
    return fit_scenario(trace={"synth": {**SHORTER["synth"], "tools": tools}, "prompt_length": 9})


@pytest.mark.parametrize(
    ("scenario", "says"),
    [
        (_with_calls(), "call tools, which the lengths of a log do not show"),
        (
            fit_scenario(group_size=8, trace=GROUPED, dynamic_sampling={"enable": True}),
            "set dynamic_sampling.pass_rate",
        ),
        (fit_scenario(rewards={"kind": "trace"}), "rewards.kind trace"),
    ],
)
def test_what_no_log_has_is_said_before_anything_is_fitted(tmp_path: Path, scenario: Any, says: str) -> None:
    log = open_log(verl_log(tmp_path / "train.log", fit_scenario(), TRUTH, steps=4))
    with pytest.raises(OppoError, match=says):
        lengths_of_logs([log], scenario, seed=0)


def test_rollouts_that_a_trace_has_are_given_as_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = verl_log(tmp_path / "train.log", fit_scenario(), TRUTH, steps=4)
    rows = pd.DataFrame({"step": np.repeat(range(1, 5), 64), "response_length": 250})
    with pytest.raises(OppoError, match="give it to compare, sweep and tune as --trace"):
        lengths_of_logs([open_log(log, lengths=rows)], fit_scenario(), seed=0)
    given = [str(log), "--scenario", "h200-single", "--log-lengths", "-o", str(tmp_path / "fit")]
    assert run(["fit", *given, "--lengths", "rollouts.parquet"]) == 2
    assert "as --trace" in capsys.readouterr().err
    observed = ["--scenario", "h200-single", "--observe", "timing_s/step=9", "--log-lengths"]
    assert run(["fit", *observed]) == 2
    assert "--log-lengths" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("steps", "said"), [(60, "its first ones again"), (4, "the first 4 of them"), (6, "")]
)
def test_a_scenario_of_another_number_of_steps_than_its_log_is_said(
    steps: int, said: str, tmp_path: Path
) -> None:
    log = open_log(verl_log(tmp_path / "train.log", fit_scenario(), TRUTH, steps=6))
    found = lengths_of_logs([log], fit_scenario(steps=steps), seed=1).said
    assert said in found
    assert ("--steps 6" in found) == bool(said)
