"""A learner and a replica in two processes, each on a GPU of its own (tests/real/fake_cuda): the loop that serves
a replica, with weights that go over gloo, as between machines."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from oppo_real.engines import models
from oppo_real.engines.interface import Request
from oppo_real.placement.engines import ActorSpec
from oppo_real.placement.events import Delivered, Job, Rested
from oppo_real.placement.shared_weights import Layout, layout_of
from oppo_real.placement.worker import Pin, serve_replica
from tests.real.fake_cuda.exercises import GREEDY, SMALL, actor
from tests.real.fake_cuda.machine import cuda_machine
from tests.real.tiny import single_thread

single_thread()


@contextmanager
def _group(folder: Path, rank: int) -> Iterator[None]:
    with patch.dict(os.environ, {"GLOO_SOCKET_IFNAME": "lo"}):
        meet = {"init_method": f"file://{folder}/group", "rank": rank, "world_size": 2}
        dist.init_process_group("gloo", timeout=timedelta(seconds=90), **meet)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _replica(channel: Any, folder: Path, layout: Layout) -> None:
    """The second process: whatever goes wrong is its last message."""

    def received(published: None) -> Mapping[str, torch.Tensor]:
        block = torch.empty(layout.size, dtype=torch.uint8)
        dist.broadcast(block, src=0)
        return layout.views(block)

    spec = ActorSpec("torch", SMALL, GREEDY, seed=5, device="cuda:1")
    with _group(folder, 1), cuda_machine():
        serve_replica(channel, 0, spec, stream=False, to=Pin(None, 1), published=received)


def _told(channel: Any, kind: str) -> Any:
    while True:
        assert channel.poll(120), f"no {kind} from the replica"
        found, *content = channel.recv()
        assert found != "failed", content
        if found == kind:
            return content[0] if content else None


def test_a_replica_on_another_gpu_decodes_with_the_weights_of_the_learner(tmp_path: Path) -> None:
    fresh = models.build_causal_lm(SMALL, 7).state_dict()
    layout = layout_of(fresh)
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_replica, args=(there, tmp_path, layout))
    process.start()
    try:
        with _group(tmp_path, 0):
            with cuda_machine():
                learner = models.build_causal_lm(SMALL, 7, device="cuda:0")
                block = torch.empty(layout.size, dtype=torch.uint8)
                layout.write(block, learner.state_dict())
            assert _told(here, "ready")["device"] == "cuda:1"
            here.send(("load", None, 1, False))
            dist.broadcast(block, src=0)
            _told(here, "loaded")
            here.send(("submit", [Job(Request(0, (1, 2, 3), 8), 0)]))
            here.send(("generate", 0.0, 4, None))
            made: list[int] = []
            rested = False
            while not rested:
                for event in _told(here, "events"):
                    rested |= isinstance(event, Rested)
                    if isinstance(event, Delivered):
                        assert {delta.weight_version for delta in event.deltas} <= {1}
                        made += [token for delta in event.deltas for token in delta.tokens]
            here.send(("close",))
    finally:
        process.join(60)
        process.kill()
    assert process.exitcode == 0
    expected = actor("cpu")
    expected.load_weights(fresh, 1, keep_kv=False)
    expected.submit([Request(0, (1, 2, 3), 8)])
    assert made == [new.tokens[0] for _ in range(8) for new in expected.step()]
