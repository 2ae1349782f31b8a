"""The experiment on one GPU, rehearsed on the CPU through its own scripts; what it refuses; what was fixed
beforehand."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from oppo_real.calibrate.contention import meetings_of
from oppo_real.calibrate.plan import make_plan
from oppo_real.calibrate.session import Effort, calibrate_to
from oppo_real.calibrate.sizes import sizes_of
from oppo_real.calibrate.subject import subject_of
from oppo_real.config import real_config
from oppo_real.engines import models
from oppo_real.engines.models import build_causal_lm
from oppo_real.validate.predict import as_run
from oppo_sim.cli.main import oppo
from oppo_sim.costs.shipped_profiles import load_shipped
from oppo_sim.errors import OppoError
from tests.real.test_validate_session import MODEL

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments" / "gpu"))

import configurations as c
import part0_attention
import part0_engines
import part1_calibrate
import part2_validate
import part3_report
import register
import subjects
import workplace

H200_BYTES = 139 * 2**30


pytestmark = pytest.mark.usefixtures("one_thread")


# ---- fixed beforehand --------------------------------------------------------------------------------------


def test_half_of_the_configurations_is_held_out_by_a_hash_and_they_span_what_was_promised() -> None:
    for rehearse in (False, True):
        found = c.load_configurations("cuda:0", rehearse)
        for group in {one.group for one in found}:
            own = [one for one in found if one.group == group]
            assert {one.name for one in own if one.held_out} == c.held_out_by_hash([one.name for one in own])
    found = c.load_configurations("cuda:0", False)
    assert sum(one.held_out for one in found) * 2 == len(found)
    assert {one.policy["name"] for one in found} == {
        "sequential",
        "rollout-overlap",
        "intra",
        "inter",
        "oppo",
    }
    batches, responses = (
        [one.cell.rollout_batch_size for one in found],
        [one.cell.max_response_length for one in found],
    )
    assert (min(batches), max(batches)) == (32, 128)
    assert (min(responses), max(responses)) == (1024, 4096)
    assert len({one.policy["chunk_size"] for one in found if one.policy["name"] == "intra"}) > 1
    assert {one.pair.actor for one in found} == set(subjects.ACTORS)
    assert {one.pair.reward for one in found} == set(subjects.REWARDS)
    assert all("synth" not in one.cell.trace for one in found), "lengths are those of real traces"
    assert c.repeats_of(False) >= 3


def test_every_configuration_fits_an_h200_and_7b_with_training_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for one in c.load_configurations("cuda:0", False):
        longest = one.cell.max_prompt_length + one.cell.max_response_length
        subjects.check_fits(one.pair, longest, H200_BYTES, one.cell.kv_capacity_tokens)
        weights = 2 * one.pair.shape(one.pair.actor).parameters
        assert subjects.memory_plan(one.pair, longest)["policy (driver)"] == weights
    largest = subjects.Pair("qwen2.5-7b", "qwen2.5-7b", "torch")
    assert not largest.trains
    monkeypatch.setattr(subjects, "TRAINED", subjects.ACTORS)
    with pytest.raises(OppoError, match=r"needs 181 GiB and the device has 139 \(gradients and AdamW 43 GiB"):
        subjects.check_fits(largest, 4352, H200_BYTES)


def test_every_scenario_is_one_that_can_be_run_and_calibrated() -> None:
    for one in c.load_configurations("cuda:0", False):
        scenario = part2_validate.scenario_of(one)
        config = real_config(scenario)
        assert config.trains == one.pair.trains
        assert config.devices.rollout == config.devices.scoring == (config.devices.training,) == ("cuda:0",)
        actor, reward = config.models.actor, config.models.reward
        assert isinstance(actor, dict)
        assert isinstance(reward, dict)
        assert reward["vocab_size"] >= actor["vocab_size"], "the reward model reads the actor's tokens"
        sizes = subjects.merged_sizes([scenario])
        assert sizes.training == one.pair.trains
        assert sizes.max_running >= one.cell.rollout_batch_size + one.policy.get("overcommit", 0)
    vllm = subjects.Pair("qwen2.5-1.5b", "qwen2.5-1.5b", "vllm")
    section = subjects.real_section(vllm, 1280)
    assert section["actor_args"] == {"gpu_memory_utilization": subjects.VLLM_UTILIZATION}


def test_slices_and_rounds_share_out_every_run_once() -> None:
    jobs = part2_validate.jobs_in_order(c.load_configurations("cuda:0", False), 3)
    assert len(jobs) == len({(job.configuration.name, job.repeat) for job in jobs}) == 96
    parts = [part2_validate.slice_of(jobs, f"{part}/5") for part in range(1, 6)]
    assert sorted((job.configuration.name, job.repeat) for part in parts for job in part) == sorted(
        (job.configuration.name, job.repeat) for job in jobs
    )
    for bad in ("0/5", "6/5", "x", "1/"):
        with pytest.raises(OppoError, match="give K/N"):
            part2_validate.slice_of(jobs, bad)


# ---- what was measured -------------------------------------------------------------------------------------


def test_the_quarter_hour_concludes_as_its_page_says(tmp_path: Path) -> None:
    there = Path(part0_engines.__file__).parent / "quarter_hour"
    for file in there.glob("run2/validated.*"):
        shutil.copy(file, tmp_path)
    asked = ("--no-measure", "--repeats", "1", "--policies", "rollout-overlap,intra,oppo", "--no-figures")
    result = CliRunner().invoke(
        oppo,
        ["validate", str(there / "scenario.yaml"), *asked, "-o", str(tmp_path / "validated"), "--json"],
        catch_exceptions=False,
    )
    found = json.loads(result.stdout)
    page = (there / "README.md").read_text()
    for policy, label in (
        ("rollout-overlap", "rollout-overlap"),
        ("intra", "intra, chunk 64"),
        ("oppo", "oppo,"),
    ):
        step = found["stages"][policy]["step"]
        row = next(line for line in page.splitlines() if line.strip().startswith(f"| {label}"))
        assert f"| {step['predicted']:.2f} s | {step['measured']:.2f} s |" in row
    assert found["rank_agreement"] == 1.0
    assert sum(one["alike"] for one in found["decisions"]) == 20
    for name in ("attention", "engines"):
        content = json.loads((there / f"{name}.json").read_text())
        assert content["passed"] and not content["rehearsal"] and "H100" in content["hardware"]
    assert load_shipped("nvidia-h100-80gb-hbm3/494m+7.07b/torch").on_device is not None


def test_engines_are_compared_with_the_cpu_before_anything_is_timed(tmp_path: Path) -> None:
    with part0_engines.heads_of_64():
        part0_engines.main(["--rehearse", "--work", str(tmp_path)])
    content = json.loads((tmp_path / "engines.json").read_text())
    assert content["passed"] and len(content["cases"]) == len(part0_engines.CASES)


# ---- refused -----------------------------------------------------------------------------------------------


def test_nothing_is_timed_without_a_verified_attention(tmp_path: Path) -> None:
    arguments = ["--rehearse", "--work", str(tmp_path)]
    with pytest.raises(OppoError, match=r"attention.json is missing: run part0_attention.py first"):
        part1_calibrate.main(arguments)
    part0_attention.main(arguments)
    file = tmp_path / "attention.json"
    verified = json.loads(file.read_text())
    assert verified["passed"]
    assert {case["part"] for case in verified["cases"]} == {"engines", "trainer"}
    assert {case["dtype"] for case in verified["cases"]} == {"float32", "bfloat16"}
    for changed, words in (
        ({"passed": False}, "differs from plain attention"),
        ({"hardware": "another"}, "verified with device 'another'"),
        ({"versions": {**verified["versions"], "torch": "0"}}, "verified with torch '0'"),
    ):
        file.write_text(json.dumps({**verified, **changed}))
        with pytest.raises(OppoError, match=words):
            part2_validate.main(arguments)
    file.write_text(json.dumps(verified))
    with pytest.raises(
        OppoError, match=r"torch.json is missing: run part1_calibrate.py --actor qwen2.5-1.5b"
    ):
        part2_validate.main(arguments)
    with pytest.raises(OppoError, match="neither profiles nor runs"):
        part3_report.main(arguments)
    with pytest.raises(OppoError, match="holds a rehearsal"):
        part3_report.main(["--work", str(tmp_path)])


def test_an_attention_that_is_off_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from oppo_real.engines import packed_kernels

    right = packed_kernels.plain_attention

    def off(query: torch.Tensor, *rest: object) -> torch.Tensor:
        found = right(query, *rest)  # type: ignore[arg-type]
        return found + 0.2 if query.dtype is torch.bfloat16 else found

    monkeypatch.setattr(packed_kernels, "plain_attention", off)
    with pytest.raises(OppoError, match="engines attention in bfloat16"):
        part0_attention.main(["--rehearse", "--work", str(tmp_path)])
    cases = json.loads((tmp_path / "attention.json").read_text())["cases"]
    assert {case["dtype"] for case in cases if not case["passed"]} == {"bfloat16"}
    assert {case["part"] for case in cases if not case["passed"]} == {"engines", "trainer"}


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(
        OppoError, match="no usable CUDA device here" if not torch.cuda.is_available() else "is missing"
    ):
        part1_calibrate.main(["--work", str(tmp_path)])
    with pytest.raises(OppoError, match="--device cpu is no GPU"):
        part0_attention.main(["--work", str(tmp_path), "--device", "cpu"])


def test_devices_and_pairs_by_name() -> None:
    assert workplace.device_name("1 of 1 NVIDIA H200, 140 GiB, CUDA 12.8") == "h200"
    assert workplace.device_name("1 of 8 NVIDIA H100 80GB HBM3, 80 GiB, CUDA 12.8") == "h100-80gb-hbm3"
    pair = part3_report.pair_of("h200/qwen2.5-7b+1.5b/vllm", "cuda:0", False)
    assert pair.name == "qwen2.5-7b+1.5b/vllm"
    assert (pair.actor, pair.reward) == ("qwen2.5-7b", "qwen2.5-1.5b")


# ---- what the experiment needed of the package -------------------------------------------------------------


def test_a_pair_that_is_not_trained_is_calibrated_without_training(tmp_path: Path) -> None:
    one = next(one for one in c.load_configurations("cpu", True) if one.policy["name"] == "sequential")
    untrained = replace(one, pair=replace(one.pair, actor="qwen2.5-7b"))
    scenario = part2_validate.scenario_of(untrained)
    sizes = sizes_of(scenario)
    plan = make_plan(sizes)
    assert not [point for point in plan.points if point.kind == "train"]
    assert {meeting.activities for meeting in meetings_of(plan)} == {("decode", "score")}
    effort = Effort(repeats=1, budget_s=300, contention=False)
    _, calibration, _ = calibrate_to(
        tmp_path / "p.json", "untrained", subject_of(scenario), sizes, tmp_path / "points", effort
    )
    profile = calibration.profile
    assert not profile.training.measured
    assert set(as_run(profile, real_config(scenario)).training.update_actor or ()) == {0.0}
    with pytest.raises(OppoError, match="training was not measured and the run trains"):
        as_run(profile, real_config(part2_validate.scenario_of(one)))


def test_large_random_models_are_drawn_where_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    small = build_causal_lm(MODEL, 3)
    drawn: list[torch.device] = []
    right = models._drawn

    def noting(auto: object, config: object, precision: torch.dtype, device: torch.device) -> object:
        drawn.append(device)
        return right(auto, config, precision, torch.device("cpu"))  # type: ignore[arg-type]

    monkeypatch.setattr(models, "_drawn", noting)
    monkeypatch.setattr(models, "_DRAWN_IN_PLACE", 1)
    again = build_causal_lm(MODEL, 3)
    assert drawn == [torch.device("cpu")]
    assert all(torch.equal(a, b) for a, b in zip(small.parameters(), again.parameters(), strict=True))


# ---- end to end --------------------------------------------------------------------------------------------


def test_the_rehearsal_from_attention_to_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--rehearse", "--work", str(tmp_path)]
    part0_attention.main(arguments)
    part1_calibrate.main([*arguments, "--repeats", "1", "--budget-s", "300", "--no-contention"])
    name = "cpu/qwen2.5-1.5b+1.5b/torch"
    profile = tmp_path / "profiles" / f"{name}.json"
    assert profile.exists()

    chosen = ["--only", "sequential,rollout-overlap"]
    part2_validate.main([*arguments, *chosen, "--slice", "1/2"])
    first = capsys.readouterr().out
    assert first.count("s in all") == 1
    part2_validate.main([*arguments, *chosen])
    second = capsys.readouterr().out
    assert second.count("s in all") == 1, "the run that was there is not made again"
    assert second.count("predicted ") == 2
    part2_validate.main([*arguments, *chosen])
    assert "s in all" not in capsys.readouterr().out

    part3_report.main(arguments)
    found = json.loads((tmp_path / "results" / "report.json").read_text())
    assert {row["label"] for row in found["configurations"]} == {"sequential", "rollout-overlap"}
    group = found["groups"][0]
    assert group["tau"] in (-1.0, 1.0)
    assert group["regret"] >= 0.0
    assert (group["regret"] == 0.0) == (group["choice"] == group["best"])
    row = next(row for row in found["configurations"] if row["label"] == "sequential")
    assert row["error"] == pytest.approx(row["predicted"] / row["measured"] - 1)
    page = (tmp_path / "results" / "README.md").read_text()
    assert page.startswith("# Rehearsal on a CPU with tiny models: no measurement")
    assert "Without a run yet: r-rehearsal/intra-c8, r-rehearsal/inter-d2, r-rehearsal/oppo-d2-c8." in page
    assert "What one GPU cannot show" in page
    figures = sorted(path.name for path in (tmp_path / "results" / "figures").iterdir())
    assert figures == ["cpu_qwen2.5-1.5b+1.5b_torch.png", "predicted_measured.png"]

    with pytest.raises(OppoError, match="which is no GPU: it is not shipped"):
        register.main(["--work", str(tmp_path)])
    register.main(["--work", str(tmp_path), "--to", str(tmp_path / "presets")])
    assert load_shipped(name, tmp_path / "presets").name == name
    samples = profile.with_name("torch.samples.jsonl")
    samples.write_text(samples.read_text() + "{}\n")
    with pytest.raises(OppoError, match="not the samples of"):
        register.main(["--work", str(tmp_path), "--to", str(tmp_path / "presets")])
