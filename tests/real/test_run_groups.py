"""Groups in real runs: dynamic sampling, and what is refused of it."""

from __future__ import annotations

from typing import Any

import pytest

from oppo_real.run.setup import build_real_setup
from oppo_real.run.start import run_real
from oppo_real.wrapper import rollout_stream
from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.scenario.schema import Scenario
from tests.real.real_scenario import real_scenario

PASSED = {"enable": True, "pass_rate": {"alpha": 1, "beta": 1}}


def judged(real: dict[str, Any] | None = None, **fields: Any) -> Scenario:
    given = {"group_size": 2, "dynamic_sampling": PASSED, "rollout": {"num_replicas": 2}, **fields}
    return real_scenario(real, **given)


@pytest.mark.parametrize("kind", ["inline", "processes"])
def test_free_running_trains_no_group_whose_rewards_are_equal(kind: str) -> None:
    scenario = judged({"placement": {"kind": kind, "threads": 1}}, steps=3)
    rewards = build_real_setup(scenario).base.sample_rewards
    assert rewards is not None
    run = run_real(scenario)
    for _, group in run.rollouts.groupby(c.GROUP_ID):
        assert len({rewards[row] for row in group[c.TRACE_ROW]}) == 2
    steps = run.steps
    assert steps[c.ROLLOUTS_FILTERED].sum() > 0
    assert steps[c.TOKENS_DECODED].sum() == (
        steps[[c.TOKENS_TRAINED, c.TOKENS_FILTERED]].sum().sum() + steps[c.TOKENS_IN_FLIGHT].iloc[-1]
    )
    admitted, trained = steps[c.ROLLOUTS_ADMITTED].sum(), len(run.rollouts)
    left = steps[[c.ROLLOUTS_DEFERRED, c.ROLLOUTS_SURPLUS]].iloc[-1].sum()
    assert admitted == trained + steps[c.ROLLOUTS_FILTERED].sum() + left


def test_dynamic_sampling_without_rewards_of_a_trace_is_refused() -> None:
    with pytest.raises(OppoError, match=r"judges groups by the rewards of a trace: set real\.mode to replay"):
        build_real_setup(judged({"mode": "train"}))
    with (
        pytest.raises(OppoError, match="knows no rewards by which groups could be"),
        rollout_stream(judged()),
    ):
        pass
