"""Staleness and deferrals as distributions, worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import pytest

from oppo_sim import columns as c
from oppo_sim.results.sinks import SummarySink
from oppo_sim.results.summary import run_totals, shares_of
from oppo_sim.runs.distributions import compared_shares
from tests.small import run


def test_rows_count_how_often_a_trained_rollout_was_deferred() -> None:
    # B = 1, Δ = 1: rollouts of 3, 5, 1 and 9 tokens. Step 0 ends after 3 iterations: 0 is trained, 1 is
    # deferred. In step 1 rollout 2 finishes after one iteration: 1 is deferred again. Step 2: rollout 1 has
    # 4 tokens and finishes after one more; 3 is deferred. Step 3: rollout 4, of 3 tokens, is the first.
    settings = {"overcommit": 1, "chunk_size": 99}
    steps = run("oppo", [3, 5, 1, 9, 3], steps=4, batch=1, settings=settings).steps
    assert steps[c.DEFERRALS_HISTOGRAM].tolist() == [[1], [1], [0, 0, 1], [1]]
    assert steps[c.STALENESS_HISTOGRAM].tolist() == [[1], [1], [0, 0, 1], [1]]


def row(deferrals: list[int]) -> dict[str, Any]:
    numbers = {c.TIMING_STEP: 1.0, c.TOKENS_TRAINED: 10, c.LENGTH_MEAN: 5.0, c.TRACE_LENGTH_MEAN: 5.0}
    return {**numbers, c.DEFERRALS_HISTOGRAM: deferrals, c.STALENESS_HISTOGRAM: [4]}


def test_totals_have_the_shares_after_the_warm_up() -> None:
    sink = SummarySink(1)
    for deferrals in ([0, 0, 0, 4], [3, 1], [2, 1, 1]):
        sink.on_step(row(deferrals))
    totals = run_totals(sink, 4, 1)
    assert [totals[c.share("deferrals", value)] for value in range(3)] == [5 / 8, 2 / 8, 1 / 8]
    assert totals[c.share("deferrals", 3)] == 0.0
    assert totals[c.share("staleness", 0)] == 1.0
    assert totals[c.COMPARED_DEFERRALS_MEAN] == pytest.approx(4 / 8)
    assert totals[c.COMPARED_DEFERRALS_MAX] == 2


def test_what_lies_far_out_is_put_together() -> None:
    shares = shares_of("deferrals", [1] * 20)
    assert len(shares) == 17
    assert shares[c.share("deferrals", 15)] == 1 / 20
    assert shares[c.share("deferrals", 16)] == 4 / 20
    assert shares_of("deferrals", [2, 2])[c.share("deferrals", 16)] == 0.0


def test_policies_are_compared_by_mean_over_seeds() -> None:
    def cell(policy: str, seed: int, variant: str, shares: Mapping[int, float]) -> dict[str, Any]:
        named = {c.share("staleness", value): share for value, share in shares.items()}
        return {"policy": policy, "seed": seed, "variant": variant, **named}

    cells = pd.DataFrame(
        [
            cell("oppo", 0, "actual", {0: 0.5, 1: 0.5}),
            cell("oppo", 1, "actual", {0: 1.0}),
            cell("intra", 0, "actual", {0: 1.0}),
            cell("intra", 1, "actual", {0: 1.0}),
            cell("oppo", 0, "no_tail", {0: 0.1, 1: 0.1, 2: 0.8}),
        ]
    )
    (name, table), *rest = compared_shares(cells).items()
    assert (name, rest) == ("staleness", [])
    assert list(table.columns) == ["0", "1"]
    assert table.to_numpy().tolist() == [[0.75, 0.25], [1.0, 0.0]]
    assert list(table.index) == ["oppo", "intra"]
