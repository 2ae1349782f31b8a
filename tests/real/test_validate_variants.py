"""Policies with settings of their own in a validation, and those that a search ranks first."""

import json
import shlex
from functools import partial
from math import nan
from pathlib import Path

import pandas as pd
import pytest

from oppo_real.calibrate.sizes import sizes_of
from oppo_real.validate import search
from oppo_real.validate.accuracy import Pair, Prediction, PredictionAccuracy
from oppo_real.validate.search import have_search
from oppo_real.validate.variants import variants_of_search
from oppo_sim import columns as c
from oppo_sim.cli.main import run as oppo
from oppo_sim.errors import OppoError
from oppo_sim.progress import Progress
from oppo_sim.scenario.load import load_scenario
from oppo_sim.scenario.policy_label import labelled_policy
from oppo_sim.tables import read_table
from oppo_sim.tune.request import TuneRequest
from tests.fast_setups import profile_content
from tests.real.test_validate_session import REAL, run, scenario_file


def test_a_variant_has_the_scenarios_settings_and_its_own_over_them(tmp_path: Path) -> None:
    scenario = load_scenario(scenario_file(tmp_path))
    assert dict(labelled_policy(scenario, "inter").settings) == {"overcommit": 2, "chunk_size": 5}
    one = labelled_policy(scenario, "oppo:chunk_size=9:max_deferrals=null")
    assert (one.policy, one.label) == ("oppo", "oppo:chunk_size=9:max_deferrals=null")
    assert dict(one.settings) == {"overcommit": 2, "chunk_size": 9, "max_deferrals": None}
    own = labelled_policy(
        load_scenario(scenario_file(tmp_path, policy={"name": "sequential"})), "intra:chunk_size=3"
    )
    assert dict(own.settings) == {"chunk_size": 3}


def test_a_calibration_holds_what_any_of_the_variants_asks_for(tmp_path: Path) -> None:
    scenario = load_scenario(scenario_file(tmp_path))
    variants = [
        labelled_policy(scenario, label)
        for label in ("sequential", "intra:chunk_size=9", "inter:overcommit=4")
    ]
    sizes = sizes_of(scenario, [(one.policy, one.settings) for one in variants])
    assert sizes.chunk_sizes == (5, 9)
    assert sizes.max_running == 8
    assert sizes_of(scenario).chunk_sizes == (5,)


@pytest.mark.parametrize(
    ("label", "sentence"),
    [
        ("intra:chunk_size=", "chunk_size"),
        ("=3", "name:setting=value"),
        ("intra:chunk_size=3:4", "name:setting=value"),
        ("intra:chunk=3", "chunk"),
        ("intra:chunk_size=zero", "chunk_size"),
    ],
)
def test_what_is_no_setting_is_refused(tmp_path: Path, label: str, sentence: str) -> None:
    file = scenario_file(tmp_path, real={**REAL, "lock_step": True})
    result = run_refused(file, "--policies", f"sequential,{label}", "-o", str(tmp_path / "out"))
    assert sentence in result


def run_refused(*arguments: str) -> str:
    with pytest.raises(OppoError) as found:
        run(*arguments)
    return str(found.value)


def test_one_policy_at_several_chunk_sizes(tmp_path: Path) -> None:
    file = scenario_file(tmp_path, real={**REAL, "lock_step": True})
    labels = "sequential,intra:chunk_size=3,intra:chunk_size=9,oppo:overcommit=1"
    result = run(
        file, "--policies", labels, "--repeats", "1", "--no-figures", "-o", str(tmp_path / "out"), "--json"
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["policies"] == labels.split(",")
    assert all(one["alike"] == one["steps"] for one in found["decisions"])
    pieces = {name: found["work"][name]["scorer/batches"]["measured"] for name in labels.split(",")}
    assert pieces["intra:chunk_size=3"] > pieces["intra:chunk_size=9"] > pieces["sequential"]
    assert found["regret"] == 0


def test_the_settings_that_a_search_ranks(tmp_path: Path) -> None:
    file = scenario_file(tmp_path, real={**REAL, "lock_step": True})
    searched = tmp_path / "searched"
    assert (
        oppo(
            [
                "tune",
                file,
                "--set",
                "seed=5",
                "--trials",
                "16",
                "--draws",
                "0",
                "-o",
                str(searched),
                "--no-figures",
            ]
        )
        == 0
    )
    scenario = load_scenario(file, ["seed=5"])
    variants = variants_of_search(scenario, searched)
    assert len(variants) == 6
    assert variants[0].policy == "sequential"
    chosen = json.loads((searched / "tune.json").read_text())["chosen"]
    assert variants[1].policy == chosen["policy"]
    knobs = {field.removeprefix("policy."): value for field, value in chosen["knobs"].items()}
    assert {name: variants[1].settings[name] for name in knobs} == knobs

    # The command that the search itself names.
    told = json.loads((searched / "tune.json").read_text())["advice"]["next"][-1]
    program, command, *words = shlex.split(told)
    assert (program, command) == ("oppo", "validate")
    result = run(*words, "--repeats", "1", "--no-figures", "-o", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    assert "regret" in result.stdout
    assert variants[-1].label in json.loads((tmp_path / "out" / "validation.json").read_text())["policies"]

    assert "--from-tune" in run_refused(file, "--from-tune", str(searched), "--policies", "sequential,oppo")

    # Of settings that ran alike only the first is measured.
    table = read_table(searched / "trials.parquet", "")
    place = table.index[table[c.TRIAL] == chosen[c.TRIAL]][0]
    twin = table.loc[[place]].assign(**{c.TRIAL: table[c.TRIAL].max() + 1, "policy.max_deferrals": "7"})
    pd.concat([table, twin], ignore_index=True).to_parquet(searched / "trials.parquet")
    assert [one.label for one in variants_of_search(scenario, searched)] == [one.label for one in variants]
    table.to_parquet(searched / "trials.parquet")

    # So is only the first of those within 1 %.
    knob, value = next((name, of) for name, of in chosen["knobs"].items() if isinstance(of, int))
    near = table.loc[[place]].assign(**{c.TRIAL: table[c.TRIAL].max() + 1, knob: value + 40})
    near[c.REGRET] += 0.009
    pd.concat([table, near], ignore_index=True).to_parquet(searched / "trials.parquet")
    assert [one.label for one in variants_of_search(scenario, searched)] == [one.label for one in variants]
    near[c.REGRET] += 0.002
    pd.concat([table, near], ignore_index=True).to_parquet(searched / "trials.parquet")
    setting = knob.removeprefix("policy.")
    assert any(one.settings.get(setting) == value + 40 for one in variants_of_search(scenario, searched))
    table.to_parquet(searched / "trials.parquet")

    # The choice comes first, also where another one ranks before it (and broke a bound on fresh seeds).
    record = json.loads((searched / "tune.json").read_text())
    table = read_table(searched / "trials.parquet", "")
    label = variants[2].label
    for number in table[c.TRIAL]:
        record["chosen"] = {c.TRIAL: int(number)}
        (searched / "tune.json").write_text(json.dumps(record))
        if variants_of_search(scenario, searched)[1].label == label:
            break
    else:
        raise AssertionError(f"{label} is no trial")

    larger = scenario_file(tmp_path, "larger.yaml", rollout_batch_size=8)
    assert "another scenario than" in (said := run_refused(larger, "--from-tune", str(searched)))
    assert "rollout_batch_size is 4 there and 8 here" in said

    for setting in ("trace.length_factor=0.3", "placement.shares_host=false"):
        said = run_refused(file, "--set", setting, "--from-tune", str(searched))
        assert "another scenario than" in said and f"({setting.partition('=')[0]} is " in said
    (searched / "best.yaml").unlink()  # nothing kept all bounds
    assert len(variants_of_search(scenario, searched)) == len(variants)
    said = run_refused(file, "--set", "trace.length_factor=0.3", "--from-tune", str(searched))
    assert "another scenario than" in said

    (searched / "tune.json").unlink()  # a search that was killed while it wrote
    said = run_refused(file, "--from-tune", str(searched))
    assert "no finished search" in said and "oppo calibrate" in said and "--profile" in said


def test_a_search_of_more_than_policies_names_a_validation_of_its_choice(tmp_path: Path) -> None:
    file = scenario_file(tmp_path)
    searched = tmp_path / "searched"
    wider = ("--space", "rollout.kv_capacity_tokens=128,256")
    words = ("tune", file, *wider, "--trials", "8", "--draws", "0", "-o", str(searched), "--no-figures")
    assert oppo(list(words)) == 0
    told = json.loads((searched / "tune.json").read_text())["advice"]
    assert "--from-tune" not in told["next"][-1]
    policies = ",".join(dict.fromkeys(("sequential", told["choice"]["policy"])))
    assert told["next"][-1] == f"oppo validate {searched / 'best.yaml'} --policies {policies}"
    assert "rollout.kv_capacity_tokens is" in run_refused(file, "--from-tune", str(searched))


@pytest.mark.filterwarnings("ignore::oppo_sim.costs.profile.ProfileRangeWarning")
def test_one_command_searches_on_measured_seconds_and_runs_what_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "TuneRequest", partial(TuneRequest, trials=12, draws=0, figures=False))
    (tmp_path / "measured.json").write_text(json.dumps(profile_content()))
    real = {**REAL, "lock_step": True}
    file = scenario_file(tmp_path, costs={"kind": "profile", "path": "measured.json"}, real=real)
    searched, out = tmp_path / "searched", tmp_path / "out"

    def stopped(told: Progress) -> None:
        if told.doing == "search" and told.done >= 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        have_search(load_scenario(file), searched, None, None, stopped)
    assert not (searched / "tune.json").exists()
    asked = [file, "--from-tune", str(searched), "--repeats", "1", "--no-figures", "-o", str(out)]
    result = run(*asked)
    assert result.exit_code == 0, result.output
    assert "regret" in result.stdout
    found = json.loads((out / "validation.json").read_text())["policies"]
    assert found[0] == "sequential" and len(found) > 3
    assert json.loads((searched / "tune.json").read_text())["trials"] == 12
    # As the run has it: nothing is trained, so nothing of it takes time.
    assert set(json.loads((tmp_path / "searched.profile.json").read_text())["training"]["update_actor"]) == {
        0
    }
    assert not have_search(load_scenario(file), searched, None, None, lambda told: None)
    # It is of this scenario, whether anything kept its bounds or not.
    chosen = [one.label for one in variants_of_search(load_scenario(file), searched)]
    (searched / "best.yaml").unlink()
    assert [one.label for one in variants_of_search(load_scenario(file), searched)] == chosen


def test_what_cannot_be_run_is_refused_before_a_search(tmp_path: Path) -> None:
    file = scenario_file(tmp_path, real={**REAL, "lock_step": True})
    with pytest.raises(
        OppoError, match=r"costs of .* are of kind linear, not measured here: 'oppo calibrate"
    ):
        run(file, "--from-tune", str(tmp_path / "none"))
    with pytest.raises(OppoError, match="has no real section"):
        run(scenario_file(tmp_path, real=None), "--from-tune", str(tmp_path / "none"))
    (tmp_path / "measured.json").write_text(json.dumps(profile_content()))
    costs = {"kind": "profile", "path": "measured.json"}
    with pytest.raises(OppoError, match=r"^real.actor_args: the torch engine has no argument 'foo'"):
        run(
            scenario_file(tmp_path, costs=costs, real={**REAL, "actor_args": {"foo": 1}}),
            "--from-tune",
            str(tmp_path / "none"),
        )
    assert not (tmp_path / "none").exists()


def test_without_measuring_nothing_is_searched(tmp_path: Path) -> None:
    (tmp_path / "measured.json").write_text(json.dumps(profile_content()))
    file = scenario_file(tmp_path, costs={"kind": "profile", "path": "measured.json"}, real=REAL)
    asked = (file, "--no-measure", "--from-tune", str(tmp_path / "none"), "-o", str(tmp_path / "out"))
    assert "out.profile.json: to conclude without measuring takes" in run_refused(*asked)
    (tmp_path / "out.profile.json").write_text("{}")
    assert "out.runs.jsonl: to conclude without measuring takes" in run_refused(*asked)
    (tmp_path / "out.runs.jsonl").write_text("")
    said = run_refused(*asked)
    assert "none holds no finished search" in said and "calibrate" not in said
    assert not (tmp_path / "none").exists() and not (tmp_path / "none.profile.json").exists()


def test_regret_is_what_the_predicted_choice_costs() -> None:
    def step(predicted: float) -> dict[str, Prediction]:
        return {"step": Prediction(predicted, nan, nan, nan)}

    stages = {"sequential": step(10.0), "intra": step(8.0), "oppo": step(8.5)}
    pairs = [
        Pair("sequential", "intra", 10.0 / 8.0, 11.0 / 9.0, nan, nan),
        Pair("sequential", "oppo", 10.0 / 8.5, 11.0 / 7.5, nan, nan),
        Pair("intra", "oppo", 8.0 / 8.5, 9.0 / 7.5, nan, nan),
    ]
    accuracy = PredictionAccuracy(stages, {}, {}, [], [], 0, pairs=pairs)
    assert accuracy.regret == pytest.approx(9.0 / 7.5 - 1.0)
    assert accuracy.swaps == (pairs[2],)
    assert accuracy.rank_agreement == pytest.approx(1 / 3)
    assert PredictionAccuracy(stages, {}, {}, [], [], 0, pairs=pairs[:2]).regret == 0
    assert PredictionAccuracy(stages, {}, {}, [], [], 0, pairs=pairs[:2]).lost_to is None


@pytest.mark.parametrize(("low", "high", "shown"), [(0.99, 1.08, False), (1.01, 1.06, True)])
def test_a_regret_that_the_repeats_do_not_show_is_said_to_be_none_that_is_known(
    low: float, high: float, shown: bool
) -> None:
    """The chosen policy may be the first of the pair or the second."""

    def step(predicted: float) -> dict[str, Prediction]:
        return {"step": Prediction(predicted, nan, nan, nan)}

    stages = {"intra": step(8.0), "oppo": step(8.1)}
    for pair in (
        Pair("intra", "oppo", 8.0 / 8.1, 1.035, low, high),
        Pair("oppo", "intra", 8.1 / 8.0, 1 / 1.035, 1 / high, 1 / low),
    ):
        accuracy = PredictionAccuracy(stages, {}, {}, [], [], 0, pairs=[pair])
        lost = accuracy.lost_to
        assert lost is not None
        assert (lost.first, lost.second) == ("intra", "oppo")
        assert (lost.low, lost.high) == pytest.approx((low, high))
        assert accuracy.regret == pytest.approx(0.035)
        assert lost.told_apart == shown


def test_work_that_no_repeat_did_is_told() -> None:
    def batches(predicted: float) -> PredictionAccuracy:
        cell = Prediction(predicted, 11.0, 10.0, 12.0)
        return PredictionAccuracy({}, {}, {"intra": {c.SCORER_BATCHES: cell}}, [], [], 0)

    assert [one[:2] for one in batches(15.0).unlike_work] == [("intra", c.SCORER_BATCHES)]
    assert len(batches(8.9).unlike_work) == 1
    for alike in (9.2, 10.5, 13.1):
        assert not batches(alike).unlike_work
    idle = Prediction(0.0, 0.0, 0.0, 0.0)
    assert not PredictionAccuracy({}, {}, {"intra": {c.TOKENS_DECODED: idle}}, [], [], 0).unlike_work
