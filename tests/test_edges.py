"""The best point of a sweep or a search at an edge of what was searched; a weight sync that takes much of a
step."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import oppo_sim
from oppo_sim.runs.sync_share import sync_warnings
from oppo_sim.scenario.build import build_parts
from oppo_sim.scenario.load import load_scenario, scenario_from_plain
from oppo_sim.scenario.schema import Scenario
from oppo_sim.scenario.yaml_text import parse_yaml
from oppo_sim.simulation import simulate
from oppo_sim.sweep.beyond import best_edges, best_warnings
from oppo_sim.sweep.edges import Edge, Interval, Searched, edges, into_another
from oppo_sim.sweep.show import notes
from oppo_sim.tune.space import build_space, parse_knob
from tests.cli_runs import Oppo, write_scenario


@pytest.fixture
def oppo(capsys: pytest.CaptureFixture[str]) -> Oppo:
    return Oppo(capsys)


def scenario(extra: str = "") -> Scenario:
    text = """
format: oppo-scenario/1
steps: 4
rollout_batch_size: 8
max_prompt_length: 16
max_response_length: 64
trace: {synth: {parameters: {mu: 3.0, sigma: 0.7}, rows: 100}, prompt_length: 8}
costs: {kind: linear, decode: {fixed: 0.01}, score: {per_token: 0.002}}
policy: {name: oppo, chunk_size: 8, overcommit: 0}
rewards: {kind: saturating}
"""
    return scenario_from_plain(parse_yaml(text + extra, "f.yaml"), [], where="f.yaml")


def one(field: str, values: Sequence[Any], best: Any, drawn: Interval | None = None) -> Edge | None:
    found = edges(scenario(), {field: Searched(values, drawn)}, {field: best})
    assert len(found) <= 1
    return found[0] if found else None


@pytest.mark.parametrize(
    ("field", "values", "best", "said"),
    [
        ("policy.chunk_size", (8, 16, 32), 16, None),
        ("policy.chunk_size", (8, 16, 32), 8, ("lowest", False, "2,4,8,16,32")),
        ("policy.chunk_size", (8, 16, 32), 32, ("highest", False, "8,16,32,64")),
        ("policy.chunk_size", (16, 32, 64), 64, ("highest", True, "")),
        ("policy.chunk_size", (1, 2), 1, ("lowest", True, "")),
        # What the schema bounds: there is no half of a stage.
        ("training.pipeline_parallel", (1, 2, 4), 1, ("lowest", True, "")),
        ("training.pipeline_parallel", (2, 4, 8), 2, ("lowest", False, "1,2,4,8")),
        ("training.lora_rank", (0, 16), 0, ("lowest", True, "")),
        ("expert_model_parallel_size", (1, 2, 4), 1, ("lowest", True, "")),
        ("max_lag", (1, 2, 4), 1, ("lowest", False, "0,1,2,4")),
        ("placement.interference", (25, 100), 100, ("highest", True, "")),
        ("policy.overcommit", (0, 2, 4), 0, ("lowest", True, "")),
        ("policy.overcommit", (0, 2, 4), 4, ("highest", False, "0,2,4,6,8")),
        # 1.0 is a batch of 8 rollouts, more than 4 of them.
        ("policy.overcommit", (2, 4, 1.0), 4, None),
        # Shares stay shares, of which the batch is the largest.
        (
            "policy.overcommit",
            (0.1234567, 0.2),
            0.2,
            ("highest", False, "0.1234567,0.2,0.276543,0.353087"),
        ),
        ("policy.overcommit", (0.0, 0.25, 0.5), 0.5, ("highest", False, "0.0,0.25,0.5,0.75,1.0")),
        ("policy.overcommit", (0.1, 0.3), 0.3, ("highest", False, "0.1,0.3,0.9,1.0")),
        ("policy.overcommit", (0.5, 1.0), 1.0, ("highest", True, "")),
        ("policy.overcommit", (0.25, 0.5), 0.25, ("lowest", False, "0.0625,0.125,0.25,0.5")),
        ("policy.max_staleness", (0, 1, 2), 2, ("highest", False, "0,1,2,3,4")),
        # Unbounded deferrals are beyond every number of them.
        ("policy.max_deferrals", (None, 1, 2, 8), 8, None),
        ("policy.max_deferrals", (None, 1, 2, 8), None, None),
        ("rollout.num_replicas", (1, 2), 2, ("highest", False, "1,2,4,8")),
        ("scoring.num_workers", (1, 2), 1, ("lowest", True, "")),
        ("policy.name", ("oppo", "inter"), "oppo", None),
        ("policy.chunk_size", (8,), 8, None),
    ],
)
def test_an_edge_is_found_with_what_lies_beyond(
    field: str, values: Sequence[Any], best: Any, said: tuple[str, bool, str] | None
) -> None:
    edge = one(field, values, best)
    assert (None if edge is None else (edge.side, edge.limit, edge.values)) == said
    if edge is not None and not edge.limit:
        assert f"search beyond it: oppo x {edge.values}" in edge.sentence(f"oppo x {edge.values}")


def test_an_interval_is_widened_within_what_there_is() -> None:
    low = one("policy.chunk_size", (9, 20, 30), 9, Interval(8, 32, log=True, whole=True))
    assert low is not None
    assert low.values == "2..32:log"
    high = one("policy.chunk_size", (9, 20, 30), 30, Interval(8, 32, log=True, whole=True))
    assert high is not None
    assert high.values == "8..64:log"
    assert parse_knob(f"policy.chunk_size={high.values}").high == 64
    share = one("policy.overcommit", (0.02, 0.3, 0.49), 0.49, Interval(0.0, 0.5))
    assert share is not None
    assert share.values == "0.0..0.75"
    most = one("policy.overcommit", (0.1, 0.9), 0.9, Interval(0.0, 0.95))
    assert most is not None
    assert most.values == "0.0..1.0"
    drawn = parse_knob(f"policy.overcommit={most.values}")
    assert (drawn.kind, drawn.low, drawn.high) == ("float", 0.0, 1.0)


def test_why_is_said_where_it_can_be_told() -> None:
    lowest = {"policy.chunk_size": Searched((8, 16))}
    (free,) = edges(scenario(), lowest, {"policy.chunk_size": 8})
    assert "a cut costs no seconds" in free.why
    costly = scenario().model_copy(
        update={"costs": scenario().costs.model_validate({
            "kind": "linear", "decode": {"fixed": 0.01}, "terms": {"piece_fixed_s": 0.1}})}
    )  # fmt: skip
    (paid,) = edges(costly, lowest, {"policy.chunk_size": 8})
    assert paid.why == "smaller pieces or rounds hide more here than they cost"
    (stale,) = edges(scenario(), {"policy.overcommit": Searched((0, 2))}, {"policy.overcommit": 2})
    assert "staleness costs no seconds" in stale.why
    least = {"policy.overcommit": Searched((2, 4))}, {"policy.overcommit": 2}
    (few,), (dear,) = edges(scenario(), *least), edges(scenario(), *least, by_reward=True)
    assert few.why == "more of it gains nothing on this machine"
    assert dear.why == "more of it costs more in reward than it saves in seconds"
    two = {"rollout.num_replicas": Searched((2, 4))}
    whys = [edges(scenario(), two, {"rollout.num_replicas": number})[0].why for number in (2, 4)]
    assert whys[0] == "more of them take no fewer seconds on this machine"
    assert whys[1].startswith("more of them take fewer seconds, whatever they cost")
    refused = Searched((8, 16), refused={32: "it does not fit"})
    (held,) = edges(scenario(), {"policy.chunk_size": refused}, {"policy.chunk_size": 16})
    assert held.why == "32 could not run (it does not fit)"
    assert held.values == ""


def test_a_split_is_at_an_edge_in_its_parts() -> None:
    splits = (
        "rollout:2xTP2 scoring:rollout training:4",
        "rollout:4xTP1 scoring:rollout training:4",
        "rollout:2xTP1 scoring:rollout training:6",
        "rollout:6xTP1 scoring:rollout training:2",
    )

    def whats(best: int, auto: bool) -> dict[str, tuple[str, bool, str]]:
        found = edges(
            scenario(), {"cluster.split": Searched(splits)}, {"cluster.split": splits[best]}, auto=auto
        )
        return {edge.what: (edge.side, edge.limit, edge.values) for edge in found}

    assert whats(0, False) == {"GPUs a replica 2": ("highest", False, "auto")}
    assert whats(1, True) == {"GPUs a replica 1": ("lowest", True, "")}
    assert whats(2, True) == {
        "GPUs that generate 2": ("lowest", False, ""),
        "GPUs a replica 1": ("lowest", True, ""),
        "GPUs that train 6": ("highest", False, ""),
    }


def test_a_sweep_says_its_edge_and_the_command_it_gives_runs(tmp_path: Path) -> None:
    swept = oppo_sim.sweep(
        scenario(), grid={"policy.overcommit": [0, 2], "policy.chunk_size": [2, 4, 8]}, seeds=2, draws=0,
        folder=tmp_path / "swept", executor="serial",
    )  # fmt: skip
    found, command = best_edges(swept)
    at = {edge.field: edge for edge in found}
    values = swept.plan.points[swept.best or 0]
    assert values["policy.overcommit"] == 2  # less is waited for
    assert at["policy.overcommit"].values == "0,2,4,6"
    assert "--grid policy.overcommit=0,2,4,6" in command
    assert "--grid policy.chunk_size=1,2,4,8" in command
    assert sum(command in sentence for sentence in notes(swept)) == 1
    # A folder that was asked for is not asked for twice.
    given = notes(swept, output=Path("runs/my sweep"))
    assert any(sentence.endswith(f"{command} -o 'runs/my sweep-wider'") for sentence in given)
    assert into_another("", Path("a")) == ""
    assert into_another("oppo sweep x", Path("a/b/..")).endswith("/a-wider")


def test_one_command_widens_all_edges_and_runs_as_it_is_printed(
    oppo: Oppo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    write_scenario(tmp_path)
    grid = ["--grid", "policy.overcommit=0,2", "--grid", "rollout.num_replicas=1,2"]
    given = ["--set", "policy.name=inter", "--seeds", "2", "--jobs", "1", "--no-figures"]
    printed = oppo("sweep", "tiny.yaml", *grid, *given, "-o", "swept")
    assert printed.out.count("best at an edge") == 2
    (command,) = [line.strip() for line in printed.out.splitlines() if line.strip().startswith("oppo sweep")]
    assert "--grid policy.overcommit=0,2,4,6" in command
    assert "--grid rollout.num_replicas=1,2,4,8" in command
    assert printed.out.count("the same command searches beyond it") == 1
    wider = oppo(*shlex.split(command)[1:], "--jobs", "1", "--no-figures")
    assert wider.code == 0, wider.err
    record = json.loads((tmp_path / "swept" / "sweep.json").read_text())
    assert [each["command"] for each in record["edges"]] == [command.removesuffix(" -o swept-wider")] * 2


def test_a_field_that_changes_nothing_has_no_edge() -> None:
    # Sequential scores whole batches and stops at a token: chunks do nothing.
    swept = oppo_sim.sweep(
        scenario(), grid={"policy.name": ["sequential"], "policy.chunk_size": [2, 4]}, seeds=2, draws=0,
        executor="serial",
    )  # fmt: skip
    assert best_edges(swept) == ([], "")


def test_a_search_counts_the_splits_that_it_left_out() -> None:
    space = build_space(load_scenario("h200x8-async"), ["async"], [parse_knob("cluster.split=auto")], None)
    assert "splits of 8 GPUs" in space.splits
    assert "others were left out" in space.splits
    assert build_space(load_scenario("h200x8-async"), ["async"], [], None).splits == ""


def test_a_long_weight_sync_is_told_with_the_better_choice() -> None:
    name = "h200-single"
    reported = "training.weight_sync={kind: online_refit, fixed_s: 1.0, convert_bytes_per_s: 1.06e9}"
    run = simulate(load_scenario(name, [reported]), policy="oppo", steps=12, keep_rollouts=False)
    (said,) = (text for text in run.manifest["warnings"] if "update_weights" in text)
    seconds = float(run.steps["timing_s/update_weights"].iloc[-1])
    assert f"({seconds:.3g} of {run.step_s:.3g} s)" in said
    assert "by its defaults" not in said
    # The better choice takes what it says.
    text = said.split("training.weight_sync ")[1].split("} ")[0] + "}"
    better = simulate(
        load_scenario(name, [f"training.weight_sync={text}"]), policy="oppo", steps=12, keep_rollouts=False
    )
    again = float(better.steps["timing_s/update_weights"].iloc[-1])
    assert f"it takes {again:.3g} s" in said
    assert not [text for text in better.manifest["warnings"] if "update_weights" in text]
    export = load_scenario(name, ["training.weight_sync={kind: full_export}"])
    assert "{kind: online_refit}" in sync_warnings(export, 300.0)[0]
    assert sync_warnings(export, 1e6) == []
    assert sync_warnings(scenario(), 0.001) == []


def test_more_keys_and_values_than_device_memory_holds_are_told_of(tmp_path: Path) -> None:
    """A file without a capacity (its default) has ample KV: a search preferred what no engine could hold."""
    tight = ["rollout_batch_size=256", "warmup_steps=1", "costs.rollout.gpu_memory_utilization=0.054"]
    room = build_parts(load_scenario("h200-single", tight)).costs.actor_kv_capacity_tokens
    ample = [*tight, "rollout.kv_capacity_tokens=null"]
    run = simulate("h200-single", policy="inter", steps=3, overrides=ample)
    (told,) = (each for each in run.manifest["warnings"] if "device memory leaves" in each)
    assert told.startswith(f"KV reaches {run.steps['kv/peak_tokens'].max():,.0f} tokens a replica")
    assert f"leaves {room:,}, and rollout.kv_capacity_tokens bounds nothing" in told
    bounded = simulate("h200-single", policy="inter", steps=3, overrides=tight)
    assert not any("device memory leaves" in each for each in bounded.manifest["warnings"])
    folder = tmp_path / "compared"
    oppo_sim.compare("h200-single", ["inter"], steps=3, seeds=1, draws=0, overrides=ample, folder=folder)
    warnings = json.loads((folder / "manifest.json").read_text())["warnings"]
    assert any("device memory leaves" in each for each in warnings)
    grid = {"policy.name": ["inter"]}
    swept = oppo_sim.sweep("h200-single", grid=grid, steps=3, seeds=1, draws=0, overrides=ample)
    assert any("device memory leaves" in each for each in best_warnings(swept))
