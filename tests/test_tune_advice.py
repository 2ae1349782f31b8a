"""Advice in other frameworks' words: knobs that exist, with values that mean what was chosen; and the
scenario file of the choice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from oppo_sim.policies.interface import Batch
from oppo_sim.policies.registry import make_policy
from oppo_sim.scenario.aliases import ALIASES
from oppo_sim.scenario.load import load_scenario
from oppo_sim.scenario.schema import Scenario
from oppo_sim.simulation import simulate
from oppo_sim.tune.advice import advice_markdown, advice_text
from oppo_sim.tune.frameworks import Line, frameworks, recommended
from tests.tuning import choices, scenario, search

# Names that scenario/aliases.py does not translate, as the projects' documentation has them.
DOCUMENTED = {
    "trainer.v1.trainer_mode",
    "--train.async_enable",
    "--train.async_queue_size",
    "is_use_additional_prompts",
    "enable_prefix_caching",
    "pause_generation(mode='keep', clear_cache=…)",
    "scheduling_policy",
    "max_num_seqs",
    "rollout_batch_size",
    "OppoPPOTrainer(policy=…)",
}

POLICIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("sequential", {}),
    ("intra", {"chunk_size": 16}),
    ("rollout-overlap", {}),
    ("inter", {"overcommit": 4, "max_deferrals": 2}),
    ("oppo", {"overcommit": 2, "chunk_size": 24}),
    ("oppo", {"overcommit": 8, "chunk_size": 24, "max_deferrals": 1}),
    ("oppo", {}),
    ("april", {"overcommit": 1.0}),
    ("partial-rollout", {"token_budget": 16, "overcommit": 2}),
    ("tail-batching", {}),
    ("async", {"max_staleness": 2}),
    ("async", {"max_staleness": 2, "max_staleness_strategy": "wait", "partial_rollout": False}),
)


def _as_key(knob: str) -> str:
    """A flag as a configuration key."""
    return knob.removeprefix("--").replace("-", "_")


def _told(
    folder: Path, policy: str, settings: dict[str, Any], **changes: Any
) -> tuple[Scenario, dict[str, list[Line]]]:
    given = scenario(folder, policy={"name": policy, **settings}, **changes)
    built = make_policy(policy, Batch(given.rollout_batch_size, given.group_size), settings)
    return given, frameworks(recommended(given, built, 2.0))


@pytest.mark.parametrize(("policy", "settings"), POLICIES)
@pytest.mark.parametrize("group_size", [1, 2])
def test_knobs_exist_and_say_what_was_chosen(
    tmp_path: Path, policy: str, settings: dict[str, Any], group_size: int
) -> None:
    given, found = _told(
        tmp_path,
        policy,
        settings,
        group_size=group_size,
        rollout={"num_replicas": 2, "max_num_seqs": 6, "clear_kv_cache_on_weight_sync": False},
    )
    assert set(found) == {"TRL", "verl", "OpenRLHF", "slime", "ROLL", "vLLM"}
    for framework, lines in found.items():
        assert lines, framework
        for line in lines:
            assert line.meaning
            if line.knob is None:
                assert line.value is None
                assert line.field is None
                continue
            key = _as_key(line.knob)
            assert key in ALIASES or line.knob in DOCUMENTED or key in DOCUMENTED, (framework, line)
            if line.field is None:
                continue
            if key in (line.field, line.field.rpartition(".")[2]):
                assert line.value == _value(given, line.field), (framework, line)
                continue
            # What the framework is told is read back as the chosen value.
            text = json.dumps(line.value)
            again = load_scenario(tmp_path / "tiny.yaml", [f"{key}={text}"])
            assert _value(again, line.field) == _value(given, line.field), (framework, line)


def test_updates_that_wait_for_rollouts_are_not_told_to_interrupt_them(tmp_path: Path) -> None:
    for partial in (True, False):
        _, found = _told(tmp_path, "async", {"partial_rollout": partial})
        assert any(line.knob == "--train.partial_rollout_enable" for line in found["OpenRLHF"]) == partial
        assert any(line.knob == "--partial-rollout" for line in found["slime"]) == partial
        assert any("always interrupts" in line.meaning for line in found["verl"]) != partial


def _value(given: Scenario, field: str) -> Any:
    if field == "policy.overcommit":
        built = make_policy(
            given.policy.name, Batch(given.rollout_batch_size, given.group_size), given.policy.settings
        )
        return built.overcommit  # type: ignore[attr-defined]
    node: Any = given.to_plain()
    for part in field.split("."):
        node = node[part]
    return node


def _knobs(lines: list[Line]) -> dict[str, Any]:
    return {line.knob: line.value for line in lines if line.knob is not None}


def _lacks(lines: list[Line]) -> str:
    return " ".join(line.meaning for line in lines if line.knob is None)


def test_what_a_framework_cannot_do_is_said(tmp_path: Path) -> None:
    _, found = _told(tmp_path, "oppo", {"overcommit": 2, "chunk_size": 24, "max_deferrals": 1})
    for framework in ("TRL", "verl", "OpenRLHF", "slime", "ROLL"):
        assert "before a response has finished" in _lacks(found[framework]), framework
    assert "carries nothing over" in _lacks(found["TRL"])
    for framework in ("OpenRLHF", "slime", "ROLL"):
        assert "no bound on how often" in _lacks(found[framework])
    # verl counts whole batches: half a batch cannot be said, and the line says so.
    line = next(line for line in found["verl"] if line.knob and line.knob.endswith("num_warmup_batches"))
    assert line.field is None
    assert "has no value there" in line.meaning


def test_sequential_needs_no_more_than_a_batch_size(tmp_path: Path) -> None:
    _, found = _told(tmp_path, "sequential", {})
    assert _knobs(found["TRL"]) == {"batch_size": 4, "response_length": 40}
    assert _knobs(found["slime"]) == {"--rollout-batch-size": 4, "--n-samples-per-prompt": 1}
    assert _knobs(found["vLLM"]) in ({}, {"max_num_seqs": 2})
    assert not any("partial" in str(knob) for lines in found.values() for knob in _knobs(lines))


def test_numbers_are_prompts_where_the_framework_counts_prompts(tmp_path: Path) -> None:
    _, found = _told(tmp_path, "april", {"overcommit": 4}, rollout_batch_size=8, group_size=2)
    assert _knobs(found["verl"])["data.train_batch_size"] == 4
    assert _knobs(found["slime"])["--over-sampling-batch-size"] == 6
    assert _knobs(found["ROLL"])["max_additional_running_prompts"] == 2


def test_the_page_and_the_terminal_say_the_same(tmp_path: Path) -> None:
    found = search(scenario(tmp_path), policies=("oppo",), trials=6)
    page, text = advice_markdown(found.advice), advice_text(found.advice)
    assert page.startswith("# Advice for tiny\n")
    for sentences in found.advice["sections"].values():
        for sentence in sentences:
            assert sentence.replace("|", "\\|") in page
            assert sentence in text
    assert "predicted, not measured" in page
    assert "oppo validate" in page
    for framework in ("TRL", "verl", "OpenRLHF", "slime", "vLLM"):
        assert f"### {framework}" in page
    assert json.loads(json.dumps(found.advice))["choice"]["policy"] == "oppo"


def test_the_scenario_file_runs_and_is_the_choice(tmp_path: Path) -> None:
    given = scenario(tmp_path)
    found = search(given, tmp_path / "t", trials=12, space=(choices("rollout.num_replicas", 1, 2),))
    assert found.chosen is not None
    best = load_scenario(tmp_path / "t" / "best.yaml")
    knobs = found.chosen.checked.setting.knobs
    assert best.policy.name == found.chosen.checked.setting.policy
    assert best.rollout.num_replicas == knobs.pop("rollout.num_replicas")
    for field, value in knobs.items():
        assert best.policy.settings[field.removeprefix("policy.")] == value
    seed = found.record["fresh_seeds"][0]
    run = simulate(best, seed=seed)
    assert run.step_s / given.rollout_batch_size == pytest.approx(found.chosen.checked.costs[0][0], rel=1e-9)


def test_the_scenario_file_finds_its_files_from_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "mine.py").write_text(
        "from oppo_sim import Policy\n\n\nclass Mine(Policy):\n    extra: int = 1\n\n    def plan(self,"
        " pool):\n        return self.refill(pool, overcommit=self.extra, chunk_size=8)\n"
    )
    (tmp_path / "given" / "lengths.csv").write_text(
        "prompt_length,response_length\n" + "\n".join(f"4,{5 + 3 * (i % 9)}" for i in range(60))
    )
    given = scenario(
        tmp_path / "given", trace={"path": "lengths.csv"}, policy={"name": "mine.py:Mine", "extra": 1}
    )
    found = search(
        given,
        tmp_path / "out" / "t",
        policies=("mine.py:Mine",),
        space=(choices("policy.extra", 0, 2, 3),),
        trials=5,
    )
    assert found.chosen is not None
    best = load_scenario(tmp_path / "out" / "t" / "best.yaml")
    assert best.trace.path == "../../given/lengths.csv"
    assert best.policy.name == "../../given/mine.py:Mine"
    run = simulate(best, seed=found.record["fresh_seeds"][0])
    assert run.step_s / given.rollout_batch_size == pytest.approx(found.chosen.checked.costs[0][0], rel=1e-9)
