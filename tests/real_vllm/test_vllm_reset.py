"""Engines that serve another run are as new: no rollouts, nothing cached, counts from zero."""

from __future__ import annotations

from pathlib import Path

import pytest

from oppo_real.engines.interface import Sampling
from oppo_real.engines.vllm_actor import VllmActor
from oppo_real.engines.vllm_scorer import VllmScorer
from tests.real.as_new import check_as_new
from tests.real_vllm.drive import QUIET

pytestmark = [pytest.mark.filterwarnings(warning) for warning in QUIET]


@pytest.mark.parametrize("caches", [False, True])
@pytest.mark.parametrize("lock_step", [True, False])
def test_vllm_engines_are_as_new_after_reset(
    actor_folder: Path, scorer_folder: Path, caches: bool, lock_step: bool
) -> None:
    arguments = {"enforce_eager": True, "block_size": 32}
    actor = VllmActor(
        actor_folder,
        Sampling(1.0, 1.0, None, 3),
        lock_step=lock_step,
        dtype="float32",
        max_num_seqs=8,
        kv_capacity_tokens=4096,
        keep_kv_on_tool_call=caches,
        engine_args=arguments,
    )
    scorer = VllmScorer(
        scorer_folder, dtype="float32", max_num_seqs=8, kv_capacity_tokens=4096, engine_args=arguments
    )
    try:
        check_as_new(actor, scorer)
    finally:
        actor.close()
        scorer.close()
