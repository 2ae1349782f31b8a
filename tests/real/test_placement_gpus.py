"""Which GPUs an engine sees that takes the first ones of its process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oppo_real.config import parse_real_config
from oppo_real.engines.interface import Sampling
from oppo_real.placement import worker
from oppo_real.placement.engines import VISIBLE, ActorSpec, ScorerSpec, in_own_process
from oppo_real.placement.worker import Pin, serve_replica, serve_scorer
from oppo_sim.errors import OppoError


def actor(device: str, size: int = 1, engine: str = "vllm") -> ActorSpec:
    args = {"tensor_parallel_size": size} if size > 1 else {}
    return ActorSpec(engine, "folder", Sampling(), device=device, engine_args=args)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("named", "spec", "shown"),
    [
        (None, actor("cuda:1"), "1"),
        (None, actor("cuda:2", 2), "2,3"),
        (None, actor("cuda"), "0"),
        ("4,6,7", actor("cuda:1"), "6"),
        ("GPU-a,GPU-b,GPU-c", actor("cuda:1", 2), "GPU-b,GPU-c"),
        ("4,6,7", ScorerSpec("vllm", "folder", device="cuda:2"), "7"),
        ("4,6", actor("cuda:1", engine="torch"), "4,6"),
        ("4,6", actor("cpu"), "4,6"),
    ],
)
def test_an_engine_is_shown_its_own_gpus(
    named: str | None, spec: ActorSpec | ScorerSpec, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VISIBLE, named or "")
    if named is None:
        monkeypatch.delenv(VISIBLE)
    found = in_own_process(spec)
    assert os.environ[VISIBLE] == shown
    taken = spec.engine == "vllm" and spec.device != "cpu"
    assert found.device == ("cuda" if taken else spec.device)


@pytest.mark.parametrize("named", ["", "5"])
def test_gpus_that_are_not_shown_to_us_are_refused(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, named)
    with pytest.raises(OppoError, match=r"1 GPU\(s\) from cuda:1 on needs more than CUDA_VISIBLE_DEVICES"):
        in_own_process(actor("cuda:1"))


def test_workers_are_shown_them_before_their_engine_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, str]] = []

    def build(spec: ActorSpec | ScorerSpec) -> None:
        seen.append((spec.device, os.environ[VISIBLE]))
        raise OppoError("that is all")

    class Channel:
        def send(self, message: object, /) -> None:
            pass

    monkeypatch.setattr(worker, "build_actor", build)
    monkeypatch.setattr(worker, "build_scorer", build)
    monkeypatch.setattr(worker, "bind", lambda cores, threads: None)
    monkeypatch.setenv(VISIBLE, "2,3")
    serve_replica(Channel(), 0, actor("cuda:1"), False, Pin(None, 1), dict)  # type: ignore[arg-type]
    monkeypatch.setenv(VISIBLE, "2,3")
    serve_scorer(Channel(), 0, ScorerSpec("vllm", "folder", device="cuda:0"), 8, Pin(None, 1))  # type: ignore[arg-type]
    assert seen == [("cuda", "3"), ("cuda", "2")]


def test_in_one_process_only_the_first_gpu_can_be_had(tmp_path: Path) -> None:
    section = {"engine": "vllm", "devices": {"rollout": ["cuda:1"]}}
    with pytest.raises(
        OppoError, match=r"cuda:1 needs a process of its own: set placement\.kind to processes"
    ):
        parse_real_config(section)
    parse_real_config({**section, "placement": {"kind": "processes"}})
    parse_real_config({**section, "engine": "torch"})
