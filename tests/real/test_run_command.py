"""``oppo run`` and what it leaves on the disk; checkpoints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from click.testing import CliRunner

from oppo_real.cli.run import _stage_times
from oppo_real.run.folder import RealRequest, run_to_folder
from oppo_real.run.setup import build_real_setup
from oppo_real.run.start import real_manifest, run_real
from oppo_sim import columns as c
from oppo_sim.cli import main
from oppo_sim.cli.main import oppo as group
from oppo_sim.errors import OppoError
from oppo_sim.finished_run import read_run_folder
from oppo_sim.scenario.yaml_text import dump_yaml
from oppo_sim.simulation import simulate
from oppo_sim.traces.storage import load_trace
from tests.real.real_scenario import MODEL, real_scenario

CONTROLLED = {
    "name": "oppo",
    "overcommit": {"control": "reward_slope", "initial": 1, "min": 0, "max": 3, "window": 2},
    "chunk_size": {"control": "explore", "candidates": [3, 7], "explore_every": 4},
}
REWARDS = {"kind": "saturating", "noise": 1.0}
WITH_CRITIC = {"critic": "value_head"}
PPO = {"enabled": True, "learning_rate": 1e-3, "num_ppo_epochs": 1}


class Stop(Exception):
    """Ends a run as a crash would."""


def write(tmp_path: Path, **fields: Any) -> Path:
    path = tmp_path / "scenario.yaml"
    path.write_text(dump_yaml(real_scenario(**fields).to_plain()))
    return path


def request(
    folder: Path, real: dict[str, Any], *, resume: bool = False, steps: int = 8, **fields: Any
) -> RealRequest:
    setup = build_real_setup(real_scenario(real, policy=CONTROLLED, rewards=REWARDS, steps=steps, **fields))
    return RealRequest(setup, folder, resume=resume, figures=False)


def test_the_command_writes_a_measured_run_that_the_simulator_can_replay(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = CliRunner().invoke(
        group, ["run", str(write(tmp_path, steps=3)), "-o", str(folder)], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    assert "measured seconds" in result.output
    run = read_run_folder(folder)
    run.verify()
    assert run.manifest["kind"] == "measured"
    assert run.manifest["engines"]["actors"][0]["engine"] == "torch"
    versions = run.manifest["versions"]
    assert "torch" in versions and "not installed" not in versions.values()
    assert {
        "steps.parquet",
        "rollouts.parquet",
        "trace.parquet",
        "timeline.json",
        "figures/gantt.png",
    } <= set(run.files)
    steps = run.frame("steps.parquet")
    simulated = simulate(real_scenario(steps=3))
    assert list(steps.columns) == list(simulated.steps.columns)
    trace = load_trace(folder / "trace.parquet")
    rollouts = run.frame("rollouts.parquet").sort_values(c.ROLLOUT_ID)
    assert list(trace[c.RESPONSE_LENGTH]) == list(rollouts[c.RESPONSE_LENGTH])
    again = simulate(real_scenario(trace={"path": str(folder), "sampling": "in_order"}, steps=2))
    assert len(again.steps) == 2


def test_lock_step_from_a_scenario_equals_its_simulation() -> None:
    scenario = real_scenario({"lock_step": True}, policy=CONTROLLED, rewards=REWARDS, steps=6)
    real, simulated = run_real(scenario), simulate(scenario)
    pd.testing.assert_frame_equal(real.rollouts, simulated.rollouts)
    for column in (c.OVERCOMMIT, c.CHUNK_SIZE, c.ROLLOUTS_DEFERRED, c.ROLLOUTS_SURPLUS, c.TRACE_LENGTH_MEAN):
        assert list(real.steps[column]) == list(simulated.steps[column])


def test_recorded_stage_times_are_told_to_the_policy(tmp_path: Path) -> None:
    table = pd.DataFrame({c.timing(stage): [0.0] * 6 for stage in (*c.STAGES, "step")})
    table[c.TIMING_STEP] = [9.0, 1.0, 1.0, 1.0, 1.0, 1.0]  # the second candidate looks best
    table.to_parquet(tmp_path / "steps.parquet")
    scenario = real_scenario(
        {"lock_step": True, "recorded_timing": str(tmp_path)}, policy=CONTROLLED, rewards=REWARDS, steps=6
    )
    assert list(run_real(scenario).steps[c.CHUNK_SIZE]) == [3, 7, 7, 7, 3, 7]
    with pytest.raises(OppoError, match="recorded stage times end at step 5"):
        run_real(scenario, steps=7)


@pytest.mark.parametrize("real", [{}, {"ppo": PPO}], ids=["replay", "trained"])
def test_a_run_that_crashes_resumes_with_the_same_decisions(tmp_path: Path, real: dict[str, Any]) -> None:
    section = {"lock_step": True, "checkpoint_every": 2, **real}
    whole = run_to_folder(request(tmp_path / "whole", section), lambda done, row: None)

    def crash(done: int, row: object) -> None:
        if done == 5:
            raise Stop

    with pytest.raises(Stop):
        run_to_folder(request(tmp_path / "broken", section), crash)
    seen: list[int] = []
    run_to_folder(request(tmp_path / "broken", section, resume=True), lambda done, row: seen.append(done))
    assert seen == [4, 5, 6, 7, 8]
    expected, found = (read_run_folder(tmp_path / name) for name in ("whole", "broken"))
    names = ["steps.parquet", "rollouts.parquet", *(["training.parquet"] if real else [])]
    for name in names:
        one, other = expected.frame(name), found.frame(name)
        timing = [column for column in one.columns if column == "eps"]
        # The workers lost their KV with the run: those columns count the work of making it again.
        again = [c.TOKENS_PREFILLED, c.TOKENS_RECOMPUTED, c.TOKENS_SCORED, c.SCORER_PIECES, c.SCORER_BATCHES]
        drop = [column for column in (*timing, *again) if column in one.columns]
        pd.testing.assert_frame_equal(one.drop(columns=drop), other.drop(columns=drop))
    assert found.manifest["resumed"] and not whole.manifest["resumed"]


def test_an_interrupted_run_keeps_its_steps_and_the_timeline_it_has(tmp_path: Path) -> None:
    def interrupt(done: int, row: object) -> None:
        if done == 3:
            raise KeyboardInterrupt

    asked = request(tmp_path / "run", {"lock_step": True})
    written = run_to_folder(replace(asked, timeline=(1, 6), figures=True), interrupt)
    assert (written.interrupted, len(written.steps)) == (True, 3)
    run = read_run_folder(tmp_path / "run")
    run.verify()
    events = run.json("timeline.json")["traceEvents"]
    assert {event["args"]["step"] for event in events if event.get("ph") == "X"} == {1, 2}
    assert "figures/gantt.png" in run.files


def test_an_interrupted_command_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    args = ["run", str(write(tmp_path, steps=5)), "-o", str(folder), "--no-figures"]

    def interrupt(row: dict[str, Any]) -> str:
        if row and row[c.STEP] == 2:
            raise KeyboardInterrupt
        return ""

    with monkeypatch.context() as broken:
        broken.setattr("oppo_real.cli.run._stage_times", interrupt)
        found = CliRunner().invoke(group, args, standalone_mode=False)
    assert found.return_value == 130
    told = " ".join(found.stderr.split())
    assert f"interrupted after 3 of 5 steps: {folder} is complete up to there; --resume goes on" in told
    with pytest.raises(OppoError, match=r"was interrupted after 3 of 5 steps: go on with --resume, choose"):
        CliRunner().invoke(group, args, catch_exceptions=False)
    assert CliRunner().invoke(group, [*args, "--resume"]).exit_code == 0
    assert read_run_folder(folder).frame("steps.parquet")[c.STEP].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(OppoError, match="holds a finished run: choose another"):
        CliRunner().invoke(group, args, catch_exceptions=False)


@pytest.mark.parametrize("fault", [KeyboardInterrupt, OppoError("no GPU is free")])
def test_a_resumed_run_that_ends_before_it_is_restored_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    section = {"lock_step": True, "checkpoint_every": 2}
    folder = tmp_path / "run"
    run_to_folder(request(folder, section, steps=4), lambda done, row: None)
    names = sorted(path.name for path in folder.iterdir())

    def ended(*args: object, **kwargs: object) -> None:
        raise fault

    with monkeypatch.context() as broken:
        broken.setattr("oppo_real.run.start.open_run", ended)
        with pytest.raises((KeyboardInterrupt, OppoError), match=r"checkpoint of 4 steps .*--resume|no GPU"):
            run_to_folder(request(folder, section, resume=True, steps=6), lambda done, row: None)
    assert sorted(path.name for path in folder.iterdir()) == names
    read_run_folder(folder).verify()
    longer = run_to_folder(request(folder, section, resume=True, steps=6), lambda done, row: None)
    assert len(longer.steps) == 6
    read_run_folder(folder).verify()


def test_the_command_says_that_a_checkpoint_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, real={"checkpoint_every": 2}, steps=4)
    args = ["run", str(path), "-o", str(tmp_path / "run"), "--no-figures", "--quiet"]
    assert CliRunner().invoke(group, args).exit_code == 0

    def ended(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("oppo_real.run.start.open_run", ended)
    found = CliRunner().invoke(group, [*args, "--steps", "8", "--resume"], standalone_mode=False)
    assert found.return_value == 130
    assert "the checkpoint of 4 steps is kept" in found.stderr
    assert "with --resume, the same command goes on from there" in found.stderr
    assert len(read_run_folder(tmp_path / "run").frame("steps.parquet")) == 4


def test_a_run_that_fails_keeps_a_checkpoint_or_nothing_and_says_which(tmp_path: Path) -> None:
    def fail(done: int, row: object) -> None:
        if done == 2:
            raise OppoError("the power failed")

    with pytest.raises(
        OppoError,
        match=r"^the power failed \(2 steps were done; without a checkpoint nothing of the run is kept\)$",
    ):
        run_to_folder(request(tmp_path / "lost", {"lock_step": True, "checkpoint_every": None}), fail)
    assert not (tmp_path / "lost").exists()
    with pytest.raises(
        OppoError,
        match=r"^the power failed \(2 steps were done; the folder keeps a checkpoint: --resume goes on from it",
    ):
        run_to_folder(request(tmp_path / "kept", {"lock_step": True}), fail)
    assert (
        len(
            run_to_folder(
                request(tmp_path / "kept", {"lock_step": True}, resume=True), lambda done, row: None
            ).steps
        )
        == 8
    )


def test_checkpoints_of_other_runs_and_no_checkpoint_are_refused(tmp_path: Path) -> None:
    section = {"lock_step": True}
    run_to_folder(request(tmp_path / "run", section, steps=2), lambda done, row: None)
    with pytest.raises(
        OppoError, match=r"policy or seed \(rollout_batch_size is 4 there and 6 here\): resume with"
    ):
        run_to_folder(
            request(tmp_path / "run", section, resume=True, rollout_batch_size=6), lambda done, row: None
        )
    other = build_real_setup(real_scenario(section, policy="inter", rewards=REWARDS, seed=5))
    with pytest.raises(OppoError, match=r"seed is 0 there and 5 here, policy.* more\): resume with"):
        run_to_folder(RealRequest(other, tmp_path / "run", resume=True), lambda done, row: None)
    with pytest.raises(OppoError, match="has all 2 steps: nothing is left to do; raise steps"):
        run_to_folder(request(tmp_path / "run", section, resume=True, steps=2), lambda done, row: None)
    with pytest.raises(OppoError, match="there is no checkpoint"):
        run_to_folder(request(tmp_path / "none", section, resume=True), lambda done, row: None)
    assert not (tmp_path / "none").exists()
    longer = run_to_folder(request(tmp_path / "run", section, resume=True, steps=4), lambda done, row: None)
    assert list(longer.steps[c.STEP]) == [0, 1, 2, 3]
    (tmp_path / "run" / "checkpoint.pt").write_bytes(b"nonsense")
    with pytest.raises(OppoError, match="is damaged"):
        run_to_folder(request(tmp_path / "run", section, resume=True), lambda done, row: None)


@pytest.mark.parametrize(
    ("real", "fields", "words"),
    [
        ({}, {"max_response_length": 400}, "412 tokens together but the actor takes 256"),
        (
            {},
            {"policy": "async", "placement": {"training": "separate"}},
            "set real.placement.kind to processes",
        ),
        ({"mode": "train"}, {"policy": "oracle"}, "set real.mode to replay"),
        ({}, {"rollout": {"batching": "static"}}, "batching static is simulated only"),
        (
            {},
            {"group_size": 2, "rollout": {"enable_prefix_caching": True}},
            "enable_prefix_caching needs the vllm engine",
        ),
        (
            {"ppo": {"enabled": True}},
            {"training": {"lora_rank": 8, "critic": "value_head"}},
            "lora_rank is simulated only",
        ),
        ({"dtype": "float8"}, {}, "real.dtype"),
        ({"actor_args": {"max_batch": 1}}, {}, r"^real.actor_args: .* no argument 'max_batch' .* takes max_"),
        ({"scorer_args": {"foo": 1}}, {}, r"^real.scorer_args: the torch engine has no argument 'foo'"),
        (
            {"scorer_args": {"max_batched_tokens": "many"}},
            {},
            r"^real.scorer_args: max_batched_tokens is 'many' but must be a whole number of at least 1",
        ),
        (
            {"ppo": {"enabled": True, "num_mini_batches": 5}},
            {"training": WITH_CRITIC},
            "4 rollouts cannot fill",
        ),
        (
            {"models": {"actor": MODEL, "reward": MODEL | {"vocab_size": 60}}},
            {},
            "models.reward knows 60 tokens and the actor 64: give real.models.reward",
        ),
        ({"models": {"reward": MODEL | {"heads": 3}}}, {}, r"^real.models.reward: .* a field 'heads' that"),
        (
            {"models": {"actor": MODEL}, "mode": "train"},
            {},
            r"models.reward \(left out: .*\) knows \d+ tokens and the actor 64",
        ),
        (
            {"models": {}, "mode": "train"},
            {"max_prompt_length": 50},
            "have up to 51 tokens, and max_prompt_length is 50: set it to 51 or more",
        ),
        ({"devices": {"rollout": ["cuda:7"]}}, {}, "cuda:7"),
    ],
)
def test_what_cannot_run_is_refused_in_one_sentence(
    tmp_path: Path, real: dict[str, Any], fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(OppoError, match=words) as raised:
        run_to_folder(
            RealRequest(build_real_setup(real_scenario(real, **fields)), tmp_path / "run"),
            lambda done, row: None,
        )
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_what_cannot_run_is_refused_before_an_engine_is_built() -> None:
    with pytest.raises(OppoError, match="412 tokens together but the actor takes 256"):
        build_real_setup(real_scenario(max_response_length=400))


def test_a_reward_model_that_is_left_out_knows_what_the_actor_generates(tmp_path: Path) -> None:
    setup = build_real_setup(real_scenario({"models": {"actor": MODEL}}, steps=2))
    run = run_to_folder(RealRequest(setup, tmp_path / "run", figures=False), lambda done, row: None)
    assert run.manifest["engines"]["scorers"][0]["vocab_size"] == 64


def test_the_manifest_says_what_trained_and_on_which_gpus(tmp_path: Path) -> None:
    training = {"num_ppo_epochs": 2, "critic": "value_head", "ref": False, "num_gpus": 8}
    section = {"ppo": {"enabled": True}, "temperature": 0.7}
    setup = build_real_setup(real_scenario(section, steps=2, training=training))
    run = run_to_folder(RealRequest(setup, tmp_path / "run", figures=False), lambda done, row: None)
    ppo = run.manifest["real"]["ppo"]
    assert (ppo["num_ppo_epochs"], ppo["critic"], ppo["kl_coef"], ppo["temperature"]) == (
        2,
        "value_head",
        0.0,
        0.7,
    )
    assert ppo["enabled"] is True
    assert "num_gpus" not in run.manifest  # this is a CPU
    assert run.manifest["engine"] == "torch"
    devices = {"training": "cuda:0", "rollout": ["cuda:0", "cuda:1"], "scoring": ["cuda:2"]}
    elsewhere = build_real_setup(real_scenario({"devices": devices}))
    assert real_manifest(elsewhere, {})["num_gpus"] == 3


def test_stages_and_what_is_outside_of_them_add_up_to_the_measured_step() -> None:
    steps = run_real(real_scenario({}, policy="oppo", steps=3)).steps
    assert (steps[c.timing("other")] > 0).all()
    assert steps[[c.timing(stage) for stage in c.STAGES]].sum(axis=1).tolist() == pytest.approx(
        steps[c.TIMING_STEP].tolist(), rel=1e-9
    )


def test_a_scenario_without_a_real_section_is_told_what_to_do() -> None:
    with pytest.raises(OppoError, match="h200-single has no real section"):
        CliRunner().invoke(group, ["run", "h200-single"], catch_exceptions=False)


def test_an_engine_that_is_not_installed_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from oppo_real.placement import engines

    monkeypatch.setattr(engines, "find_spec", lambda name: None if name == "vllm" else object())
    with pytest.raises(
        OppoError, match=r"engine vllm needs vllm, which is not installed: pip install 'oppo-toolkit\[vllm\]'"
    ):
        build_real_setup(real_scenario({"engine": "vllm"}))


@pytest.mark.parametrize(("score", "shown"), [(0.5, " score 0.500"), (float("nan"), "")])
def test_the_last_step_is_told_with_its_score_if_there_is_one(score: float, shown: str) -> None:
    row = dict.fromkeys((c.TIMING_STEP, c.timing("gen"), c.timing("reward")), 1.0)
    told = _stage_times({**row, c.OVERCOMMIT: 4, c.CHUNK_SIZE: 32, c.REWARD_MEAN: score})
    assert told.endswith(f"Δ 4 chunk 32{shown}")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
            "a GPU has no room left (CUDA out",
        ),
        (
            torch.AcceleratorError("CUDA error: an illegal memory access"),
            "a GPU failed (CUDA error: an illegal",
        ),
    ],
)
def test_what_cuda_refuses_is_one_sentence(
    error: RuntimeError, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(main.oppo, "main", failing)
    assert main.run(["run", "x.yaml"]) == 2
    assert told in " ".join(capsys.readouterr().err.split())
