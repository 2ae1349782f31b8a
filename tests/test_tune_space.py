"""What is searched: ranges that follow from the scenario, and what a user may change of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oppo_sim.errors import OppoError
from oppo_sim.policies.knobs import Knob
from oppo_sim.scenario.cluster import Split
from oppo_sim.scenario.load import load_scenario
from oppo_sim.tune.frameworks.catalog import FRAMEWORKS
from oppo_sim.tune.space import Setting, build_space, parse_knob
from tests.tuning import choices, scenario


def test_default_ranges_follow_from_the_scenario(tmp_path: Path) -> None:
    space = build_space(scenario(tmp_path, rollout_batch_size=12, max_response_length=400), None, (), None)
    assert space.policies == (
        "sequential",
        "intra",
        "rollout-overlap",
        "tail-batching",
        "april",
        "inter",
        "oppo",
        "partial-rollout",
    )
    oppo = {knob.field: knob for knob in space.knobs["oppo"]}
    assert (oppo["policy.chunk_size"].low, oppo["policy.chunk_size"].high, oppo["policy.chunk_size"].log) == (
        32,
        400,
        True,
    )
    assert (oppo["policy.overcommit"].low, oppo["policy.overcommit"].high) == (0, 12)
    assert None in oppo["policy.max_deferrals"].choices
    assert [knob.field for knob in space.knobs["partial-rollout"]] == [
        "policy.token_budget",
        "policy.overcommit",
        "policy.max_deferrals",
    ]
    assert space.knobs["sequential"] == ()


def test_overcommit_counts_whole_groups(tmp_path: Path) -> None:
    space = build_space(
        scenario(tmp_path, rollout_batch_size=12, group_size=4, policy={"name": "oppo", "overcommit": 4}),
        ["oppo"],
        (),
        None,
    )
    knob = next(knob for knob in space.knobs["oppo"] if knob.field == "policy.overcommit")
    assert [knob.nearest(value) for value in (0, 3, 5, 11, 12)] == [0, 4, 4, 12, 12]
    assert all(value % 4 == 0 for value in knob.grid(9, 4))


def test_starts_where_the_scenario_is(tmp_path: Path) -> None:
    space = build_space(
        scenario(tmp_path, policy={"name": "oppo", "overcommit": 0.5, "chunk_size": 16}),
        ["oppo", "intra"],
        (),
        None,
    )
    assert space.starts["oppo"] == Setting(
        "oppo", (("policy.chunk_size", 16), ("policy.overcommit", 2), ("policy.max_deferrals", None))
    )
    assert space.starts["intra"] == Setting("intra", (("policy.chunk_size", 16),))


def test_controlled_knobs_start_within_their_range(tmp_path: Path) -> None:
    given = scenario(
        tmp_path, policy={"name": "oppo", "chunk_size": {"control": "explore", "candidates": [8, 16, 32]}}
    )
    start = build_space(given, ["oppo"], (), None).starts["oppo"].knobs
    assert start["policy.chunk_size"] == 16
    assert 0 <= start["policy.overcommit"] <= 4


@pytest.mark.parametrize(
    ("text", "kind", "values"),
    [
        ("policy.chunk_size=8..64:log", "int", (8, 64)),
        ("policy.over_issue=1.0..1.5", "float", (1.0, 1.5)),
        ("policy.overcommit=0,4,0.5", "choice", (0, 4, 0.5)),
        ("policy.max_deferrals=null", "choice", (None,)),
        ("rollout.num_replicas=1:4:*2", "choice", (1, 2, 4)),
        ("stream_interval=64", "choice", (64,)),
    ],
)
def test_ranges_as_typed(text: str, kind: str, values: tuple[Any, ...]) -> None:
    knob = parse_knob(text)
    assert knob.kind == kind
    assert (knob.choices if kind == "choice" else (knob.low, knob.high)) == values
    assert knob.log == text.endswith(":log")
    if text.startswith("stream_interval"):
        assert knob.field == "policy.chunk_size"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("policy.chunk_size", ("--space", "FIELD=VALUES")),
        ("policy.chunk_size=64..8", ("swap",)),
        ("policy.chunk_size=0..8:log", ("logarithm",)),
        ("policy.chunk_size=8..64:cubic", ("cubic",)),
    ],
)
def test_bad_ranges_are_one_sentence(text: str, words: tuple[str, ...]) -> None:
    with pytest.raises(OppoError) as caught:
        parse_knob(text)
    for word in words:
        assert word in str(caught.value)


def test_any_field_of_the_scenario(tmp_path: Path) -> None:
    space = build_space(
        scenario(tmp_path), ["sequential", "oppo"], (choices("rollout.num_replicas", 1, 2),), None
    )
    assert [knob.field for knob in space.knobs["sequential"]] == ["rollout.num_replicas"]
    assert space.starts["sequential"].knobs == {"rollout.num_replicas": 2}


@pytest.mark.parametrize(
    ("policies", "knobs", "words"),
    [
        (["oracle"], (), ("oracle", "bound")),
        (["oppo", "opo"], (), ("opo", "did you mean")),
        ([], (), ("no policies",)),
        (["intra"], (choices("policy.overcommit", 1, 2),), ("policy.overcommit", "intra")),
        (["oppo"], (choices("policy.overcommit", -1, 2),), ("overcommit", "-1")),
        (["oppo"], (choices("rollout.replicas", 1, 2),), ("rollout.replicas",)),
        (["oppo"], (choices("rollout.num_replicas", 0, 2),), ("num_replicas", "0")),
        (["oppo"], (choices("seed", 0, 2),), ("seed", "no knob")),
        (["oppo"], (choices("policy.name", "oppo", "inter"),), ("--policies",)),
        (["oppo"], (choices("policy.chunk_size", 8), Knob("policy.chunk_size", "int", 8, 16)), ("twice",)),
    ],
)
def test_what_cannot_be_searched(
    tmp_path: Path, policies: list[str], knobs: tuple[Knob, ...], words: tuple[str, ...]
) -> None:
    with pytest.raises(OppoError) as caught:
        build_space(scenario(tmp_path), policies, knobs, None)
    for word in words:
        assert word in str(caught.value)


def test_a_bound_on_deferrals_shapes_the_space(tmp_path: Path) -> None:
    given = scenario(tmp_path)
    space = build_space(given, ["oppo", "sequential"], (), 2)
    knob = next(knob for knob in space.knobs["oppo"] if knob.field == "policy.max_deferrals")
    assert (knob.low, knob.high) == (0, 2)
    with pytest.raises(OppoError, match="cannot be tuned here"):
        build_space(given, ["async"], (), 2)
    with pytest.raises(OppoError, match="goes beyond --max-deferrals 2"):
        build_space(given, ["oppo"], (choices("policy.max_deferrals", 1, None),), 2)


def test_asynchronous_policies_are_searched_on_the_splits_that_train_apart() -> None:
    """The scenario itself shares its GPUs, as files of ``oppo scenario init`` do."""
    given = load_scenario(
        "h200x8-vllm", ["costs.reward_model={kind: verifier}", "placement.scoring=separate"]
    )
    space = build_space(given, ["sequential", "async"], (parse_knob("cluster.split=auto"),), None)
    own, shared = (
        next(knob for knob in space.knobs[name] if knob.field == "cluster.split").choices
        for name in ("async", "sequential")
    )
    assert 0 < len(own) < len(shared)
    assert not any("training:rollout" in split for split in own)
    # Its first trial has half of the GPUs train, not the one of the first split.
    assert "training:4" in space.starts["async"].knobs["cluster.split"]
    assert space.starts["sequential"].knobs["cluster.split"] == str(given.split)
    alone = parse_knob("cluster.split=rollout:4xTP2 scoring:cpu training:rollout")
    with pytest.raises(OppoError, match=r"needs placement\.training: separate"):
        build_space(given, ["async"], (alone,), None)


def test_a_framework_that_counts_nodes_is_searched_on_whole_ones() -> None:
    nodes = ["cluster.num_gpus=32", "cluster.num_gpus_per_node=8", "placement.scoring=separate"]
    given = load_scenario("h200x8-vllm", ["costs.reward_model={kind: verifier}", *nodes])
    auto = parse_knob("cluster.split=auto")
    verl, areal = (
        build_space(given, ["async"], (auto,), None, FRAMEWORKS[name]) for name in ("verl", "AReaL")
    )
    told, every = (
        {Split.parse(text).training for text in next(iter(space.knobs["async"][-1:])).choices}
        for space in (verl, areal)
    )
    assert told == {8, 16, 24} <= every
    assert {12, 20} <= every
    assert "are no whole nodes, which verl counts" in verl.splits
    assert "whole nodes" not in areal.splits


def test_asynchronous_policies_need_devices_of_their_own(tmp_path: Path) -> None:
    assert build_space(scenario(tmp_path), ["async"], (), None).policies == ("async",)
    with pytest.raises(OppoError, match=r"placement\.training: separate, or a search over --space cluster"):
        build_space(scenario(tmp_path, placement={"training": "rollout"}), ["async"], (), None)


def test_grids_hold_the_chosen_value_and_its_neighbours() -> None:
    knob = Knob("policy.chunk_size", "int", 32, 4096, log=True)
    grid = knob.grid(9, 200)
    assert 200 in grid
    assert grid[0] == 32
    assert grid[-1] == 4096
    assert grid == sorted(set(grid))
    assert any(100 < value < 200 for value in grid)
    assert Knob("f", "int", 0, 3).grid(9, 1) == [0, 1, 2, 3]


def test_one_rollout_is_not_one_batch() -> None:
    assert Setting("oppo", (("policy.overcommit", 1),)) != Setting("oppo", (("policy.overcommit", 1.0),))
    assert (
        len(
            {
                Setting("oppo", (("policy.overcommit", {"control": "reward_slope"}),)),
                Setting("oppo", (("policy.overcommit", 1),)),
            }
        )
        == 2
    )


def test_a_setting_is_shown_with_few_digits_and_kept_exactly() -> None:
    exact = 1.7654275288657706
    setting = Setting(
        "tail-batching", (("policy.over_issue", exact), ("policy.chunk_size", {"control": "race"}))
    )
    assert setting.label == "tail-batching, over_issue 1.765, chunk_size controlled (race)"
    assert setting.knobs["policy.over_issue"] == exact
    # A batch is not a rollout.
    assert Setting("oppo", (("policy.overcommit", 1.0),)).label == "oppo, overcommit 1.0"
