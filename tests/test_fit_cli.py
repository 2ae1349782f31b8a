"""``oppo fit`` from logs and from observations to a scenario that the other commands take."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oppo_sim.cli.main import run
from oppo_sim.cli.present_fit import show_fit
from oppo_sim.costs.terms import read_draws
from oppo_sim.errors import OppoError
from oppo_sim.fit.call import observe
from oppo_sim.fit.observe import observe_record, read_observation
from oppo_sim.plain_json import plain
from oppo_sim.report.html_fit import answer_of
from oppo_sim.scenario.load import load_scenario
from oppo_sim.simulation import simulate
from tests.fit_logs import TRUTH, fit_scenario, short_chains, verl_log


@pytest.fixture(scope="module", autouse=True)
def _short_chains() -> Iterator[None]:
    with short_chains():
        yield


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log, its scenario, another run's log, and the folder of a fit."""
    folder = tmp_path_factory.mktemp("cli")
    scenario = fit_scenario()
    (folder / "mine.yaml").write_text(scenario.to_yaml())
    verl_log(folder / "train.log", scenario, TRUTH, steps=18, extra={2: {"timing_s/ref": -1.0}})
    other = fit_scenario(rollout_batch_size=32)
    (folder / "other.yaml").write_text(other.to_yaml())
    verl_log(folder / "other.log", other, TRUTH, steps=6)
    arguments = ["fit", str(folder / "train.log"), "--scenario", str(folder / "mine.yaml")]
    arguments += ["--judge", str(folder / "other.log"), "--judge-scenario", str(folder / "other.yaml")]
    assert run([*arguments, "-o", str(folder / "fit"), "--draws", "60"]) == 0
    return folder


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140])
def test_terms_and_their_numbers_stay_whole_at_any_width(
    written: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    record = json.loads((written / "fit" / "fit.json").read_text())
    show_fit(record, written / "fit")
    lines = capsys.readouterr().out.splitlines()
    tables = lines[: next(at for at, line in enumerate(lines) if line.startswith("train.log: of"))]
    assert max(map(len, tables[:-1])) <= width
    assert all(line.count("[") == line.count("]") for line in tables)
    for each in record["terms"]:
        (row,) = [number for number, line in enumerate(tables) if line.split()[:1] == [each["term"]]]
        assert any("[" in line for line in tables[row : row + 3])


def test_the_folder_holds_what_other_commands_take(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written / "fit"
    scenario = load_scenario(folder / "scenario.yaml")
    draws = read_draws(folder / "draws.csv")
    assert len(draws) == 60
    assert scenario.costs.draws == "draws.csv"
    assert scenario.costs.terms.ref == pytest.approx(0.8, rel=0.15)
    assert {path.name for path in (folder / "figures").iterdir()} == {
        "measured_predicted.png", "residuals.png", "errors.png", "terms.png",
    }  # fmt: skip
    assert "<svg" in (folder / "report.html").read_text()
    step = simulate(scenario, policy="sequential", steps=4).step_s
    truth = fit_scenario().costs.model_copy(update={"terms": TRUTH})
    real = simulate(fit_scenario().model_copy(update={"costs": truth}), policy="sequential", steps=4).step_s
    assert step == pytest.approx(real, rel=0.05)
    arguments = [
        "compare",
        str(folder / "scenario.yaml"),
        "--policies",
        "intra",
        "--seeds",
        "1",
        "--steps",
        "3",
    ]
    assert run([*arguments, "--no-figures", "-o", str(written / "compared"), "--executor", "serial"]) == 0
    assert run(["report", str(folder), "-o", str(written / "again.html")]) == 0
    capsys.readouterr()


def test_the_record_says_what_was_held_back_judged_and_left_out(written: Path) -> None:
    record: dict[str, Any] = json.loads((written / "fit" / "fit.json").read_text())
    (held,), (judged,) = record["held_out"], record["judged"]
    assert (held["fitted_steps"], held["held_steps"]) == (12, 5)
    assert judged["log"] == "other.log"
    for each in (held, judged):
        errors = each["errors"]["timing_s/step"]
        assert errors["model"]["p90"] < 0.08
        assert set(errors) == {"model", "naive_mean", "naive_line"}
    assert record["left_out"]["train.log"] == {"step with negative seconds": 1}
    assert {each["verdict"] for each in record["terms"]} <= {"identified", "partly", "not identified"}


def test_json_and_a_taken_folder(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["fit", str(written / "train.log"), "--scenario", str(written / "mine.yaml"), "--draws", "20"]
    assert run([*arguments, "-o", str(written / "fit")]) == 2
    assert "finished run" in capsys.readouterr().err
    assert run([*arguments, "-o", str(written / "second"), "--json", "--no-figures", "--fit-steps", "8"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["held_out"][0]["fitted_steps"] == 8


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give training logs, or --observe"),
        (["train.log", "--observe", "timing_s/step=3"], "give training logs, or --observe"),
        (["missing.log"], "does not exist"),
        (["train.log", "--scenario", "other.yaml"], "rollout_batch_size"),
        (["train.log", "--field", "timing_s/gen"], "COLUMN=NAME"),
        (["train.log", "train.log", "train.log", "--scenario", "other.yaml"], "3 logs and 2 scenarios"),
        (["--observe", "timing_s/nap=3"], "'timing_s/nap' is not known"),
        (["--observe", "timing_s/step=soon"], "no number and no range"),
        (["--observe", "share/gen=79"], "a share from 0 to 1 (79 % is share/gen=79% or share/gen=0.79)"),
        (["--observe", "share/gen=70..80"], "(70..80 % is share/gen=70..80% or share/gen=0.7..0.8)"),
        (["--observe", "share/reward=150"], "cannot be; give a share from 0 to 1\n"),
        (["--observe", "timing_s/step=1e400"], "no number and no range"),
        (["--observe", "timing_s/step=3%"], "no number and no range"),
        (["--observe", "timing_s/step=3", "--unit", "ms"], "are for logs"),
        (["train.log", "--judge-scenario", "other.yaml"], "give it with --judge"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    arguments: list[str],
    said: str,
    written: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(written)
    scenario = ["--scenario", "mine.yaml"]
    if arguments == ["train.log", "--scenario", "other.yaml"]:
        scenario = []
    assert run(["fit", *arguments, *scenario, "-o", "never"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not Path("never").exists()


def test_observations_narrow_what_they_are_about(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    costs = fit_scenario().costs.model_copy(update={"terms": TRUTH})
    truth = simulate(fit_scenario().model_copy(update={"costs": costs}), policy="sequential", steps=4).steps
    step, ref = (float(truth[f"timing_s/{name}"].iloc[1:].mean()) for name in ("step", "ref"))
    arguments = ["fit", "--scenario", str(written / "mine.yaml"), "-o", str(written / "observed"), "--json"]
    arguments += ["--observe", f"timing_s/step={step}", "--observe", f"timing_s/ref={0.9 * ref}..{1.1 * ref}"]
    assert run([*arguments, "--draws", "60"]) == 0
    record = json.loads(capsys.readouterr().out)
    before, after = record["observed"][0]["prior"], record["observed"][0]["posterior"]
    assert after[2] - after[0] < (before[2] - before[0]) / 3
    assert after[1] == pytest.approx(step, rel=0.05)
    assert 0.88 * ref < record["observed"][1]["posterior"][1] < 1.12 * ref
    widths = {each["term"]: each["width"] for each in record["terms"]}
    assert widths["ref"] < 1.0
    assert load_scenario(written / "observed" / "scenario.yaml").costs.draws == "draws.csv"
    numbers = {"timing_s/step": step, "timing_s/ref": (0.9 * ref, 1.1 * ref)}
    told = observe(written / "mine.yaml", numbers, draws=60, folder=written / "python", figures=False)
    assert plain(observe_record(told)) == record
    assert (written / "python/draws.csv").read_bytes() == (written / "observed/draws.csv").read_bytes()
    assert list(told.terms["term"]) == [each["term"] for each in record["terms"]]
    assert repr(told).startswith("Observed(timing_s/step=")
    # Numbers that the kept costs do not give are not said to agree.
    assert not any("is missed" in each for each in answer_of(record))
    twice = [{**each, "low": 2 * step, "high": 2 * step} for each in record["observed"][:1]]
    said = " ".join(answer_of({**record, "observed": twice}))
    assert "is missed: the costs that agree best give" in said
    assert "together they agree" not in said


def test_numbers_that_contradict_each_other_are_not_said_to_agree(
    written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """64 rollouts in a step of as many seconds are one a second."""
    step = 40.0
    arguments = [
        "fit",
        "--scenario",
        str(written / "mine.yaml"),
        "-o",
        str(written / "torn"),
        "--draws",
        "60",
    ]
    arguments += ["--observe", f"timing_s/step={step}"]
    assert run([*arguments, "--observe", f"rollouts_per_s={64 / step * 1.25}"]) == 0
    said = capsys.readouterr().out
    assert "is missed: the costs that agree best give" in said
    assert "together they agree" not in said
    assert "what the costs give" in said
    assert "identified by the log" not in said
    assert run([*arguments, "--observe", "timing_s/step=50", "--force"]) == 2
    error = capsys.readouterr().err
    assert "timing_s/step is given twice" in error
    assert "--observe timing_s/step=40..50" in error


def test_numbers_that_no_costs_give_are_refused(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "fit",
        "--scenario",
        str(written / "mine.yaml"),
        "-o",
        str(written / "never"),
        "--draws",
        "20",
    ]
    assert run([*arguments, "--observe", "timing_s/step=0.001"]) == 2
    assert "no costs agree with timing_s/step=0.001" in capsys.readouterr().err
    assert run([*arguments, "--observe", "timing_s/step=40000..45000"]) == 2
    assert "is it in milliseconds? Give seconds" in capsys.readouterr().err
    assert run([*arguments, "--observe", "timing_s/values=3"]) == 2
    assert "timing_s/values=3: the scenario has none of it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "low", "high", "spread"),
    [
        ("timing_s/step=171", 171, 171, 5.13),
        ("timing_s/gen=160..180", 160, 180, 1.0),
        ("timing_s/step=260..2600", 260, 2600, 13.0),  # of its low end: 117 s would let 150 s pass
        ("timing_s/gen=0..20", 0, 20, 1.0),
        ("timing_s/gen=1.7e2±5", 170, 170, 5),
        ("utilization/inference=.506", 0.506, 0.506, 0.02),
        ("share/reward = 0.1 .. 0.2", 0.1, 0.2, 0.005),
        ("utilization/inference=50.6%", 0.506, 0.506, 0.02),
        ("utilization/inference=50.6±4 %", 0.506, 0.506, 0.04),
        ("utilization/inference=45%..60%", 0.45, 0.6, 0.0075),
    ],
)
def test_a_number_a_range_or_a_number_with_its_error(
    text: str, low: float, high: float, spread: float
) -> None:
    found = read_observation(text)
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.spread == pytest.approx(spread)


def test_a_range_that_falls_is_refused() -> None:
    with pytest.raises(OppoError, match="a range that rises"):
        read_observation("timing_s/step=180..160")


def test_terms_that_are_not_identified_are_named_once_where_they_are_many() -> None:
    def answer(left: int) -> str:
        verdicts = ["not identified"] * left + ["identified"] * (9 - left)
        terms = [{"term": f"term_{number}", "verdict": each} for number, each in enumerate(verdicts)]
        return " ".join(answer_of({"from": "logs", "terms": terms}))

    assert answer(2) == "Not identified by the log: term_0 and term_1; their priors stand."
    assert answer(7) == "Not identified by the log: 7 of 9 terms; their priors stand."
