"""Engines as Ray actors: on two machines (both here), and on a Ray that a run starts for itself. Nothing of
Ray is replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import ray

from oppo_real.config import parse_real_config
from oppo_real.placement.ray_worker import Mail
from oppo_real.run.folder import RealRequest, run_to_folder
from oppo_real.run.setup import build_real_setup
from oppo_real.run.start import run_real
from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.finished_run import read_run_folder
from oppo_sim.scenario.yaml_text import dump_yaml
from tests.cli_runs import Printed, assert_refused, start_oppo
from tests.real.real_scenario import MODEL, damaged_model, real_scenario

TWO_MACHINES = """
from ray.cluster_utils import Cluster
small = {"num_cpus": 1, "object_store_memory": 128 << 20}
both = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
both.add_node(**small)
both.wait_for_nodes()
print("address", both.address, flush=True)
input()
both.shutdown()
"""
LOCK_STEP = {"lock_step": True}
OPPO = {"name": "oppo", "overcommit": 2, "chunk_size": 5}


def placed(address: str | None, **section: Any) -> dict[str, Any]:
    return {"placement": {"kind": "ray", "threads": 1, "cluster": {"address": address, **section}}}


@pytest.fixture(scope="module")
def mark() -> Iterator[str]:
    """What the environment of every process holds that a test here starts."""
    name = f"OPPO_TEST_{os.getpid()}"
    os.environ[name] = "1"
    yield name
    del os.environ[name]


def marked(mark: str, title: str = "") -> set[int]:
    """Processes with the mark whose command line begins with ``title``, but this one."""
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            known = f"{mark}=1".encode() in (entry / "environ").read_bytes().split(b"\0")
            if known and (entry / "cmdline").read_bytes().startswith(title.encode()):
                found.add(int(entry.name))
        except OSError:
            continue  # it has just ended
    return found


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.1)
    return holds()


@pytest.fixture(scope="module")
def cluster(mark: str) -> Iterator[str]:
    """The address of a cluster of two machines, one CPU each."""
    command = [sys.executable, "-c", TWO_MACHINES]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as keeper:
        assert keeper.stdout is not None
        address = next((line.split()[1] for line in keeper.stdout if line.startswith("address ")), "")
        assert address
        yield address
        keeper.communicate("end\n", timeout=60)


# ---- the same decisions ------------------------------------------------------------------------------------


def test_lock_step_on_two_machines_equals_lock_step_inline(cluster: str) -> None:
    ppo = {"enabled": True, "num_ppo_epochs": 1, "learning_rate": 1e-3}
    inline = run_real(real_scenario({**LOCK_STEP, "ppo": ppo}, policy="sequential", steps=4))
    apart = placed(cluster, strategy="STRICT_SPREAD")
    spread = run_real(real_scenario({**LOCK_STEP, "ppo": ppo, **apart}, policy="sequential", steps=4))
    pd.testing.assert_frame_equal(inline.rollouts, spread.rollouts)
    pd.testing.assert_frame_equal(inline.steps, spread.steps)
    # Weights came over, and log-probabilities back: PPO saw the same batches (eps are episodes a second).
    pd.testing.assert_frame_equal(inline.training.drop(columns="eps"), spread.training.drop(columns="eps"))
    where = [spread.manifest["engines"][kind][0]["ray"] for kind in ("actors", "scorers")]
    assert where[0]["process"] != where[1]["process"]
    # One of the two machines is the driver's, whose clock is its own.
    assert sorted(place["clock_error_s"] > 0 for place in where) == [False, True]
    assert max(place["clock_error_s"] for place in where) < 0.1
    assert not ray.is_initialized()


def test_a_killed_actor_ends_the_run_with_its_own_error_and_the_run_resumes(
    cluster: str, mark: str, tmp_path: Path
) -> None:
    def request(folder: str, real: dict[str, Any], resume: bool = False) -> RealRequest:
        scenario = real_scenario({**LOCK_STEP, **real}, policy=OPPO, rollout={"num_replicas": 2})
        return RealRequest(build_real_setup(scenario), tmp_path / folder, resume=resume, figures=False)

    killed: list[int] = []

    def kill(done: int, row: object) -> None:
        if done == 3:
            killed.append(min(marked(mark, "ray::RayWorker")))
            os.kill(killed[0], signal.SIGKILL)

    shared = placed(cluster, strategy="SPREAD", rollout={"num_cpus": 0.5}, scoring={"num_cpus": 0.5})
    with pytest.raises(OppoError) as raised:
        run_to_folder(request("broken", shared), kill)
    said = str(raised.value)
    assert "\n" not in said
    assert said.startswith(("replica 0 ", "replica 1 ", "scoring worker 0 "))
    assert f" (process {killed[0]} on " in said
    assert ") died (" in said
    assert said.endswith(
        "go on from the last checkpoint with --resume (3 steps were done; the folder keeps a checkpoint: "
        "--resume goes on from it, --force starts anew)"
    )
    seen: list[int] = []
    run_to_folder(request("broken", shared, resume=True), lambda done, row: seen.append(done))
    assert seen == [3, 4, 5]
    run_to_folder(request("whole", {}), lambda done, row: None)
    whole, broken = (read_run_folder(tmp_path / name) for name in ("whole", "broken"))
    pd.testing.assert_frame_equal(whole.frame("rollouts.parquet"), broken.frame("rollouts.parquet"))
    # The workers lost their KV with the run: those columns count the work of making it again.
    again = [c.TOKENS_PREFILLED, c.TOKENS_RECOMPUTED, c.TOKENS_SCORED, c.SCORER_PIECES, c.SCORER_BATCHES]
    steps = [run.frame("steps.parquet").drop(columns=again) for run in (whole, broken)]
    pd.testing.assert_frame_equal(*steps)


# ---- what goes wrong ---------------------------------------------------------------------------------------


def test_what_cannot_start_is_said_in_one_sentence_and_leaves_nothing_behind(
    cluster: str, mark: str, tmp_path: Path
) -> None:
    section = placed(cluster) | {"models": {"actor": MODEL, "reward": damaged_model(tmp_path)}}
    with pytest.raises(OppoError, match=r"^scoring worker 0: "):
        run_real(real_scenario(section))
    wish = {"num_cpus": 3, "resources": {"fast_disk": 1}}
    with pytest.raises(
        OppoError,
        match=(
            r"^Ray found no room for 2 workers within 0\.5 s: together they want 4 CPU, 1 fast_disk"
            r" \(PACK\), "
            r"and 2 machines have 2 CPU, 0 fast_disk, perhaps in use: change real\.placement\.cluster, or add"
            r" machines$"
        ),
    ):
        run_real(real_scenario(placed(cluster, rollout=wish, start_timeout_s=0.5)))
    assert within(30, lambda: not marked(mark, "ray::RayWorker"))
    assert not ray.is_initialized()


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"address": "ray://head:10001"}, "run this command on a machine of the cluster"),
        ({"strategy": "NEAR"}, "real.placement.cluster.strategy"),
        ({"rollout": {"num_cpus": 0}}, "real.placement.cluster.rollout.num_cpus"),
        ({"rollout": {"num_gpu": 1}}, "did you mean 'num_gpus'"),
    ],
)
def test_impossible_placements_are_refused(section: dict[str, Any], words: str) -> None:
    with pytest.raises(OppoError) as raised:
        parse_real_config({"placement": {"kind": "ray", "cluster": section}})
    assert words in str(raised.value)


def test_cores_of_this_machine_and_folders_that_are_not_there_are_refused() -> None:
    cores = {"kind": "ray", "cores": {"rollout": [[0]]}, "cluster": {"address": "auto"}}
    with pytest.raises(OppoError, match=r"names others: give cluster\.\*\.num_cpus"):
        parse_real_config({"placement": cores})
    with pytest.raises(
        OppoError, match=r"real\.placement\.cluster\.shared_folder: there is no folder /no/such"
    ):
        build_real_setup(real_scenario(placed(None, shared_folder="/no/such")))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "somewhere"])
def test_a_cluster_that_is_not_there_is_said_at_once(address: str) -> None:
    began = time.monotonic()
    with pytest.raises(
        OppoError,
        match=rf"^no Ray cluster at '{address}' \(.+\): run this on a machine of the cluster \(ray start\)",
    ) as raised:
        run_real(real_scenario(placed(address)))
    assert "\n" not in str(raised.value)
    assert time.monotonic() - began < 60


def test_without_ray_the_extra_is_named(tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(dump_yaml(real_scenario(placed(None)).to_plain()))
    program = (
        "import sys; sys.modules['ray'] = None; from oppo_sim.cli.main import run;"
        " sys.exit(run(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, "run", str(scenario), "-o", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert_refused(
        Printed(done.returncode, done.stdout, done.stderr),
        "ray needs ray, which is not installed: pip install 'oppo-toolkit[ray]'",
    )
    assert not (tmp_path / "run").exists()


# ---- a Ray of one's own ------------------------------------------------------------------------------------


def test_a_run_starts_ray_where_none_is_named_and_ends_it(mark: str, tmp_path: Path) -> None:
    before = marked(mark)
    scenario = tmp_path / "scenario.yaml"
    shares = {"rollout": {"num_cpus": 0.5}, "scoring": {"num_cpus": 0.5}}
    scenario.write_text(dump_yaml(real_scenario(placed(None, **shares), steps=3, warmup_steps=0).to_plain()))
    process = start_oppo("run", scenario, "-o", tmp_path / "run", "--no-figures")
    assert within(
        120, lambda: len(marked(mark, "ray::RayWorker") - before) == 2 or process.poll() is not None
    )
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert [line for line in err.splitlines() if "no PPO update is made" not in line] == [], out
    assert "measured seconds" in out
    assert within(30, lambda: not marked(mark) - before)
    run = read_run_folder(tmp_path / "run")
    assert [engine["ray"]["clock_error_s"] for engine in run.manifest["engines"]["actors"]] == [0.0]
    spans = [event for event in run.json("timeline.json")["traceEvents"] if event.get("ph") == "X"]
    decoding = [event for event in spans if event["name"].startswith("decode")]
    scoring = [event for event in spans if event["name"].startswith("score")]
    # It scored while it decoded.
    assert any(
        a["ts"] < b["ts"] + b["dur"] and b["ts"] < a["ts"] + a["dur"] for a in decoding for b in scoring
    )
    assert (run.frame("rollouts.parquet")[c.SCORED_S] >= run.frame("rollouts.parquet")[c.FINISHED_S]).all()


def test_messages_keep_their_order_whatever_order_the_calls_come_in() -> None:
    mail = Mail()
    for number in (2, 0):
        mail.deliver(number, f"message {number}")
    assert (mail.recv(), mail.poll(0)) == ("message 0", False)
    mail.deliver(1, "message 1")
    assert [mail.recv(), mail.recv()] == ["message 1", "message 2"]
