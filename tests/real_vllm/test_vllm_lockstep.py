"""Replaying one trace in lock-step over vLLM, simulator and real run decide alike, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from oppo_real.engines.interface import Actor, Sampling, Scorer
from oppo_real.engines.models import build_causal_lm, build_reward_model
from oppo_real.engines.vllm_actor import VllmActor
from oppo_real.engines.vllm_scorer import VllmScorer
from oppo_sim import columns as c
from oppo_sim.model.setup import MachineSetup
from tests.real.lockstep import (
    FILTER_CASES,
    LOCKSTEP_CASES,
    MODEL,
    PREFIX_CASES,
    TOOL_CASES,
    LockstepCase,
    assert_same_decisions,
)
from tests.real_vllm.drive import QUIET

pytestmark = [pytest.mark.filterwarnings(warning) for warning in QUIET]

# vLLM's attention on the CPU refuses heads of 16.
SHAPE: dict[str, Any] = MODEL | {"hidden_size": 64}
CASES = [
    case
    for case in LOCKSTEP_CASES
    if case.name in {"sequential", "intra", "inter", "oppo", "oppo, controlled", "oppo, KV kept"}
]
CASES += [
    case for case in TOOL_CASES if case.name in {"sequential, KV given up", "oppo", "oppo, rounds", "async"}
]
CASES += [*PREFIX_CASES, *(case for case in FILTER_CASES if case.name == "oppo, tools")]
KV = {"kv_cache_memory_bytes": 1 << 26}
COMPILED = "oppo"
"""The case whose engines vLLM compiles, as it does of its own accord: half a minute that decides nothing."""


@pytest.fixture(scope="module")
def actor_model() -> torch.nn.Module:
    return build_causal_lm(SHAPE)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, actor_model: Any) -> tuple[Path, Path]:
    actor, reward = tmp_path_factory.mktemp("actor"), tmp_path_factory.mktemp("reward")
    actor_model.save_pretrained(actor)
    build_reward_model(SHAPE).save_pretrained(reward)
    return actor, reward


class Kept:
    """Engines that serve one case after the other, as new for each: a start takes seconds."""

    def __init__(self, closing: ExitStack) -> None:
        self._closing = closing
        self._engines: dict[str, list[Any]] = {}

    def get(self, kind: type, folder: Path, count: int, **settings: Any) -> list[Any]:
        """So many engines with these settings, whose ``close`` waits for the end of all cases."""
        found = self._engines.setdefault(f"{kind} {settings}", [])
        for engine in found[:count]:
            engine.reset()
        while len(found) < count:
            engine = kind(str(folder), dtype="float32", max_model_len=256, **settings)
            self._closing.callback(engine.close)
            engine.close = lambda: None
            found.append(engine)
        return found[:count]


@pytest.fixture(scope="module")
def kept() -> Iterator[Kept]:
    with ExitStack() as closing:
        yield Kept(closing)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name + ", tools" * case.tools)
def test_simulator_and_vllm_decide_alike(
    case: LockstepCase, folders: tuple[Path, Path], actor_model: torch.nn.Module, kept: Kept
) -> None:
    arguments = KV | {"enforce_eager": case.name != COMPILED or case.tools}
    blocks = {"block_size": case.machine.kv_block_tokens} if case.machine.shares_prefixes else {}

    def engines(machine: MachineSetup) -> tuple[list[Actor], list[Scorer]]:
        actors = kept.get(
            VllmActor,
            folders[0],
            machine.num_replicas,
            sampling=Sampling(),
            keep_kv_on_tool_call=case.tools and not machine.clear_kv_cache_on_tool_call,
            share_prompts=machine.shares_prefixes,
            engine_args=arguments | blocks,
        )
        return actors, kept.get(VllmScorer, folders[1], machine.num_workers, engine_args=arguments)

    # Of kept KV vLLM keeps whole blocks: what there was of the last one is prefilled again.
    but = [c.TOKENS_RECOMPUTED] * (case.tools and not case.machine.clear_kv_cache_on_tool_call)
    if case.machine.shares_prefixes and case.policy != "sequential":
        # It does not tell what it finds again in its cache when running rollouts have lost their KV.
        but = [c.TOKENS_RECOMPUTED, c.TOKENS_PREFIX_CACHED]
    assert_same_decisions(case, engines, actor_model, but=but)
