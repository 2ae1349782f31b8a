"""One clock, forced lengths: the real run makes the simulator's decisions, row by row."""

import pytest

from tests.real.lockstep import (
    COSTLY_CASES,
    COSTLY_TOOL_CASES,
    FILTER_CASES,
    LOCKSTEP_CASES,
    TOOL_CASES,
    LockstepCase,
    assert_same_decisions,
    torch_engines,
)


@pytest.mark.parametrize("case", LOCKSTEP_CASES, ids=lambda case: case.name)
def test_simulator_and_torch_engines_decide_alike(case: LockstepCase) -> None:
    assert_same_decisions(case, torch_engines)


@pytest.mark.parametrize("case", COSTLY_CASES, ids=lambda case: case.name)
def test_worker_choice_is_the_simulator_s_where_pieces_take_time(case: LockstepCase) -> None:
    assert_same_decisions(case, torch_engines)


@pytest.mark.parametrize("case", [*TOOL_CASES, *COSTLY_TOOL_CASES], ids=lambda case: case.name)
def test_both_decide_alike_where_rollouts_wait_for_tools(case: LockstepCase) -> None:
    assert_same_decisions(case, torch_engines)


@pytest.mark.parametrize("case", FILTER_CASES, ids=lambda case: case.name)
def test_both_drop_and_replace_the_same_groups(case: LockstepCase) -> None:
    assert_same_decisions(case, torch_engines)
