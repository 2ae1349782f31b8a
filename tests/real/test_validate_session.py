"""``oppo validate`` end to end on tiny models: shape of the report, decisions in lock-step, going on, and
what is refused."""

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result

from oppo_real.calibrate.session import CalibrationSession
from oppo_real.calibrate.subject import check_profile_matches, comparable
from oppo_real.config import parse_real_config
from oppo_real.placement.cores import available_cores
from oppo_real.run import start
from oppo_real.validate import before, calibrating, intervals, measure, sentences, session
from oppo_real.validate.measure import RealRuns, core_share
from oppo_real.validate.predict import EngineLimits, limits_of
from oppo_sim.cli.main import oppo as group
from oppo_sim.costs.profile import Profile, load_profile
from oppo_sim.errors import OppoError
from oppo_sim.finished_run import read_run_folder
from oppo_sim.run_folder import RunFolder
from oppo_sim.scenario import build

MODEL = {
    "model_type": "qwen2", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 256,
}  # fmt: skip
REAL: dict[str, Any] = {"models": {"actor": MODEL, "reward": MODEL}, "placement": {"threads": 1}}
SCENARIO: dict[str, Any] = {
    "format": "oppo-scenario/1",
    "name": "tiny",
    "steps": 3,
    "warmup_steps": 1,
    "rollout_batch_size": 4,
    "max_prompt_length": 12,
    "max_response_length": 40,
    "trace": {"synth": {"mean": 12, "p99": 36, "rows": 60, "seed": 1}, "prompt_length": 6},
    "training": {"num_ppo_epochs": 1, "old_log_prob": "behaviour", "ref": False, "critic": "value_head"},
    "scoring": {"max_scoring_tokens": 96},
    "costs": {"kind": "linear", "decode": {"fixed": 1.0}},
    "policy": {"name": "oppo", "overcommit": 2, "chunk_size": 5},
    "policies": {"inter": {"overcommit": 2}},
    "real": REAL,
}
CALIBRATED = ("--budget-s", "60", "--no-contention", "--no-figures")


pytestmark = pytest.mark.usefixtures("one_thread")


def scenario_file(folder: Path, name: str = "tiny.yaml", **changes: Any) -> str:
    path = folder / name
    path.write_text(json.dumps({**SCENARIO, **changes}))  # JSON is YAML
    return str(path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(group, ["validate", *arguments], catch_exceptions=False)


def interrupt_run(monkeypatch: pytest.MonkeyPatch, number: int) -> list[int]:
    """Ctrl-C as the real run of that number begins; an entry for each that began."""
    execute = start.execute
    begun: list[int] = []

    def interrupted(*given: Any, **named: Any) -> Any:
        begun.append(1)
        if len(begun) == number:
            raise KeyboardInterrupt
        return execute(*given, **named)

    monkeypatch.setattr(measure, "execute", interrupted)
    return begun


def test_in_lock_step_every_decision_agrees(tmp_path: Path) -> None:
    file = scenario_file(tmp_path, real={**REAL, "lock_step": True}, rollout={"kv_capacity_tokens": 128})
    result = run(file, "-o", str(tmp_path / "out"), "--repeats", "2", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["unit"] == "decode iterations"
    assert len(found["decisions"]) == 8
    assert all(
        one["alike"] == 3 and one["first_difference"] is None and one["trained_alike"] == 1
        for one in found["decisions"]
    )
    assert found["rank_agreement"] == 1
    assert all(one["error"] == 0 for one in found["speedups"])
    assert found["speedups"][-1]["measured"] > 1
    folder = read_run_folder(tmp_path / "out")
    folder.verify()
    assert folder.manifest["kind"] == "validation"
    assert folder.manifest["engines"]["actors"][0]["kv_capacity_tokens"] == 128
    assert all(
        folder.path(f"figures/{name}.png").read_bytes().startswith(b"\x89PNG")
        for name in ("stages", "speedups", "steps")
    )
    page = folder.path("validation.md").read_text()
    assert "](figures/speedups.png)" in page
    assert "| first difference, steps from 0 |" in page
    assert not list(tmp_path.glob("out.*"))


def test_the_report_of_a_calibrated_run(tmp_path: Path) -> None:
    file = scenario_file(tmp_path, real={**REAL, "ppo": {"enabled": True}})
    output = tmp_path / "out"
    result = run(file, "--policies", "sequential,oppo", "--repeats", "2", "-o", str(output), *CALIBRATED)
    assert result.exit_code == 0
    assert "speed-up against sequential" in result.stdout
    folder = read_run_folder(output)
    found = folder.json("validation.json")
    whole = found["stages"]["oppo"]["step"]
    assert whole["predicted"] > 0
    assert 0 < whole["lowest"] <= whole["measured"] <= whole["highest"]
    assert whole["error"] == pytest.approx(whole["predicted"] / whole["measured"] - 1)
    assert found["stages"]["sequential"]["update_actor"]["predicted"] > 0
    (speedup,) = found["speedups"]
    # On a busy machine this small calibration may disagree with itself.
    assert ("Kendall's tau" in result.stdout) == speedup["settled"] == (speedup["predicted"] is not None)
    assert ("the calibration disagrees with itself" in result.stdout) != speedup["settled"]
    for side in ("predicted", "measured"):
        low, high = speedup[f"{side}_interval"]
        assert 0 < low <= high
    assert len(found["by_step"]["oppo"]) == 3
    assert len(found["runs"]) == 4
    # With one replica and no overcommit, who is trained when does not depend on seconds.
    assert all(one["alike"] == 3 for one in found["decisions"] if one["policy"] == "sequential")
    frame = folder.frame("steps.parquet")
    assert set(frame.columns) == {"policy", "step", "stage", "predicted", "measured", "lowest", "highest"}

    # The profile it wrote serves again, for these models alone.
    profile = str(folder.path("profile.json"))
    again = run(
        file,
        "--policies",
        "sequential,intra",
        "--repeats",
        "1",
        "--profile",
        profile,
        "-o",
        str(tmp_path / "two"),
        "--json",
    )
    assert again.exit_code == 0
    (note,) = [note for note in json.loads(again.stdout)["notes"] if "no interval" in note]
    assert note.endswith("so leave out --profile")

    # A profile of a machine that trained a hundred times as long does not pass for one of this.
    aged = json.loads(folder.path("profile.json").read_text())
    aged["training"]["update_actor"] = [100 * one for one in aged["training"]["update_actor"]]
    aged["measured"]["software"]["torch"] = "1.0"
    (tmp_path / "aged.json").write_text(json.dumps(aged))
    options = ("--policies", "sequential,intra", "--repeats", "1", "--json")
    late = run(file, *options, "--profile", str(tmp_path / "aged.json"), "-o", str(tmp_path / "late"))
    told = [
        note for note in json.loads(late.stdout)["notes"] if "this machine is faster than it was when" in note
    ]
    assert len(told) == 1 and "% less than by the given profile" in told[0]
    notes = " ".join(json.loads(late.stdout)["notes"])
    assert "the given profile was measured with torch 1.0, and " in notes
    assert "was measured with" not in " ".join(json.loads(again.stdout)["notes"])
    wider = {**MODEL, "hidden_size": 64}
    other = scenario_file(
        tmp_path,
        "other.yaml",
        real={**REAL, "models": {"actor": wider, "reward": MODEL}, "ppo": {"enabled": True}},
    )
    with pytest.raises(OppoError, match=r"measured with models\.actor\.hidden_size 32 and .* has 64"):
        run(other, "--profile", profile, "-o", str(tmp_path / "three"))


def test_lengths_of_a_training_run_come_from_the_run_itself(tmp_path: Path) -> None:
    train = {
        "mode": "train",
        "lock_step": True,
        "placement": {"threads": 1},
        "sft": {"steps": 2, "batch_size": 4},
    }
    file = scenario_file(tmp_path, real=train, max_prompt_length=51, max_response_length=12, steps=2)
    result = run(
        file,
        "--policies",
        "sequential,oppo",
        "--repeats",
        "1",
        "-o",
        str(tmp_path / "out"),
        "--no-figures",
        "--json",
    )
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert all(one["alike"] == 2 for one in found["decisions"])
    assert found["work"]["oppo"]["tokens/decoded"]["error"] == 0


def test_an_interrupted_validation_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = scenario_file(tmp_path, real={**REAL, "lock_step": True})
    arguments = (
        file,
        "--policies",
        "sequential,oppo",
        "--repeats",
        "2",
        "-o",
        str(tmp_path / "out"),
        "--no-figures",
        "--json",
    )
    begun = interrupt_run(monkeypatch, 3)
    first = run(*arguments)
    assert first.exit_code == 0  # click's own runner: the number is the command's answer
    assert "goes on from there" in first.stderr
    assert not (tmp_path / "out").exists()
    assert run(*arguments).exit_code == 0
    assert len(begun) == 3 + 2
    assert (tmp_path / "out" / "manifest.json").is_file()


def test_runs_of_other_inputs_are_told_with_what_differs_and_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = scenario_file(tmp_path, real={**REAL, "lock_step": True})
    out = tmp_path / "out"
    asked = (file, "--repeats", "1", "-o", str(out), "--no-figures")
    both = ("--policies", "sequential,oppo")
    begun = interrupt_run(monkeypatch, 3)
    run(*asked, "--policies", "sequential,oppo,inter")
    with pytest.raises(
        OppoError, match=r"first, .* was not run.*2 runs of other inputs.*: steps is 3 there and 2"
    ):
        run(*asked, *both, "--no-measure", "--steps", "2")
    with pytest.warns(
        UserWarning, match=r"keeps 2 runs of other inputs, not taken here: steps is 3 there and 2"
    ):
        fewer = run(*asked, *both, "--steps", "2", "--json")
    told = " ".join(fewer.stderr.split())
    assert "out.runs.jsonl still keeps 2 runs that are not in" in told
    assert any("steps is 3 there and 2 here" in note for note in json.loads(fewer.stdout)["notes"])
    assert len(begun) == 5
    # They serve the command that made them.
    whole = run(*asked, "--policies", "sequential,oppo,inter", "--force", "--json")
    assert len(begun) == 6
    assert not any("other inputs" in note for note in json.loads(whole.stdout)["notes"])
    assert not list(tmp_path.glob("out.*"))


def test_a_page_that_the_disk_had_no_room_for_is_written_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = scenario_file(tmp_path, real={**REAL, "lock_step": True})
    asked = (
        file,
        "--policies",
        "sequential,oppo",
        "--repeats",
        "1",
        "-o",
        str(tmp_path / "out"),
        "--no-figures",
    )
    begun = interrupt_run(monkeypatch, 9)

    def full(*_: Any) -> None:
        raise OppoError("no space left for out/validation.md")

    with (
        monkeypatch.context() as disk,
        pytest.raises(OppoError, match=r"no space .*out\.runs\.jsonl, and the same"),
    ):
        disk.setattr(RunFolder, "write_text", full)
        run(*asked)
    assert not (tmp_path / "out" / "manifest.json").exists()
    (tmp_path / "out" / "checkpoint.pt").touch()  # somebody else's
    with pytest.raises(OppoError, match="never finished"):
        run(*asked)
    (tmp_path / "out" / "checkpoint.pt").unlink()
    assert run(*asked).exit_code == 0
    assert len(begun) == 2, "nothing ran again"
    read_run_folder(tmp_path / "out").verify()


def test_finished_runs_of_a_policy_that_is_left_out_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = scenario_file(tmp_path, real={**REAL, "lock_step": True})
    asked = (file, "--repeats", "1", "-o", str(tmp_path / "out"), "--no-figures")
    interrupt_run(monkeypatch, 3)
    run(*asked, "--policies", "sequential,oppo,inter")
    lines = (tmp_path / "out.runs.jsonl").read_text().splitlines()[1:]
    kept = [json.loads(line)["run"]["policy"] for line in lines]
    others = [name for name in ("sequential", "oppo", "inter") if name != kept[0]]
    fewer = run(*asked, "--policies", ",".join(others))
    assert "still keeps 1 run that is not in" in " ".join(fewer.stderr.split())


@pytest.mark.parametrize("bound", [False, True])
def test_an_interrupted_validation_is_concluded_without_its_engines(
    bound: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, last = min(available_cores()), max(available_cores())
    if bound and first == last:
        pytest.skip("needs two cores")
    cores = {"rollout": [[first]], "scoring": [[last]], "driver": [first]}
    placement = {"placement": {"kind": "processes", "threads": 1, "cores": cores}} if bound else {}
    real = {**REAL, "ppo": {"enabled": True}, **placement}
    file, out = scenario_file(tmp_path, real=real), str(tmp_path / "out")
    asked = (file, "--policies", "sequential,oppo", "--repeats", "3", "-o", out, *CALIBRATED)
    with pytest.raises(OppoError, match="that was interrupted after its first calibration"):
        run(*asked, "--no-measure")
    interrupt_run(monkeypatch, 4)  # the second of the second round
    assert "goes on from there" in run(*asked).stderr
    # Elsewhere: another machine, no engines.
    monkeypatch.setattr(before, "hardware", lambda device: pytest.fail("asked for the device"))
    monkeypatch.setattr(calibrating, "subject_of", lambda scenario: pytest.fail("built engines"))
    read: list[Any] = []
    build_replay = build.build_replay
    monkeypatch.setattr(build, "build_replay", lambda *a, **k: [read.append(a), build_replay(*a, **k)][1])
    concluded = run(*asked, "--no-measure")
    assert concluded.exit_code == 0
    assert "concluded from 1 of 3 rounds: the same command with --force in place" in " ".join(
        concluded.stderr.split()
    )
    assert len(read) < 5, "the trace is not read again for each of 200 profiles"
    folder = read_run_folder(tmp_path / "out")
    assert len(folder.json("runs.json")) == 2, "of the complete round only"
    assert folder.manifest["repeats"] == 1
    assert folder.manifest["hardware"] == load_profile(tmp_path / "out.profile.json").measured.hardware
    assert (tmp_path / "out.runs.jsonl").exists(), "measuring can go on"
    with pytest.raises(OppoError, match="of the first, inter was not run"):
        run(file, "--policies", "sequential,inter", "-o", str(tmp_path / "out"), "--force", "--no-measure")
    with (tmp_path / "out.profile.samples.jsonl").open("a") as file:
        file.write("{}\n")
    with pytest.raises(OppoError, match="are not the samples that"):
        run(*asked, "--no-measure", "--force")


def test_an_interrupted_validation_of_a_given_profile_is_concluded_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = scenario_file(tmp_path, real={**REAL, "ppo": {"enabled": False}})
    profile, out = str(tmp_path / "p.json"), str(tmp_path / "out")
    calibrated = CliRunner().invoke(
        group, ["calibrate", file, "-o", profile, "--repeats", "1", *CALIBRATED], catch_exceptions=False
    )
    assert calibrated.exit_code == 0
    asked = (file, "--policies", "sequential,oppo", "--repeats", "2", "--no-figures", "-o", out)
    with pytest.raises(OppoError, match=r"no .*out\.runs\.jsonl.* after its first round of runs"):
        run(*asked, "--no-measure", "--profile", profile)
    thin = json.loads((tmp_path / "p.json").read_text())
    rows = [(1, [6.0, 60.0], [0.1, 0.1]), (2, [12.0, 120.0], [0.01, 0.01])]  # of four: no time at all
    names = ("n_running", "kv_tokens", "seconds")
    thin["decode"]["rows"] = [dict(zip(names, row, strict=True)) for row in rows]
    (tmp_path / "thin.json").write_text(json.dumps(thin))
    begun = interrupt_run(monkeypatch, 4)  # the second of the second round
    with pytest.raises(OppoError, match=r"sequential cannot be predicted from .*thin\.json, so calibrate"):
        run(*asked, "--profile", str(tmp_path / "thin.json"))
    assert not begun, "before anything runs"
    assert "goes on from there" in run(*asked, "--profile", profile).stderr
    monkeypatch.setattr(before, "hardware", lambda device: pytest.fail("asked for the device"))
    monkeypatch.setattr(before, "software_versions", lambda: pytest.fail("asked for versions"))
    with pytest.raises(OppoError, match="give the --profile that the interrupted validation was given"):
        run(*asked, "--no-measure")
    concluded = run(*asked, "--no-measure", "--profile", profile)
    assert concluded.exit_code == 0
    assert "concluded from 1 of 2 rounds" in " ".join(concluded.stderr.split())
    folder = read_run_folder(tmp_path / "out")
    assert len(folder.json("runs.json")) == 2, "of the complete round only"
    assert folder.manifest["hardware"] == load_profile(tmp_path / "p.json").measured.hardware
    other = json.loads((tmp_path / "p.json").read_text())
    other["measured"]["hardware"] = "another machine"
    (tmp_path / "other.json").write_text(json.dumps(other))
    with pytest.raises(OppoError, match="was measured on another machine"):
        run(*asked, "--no-measure", "--profile", str(tmp_path / "other.json"), "--force")


def test_an_interrupted_validation_in_lock_step_is_concluded_from_its_runs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = scenario_file(tmp_path, real={**REAL, "lock_step": True})
    asked = (
        file,
        "--policies",
        "sequential,oppo",
        "--repeats",
        "2",
        "--no-figures",
        "-o",
        str(tmp_path / "out"),
    )
    interrupt_run(monkeypatch, 4)  # the second of the second round
    assert "goes on from there" in run(*asked).stderr
    concluded = run(*asked, "--no-measure", "--json")
    found = json.loads(concluded.stdout)
    assert found["unit"] == "decode iterations"
    assert any("concluded from 1 of 2 rounds" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("there", "here", "alike"),
    [
        ("1 of 8 NVIDIA H200, 140 GiB, CUDA 12.8", "1 of 1 NVIDIA H200, 140 GiB, CUDA 12.8", True),
        ("1 of 8 NVIDIA H200, 140 GiB, CUDA 12.8", "1 of 8 NVIDIA H100, 80 GiB, CUDA 12.8", False),
    ],
)
def test_a_profile_serves_however_many_of_its_gpus_are_shown(there: str, here: str, alike: bool) -> None:
    config = parse_real_config(REAL)
    measured = SimpleNamespace(hardware=there, engine={"subject": comparable(config)})
    profile = cast(Profile, SimpleNamespace(name="p", measured=measured))
    with nullcontext() if alike else pytest.raises(OppoError, match="was measured on 1 of 8 NVIDIA H200"):
        check_profile_matches(profile, config, hardware_here=here)


@pytest.mark.parametrize(
    ("given", "told"),
    [(None, ", with what other processes took: 2.58"), (Path("p.json"), "beside scoring: 2.58")],
)
def test_whose_time_an_interference_has_is_told(given: Path | None, told: str) -> None:
    profile = SimpleNamespace(contention_factor=2.58, time_slices=None, slowdowns=None)
    scenario = SimpleNamespace(placement=None)
    request = SimpleNamespace(profile=given, scenario=scenario)
    validated = cast(session.Validated, SimpleNamespace(profile=profile, request=request))
    assert next(sentences._interference(validated)).endswith(told)


def test_why_there_is_no_interval_is_told_with_what_would_give_one() -> None:
    calibrated = cast(CalibrationSession, object())
    assert "visited once" in (few := intervals._no_interval(calibrated, 0)) and "--budget-s" in few
    assert "too noisy" in intervals._no_interval(calibrated, 200)
    assert "leave out --profile" in intervals._no_interval(None, 0)


def test_a_damaged_journal_is_named(tmp_path: Path) -> None:
    path = tmp_path / "out.runs.jsonl"
    with RealRuns(path, "x"):
        pass
    with path.open("a") as file:
        file.write('{"inputs": "x", "run": 3}\n')
    with RealRuns(path, "other inputs"):
        pass
    with pytest.raises(OppoError, match="line 2 is no finished run"):
        RealRuns(path, "x")


def test_a_journal_of_an_older_version_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "out.runs.jsonl"
    path.write_text('{"inputs": "x", "run": {}}\n')
    with pytest.raises(OppoError, match="does not begin as the runs of a validation of this version do"):
        RealRuns(path, "x")
    assert path.read_text() == '{"inputs": "x", "run": {}}\n'


@pytest.mark.parametrize(
    ("changes", "arguments", "sentence"),
    [
        ({"real": None}, (), "no real section"),
        ({}, ("--policies", "sequential,opo"), "unknown policy 'opo'"),
        ({}, ("--policies", "oppo"), "two or more"),
        ({"real": {**REAL, "devices": {"rollout": ["gpu"]}}}, (), "'gpu' is no device that can be timed"),
        ({"real": {**REAL, "devices": {"rollout": ["cuda:99"]}}}, (), "device 'cuda:99' was asked for but"),
        ({}, ("--policies", "sequential,one-step-off"), "training its own devices"),
        ({"real": {**REAL, "lock_step": True}}, ("--profile", "p.json"), "leave --profile out"),
        ({}, ("--profile", "missing.json"), "cannot read the cost profile"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_measured(
    tmp_path: Path, changes: dict[str, Any], arguments: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(OppoError, match=sentence):
        run(scenario_file(tmp_path, **changes), *arguments, "-o", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_missing_engine_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [name for name in sys.modules if name == "vllm" or name.startswith("vllm.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(OppoError, match="vllm"):
        run(scenario_file(tmp_path, real={**REAL, "engine": "vllm"}), "-o", str(tmp_path / "out"))


def test_memory_is_what_the_engines_resolved() -> None:
    actors = [
        {"kv_capacity_tokens": 960, "kv_block_tokens": 16, "max_num_seqs": None},
        {"kv_capacity_tokens": 640, "max_num_seqs": 8},
    ]
    assert limits_of({"actors": actors}) == EngineLimits(640, 16, 8)
    scorers = [
        {"kv_capacity_tokens": 2048, "prefill_block_tokens": 128},  # vLLM
        {"kv_capacity_tokens": 1024, "prefill_block_tokens": 128, "max_num_batched_tokens": 512},
        {"kv_capacity_tokens": 512},  # torch: holds all that it is given
    ]
    assert limits_of({"actors": actors, "scorers": scorers}).scorer == (128, 1024, 512)
    with pytest.raises(OppoError, match="KV capacity"):
        limits_of({"actors": [{"max_num_seqs": 8}]})


def test_a_core_that_does_not_exist_cannot_be_probed() -> None:
    assert 0 < (core_share(()) or 1.0) <= 1
    with pytest.raises(OppoError, match="cannot be bound to cores"):
        core_share((100_000,))
