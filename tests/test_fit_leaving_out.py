"""``oppo fit --leave-out``: seconds that a log has and that are not of what is simulated."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from oppo_sim.cli.main import run
from oppo_sim.costs.terms import CostTerms, read_draws
from oppo_sim.errors import OppoError
from oppo_sim.fit.call import fit
from oppo_sim.fit.log.leaving_out import without_metrics
from oppo_sim.fit.log.reading import read_step_log
from oppo_sim.fit.record import fit_record
from oppo_sim.scenario.load import load_scenario
from tests.fit_logs import ALL, TRUTH, fit_scenario, short_chains, verl_log
from tests.import_cases import write_lines

EXAMPLE = Path(__file__).parent.parent / "experiments" / "fit"


def test_generation_of_a_run_that_carried_rollouts_is_left_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a log of ``april``, training is fitted as ever, and decoding is not made faster."""
    scenario = fit_scenario(policy="april")
    (tmp_path / "mine.yaml").write_text(scenario.to_yaml())
    verl_log(tmp_path / "a.log", scenario, TRUTH, policy="april")
    arguments = ["fit", str(tmp_path / "a.log"), "--scenario", str(tmp_path / "mine.yaml"), "--draws", "60"]
    with short_chains():
        assert run([*arguments, "-o", str(tmp_path / "all")]) == 0
        assert "leave generation out (--leave-out timing_s/gen)" in " ".join(capsys.readouterr().err.split())
        assert run([*arguments, "--leave-out", "timing_s/gen", "-o", str(tmp_path / "fit")]) == 0
    printed = capsys.readouterr()
    assert "carries unfinished" not in printed.err
    assert "left out of the fit (--leave-out): timing_s/gen" in " ".join(printed.err.split())
    taken, left = (load_scenario(tmp_path / each / "scenario.yaml").costs for each in ("all", "fit"))
    assert taken.terms.decode < 0.8  # 1.3 in truth
    assert (left.terms.decode, left.terms.gen_phase_s) == (1.0, 0.0)
    assert left.terms.update_actor == pytest.approx(1.2, rel=0.1)
    # Seconds that no metric names are still those of the step without generation.
    assert left.terms.other_s == pytest.approx(0.7, rel=0.15)
    record = json.loads((tmp_path / "fit" / "fit.json").read_text())
    assert record["logs"][0]["not_fitted"] == ["timing_s/gen"]
    assert "decode" not in {each["term"] for each in record["terms"]}


def test_terms_of_generation_are_drawn_from_their_priors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of costs that have priors; the log's tools do not lengthen it either."""
    arguments = ["fit", str(EXAMPLE / "train.log.gz"), "--scenario", str(EXAMPLE / "scenario.yaml")]
    with short_chains():
        assert run([*arguments, "--leave-out", "timing_s/gen", "-o", str(tmp_path / "fit")]) == 0
    assert "Not fitted, at their priors: decode, host and prefill." in " ".join(
        capsys.readouterr().out.split()
    )
    assert "Not fitted, at their priors" in (tmp_path / "fit" / "report.html").read_text()
    written = load_scenario(tmp_path / "fit" / "scenario.yaml").costs
    assert written.drawn_from_priors == ("decode", "host", "prefill")
    assert written.terms.gen_phase_s == 0.0
    draws = np.log([each.decode for each in read_draws(tmp_path / "fit" / "draws.csv")])
    assert draws.std() > 0.05
    assert "judged without gen (" in (tmp_path / "fit" / "report.html").read_text()
    record = json.loads((tmp_path / "fit" / "fit.json").read_text())
    assert record["drawn_from_priors"] == ["decode", "host", "prefill"]


@short_chains()
def test_python_takes_it_too_also_of_a_run_that_is_only_judged(tmp_path: Path) -> None:
    scenario = fit_scenario()
    log = verl_log(tmp_path / "a.log", scenario, TRUTH)
    other = verl_log(tmp_path / "b.log", scenario, TRUTH, seed=1)
    result = fit(log, scenario, fit_steps=ALL, leave_out="gen", judge=[(other, scenario)])
    assert "gen_phase_s" not in result.posterior.terms
    assert {"ref", "update_actor"} <= set(result.posterior.terms)
    columns = {each.column for each in result.judged[0].judgements}
    assert "timing_s/gen" not in columns
    assert {"timing_s/step", "timing_s/update_actor"} <= columns
    (one,) = result.fitted
    both = (replace(one, believed=("decode",)), replace(one, believed=("decode", "ref")))
    assert fit_record(replace(result, fitted=both))["drawn_from_priors"] == ["decode", "ref"]
    whole = fit(log, scenario, fit_steps=ALL, leave_out=["timing_s/step", "timing_s/ref"])
    assert {"other_s", "ref"}.isdisjoint(whole.posterior.terms)
    assert any("left out of the fit (--leave-out): timing_s/ref, timing_s/step" in n for n in whole.notes)


@short_chains()
def test_without_whole_steps_a_short_stage_is_no_surprise_either(tmp_path: Path) -> None:
    """Scoring takes four times what the scenario says, which is a seventieth of a step of 95 s."""
    scenario = fit_scenario()
    truth = TRUTH.then(CostTerms(score=4.0)).model_copy(update={"gen_phase_s": 60.0})
    log = verl_log(tmp_path / "a.log", scenario, truth)
    for left in ((), ("timing_s/step",)):
        result = fit(log, scenario, fit_steps=ALL, leave_out=left, draws=50)
        (note,) = (each for each in result.notes if "outside the 95 % of their priors" in each)
        assert "gen_phase_s (" in note and "score (" not in note


@short_chains()
def test_lengths_of_a_log_with_tools_are_said_to_be_decoded_where_generation_is_left_out() -> None:
    for left, decoded in ((), False), (("gen",), True):
        result = fit(
            EXAMPLE / "train.log.gz", EXAMPLE / "scenario.yaml", leave_out=left, log_lengths=True,
            fit_steps=54, draws=50,
        )  # fmt: skip
        (note,) = (each for each in result.notes if "the written scenario simulates lengths" in each)
        assert ("all of them decoded" in note) == decoded


def test_names_are_ours_the_frameworks_or_a_stage(tmp_path: Path) -> None:
    lines = [
        {"step": step, "perf/rollout_time": 20.0, "perf/actor_train_time": 10.0, "perf/step_time": 31.0}
        | {"rollout/response_len/mean": 400.0}
        for step in (1, 2, 3)
    ]
    log = read_step_log(write_lines(tmp_path / "slime.jsonl", lines))
    assert log.framework == "slime"
    for name in ("timing_s/gen+reward", "gen", "timing_s/gen", "perf/rollout_time", "reward"):
        (marked,) = without_metrics([log], [name])
        assert marked.not_fitted == ("timing_s/gen+reward",), name
    (marked,) = without_metrics([log], ["perf/step_time"])
    assert marked.not_fitted == ("timing_s/step",)


def test_a_name_that_no_log_has_and_nothing_left_are_said(tmp_path: Path) -> None:
    log = read_step_log(verl_log(tmp_path / "a.log", fit_scenario(), TRUTH, steps=4))
    with pytest.raises(OppoError, match=r"--leave-out generation is no metric that is fitted: a.log has "
                       r"timing_s/gen, .*timing_s/step$"):  # fmt: skip
        without_metrics([log], ["generation"])
    with pytest.raises(OppoError, match="leaves nothing of a"):
        without_metrics([log], [*log.covers, "step"])
