"""Advice in other frameworks' words: knobs that exist, with values that mean what was chosen; and the
scenario file of the choice."""

from __future__ import annotations

import argparse
import ast
import json
import math
import shlex
import tomllib
from collections import defaultdict
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from oppo_sim import columns as c
from oppo_sim.errors import OppoError
from oppo_sim.policies.interface import Batch
from oppo_sim.policies.registry import make_policy
from oppo_sim.scenario.aliases import ALIASES
from oppo_sim.scenario.load import load_scenario
from oppo_sim.scenario.schema import Scenario
from oppo_sim.simulation import simulate
from oppo_sim.tune.advice import (
    against_own,
    alike_sentences,
    beside_given,
    caveats,
    knob_sentences,
    summary_sentences,
)
from oppo_sim.tune.advice_page import advice_markdown, advice_text
from oppo_sim.tune.check import Swept, flat
from oppo_sim.tune.frameworks.catalog import FRAMEWORKS, advice_of, framework
from oppo_sim.tune.frameworks.facts import Line, recommended
from oppo_sim.tune.frameworks.verl import warmup_batches
from oppo_sim.tune.request import Constraints, Seeds
from oppo_sim.tune.space import Setting
from oppo_sim.tune.trials import Checked, KnobEffect, PairedResult
from tests.tuning import choices, scenario, search

# Arguments of vLLM, as its documentation has them.
ENGINE = {
    "enable_prefix_caching",
    "pause_generation(mode='keep', clear_cache=…)",
    "scheduling_policy",
    "max_num_seqs",
    "stream_interval",
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
    ("one-step-off", {}),
    ("async", {"max_staleness": 2}),
    ("async", {"max_staleness": 0}),
    ("async", {"max_staleness": 2, "max_staleness_strategy": "wait", "partial_rollout": False}),
)


def _as_key(knob: str) -> str:
    """A flag as a configuration key."""
    return knob.removeprefix("--").replace("-", "_")


def _told(
    folder: Path, policy: str, settings: dict[str, Any], **changes: Any
) -> tuple[Scenario, dict[str, list[Line]]]:
    if policy in ("one-step-off", "async"):
        changes.setdefault("placement", {"training": "separate"})
    given = scenario(folder, policy={"name": policy, **settings}, **changes)
    built = make_policy(policy, Batch(given.rollout_batch_size, given.group_size), settings)
    it = recommended(given, built)
    return given, {name: each.lines(it) for name, each in FRAMEWORKS.items()}


def _pasted(folder: Path, policy: str, settings: dict[str, Any], name: str, **changes: Any) -> list[str]:
    """The texts to paste into a framework."""
    given, _ = _told(folder, policy, settings, **changes)
    built = make_policy(policy, Batch(given.rollout_batch_size, given.group_size), settings)
    blocks = advice_of(recommended(given, built), name)[framework(name).name]["blocks"]
    return [block["text"] for block in blocks]


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
    assert set(found) == {
        "TRL", "verl", "OpenRLHF", "slime", "NeMo RL", "AReaL", "ROLL", "prime-rl", "vLLM",
    }  # fmt: skip
    for name, lines in found.items():
        assert lines, name
        for line in lines:
            assert line.meaning
            if line.knob is None:
                assert line.value is None
                assert line.field is None
                continue
            key = _as_key(line.knob)
            names = FRAMEWORKS[name].names
            assert line.knob in ENGINE if names is None else names.knows(line.knob), (name, line)
            if line.field is None:
                continue
            key = key if key in ALIASES else key.rpartition(".")[2]
            if key in (line.field, line.field.rpartition(".")[2]):
                assert line.value == _value(given, line.field), (name, line)
                continue
            # What the framework is told is read back as the chosen value.
            text = json.dumps(line.value)
            again = load_scenario(tmp_path / "tiny.yaml", [f"{key}={text}"])
            assert _value(again, line.field) == _value(given, line.field), (name, line)


def test_updates_that_wait_for_rollouts_are_not_told_to_interrupt_them(tmp_path: Path) -> None:
    for partial in (True, False):
        _, found = _told(tmp_path, "async", {"partial_rollout": partial})
        assert any(line.knob == "--train.partial_rollout_enable" for line in found["OpenRLHF"]) == partial
        assert any("always interrupts" in line.meaning for line in found["verl"]) != partial


def _words(text: str) -> list[str]:
    """As a shell reads a command."""
    return shlex.split(text.replace("\\\n", " "))


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
    for name in ("TRL", "verl", "OpenRLHF", "slime", "NeMo RL", "AReaL", "ROLL", "prime-rl"):
        assert "before a response has finished" in _lacks(found[name]), name
    assert "carries nothing over" in _lacks(found["TRL"])
    for name in ("OpenRLHF", "NeMo RL", "AReaL", "ROLL"):
        assert "go on in the next step of synchronous training" in _lacks(found[name])
    assert "no bound on how often" in _lacks(found["slime"])
    assert "no bound on how often" not in _lacks(found["verl"])
    _, found = _told(tmp_path, "tail-batching", {"over_issue": 1.5})
    for name in ("verl", "OpenRLHF", "slime", "NeMo RL", "AReaL", "ROLL", "prime-rl"):
        assert "no knob for this here: prompts beyond the batch" in _lacks(found[name]), name
    _, found = _told(tmp_path, "partial-rollout", {"token_budget": 16})
    assert "stops after a budget of tokens" in _lacks(found["verl"])
    _, found = _told(tmp_path, "oppo", {})
    assert "controlled online" in _lacks(found["verl"])


def test_verl_is_told_nothing_that_its_filter_or_its_scorer_contradicts(tmp_path: Path) -> None:
    both = "filter_groups generates batches of data.gen_batch_size, too"
    filtered = {"dynamic_sampling": {"enable": True}, "group_size": 2, "rewards": {"kind": "trace"}}
    _, found = _told(tmp_path, "inter", {"overcommit": 2}, rollout_batch_size=8)
    assert both not in _lacks(found["verl"])
    _, found = _told(tmp_path, "inter", {"overcommit": 2}, rollout_batch_size=8, **filtered)
    assert both in _lacks(found["verl"])
    given = load_scenario("agentic-a800x4")
    assert given.split.scoring == "cpu", "a verifier"
    built = make_policy("rollout-overlap", Batch(given.rollout_batch_size, given.group_size), {})
    assert "reward model" not in _lacks(FRAMEWORKS["verl"].lines(recommended(given, built)))


def test_sequential_needs_no_more_than_a_batch_size(tmp_path: Path) -> None:
    _, found = _told(tmp_path, "sequential", {}, placement={"training": "rollout"})
    assert _knobs(found["TRL"]) == {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "response_length": 40,
    }
    assert _knobs(found["slime"]) == {
        "--rollout-batch-size": 4,
        "--n-samples-per-prompt": 1,
        "--rollout-max-response-len": 40,
    }
    assert _knobs(found["vLLM"]) in ({}, {"max_num_seqs": 2})
    assert not any("partial" in str(knob) for lines in found.values() for knob in _knobs(lines))


def test_a_run_without_a_critic_is_told_trls_grpo() -> None:
    def told(name: str, *changes: str) -> tuple[dict[str, Any], str, list[str]]:
        given = load_scenario("grpo-h200x8", [f"policy={{name: {name}}}", *changes])
        built = make_policy(name, Batch(given.rollout_batch_size, given.group_size), given.policy.settings)
        it = recommended(given, built)
        lines = FRAMEWORKS["TRL"].lines(it)
        names = FRAMEWORKS["TRL"].names
        assert names is not None
        assert all(names.knows(line.knob) for line in lines if line.knob is not None)
        return _knobs(lines), _lacks(lines), [block.text for block in FRAMEWORKS["TRL"].blocks(it, lines)]

    knobs, lacks, (pasted,) = told("sequential")
    assert knobs == {
        "generation_batch_size": 384,
        "num_generations": 3,
        "max_completion_length": 2048,
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_tensor_parallel_size": 1,
    }
    assert "PPO" not in lacks + pasted
    knobs, lacks, _ = told("sequential", "cluster.split=rollout:2xTP2 scoring:cpu training:4")
    assert knobs["vllm_mode"] == "server"
    assert "trl vllm-serve --model MODEL --tensor-parallel-size 2 --data-parallel-size 2" in lacks
    knobs, _, _ = told("sequential", "costs.rollout.host=generate")
    assert "use_vllm" not in knobs
    _, lacks, (_, client) = told("inter")
    assert "carries nothing over" in lacks
    assert "OppoGRPOTrainer(policy=('inter'" in client
    ast.parse(client)
    _, lacks, blocks = told("rollout-overlap")
    assert "GRPO in TRL" in lacks
    assert len(blocks) == 1, "the client scores whole batches"


def test_a_run_without_a_critic_is_told_nemo_rls_grpo() -> None:
    apart = "cluster.split=rollout:4xTP1 scoring:cpu training:4"
    given = load_scenario("grpo-h200x8", ["policy={name: async, max_staleness: 2}", apart])
    built = make_policy("async", Batch(given.rollout_batch_size, given.group_size), given.policy.settings)
    it, nemo = recommended(given, built), FRAMEWORKS["NeMo RL"]
    lines, names = nemo.lines(it), nemo.names
    assert names is not None
    assert all(names.knows(line.knob) for line in lines if line.knob is not None)
    knobs, (block,) = _knobs(lines), nemo.blocks(it, lines)
    assert knobs["grpo.async_grpo.max_trajectory_age_steps"] == 2
    assert (knobs["grpo.num_prompts_per_step"], knobs["grpo.num_generations_per_prompt"]) == (128, 3)
    assert block.text.startswith("uv run examples/run_grpo.py")
    assert "ppo" not in block.text
    # What it was told is read back.
    told = ["max_trajectory_age_steps", "in_flight_weight_updates", "recompute_kv_cache_after_weight_updates"]
    texts = [f"grpo.async_grpo.{name}={str(knobs[f'grpo.async_grpo.{name}']).lower()}" for name in told]
    again = load_scenario("grpo-h200x8", ["policy.name=async", apart, *texts])
    assert again.policy.settings["max_staleness"] == 2


def test_generation_on_gpus_of_its_own_is_told_to_every_framework() -> None:
    def told(*changes: str) -> dict[str, Any]:
        given = load_scenario("h200x8-async", changes)
        batch = Batch(given.rollout_batch_size, given.group_size)
        it = recommended(given, make_policy(given.policy.name, batch, given.policy.settings))
        return {name: each.lines(it) for name, each in FRAMEWORKS.items()}

    found = told()  # 3 GPUs generate, 5 train
    assert "place generation on 3 GPUs, apart from training" in _lacks(found["TRL"])
    verl = _knobs(found["verl"])
    assert (verl["actor_rollout_ref.rollout.n_gpus_per_node"], verl["trainer.n_gpus_per_node"]) == (3, 5)
    assert _knobs(found["NeMo RL"])["policy.generation.colocated.resources.gpus_per_node"] == 3
    openrlhf = _knobs(found["OpenRLHF"])
    assert (openrlhf["--vllm.num_engines"], openrlhf["--vllm.tensor_parallel_size"]) == (3, 1)
    assert openrlhf["--train.colocate_all"] is True
    assert all(openrlhf[f"--{it}.num_gpus_per_node"] == 5 for it in ("actor", "critic", "ref", "reward"))
    assert "here: on those of generation" in _lacks(found["OpenRLHF"])
    slime = _knobs(found["slime"])
    assert (slime["--rollout-num-gpus"], slime["--actor-num-gpus-per-node"]) == (3, 5)
    areal = _knobs(found["AReaL"])
    assert (areal["rollout.backend"], areal["actor.backend"]) == ("vllm:d3t1", "fsdp:d5")
    assert areal["critic.scheduling_strategy.target"] == "actor"
    roll = _knobs(found["ROLL"])
    assert roll["actor_infer.device_mapping"] == "list(range(5,8))"
    assert roll["actor_train.device_mapping"] == "list(range(0,5))"
    prime = _knobs(found["prime-rl"])
    assert (prime["deployment.num_infer_gpus"], prime["deployment.num_train_gpus"]) == (3, 5)
    for name in ("TRL", "OpenRLHF"):
        assert "no knob for this here: at most 256 running responses of one engine" in _lacks(found[name])
    for name in ("ROLL", "prime-rl"):
        assert "give max_num_seqs 256 to" in _lacks(found[name])

    nodes = "cluster.num_gpus=24", "cluster.num_gpus_per_node=8"
    found = told(*nodes, "cluster.split=rollout:4xTP2 scoring:rollout training:16")
    assert _knobs(found["slime"])["--actor-num-nodes"] == 2
    assert _knobs(found["verl"])["trainer.nnodes"] == 2
    assert _knobs(found["AReaL"])["rollout.backend"] == "vllm:d4t2"
    assert _knobs(found["prime-rl"])["deployment.num_train_nodes"] == 2
    assert _knobs(found["OpenRLHF"])["--critic.num_nodes"] == 2
    ranks = "costs.rollout.expert_parallel=2", "costs.rollout.attention_data_parallel=2"
    found = told(*nodes, "cluster.split=rollout:4xTP2 scoring:rollout training:16", *ranks)
    verl = _knobs(found["verl"])
    engine = ("tensor_model_parallel_size", "data_parallel_size", "expert_parallel_size")
    assert [verl[f"actor_rollout_ref.rollout.{name}"] for name in engine] == [1, 2, 2]
    assert "ranks of" not in _lacks(found["verl"])
    for name in ("OpenRLHF", "slime", "NeMo RL", "AReaL", "ROLL", "prime-rl"):
        said = _lacks(found[name])
        assert "2 ranks of attention in an engine of 2 GPUs: of one rank it is 1, which vLLM takes" in said, (
            name
        )
        assert "2 ranks of experts in an engine" in said, name
    found = told(*nodes, "cluster.split=rollout:6xTP2 scoring:rollout training:12")
    for name in ("slime", "OpenRLHF"):
        assert "12 GPUs of training do not fill whole nodes" in _lacks(found[name]), name
    assert "12 GPUs of generation do not fill whole nodes" in _lacks(found["prime-rl"])
    found = told("policy=sequential")
    for name in ("TRL", "verl"):
        assert "no knob for this here: place generation on 3 GPUs" in _lacks(found[name]), name
    assert "place training on 5 GPUs" in _lacks(found["OpenRLHF"])


def test_numbers_are_prompts_where_the_framework_counts_prompts(tmp_path: Path) -> None:
    _, found = _told(tmp_path, "april", {"overcommit": 4}, rollout_batch_size=8, group_size=2)
    assert _knobs(found["verl"])["data.train_batch_size"] == 4
    assert _knobs(found["slime"])["--over-sampling-batch-size"] == 6
    assert _knobs(found["AReaL"])["train_dataset.batch_size"] == 4
    assert _knobs(found["prime-rl"])["orchestrator.batch_size"] == 8


@given(prompts=st.integers(1, 4096), extra=st.integers(1, 4096))
def test_warmup_batches_are_rounded_down_to_the_overcommit(prompts: int, extra: int) -> None:
    batches, chunk = warmup_batches(extra, prompts)
    assert prompts % chunk == extra % chunk == 0
    assert math.floor(batches * prompts / chunk) * chunk == math.floor(batches * prompts) == extra


def test_lines_are_as_the_framework_takes_them(tmp_path: Path) -> None:
    (text,) = _pasted(tmp_path, "inter", {"overcommit": 2, "max_deferrals": 1}, "verl")
    assert text.splitlines()[0] == "python3 -m verl.trainer.main_ppo \\"
    said = dict(word.split("=", 1) for word in _words(text)[3:])
    assert said["trainer.use_v1"] == "true"
    assert said["trainer.v1.trainer_mode"] == "colocate_async"
    assert said["trainer.v1.colocate_async.num_warmup_batches"] == "0.5"
    assert said["data.gen_batch_size"] == "2"
    assert said["trainer.v1.sampler.max_off_policy_threshold"] == "2"
    assert said["trainer.v1.sampler.max_off_policy_strategy"] == "wait"
    (text,) = _pasted(tmp_path, "inter", {"overcommit": 2}, "verl")
    assert "trainer.v1.sampler.max_off_policy_threshold=null" in _words(text)

    (text,) = _pasted(tmp_path, "april", {"overcommit": 4}, "slime")
    words = _words(text)
    assert words[:2] == ["python3", "train.py"]
    assert words[words.index("--partial-rollout") + 1].startswith("--")  # a switch
    assert words[words.index("--over-sampling-batch-size") + 1] == "8"
    (text,) = _pasted(tmp_path, "one-step-off", {}, "slime")
    assert _words(text)[:2] == ["python3", "train_async.py"]

    (text,) = _pasted(tmp_path, "one-step-off", {}, "openrlhf")
    words = _words(text)
    assert "--train.async_enable" in words
    assert "True" not in words
    assert "--vllm.enable_sleep" not in words

    staleness = {"max_staleness": 2}
    (text,) = _pasted(tmp_path, "async", staleness, "nemo-rl", rollout={"num_replicas": 2})
    assert "ppo.async_ppo.max_trajectory_age_steps=2" in _words(text)
    assert "policy.generation.colocated.resources.gpus_per_node=2" in _words(text)
    (text,) = _pasted(tmp_path, "async", staleness, "AReaL")
    assert "rollout.max_concurrent_rollouts=12" in _words(text)
    (text,) = _pasted(tmp_path, "async", staleness, "ROLL")
    assert YAML(typ="safe").load(text)["async_generation_ratio"] == 2
    (text,) = _pasted(tmp_path, "async", staleness, "prime-rl")
    assert tomllib.loads(text)["orchestrator"]["concurrency"]["max_inflight"] == 12
    (text,) = _pasted(tmp_path, "async", {**staleness, "max_staleness_strategy": "wait"}, "verl")
    assert "trainer.v1.sampler.max_off_policy_threshold=3" in _words(text)

    flags, client = _pasted(tmp_path, "oppo", {"overcommit": 2, "chunk_size": 24}, "TRL")
    assert _words(flags)[:2] == ["--per_device_train_batch_size", "4"]
    assert "policy=('oppo', {'overcommit': 2, 'chunk_size': 24})" in client
    ast.parse(client)


def test_flags_are_read_by_a_parser_of_the_stored_options(tmp_path: Path) -> None:
    for name in ("OpenRLHF", "slime"):
        parser = argparse.ArgumentParser(allow_abbrev=False)
        names = FRAMEWORKS[name].names
        assert names is not None
        for option, switch in names.options.items():
            parser.add_argument(option, **({"action": "store_true"} if switch else {}))
        for policy, settings in POLICIES:
            for text in _pasted(tmp_path, policy, settings, name):
                words = _words(text)
                first = next(place for place, word in enumerate(words) if word.startswith("--"))
                known = vars(parser.parse_args(words[first:]))
                assert all(known[word.lstrip("-").replace("-", "_")] for word in words if word[:2] == "--")


def test_the_stored_names_say_of_which_version_they_are() -> None:
    for each in FRAMEWORKS.values():
        if each.names is None:
            continue
        assert each.names.framework == each.stored
        assert each.names.version
        assert date.fromisoformat(each.names.date) > date(2026, 1, 1)
        assert len(each.names.options) > 100
        assert each.names.said.startswith(each.names.framework)


def test_an_unknown_framework_suggests_the_near_one() -> None:
    assert framework("VERL").name == "verl"
    assert framework("nemo-rl").name == framework("NeMo RL").name == "NeMo RL"
    with pytest.raises(OppoError, match="did you mean 'OpenRLHF'"):
        framework("openrlfh")
    with pytest.raises(OppoError, match="choose TRL, verl, OpenRLHF"):
        framework("unheard")
    with pytest.raises(OppoError, match="'vLLM' only generates, and trains nothing: choose TRL"):
        framework("vLLM")


def test_each_framework_that_the_terminal_names_is_told_alone(tmp_path: Path) -> None:
    found = search(scenario(tmp_path), policies=("inter",), trials=6)
    (line,) = [line for line in found.advice().splitlines() if line.startswith("In the words of ")]
    names = line.removeprefix("In the words of ").removesuffix(": advice.md has what to paste.").split(", ")
    assert names == list(FRAMEWORKS)
    for name in names:
        assert found.advice(name).startswith(name)
    assert "max_num_seqs = " in found.advice("vLLM")


def test_a_search_for_a_framework_is_over_what_it_can_do(tmp_path: Path) -> None:
    found = search(scenario(tmp_path), policies=None, trials=12, framework="slime")
    assert set(found.record["policies"]) == {
        "sequential",
        "rollout-overlap",
        "april",
        "inter",
        "one-step-off",
    }
    deferrals = {
        json.dumps(knob["choices"])
        for knobs in found.record["space"].values()
        for knob in knobs
        if knob["field"] == "policy.max_deferrals"
    }
    assert deferrals == {"[null]"}
    assert list(found.advised["frameworks"]) == ["slime"]
    assert repr(found).startswith("Tuned(tiny, ")
    assert "    python3 train" in found.advice("slime")
    assert found.advice("slime").rstrip() in found.advice()
    with pytest.raises(OppoError, match="no advice for verl: the search was for slime"):
        found.advice("verl")
    for options, words in (
        ({"policies": ("oppo",)}, "slime cannot do it; it can do sequential"),
        ({"constraints": Constraints(max_deferrals=1), "policies": ("inter",)}, "cannot bound how often"),
    ):
        with pytest.raises(OppoError, match=words):
            search(scenario(tmp_path), trials=2, framework="slime", **options)
    kept = scenario(tmp_path, rollout={"clear_kv_cache_on_weight_sync": False})
    with pytest.raises(OppoError, match="computes KV anew after an update: set rollout"):
        search(kept, policies=("inter",), trials=2, framework="verl")
    chunks = scenario(tmp_path, policy={"name": "inter", "score_granularity": "chunk"})
    with pytest.raises(OppoError, match="scores whole responses only"):
        search(chunks, policies=("inter",), trials=2, framework="verl")


def test_policies_that_are_left_out_for_one_reason_share_a_sentence(tmp_path: Path) -> None:
    colocated = scenario(tmp_path, placement={"training": "rollout"})
    sections = search(colocated, trials=3, framework="verl").advised["sections"]
    (said,) = [each for each in sections["What was searched"] if "placement.training: separate" in each]
    assert said.startswith("Left out: one-step-off, async (it generates during training")


def test_the_page_and_the_terminal_say_the_same(tmp_path: Path) -> None:
    found = search(scenario(tmp_path), policies=("oppo",), trials=6)
    page, text = advice_markdown(found.advised), advice_text(found.advised)
    assert page.startswith("# Advice for tiny\n")
    for sentences in found.advised["sections"].values():
        for sentence in sentences:
            assert sentence.replace("|", "\\|") in page
            assert sentence in text
    assert "predicted, not measured" in page
    assert "Where there is a real: section (docs/real.md), oppo validate measures it." in page
    assert not any(line.startswith("oppo validate") for line in page.splitlines())  # it cannot run yet
    for name in FRAMEWORKS:
        assert f"### {name}" in page
        assert name in text
    assert "```\npython3 -m verl.trainer.main_ppo \\\n" in page
    assert json.loads(json.dumps(found.advised))["choice"]["policy"] == "oppo"


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


def test_a_choice_beside_the_least_is_not_called_within_a_percent() -> None:
    def swept(costs: dict[int | None, float]) -> list[Swept]:
        return [Swept("policy.max_deferrals", value, (by, by, by), (), ()) for value, by in costs.items()]

    # No bound is next to the loosest one, wherever it stands among the choices.
    costs = {None: 0.0, 1: 0.3, 2: 0.1, 8: 0.004}
    assert flat(swept(costs), None) == (8, None)
    assert flat(swept({**costs, 8: -0.03}), None) is None
    effect = KnobEffect("policy.max_deferrals", None, None, 8, -0.031, 0.3, 1.0, None, better=8)
    assert knob_sentences([effect], []) == [
        "max_deferrals (none): 8 took 3.1 % less; at worst 30.0 % slower; 100 % of the variance.",
        "max_deferrals 8 was significantly better in this sweep: search on with more trials.",
    ]


def test_a_setting_that_few_seeds_leave_open_is_not_advised_for_its_staleness() -> None:
    def result(policy: str, slower: float, staleness: float) -> PairedResult:
        measures = {c.COMPARED_STALENESS_MEAN: staleness}
        checked = Checked(Setting(policy), "trial 1", (), (), "sequential", measures, {})
        return PairedResult(checked, (slower, -0.1, 9.0), True, True, (0.0,))

    def advised(slower: float) -> list[str]:
        others = [result("sequential", slower, 0.0)]
        said = alike_sentences(
            result("inter", 0.0, 1.5), others, Seeds((0,), (1, 2)), 0.0, "rollouts", "costs"
        )
        return [text for text in said if "least stale" in text]

    assert advised(2.5) == []  # ten times slower cannot be ruled out, nor can ten per cent faster
    (text,) = advised(0.04)
    assert "the least stale is sequential (+4.0 %" in text
    assert "mean staleness of 0 instead of 1.5" in text


def test_the_choice_is_said_as_times_as_fast_as_the_scenarios_own_setting() -> None:
    def result(policy: str, slower: tuple[float, float, float], alike: bool) -> PairedResult:
        checked = Checked(Setting(policy), "as the scenario has it", (), (), "sequential", {}, {})
        return PairedResult(checked, slower, alike, True, (0.0,))

    own = result("intra", (0.36, 0.2, 0.5), False)
    assert beside_given([own], 0.0) == [
        "The choice is 1.36 times as fast [1.2, 1.5] as the scenario's own setting (intra)."
    ]
    gain = against_own([own])
    assert gain.pop("policy") == "intra"
    assert gain == pytest.approx({c.SPEEDUP: 1.36, c.SPEEDUP_LOW: 1.2, c.SPEEDUP_HIGH: 1.5})
    (same,) = beside_given([result("intra", (0.01, -0.02, 0.04), True)], 0.0)
    assert same.startswith("The choice cannot be told apart from the scenario's own setting (intra): 1.01")
    assert beside_given([result("intra", (0.0, 0.0, 0.0), True)], 0.0) == [
        "The choice runs as the scenario's own setting (intra) does."
    ]
    # What is expected is against the baseline already.
    assert beside_given([result("sequential", (0.36, 0.2, 0.5), False)], 0.0) == []


def test_what_is_said_of_staleness_is_what_the_objective_counts() -> None:
    given, stale = load_scenario("h200-single"), Setting("inter")
    assert "What staleness does to learning is not simulated" in caveats(given, stale, "rollouts")[1]
    assert "is no more than rewards.staleness_effect: measured" in caveats(given, stale, "time_to_reward")[1]
    assert len(caveats(given, Setting("intra"), "time_to_reward")) == 1


@pytest.mark.parametrize(("low", "changes"), [(0.97, False), (1.02, True)])
def test_a_choice_that_may_be_no_faster_is_not_told_to_be_set(low: float, changes: bool) -> None:
    speedup = {c.SPEEDUP: 1.04, c.SPEEDUP_LOW: low, c.SPEEDUP_HIGH: 1.1}
    row = defaultdict(float, {**speedup, c.SPEEDUP_BOTH_LOW: math.nan, c.SPEEDUP_BOTH_HIGH: math.nan})
    checked = Checked(Setting("inter"), "trial 1", (row,), (), "sequential", {}, {})
    chosen = PairedResult(checked, (0.0, 0.0, 0.0), True, True, (0.0,))
    first, *_ = summary_sentences(chosen, "rollouts", Seeds((0,), (1, 2)), 20, 5, "")
    assert first == (
        "Set inter."
        if changes
        else "The best found is inter. It may be no faster than sequential, since its interval includes 1: more"
        " seeds, or costs fitted to a log, narrow it."
    )
